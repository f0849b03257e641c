// Rows of logits in any of the three dtypes.
#pragma once

#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <algorithm>
#include <cstdint>

#include "arithmetic.h"

namespace rdk::cpu {

using torch::headeronly::BFloat16;
using torch::headeronly::Half;

// Calls f with any element of the dtype, whose type f can name.
template <typename F>
decltype(auto) with_element_type(Dtype dtype, F&& f) {
  switch (dtype) {
    case Dtype::kFloat16:
      return f(Half{});
    case Dtype::kBFloat16:
      return f(BFloat16{});
    default:
      return f(0.0f);
  }
}

class LogitsRow {
 public:
  LogitsRow(Dtype dtype, const Rows& rows, int64_t row)
      : dtype_(dtype),
        bytes_(static_cast<const char*>(rows.data)),
        element_bytes_(dtype == Dtype::kFloat32 ? 4 : 2) {
    if (bytes_ != nullptr) bytes_ += rows.offset(row) * element_bytes_;
  }

  Dtype dtype() const { return dtype_; }
  const void* at(int64_t i) const { return bytes_ + i * element_bytes_; }
  float operator[](int64_t i) const {
    return with_element_type(dtype_, [&](auto type) {
      return static_cast<float>(*static_cast<const decltype(type)*>(at(i)));
    });
  }

 private:
  Dtype dtype_;
  const char* bytes_;
  int64_t element_bytes_;
};

// How many columns of `size` are in a chunk.
inline int64_t chunk_count(int64_t size, int64_t chunk) {
  return std::min<int64_t>(kChunk, size - chunk * kChunk);
}

}  // namespace rdk::cpu
