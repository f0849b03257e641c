// draft: a drafter token i ~ q' by a draw of two levels, then x ~ A[i] by a search in running sums;
// q is never built (DESIGN section 3). Memory floor: the V_d + C logits of each row once, and
// spread and a bias, if there is one, which all rows share. A warp sums a chunk of 1024 columns.
// Few rows are split over several blocks. Where these are a cluster, all of them hold all chunk
// sums (row_sums.cuh): every warp finds out which chunk is drawn, and the one that summed it draws
// the column, from exponentials that it still has in registers. Otherwise the last block of a row
// draws from sums in global memory, and reads one chunk again. In a step each block also keeps its
// part of the row, which it has just read: so many bytes again, to memory.

#include "affinity.cuh"
#include "launch_kernel.cuh"
#include "row_sums.cuh"
#include "ticket.cuh"
#include "truncation.cuh"

namespace rdk {
namespace {

constexpr int kMaxThreads = DraftLaunch::kMaxThreads;
constexpr int kBlocks = DraftLaunch::kBlocks;

// Of a row's stats: those of a row that may be cut have its threshold, too.
template <typename C>
RDK_DEVICE int stats_width(const DraftParams& params) {
  return 2 + static_cast<int>(params.affinity.rank) + (C::kCuts ? 1 : 0);
}

// By all blocks of a row, each a part: stores `count` elements, unless they are there already.
template <typename E>
RDK_DEVICE void keep(const E* row, int count, E* kept, int split, int splits) {
  if (row == kept) return;
  const int stride = splits * static_cast<int>(blockDim.x);
  const int first = split * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
  constexpr int kElements = sizeof(uint4) / sizeof(E);
  const uint64_t both = reinterpret_cast<uint64_t>(row) | reinterpret_cast<uint64_t>(kept);
  const int vectors = both % sizeof(uint4) == 0 ? count / kElements : 0;
#pragma unroll 4
  for (int i = first; i < vectors; i += stride) {
    reinterpret_cast<uint4*>(kept)[i] = __ldg(reinterpret_cast<const uint4*>(row) + i);
  }
#pragma unroll 4
  for (int i = vectors * kElements + first; i < count; i += stride) kept[i] = row[i];
}

template <typename T, typename C>
RDK_DEVICE void keep_row(const DraftParams& params, int64_t index, const DraftRow<T, C>& row,
                         int split, int splits) {
  const int64_t slot = params.slot(index);
  if (params.step.places == 0 || slot < 0) return;
  const int64_t at = params.kept_at(slot);
  const StepRows& step = params.step;
  keep(row.logits.row, row.size, static_cast<T*>(step.logits) + at * row.size, split, splits);
  if (row.dynamic_size == 0) return;
  const int64_t dynamic = at * row.dynamic_size;
  keep(row.dynamic_tokens, row.dynamic_size, step.dynamic_tokens + dynamic, split, splits);
  keep(row.dynamic_logits.row, row.dynamic_size, static_cast<T*>(step.dynamic_logits) + dynamic,
       split, splits);
}

// By one lane: what was drawn, and in a step where the row is kept.
RDK_DEVICE void put_token(const DraftParams& params, int64_t index, int64_t key, int64_t token) {
  params.tokens[index] = token;
  const int64_t slot = params.slot(index);
  if (params.step.places == 0 || slot < 0) return;
  params.step.tokens[params.kept_at(slot)] = token;
  params.step.step_keys[slot] = key;
}

// By one warp.
template <typename C, typename Sums, typename Spread>
RDK_DEVICE void put_stats(const DraftParams& params, int64_t index, const C& cut, float temperature,
                          const SoftmaxOf<Sums>& softmax, Spread&& spread) {
  const int64_t slot = params.slot(index);
  if (slot < 0) return;
  const int rank = static_cast<int>(params.affinity.rank);
  float* stats = params.stats + params.kept_at(slot) * stats_width<C>(params);
  if (temperature != 0.0f || !softmax.valid) {
    write_stats(softmax, rank, stats, spread);
  } else if (lane_index() < 2 + rank) {
    stats[lane_index()] = 0.0f;
  }
  if constexpr (C::kCuts) {
    const float threshold = temperature == 0.0f ? 0.0f : cut.threshold;
    if (lane_index() == 0) stats[2 + rank] = softmax.valid ? threshold : not_a_number();
  }
}

// What is asked of a row besides its logits, all at once and while these are on their way.
struct RowFacts {
  float temperature;
  int64_t key;  // in a step the seed that it is made from
  int64_t position;
  uint32_t branch;

  RDK_DEVICE void load(const DraftParams& params, int64_t index) {
    temperature = params.temperature[index];
    key = (params.step_keys != nullptr ? params.step_keys : params.step.seeds)[index];
    position = params.positions[index];
    branch = params.branches == nullptr ? 0 : params.branches[index];
  }
  RDK_DEVICE int64_t step_key_of(const DraftParams& params) const {
    return params.step.places == 0 ? key : step_key(key, position, 0);
  }
};

// The words of a row's draws, try by try.
struct RowWords {
  int64_t key;
  int64_t position;
  uint32_t branch;

  RDK_DEVICE RowWords(const DraftParams& params, const RowFacts& facts)
      : key(facts.step_key_of(params)),
        position(later(facts.position, params.step.at())),
        branch(facts.branch) {}
  RDK_DEVICE PhiloxWords operator()(uint32_t attempt) const {
    return random_words(key, position, Purpose::kDraft, attempt, branch);
  }
};

// By one warp: the token that follows from the column which was drawn.
template <typename T, typename C>
RDK_DEVICE void draw_token(const DraftParams& params, int64_t index, const DraftRow<T, C>& row,
                           int column, uint32_t word, const RowWords& words) {
  int64_t token;
  if (row.is_dynamic(column)) {
    token = row.dynamic_tokens[row.dynamic_index(column)];
  } else if (row.greedy) {
    token = params.affinity.top[column];
  } else {
    token = warp_draw_target(params.affinity, column, word, words);
  }
  if (lane_index() == 0) put_token(params, index, words.key, token);
}

// By one warp: the column in its chunk, which is read again.
template <typename T, typename C>
RDK_DEVICE int column_again(const DraftRow<T, C>& row, int chunk, float max, uint32_t word) {
  float z[kPerLane];
  const float largest = row.scaled_chunk(chunk, InMemory{}, z);
  if (row.greedy) return column_of_largest(z, max);
  exponentiate(row.cut, largest, z);
  return draw_in_chunk(z, uniform(word));
}

// By a block: its part of a row.
template <typename T, typename C>
RDK_DEVICE void draft_part(const DraftLaunch& launch, unsigned char* shared, HeldSums* held) {
  const DraftParams& params = launch.params;
  const int64_t index = blockIdx.x / launch.splits;
  const int split = blockIdx.x % launch.splits;
  const int rank = static_cast<int>(params.affinity.rank);
  const bool holds = C::kPlain || (!C::kCuts && launch.holds);
  const bool clustered = launch.shape.cluster > 1;
  if (holds && clustered) cluster_arrive();
  DraftRow<T, C> row(params.draft, index, 1.0f, C::nothing());
  const int chunks = row.chunks();
  const int warps = blockDim.x / kWarp;
  const int first = split * warps + warp_index();
  const int stride = launch.splits * warps;
  const RowSums sums{
      holds ? held : nullptr,
      launch.splits,
      {launch.chunks + index * chunks, launch.spread_sums + index * rank * chunks, chunks}};
  if (launch.splits > 1 && launch.shape.cluster <= 1 && threadIdx.x == blockDim.x - 1) {
    open_ticket(launch.tickets + index, launch.shape.stamp);
  }
  RowFacts facts;
  bool usable = false;
  const auto ready = [&] {
    facts.load(params, index);
    const RowLimits<C> limits(params.truncation, index, params.draft, facts.temperature);
    row.scale = Scale(facts.temperature);
    row.greedy = facts.temperature == 0.0f;
    row.cut = limits.before();
    usable = usable_temperature(facts.temperature) && limits.usable();
    if (holds && clustered) cluster_wait();
    return usable;
  };
  float weights[kPerLane];  // of the last chunk that this warp has summed
  int last = -1;
  stream_chunks(row, ring_of_warp(shared), first, stride, chunks, ready,
                [&](int chunk, float (&z)[kPerLane], float largest) {
                  sum_draft_chunk(row, chunk, z, largest, params.affinity.spread, rank, sums);
                  last = chunk;
#pragma unroll
                  for (int v = 0; v < kPerLane; ++v) weights[v] = z[v];
                });
  if (!usable) {
    if (split != 0) return;
    const int width = stats_width<C>(params);
    const int64_t slot = params.slot(index);
    if (slot >= 0 && threadIdx.x < width) {
      params.stats[params.kept_at(slot) * width + threadIdx.x] = not_a_number();
    }
    if (threadIdx.x == 0) put_token(params, index, facts.step_key_of(params), -1);
    return;
  }
  const RowWords words(params, facts);
  const PhiloxWords random = words(0);
  bool valid = true;
  float max = 0.0f;
  int chunk = -1;  // of the drawn column, where this warp has to find it
  const auto drawn_chunk = [&](const auto& softmax) {
    valid = softmax.valid;
    max = softmax.max;
    if (!valid) return -1;
    return row.greedy ? chunk_of_largest(softmax) : draw_chunk(softmax, random);
  };
  if (holds) {
    // Every warp finds out which chunk is drawn. The one that has summed it still has its
    // exponentials, but for those of earlier chunks.
    meet(launch.splits);
    const HeldSums* const shown = held;
    const auto softmax = merge_sums(shown, chunks);
    chunk = drawn_chunk(softmax);
    if (chunk % stride != first) chunk = -1;
    if (chunk == last && chunk >= 0 && !row.greedy) {
      const int column = chunk * kChunk + draw_in_chunk(weights, uniform(random.word[1]));
      draw_token(params, index, row, column, random.word[2], words);
      chunk = -1;
    }
    if (split == 0 && warp_index() == warps - 1) {
      put_stats(params, index, row.cut, facts.temperature, softmax,
                [&](int r, int c) { return cluster_load(&held->spreads[r][c]); });
      if (!valid && lane_index() == 0) put_token(params, index, words.key, -1);
    }
  } else if (C::kCuts && clustered ? first_block_of_cluster(launch.splits)
                                   : last_block(launch.tickets + index, launch.splits)) {
    if constexpr (C::kCuts) {
      const RowLimits<C> limits(params.truncation, index, params.draft, facts.temperature);
      row.cut = Cut::nothing();
      if (limits.any()) {
        row.cut = limits.before();
        cut_row(limits, sums.stored.chunks, shared, &row,
                [&](int chunk, float (&z)[kPerLane], float largest) {
                  sum_draft_chunk(row, chunk, z, largest, params.affinity.spread, rank,
                                  sums.stored);
                });
      }
    }
    if (warp_index() == 0) {
      const Softmax softmax = merge_chunks(sums.stored.chunks, chunks);
      chunk = drawn_chunk(softmax);
      put_stats(params, index, row.cut, facts.temperature, softmax,
                [&](int r, int c) { return global_load(&sums.stored.spreads[r * chunks + c]); });
      if (!valid && lane_index() == 0) put_token(params, index, words.key, -1);
    }
  }
  if (chunk >= 0) {
    const int column = chunk * kChunk + column_again(row, chunk, max, random.word[1]);
    draw_token(params, index, row, column, random.word[2], words);
  }
  keep_row(params, index, row, split, launch.splits);
}

template <typename T, typename C>
__global__ void __launch_bounds__(kMaxThreads, kBlocks) draft_kernel(const DraftLaunch launch) {
  RDK_DYNAMIC_SHARED(shared);
  __shared__ HeldSums held;
  wait_for_earlier_kernels();
  if (!C::kCuts && launch.plain) {
    draft_part<T, Plain>(launch, shared, &held);
  } else {
    draft_part<T, C>(launch, shared, &held);
  }
}

}  // namespace

RDK_START(Draft, DRAFT)
RDK_COMPILED_FOR(draft_kernel<float, Whole>)

}  // namespace rdk
