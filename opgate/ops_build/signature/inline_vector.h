// A vector of trivially copyable values. The object itself holds the first N of them, so that a call allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

namespace opgate {

template <typename T, std::size_t N>
class InlineVector {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  InlineVector() = default;
  explicit InlineVector(std::size_t size) { resize(size); }
  InlineVector(const InlineVector& other) { assign(other); }
  InlineVector& operator=(const InlineVector& other) {
    if (this != &other) assign(other);
    return *this;
  }
  template <typename Range>
  explicit InlineVector(const Range& range) {
    assign(range);
  }

  /// New elements are value-initialized.
  void resize(std::size_t size) {
    reserve(size);
    for (std::size_t i = size_; i < size; ++i) data()[i] = T{};
    size_ = size;
  }
  void push_back(T value) {
    reserve(size_ + 1);
    data()[size_++] = value;
  }
  void clear() { size_ = 0; }

  T* data() { return heap_ ? heap_.get() : inline_; }
  const T* data() const { return heap_ ? heap_.get() : inline_; }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T& operator[](std::size_t i) { return data()[i]; }
  const T& operator[](std::size_t i) const { return data()[i]; }
  T* begin() { return data(); }
  T* end() { return data() + size_; }
  const T* begin() const { return data(); }
  const T* end() const { return data() + size_; }
  operator std::span<const T>() const { return {data(), size_}; }

 private:
  template <typename Range>
  void assign(const Range& range) {
    clear();
    reserve(range.size());
    for (const T& value : range) data()[size_++] = value;
  }
  void reserve(std::size_t wanted) {
    if (wanted <= capacity_) return;
    const std::size_t grown = wanted > 2 * capacity_ ? wanted : 2 * capacity_;
    auto heap = std::make_unique<T[]>(grown);
    std::memcpy(heap.get(), data(), size_ * sizeof(T));
    heap_ = std::move(heap);
    capacity_ = grown;
  }

  T inline_[N];
  std::size_t size_ = 0;
  std::size_t capacity_ = N;
  std::unique_ptr<T[]> heap_;
};

/// The sizes of a tensor's dimensions, the outermost first.
using Dims = InlineVector<std::int64_t, 8>;

}  // namespace opgate
