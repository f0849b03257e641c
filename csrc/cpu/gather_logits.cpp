// gather_logits: rows of the full head dotted with the hidden state. Memory floor: the bytes of the
// gathered rows.

#include "logits.h"
#include "operators.h"
#include "softmax.h"

namespace rdk::cpu {
namespace {

// Fixed lanes and tree: a logit does not depend on which tokens are gathered beside it.
template <typename T>
float dot(const T* row, const T* hidden, int64_t size) {
  constexpr int kLanes = 16;
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      lanes[lane] += static_cast<float>(row[i + lane]) * static_cast<float>(hidden[i + lane]);
    }
  }
  for (int lane = 0; i < size; ++i, ++lane) {
    lanes[lane] += static_cast<float>(row[i]) * static_cast<float>(hidden[i]);
  }
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

template <typename T>
void gather(const GatherLogitsParams& params, int64_t begin, int64_t end) {
  const T* weight = static_cast<const T*>(params.weight);
  const T* bias = static_cast<const T*>(params.bias);
  T* logits = static_cast<T*>(params.logits);
  for (int64_t index = begin; index < end; ++index) {
    const int64_t token = params.tokens_are_int64
                              ? static_cast<const int64_t*>(params.tokens)[index]
                              : static_cast<const int32_t*>(params.tokens)[index];
    if (token < 0 || token >= params.vocabulary) {
      logits[index] = static_cast<T>(-kInfinity);
      continue;
    }
    const int64_t row = index / params.tokens_per_row;
    const T* hidden = static_cast<const T*>(params.hidden.data) + params.hidden.offset(row);
    float logit = dot(weight + token * params.weight_stride, hidden, params.hidden_size);
    if (bias != nullptr) logit += static_cast<float>(bias[token]);
    logits[index] = static_cast<T>(logit);
  }
}

}  // namespace

void gather_logits(const GatherLogitsParams& params, int64_t begin, int64_t end) {
  with_element_type(params.dtype, [&](auto type) {
    gather<std::remove_cv_t<std::remove_pointer_t<decltype(type)>>>(params, begin, end);
  });
}

}  // namespace rdk::cpu
