// overlap_backward: alpha by the drafter's logits, q'_i (A_i(M) - Q(M)) / T, M the tokens with
// q < p. Memory floor: V_d + C logits and V_t bits read once, V_d + C gradients written once; the
// rows of S come from the L2 cache, once for four rows of logits, whose bits lie next to each other
// in shared memory. No sum is shared, so a column needs no other one. A lane takes a column: kept
// tokens have one entry of S, next to those of the lane's neighbours. Rows that are longer, those
// of virtual tokens, are left behind as bits, and then each is summed by a whole warp: they often
// are neighbours, so that one warp would have all of them.

#include "draft_row.cuh"
#include "launch_kernel.cuh"

namespace rdk {
namespace {

constexpr int kThreads = OverlapBackwardLaunch::kThreads;
constexpr int kWarps = kThreads / kWarp;
constexpr int kGroup = OverlapBackwardLaunch::kGroup;
constexpr int kWindow = OverlapBackwardLaunch::kWindow;
constexpr int kShort = 8;     // entries that a lane sums by itself
constexpr int kTogether = 4;  // of a lane of those that a warp sums

// What all columns of a row share; in shared memory.
struct GradRow {
  float max;
  float below;   // Q(M)
  float factor;  // the gradient of alpha, over the temperature and the drafter's sum
  bool valid;
};

// Four rows, of which the last ones may be missing.
template <typename T>
struct Group {
  const OverlapBackwardLaunch& launch;
  const uint4* bits;  // by 32 tokens, a word for each row; null: they are read from where they are
  const GradRow* grads;
  int64_t first;
  int rows;

  // Bit 0 of each word: whether the token is in M.
  RDK_DEVICE uint4 below(int token) const {
    const int at = token / 32;
    uint4 words;
    if (bits != nullptr) {
      words = bits[at];
    } else {
      const OverlapBackwardParams& params = launch.params;
      const int64_t width = params.words();
      const uint32_t* word = params.below + first * width + at;
      words.x = __ldg(word);
      words.y = rows > 1 ? __ldg(word + width) : 0;
      words.z = rows > 2 ? __ldg(word + 2 * width) : 0;
      words.w = rows > 3 ? __ldg(word + 3 * width) : 0;
    }
    const int shift = token % 32;
    return {words.x >> shift, words.y >> shift, words.z >> shift, words.w >> shift};
  }
  // Adds an entry's mass where its token is in M. Running sums begin anew in each row of S.
  RDK_DEVICE void add_entry(int entry, int begin, float (&mass)[kGroup]) const {
    const AffinityRows& affinity = launch.params.affinity;
    constexpr float kTwoToMinus32 = 2.3283064e-10f;
    const int64_t before = entry > begin ? affinity.cdf[entry - 1] : 0;
    const float share = static_cast<float>(affinity.cdf[entry] - before) * kTwoToMinus32;
    const uint4 in = below(affinity.targets[entry]);
    mass[0] += (in.x & 1u) != 0 ? share : 0.0f;
    mass[1] += (in.y & 1u) != 0 ? share : 0.0f;
    mass[2] += (in.z & 1u) != 0 ? share : 0.0f;
    mass[3] += (in.w & 1u) != 0 ? share : 0.0f;
  }
  RDK_DEVICE DraftRow<T, Whole> draft(int g) const {
    const OverlapBackwardParams& params = launch.params;
    return {params.draft, first + g, params.draft_temperature[first + g], Whole{}};
  }
  // Of a column of row g with this z, given S_i(M).
  RDK_DEVICE float gradient(int g, float z, float mass) const {
    const GradRow& row = grads[g];
    return row.valid ? expf(z - row.max) * (mass - row.below) * row.factor : 0.0f;
  }
  RDK_DEVICE void write(int g, int column, float z, float mass) const {
    const OverlapBackwardParams& params = launch.params;
    const int rank = static_cast<int>(params.affinity.rank);
    const float* priors = params.stats + (first + g) * params.stats_width() + 3;
#pragma unroll 1
    for (int r = 0; r < rank; ++r) {
      mass += params.affinity.spread[column * rank + r] * priors[r];
    }
    T* out = static_cast<T*>(params.draft_grads) + (first + g) * params.draft.draft_size;
    store_rounded(gradient(g, z, mass), out + column);
  }
};

// By a warp: the gradients of 32 columns, a lane each. Returns the columns that it left, because
// their rows of S are long.
template <typename T>
RDK_DEVICE unsigned write_short_columns(const Group<T>& group, int column, int size) {
  const AffinityRows& affinity = group.launch.params.affinity;
  const bool here = column < size;
  float z[kGroup];
#pragma unroll
  for (int g = 0; g < kGroup; ++g) {
    z[g] = here && g < group.rows ? group.draft(g).static_value(column) : 0.0f;
  }
  const int begin = here ? affinity.offsets[column] : 0;
  const int end = here ? affinity.offsets[column + 1] : 0;
  const bool is_long = end - begin > kShort;
  float mass[kGroup] = {};
#pragma unroll 1
  for (int entry = begin; !is_long && entry < end; ++entry) group.add_entry(entry, begin, mass);
#pragma unroll
  for (int g = 0; g < kGroup; ++g) {
    if (here && !is_long && g < group.rows) group.write(g, column, z[g], mass[g]);
  }
  return __ballot_sync(kAllLanes, is_long);
}

// By a warp.
template <typename T>
RDK_DEVICE void write_long_column(const Group<T>& group, int column) {
  const AffinityRows& affinity = group.launch.params.affinity;
  const int begin = affinity.offsets[column];
  const int end = affinity.offsets[column + 1];
  float mass[kGroup] = {};
#pragma unroll 1
  for (int base = begin + lane_index(); base < end; base += kTogether * kWarp) {
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const int entry = base + j * kWarp;
      if (entry < end) group.add_entry(entry, begin, mass);
    }
  }
  float own = 0.0f;  // of the row that is this lane's
#pragma unroll
  for (int g = 0; g < kGroup; ++g) {
    const float sum = warp_sum(mass[g]);
    if (lane_index() == g) own = sum;
  }
  const int g = lane_index();
  if (g < group.rows) group.write(g, column, group.draft(g).static_value(column), own);
}

// By all threads: the bits of the group's rows, and what their columns share.
RDK_DEVICE void load_group(const OverlapBackwardParams& params, int64_t first, int rows,
                           uint4* bits, GradRow* grads) {
  const int words = static_cast<int>(params.words());
#pragma unroll 1
  for (int g = 0; bits != nullptr && g < kGroup; ++g) {
    const uint32_t* below = params.below + (first + g) * words;
    for (int at = threadIdx.x; at < words; at += kThreads) {
      reinterpret_cast<uint32_t*>(bits + at)[g] = g < rows ? __ldg(below + at) : 0;
    }
  }
  const int g = threadIdx.x;
  if (g >= rows) return;
  const float* stats = params.stats + (first + g) * params.stats_width();
  const float temperature = params.draft_temperature[first + g];
  const bool valid = usable_temperature(temperature) && temperature > 0.0f && stats[1] > 0.0f;
  grads[g] = {stats[0], stats[2], params.grad[first + g] / temperature / stats[1], valid};
}

template <typename T>
RDK_DEVICE void write_dynamic(const Group<T>& group, int split) {
  const OverlapBackwardParams& params = group.launch.params;
#pragma unroll 1
  for (int g = 0; g < group.rows; ++g) {
    const DraftRow<T, Whole> draft = group.draft(g);
    T* out = static_cast<T*>(params.dynamic_grads) + (group.first + g) * draft.dynamic_size;
#pragma unroll 1
    for (int c = split * kThreads + threadIdx.x; c < draft.dynamic_size;
         c += group.launch.splits * kThreads) {
      float value = 0.0f;
      if (draft.used(c)) {
        const uint4 in = group.below(draft.dynamic_tokens[c]);
        const unsigned word = g == 0 ? in.x : g == 1 ? in.y : g == 2 ? in.z : in.w;
        value = group.gradient(g, draft.dynamic_value(c), static_cast<float>(word & 1u));
      }
      store_rounded(value, out + c);
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads, OverlapBackwardLaunch::kBlocks)
    overlap_backward_kernel(const OverlapBackwardLaunch launch) {
  RDK_DYNAMIC_SHARED(shared);
  __shared__ GradRow grads[kGroup];
  __shared__ unsigned left[kWindow];
  wait_for_earlier_kernels();
  const OverlapBackwardParams& params = launch.params;
  const int split = static_cast<int>(blockIdx.x % launch.splits);
  const int64_t first = static_cast<int64_t>(blockIdx.x / launch.splits) * kGroup;
  const int rows = static_cast<int>(min(static_cast<int64_t>(kGroup), params.rows - first));
  uint4* bits = launch.shared_below ? reinterpret_cast<uint4*>(shared) : nullptr;
  const Group<T> group{launch, bits, grads, first, rows};
  load_group(params, first, rows, bits, grads);
  __syncthreads();

  // The n-th 32 columns of the block; neighbours belong to different blocks.
  const int size = static_cast<int>(params.draft.draft_size);
  const auto columns_at = [&](int n) { return (n * launch.splits + split) * kWarp; };
#pragma unroll 1
  for (int begin = 0; columns_at(begin) < size; begin += kWindow) {
    int count = 0;  // that this warp has come past
#pragma unroll 1
    for (int n = warp_index(); n < kWindow; n += kWarps) {
      const int from = columns_at(begin + n);
      const unsigned longs =
          from < size ? write_short_columns(group, from + lane_index(), size) : 0;
      if (lane_index() == 0) left[n] = longs;
    }
    __syncthreads();
#pragma unroll 1
    for (int near = 0; near < kWindow; near += kWarp) {
      const unsigned word = left[near + lane_index()];
#pragma unroll 1
      for (unsigned some = __ballot_sync(kAllLanes, word != 0); some != 0; some &= some - 1) {
        const int n = __ffs(static_cast<int>(some)) - 1;
        unsigned longs = __shfl_sync(kAllLanes, word, n);
#pragma unroll 1
        for (; longs != 0; longs &= longs - 1, ++count) {
          if (count % kWarps != warp_index()) continue;
          const int lane = __ffs(static_cast<int>(longs)) - 1;
          write_long_column(group, columns_at(begin + near + n) + lane);
        }
      }
    }
    __syncthreads();
  }
  write_dynamic(group, split);
}

}  // namespace

RDK_START(OverlapBackward, OVERLAP_BACKWARD)

}  // namespace rdk
