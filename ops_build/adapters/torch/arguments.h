// The arguments of a call, taken off torch's stack.
#pragma once

#include <optional>
#include <vector>

#include "core/signature.h"
#include "libtorch.h"

namespace opgate::libtorch {

/// The tensors in the signature's order, those of a variadic input at the end, and the attributes. The caller of a kernel
/// hands over what lies on the stack, so every argument is taken, whatever happens.
struct Arguments {
  std::vector<Handle> tensors;  ///< null: an optional input that is absent
  std::vector<std::optional<AttributeValue>> attributes;

  Arguments(const Signature& signature, const StableIValue* stack);
};

/// A tensor as torch's stack has it.
StableIValue boxed(AtenTensorHandle tensor);

}  // namespace opgate::libtorch
