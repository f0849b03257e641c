// overlap: alpha = sum over x of min(p(x), q(x)), and a bit for each x with q(x) < p(x), from which
// overlap_backward makes the gradient without p or q. Memory floor: a row's V_t target logits and
// V_d + C drafter logits read once, V_t bits written once; the sparse structure comes from the L2
// cache, some 12 bytes a token. A block takes a row: it sums both softmaxes, keeps the drafter's
// exp(z - max) in shared memory where there is room, and then goes over the target's tokens again,
// whose logits are in the L2 cache by now. A lane takes four tokens, as in redistribute, each kWarp
// after the other, so the bits of a warp's tokens are one ballot for each of the four.

#include "columns.cuh"
#include "launch_kernel.cuh"

namespace rdk {
namespace {

constexpr int kThreads = OverlapLaunch::kThreads;
constexpr int kWarps = kThreads / kWarp;
constexpr int kTokens = 4;  // of a lane at once
constexpr int kSums = 2 + kMaxRank;

// In shared memory.
struct OverlapRow {
  float stats[2 + kMaxRank];  // the drafter's
  float reciprocal;           // of its sum
  float target_max;
  float target_total;
  float target_reciprocal;
  int top;  // of a greedy target, otherwise -1
  bool draft_valid;
  bool target_valid;
  float sums[kWarps][kSums];
};
static_assert(sizeof(OverlapRow) == OverlapLaunch::kStaticSharedBytes,
              "the plan leaves room for it");

template <typename T>
RDK_DEVICE TargetColumns<T, Whole> target_columns(const OverlapParams& params, int64_t row,
                                                  float temperature) {
  const TargetRows& target = params.target;
  return {Logits<T>(target.dtype, target.logits.data, target.logits.offset(row)),
          static_cast<int>(target.size),
          Scale(temperature),
          Whole{},
          {}};
}

// By all warps: the chunk sums of both rows, and the drafter's z where all can find them.
template <typename T, typename D>
RDK_DEVICE void sum_rows(const OverlapLaunch& launch, const TargetColumns<T, Whole>& target,
                         const DraftRow<D, Whole>& draft, float* weights, ChunkSum* target_sums,
                         ChunkSum* draft_sums, float* spread_sums) {
  const AffinityColumns& affinity = launch.params.affinity;
  sum_chunks<kWarps>(target, target_sums);
#pragma unroll 1
  for (int chunk = warp_index(); chunk < draft.chunks(); chunk += kWarps) {
    float z[kPerLane];
    const float largest = draft.scaled_chunk(chunk, InMemory{}, z);
    if (launch.shared_weights && chunk < draft.static_chunks()) {
      keep_chunk(z, chunk * kChunk, draft.size, weights);
    }
    sum_draft_chunk(draft, chunk, z, largest, affinity.spread, static_cast<int>(affinity.rank),
                    draft_sums, spread_sums);
  }
}

// By one warp each: the drafter's stats, and the target's.
template <typename D>
RDK_DEVICE void summarize_draft(const DraftRow<D, Whole>& draft, float temperature,
                                const ChunkSum* sums, const float* spread_sums, int rank,
                                OverlapRow* row) {
  const bool usable = usable_temperature(temperature) && temperature != 0.0f;
  const Softmax softmax = merge_chunks(sums, usable ? draft.chunks() : 0);
  write_draft_stats(softmax, spread_sums, rank, row->stats);
  if (lane_index() != 0) return;
  row->draft_valid = softmax.valid;
  row->reciprocal = 1.0f / softmax.total;
}
template <typename T>
RDK_DEVICE void summarize_target(const TargetColumns<T, Whole>& target, float temperature,
                                 const ChunkSum* sums, OverlapRow* row) {
  const Softmax softmax = merge_chunks(sums, usable_temperature(temperature) ? target.chunks() : 0);
  const bool greedy = softmax.valid && temperature == 0.0f;
  const int top = greedy ? argmax_column(target, softmax) : -1;
  if (lane_index() != 0) return;
  row->target_valid = softmax.valid;
  row->target_max = softmax.max;
  row->target_total = softmax.total;
  row->target_reciprocal = 1.0f / softmax.total;
  row->top = top;
}

// p of a lane's tokens; 0 behind the last one.
template <typename T>
RDK_DEVICE void target_masses(const TargetColumns<T, Whole>& target, const OverlapRow& row,
                              int base, float (&p)[kTokens]) {
#pragma unroll
  for (int j = 0; j < kTokens; ++j) {
    const int token = token_of(base, j);
    p[j] = token < target.size ? expf(target.scale.finite(target.logits[token]) - row.target_max)
                               : 0.0f;
    if (row.top >= 0) p[j] = token == row.top ? 1.0f : 0.0f;
  }
#pragma unroll
  for (int j = 0; j < kTokens; ++j) p[j] = row.top < 0 ? p[j] * row.target_reciprocal : p[j];
}

// By all warps, each its own sums.
template <typename T, typename D>
RDK_DEVICE void compare(const OverlapLaunch& launch, int64_t index,
                        const TargetColumns<T, Whole>& target, const DraftRow<D, Whole>& draft,
                        const float* weights, OverlapRow* row) {
  const AffinityColumns& affinity = launch.params.affinity;
  const int rank = static_cast<int>(affinity.rank);
  const int size = target.size;
  const float max = row->stats[0];
  uint32_t* words = launch.params.below + index * launch.params.words();
  float sums[kSums] = {};
  int base = warp_index() * kTokens * kWarp;
  Columns<kTokens> next = load_columns<kTokens>(affinity, base, size);
#pragma unroll 1
  for (; base < size; base += kThreads * kTokens) {
    const Columns<kTokens> columns = next;
    next = load_columns<kTokens>(affinity, base + kThreads * kTokens, size);
    float p[kTokens];
    target_masses(target, *row, base, p);
    float q[kTokens] = {};
    if (launch.shared_weights) {
      add_entries(affinity, columns, [&](int column) { return weights[column]; }, q);
    } else {
      const auto weight = [&](int column) { return expf(draft.static_value(column) - max); };
      add_entries(affinity, columns, weight, q);
    }
    if (draft.dynamic_size > 0) add_dynamic_columns(draft, max, base, q);
#pragma unroll
    for (int j = 0; j < kTokens; ++j) q[j] *= row->reciprocal;
    float prior[kTokens];
#pragma unroll 1
    for (int r = 0; r < rank; ++r) {
      load_tokens(affinity.prior + r * affinity.target_size, base, size, prior);
#pragma unroll
      for (int j = 0; j < kTokens; ++j) q[j] += row->stats[2 + r] * prior[j];
    }
    unsigned bits = 0;
#pragma unroll
    for (int j = 0; j < kTokens; ++j) {
      const bool below = q[j] < p[j];
      const unsigned word = __ballot_sync(kAllLanes, below);
      if (lane_index() == j) bits = word;
      sums[0] += fminf(p[j], q[j]);
      if (below) sums[1] += q[j];
    }
    if (lane_index() < kTokens && base + lane_index() * kWarp < size) {
      words[base / kWarp + lane_index()] = bits;
    }
#pragma unroll
    for (int r = 0; r < kMaxRank; ++r) {
      if (r >= rank) continue;
      load_tokens(affinity.prior + r * affinity.target_size, base, size, prior);
#pragma unroll
      for (int j = 0; j < kTokens; ++j) {
        if (q[j] < p[j]) sums[2 + r] += prior[j];
      }
    }
  }
  float (&own)[kSums] = row->sums[warp_index()];
#pragma unroll
  for (int k = 0; k < kSums; ++k) {
    const float sum = warp_sum(sums[k]);
    if (lane_index() == 0) own[k] = sum;
  }
}

RDK_DEVICE void write_row(const OverlapParams& params, int64_t index, const OverlapRow& row) {
  const bool valid = row.draft_valid && row.target_valid;
  const int width = static_cast<int>(params.stats_width());
  float* stats = params.stats + index * width;
  const int k = threadIdx.x;
  if (k < width - 1) {
    float total = valid ? 0.0f : not_a_number();
    for (int warp = 0; valid && warp < kWarps; ++warp) total += row.sums[warp][k];
    *(k == 0 ? params.alpha + index : stats + 1 + k) = total;
  }
  if (k < 2) stats[k] = valid ? row.stats[k] : not_a_number();
  if (valid) return;
  uint32_t* words = params.below + index * params.words();
  for (int word = threadIdx.x; word < params.words(); word += kThreads) words[word] = 0;
}

template <typename T, typename D>
__global__ void __launch_bounds__(kThreads, OverlapLaunch::kBlocks)
    overlap_kernel(const OverlapLaunch launch) {
  RDK_DYNAMIC_SHARED(shared);
  __shared__ OverlapRow row;
  wait_for_earlier_kernels();
  const OverlapParams& params = launch.params;
  const int64_t index = blockIdx.x;
  const int rank = static_cast<int>(params.affinity.rank);
  const float target_temperature = params.target_temperature[index];
  const float draft_temperature = params.draft_temperature[index];
  const auto target = target_columns<T>(params, index, target_temperature);
  const DraftRow<D, Whole> draft(params.draft, index, draft_temperature, Whole{});
  float* weights = reinterpret_cast<float*>(shared);
  ChunkSum* target_sums = launch.target_chunks + index * target.chunks();
  ChunkSum* draft_sums = launch.draft_chunks + index * draft.chunks();
  float* spread_sums = launch.spread_sums + index * rank * draft.chunks();
  sum_rows(launch, target, draft, weights, target_sums, draft_sums, spread_sums);
  __syncthreads();
  if (warp_index() == 0) {
    summarize_draft(draft, draft_temperature, draft_sums, spread_sums, rank, &row);
  } else if (warp_index() == 1) {
    summarize_target(target, target_temperature, target_sums, &row);
  }
  __syncthreads();
  if (row.draft_valid && row.target_valid) {
    for (int i = threadIdx.x; launch.shared_weights && i < draft.size; i += kThreads) {
      weights[i] = expf(weights[i] - row.stats[0]);
    }
    __syncthreads();
    compare(launch, index, target, draft, weights, &row);
    __syncthreads();
  }
  write_row(params, index, row);
}

}  // namespace

RDK_START(Overlap, OVERLAP)

}  // namespace rdk
