// verify_shard: verify by token, where each rank has some chunks of the target's columns. All know
// the sums of all chunks, so all accept the same drafts, and the first call finds the token that
// follows where it is in this rank's chunks. Where all tries have failed, the second one weighs the
// residual in each of these, and the third draws from what all have found (docs/design.md, "Verify
// on shards"). Memory floor: a chunk for each try, the shard's row for a residual.

#include <algorithm>

#include "operators.h"
#include "verify_methods.h"
#include "verify_residual.h"

namespace rdk::cpu {
namespace {

class ShardStep {
 public:
  ShardStep(const VerifyShardParams& params, int64_t sequence, const Threads& threads,
            VerifyScratch* scratch)
      : params_(params),
        sequence_(sequence),
        threads_(threads),
        scratch_(scratch),
        step_(params, sequence),
        chunks_(chunks_of(params.affinity.target_size)) {}

  void decide() {
    VerifyOutput output(params_, sequence_, threads_, &scratch_->raw);
    std::fill_n(residual(), 2 * params_.shard.count, 0.0f);
    judge_in_order(
        step_, threads_, scratch_, &output, [&](int64_t j) { return target(j); },
        [&](int64_t j, const TargetDistribution& target, const DraftDistribution* draft) {
          const int64_t found = find(j, target, draft);
          params_.found[sequence_] = found;
          if (found != kNotHere) {
            const bool is_known = params_.drawn != nullptr || target.greedy();
            return is_known ? token_of(found, params_.affinity.target_size) : -1;
          }
          if (params_.drawn == nullptr || draft == nullptr) return int64_t{-1};
          if (params_.residuals != nullptr) return draw_residual(j, target);
          weigh_residual(j, target, *draft);
          return int64_t{-1};
        });
  }

 private:
  float* residual() const { return params_.residual + sequence_ * params_.shard.count * 2; }

  TargetDistribution target(int64_t j) const {
    const int64_t row = sequence_ * (params_.max_draft + 1) + j;
    const float* pairs = params_.sums + row * (chunks_ + 1) * 2;
    return {params_.target,
            step_.row(j),
            params_.sequences.temperature[sequence_],
            RowSums{pairs, chunks_, params_.affinity.target_size},
            params_.shard.first,
            step_.token(j),
            &scratch_->target};
  }

  // Of this rank, or of all where that is known. What all know by themselves, all find.
  int64_t find(int64_t j, const TargetDistribution& target, const DraftDistribution* draft) const {
    if (!target.valid()) return -1;
    if (target.greedy()) return target.argmax();
    if (params_.drawn != nullptr) return params_.drawn[sequence_];
    if (draft != nullptr) return first_kept(step_, j, target, *draft);
    const int64_t bonus = target.draw(step_.words(j, Purpose::kBonus, 0));
    return bonus >= 0 ? bonus : kNotHere;
  }

  // The column in each chunk is drawn before the chunk is: its uniform is its own. A chunk without
  // mass has the column that p would give, because if none has any, p is drawn from.
  void weigh_residual(int64_t j, const TargetDistribution& target, const DraftDistribution& draft) {
    const PhiloxWords words = step_.words(j, Purpose::kDirect, 0);
    const int64_t of_p = target.draw(words);
    const ResidualRow row(target, draft, 1.0f, threads_);
    share(threads_, target.chunks(), [&](int64_t here) {
      alignas(64) float weights[kChunk];
      const int64_t chunk = target.first_chunk() + here;
      float* pair = residual() + 2 * here;
      pair[0] = row.evaluate(chunk, weights);
      const int64_t column = row.draw_in_chunk(chunk, weights, uniform(words.word[1]));
      if (column >= 0) pair[1] = static_cast<float>(column);
      const bool drawn_here = of_p >= 0 && of_p / kChunk == chunk;
      if (column < 0 && drawn_here) pair[1] = static_cast<float>(of_p % kChunk);
    });
  }

  int64_t draw_residual(int64_t j, const TargetDistribution& target) const {
    const PhiloxWords words = step_.words(j, Purpose::kDirect, 0);
    const float* pairs = params_.residuals + sequence_ * chunks_ * 2;
    int64_t chunk =
        draw_index(chunks_, uniform(words.word[0]), [&](int64_t c) { return pairs[2 * c]; });
    if (chunk < 0) chunk = std::max<int64_t>(0, target.draw_chunk(words));
    const int64_t token = chunk * kChunk + column_in_chunk(pairs[2 * chunk + 1]);
    return token_of(token, params_.affinity.target_size);
  }

  const VerifyShardParams& params_;
  int64_t sequence_;
  const Threads& threads_;
  VerifyScratch* scratch_;
  VerifyStep step_;
  int64_t chunks_;
};

}  // namespace

void verify_shard(const VerifyShardParams& params, const Threads& threads) {
  const bool weighs = params.drawn != nullptr && params.residuals == nullptr;
  for_each_row<VerifyScratch>(
      threads, params.sequences.count, weighs ? params.target.size : kResidualTries * kChunk,
      [&](int64_t sequence, const Threads& for_sequence, VerifyScratch* scratch) {
        ShardStep(params, sequence, for_sequence, scratch).decide();
      });
}

}  // namespace rdk::cpu
