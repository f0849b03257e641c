// redistribute: q(x) = sum_i q'_i S[i, x] + sum_r s_r P[r, x], gathered over the columns of S, so
// that each entry is summed in one fixed order. Memory floor: the V_d + C logits and the sparse
// structure read once, V_t probabilities written once.

#include <algorithm>
#include <vector>

#include "draft_row.h"
#include "operators.h"

namespace rdk::cpu {
namespace {

// The one-hot q of temperature 0; false where the row has no distribution.
bool redistribute_greedy(const DraftRow& row, const int32_t* row_top, int64_t target_size,
                         float* probs) {
  const int64_t column = argmax_column(row);
  if (column < 0) return false;
  std::fill(probs, probs + target_size, 0.0f);
  probs[row.is_dynamic(column) ? row.dynamic_token(row.dynamic_index(column)) : row_top[column]] =
      1.0f;
  return true;
}

bool redistribute_row(const RedistributeParams& params, int64_t index, Softmax* softmax,
                      std::vector<float>* exponentials) {
  const AffinityColumns& affinity = params.affinity;
  const float temperature = params.temperature[index];
  float* probs = params.probs + index * affinity.target_size;
  if (!usable_temperature(temperature)) return false;
  const DraftRow row(params.draft, index, temperature);
  if (temperature == 0.0f) {
    return redistribute_greedy(row, params.row_top, affinity.target_size, probs);
  }

  float stats[2 + kMaxRank];
  if (!draft_stats(row, params.draft.draft_size, affinity.spread, affinity.rank, softmax, stats)) {
    return false;
  }
  exponentials->resize(params.draft.draft_size);
  for (int64_t i = 0; i < params.draft.draft_size; ++i) {
    (*exponentials)[i] = std::exp(row.static_value(i) - stats[0]);
  }
  for (int64_t x = 0; x < affinity.target_size; ++x) {
    float mass = 0.0f;
    for (int64_t entry = affinity.offsets[x]; entry < affinity.offsets[x + 1]; ++entry) {
      mass += (*exponentials)[affinity.drafts[entry]] * affinity.weights[entry];
    }
    probs[x] = mass;
  }
  for (int64_t c = 0; c < row.dynamic_size(); ++c) {
    if (row.dynamic_used(c)) {
      probs[row.dynamic_token(c)] += std::exp(row.dynamic_value(c) - stats[0]);
    }
  }
  for (int64_t x = 0; x < affinity.target_size; ++x) {
    probs[x] /= stats[1];
    for (int64_t r = 0; r < affinity.rank; ++r) {
      probs[x] += stats[2 + r] * affinity.prior[r * affinity.target_size + x];
    }
  }
  return true;
}

}  // namespace

void redistribute(const RedistributeParams& params, int64_t begin, int64_t end) {
  Softmax softmax;
  std::vector<float> exponentials;
  for (int64_t index = begin; index < end; ++index) {
    if (!redistribute_row(params, index, &softmax, &exponentials)) {
      float* probs = params.probs + index * params.affinity.target_size;
      std::fill(probs, probs + params.affinity.target_size,
                std::numeric_limits<float>::quiet_NaN());
    }
  }
}

}  // namespace rdk::cpu
