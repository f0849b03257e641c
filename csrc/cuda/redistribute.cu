// redistribute: q(x) = sum_i q'_i S[i, x] + sum_r s_r P[r, x] for every x, gathered over the
// columns of S, so that each sum is taken in one fixed order, without atomics. Memory floor: V_t
// probabilities of each row written once, its V_d + C logits and the sparse structure read once. A
// block takes a tile of target tokens for a group of rows. Each sums the softmax of its rows
// itself, from logits in the L2 cache, and keeps exp(z - max) in shared memory where that pays;
// where it does not, clusters of blocks sum a row together. A lane then takes four tokens at once,
// whose chains of loads (where a column of S begins, its drafter tokens, their weights) are under
// way together; the first link of the next four is loaded ahead.

#include "launch_kernel.cuh"
#include "redistribute_rows.cuh"

namespace rdk {
namespace {

RDK_DEVICE void store_tokens(const float (&values)[kTokens], int base, int end, float* row) {
#pragma unroll
  for (int j = 0; j < kTokens; ++j) {
    const int token = token_of(base, j);
    if (token < end) row[token] = values[j];
  }
}

// Adds the dynamic columns of the tokens that are marked, one token of a lane after the other, each
// by the whole warp, in the order of the columns.
template <typename T, typename C>
RDK_DEVICE void add_marked(const DraftRow<T, C>& row, float max, const unsigned char* marks,
                           int base, const Tile& tile, float (&masses)[kTokens]) {
#pragma unroll
  for (int j = 0; j < kTokens; ++j) {
    const int own = token_of(base, j);
    unsigned lanes = __ballot_sync(kAllLanes, own < tile.end && marks[own - tile.begin] != 0);
    for (; lanes != 0; lanes &= lanes - 1) {
      const int lane = __ffs(static_cast<int>(lanes)) - 1;
      const int token = __shfl_sync(kAllLanes, own, lane);
      float sum = 0.0f;
#pragma unroll 1
      for (int begin = 0; begin < row.dynamic_size; begin += kWarp) {
        const int c = begin + lane_index();
        const bool same = c < row.dynamic_size && row.dynamic_tokens[c] == token;
        const float weight = same ? expf(row.dynamic_value(c) - max) : 0.0f;
        unsigned columns = __ballot_sync(kAllLanes, same);
        for (; columns != 0; columns &= columns - 1) {
          sum += __shfl_sync(kAllLanes, weight, __ffs(static_cast<int>(columns)) - 1);
        }
      }
      if (lane_index() == lane) masses[j] += sum;
    }
  }
}

// q of the tile's tokens for every row of the group.
template <typename T, typename C>
RDK_DEVICE void write_tile(const RedistributeLaunch& launch, const Tile& tile,
                           const GroupRow* group) {
  const RedistributeParams& params = launch.params;
  const AffinityColumns& affinity = params.affinity;
  const int rank = static_cast<int>(affinity.rank);
  const int stride = static_cast<int>(launch.weights_stride());
  const bool has_dynamic = !C::kPlain && params.draft.dynamic_size > 0;
  const bool shared_weights = !C::kPlain && launch.shared_weights;
  // The weights of a row that are not shared; a group then has one row.
  const DraftRow<T, C> only = draft_row<T>(launch, tile.first_row, cut_of<C>(tile, 0));
  int base = tile.begin + warp_index() * kTokens * kWarp;
  Columns<kTokens> next = load_columns<kTokens>(affinity, base, tile.end);
#pragma unroll 1
  for (; base < tile.end; base += kThreads * kTokens) {
    const Columns<kTokens> columns = next;
    next = load_columns<kTokens>(affinity, base + kThreads * kTokens, tile.end);
    float* out = params.probs + tile.first_row * affinity.target_size;
    const float* weights = tile.weights;
#pragma unroll 1
    for (int g = 0; g < tile.rows; ++g, out += affinity.target_size, weights += stride) {
      const GroupRow& row = group[g];
      float q[kTokens] = {};
      if (row.kind != RowKind::kSoftmax) {
#pragma unroll
        for (int j = 0; j < kTokens; ++j) {
          q[j] = row.kind == RowKind::kNone     ? not_a_number()
                 : token_of(base, j) == row.top ? 1.0f
                                                : 0.0f;
        }
        store_tokens(q, base, tile.end, out);
        continue;
      }
      const float max = row.stats[0];
      if (shared_weights) {
        add_entries(affinity, columns, [&](int draft) { return weights[draft]; }, q);
      } else {
        const auto weight = [&](int draft) { return expf(only.static_value(draft) - max); };
        add_entries(affinity, columns, weight, q);
      }
      if (has_dynamic) {
        const DraftRow<T, C> own = draft_row<T>(launch, tile.first_row + g, cut_of<C>(tile, g));
        add_marked(own, max, tile.marked + g * launch.tile, base, tile, q);
      }
      const float total = row.stats[1];
      divide(q, total, row.reciprocal);
#pragma unroll 1
      for (int r = 0; r < rank; ++r) {
        float prior[kTokens];
        load_tokens(affinity.prior + r * affinity.target_size, base, tile.end, prior);
#pragma unroll
        for (int j = 0; j < kTokens; ++j) q[j] += row.stats[2 + r] * prior[j];
      }
      store_tokens(q, base, tile.end, out);
    }
  }
}

template <typename C>
RDK_DEVICE Tile tile_of(const RedistributeLaunch& launch, unsigned char* shared) {
  Tile tile;
  tile.first_row = static_cast<int64_t>(blockIdx.x / launch.tiles) * launch.group;
  tile.rows = static_cast<int>(
      min(static_cast<int64_t>(launch.group), launch.params.rows - tile.first_row));
  tile.begin = blockIdx.x % launch.tiles * launch.tile;
  tile.end = min(tile.begin + launch.tile, static_cast<int>(launch.params.affinity.target_size));
  tile.scratch = reinterpret_cast<CutScratch*>(shared);
  unsigned char* rest = shared + (C::kCuts ? sizeof(CutScratch) : C::kPlain ? sizeof(HeldSums) : 0);
  tile.weights = reinterpret_cast<float*>(rest);
  tile.marked =
      rest + (launch.shared_weights ? launch.group * launch.weights_stride() * sizeof(float) : 0);
  return tile;
}

template <typename T, typename C>
RDK_DEVICE void redistribute_tile(const RedistributeLaunch& launch, const Tile& tile,
                                  GroupRow* group) {
  const RedistributeParams& params = launch.params;
  const bool has_dynamic = !C::kPlain && params.draft.dynamic_size > 0;
  // A count of marks, kept for later, would take a register all through the sums: sm_80 spilled.
  if (has_dynamic) {
    for (int i = threadIdx.x; i < tile.rows * launch.tile / 4; i += kThreads) {
      reinterpret_cast<unsigned*>(tile.marked)[i] = 0;
    }
  }
  if constexpr (C::kPlain) cluster_arrive();
  sum_rows<T, C>(launch, tile);
  if constexpr (C::kPlain) {
    cluster_barrier();
  } else {
    __syncthreads();
  }
  cut_rows<T, C>(launch, tile);
  if (warp_index() < tile.rows) {
    summarize_row<T, C>(launch, tile, warp_index(), &group[warp_index()]);
  }
#pragma unroll 1
  for (int g = 0; has_dynamic && g < tile.rows; ++g) {
    const Rows& tokens = params.draft.dynamic_tokens;
    const int32_t* dynamic =
        static_cast<const int32_t*>(tokens.data) + tokens.offset(tile.first_row + g);
    for (int c = threadIdx.x; c < params.draft.dynamic_size; c += kThreads) {
      const int token = dynamic[c];
      if (token < tile.begin || token >= tile.end) continue;
      tile.marked[g * launch.tile + token - tile.begin] = 1;
    }
  }
  __syncthreads();
  if (!C::kPlain && launch.shared_weights) {
    const int stride = static_cast<int>(launch.weights_stride());
#pragma unroll 1
    for (int g = 0; g < tile.rows; ++g) {
      float* weights = tile.weights + g * stride;
      const C cut = cut_of<C>(tile, g);
#pragma unroll 4
      for (int i = threadIdx.x; i < stride; i += kThreads) {
        weights[i] = expf(cut.kept(weights[i]) - group[g].stats[0]);
      }
    }
    __syncthreads();
  }
  write_tile<T, C>(launch, tile, group);
}

template <typename T, typename C>
__global__ void __launch_bounds__(kThreads, kBlocks)
    redistribute_kernel(const RedistributeLaunch launch) {
  RDK_DYNAMIC_SHARED(shared);
  __shared__ GroupRow group[kMaxGroup];
  wait_for_earlier_kernels();
  if constexpr (C::kCuts) {
    Tile* tile = &reinterpret_cast<CutScratch*>(shared)->tile;
    if (threadIdx.x == 0) *tile = tile_of<C>(launch, shared);
    __syncthreads();
    redistribute_tile<T, C>(launch, *tile, group);
  } else if (launch.shape.cluster > 1) {
    redistribute_tile<T, Plain>(launch, tile_of<Plain>(launch, shared), group);
  } else {
    redistribute_tile<T, C>(launch, tile_of<C>(launch, shared), group);
  }
}

}  // namespace

RDK_START(Redistribute, REDISTRIBUTE)

}  // namespace rdk
