// The arguments of a call, from torch's stack.
#pragma once

#include <optional>
#include <vector>

#include "libtorch.h"
#include "signature/signature.h"

namespace opgate::libtorch {

/// The tensors in the signature's order, those of a variadic input at the end, and the attributes. Torch hands over
/// what is on the stack, so all arguments must be taken from it, even if one is bad.
struct Arguments {
  std::vector<Handle> tensors;  ///< null for an absent optional input
  std::vector<std::optional<AttributeValue>> attributes;

  Arguments(const Signature& signature, const StableIValue* stack);
};

/// The handle of a tensor on torch's stack.
StableIValue boxed(AtenTensorHandle tensor);

}  // namespace opgate::libtorch
