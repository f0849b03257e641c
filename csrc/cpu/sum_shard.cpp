// sum_shard: the chunk sums of a rank's columns of each row that a step may read, as summarize
// takes them, and z at its draft (docs/design.md, "Verify on shards"). Memory floor: the shard's
// logits, once.

#include <algorithm>
#include <cmath>

#include "operators.h"
#include "target_row.h"

namespace rdk::cpu {
namespace {

// Whether the sequence may come to this step. Then `drafted` is its draft, -1 at the end.
bool reaches(const SumShardParams& params, const Owned& drafts, int64_t step, int64_t* drafted) {
  const int64_t end = std::min(drafts.count, params.max_draft);
  if (step > end) return false;
  for (int64_t j = 0; j < step; ++j) {
    if (params.drafts.token_ids[drafts.start + j] == -1) return false;
  }
  *drafted = step < end ? params.drafts.token_ids[drafts.start + step] : -1;
  return true;
}

void sum_row(const SumShardParams& params, const TargetRow& row, bool greedy,
             const Threads& threads, Softmax* softmax, float* pairs) {
  if (!greedy) {
    summarize(row, threads, softmax);
    for (int64_t chunk = 0; chunk < row.chunks(); ++chunk) {
      pairs[2 * chunk] = softmax->chunks[chunk].max;
      pairs[2 * chunk + 1] = softmax->chunks[chunk].sum;
    }
    return;
  }
  share(threads, row.chunks(), [&](int64_t chunk) {
    alignas(64) float z[kChunk];
    const float max = row.scale(chunk, z);
    pairs[2 * chunk] = max;
    if (max > -kInfinity) {
      pairs[2 * chunk + 1] = static_cast<float>(std::find(z, z + row.count(chunk), max) - z);
    }
  });
}

}  // namespace

void sum_shard(const SumShardParams& params, const Threads& threads) {
  const int64_t steps = params.max_draft + 1;
  const int64_t chunks = params.shard.count;
  for_each_row<Softmax>(
      threads, params.sequences * steps, params.target.size,
      [&](int64_t index, const Threads& for_row, Softmax* softmax) {
        const int64_t sequence = index / steps;
        const int64_t step = index % steps;
        float* pairs = params.sums + index * (chunks + 1) * 2;
        for (int64_t chunk = 0; chunk <= chunks; ++chunk) {
          pairs[2 * chunk] = -kInfinity;
          pairs[2 * chunk + 1] = 0.0f;
        }
        const float temperature = params.temperature[sequence];
        const Owned drafts = owned(params.drafts, sequence);
        int64_t drafted;
        if (!usable_temperature(temperature) || !reaches(params, drafts, step, &drafted)) return;
        const TargetRow row(params.target, drafts.start + sequence + step, temperature, false);
        sum_row(params, row, temperature == 0.0f, for_row, softmax, pairs);
        const int64_t begin = params.shard.first * kChunk;
        if (drafted >= begin && drafted - begin < params.target.size) {
          pairs[2 * chunks] = row.value(drafted - begin);
        }
      });
}

}  // namespace rdk::cpu
