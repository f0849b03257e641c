// verify_shard: verify by token from the sums of all chunks and the logits of some (docs/design.md,
// "Verify on shards"). A block takes a sequence: its positions are judged by a warp each, and each
// warp makes the proposals of its own tries. Memory floor: a chunk for each try, the shard's row
// for a residual.

#include "../common/shards.h"
#include "launch_kernel.cuh"
#include "verify_token.cuh"

namespace rdk {

namespace {

constexpr int kThreads = VerifyShardLaunch::kThreads;
constexpr int kWarps = kThreads / kWarp;

// The drafter is read element by element, and its stats are always passed.
template <typename T>
using ShardJudge = Judge<T, AnyDtype, Cut, VerifyShardLaunch, Sequence>;

// What a step's rows are judged from: the pairs of all chunks, and then z at the draft.
struct Sums {
  const ChunkSum* pairs;
  int chunks;

  RDK_DEVICE Sums(const VerifyShardParams& params, const Sequence& sequence, int step)
      : chunks(chunks_in(params.affinity.target_size)) {
    const int64_t row = sequence.index * (params.max_draft + 1) + step;
    pairs = reinterpret_cast<const ChunkSum*>(params.sums) + row * (chunks + 1);
  }
};

// By one warp. At temperature 0 the second of a pair is a column, and a NaN is in the first.
RDK_DEVICE Softmax greedy_softmax(const Sums& sums, int64_t target_size, int* argmax) {
  Softmax softmax{sums.pairs, sums.chunks, -infinity(), 1.0f, false};
  int chunk = sums.chunks;
  bool sound = true;
  for (int c = lane_index(); c < sums.chunks; c += kWarp) {
    const float max = global_load(&sums.pairs[c].max);
    sound = sound && max < infinity();
    if (max > softmax.max) {
      softmax.max = max;
      chunk = c;
    }
  }
  const float max = warp_max(softmax.max);
  chunk = warp_min(softmax.max == max ? chunk : sums.chunks);
  softmax.max = max;
  if (!__all_sync(kAllLanes, sound) || chunk == sums.chunks) return softmax;
  *argmax = chunk * kChunk + column_in_chunk(global_load(&sums.pairs[chunk].sum));
  softmax.valid = *argmax < target_size;
  return softmax;
}

// By one warp, which leaves all results in `position`.
template <typename T>
RDK_DEVICE void decide_on_shard(const ShardJudge<T>& judge, int step, Position* position) {
  const VerifyShardParams& params = judge.launch.params;
  const Sums sums(params, judge.sequence, step);
  int argmax = -1;
  const Softmax target = judge.sequence.target_temperature == 0.0f
                             ? greedy_softmax(sums, params.affinity.target_size, &argmax)
                             : merge_chunks(sums.pairs, sums.chunks);
  if (lane_index() == 0) {
    position->target = KeptSums(target);
    position->argmax = argmax;
  }
  __syncwarp(kAllLanes);
  if (step < judge.sequence.count) judge.look_up(step, [](int) { return 0.0f; }, position);
  accept_or_reject(judge.sequence, step, global_load(&sums.pairs[sums.chunks].max), position);
}

// The rank's columns of a row.
template <typename T>
struct ShardRow {
  TargetColumns<T, Cut> columns;
  int first;  // chunk

  RDK_DEVICE ShardRow(const ShardJudge<T>& judge, int step)
      : columns(judge.target_row(step, Cut::nothing())),
        first(static_cast<int>(judge.launch.params.shard.first)) {
    columns.size = static_cast<int>(judge.launch.params.target.size);
  }

  // By one warp, from p. The index of the column in the row, -1 where the chunk is not here.
  RDK_DEVICE int draw(const Softmax& target, const PhiloxWords& words) const {
    const int here = draw_chunk(target, words) - first;
    if (here < 0 || here >= columns.chunks()) return -1;
    return here * kChunk + draw_in_chunk(columns, here, words);
  }
  RDK_DEVICE int64_t token(int column) const { return first * kChunk + column; }
};

// By the block, of which the first thread returns it: the bonus, or the first try whose proposal is
// kept. A warp takes every kWarps-th try.
template <typename T>
RDK_DEVICE int64_t find(const ShardJudge<T>& judge, int step, const Position& position) {
  const Sequence& sequence = judge.sequence;
  __shared__ int64_t kept[kWarps];
  const ShardRow<T> row(judge, step);
  const int64_t place = later(sequence.position, step);
  const bool bonus = position.verdict == Verdict::kBonus;
  const int tries = bonus ? 1 : kResidualTries;
  const int own = warp_index();
  int64_t found = kNotHere;
#pragma unroll 1
  for (int attempt = own; attempt < tries && found == kNotHere; attempt += kWarps) {
    const PhiloxWords words = random_words(sequence.step_key, place,
                                           bonus ? Purpose::kBonus : Purpose::kResidual, attempt);
    const int column = row.draw(position.target, words);
    if (column < 0) continue;
    const int token = static_cast<int>(row.token(column));
    const Entries entries = column_entries(judge.launch.params.affinity, token);
    const float p = target_p(position, row.columns.value(column));
    const float q = bonus ? 0.0f : judge.q(position, token, entries);
    if (bonus || uniform(words.word[2]) * p < p - q) found = kept_at(attempt, token);
  }
  if (lane_index() == 0) kept[own] = found;
  __syncthreads();
  for (int warp = 0; warp < kWarps; ++warp) found = min(found, kept[warp]);
  return found;
}

// By the block: the residual of each chunk here and the column drawn in it, or of one without mass
// the column that p would give.
template <typename T>
RDK_DEVICE void weigh_residual(const ShardJudge<T>& judge, int step, const Position& position,
                               ChunkSum* pairs) {
  const Sequence& sequence = judge.sequence;
  const ShardRow<T> row(judge, step);
  const PhiloxWords words =
      random_words(sequence.step_key, later(sequence.position, step), Purpose::kDirect, 0);
  const int of_p = row.draw(position.target, words);
  const Residual<ShardJudge<T>> residual{judge, position, row.columns, 1.0f, row.first * kChunk};
#pragma unroll 1
  for (int chunk = warp_index(); chunk < row.columns.chunks(); chunk += kWarps) {
    const float mass = residual.of_chunk(chunk);
    int column = of_p >= 0 && of_p / kChunk == chunk ? of_p % kChunk : 0;
    if (mass > 0.0f) column = residual.draw_in(chunk, uniform(words.word[1]), mass);
    store_chunk_sum({mass, static_cast<float>(column)}, &pairs[chunk]);
  }
}

// By one warp, from what all ranks have weighed.
RDK_DEVICE int64_t draw_residual(const VerifyShardLaunch& launch, const Sequence& sequence,
                                 int step, const Position& position) {
  const int chunks = position.target.count;
  const ChunkSum* pairs =
      reinterpret_cast<const ChunkSum*>(launch.params.residuals) + sequence.index * chunks;
  const PhiloxWords words =
      random_words(sequence.step_key, later(sequence.position, step), Purpose::kDirect, 0);
  const auto mass = [&](int c) { return c < chunks ? global_load(&pairs[c].max) : 0.0f; };
  const float total = warp_total(chunks, mass);
  int chunk = total > 0.0f ? warp_draw(chunks, uniform(words.word[0]), total, mass)
                           : draw_chunk(position.target, words);
  chunk = max(chunk, 0);
  const int column = column_in_chunk(global_load(&pairs[chunk].sum));
  return token_of(static_cast<int64_t>(chunk) * kChunk + column,
                  launch.params.affinity.target_size);
}

// By the block: the token behind the accepted drafts, as far as it is known, which the first thread
// writes.
template <typename T>
RDK_DEVICE void follow(const ShardJudge<T>& judge, int step, const Position& position,
                       ChunkSum* residual) {
  const VerifyShardLaunch& launch = judge.launch;
  const Sequence& sequence = judge.sequence;
  const VerifyShardParams& params = launch.params;
  const bool greedy = sequence.target_temperature == 0.0f;
  const bool known = params.drawn != nullptr || greedy;
  int64_t found = -1;
  if (position.verdict != Verdict::kStopped) {
    if (greedy) {
      found = position.argmax;
    } else if (known) {
      found = params.drawn[sequence.index];
    } else {
      found = find(judge, step, position);
    }
  }
  int64_t token = known ? token_of(found, params.affinity.target_size) : -1;
  if (found == kNotHere) {
    token = -1;
    if (known && position.verdict == Verdict::kRejected) {
      if (params.residuals != nullptr) {
        token = draw_residual(launch, sequence, step, position);
      } else {
        weigh_residual(judge, step, position, residual);
      }
    }
  }
  if (threadIdx.x != 0) return;
  params.num_accepted[sequence.index] = step;
  params.found[sequence.index] = found;
  params.tokens[sequence.index * (params.max_draft + 1) + step] = token;
}

template <typename T>
__global__ void __launch_bounds__(kThreads, VerifyShardLaunch::kBlocks)
    verify_shard_kernel(const VerifyShardLaunch launch) {
  __shared__ Sequence sequence;
  __shared__ Position positions[kWarps];
  wait_for_earlier_kernels();
  const VerifyShardParams& params = launch.params;
  load_sequence(params, blockIdx.x, &sequence, nullptr);
  __syncthreads();
  int64_t* tokens = params.tokens + sequence.index * (params.max_draft + 1);
  const int chunks = static_cast<int>(params.shard.count);
  ChunkSum* residual = reinterpret_cast<ChunkSum*>(params.residual) + sequence.index * chunks;
  for (int64_t i = threadIdx.x; i <= params.max_draft; i += kThreads) tokens[i] = -1;
  for (int i = threadIdx.x; i < chunks; i += kThreads) residual[i] = {0.0f, 0.0f};
  if (!usable_temperature(sequence.target_temperature)) {
    if (threadIdx.x == 0) {
      params.num_accepted[sequence.index] = 0;
      params.found[sequence.index] = -1;
    }
    return;
  }
  __syncthreads();
  const ShardJudge<T> judge{launch, sequence, 0, nullptr};
#pragma unroll 1
  for (int first = 0;; first += kWarps) {
    const int decided = min(kWarps, sequence.count - first + 1);
    if (warp_index() < decided) {
      decide_on_shard(judge, first + warp_index(), &positions[warp_index()]);
    }
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < decided; ++i) {
      if (positions[i].verdict != Verdict::kAccepted) {
        return follow(judge, first + i, positions[i], residual);
      }
      if (threadIdx.x == 0) tokens[first + i] = positions[i].token;
    }
    __syncthreads();
  }
}

}  // namespace

RDK_START(VerifyShard, VERIFY_SHARD)

}  // namespace rdk
