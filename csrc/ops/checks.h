// The checks of operators. Errors say what they got, what they need and what to do. Shapes,
// dtypes and strides decide all of it, so nothing here waits for a device.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "../params.h"

namespace rdk::ops {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
// Arguments of operators: a tensor, and one that may be left out.
using Given = const Tensor&;
using Maybe = const std::optional<Tensor>&;

// Of float, int32_t or int64_t.
template <typename T>
constexpr ScalarType kTypeOf = std::is_same_v<T, float> ? ScalarType::Float
                               : sizeof(T) == 4         ? ScalarType::Int
                                                        : ScalarType::Long;

// The sizes of a tensor: leading ones, which lie in a tensor that outlives this, then up to four of
// its own. A call that succeeds allocates none.
class Shape {
 public:
  Shape(std::initializer_list<int64_t> sizes) : Shape(nullptr, 0) {
    for (int64_t size : sizes) last_[last_count_++] = size;
  }
  Shape(const int64_t* leading, size_t count) : leading_(leading), leading_count_(count) {}

  size_t dim() const { return leading_count_ + last_count_; }
  int64_t operator[](size_t i) const {
    return i < leading_count_ ? leading_[i] : last_[i - leading_count_];
  }
  Shape followed_by(int64_t size) const {
    Shape longer = *this;
    longer.last_[longer.last_count_++] = size;
    return longer;
  }
  bool operator==(const Shape& other) const {
    bool same = dim() == other.dim();
    for (size_t i = 0; same && i < dim(); ++i) same = (*this)[i] == other[i];
    return same;
  }
  int64_t product() const {
    int64_t count = 1;
    for (size_t i = 0; i < dim(); ++i) count *= (*this)[i];
    return count;
  }

 private:
  const int64_t* leading_;
  size_t leading_count_;
  std::array<int64_t, 4> last_{};
  size_t last_count_ = 0;
};

inline Shape shape_of(Given tensor) { return {tensor.sizes().data(), tensor.sizes().size()}; }

// The shape of all dimensions but the last.
inline Shape leading_shape(Given tensor) {
  return {tensor.sizes().data(), tensor.sizes().size() - 1};
}

// Of the last dimension.
inline int64_t width_of(Given tensor) {
  return tensor.dim() > 0 ? tensor.size(tensor.dim() - 1) : 0;
}

inline std::string describe(const Shape& shape) {
  std::ostringstream text;
  text << '[';
  for (size_t i = 0; i < shape.dim(); ++i) text << (i ? ", " : "") << shape[i];
  text << ']';
  return text.str();
}

// An output of this shape: of the device of a tensor, and of its dtype if none is given. Of all
// ways to allocate this one does not look an operator up by name, which takes longer than the rest.
inline Tensor empty(const Tensor& on, const Shape& shape,
                    std::optional<ScalarType> type = std::nullopt) {
  const size_t dim = shape.dim();
  std::vector<int64_t> sizes(2 * dim);  // then the strides
  int64_t stride = 1;
  for (size_t i = dim; i-- > 0;) {
    sizes[i] = shape[i];
    sizes[dim + i] = stride;
    stride *= std::max<int64_t>(shape[i], 1);
  }
  int32_t device = 0;
  int32_t dtype = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(on.get(), &device));
  if (type) {
    dtype = torch::stable::detail::to<int32_t>(torch::stable::detail::from(*type));
  } else {
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(on.get(), &dtype));
  }
  AtenTensorHandle made = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(static_cast<int64_t>(dim), sizes.data(),
                                                  sizes.data() + dim, dtype, device,
                                                  on.get_device_index(), &made));
  return Tensor(made);
}

// The same, whose data go to where `to` says.
template <typename T>
Tensor output(const Tensor& on, const Shape& shape, T** to) {
  Tensor made = empty(on, shape, kTypeOf<T>);
  *to = static_cast<T*>(made.mutable_data_ptr());
  return made;
}

inline TokenIds token_ids(Given tensor) {
  return {tensor.const_data_ptr(), tensor.scalar_type() == ScalarType::Long};
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
  void present(const char* argument, Given tensor) const {
    if (!tensor.defined()) refuse(argument, "is None", "a tensor");
  }

  void device(const char* argument, Given tensor) const {
    present(argument, tensor);
    if (tensor.device() != first_.device()) {
      refuse(argument, "is on another device than " + std::string(first_name_),
             "the same; move it with .to(" + std::string(first_name_) + ".device)");
    }
  }

  void dtype(const char* argument, Given tensor, std::initializer_list<ScalarType> allowed) const {
    const ScalarType given = tensor.scalar_type();
    if (std::find(allowed.begin(), allowed.end(), given) != allowed.end()) return;
    std::string names;
    for (ScalarType type : allowed) {
      names += (names.empty() ? "" : " or ") + std::string(torch::headeronly::toString(type));
    }
    refuse(argument, std::string("has dtype ") + torch::headeronly::toString(given),
           names + "; convert it with .to()");
  }

  void shape(const char* argument, Given tensor, const Shape& needed, const char* meaning) const {
    if (!(shape_of(tensor) == needed)) {
      refuse(argument, "has shape " + describe(shape_of(tensor)),
             describe(needed) + " (" + meaning + ")");
    }
  }

  void dimensions(const char* argument, Given tensor, int64_t needed, const char* meaning) const {
    present(argument, tensor);
    if (tensor.dim() != needed) {
      refuse(argument, "has shape " + describe(shape_of(tensor)),
             std::to_string(needed) + " dimensions (" + meaning + ")");
    }
  }

  // A small tensor: one dtype, one shape, contiguous.
  void plain(const char* argument, Given tensor, std::initializer_list<ScalarType> types,
             const Shape& needed, const char* meaning) const {
    device(argument, tensor);
    dtype(argument, tensor, types);
    shape(argument, tensor, needed, meaning);
    contiguous(argument, tensor);
  }

  // The data of a plain tensor, to read or to write; null where there is none.
  template <typename T>
  const T* data(const char* argument, Given tensor, const Shape& needed,
                const char* meaning) const {
    plain(argument, tensor, {kTypeOf<T>}, needed, meaning);
    return static_cast<const T*>(tensor.const_data_ptr());
  }
  template <typename T>
  const T* data(const char* argument, Maybe tensor, const Shape& needed,
                const char* meaning) const {
    return tensor ? data<T>(argument, *tensor, needed, meaning) : nullptr;
  }
  template <typename T>
  T* written(const char* argument, Given tensor, const Shape& needed, const char* meaning) const {
    plain(argument, tensor, {kTypeOf<T>}, needed, meaning);
    return static_cast<T*>(tensor.mutable_data_ptr());
  }

  // Plain, of either integer type.
  TokenIds integers(const char* argument, Given tensor, const Shape& needed,
                    const char* meaning) const {
    plain(argument, tensor, {ScalarType::Long, ScalarType::Int}, needed, meaning);
    return token_ids(tensor);
  }

  // Both are given, or neither.
  void together(const char* one, Maybe tensor, const char* other, Maybe with) const {
    if (tensor.has_value() == with.has_value()) return;
    const bool lacks_one = !tensor;
    refuse(lacks_one ? one : other, "is missing",
           std::string("to be given with ") + (lacks_one ? other : one) + "; pass both or neither");
  }

  void contiguous(const char* argument, Given tensor) const {
    if (!tensor.is_contiguous()) {
      refuse(argument, "is not contiguous", "to be; call .contiguous()");
    }
  }

  // Refuses what autograd would record, because without a formula the gradient would silently be
  // lost. The stable ABI does not tell which tensors require grad, but a view of one is recorded,
  // and so is no leaf. This sees autograd's mode only because autograd falls through to the
  // operator (rdk_cuda/_ops/__init__.py). Without autograd it costs one look at the mode. What it
  // cannot see, transforms of torch.func and tangents, is refused by rdk_cuda/_ops/gradients.py.
  void no_gradient(const char* argument, Given tensor) const {
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

  void no_gradient(const char* argument, Maybe tensor) const {
    if (tensor) no_gradient(argument, *tensor);
  }

  void columns(const char* argument, Given tensor) const {
    if (width_of(tensor) > kMaxColumns) {
      refuse(argument, "has " + std::to_string(width_of(tensor)) + " columns",
             "at most " + std::to_string(kMaxColumns));
    }
  }

  // Logits: a floating dtype, at least one column, the last dimension contiguous.
  Dtype logits(const char* argument, Given tensor) const {
    device(argument, tensor);
    dtype(argument, tensor, {ScalarType::Float, ScalarType::Half, ScalarType::BFloat16});
    if (width_of(tensor) < 1) {
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

  Rows rows(const char* argument, Given tensor) const;

  // Rows that lie one after the other, so that one stride says where.
  Rows even_rows(const char* argument, Given tensor) const {
    const Rows found = rows(argument, tensor);
    if (tensor.numel() > 0 && found.inner != leading_shape(tensor).product()) {
      refuse(argument, "has rows with two different strides", "one; call .contiguous()");
    }
    return found;
  }

 private:
  const char* operator_;
  const char* first_name_;
  const Tensor& first_;
};

// Folds the leading dimensions into at most two strides, so that slices and padded rows are read
// where they lie. A tensor without elements has no strides that matter; NumPy gives it zeros.
inline Rows Checks::rows(const char* argument, Given tensor) const {
  const int64_t last = tensor.dim() - 1;
  const bool empty = tensor.numel() == 0;
  if (!empty && tensor.size(last) > 1 && tensor.stride(last) != 1) {
    refuse(argument, "has stride " + std::to_string(tensor.stride(last)) + " in its last dimension",
           "1; call .contiguous()");
  }
  Rows rows{tensor.const_data_ptr(), 1, 0, 0};
  const int64_t count = leading_shape(tensor).product();
  if (count > kMaxRows) {
    refuse(argument, "has " + std::to_string(count) + " rows",
           "at most " + std::to_string(kMaxRows));
  }
  if (empty) return rows;
  int strides = 0;    // that differ, of the dimensions that are folded so far, the inner ones
  int64_t outer = 1;  // rows of the outer one of two
  for (int64_t i = last - 1; i >= 0; --i) {
    const int64_t size = tensor.size(i);
    const int64_t stride = tensor.stride(i);
    if (size == 1) continue;
    if (strides == 0) {
      rows.inner = size;
      rows.inner_stride = stride;
      strides = 1;
    } else if (strides == 1 && stride == rows.inner * rows.inner_stride) {
      rows.inner *= size;
    } else if (strides == 1) {
      outer = size;
      rows.outer_stride = stride;
      strides = 2;
    } else if (stride == outer * rows.outer_stride) {
      outer *= size;
    } else {
      refuse(argument, "has rows with more than two different strides",
             "at most two; call .contiguous()");
    }
  }
  return rows;
}

}  // namespace rdk::ops
