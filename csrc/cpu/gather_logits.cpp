// gather_logits: rows of the full head dotted with the hidden state. Memory floor: the bytes of the
// gathered rows.

#include <algorithm>

#include "logits.h"
#include "operators.h"

namespace rdk::cpu {
namespace {

// The token of a logit, or -1 where it is outside the vocabulary.
int64_t gathered_token(const GatherLogitsParams& params, int64_t index) {
  const int64_t token = params.tokens[index];
  return 0 <= token && token < params.vocabulary ? token : -1;
}

// The logits [begin, end) of one hidden state.
template <typename T>
void gather(const GatherLogitsParams& params, int64_t begin, int64_t end) {
  const T* hidden = static_cast<const T*>(params.hidden.data) +
                    params.hidden.offset(begin / params.tokens_per_row);
  const T* bias = static_cast<const T*>(params.bias);
  T* logits = static_cast<T*>(params.logits);
  const auto weight_row = [&](int64_t index) -> const T* {
    const int64_t token = index < end ? gathered_token(params, index) : -1;
    if (token < 0) return nullptr;
    return static_cast<const T*>(params.weight) + token * params.weight_stride;
  };
  HeadRows rows;
  int64_t places[kGroup];
  for (int64_t first = begin; first < end; first += kGroup) {
    rows.count = 0;
    for (int64_t index = first; index < std::min(first + kGroup, end); ++index) {
      const T* row = weight_row(index);
      logits[index] = static_cast<T>(-kInfinity);
      if (row == nullptr) continue;
      rows.row[rows.count] = row;
      rows.ahead[rows.count] = weight_row(index + kGroup);
      places[rows.count++] = index;
    }
    if (rows.count == 0) continue;
    float dots[kGroup];
    arithmetic().dots(params.dtype, rows, hidden, params.hidden_size, dots);
    for (int64_t r = 0; r < rows.count; ++r) {
      if (bias != nullptr) dots[r] += static_cast<float>(bias[gathered_token(params, places[r])]);
      logits[places[r]] = static_cast<T>(dots[r]);
    }
  }
}

}  // namespace

void gather_logits(const GatherLogitsParams& params, const Threads& threads) {
  constexpr int64_t kTokensPerUnit = 32;
  const int64_t count = params.rows * params.tokens_per_row;
  const int64_t units_per_row = (params.tokens_per_row + kTokensPerUnit - 1) / kTokensPerUnit;
  share(threads.for_columns(count * params.hidden_size), params.rows * units_per_row,
        [&](int64_t unit) {
          const int64_t row = unit / units_per_row;
          const int64_t begin = row * params.tokens_per_row + unit % units_per_row * kTokensPerUnit;
          const int64_t end = std::min(begin + kTokensPerUnit, (row + 1) * params.tokens_per_row);
          with_element_type(params.dtype,
                            [&](auto type) { gather<decltype(type)>(params, begin, end); });
        });
}

}  // namespace rdk::cpu
