// How the elements of a call's tensors lie in memory.
#pragma once

#include <span>
#include <vector>

#include "core/signature.h"
#include "libtorch.h"

namespace opgate::libtorch {

/// The layout that all tensors of a call have. Tensors of an op that is not elementwise are contiguous. An elementwise op
/// takes any layout without gaps and overlaps, channels_last for example: the first tensor that has such a layout gives
/// it to all the others and to the outputs.
class Layout {
 public:
  Layout(const Signature& signature, const std::vector<Handle>& tensors);

  /// The strides of a tensor of these dims.
  Dims strides(std::span<const std::int64_t> dims) const;

  /// Exchanges a tensor of another layout for a copy.
  Status arrange(Handle& tensor, std::int32_t dtype, Location location) const;

 private:
  bool contiguous_ = true;
  Dims dims_, strides_;  // where it is not contiguous
};

/// The dims of a tensor, which live as long as it does.
std::span<const std::int64_t> dims_of(AtenTensorHandle tensor);

}  // namespace opgate::libtorch
