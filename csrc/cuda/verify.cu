// verify: accepts drafted tokens, or replaces the first one that is rejected, in one launch that
// includes the drafter's softmax if no stats are passed (DESIGN sections 2 and 3). Memory floor:
// the target logits that are looked at, once.
//
// With few sequences, the chunks of all positions are split over many blocks, and the last block of
// a sequence decides. With at least one sequence for each multiprocessor, a sequence has one block,
// which takes positions in order and never reads a row after the first rejection. Both take the
// same sums in the same order, so the tokens are the same.

#include "launch_kernel.cuh"
#include "ticket.cuh"
#include "verify_block.cuh"
#include "verify_passes.cuh"
#include "verify_token.cuh"

namespace rdk {
namespace {

constexpr int kThreads = VerifyLaunch::kThreads;
constexpr int kWarps = kThreads / kWarp;
constexpr int kBlocks = VerifyLaunch::kBlocks;

// The target's rows of consecutive steps of a sequence, as one run of chunks.
template <typename T, typename C>
struct TargetSteps {
  using Element = T;
  struct Place {
    int step;  // of the row, from the first one's
    int chunk;
  };
  TargetColumns<T, C> first;
  int64_t stride;
  int64_t mask_stride;
  int chunks;  // of a row

  RDK_DEVICE Place place(int chunk) const {
    Place place{0, 0};
    advance(chunk, &place);
    return place;
  }
  // No division: most steps stay in the row or go to the next.
  RDK_DEVICE void advance(int by, Place* place) const {
    for (place->chunk += by; place->chunk >= chunks; place->chunk -= chunks) {
      ++place->step;
    }
  }
  RDK_DEVICE void copy(const Place& place, uint4* landing) const {
    row(place).copy(place.chunk, landing);
  }
  template <typename Source>
  RDK_DEVICE float scaled_chunk(const Place& place, Source source, float (&z)[kPerLane]) const {
    return row(place).scaled_chunk(place.chunk, source, z);
  }
  RDK_DEVICE TargetColumns<T, C> row(const Place& place) const {
    TargetColumns<T, C> columns = first;
    columns.logits.advance(place.step * stride);
    columns.mask.advance(place.step * mask_stride);
    return columns;
  }
};

// By one warp: what is known of a step's draft, for the block that decides.
template <typename T, typename D, typename C>
RDK_DEVICE void look_ahead(const VerifyLaunch& launch, const Sequence& sequence, int step,
                           const C& cut, Position* position) {
  const TargetColumns<T, C> columns = target_row<T>(launch.params, sequence, step, cut);
  look_up<D>(
      launch, sequence, step, 0, cut, [&](int token) { return columns.logit(token); }, position);
  store_words<Draft>(*position, launch.drafts + slot_of(launch, sequence, step));
}

// This block's share of the chunk sums of the positions [first, last]: the target's and then, if no
// stats were passed, the draft's. If they were, drafts are looked up meanwhile: by the last block
// if that sums nothing, or else from the last warp on, which has the least to sum. A warp steps
// through the chunks of all positions in one count, so that its loads stay in flight from one row
// to the next.
template <typename T, typename D, typename C>
RDK_DEVICE void sum_positions(const VerifyLaunch& launch, const Sequence& sequence, int first,
                              int last, int target_chunks, int draft_chunks, int split,
                              const C& cut, uint4* ring, Position* positions) {
  const VerifyParams& params = launch.params;
  const int summing = launch.splits - (launch.has_scout() ? 1 : 0);
  const int stride = summing * kWarps;
  const int start = split * kWarps + warp_index();
  const int in_all = split < summing ? (last - first + 1) * target_chunks : 0;
  const TargetSteps<T, C> steps{target_row<T>(params, sequence, first, cut),
                                params.target.logits.inner_stride,
                                params.target.allowed.inner_stride, target_chunks};
  ChunkSum* sums = launch.target_chunks + slot_of(launch, sequence, first) * target_chunks;
  const auto look = [&] {
    const bool scouts = launch.has_scout();
    if (!launch.looks_ahead() || (scouts && split < summing)) return true;
    const int behind = launch.splits * kWarps - 1 - start;  // warps
    const int looking = scouts ? kWarps : stride;
#pragma unroll 1
    for (int step = first + behind; step <= min(last, sequence.count - 1); step += looking) {
      look_ahead<T, D>(launch, sequence, step, cut, &positions[warp_index()]);
    }
    return true;
  };
  stream_chunks(steps, ring, start, stride, in_all, look,
                [&](int chunk, float (&z)[kPerLane], float largest) {
                  store_chunk_sum(exponentiate(cut, largest, z), &sums[chunk]);
                });
  if (params.draft_rows.stats != nullptr) return;
  int before = in_all;  // chunks of the rows that this warp's count has passed
#pragma unroll 1
  for (int step = first; step <= last && step < sequence.count; ++step, before += draft_chunks) {
    const int passed = max(before - start + stride - 1, 0) / stride * stride;
    sum_draft_row<D>(launch, sequence, step, draft_chunks, start + passed - before, stride, ring);
  }
}

// Decides the positions [first, last], whose sums are complete, one warp for each. True if the
// sequence has its token, or a pass that will give it.
template <typename T, typename D, typename C>
RDK_DEVICE bool decide_positions(const VerifyLaunch& launch, const Sequence& sequence, int first,
                                 int last, int draft_chunks, const C& cut, unsigned char* shared,
                                 Position* positions) {
  int64_t* tokens = launch.params.tokens + sequence.index * (launch.params.max_draft + 1);
#pragma unroll 1
  for (int begin = first; begin <= last; begin += kWarps) {
    const int decided = min(kWarps, last - begin + 1);
    if (warp_index() < decided) {
      decide<T, D>(launch, sequence, begin + warp_index(), draft_chunks, cut,
                   reinterpret_cast<ChunkSum*>(ring_of_warp(shared)), &positions[warp_index()]);
    }
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < decided; ++i) {
      const int step = begin + i;
      if (positions[i].verdict == Verdict::kAccepted) {
        if (threadIdx.x == 0) tokens[step] = positions[i].token;
        write_logprob<T>(launch, sequence, step, positions[i], static_cast<int>(positions[i].token),
                         cut);
        continue;
      }
      // Said as soon as it is known, because the launch ends when the last helper has heard of it.
      const bool proposes =
          positions[i].verdict == Verdict::kRejected && sequence.target_temperature != 0.0f;
      if (!proposes && threadIdx.x == 0) settle(launch, sequence.index);
      const int token = last_token<T, D>(launch, sequence, step, positions[i], cut, shared);
      if (token == kDirectPass) {
        post_pass(launch, sequence, step, positions[i], cut);
        return true;
      }
      if (proposes && threadIdx.x == 0) settle(launch, sequence.index);
      end_sequence<T>(launch, sequence, step, positions[i], token, cut);
      return true;
    }
    __syncthreads();
  }
  return false;
}

// The same of rows that may be cut: within limits one after the other, since those behind a
// rejection are not cut.
template <typename T, typename D, typename C>
RDK_DEVICE bool decide_within(const VerifyLaunch& launch, const Sequence& sequence, int first,
                              int last, int draft_chunks, const RowLimits<C>& limits,
                              unsigned char* shared, Position* positions) {
  const bool cuts = limits.any();
  const int together = cuts ? 1 : last - first + 1;
  bool ended = false;
#pragma unroll 1
  for (int step = first; step <= last && !ended; step += together) {
    C cut = C::nothing();
    if constexpr (C::kCuts) {
      if (cuts) cut = cut_step<T>(launch, sequence, step, limits, shared);
    }
    ended = decide_positions<T, D>(launch, sequence, step, step + together - 1, draft_chunks, cut,
                                   shared, positions);
  }
  return ended;
}

// By a block of the sequence, which are neighbours.
template <typename T, typename D, typename R>
RDK_DEVICE void verify_sequence(const VerifyLaunch& launch, const Sequence& sequence, int split,
                                unsigned char* shared, Position* positions) {
  using C = typename R::Rows;
  const VerifyParams& params = launch.params;
  const int target_chunks = chunks_in(params.affinity.target_size);
  const int draft_chunks =
      chunks_in(params.draft.draft_size) + chunks_in(params.draft.dynamic_size);
  const auto limits_of = [&] {  // read again where they are used, not kept
    return RowLimits<C>(params.sequences.truncation, sequence.index,
                        static_cast<int>(params.affinity.target_size), sequence.target_temperature);
  };
  const bool usable = usable_temperature(sequence.target_temperature) && limits_of().usable();
  if (!usable) {
    if (split != 0) return;
    clear_tokens<C>(params, sequence.index);
    if (threadIdx.x == 0) params.num_accepted[sequence.index] = 0;
    if (!R::kByBlock && threadIdx.x == 0) settle(launch, sequence.index);
    return;
  }
  const bool shares = launch.splits > 1;
  if (!shares) clear_tokens<C>(params, sequence.index);
#pragma unroll 1
  for (int first = 0; first <= sequence.count;) {
    const int last = shares ? sequence.count : first;
    sum_positions<T, D>(launch, sequence, first, last, target_chunks, draft_chunks, split,
                        limits_of().before(), ring_of_warp(shared), positions);
    if (shares) {
      if (!last_block(launch.tickets + sequence.index, launch.splits)) return;
      clear_tokens<C>(params, sequence.index);
    }
    __syncthreads();
    const RowLimits<C> limits = limits_of();
    bool ended;
    if constexpr (R::kByBlock) {
      ended = decide_by_block<T, D>(launch, sequence, first, last, draft_chunks, limits, shared,
                                    positions);
    } else {
      ended = decide_within<T, D>(launch, sequence, first, last, draft_chunks, limits, shared,
                                  positions);
    }
    if (ended) return;
    first = last + 1;
  }
}

// R is Whole, Cut or Block.
template <typename T, typename D, typename R>
__global__ void __launch_bounds__(kThreads, kBlocks) verify_kernel(const VerifyLaunch launch) {
  RDK_DYNAMIC_SHARED(shared);
  __shared__ Sequence sequence;
  __shared__ Position positions[kWarps];
  wait_for_earlier_kernels();
  const unsigned splits = static_cast<unsigned>(launch.splits);
  const unsigned own = blockIdx.x / splits;
  const int split = static_cast<int>(blockIdx.x % splits);
  if (warp_index() == 0) load_sequence(launch.params, own, &sequence);
  if (threadIdx.x == kThreads - 1) {
    if (splits > 1) open_ticket(launch.tickets + own, launch.shape.stamp);
    if (!R::kByBlock && split == 0) open_pass(launch, own);
  }
  __syncthreads();
  verify_sequence<T, D, R>(launch, sequence, split, shared, positions);
  if constexpr (!R::kByBlock) {
    help<T, D, typename R::Rows>(launch, own, &sequence, positions, shared);
  }
}

}  // namespace

RDK_START(Verify, VERIFY)

}  // namespace rdk
