// The residual max(c p - q, 0) of one position over all tokens, which a block sums and a warp draws
// from: the direct pass, after all proposals have failed.
#pragma once

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

  __device__ __forceinline__ float* sums() const {
    return launch.residual_sums + sequence.index * columns.chunks();
  }

  // At one column, by one lane.
  __device__ __forceinline__ float at(int column) const {
    if (column >= columns.size) return 0.0f;
    const int token = before + column;
    float q = 0.0f;
    if (position.kind == DraftKind::kOneHot) q = token == position.token ? 1.0f : 0.0f;
    if (position.kind == DraftKind::kRow) {
      const DraftRow<D, C> row = cut_draft<D>(launch.params, sequence, position, columns.cut);
      q = token_q<OneLane>(launch.params.affinity, row, position.stats, token);
    }
    return fmaxf(factor * target_p(position, columns.value(column)) - q, 0.0f);
  }

  // By the whole block, which every warp may then ask for the total.
  __device__ __forceinline__ void sum() const {
    const int warps = L::kThreads / kWarp;
    for (int chunk = warp_index(); chunk < columns.chunks(); chunk += warps) {
      const float part = warp_total(kChunk, [&](int i) { return at(chunk * kChunk + i); });
      if (lane_index() == 0) global_store(&sums()[chunk], part);
    }
    __syncthreads();
  }
  __device__ __forceinline__ float total() const {
    return warp_total(columns.chunks(), [&](int c) { return of_chunk(c); });
  }
  // By one warp; -1 if there is no mass.
  __device__ __forceinline__ int draw(const PhiloxWords& words, float total) const {
    if (!(total > 0.0f)) return -1;
    const int chunk = warp_draw(columns.chunks(), uniform(words.word[0]), total,
                                [&](int c) { return of_chunk(c); });
    return chunk * kChunk + warp_draw(kChunk, uniform(words.word[1]), global_load(&sums()[chunk]),
                                      [&](int i) { return at(chunk * kChunk + i); });
  }

 private:
  __device__ __forceinline__ float of_chunk(int chunk) const {
    return chunk < columns.chunks() ? global_load(&sums()[chunk]) : 0.0f;
  }
};

}  // namespace rdk
