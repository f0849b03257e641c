// gather_logits: rows of the full head dotted with the hidden state. Memory floor: the bytes of the
// gathered rows.

#include "logits.h"
#include "operators.h"

namespace rdk::cpu {
namespace {

// The token of a logit, or -1 where it is outside the vocabulary.
int64_t gathered_token(const GatherLogitsParams& params, int64_t index) {
  const int64_t token = params.tokens_are_int64 ? static_cast<const int64_t*>(params.tokens)[index]
                                                : static_cast<const int32_t*>(params.tokens)[index];
  return 0 <= token && token < params.vocabulary ? token : -1;
}

template <typename T>
void gather(const GatherLogitsParams& params, int64_t begin, int64_t end) {
  const T* bias = static_cast<const T*>(params.bias);
  T* logits = static_cast<T*>(params.logits);
  const auto weight_row = [&](int64_t token) -> const T* {
    if (token < 0) return nullptr;
    return static_cast<const T*>(params.weight) + token * params.weight_stride;
  };
  int64_t next = gathered_token(params, begin);
  for (int64_t index = begin; index < end; ++index) {
    const int64_t token = next;
    next = index + 1 < end ? gathered_token(params, index + 1) : -1;
    if (token < 0) {
      logits[index] = static_cast<T>(-kInfinity);
      continue;
    }
    const T* hidden = static_cast<const T*>(params.hidden.data) +
                      params.hidden.offset(index / params.tokens_per_row);
    float logit = arithmetic().dot(params.dtype, weight_row(token), hidden, params.hidden_size,
                                   weight_row(next));
    if (bias != nullptr) logit += static_cast<float>(bias[token]);
    logits[index] = static_cast<T>(logit);
  }
}

}  // namespace

void gather_logits(const GatherLogitsParams& params, const Threads& threads) {
  constexpr int64_t kTokensPerUnit = 16;
  const int64_t count = params.rows * params.tokens_per_row;
  share(threads.for_columns(count * params.hidden_size),
        (count + kTokensPerUnit - 1) / kTokensPerUnit, [&](Units& units) {
          for (int64_t unit; units.claim(&unit);) {
            const int64_t begin = unit * kTokensPerUnit;
            with_element_type(params.dtype, [&](auto type) {
              gather<std::remove_cv_t<std::remove_pointer_t<decltype(type)>>>(
                  params, begin, std::min(begin + kTokensPerUnit, count));
            });
          }
        });
}

}  // namespace rdk::cpu
