// The softmax of a group's rows, which each block of redistribute sums itself, from logits in the
// L2 cache, and the group's z in shared memory where that pays. Of a plain row whose z are not
// kept the blocks of a cluster take a part each.
#pragma once

#include "columns.cuh"
#include "row_sums.cuh"
#include "truncation.cuh"

namespace rdk {

constexpr int kThreads = RedistributeLaunch::kThreads;
constexpr int kWarps = kThreads / kWarp;
static_assert((kWarps & (kWarps - 1)) == 0, "sum_rows deals out chunks by a mask");
constexpr int kBlocks = RedistributeLaunch::kBlocks;
constexpr int kMaxGroup = RedistributeLaunch::kMaxGroup;
constexpr int kTokens = RedistributeLaunch::kTokens;

enum class RowKind : int32_t { kNone, kGreedy, kSoftmax };

// In shared memory.
struct GroupRow {
  RowKind kind;
  int top;  // of a greedy row
  float stats[2 + kMaxRank];
  float reciprocal;  // of the sum
};
static_assert(kMaxGroup * sizeof(GroupRow) == RedistributeLaunch::kStaticSharedBytes,
              "the plan leaves room for it");

struct CutScratch;

// This block's part of the work.
struct Tile {
  int64_t first_row;
  int rows;
  int begin;  // target tokens
  int end;
  float* weights;         // [rows, launch.weights_stride()]: z, then exp(z - max)
  unsigned char* marked;  // [rows, launch.tile]: tokens that have dynamic columns
  CutScratch* scratch;    // of rows that may be cut; of plain ones HeldSums
};

// In dynamic shared memory, before the rest, where rows may be cut.
struct CutScratch {
  ThresholdScratch threshold;
  Cut cuts[kMaxGroup];
  Tile tile;  // here, because registers are short
};
static_assert(sizeof(CutScratch) == RedistributeLaunch::kCutBytes, "the plan leaves room for it");

template <typename T, typename C>
RDK_DEVICE DraftRow<T, C> draft_row(const RedistributeLaunch& launch, int64_t row, const C& cut) {
  return DraftRow<T, C>(launch.params.draft, row, launch.params.temperature[row], cut);
}

template <typename C>
RDK_DEVICE RowLimits<C> limits_of(const RedistributeLaunch& launch, int64_t row) {
  const DraftColumns& columns = launch.params.draft;
  return {launch.params.truncation, row,
          static_cast<int>(columns.draft_size + columns.dynamic_size),
          launch.params.temperature[row]};
}

// Where a row of the group is cut, once that is known.
template <typename C>
RDK_DEVICE C cut_of(const Tile& tile, int g) {
  if constexpr (C::kCuts) {
    return tile.scratch->cuts[g];
  } else {
    return {};
  }
}

// Of a plain row, which a cluster sums together; otherwise null.
template <typename C>
RDK_DEVICE HeldSums* held_of(const Tile& tile) {
  return C::kPlain ? reinterpret_cast<HeldSums*>(tile.scratch) : nullptr;
}

template <typename C>
RDK_DEVICE RowSums sums_of(const RedistributeLaunch& launch, const Tile& tile, int g, int chunks) {
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * launch.group + g) * chunks;
  return {
      held_of<C>(tile),
      static_cast<int>(launch.shape.cluster),
      {launch.chunks + first, launch.spread_sums + first * launch.params.affinity.rank, chunks}};
}

// By one warp, which has read a chunk of a row into z, and whose lanes know their largest.
template <typename T, typename C>
RDK_DEVICE void take_chunk(const RedistributeLaunch& launch, const Tile& tile, int g,
                           const DraftRow<T, C>& row, int chunk, float (&z)[kPerLane],
                           float largest) {
  if (!C::kPlain && launch.shared_weights && chunk < row.static_chunks()) {
    keep_chunk(z, chunk * kChunk, row.size, tile.weights + g * launch.weights_stride());
  }
  sum_draft_chunk(row, chunk, z, largest, launch.params.affinity.spread,
                  static_cast<int>(launch.params.affinity.rank),
                  sums_of<C>(launch, tile, g, row.chunks()));
}

// One warp after another takes a chunk, from one row to the next.
template <typename T, typename C>
RDK_DEVICE void sum_rows(const RedistributeLaunch& launch, const Tile& tile) {
#pragma unroll 1
  for (int g = 0; g < tile.rows; ++g) {
    const float temperature = launch.params.temperature[tile.first_row + g];
    if constexpr (C::kPlain) cluster_wait();
    if (!usable_temperature(temperature)) continue;
    const C before = limits_of<C>(launch, tile.first_row + g).before();
    const DraftRow<T, C> row = draft_row<T>(launch, tile.first_row + g, before);
    const int chunks = row.chunks();
    int chunk = (warp_index() - g * chunks) & (kWarps - 1);
    int stride = kWarps;
    if constexpr (C::kPlain) {
      chunk += static_cast<int>(blockIdx.x % launch.shape.cluster) * kWarps;
      stride *= static_cast<int>(launch.shape.cluster);
    }
#pragma unroll 1
    for (; chunk < chunks; chunk += stride) {
      float z[kPerLane];
      const float largest = row.scaled_chunk(chunk, InMemory{}, z);
      take_chunk(launch, tile, g, row, chunk, z, largest);
    }
  }
}

// Finds where rows are cut. Their sums become those of what is kept.
template <typename T, typename C>
RDK_DEVICE void cut_rows(const RedistributeLaunch& launch, const Tile& tile) {
  if constexpr (C::kCuts) {
#pragma unroll 1
    for (int g = 0; g < tile.rows; ++g) {
      const RowLimits<Cut> limits = limits_of<Cut>(launch, tile.first_row + g);
      DraftRow<T, Cut> row = draft_row<T>(launch, tile.first_row + g, limits.before());
      Cut cut = Cut::nothing();
      if (usable_temperature(limits.temperature) && limits.usable() && limits.any()) {
        cut_row(limits, sums_of<Cut>(launch, tile, g, row.chunks()).stored.chunks,
                reinterpret_cast<unsigned char*>(&tile.scratch->threshold), &row,
                [&](int chunk, float (&z)[kPerLane], float largest) {
                  take_chunk(launch, tile, g, row, chunk, z, largest);
                });
        cut = row.cut;
      }
      if (threadIdx.x == 0) tile.scratch->cuts[g] = cut;
    }
    __syncthreads();
  }
}

// By one warp: the row's kind and stats.
template <typename T, typename C>
RDK_DEVICE void summarize_row(const RedistributeLaunch& launch, const Tile& tile, int g,
                              GroupRow* summary) {
  const int64_t index = tile.first_row + g;
  const float temperature = launch.params.temperature[index];
  const DraftRow<T, C> row = draft_row<T>(launch, index, cut_of<C>(tile, g));
  const int chunks = row.chunks();
  const bool usable = usable_temperature(temperature) && limits_of<C>(launch, index).usable();
  const ShownSums sums(sums_of<C>(launch, tile, g, chunks));
  const auto softmax = merge_sums(sums, usable ? chunks : 0);
  RowKind kind = softmax.valid ? RowKind::kSoftmax : RowKind::kNone;
  int top = -1;
  if (softmax.valid && temperature == 0.0f) {
    kind = RowKind::kGreedy;
    const int column = argmax_column(row, softmax);
    top = row.is_dynamic(column) ? row.dynamic_tokens[row.dynamic_index(column)]
                                 : launch.params.row_top[column];
  }
  if (lane_index() == 0) {
    summary->kind = kind;
    summary->top = top;
  }
  write_stats(softmax, static_cast<int>(launch.params.affinity.rank), summary->stats,
              [&](int r, int c) { return cluster_load(&sums.spreads[r * sums.stride + c]); });
  if (lane_index() == 0) summary->reciprocal = 1.0f / softmax.total;
}

}  // namespace rdk
