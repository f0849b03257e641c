// What operators refuse, with errors that say what they got, what they need and what to do. Shapes,
// dtypes and strides decide all of it, so nothing here waits for a device.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "../params.h"

namespace rdk::ops {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using Shape = std::vector<int64_t>;

inline Shape shape_of(const Tensor& tensor) {
  return Shape(tensor.sizes().begin(), tensor.sizes().end());
}

inline std::string describe(const Shape& shape) {
  std::ostringstream text;
  text << '[';
  for (size_t i = 0; i < shape.size(); ++i) text << (i ? ", " : "") << shape[i];
  text << ']';
  return text.str();
}

inline int64_t product(const Shape& shape) {
  int64_t count = 1;
  for (int64_t size : shape) count *= size;
  return count;
}

// The checks of one call. The first argument decides the device of all.
class Checks {
 public:
  Checks(const char* name, const char* first_name, const Tensor& first)
      : operator_(name), first_name_(first_name), first_(first) {}

  [[noreturn]] void refuse(const char* argument, const std::string& got,
                           const std::string& needs) const {
    throw std::runtime_error(std::string("rdk::") + operator_ + ": " + argument + " " + got +
                             ", but needs " + needs);
  }

  // Python's None arrives as an undefined tensor.
  void present(const char* argument, const Tensor& tensor) const {
    if (!tensor.defined()) refuse(argument, "is None", "a tensor");
  }

  void device(const char* argument, const Tensor& tensor) const {
    present(argument, tensor);
    if (tensor.device() != first_.device()) {
      refuse(argument, "is on another device than " + std::string(first_name_),
             "the same; move it with .to(" + std::string(first_name_) + ".device)");
    }
  }

  void dtype(const char* argument, const Tensor& tensor, std::vector<ScalarType> allowed) const {
    std::string names;
    for (ScalarType type : allowed) {
      if (tensor.scalar_type() == type) return;
      names += (names.empty() ? "" : " or ") + std::string(torch::headeronly::toString(type));
    }
    refuse(argument, std::string("has dtype ") + torch::headeronly::toString(tensor.scalar_type()),
           names + "; convert it with .to()");
  }

  void shape(const char* argument, const Tensor& tensor, const Shape& needed,
             const char* meaning) const {
    if (shape_of(tensor) != needed) {
      refuse(argument, "has shape " + describe(shape_of(tensor)),
             describe(needed) + " (" + meaning + ")");
    }
  }

  void dimensions(const char* argument, const Tensor& tensor, int64_t needed,
                  const char* meaning) const {
    present(argument, tensor);
    if (tensor.dim() != needed) {
      refuse(argument, "has shape " + describe(shape_of(tensor)),
             std::to_string(needed) + " dimensions (" + meaning + ")");
    }
  }

  // A small tensor: one dtype, one shape, contiguous.
  void plain(const char* argument, const Tensor& tensor, ScalarType type, const Shape& needed,
             const char* meaning) const {
    device(argument, tensor);
    dtype(argument, tensor, {type});
    shape(argument, tensor, needed, meaning);
    contiguous(argument, tensor);
  }

  void contiguous(const char* argument, const Tensor& tensor) const {
    if (!tensor.is_contiguous()) {
      refuse(argument, "is not contiguous", "to be; call .contiguous()");
    }
  }

  // Refuses what autograd would record, because without a formula the gradient would silently be
  // lost. The stable ABI does not tell which tensors require grad, but a view of one is recorded,
  // and so is no leaf. This sees autograd's mode only because autograd falls through to the
  // operator (rdk_cuda/_ops/__init__.py). Without autograd it costs one look at the mode. What it
  // cannot see, transforms of torch.func and tangents, is refused by rdk_cuda/_ops/gradients.py.
  void no_gradient(const char* argument, const Tensor& tensor) const {
    if (!aoti_torch_grad_mode_is_enabled() || !tensor.defined()) return;
    StableIValue stack[1] = {torch::stable::detail::from(torch::stable::unsqueeze(tensor, 0))};
    TORCH_ERROR_CODE_CHECK(aoti_torch_call_dispatcher("aten::is_leaf", "", stack));
    if (torch::stable::detail::to<bool>(stack[0])) return;
    refuse(
        argument, "requires grad",
        std::string("a tensor that does not, because the operator has no gradient; call it under "
                    "torch.no_grad(), pass .detach(), or use rdk_cuda.reference.") +
            operator_ + ", which has one");
  }

  void columns(const char* argument, const Tensor& tensor) const {
    if (tensor.size(tensor.dim() - 1) > kMaxColumns) {
      refuse(argument, "has " + std::to_string(tensor.size(tensor.dim() - 1)) + " columns",
             "at most " + std::to_string(kMaxColumns));
    }
  }

  // Logits: a floating dtype, at least one column, the last dimension contiguous.
  Dtype logits(const char* argument, const Tensor& tensor) const {
    device(argument, tensor);
    dtype(argument, tensor, {ScalarType::Float, ScalarType::Half, ScalarType::BFloat16});
    if (tensor.dim() < 1 || tensor.size(tensor.dim() - 1) < 1) {
      refuse(argument, "has shape " + describe(shape_of(tensor)),
             "at least one column in its last dimension");
    }
    columns(argument, tensor);
    switch (tensor.scalar_type()) {
      case ScalarType::Half:
        return Dtype::kFloat16;
      case ScalarType::BFloat16:
        return Dtype::kBFloat16;
      default:
        return Dtype::kFloat32;
    }
  }

  Rows rows(const char* argument, const Tensor& tensor) const;

 private:
  const char* operator_;
  const char* first_name_;
  const Tensor& first_;
};

// The shape of all dimensions but the last.
inline Shape leading_shape(const Tensor& tensor) {
  Shape shape = shape_of(tensor);
  shape.pop_back();
  return shape;
}

inline Shape with_last(Shape leading, int64_t last) {
  leading.push_back(last);
  return leading;
}

// Folds the leading dimensions into at most two strides, so that slices and padded rows are read
// where they lie. A tensor without elements has no strides that matter; NumPy gives it zeros.
inline Rows Checks::rows(const char* argument, const Tensor& tensor) const {
  const int64_t last = tensor.dim() - 1;
  const bool empty = tensor.numel() == 0;
  if (!empty && tensor.size(last) > 1 && tensor.stride(last) != 1) {
    refuse(argument, "has stride " + std::to_string(tensor.stride(last)) + " in its last dimension",
           "1; call .contiguous()");
  }
  std::vector<std::pair<int64_t, int64_t>> folded;  // size, stride; inner first
  for (int64_t i = last - 1; i >= 0; --i) {
    const int64_t size = tensor.size(i);
    const int64_t stride = tensor.stride(i);
    if (size == 1) continue;
    if (!folded.empty() && stride == folded.back().first * folded.back().second) {
      folded.back().first *= size;
    } else {
      folded.push_back({size, stride});
    }
  }
  Rows rows{tensor.const_data_ptr(), 1, 0, 0};
  const int64_t count = product(leading_shape(tensor));
  if (count > kMaxRows) {
    refuse(argument, "has " + std::to_string(count) + " rows",
           "at most " + std::to_string(kMaxRows));
  }
  if (empty || folded.empty()) return rows;
  if (folded.size() > 2) {
    refuse(argument, "has rows with more than two different strides",
           "at most two; call .contiguous()");
  }
  rows.inner = folded[0].first;
  rows.inner_stride = folded[0].second;
  rows.outer_stride = folded.size() == 2 ? folded[1].second : 0;
  return rows;
}

}  // namespace rdk::ops
