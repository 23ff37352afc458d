// What a kernel that is a loop in Python (python_ops/loop.py) is called with.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "op_call/kernel.h"

namespace opgate::loop {

/// An array of the loop: dims of any number are one.
template <std::size_t rank>
struct Array {
  const void* data = nullptr;
  std::array<std::int64_t, rank> dims{};

  std::int64_t size() const {
    std::int64_t size = 1;
    for (const std::int64_t dim : dims) size *= dim;
    return size;
  }
};

/// The dims of a tensor as `rank` of them. `loose` is the place of the dims of any number, -1 if there are none.
template <std::size_t rank>
std::array<std::int64_t, rank> dims_of(std::span<const std::int64_t> dims, int loose) {
  std::array<std::int64_t, rank> found{};
  if (loose < 0) {
    std::ranges::copy(dims, found.begin());
    return found;
  }
  const std::size_t many = dims.size() + 1 - rank;  // dims that are one here
  const auto place = static_cast<std::size_t>(loose);
  for (std::size_t i = 0; i < rank; ++i) found[i] = i == place ? 1 : dims[i < place ? i : i + many - 1];
  for (std::size_t i = 0; i < many; ++i) found[place] *= dims[place + i];
  return found;
}

/// An input; an absent one has no elements.
template <std::size_t rank>
Array<rank> input(const Inputs& in, std::string_view name, int loose) {
  if (!in.has(name)) return {};
  return {in[name].raw(), dims_of<rank>(in[name].dims(), loose)};
}

/// An output; one that nobody wants has no elements.
template <std::size_t rank>
Array<rank> output(Outputs& out, std::string_view name, int loose) {
  if (!out.has(name)) return {};
  return {out[name].raw(), dims_of<rank>(out[name].dims(), loose)};
}

/// Memory for an output of any dtype whose size the loop finds.
template <std::size_t rank>
Array<rank> temporary(Context& context, const std::array<std::int64_t, rank>& dims) {
  Array<rank> array{nullptr, dims};
  array.data = context.scratch<std::int64_t>(array.size()).data();
  return array;
}

/// Copies what the loop has found to an output.
template <std::size_t rank>
void copy(const Array<rank>& from, Outputs& out, std::string_view name) {
  if (!out.has(name)) return;
  const MutableTensor& to = out[name];
  if (to.size() > 0) std::memcpy(to.raw(), from.data, bytes_of(to.dtype(), to.dims()));
}

}  // namespace opgate::loop
