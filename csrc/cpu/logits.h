// Rows of logits in any of the three dtypes, read as float32.
#pragma once

#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <cstdint>

#include "../params.h"

namespace rdk::cpu {

using torch::headeronly::BFloat16;
using torch::headeronly::Half;

// Calls f with a null pointer of the element type, so that f can name it.
template <typename F>
decltype(auto) with_element_type(Dtype dtype, F&& f) {
  switch (dtype) {
    case Dtype::kFloat16:
      return f(static_cast<const Half*>(nullptr));
    case Dtype::kBFloat16:
      return f(static_cast<const BFloat16*>(nullptr));
    default:
      return f(static_cast<const float*>(nullptr));
  }
}

class LogitsRow {
 public:
  LogitsRow(Dtype dtype, const Rows& rows, int64_t row)
      : dtype_(dtype), data_(rows.data), offset_(rows.data ? rows.offset(row) : 0) {}

  float operator[](int64_t i) const {
    return with_element_type(dtype_, [&](auto type) {
      return static_cast<float>(static_cast<decltype(type)>(data_)[offset_ + i]);
    });
  }

  void load(int64_t begin, int64_t count, float* out) const {
    with_element_type(dtype_, [&](auto type) {
      const auto* logits = static_cast<decltype(type)>(data_) + offset_ + begin;
      for (int64_t i = 0; i < count; ++i) out[i] = static_cast<float>(logits[i]);
    });
  }

 private:
  Dtype dtype_;
  const void* data_;
  int64_t offset_;
};

}  // namespace rdk::cpu
