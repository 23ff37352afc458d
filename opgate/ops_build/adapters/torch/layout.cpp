#include "layout.h"

#include <algorithm>

namespace opgate::libtorch {
namespace {

std::span<const std::int64_t> strides_of(AtenTensorHandle tensor) {
  std::int64_t* strides = nullptr;
  expect(torch.aoti_torch_get_strides(tensor, &strides), "asking for a tensor's strides");
  return {strides, dims_of(tensor).size()};
}

bool is_contiguous(AtenTensorHandle tensor) {
  bool contiguous = false;
  expect(torch.aoti_torch_is_contiguous(tensor, &contiguous), "asking for a tensor's strides");
  return contiguous;
}

/// Whether the elements fill a block of memory without gaps and overlaps.
bool is_dense(std::span<const std::int64_t> dims, std::span<const std::int64_t> strides) {
  InlineVector<std::size_t, 8> axes;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] == 0) return false;  // an empty tensor has no order
    if (dims[i] > 1) axes.push_back(i);
  }
  std::ranges::sort(axes, {}, [&](std::size_t axis) { return strides[axis]; });
  std::int64_t expected = 1;
  for (const std::size_t axis : axes) {
    if (strides[axis] != expected) return false;
    expected *= dims[axis];
  }
  return true;
}

/// Whether two tensors of equal dims store their elements in the same order. The stride of a dim of size 1 is not used.
bool same_order(std::span<const std::int64_t> dims, std::span<const std::int64_t> a, std::span<const std::int64_t> b) {
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] > 1 && a[i] != b[i]) return false;
  }
  return true;
}

}  // namespace

std::span<const std::int64_t> dims_of(AtenTensorHandle tensor) {
  std::int64_t rank = 0;
  std::int64_t* dims = nullptr;
  expect(torch.aoti_torch_get_dim(tensor, &rank), "asking for a tensor's rank");
  expect(torch.aoti_torch_get_sizes(tensor, &dims), "asking for a tensor's sizes");
  return {dims, static_cast<std::size_t>(rank)};
}

Layout::Layout(const Signature& signature, const std::vector<Handle>& tensors) {
  if (!is_elementwise(signature)) return;
  for (const Handle& tensor : tensors) {
    if (!tensor) continue;
    if (is_contiguous(tensor.get())) return;
    const auto dims = dims_of(tensor.get()), strides = strides_of(tensor.get());
    if (!is_dense(dims, strides)) continue;
    contiguous_ = false;
    dims_ = Dims(dims);
    strides_ = Dims(strides);
    return;
  }
}

Dims Layout::strides(std::span<const std::int64_t> dims) const {
  return contiguous_ || !std::ranges::equal(dims, dims_) ? contiguous_strides(dims) : strides_;
}

Status Layout::arrange(Handle& tensor, std::int32_t dtype, Location location) const {
  const auto dims = dims_of(tensor.get());
  const bool arranged =
      contiguous_ ? is_contiguous(tensor.get()) : same_order(dims, strides_of(tensor.get()), strides(dims));
  if (arranged) return {};
  Handle copy;
  OPGATE_RETURN_IF_ERROR(make_tensor(location, dtype, dims, strides(dims), copy));
  OPGATE_RETURN_IF_ERROR(from_torch(torch.aoti_torch_copy_(copy.get(), tensor.get(), 0), "rearranging a tensor"));
  tensor = std::move(copy);
  return {};
}

}  // namespace opgate::libtorch
