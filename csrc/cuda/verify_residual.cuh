// The residual max(c p - q, 0) of one position over all tokens, which a block sums and a warp draws
// from: the direct pass, after all proposals have failed.
#pragma once

#include "columns.cuh"
#include "verify_position.cuh"

namespace rdk {

template <typename T, typename D, typename C, typename L, typename S>
struct Residual {
  const L& launch;
  const S& sequence;
  const Position& position;
  const TargetColumns<T, C>& columns;
  float factor;
  int before = 0;  // tokens in front of the row's first column

  // Columns of a lane at once. One after the other, each would cost the time of four loads that
  // wait for each other.
  static constexpr int kTogether = C::kCuts ? 4 : 8;

  __device__ __forceinline__ float* sums() const {
    return launch.residual_sums + sequence.index * columns.chunks();
  }

  // At the columns of a warp from base on, of which a lane has every kWarp-th.
  __device__ __forceinline__ void at(int base, float (&masses)[kTogether]) const {
    float q[kTogether] = {};
    if (position.kind == DraftKind::kRow) {
      draft_masses(before + base, q);
    } else if (position.kind == DraftKind::kOneHot) {
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        q[j] = token_of(before + base, j) == position.token ? 1.0f : 0.0f;
      }
    }
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const int column = min(token_of(base, j), columns.size - 1);
      masses[j] = expf(columns.value(column) - position.target.max);
    }
    divide(masses, position.target.total);
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const bool there = token_of(base, j) < columns.size;
      masses[j] = there ? fmaxf(factor * masses[j] - q[j], 0.0f) : 0.0f;
    }
  }
  __device__ __forceinline__ float of_chunk(int chunk) const {
    return warp_total_of<kTogether>(kChunk, in_chunk(chunk));
  }
  __device__ __forceinline__ int draw_in(int chunk, float u, float total) const {
    return warp_draw_of<kTogether>(kChunk, u, total, in_chunk(chunk));
  }

  // By the whole block, which every warp may then ask for the total.
  __device__ __forceinline__ void sum() const {
    const int warps = L::kThreads / kWarp;
    for (int chunk = warp_index(); chunk < columns.chunks(); chunk += warps) {
      const float part = of_chunk(chunk);
      if (lane_index() == 0) global_store(&sums()[chunk], part);
    }
    __syncthreads();
  }
  __device__ __forceinline__ float total() const {
    return warp_total(columns.chunks(), [&](int c) { return summed(c); });
  }
  // By one warp; -1 if there is no mass.
  __device__ __forceinline__ int draw(const PhiloxWords& words, float total) const {
    if (!(total > 0.0f)) return -1;
    const int chunk = warp_draw(columns.chunks(), uniform(words.word[0]), total,
                                [&](int c) { return summed(c); });
    return chunk * kChunk + draw_in(chunk, uniform(words.word[1]), summed(chunk));
  }

 private:
  __device__ __forceinline__ auto in_chunk(int chunk) const {
    return [this, chunk](int begin, float (&masses)[kTogether]) {
      at(chunk * kChunk + begin, masses);
    };
  }
  // q of the drafted row.
  __device__ __forceinline__ void draft_masses(int base, float (&q)[kTogether]) const {
    const AffinityColumns& affinity = launch.params.affinity;
    const int end = static_cast<int>(affinity.target_size);
    const DraftRow<D, C> row = cut_draft<D>(launch.params, sequence, position, columns.cut);
    const float max = position.stats[0];
    const auto weight = [&](int draft) { return expf(row.static_value(draft) - max); };
    add_entries(affinity, load_columns<kTogether>(affinity, base, end), weight, q);
    add_dynamic_columns(row, max, base, q);
    divide(q, position.stats[1]);
#pragma unroll 1
    for (int r = 0; r < affinity.rank; ++r) {
      float prior[kTogether];
      load_tokens(affinity.prior + r * affinity.target_size, base, end, prior);
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        q[j] += position.stats[2 + r] * prior[j];
      }
    }
  }
  __device__ __forceinline__ float summed(int chunk) const {
    return chunk < columns.chunks() ? global_load(&sums()[chunk]) : 0.0f;
  }
};

}  // namespace rdk
