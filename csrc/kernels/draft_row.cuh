// One row of the drafter's softmax and what verification keeps of it.
#pragma once

#include "softmax.cuh"

namespace rdk {

// The drafter's row: V_d static columns with a bias, then, in chunks of their own, dynamic ones.
template <typename T>
struct DraftRow {
  Logits<T> logits;
  const float* bias;
  int size;
  Logits<T> dynamic_logits;
  const int32_t* dynamic_tokens;
  int dynamic_size;
  int target_size;
  Scale scale;
  bool greedy;  // the bias only masks

  __device__ __forceinline__ DraftRow(const DraftColumns& columns, int64_t row, float temperature)
      : logits(columns.dtype, columns.logits.data, columns.logits.offset(row)),
        bias(columns.bias),
        size(static_cast<int>(columns.draft_size)),
        dynamic_logits(columns.dtype, columns.dynamic_logits.data,
                       columns.dynamic_size > 0 ? columns.dynamic_logits.offset(row) : 0),
        dynamic_tokens(columns.dynamic_size > 0
                           ? static_cast<const int32_t*>(columns.dynamic_tokens.data) +
                                 columns.dynamic_tokens.offset(row)
                           : nullptr),
        dynamic_size(static_cast<int>(columns.dynamic_size)),
        target_size(static_cast<int>(columns.target_size)),
        scale(temperature),
        greedy(temperature == 0.0f) {}

  __device__ __forceinline__ int static_chunks() const { return (size + kChunk - 1) / kChunk; }
  __device__ __forceinline__ int chunks() const {
    return static_chunks() + (dynamic_size + kChunk - 1) / kChunk;
  }
  __device__ __forceinline__ bool is_dynamic(int column) const {
    return column >= static_chunks() * kChunk;
  }
  __device__ __forceinline__ int dynamic_index(int column) const {
    return column - static_chunks() * kChunk;
  }
  __device__ __forceinline__ bool used(int index) const {
    return dynamic_tokens[index] >= 0 && dynamic_tokens[index] < target_size;
  }

  __device__ __forceinline__ float with_bias(float quotient, float shift) const {
    return quotient + (greedy && shift != -infinity() ? 0.0f : shift);
  }
  __device__ __forceinline__ float static_value(int column) const {
    return with_bias(scale(logits[column]), __ldg(bias + column));
  }
  __device__ __forceinline__ float dynamic_value(int index) const {
    return scale(dynamic_logits[index]);
  }

  __device__ __forceinline__ void scaled_chunk(int chunk, float (&z)[kPerLane]) const {
    if (chunk < static_chunks()) {
      float shift[kPerLane];
      load_chunk(logits, chunk * kChunk, size, z);
      load_chunk(Logits<float>(Dtype::kFloat32, bias, 0), chunk * kChunk, size, shift);
      scale(z);
#pragma unroll
      for (int v = 0; v < kPerLane; ++v) z[v] = with_bias(z[v], shift[v]);
    } else {
      const int begin = (chunk - static_chunks()) * kChunk;
#pragma unroll
      for (int v = 0; v < kPerLane; ++v) {
        const int index = begin + column_of(lane_index(), v);
        z[v] = index < dynamic_size && used(index) ? dynamic_value(index) : -infinity();
      }
    }
  }
};

// By one warp: for each of kRank priors r the sum of weight U[i, r] over a chunk. Rows of U lie
// side by side, so a lane's columns are one run of memory.
template <int kRank>
__device__ __forceinline__ void sum_spread(const float (&weights)[kPerLane],
                                           const Logits<float>& spread, int begin, int size,
                                           int chunks, float* spread_sums) {
  const bool whole = spread.aligned() && begin + kChunk <= size;
  float masses[kRank] = {};
#pragma unroll
  for (int v = 0; v < kPerLane; v += kVector) {
    const int column = begin + column_of(lane_index(), v);
#pragma unroll
    for (int first = 0; first < kVector * kRank; first += kVector) {
      float values[kVector];
      if (whole) spread.load_vector(column * kRank + first, values);
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        const int i = first + j;
        if (!whole) values[j] = column + i / kRank < size ? spread[column * kRank + i] : 0.0f;
        masses[i % kRank] += weights[v + i / kRank] * values[j];
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRank; ++r) {
    const float mass = warp_sum(masses[r]);
    if (lane_index() == 0) global_store(&spread_sums[r * chunks], mass);
  }
}

// By one warp: the sums of one chunk of a row, and, for each prior r, that of exp(z - chunk max)
// U[i, r].
template <typename T>
__device__ __forceinline__ void sum_draft_chunk(const DraftRow<T>& row, int chunk,
                                                const float* spread, int rank, ChunkSum* chunk_sums,
                                                float* spread_sums) {
  float weights[kPerLane];
  row.scaled_chunk(chunk, weights);
  const ChunkSum sum = exponentiate(weights);
  if (lane_index() == 0) {
    global_store(&chunk_sums[chunk].max, sum.max);
    global_store(&chunk_sums[chunk].sum, sum.sum);
  }
  const Logits<float> rows(Dtype::kFloat32, spread, 0);
  const int begin = chunk * kChunk;
  const int size = row.is_dynamic(begin) ? 0 : row.size;
  const int chunks = row.chunks();
  switch (rank) {
    case 1:
      return sum_spread<1>(weights, rows, begin, size, chunks, spread_sums + chunk);
    case 2:
      return sum_spread<2>(weights, rows, begin, size, chunks, spread_sums + chunk);
    case 3:
      return sum_spread<3>(weights, rows, begin, size, chunks, spread_sums + chunk);
    case kMaxRank:
      return sum_spread<kMaxRank>(weights, rows, begin, size, chunks, spread_sums + chunk);
  }
}

// By one warp: stats = (max, sum, s_r...), s_r = sum_i q'_i U[i, r]. NaN where there is no
// distribution. Every lane writes the same values; stats may lie in shared or global memory.
__device__ __forceinline__ void write_draft_stats(const Softmax& softmax, const float* spread_sums,
                                                  int rank, float* stats) {
#pragma unroll 1
  for (int r = 0; r < rank; ++r) {
    const float mass = warp_total(softmax.valid ? softmax.count : 0, [&](int c) {
      if (c >= softmax.count) return 0.0f;
      const float chunk_max = global_load(&softmax.chunks[c].max);
      if (chunk_max == -infinity()) return 0.0f;
      return global_load(&spread_sums[r * softmax.count + c]) * expf(chunk_max - softmax.max);
    });
    if (lane_index() == 0) stats[2 + r] = softmax.valid ? mass / softmax.total : not_a_number();
  }
  if (lane_index() == 0) {
    stats[0] = softmax.valid ? softmax.max : not_a_number();
    stats[1] = softmax.valid ? softmax.total : not_a_number();
  }
}

}  // namespace rdk
