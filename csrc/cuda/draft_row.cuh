// One row of the drafter's softmax, and its stats, which verification needs.
#pragma once

#include "softmax.cuh"

namespace rdk {

// What is read where there is no bias. To leave the reading out would cost rows that may be cut
// registers which they do not have.
alignas(16) __device__ const float kNoBias[kVector] = {};

// The drafter's row: V_d static columns with a bias, then, in chunks of their own, dynamic ones.
// C is Whole, Plain or Cut.
template <typename T, typename C>
struct DraftRow {
  using Element = T;
  using Place = int;  // the chunk
  Logits<T> logits;
  const float* bias;  // null: none
  int size;
  Logits<T> dynamic_logits;
  const int32_t* dynamic_tokens;
  int dynamic_size;
  int target_size;
  Scale scale;
  bool greedy;  // the bias only masks
  C cut;

  RDK_DEVICE DraftRow(const DraftColumns& columns, int64_t row, float temperature, const C& of_row)
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
        greedy(temperature == 0.0f),
        cut(of_row) {}

  RDK_DEVICE int static_chunks() const { return chunks_in(size); }
  RDK_DEVICE int chunks() const {
    if (C::kPlain) return size / kChunk;
    return static_chunks() + chunks_in(dynamic_size);
  }
  RDK_DEVICE bool is_dynamic(int column) const {
    return !C::kPlain && column >= static_chunks() * kChunk;
  }
  RDK_DEVICE int dynamic_index(int column) const { return column - static_chunks() * kChunk; }
  RDK_DEVICE bool used(int index) const {
    return dynamic_tokens[index] >= 0 && dynamic_tokens[index] < target_size;
  }

  RDK_DEVICE float with_bias(float quotient, float shift) const {
    return quotient + (greedy && shift != -infinity() ? 0.0f : shift);
  }
  RDK_DEVICE float static_value(int column) const {
    const float shift = __ldg(bias == nullptr ? kNoBias : bias + column);
    return cut.kept(with_bias(cut.scaled(logits[column], scale), shift));
  }
  RDK_DEVICE float dynamic_value(int index) const {
    return cut.kept(cut.scaled(dynamic_logits[index], scale));
  }

  RDK_DEVICE float column_value(int chunk, int i) const {
    const int column = chunk * kChunk + i;
    if (!is_dynamic(column)) return column < size ? static_value(column) : -infinity();
    const int index = dynamic_index(column);
    return index < dynamic_size && used(index) ? dynamic_value(index) : -infinity();
  }

  RDK_DEVICE int place(int chunk) const { return chunk; }
  RDK_DEVICE void advance(int chunks, int* chunk) const { *chunk += chunks; }
  RDK_DEVICE void copy(int chunk, uint4* landing) const {
    if constexpr (C::kPlain) {
      copy_whole_chunk(logits, chunk * kChunk, landing);
    } else if constexpr (Logits<T>::kByVectors) {
      if (chunk < static_chunks()) copy_chunk(logits, chunk * kChunk, size, landing);
    }
  }
  // To a chunk's quotients; returns the largest z of this lane. A row that may be cut has few
  // registers left: it reads a vector at a time, the same zeros again and again if it has no bias.
  RDK_DEVICE float add_bias(int begin, float largest, float (&z)[kPerLane]) const {
    if (!C::kCuts && bias == nullptr) return largest;
    const Logits<float> shifts(Dtype::kFloat32, bias == nullptr ? kNoBias : bias, 0);
    if constexpr (C::kCuts) {
      const bool biased = bias != nullptr;
      const bool whole = is_whole(shifts, begin, size);
#pragma unroll
      for (int v = 0; v < kPerLane; v += kVector) {
        const int column = begin + column_of(lane_index(), v);
        float shift[kVector];
        if (whole) {
          shifts.load_vector(biased ? column : 0, shift);
        } else {
#pragma unroll
          for (int j = 0; j < kVector; ++j) {
            shift[j] = column + j < size ? shifts[biased ? column + j : 0] : -infinity();
          }
        }
#pragma unroll
        for (int j = 0; j < kVector; ++j) z[v + j] = with_bias(z[v + j], shift[j]);
      }
    } else {
      float shift[kPerLane];
      if constexpr (C::kPlain) {
        read_whole_chunk(shifts, begin, InMemory{}, shift);
      } else {
        read_chunk(shifts, begin, size, InMemory{}, shift);
      }
#pragma unroll
      for (int v = 0; v < kPerLane; ++v) z[v] = with_bias(z[v], shift[v]);
    }
    return largest_of(z);
  }
  // Returns the largest z of this lane, before cuts.
  template <typename Source>
  RDK_DEVICE float scaled_chunk(int chunk, Source source, float (&z)[kPerLane]) const {
    float largest;
    if constexpr (C::kPlain) {
      largest = read_whole_chunk(logits, chunk * kChunk, source, z);
      largest = add_bias(chunk * kChunk, cut.apply(scale, largest, z), z);
    } else if (chunk < static_chunks()) {
      largest = read_chunk(logits, chunk * kChunk, size, source, z);
      largest = add_bias(chunk * kChunk, cut.apply(scale, largest, z), z);
      cut.keep(z);
    } else {
      const int begin = (chunk - static_chunks()) * kChunk;
#pragma unroll
      for (int v = 0; v < kPerLane; ++v) {
        const int index = begin + column_of(lane_index(), v);
        z[v] = index < dynamic_size && used(index) ? dynamic_value(index) : -infinity();
      }
      largest = largest_of(z);
    }
    return largest;
  }
};

// By one warp, which has read a chunk of a row into z by scaled_chunk: puts the chunk's sum and,
// for each prior r, the sum of exp(z - chunk max) U[i, r], where the row's sums are.
template <typename T, typename C, typename Sums>
RDK_DEVICE void sum_draft_chunk(const DraftRow<T, C>& row, int chunk, float (&z)[kPerLane],
                                float largest, const float* spread, int rank, const Sums& sums) {
  sums.put(chunk, exponentiate(row.cut, largest, z));
  const Logits<float> rows(Dtype::kFloat32, spread, 0);
  const int begin = chunk * kChunk;
  const int size = row.is_dynamic(begin) ? 0 : row.size;
  const bool whole = C::kPlain || (rank == 1 && is_whole(rows, begin, size));
#pragma unroll 1
  for (int r = 0; r < rank; ++r) {
    float mass = 0.0f;
#pragma unroll
    for (int v = 0; v < kPerLane; v += kVector) {
      const int column = begin + column_of(lane_index(), v);
      float values[kVector];
      if (whole) {
        rows.load_vector(column, values);
      } else {
#pragma unroll
        for (int j = 0; j < kVector; ++j) {
          values[j] = column + j < size ? rows[(column + j) * rank + r] : 0.0f;
        }
      }
#pragma unroll
      for (int j = 0; j < kVector; ++j) mass += z[v + j] * values[j];
    }
    sums.put_spread(r, chunk, warp_sum(mass));
  }
}

// In global memory.
struct StoredSums {
  ChunkSum* chunks;
  float* spreads;  // [R, count]
  int count;

  RDK_DEVICE void put(int chunk, const ChunkSum& sum) const {
    store_chunk_sum(sum, &chunks[chunk]);
  }
  RDK_DEVICE void put_spread(int r, int chunk, float mass) const {
    if (lane_index() == 0) global_store(&spreads[r * count + chunk], mass);
  }
};
template <typename T, typename C>
RDK_DEVICE void sum_draft_chunk(const DraftRow<T, C>& row, int chunk, float (&z)[kPerLane],
                                float largest, const float* spread, int rank, ChunkSum* chunk_sums,
                                float* spread_sums) {
  const StoredSums sums{chunk_sums, spread_sums, row.chunks()};
  sum_draft_chunk(row, chunk, z, largest, spread, rank, sums);
}

// By one warp: stats = (max, sum, s_r...), s_r = sum_i q'_i U[i, r], or NaN if the row has no
// distribution. Lane 0 writes them, to shared or global memory.
template <typename Sums, typename Spread>
RDK_DEVICE void write_stats(const SoftmaxOf<Sums>& softmax, int rank, float* stats,
                            Spread&& spread) {
#pragma unroll 1
  for (int r = 0; r < rank; ++r) {
    const float mass = warp_total(softmax.valid ? softmax.count : 0, [&](int c) {
      if (c >= softmax.count) return 0.0f;
      const float chunk_max = max_of(softmax.chunks, c);
      if (chunk_max == -infinity()) return 0.0f;
      return spread(r, c) * expf(chunk_max - softmax.max);
    });
    if (lane_index() == 0) stats[2 + r] = softmax.valid ? mass / softmax.total : not_a_number();
  }
  if (lane_index() == 0) {
    stats[0] = softmax.valid ? softmax.max : not_a_number();
    stats[1] = softmax.valid ? softmax.total : not_a_number();
  }
}
RDK_DEVICE void write_draft_stats(const Softmax& softmax, const float* spread_sums, int rank,
                                  float* stats) {
  write_stats(softmax, rank, stats,
              [&](int r, int c) { return global_load(&spread_sums[r * softmax.count + c]); });
}

}  // namespace rdk
