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
template <typename Row>
struct TargetSteps {
  using Element = typename Row::Element;
  struct Place {
    int step;  // of the row, from the first one's
    int chunk;
  };
  Row first;
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
  RDK_DEVICE Row row(const Place& place) const {
    Row columns = first;
    columns.logits.advance(place.step * stride);
    columns.mask.advance(place.step * mask_stride);
    return columns;
  }
};

// This block's share of the chunk sums of the positions [first, last]: the target's and then, if no
// stats were passed, the draft's. If they were, drafts are looked up meanwhile: by the last block
// if that sums nothing, or else from the last warp on, which has the least to sum. A warp steps
// through the chunks of all positions in one count, so that its loads stay in flight from one row
// to the next.
template <typename J, typename C>
RDK_DEVICE void sum_positions(const J& judge, int first, int last, int target_chunks, int split,
                              const C& cut, Position* positions) {
  const VerifyLaunch& launch = judge.launch;
  const VerifyParams& params = launch.params;
  const Sequence& sequence = judge.sequence;
  const int summing = launch.splits - (launch.has_scout() ? 1 : 0);
  const int stride = summing * kWarps;
  const int start = split * kWarps + warp_index();
  const int in_all = split < summing ? (last - first + 1) * target_chunks : 0;
  const TargetSteps<typename J::TargetRow> steps{judge.target_row(first, cut),
                                                 params.target.logits.inner_stride,
                                                 params.target.allowed.inner_stride, target_chunks};
  ChunkSum* sums = judge.target_sums(first, target_chunks);
  const auto look = [&] {
    const bool scouts = launch.has_scout();
    if (!launch.looks_ahead() || (scouts && split < summing)) return true;
    const int behind = launch.splits * kWarps - 1 - start;  // warps
    const int looking = scouts ? kWarps : stride;
#pragma unroll 1
    for (int step = first + behind; step <= min(last, sequence.count - 1); step += looking) {
      Position* position = &positions[warp_index()];
      judge.look_up_in(judge.target_row(step, cut), step, position);
      store_words<Draft>(*position, launch.drafts + judge.slot(step));
    }
    return true;
  };
  stream_chunks(steps, ring_of_warp(judge.shared), start, stride, in_all, look,
                [&](int chunk, float (&z)[kPerLane], float largest) {
                  store_chunk_sum(exponentiate(cut, largest, z), &sums[chunk]);
                });
  if (params.draft_rows.stats != nullptr) return;
  int before = in_all;  // chunks of the rows that this warp's count has passed
#pragma unroll 1
  for (int step = first; step <= last && step < sequence.count;
       ++step, before += judge.draft_chunks) {
    const int passed = max(before - start + stride - 1, 0) / stride * stride;
    judge.sum_draft_row(step, start + passed - before, stride);
  }
}

enum class Outcome { kOpen, kEnded, kPosted };

// Decides the positions [first, last], whose sums are complete, one warp for each: whether the
// sequence has its token, or a pass that will give it.
template <typename J, typename C>
RDK_DEVICE Outcome decide_positions(const J& judge, int first, int last, const C& cut,
                                    Position* positions) {
  const VerifyLaunch& launch = judge.launch;
  const Sequence& sequence = judge.sequence;
  int64_t* tokens = launch.params.tokens + sequence.index * (launch.params.max_draft + 1);
#pragma unroll 1
  for (int begin = first; begin <= last; begin += kWarps) {
    const int decided = min(kWarps, last - begin + 1);
    if (warp_index() < decided) {
      decide(judge, begin + warp_index(), cut, &positions[warp_index()]);
    }
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < decided; ++i) {
      const int step = begin + i;
      if (positions[i].verdict == Verdict::kAccepted) {
        if (threadIdx.x == 0) tokens[step] = positions[i].token;
        write_logprob(judge, step, positions[i], static_cast<int>(positions[i].token), cut);
        continue;
      }
      // Said as soon as it is known, because the launch ends when the last helper has heard of it.
      const bool proposes =
          positions[i].verdict == Verdict::kRejected && sequence.target_temperature != 0.0f;
      if (!proposes && threadIdx.x == 0) settle(launch, sequence.index);
      const int token = last_token(judge, step, positions[i], cut);
      if (token == kDirectPass) {
        post_pass(judge, step, positions[i], cut);
        return Outcome::kPosted;
      }
      if (proposes && threadIdx.x == 0) settle(launch, sequence.index);
      end_sequence(judge, step, positions[i], token, cut);
      return Outcome::kEnded;
    }
    __syncthreads();
  }
  return Outcome::kOpen;
}

// The same of rows that may be cut: within limits one after the other, since those behind a
// rejection are not cut.
template <typename J, typename C>
RDK_DEVICE Outcome decide_within(const J& judge, int first, int last, const RowLimits<C>& limits,
                                 Position* positions) {
  const bool cuts = limits.any();
  const int together = cuts ? 1 : last - first + 1;
  Outcome outcome = Outcome::kOpen;
#pragma unroll 1
  for (int step = first; step <= last && outcome == Outcome::kOpen; step += together) {
    C cut = C::nothing();
    if constexpr (C::kCuts) {
      if (cuts) cut = cut_step(judge, step, limits);
    }
    outcome = decide_positions(judge, step, step + together - 1, cut, positions);
  }
  return outcome;
}

// By a block of the sequence, which are neighbours. True if it goes on with direct passes: not the
// one of several that has given the sequence its token, for which the launch would wait.
template <typename T, typename D, typename R>
RDK_DEVICE bool verify_sequence(const VerifyLaunch& launch, const Sequence& sequence,
                                const FirstDrafts& drafts, int split, unsigned char* shared,
                                Position* positions) {
  using C = typename R::Rows;
  const VerifyParams& params = launch.params;
  const int target_chunks = chunks_in(params.affinity.target_size);
  const Judge<T, D, C, VerifyLaunch, Sequence> judge{
      launch, sequence, chunks_in(params.draft.draft_size) + chunks_in(params.draft.dynamic_size),
      shared, &drafts};
  const auto limits_of = [&] {  // read again where they are used, not kept
    return RowLimits<C>(params.sequences.truncation, sequence.index,
                        static_cast<int>(params.affinity.target_size), sequence.target_temperature);
  };
  const bool usable = usable_temperature(sequence.target_temperature) && limits_of().usable();
  if (!usable) {
    if (split != 0) return true;
    clear_tokens<C>(params, sequence.index);
    if (threadIdx.x == 0) params.num_accepted[sequence.index] = 0;
    if (!R::kByBlock && threadIdx.x == 0) settle(launch, sequence.index);
    return true;
  }
  const bool shares = launch.splits > 1;
  if (!shares) clear_tokens<C>(params, sequence.index);
#pragma unroll 1
  for (int first = 0; first <= sequence.count;) {
    const int last = shares ? sequence.count : first;
    sum_positions(judge, first, last, target_chunks, split, limits_of().before(), positions);
    if (shares) {
      if (!last_block(launch.tickets + sequence.index, launch.splits)) return true;
      clear_tokens<C>(params, sequence.index);
    }
    __syncthreads();
    const RowLimits<C> limits = limits_of();
    if constexpr (R::kByBlock) {
      if (decide_by_block(judge, first, last, limits, positions)) return false;
    } else {
      const Outcome outcome = decide_within(judge, first, last, limits, positions);
      if (outcome != Outcome::kOpen) return !shares || outcome == Outcome::kPosted;
    }
    first = last + 1;
  }
  return false;
}

// R is Whole, Cut or Block.
template <typename T, typename D, typename R>
__global__ void __launch_bounds__(kThreads, kBlocks) verify_kernel(const VerifyLaunch launch) {
  RDK_DYNAMIC_SHARED(shared);
  __shared__ Sequence sequence;
  __shared__ Position positions[kWarps];
  __shared__ FirstDrafts drafts;
  wait_for_earlier_kernels();
  const unsigned splits = static_cast<unsigned>(launch.splits);
  const unsigned own = blockIdx.x / splits;
  const int split = static_cast<int>(blockIdx.x % splits);
  load_sequence(launch.params, own, &sequence, &drafts);
  if (threadIdx.x == kThreads - 1) {
    if (splits > 1) open_ticket(launch.tickets + own, launch.shape.stamp);
    if (!R::kByBlock && split == 0) open_pass(launch, own);
  }
  __syncthreads();
  const bool goes_on = verify_sequence<T, D, R>(launch, sequence, drafts, split, shared, positions);
  if constexpr (!R::kByBlock) {
    if (goes_on) help<T, D, typename R::Rows>(launch, own, &sequence, positions, shared);
  }
}

}  // namespace

RDK_START(Verify, VERIFY)

}  // namespace rdk
