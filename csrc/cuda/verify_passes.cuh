// verify by token: direct passes, which blocks that have nothing else to do share (DESIGN section
// 6, "Launches and workspace"). One block alone would take a row of 128,256 tokens in 200 us, in
// which it waits for loads; sums are kept by chunk and added in order, so it does not matter who
// makes them.
//
// A sequence's `next` is a word of the launch's stamp and 16 bits: 0 until its token is known or
// its pass is posted; then 1 and the number of batches that have been drawn from the pass, to which
// whoever draws one adds; or kSettled. A pass is finished by the block that sums its last batch, so
// nobody waits, and without helpers the one that posts it does all of it.
#pragma once

#include "ticket.cuh"
#include "verify_limits.cuh"
#include "verify_residual.cuh"

namespace rdk {

constexpr unsigned kSettled = 0xffff;

// All that is known of a sequence whose direct pass it is.
struct Post {
  Sequence sequence;
  Position position;
  int step;
  float threshold;  // of a row that is cut
};
static_assert(sizeof(Post) == kPostBytes);
static_assert(sizeof(Sequence) <= 4 * kWarp && sizeof(Position) <= 4 * kWarp, "by a warp each");

// By one thread of the first block of a sequence, before any of its blocks can settle it.
RDK_DEVICE void open_pass(const VerifyLaunch& launch, int64_t sequence) {
  relaxed_store(launch.next + sequence, launch.shape.stamp);
}
// By one thread, where there is no pass.
RDK_DEVICE void settle(const VerifyLaunch& launch, int64_t sequence) {
  relaxed_store(launch.next + sequence, launch.shape.stamp | kSettled);
}

// By the block.
template <typename J, typename C>
RDK_DEVICE void post_pass(const J& judge, int step, const Position& position, const C& cut) {
  const VerifyLaunch& launch = judge.launch;
  const Sequence& sequence = judge.sequence;
  auto* post = reinterpret_cast<Post*>(launch.posts + sequence.index * kPostBytes);
  if (warp_index() == 0) store_words(sequence, &post->sequence);
  if (warp_index() == 1) store_words(position, &post->position);
  if (threadIdx.x == 2 * kWarp) {
    global_store(&post->step, step);
    global_store(&post->threshold, cut.limit());
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    relaxed_store(launch.done + sequence.index, launch.shape.stamp);
    release_store(launch.next + sequence.index, launch.shape.stamp + 1);
  }
}

// By the block, for the token behind the drafts that are accepted, which the first warp knows.
template <typename J, typename C>
RDK_DEVICE void end_sequence(const J& judge, int step, const Position& position, int token,
                             const C& cut) {
  write_logprob(judge, step, position, token, cut);
  if (threadIdx.x != 0) return;
  const VerifyParams& params = judge.launch.params;
  params.tokens[judge.sequence.index * (params.max_draft + 1) + step] = token;
  params.num_accepted[judge.sequence.index] = step;
}

// By the block: sums batches of a posted pass for as long as there are any, and gives the sequence
// its token if that leaves nothing that others still sum. `sequence`, `position` and `shared` are
// this block's, which has no other use for them.
template <typename T, typename D, typename C>
RDK_DEVICE void share_pass(const VerifyLaunch& launch, int64_t index, Sequence* sequence,
                           Position* position, unsigned char* shared) {
  __shared__ int drawn[2];
  __shared__ bool last;
  const auto draw = [&] {
    return static_cast<int>(acquire_release_add(launch.next + index, 1) & 0xffff) - 1;
  };
  if (threadIdx.x == 0) drawn[0] = draw();
  __syncthreads();
  const int chunks = chunks_in(launch.params.affinity.target_size);
  const int batches = (chunks + launch.batch - 1) / launch.batch;
  int own = drawn[0];
  if (own >= batches) return;
  const auto* post = reinterpret_cast<const Post*>(launch.posts + index * kPostBytes);
  if (warp_index() == 0) load_words(&post->sequence, sequence);
  if (warp_index() == 1) {
    load_words(&post->position, position);
    __syncwarp(kAllLanes);
    if (lane_index() == 0) position->target.kept = nullptr;
  }
  const int step = global_load(&post->step);
  const float threshold = global_load(&post->threshold);
  __syncthreads();
  const C cut = C::at(threshold, sequence->target_temperature);
  using J = Judge<T, D, C, VerifyLaunch, Sequence>;
  const J judge{launch, *sequence, 0, shared};
  const auto columns = judge.target_row(step, cut);
  const Residual<J> residual{judge, *position, columns, 1.0f};
  int made = 0;
#pragma unroll 1
  while (own < batches) {
    ++made;
    if (threadIdx.x == 0) drawn[made % 2] = draw();  // asked for while this one is summed
    residual.sum(own * launch.batch, min((own + 1) * launch.batch, chunks));
    own = drawn[made % 2];
  }
  if (threadIdx.x == 0) {
    const int before = static_cast<int>(acquire_release_add(launch.done + index, made) & 0xffff);
    last = before + made == batches;
  }
  __syncthreads();
  if (!last) return;
  const PhiloxWords words =
      random_words(sequence->step_key, later(sequence->position, step), Purpose::kDirect, 0);
  int token = residual.draw_by_block(words);
  if (warp_index() == 0 && token < 0) token = draw_column(columns, position->target, words);
  end_sequence(judge, step, *position, token, cut);
}

// Where a warp of a block with this sequence looks for passes. Blocks begin in order, so those that
// run have sequences near its own. What does not change is made once: whoever looks last keeps the
// launch from ending.
struct Board {
  const uint64_t* next;
  uint64_t stamp;
  int64_t begin;
  int window;
  int own;  // in the window
  unsigned batches;

  RDK_DEVICE Board(const VerifyLaunch& launch, int64_t sequence)
      : next(launch.next), stamp(launch.shape.stamp) {
    const int64_t count = launch.params.sequences.count;
    window = static_cast<int>(min(count, static_cast<int64_t>(2 * launch.at_once)));
    begin = max(min(sequence - launch.at_once, count - window), static_cast<int64_t>(0));
    own = static_cast<int>(sequence - begin);
    const int chunks = chunks_in(launch.params.affinity.target_size);
    batches = (chunks + launch.batch - 1) / launch.batch;
  }
  RDK_DEVICE int64_t place(int i) const {
    return begin + (i + own < window ? i + own : i + own - window);
  }

  // A sequence whose pass has batches left, the first from the block's own on. Otherwise -1, or -2
  // if none will have any.
  RDK_DEVICE int64_t posted_pass() const {
    constexpr int kEach = 4;  // words of a lane at once
    bool to_come = false;
#pragma unroll 1
    for (int first = 0; first < window; first += kEach * kWarp) {
      uint64_t states[kEach];
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        states[j] = kSettled;
        if (first + j * kWarp >= window) continue;  // few sequences have one word for a lane
        const int i = first + j * kWarp + lane_index();
        if (i < window) states[j] = relaxed_load(next + place(i)) ^ stamp;
      }
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        if (first + j * kWarp >= window) break;
        to_come = to_come || states[j] == 0 || states[j] > 0xffff;  // above: not yet opened
        const unsigned found = __ballot_sync(kAllLanes, 0 < states[j] && states[j] <= batches);
        if (found != 0) return place(first + j * kWarp + __ffs(static_cast<int>(found)) - 1);
      }
    }
    return __ballot_sync(kAllLanes, to_come) != 0 ? -1 : -2;
  }
};

// By the block, whose own work is done but for a pass that it may have posted, which it finds
// first. Nobody needs its help: where other blocks wait for its place, it looks for passes once,
// otherwise until none can come, but no longer than its patience.
template <typename T, typename D, typename C>
RDK_DEVICE void help(const VerifyLaunch& launch, int64_t own, Sequence* sequence,
                     Position* position, unsigned char* shared) {
  __shared__ int64_t found;
  const bool places_are_free = gridDim.x - blockIdx.x <= static_cast<unsigned>(launch.at_once);
#pragma unroll 1
  for (;;) {
    if (warp_index() == 0) {
      const Board board(launch, own);
      int64_t pass;
#pragma unroll 1
      for (int looks = places_are_free ? kPatience : 0;; --looks) {
        pass = board.posted_pass();
        if (pass != -1 || looks == 0) break;
        sleep_briefly();
      }
      if (lane_index() == 0) found = pass;
    }
    __syncthreads();
    if (found < 0) return;
    share_pass<T, D, C>(launch, found, sequence, position, shared);
  }
}

}  // namespace rdk
