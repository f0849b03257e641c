#include "scheduler.h"

#include <cstdio>
#include <cstring>
#include <utility>

namespace emulation {

extern Scheduler* scheduler;  // of the block whose turn it is

namespace {

struct Unwinding {};  // thrown in a suspended thread to end it

constexpr Site kEnd = {nullptr, 0};
constexpr unsigned kNamedThreads = 4;
constexpr unsigned kBarriersOfATurn = 4;  // on average

constexpr const char* kBarrier = "__syncthreads";
constexpr const char* kClusterBarrier = "barrier.cluster";

const char* name_of(Collective kind) {
  constexpr const char* names[] = {"__syncwarp",      "__shfl_sync",   "__shfl_up_sync",
                                   "__shfl_xor_sync", "__ballot_sync", "__all_sync",
                                   "__match_any_sync"};
  return names[static_cast<int>(kind)];
}

bool is_vote(Collective kind) { return kind == Collective::kBallot || kind == Collective::kAll; }

std::string place(Site site) {
  if (site.file == nullptr) return "";
  const char* slash = std::strrchr(site.file, '/');
  return " (" + std::string(slash ? slash + 1 : site.file) + ":" + std::to_string(site.line) + ")";
}

std::string hexadecimal(unsigned mask) {
  char text[16];
  std::snprintf(text, sizeof(text), "0x%08x", mask);
  return text;
}

}  // namespace

// ---- threads ----

Scheduler::Thread::Thread(unsigned number) : fiber(thread_body, number), number(number) {}

void Scheduler::begin_block(const std::function<void()>& thread, dim3 shape, bool early,
                            Random& random) {
  using Order = ReadyQueue::Order;
  count_ = shape.x * shape.y * shape.z;
  while (threads_.size() < count_) threads_.push_back(std::make_unique<Thread>(threads_.size()));
  body_ = &thread;
  random_ = &random;
  finished_ = arrived_ = barriers_ = 0;
  cluster_barriers_ = 0;
  unwinding_ = paused_ = waits_for_cluster_ = false;
  failure_ = nullptr;
  for (Warp& warp : warps_) warp = Warp();
  for (unsigned i = 0; i < count_; ++i) {
    Thread& next = *threads_[i];
    next.index = {i % shape.x, i / shape.x % shape.y, i / (shape.x * shape.y)};
    next.started = next.finished = false;
    next.has_waited = !early;
    next.has_arrived = false;
    next.waits_at = nullptr;
    next.async_copies.forget();
    warps_[next.warp()].lanes |= 1u << i % warpSize;
  }
  ready_.clear(!options.shuffle ? Order::kInOrder
               : random.coin()  ? Order::kRandom
                                : Order::kDepthFirst);
  ready_.push_block(count_, random);
}

bool Scheduler::run_block(bool gives_way) {
  gives_way_ = gives_way;
  paused_ = false;
  switch_to(threads_[ready_.pop(*random_)].get());
  if (failure_) {
    abandon_block();
    std::rethrow_exception(std::exchange(failure_, nullptr));
  }
  return !paused_;
}

// A fiber never ends: the thread with its number in the next block goes on with it.
void Scheduler::thread_body() {
  Fiber::entered();
  for (;;) scheduler->run_thread();
}

void Scheduler::run_thread() {
  Thread& self = *current_;
  self.started = true;
  try {
    (*body_)();
    finish();
  } catch (const Unwinding&) {
  } catch (...) {
    if (!failure_) failure_ = std::current_exception();
  }
  self.finished = true;
  const bool done = unwinding_ || failure_ || finished_ == count_;
  switch_to(done ? nullptr : threads_[ready_.pop(*random_)].get());
}

void Scheduler::switch_to(Thread* next) {
  Fiber& from = current_ ? current_->fiber : launcher_;
  current_ = next;
  if (next) threadIdx = next->index;
  Fiber::switch_stacks(from, next ? next->fiber : launcher_);
}

// Until the running thread has been made ready; it may be so already.
void Scheduler::wait() {
  if (ready_.empty()) fail("deadlock: " + describe_waiting(), kEnd);
  Thread* const next = threads_[ready_.pop(*random_)].get();
  if (next != current_) switch_to(next);
  if (unwinding_) throw Unwinding();
}

// At a barrier that all threads have reached, or where one pauses, to other blocks.
void Scheduler::give_way() {
  paused_ = true;
  switch_to(nullptr);
  if (unwinding_) throw Unwinding();
}

void Scheduler::pause() {
  if (!gives_way_ || random_->coin()) return;
  ready_.push(current_->number);
  give_way();
}

void Scheduler::finish() {
  Thread& self = *current_;
  Warp& warp = warps_[self.warp()];
  const unsigned bit = 1u << lane();
  ++finished_;
  warp.finished |= bit;
  self.finished = true;
  if (self.async_copies.any_under_way()) fail("it returns while copies are under way", kEnd);
  if (self.has_arrived) fail("it returns and has not waited for its cluster", kEnd);
  if (!self.has_waited) fail("it returns and has not waited for earlier kernels", kEnd);
  if (arrived_ > 0) fail("barrier divergence: it returns while " + describe_waiting(), kEnd);
  for (const Group& group : warp.groups) {
    if (group.mask & bit) {
      fail("it returns while a collective names its lane: " + describe_waiting(), kEnd);
    }
  }
  if (ready_.empty() && finished_ < count_) fail("deadlock: " + describe_waiting(), kEnd);
}

void Scheduler::abandon_block() {
  unwinding_ = true;
  for (unsigned i = 0; i < count_; ++i) {
    if (threads_[i]->started && !threads_[i]->finished) switch_to(threads_[i].get());
  }
}

Moment Scheduler::now() const {
  return {current_->number, current_->warp(), barriers_, warps_[current_->warp()].barriers};
}

// ---- barriers and collectives ----

void Scheduler::block_barrier(Site site, bool of_cluster, bool releases) {
  const char* const waits_at = of_cluster ? kClusterBarrier : kBarrier;
  const std::string name = waits_at;
  Warp& warp = warps_[current_->warp()];
  const unsigned bit = 1u << lane();
  if (of_cluster && has_arrived()) fail(name + " before the wait for the last one", site);
  if (finished_ > 0) {
    unsigned i = 0;
    while (!threads_[i]->finished) ++i;
    fail("barrier divergence: " + name + " without " + describe(*threads_[i]), site);
  }
  for (const Group& group : warp.groups) {
    if (group.mask & bit) {
      fail("barrier divergence: " + name + " while " +
               describe(lowest_lane(current_->warp(), group.arrived)),
           site);
    }
  }
  if (arrived_ == 0) {
    barrier_site_ = site;
  } else if (site.line != barrier_site_.line || std::strcmp(site.file, barrier_site_.file) != 0) {
    fail("barrier divergence: " + name + " while " + describe_waiting(), site);
  }
  warp.at_block_barrier |= bit;
  current_->waits_at = waits_at;
  current_->site = site;
  if (++arrived_ == count_) {
    arrived_ = 0;
    ++barriers_;
    for (Warp& each : warps_) {
      each.at_block_barrier = 0;
      each.loads.clear();
      each.stores.clear();
    }
    for (unsigned i = 0; i < count_; ++i) threads_[i]->waits_at = nullptr;
    ready_.push_block(count_, *random_);
    waits_for_cluster_ = of_cluster;
    releases_ = releases;
    cluster_barriers_ += of_cluster;
    if (of_cluster || (gives_way_ && random_->below(kBarriersOfATurn) == 0)) return give_way();
  }
  wait();
}

void Scheduler::cluster_arrive(Site site) {
  if (has_arrived()) fail("it arrives twice at a barrier of its cluster", site);
  current_->has_arrived = true;
}

// All threads meet here, where a GPU would let those go on that come later; as the arrival releases
// nothing, no thread can tell.
void Scheduler::cluster_wait(Site site) {
  if (!has_arrived()) fail("it waits for its cluster and has not arrived", site);
  current_->has_arrived = false;
  block_barrier(site, true, false);
}

uint64_t Scheduler::warp_collective(Collective kind, unsigned mask, uint64_t value, unsigned source,
                                    Site site) {
  Thread& self = *current_;
  Warp& warp = warps_[self.warp()];
  require_all_lanes(name_of(kind), mask, source, site);
  Group& group = join(kind, mask, site);
  group.arrived |= 1u << lane();
  self.waits_at = name_of(kind);
  self.site = site;
  self.value = value;
  self.source = source;
  if (group.arrived == mask) {
    const Group complete_group = group;
    group = warp.groups.back();
    warp.groups.pop_back();
    complete(complete_group);
  }
  wait();
  return self.value;
}

void Scheduler::require_all_lanes(const char* name, unsigned mask, unsigned source,
                                  Site site) const {
  const Warp& warp = warps_[current_->warp()];
  const std::string call = std::string(name) + " with mask " + hexadecimal(mask);
  if (!(mask >> lane() & 1)) fail(call + " is called by a lane that the mask does not name", site);
  if (mask & ~warp.lanes) fail(call + " names lanes that the block does not have", site);
  if (mask & warp.finished) {
    fail(call + " names " + describe(lowest_lane(current_->warp(), mask & warp.finished)), site);
  }
  if (mask & warp.at_block_barrier) {
    const unsigned waiting = mask & warp.at_block_barrier;
    fail("barrier divergence: " + call + " while " +
             describe(lowest_lane(current_->warp(), waiting)),
         site);
  }
  if (!(mask >> source & 1)) {
    fail(call + " reads lane " + std::to_string(source) + ", which the mask does not name", site);
  }
}

Scheduler::Group& Scheduler::join(Collective kind, unsigned mask, Site site) {
  Warp& warp = warps_[current_->warp()];
  Group* joined = nullptr;
  for (Group& group : warp.groups) {
    if (group.kind == kind && group.mask == mask) {
      joined = &group;
    } else if ((group.mask >> lane() & 1) && (group.arrived & mask)) {
      fail(std::string(name_of(kind)) + " with mask " + hexadecimal(mask) + " while " +
               describe(lowest_lane(current_->warp(), group.arrived & mask)) + " with mask " +
               hexadecimal(group.mask),
           site);
    }
  }
  if (joined) return *joined;
  warp.groups.push_back({kind, mask, 0});
  return warp.groups.back();
}

void Scheduler::complete(const Group& group) {
  const unsigned warp = current_->warp();
  std::array<uint64_t, warpSize> values{};
  uint64_t ballot = 0;
  for (unsigned lane = 0; lane < warpSize; ++lane) {
    if (!(group.mask >> lane & 1)) continue;
    values[lane] = lane_of(warp, lane).value;
    ballot |= uint64_t{values[lane] != 0} << lane;
  }
  for (unsigned lane = 0; lane < warpSize; ++lane) {
    if (!(group.mask >> lane & 1)) continue;
    Thread& thread = lane_of(warp, lane);
    thread.value = is_vote(group.kind) ? ballot : values[thread.source];
    if (group.kind == Collective::kMatch) {
      thread.value = 0;
      for (unsigned other = 0; other < warpSize; ++other) {
        const bool same = group.mask >> other & 1 && values[other] == values[lane];
        thread.value |= uint64_t{same} << other;
      }
    }
    thread.waits_at = nullptr;
    ready_.push(thread.number);
  }
  if ((group.mask | warps_[warp].finished) != warps_[warp].lanes) return;
  // Shuffles and votes order no memory.
  if (group.kind == Collective::kSyncwarp) {
    warps_[warp].loads.clear();
    warps_[warp].stores.clear();
    ++warps_[warp].barriers;
  }
}

// ---- races within a warp ----

void Scheduler::access(const void* address, bool stores, Site site) {
  Warp& warp = warps_[current_->warp()];
  require_no_other(warp.stores, address, "stored", site);
  if (stores) require_no_other(warp.loads, address, "loaded", site);
  (stores ? warp.stores : warp.loads).push_back({address, lane()});
}

void Scheduler::require_no_other(const std::vector<Access>& others, const void* address,
                                 const char* what, Site site) const {
  for (const Access& other : others) {
    if (other.address != address || other.lane == lane()) continue;
    const uint3 i = lane_of(current_->warp(), other.lane).index;
    fail("race: thread (" + std::to_string(i.x) + ", " + std::to_string(i.y) + ", " +
             std::to_string(i.z) + ") has " + what + " it, and nothing orders the two",
         site);
  }
}

// ---- messages ----

Scheduler::Thread& Scheduler::lowest_lane(unsigned warp, unsigned mask) const {
  return lane_of(warp, __builtin_ctz(mask));
}

std::string Scheduler::describe(const Thread& thread) const {
  const uint3 i = thread.index;
  std::string text = "thread (" + std::to_string(i.x) + ", " + std::to_string(i.y) + ", " +
                     std::to_string(i.z) + ")";
  if (thread.finished) return text + ", which has returned";
  if (thread.waits_at) text += " waits at " + std::string(thread.waits_at) + place(thread.site);
  return text;
}

std::string Scheduler::describe_waiting() const {
  std::string text;
  unsigned waiting = 0;
  for (unsigned i = 0; i < count_; ++i) {
    if (threads_[i]->finished || !threads_[i]->waits_at) continue;
    if (++waiting <= kNamedThreads) text += (waiting > 1 ? ", " : "") + describe(*threads_[i]);
  }
  if (waiting > kNamedThreads) text += " and " + std::to_string(waiting - kNamedThreads) + " more";
  return text;
}

void Scheduler::fail(const std::string& what, Site site) const {
  const uint3 i = current_->index;
  throw Error("thread (" + std::to_string(i.x) + ", " + std::to_string(i.y) + ", " +
              std::to_string(i.z) + ")" + place(site) + ": " + what);
}

}  // namespace emulation
