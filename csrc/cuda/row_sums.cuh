// The chunk sums of a drafter's row, of which several blocks take a part each: in the shared memory
// of all of them, or in global memory.
#pragma once

#include "draft_row.cuh"

namespace rdk {

// In each block of a cluster that shares a row. Whoever sums a chunk stores its sum into all of
// them: one way through the cluster's network, where by global memory it would go to the L2 cache
// and come back. Blocks of a cluster do not begin at once, so the first store comes behind a
// barrier of the cluster; and a second one, which shows the sums, is behind the last store, so none
// of them has left.
struct HeldSums {
  alignas(sizeof(ChunkSum)) ChunkSum chunks[kMostHeld];
  float spreads[kMaxRank][kMostHeld];
};
static_assert(sizeof(HeldSums) == kHeldBytes, "plans leave room for it");

RDK_DEVICE float max_of(const HeldSums* held, int chunk) {
  return cluster_load(&held->chunks[chunk].max);
}
RDK_DEVICE float sum_of(const HeldSums* held, int chunk) {
  return cluster_load(&held->chunks[chunk].sum);
}

// Where sums are put, by one warp.
struct RowSums {
  HeldSums* held;  // null: into global memory
  int blocks;      // of the cluster
  StoredSums stored;

  RDK_DEVICE void put(int chunk, const ChunkSum& sum) const {
    if (held == nullptr) return stored.put(chunk, sum);
    if (lane_index() >= blocks) return;
    cluster_store(&held->chunks[chunk].max, lane_index(), sum.max, sum.sum);
  }
  RDK_DEVICE void put_spread(int r, int chunk, float mass) const {
    if (held == nullptr) return stored.put_spread(r, chunk, mass);
    if (lane_index() < blocks) cluster_store(&held->spreads[r][chunk], lane_index(), mass);
  }
};

// Wherever they are, for a block that shares them or has put them there alone.
struct ShownSums {
  const ChunkSum* chunks;
  const float* spreads;  // [R, stride]
  int stride;

  RDK_DEVICE explicit ShownSums(const RowSums& sums)
      : chunks(sums.held == nullptr ? sums.stored.chunks : sums.held->chunks),
        spreads(sums.held == nullptr ? sums.stored.spreads : sums.held->spreads[0]),
        stride(sums.held == nullptr ? sums.stored.count : kMostHeld) {}
};
RDK_DEVICE float max_of(const ShownSums& sums, int chunk) {
  return cluster_load(&sums.chunks[chunk].max);
}
RDK_DEVICE float sum_of(const ShownSums& sums, int chunk) {
  return cluster_load(&sums.chunks[chunk].sum);
}

}  // namespace rdk
