// A grid on the CPU: the launch configuration, the order of blocks, shared memory, and the calls
// that kernels make while they run.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <mutex>
#include <new>
#include <numeric>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "cluster_memory.h"
#include "cuda_emulation.h"
#include "global_memory.h"
#include "kernel_attributes.h"
#include "scheduler.h"

// The section of all __shared__ variables; placed by shared_memory.ld.
extern "C" {
extern char emulation_shared_begin[] __attribute__((visibility("hidden")));
extern char emulation_shared_end[] __attribute__((visibility("hidden")));
}

uint3 threadIdx;
uint3 blockIdx;
dim3 blockDim;
dim3 gridDim;

namespace emulation {

Options options;
Scheduler* scheduler = nullptr;

namespace {

constexpr size_t kSharedAlignment = 128;
constexpr unsigned kMostOfCluster = 8;  // on every device that has them

GlobalMemory global_memory;
std::unordered_set<const void*> counters;  // in global memory: what atomics of this launch changed
bool is_early = false;                     // the launch

// Allocated for each launch with exactly the bytes asked for, so that a sanitizer sees an overrun.
std::unique_ptr<char, decltype(&std::free)> dynamic_bytes{nullptr, std::free};
size_t dynamic_size = 0;

bool is_shared(const void* address) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  const auto dynamic_begin = reinterpret_cast<uintptr_t>(dynamic_bytes.get());
  return (at >= reinterpret_cast<uintptr_t>(emulation_shared_begin) &&
          at < reinterpret_cast<uintptr_t>(emulation_shared_end)) ||
         (at >= dynamic_begin && at < dynamic_begin + dynamic_size);
}

// Volatile and unchecked, because the section holds the sanitizer's red zones too.
__attribute__((no_sanitize_address)) void fill(char* begin, char* end, unsigned char pattern) {
  for (volatile char* byte = begin; byte != end; ++byte) *byte = static_cast<char>(pattern);
}

// NaN and -1; then large and very negative numbers, because a maximum hides a NaN.
void poison_shared_memory(uint64_t turn) {
  constexpr unsigned char patterns[] = {0xff, 0x7b, 0xfb};
  const unsigned char pattern = patterns[turn % 3];
  fill(emulation_shared_begin, emulation_shared_end, pattern);
  std::memset(dynamic_bytes.get(), pattern, dynamic_size);
}

std::string shape(dim3 extent) {
  return "(" + std::to_string(extent.x) + ", " + std::to_string(extent.y) + ", " +
         std::to_string(extent.z) + ")";
}

void require_configuration(dim3 grid, dim3 block, unsigned cluster) {
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  if (block.x > 1024 || block.y > 1024 || block.z > 64 || threads == 0 || threads > kMaxThreads) {
    throw Error("a block of " + shape(block) + " threads; it takes 1 to 1024");
  }
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffffu || grid.y > 65535 ||
      grid.z > 65535) {
    throw Error("a grid of " + shape(grid) + " blocks; it takes 1 to 2147483647, 65535, 65535");
  }
  if (cluster > kMostOfCluster || grid.x % cluster != 0) {
    throw Error("clusters of " + std::to_string(cluster) + " in a grid of " + shape(grid) +
                " blocks; it takes 1 to 8, and a grid of whole ones");
  }
}

void allocate_dynamic_shared(size_t bytes) {
  void* allocated = nullptr;
  if (posix_memalign(&allocated, kSharedAlignment, bytes) != 0) throw std::bad_alloc();
  dynamic_bytes.reset(static_cast<char*>(allocated));
  dynamic_size = bytes;
}

// Of blocks, or of clusters.
std::vector<uint64_t> order_of(uint64_t count, Random& random) {
  std::vector<uint64_t> order(count);
  std::iota(order.begin(), order.end(), uint64_t{0});
  if (options.block_order == BlockOrder::kReverse) std::reverse(order.begin(), order.end());
  if (options.block_order == BlockOrder::kShuffled) {
    for (uint64_t last = count; last > 1; --last) {
      std::swap(order[last - 1], order[random.below(static_cast<uint32_t>(last))]);
    }
  }
  return order;
}

// The memory of clusters that have begun, by their numbers; and which of them has its turn.
std::unordered_map<uint64_t, ClusterMemory> clusters;
uint64_t cluster_of_turn = 0;
unsigned cluster_size = 1;
std::unordered_set<uint64_t> left;  // blocks

// A block that has begun, and what it has in shared and global memory while others run.
struct Resident {
  Scheduler scheduler;
  uint3 index{};
  uint64_t number = 0;
  uint64_t cluster = 0;
  bool begun = false;  // it has had a turn
  std::vector<char> statics;
  std::vector<char> dynamics;
  GlobalMemory::Turn writes;

  // While others have their turn. A block's own stores have landed.
  void land(const ClusterMemory::Store& store) {
    if (store.from == store.to.block) return;
    const bool is_static = store.to.offset < statics.size();
    char* to = is_static ? &statics[store.to.offset] : &dynamics[store.to.offset - statics.size()];
    std::copy_n(store.value.begin(), store.to.size, to);
  }
};

// Volatile and unchecked, as above.
__attribute__((no_sanitize_address)) void copy(volatile char* to, const volatile char* from,
                                               size_t size) {
  for (size_t i = 0; i < size; ++i) to[i] = from[i];
}

void begin_turn(Resident& block, uint64_t* blocks_begun) {
  scheduler = &block.scheduler;
  blockIdx = block.index;
  cluster_of_turn = block.cluster;
  if (!block.begun) {
    block.begun = true;
    poison_shared_memory((*blocks_begun)++);
    return;
  }
  copy(emulation_shared_begin, block.statics.data(), block.statics.size());
  copy(dynamic_bytes.get(), block.dynamics.data(), block.dynamics.size());
  global_memory.begin_turn(std::move(block.writes));
}

void end_turn(Resident& block) {
  block.statics.resize(emulation_shared_end - emulation_shared_begin);
  block.dynamics.resize(dynamic_size);
  copy(block.statics.data(), emulation_shared_begin, block.statics.size());
  copy(block.dynamics.data(), dynamic_bytes.get(), dynamic_size);
  block.writes = global_memory.end_turn();
}

void begin(Resident& block, uint64_t number, const std::function<void()>& thread, Random& random) {
  block.number = number;
  block.index = {static_cast<unsigned>(number % gridDim.x),
                 static_cast<unsigned>(number / gridDim.x % gridDim.y),
                 static_cast<unsigned>(number / gridDim.x / gridDim.y)};
  block.begun = false;
  block.scheduler.begin_block(thread, blockDim, is_early, random);
}

// Lets the blocks of a cluster go on, once all that have not returned are at its barrier.
void pass_cluster_barrier(uint64_t cluster, const std::vector<Resident*>& present) {
  const auto is_of = [&](const Resident* block) { return block->cluster == cluster; };
  for (const Resident* block : present) {
    if (is_of(block) && !block->scheduler.waits_for_cluster()) return;
  }
  bool releases = true;
  for (Resident* block : present) {
    if (!is_of(block)) continue;
    block->scheduler.cluster_has_come();
    releases = block->scheduler.releases();
  }
  if (!releases) return;
  clusters[cluster].meet([&](const ClusterMemory::Store& store) {
    for (Resident* block : present) {
      if (block->number == cluster * cluster_size + store.to.block) block->land(store);
    }
  });
}

// One of those that do not wait for others of their cluster. There always is one: the last of a
// cluster to come to its barrier lets all of them go on.
Resident* choose(const std::vector<Resident*>& present, Random& random) {
  std::vector<Resident*> able;
  std::copy_if(present.begin(), present.end(), std::back_inserter(able),
               [](const Resident* block) { return !block->scheduler.waits_for_cluster(); });
  return able[random.below(static_cast<uint32_t>(able.size()))];
}

// Clusters begin in this order, each as soon as there is room for all of its blocks. Then any block
// of those there takes a turn.
void run_blocks(const std::vector<uint64_t>& order, unsigned cluster,
                const std::function<void()>& thread, std::vector<Resident*>& present,
                Random& random) {
  static std::vector<std::unique_ptr<Resident>> residents;  // kept, with their stacks
  const unsigned room = std::max(options.resident, cluster);
  while (residents.size() < room) residents.push_back(std::make_unique<Resident>());
  std::vector<Resident*> free;
  for (unsigned i = 0; i < room; ++i) free.push_back(residents[i].get());
  uint64_t blocks_begun = options.seed;
  for (auto number = order.begin(); number != order.end() || !present.empty();) {
    Resident* next = nullptr;
    if (number != order.end() && free.size() >= cluster) {
      for (unsigned i = 0; i < cluster; ++i) {
        next = free.back();
        free.pop_back();
        present.push_back(next);
        next->cluster = *number;
        begin(*next, *number * cluster + i, thread, random);
      }
      ++number;
    } else {
      next = choose(present, random);
    }
    begin_turn(*next, &blocks_begun);
    if (next->scheduler.run_block(options.resident > 1)) {
      left.insert(next->number);
      const std::string wrong = clusters[next->cluster].leave(next->number % cluster);
      if (!wrong.empty()) throw Error(wrong);
      if (cluster == 1) clusters.erase(next->cluster);
      global_memory.end_block(random.coin());
      present.erase(std::find(present.begin(), present.end(), next));
      free.push_back(next);
    } else {
      if (next->scheduler.waits_for_cluster() && next->scheduler.releases()) {
        global_memory.release();
      }
      end_turn(*next);
    }
    pass_cluster_barrier(next->cluster, present);
  }
}

void run_grid(unsigned cluster, const std::function<void()>& thread, Random& random) {
  const uint64_t clusters = uint64_t{gridDim.x} / cluster * gridDim.y * gridDim.z;
  std::vector<Resident*> present;
  try {
    run_blocks(order_of(clusters, random), cluster, thread, present, random);
  } catch (...) {
    const uint3 failed = blockIdx;
    for (Resident* block : present) {
      scheduler = &block->scheduler;
      scheduler->abandon_block();
    }
    blockIdx = failed;
    throw;
  }
  global_memory.end_grid();
}

}  // namespace

cudaError_t launch_threads(const void* kernel, const std::function<void()>& thread, dim3 grid,
                           dim3 block, size_t dynamic_shared_bytes, Attributes attributes) {
  report("launch", kernel, static_cast<int64_t>(dynamic_shared_bytes));
  static std::recursive_mutex one_at_a_time;  // by other threads; a kernel itself must not launch
  const std::lock_guard<std::recursive_mutex> lock(one_at_a_time);
  if (scheduler != nullptr && scheduler->running())
    throw Error("a kernel launches a kernel, which is not emulated");
  blockIdx = {0, 0, 0};
  counters.clear();
  clusters.clear();
  left.clear();
  cluster_size = attributes.cluster = std::max(attributes.cluster, 1u);
  try {
    require_configuration(grid, block, attributes.cluster);
    require_shared_memory(kernel, dynamic_shared_bytes);
    gridDim = grid;
    blockDim = block;
    allocate_dynamic_shared(dynamic_shared_bytes);
    Random random(options.seed);
    is_early = attributes.early;
    run_grid(attributes.cluster, thread, random);
  } catch (const Error& error) {
    global_memory.forget();
    throw Error("kernel " + name_of(kernel) + ", block " +
                shape({blockIdx.x, blockIdx.y, blockIdx.z}) + ": " + error.what());
  } catch (...) {
    global_memory.forget();
    throw;
  }
  return cudaSuccess;
}

void* dynamic_shared() { return dynamic_bytes.get(); }

void block_barrier(Site site) { scheduler->block_barrier(site); }
void cluster_barrier(Site site) { scheduler->block_barrier(site, true); }
void cluster_arrive(Site site) { scheduler->cluster_arrive(site); }
void cluster_wait(Site site) { scheduler->cluster_wait(site); }

namespace {

// Static shared memory, then dynamic.
ClusterMemory::Place place_of(const void* shared, unsigned block, size_t size, Site site) {
  if (!is_shared(shared)) fail("an access to shared memory of a cluster that is not shared", site);
  if (scheduler->has_arrived()) fail("an access between a cluster's arrival and its wait", site);
  const char* at = static_cast<const char*>(shared);
  const bool is_static = at >= emulation_shared_begin && at < emulation_shared_end;
  const size_t statics = emulation_shared_end - emulation_shared_begin;
  const size_t offset =
      is_static ? at - emulation_shared_begin : at - dynamic_bytes.get() + statics;
  return {block, offset, size};
}

void fail_if(const std::string& wrong, Site site) {
  if (!wrong.empty()) fail(wrong, site);
}

}  // namespace

void store_in_block(void* shared, unsigned block, const void* value, size_t size, Site site) {
  const unsigned own = blockIdx.x % cluster_size;
  const ClusterMemory::Place to = place_of(shared, block, size, site);
  const std::string name = "block " + std::to_string(block) + " of the cluster";
  if (block >= cluster_size) fail("there is no " + name, site);
  if (block != own && scheduler->cluster_barriers() == 0) {
    fail("a store to " + name + ", which may not run yet", site);
  }
  if (left.count(cluster_of_turn * cluster_size + block) > 0) {
    fail("a store to " + name + ", which has returned", site);
  }
  ClusterMemory::Store made{to, own, scheduler->now(), {}};
  std::memcpy(made.value.data(), value, size);
  fail_if(clusters[cluster_of_turn].store(made), site);
  if (block == own) std::memcpy(shared, value, size);
}

void load_of_cluster(const void* shared, size_t size, Site site) {
  if (!is_shared(shared)) return access(shared, false, site);
  const unsigned own = blockIdx.x % cluster_size;
  const ClusterMemory::Place at = place_of(shared, own, size, site);
  fail_if(clusters[cluster_of_turn].load(at, scheduler->now()), site);
}

uint64_t warp_collective(Collective kind, unsigned mask, uint64_t value, unsigned source,
                         Site site) {
  return scheduler->warp_collective(kind, mask, value, source, site);
}

unsigned lane() { return scheduler->lane(); }

void fail(const std::string& what, Site site) { scheduler->fail(what, site); }

void async_copy(void* shared, const void* global, Site site) {
  if (!is_shared(shared)) fail("async_copy to memory that is not shared", site);
  if ((reinterpret_cast<uintptr_t>(shared) | reinterpret_cast<uintptr_t>(global)) %
          AsyncCopies::kBytes !=
      0) {
    fail("async_copy between addresses that are not aligned to 16 bytes", site);
  }
  if (!scheduler->has_waited()) fail("async_copy before the wait for earlier kernels", site);
  scheduler->async_copies().start(shared, global, scheduler->coin());
}
void async_commit() { scheduler->async_copies().commit(); }
void async_wait(unsigned groups_under_way) { scheduler->async_copies().wait(groups_under_way); }

void wait_for_earlier_kernels() { scheduler->wait_for_earlier_kernels(); }

void pause() { scheduler->pause(); }
void fence() { global_memory.fence(scheduler->now()); }

void access(const void* address, bool stores, Site site) {
  if (counters.count(address) > 0) fail("a weak access to what atomics change", site);
  scheduler->access(address, stores, site);
}

void store(void* address, const void* value, size_t size) {
  global_memory.store(address, value, size, scheduler->now());
}

void store_atomic(void* address, const void* value, size_t size) {
  if (is_shared(address)) {
    std::memcpy(address, value, size);
  } else {
    counters.insert(address);
    global_memory.store_atomic(address, value, size, scheduler->now());
  }
}

}  // namespace emulation
