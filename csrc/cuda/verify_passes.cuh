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
template <typename C>
RDK_DEVICE void post_pass(const VerifyLaunch& launch, const Sequence& sequence, int step,
                          const Position& position, const C& cut) {
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
template <typename T, typename C>
RDK_DEVICE void end_sequence(const VerifyLaunch& launch, const Sequence& sequence, int step,
                             const Position& position, int token, const C& cut) {
  write_logprob<T>(launch, sequence, step, position, token, cut);
  if (threadIdx.x != 0) return;
  launch.params.tokens[sequence.index * (launch.params.max_draft + 1) + step] = token;
  launch.params.num_accepted[sequence.index] = step;
}

// By the block: sums batches of a posted pass for as long as there are any, and gives the sequence
// its token if that leaves nothing that others still sum. `sequence`, `position` and `shared` are
// this block's, which has no other use for them.
template <typename T, typename D, typename C>
RDK_DEVICE void share_pass(const VerifyLaunch& launch, int64_t index, Sequence* sequence,
                           Position* position, unsigned char* shared) {
  using Sums = Residual<T, D, C, VerifyLaunch, Sequence>;
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
  const TargetColumns<T, C> columns = target_row<T>(launch.params, *sequence, step, cut);
  const Sums residual{launch, *sequence, *position, columns, 1.0f};
  int made = 0;
#pragma unroll 1
  while (own < batches) {
    ++made;
    if (threadIdx.x == 0) drawn[made % 2] = draw();  // asked for while this one is summed
    residual.sum(own * launch.batch, min((own + 1) * launch.batch, chunks), shared);
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
  int token = residual.draw_by_block(words, shared);
  if (warp_index() == 0 && token < 0) token = draw_column(columns, position->target, words);
  end_sequence<T>(launch, *sequence, step, *position, token, cut);
}

// By one warp: a sequence whose pass has batches left, the first from `own` on. Otherwise -1, or -2
// if none will have any.
RDK_DEVICE int64_t posted_pass(const VerifyLaunch& launch, int64_t own) {
  constexpr int kEach = 4;  // words of a lane at once
  // Blocks begin in order, so those that run have sequences near this one's.
  const int64_t count = launch.params.sequences.count;
  const int window = static_cast<int>(min(count, static_cast<int64_t>(2 * launch.at_once)));
  const int64_t begin = max(min(own - launch.at_once, count - window), static_cast<int64_t>(0));
  const int chunks = chunks_in(launch.params.affinity.target_size);
  const unsigned batches = (chunks + launch.batch - 1) / launch.batch;
  bool to_come = false;
#pragma unroll 1
  for (int first = lane_index(); first - lane_index() < window; first += kEach * kWarp) {
    const auto place = [&](int i) {
      const int at = i + static_cast<int>(own - begin);
      return begin + (at < window ? at : at - window);
    };
    uint64_t words[kEach];
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int i = first + j * kWarp;
      words[j] = i < window ? relaxed_load(launch.next + place(i)) : launch.shape.stamp | kSettled;
    }
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const uint64_t state = words[j] ^ launch.shape.stamp;  // above 0xffff: not yet opened
      to_come = to_come || state == 0 || state > 0xffff;
      const unsigned found = __ballot_sync(kAllLanes, 0 < state && state <= batches);
      if (found != 0)
        return place(first - lane_index() + j * kWarp + __ffs(static_cast<int>(found)) - 1);
    }
  }
  return __ballot_sync(kAllLanes, to_come) != 0 ? -1 : -2;
}

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
      int64_t pass = posted_pass(launch, own);
#pragma unroll 1
      for (int looks = places_are_free ? kPatience : 0; pass == -1 && looks > 0; --looks) {
        sleep_briefly();
        pass = posted_pass(launch, own);
      }
      if (lane_index() == 0) found = pass;
    }
    __syncthreads();
    if (found < 0) return;
    share_pass<T, D, C>(launch, found, sequence, position, shared);
  }
}

}  // namespace rdk
