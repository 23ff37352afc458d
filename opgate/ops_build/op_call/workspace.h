// The scratch memory of a kernel, whose size is known before the run.
//
//   struct Sort {
//     struct Memory {
//       std::span<std::uint64_t> keys, sorted;
//     };
//     /// Takes no less memory for larger dims. Reads dims and dtypes only: there may be no data.
//     static Memory workspace(Workspace& workspace, const Inputs& in, const Attributes&) {
//       return {workspace.take<std::uint64_t>(in.size("n")), workspace.take<std::uint64_t>(in.size("n"))};
//     }
//     Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
//       const Memory memory = workspace(context.workspace(), in, attributes);
//
// The same function runs twice. First it counts the bytes, for an engine that wants to know their number beforehand
// (TensorRT). Then it gives the memory to the kernel. So the two can't differ.
#pragma once

#include <limits>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "engine.h"

namespace opgate {

class Workspace {
 public:
  static constexpr std::size_t kAlignment = 256;

  /// Counts the bytes and gives no memory.
  Workspace() = default;

  /// Gives memory of `engine`.
  explicit Workspace(Engine& engine) : engine_(&engine), block_(engine.workspace()) {}

  /// Uninitialized memory for `count` values of T, until the kernel returns. While it only counts, the span has the
  /// pointer nullptr. Throws std::bad_alloc.
  template <typename T>
  std::span<T> take(std::int64_t count) {
    static_assert(std::is_trivially_copyable_v<T> && alignof(T) <= kAlignment);
    const std::size_t bytes = bytes_of<T>(count);
    if (bytes == 0) return {};
    return {static_cast<T*>(take_bytes(bytes)), static_cast<std::size_t>(count)};
  }

  /// The bytes of `count` values of T, none for a negative count. Throws std::bad_alloc if no memory is that large.
  template <typename T>
  static std::size_t bytes_of(std::int64_t count) {
    if (count <= 0) return 0;
    if (static_cast<std::uint64_t>(count) > std::numeric_limits<std::ptrdiff_t>::max() / sizeof(T))
      throw std::bad_alloc();
    return static_cast<std::size_t>(count) * sizeof(T);
  }

  /// The number of bytes that have been taken so far.
  std::size_t bytes() const { return taken_; }

 private:
  void* take_bytes(std::size_t bytes) {
    const std::size_t begin = taken_;
    const std::size_t padded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    if (padded < bytes || __builtin_add_overflow(taken_, padded, &taken_)) throw std::bad_alloc();
    if (!engine_) return nullptr;
    if (block_.empty()) return engine_->scratch(bytes);
    if (taken_ > block_.size()) {
      throw std::logic_error("the kernel takes " + std::to_string(taken_) +
                             " bytes of workspace or more and has stated " + std::to_string(block_.size()));
    }
    return block_.data() + begin;
  }

  Engine* engine_ = nullptr;
  std::span<char> block_;
  std::size_t taken_ = 0;
};

}  // namespace opgate
