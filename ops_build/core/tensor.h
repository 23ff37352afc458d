// A borrowed view of an engine's tensor: contiguous, row-major, owned by the engine.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>

#include "dtype.h"
#include "inline_vector.h"

namespace opgate {

enum class Device : std::uint8_t { cpu, cuda };

constexpr std::string_view name_of(Device device) { return device == Device::cpu ? "cpu" : "cuda"; }

class Tensor {
 public:
  Tensor() = default;
  Tensor(void* data, DType dtype, std::span<const std::int64_t> dims, Device device = Device::cpu)
      : data_(data), dims_(dims), dtype_(dtype), device_(device) {}

  DType dtype() const { return dtype_; }
  Device device() const { return device_; }
  std::span<const std::int64_t> dims() const { return dims_; }
  std::int64_t rank() const { return static_cast<std::int64_t>(dims_.size()); }
  std::int64_t dim(std::size_t i) const { return dims_[i]; }

  /// The number of elements.
  std::int64_t size() const {
    std::int64_t count = 1;
    for (std::int64_t dim : dims_) count *= dim;
    return count;
  }

  void* raw() const { return data_; }

  /// The elements as T. `str` inputs are read as std::string_view, `str` outputs written as std::string.
  template <typename T>
  T* data() const {
    return static_cast<T*>(data_);
  }
  template <typename T>
  std::span<T> span() const {
    return {data<T>(), static_cast<std::size_t>(size())};
  }

 private:
  void* data_ = nullptr;
  std::span<const std::int64_t> dims_;
  DType dtype_ = DType::f32;
  Device device_ = Device::cpu;
};

/// Bytes of numeric data of these dims.
inline std::size_t bytes_of(DType dtype, std::span<const std::int64_t> dims) {
  std::size_t bytes = size_of(dtype);
  for (const std::int64_t dim : dims) bytes *= static_cast<std::size_t>(dim);
  return bytes;
}

/// "[2, 3]"
inline std::string dims_text(std::span<const std::int64_t> dims) {
  std::string text = "[";
  for (std::size_t i = 0; i < dims.size(); ++i) text += (i ? ", " : "") + std::to_string(dims[i]);
  return text + "]";
}

}  // namespace opgate
