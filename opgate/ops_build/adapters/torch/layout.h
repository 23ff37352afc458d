// The order of elements in memory.
#pragma once

#include <span>
#include <vector>

#include "libtorch.h"
#include "signature/signature.h"

namespace opgate::libtorch {

/// The layout that all tensors of a call have. An elementwise op takes every layout without gaps and overlaps,
/// channels_last for example: the first tensor with such a layout decides, and the other tensors and the outputs get
/// the same. The tensors of any other op are contiguous.
class Layout {
 public:
  Layout(const Signature& signature, const std::vector<Handle>& tensors);

  /// The strides of a tensor with these dims.
  Dims strides(std::span<const std::int64_t> dims) const;

  /// Replaces a tensor that has another layout by a copy.
  Status arrange(Handle& tensor, std::int32_t dtype, Location location) const;

 private:
  bool contiguous_ = true;
  Dims dims_, strides_;  // of a layout that is not contiguous
};

/// The dims of a tensor. They are valid as long as the tensor is.
std::span<const std::int64_t> dims_of(AtenTensorHandle tensor);

}  // namespace opgate::libtorch
