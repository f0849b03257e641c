// Runs the threads of one block, each a fiber, from one barrier or warp collective to the next, and
// refuses what would be undefined on a GPU. Blocks that take turns have one each.
#pragma once

#include <array>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "async_copies.h"
#include "cuda_emulation.h"
#include "fiber.h"
#include "global_memory.h"
#include "random.h"
#include "ready_queue.h"

namespace emulation {

class Scheduler {
 public:
  void begin_block(const std::function<void()>& thread, dim3 shape, bool early, Random& random);
  // True when every thread has returned, false at a barrier where the block gives way to others; at
  // one of its cluster it has to.
  // Rethrows what the first thread threw, with the others unwound.
  bool run_block(bool gives_way);
  void abandon_block();  // unwinds its threads

  bool waits_for_cluster() const { return waits_for_cluster_; }
  // Whether the barrier of its cluster where it waits orders memory.
  bool releases() const { return releases_; }
  void cluster_has_come() { waits_for_cluster_ = false; }
  unsigned cluster_barriers() const { return cluster_barriers_; }

  bool running() const { return current_ != nullptr; }
  unsigned lane() const { return current_->number % warpSize; }
  Moment now() const;

  bool coin() { return random_->coin(); }
  AsyncCopies& async_copies() { return current_->async_copies; }

  void block_barrier(Site site, bool of_cluster = false, bool releases = true);
  // A barrier of the cluster in two parts, between which a thread has no business with it.
  void cluster_arrive(Site site);
  void cluster_wait(Site site);
  bool has_arrived() const { return current_->has_arrived; }
  uint64_t warp_collective(Collective kind, unsigned mask, uint64_t value, unsigned source,
                           Site site);

  void pause();

  // By the running thread: refused where nothing orders it and what another lane of its warp did.
  void access(const void* address, bool stores, Site site);

  void wait_for_earlier_kernels() { current_->has_waited = true; }
  // Whether the running thread may touch memory.
  bool has_waited() const { return current_->has_waited; }

  // Throws an Error in the running thread.
  [[noreturn]] void fail(const std::string& what, Site site) const;

 private:
  struct Thread {
    explicit Thread(unsigned number);
    unsigned warp() const { return number / warpSize; }

    Fiber fiber;
    unsigned number;
    uint3 index{};
    bool started = false;
    bool finished = false;
    bool has_waited = false;   // for earlier kernels, which a launch that is not early need not
    bool has_arrived = false;  // and has yet to wait for its cluster
    const char* waits_at = nullptr;  // the barrier or collective; null: running or ready
    Site site{};
    uint64_t value = 0;  // given to a collective, then its result
    unsigned source = 0;
    AsyncCopies async_copies;
  };

  // Lanes that have met in a collective. Groups of one warp with disjoint masks exist side by side.
  struct Group {
    Collective kind;
    unsigned mask;
    unsigned arrived;
  };
  // Of memory that blocks exchange.
  struct Access {
    const void* address;
    unsigned lane;
  };
  struct Warp {
    unsigned lanes = 0;  // one bit each
    unsigned finished = 0;
    unsigned at_block_barrier = 0;
    unsigned barriers = 0;
    std::vector<Group> groups;
    std::vector<Access> loads;   // since all lanes last met in a collective
    std::vector<Access> stores;  // since their last __syncwarp
  };

  static void thread_body();
  void run_thread();
  void switch_to(Thread* next);  // null: the launcher
  void wait();
  void give_way();
  void finish();

  void require_no_other(const std::vector<Access>& others, const void* address, const char* what,
                        Site site) const;
  void require_all_lanes(const char* name, unsigned mask, unsigned source, Site site) const;
  Group& join(Collective kind, unsigned mask, Site site);
  void complete(const Group& group);

  Thread& lane_of(unsigned warp, unsigned lane) const { return *threads_[warp * warpSize + lane]; }
  Thread& lowest_lane(unsigned warp, unsigned mask) const;
  std::string describe(const Thread& thread) const;
  std::string describe_waiting() const;

  std::vector<std::unique_ptr<Thread>> threads_;  // kept from block to block, with their stacks
  std::array<Warp, kMaxThreads / warpSize> warps_;
  Fiber launcher_;
  Thread* current_ = nullptr;
  const std::function<void()>* body_ = nullptr;
  Random* random_ = nullptr;
  ReadyQueue ready_;
  unsigned count_ = 0;
  unsigned finished_ = 0;
  bool unwinding_ = false;
  bool gives_way_ = false;
  bool paused_ = false;
  bool waits_for_cluster_ = false;
  bool releases_ = true;
  unsigned cluster_barriers_ = 0;
  std::exception_ptr failure_;

  Site barrier_site_{};
  unsigned arrived_ = 0;
  unsigned barriers_ = 0;
};

}  // namespace emulation
