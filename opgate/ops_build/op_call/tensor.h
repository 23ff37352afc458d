// Views of an engine's tensors. The engine owns the elements, which are contiguous and in row-major order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <new>
#include <span>
#include <stdexcept>
#include <string>

#include "signature/dtype.h"
#include "signature/inline_vector.h"

namespace opgate {

enum class Device : std::uint8_t { cpu, cuda };

constexpr std::string_view name_of(Device device) { return device == Device::cpu ? "cpu" : "cuda"; }

/// "[2, 3]"
inline std::string dims_text(std::span<const std::int64_t> dims) {
  std::string text = "[";
  for (std::size_t i = 0; i < dims.size(); ++i) text += (i ? ", " : "") + std::to_string(dims[i]);
  return text + "]";
}

/// A tensor that a kernel reads.
class Tensor {
 public:
  Tensor() = default;
  /// Messages call the tensor `name`. The characters must outlive the view.
  Tensor(const void* data, DType dtype, std::span<const std::int64_t> dims, Device device = Device::cpu,
         std::string_view name = {})
      : data_(data), dims_(dims), name_(name), dtype_(dtype), device_(device) {}

  DType dtype() const { return dtype_; }
  Device device() const { return device_; }
  std::string_view name() const { return name_; }
  std::span<const std::int64_t> dims() const { return dims_; }
  std::int64_t rank() const { return static_cast<std::int64_t>(dims_.size()); }
  std::int64_t dim(std::size_t i) const { return dims_[i]; }

  /// The number of elements.
  std::int64_t size() const {
    std::uint64_t count = 1;  // if a dim is 0, the product of the others may overflow
    for (const std::int64_t dim : dims_) count *= static_cast<std::uint64_t>(dim);
    return static_cast<std::int64_t>(count);
  }

  const void* raw() const { return data_; }

  /// The elements. T must be their C++ type, std::string_view for `str`. Throws std::logic_error if the tensor has
  /// another dtype.
  template <typename T>
  const T* data() const {
    check<T, std::string_view>();
    return static_cast<const T*>(data_);
  }
  template <typename T>
  std::span<const T> span() const {
    return {data<T>(), static_cast<std::size_t>(size())};
  }

 protected:
  template <typename T, typename Text>
  void check() const {
    using Element = std::remove_const_t<T>;
    constexpr auto expected = std::is_same_v<Element, Text> ? std::optional(DType::str) : dtype_of_type<Element>();
    static_assert(expected.has_value(), "no dtype has elements of this C++ type");
    if (dtype_ != *expected) throw_wrong_type(*expected);
  }

 private:
  [[noreturn]] void throw_wrong_type(DType asked) const {
    throw std::logic_error("the kernel accesses tensor '" + std::string(name_) + "', which is " +
                           std::string(name_of(dtype_)) + dims_text(dims_) + ", as " + std::string(name_of(asked)));
  }

  const void* data_ = nullptr;
  std::span<const std::int64_t> dims_;
  std::string_view name_;
  DType dtype_ = DType::f32;
  Device device_ = Device::cpu;
};

/// A tensor that a kernel writes. The elements of `str` are std::string here and std::string_view in a Tensor, so a
/// MutableTensor is no Tensor.
class MutableTensor : private Tensor {
 public:
  using Tensor::device;
  using Tensor::dim;
  using Tensor::dims;
  using Tensor::dtype;
  using Tensor::name;
  using Tensor::rank;
  using Tensor::size;

  MutableTensor() = default;
  MutableTensor(void* data, DType dtype, std::span<const std::int64_t> dims, Device device = Device::cpu,
                std::string_view name = {})
      : Tensor(data, dtype, dims, device, name) {}

  void* raw() const { return const_cast<void*>(Tensor::raw()); }  // the constructor had a void*

  template <typename T>
  T* data() const {
    check<T, std::string>();
    return static_cast<T*>(raw());
  }
  template <typename T>
  std::span<T> span() const {
    return {data<T>(), static_cast<std::size_t>(size())};
  }
};

/// The number of bytes of a numeric tensor with these dims. Throws std::bad_alloc if no memory is that large.
inline std::size_t bytes_of(DType dtype, std::span<const std::int64_t> dims) {
  std::size_t bytes = size_of(dtype);
  if (std::ranges::find(dims, 0) != dims.end()) return 0;
  for (const std::int64_t dim : dims) {
    if (__builtin_mul_overflow(bytes, static_cast<std::size_t>(dim), &bytes)) throw std::bad_alloc();
  }
  return bytes;
}

}  // namespace opgate
