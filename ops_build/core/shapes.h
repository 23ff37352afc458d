// Sizes: bound from the inputs that came, checked, and computed for the outputs.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "attributes.h"
#include "signature.h"
#include "status.h"
#include "tensor.h"

namespace opgate {

/// The inputs of one call in the signature's order. An absent optional input is nullptr; a variadic input is all
/// tensors from its place on.
using InputPointers = InlineVector<const Tensor*, 8>;

/// What the inputs of one call bind: the sizes by slot, the dims of `...`, the type variables.
struct Binding {
  InlineVector<std::int64_t, 16> sizes;  ///< -1: not bound (yet)
  std::span<const std::int64_t> ellipsis;
  bool has_ellipsis = false;
  InlineVector<DType, 4> types;
};

/// Checks presence, dtypes, ranks and dims of the inputs against the signature and binds every name. A failure names
/// the input, what was expected and what came.
Status bind(const Signature& signature, const InputPointers& inputs, const Attributes& attributes, Binding& binding);

/// The value of an expression. Fails on overflow, on division by zero and on a name that is not bound.
Status evaluate(const Signature& signature, const Expr& expr, const Binding& binding, std::int64_t& value);

/// The dims of an output; `known` is false while the kernel has yet to bind one of its sizes.
Status output_dims(const Signature& signature, const Output& output, const Binding& binding, Dims& dims, bool& known);

DType dtype_of(const ElementType& type, const Binding& binding);

/// A size before the run: a number, a name that the graph gives to a size, or unknown (neither).
struct SymbolicDim {
  std::int64_t value = -1;
  std::string symbol;
};
using SymbolicShape = std::vector<SymbolicDim>;

struct SymbolicInput {
  bool present = false;
  std::optional<SymbolicShape> shape;  ///< nullopt: of unknown rank
};

/// Output shapes from input shapes that may hold names or unknowns. `integers` has the values of integer attributes
/// by place. An output whose rank can't be told is nullopt. Returns an error where the known sizes contradict the
/// signature.
Status infer_shapes(const Signature& signature, const std::vector<SymbolicInput>& inputs,
                    const std::vector<std::optional<std::int64_t>>& integers,
                    std::vector<std::optional<SymbolicShape>>& outputs);

}  // namespace opgate
