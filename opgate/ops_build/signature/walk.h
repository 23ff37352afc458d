// The meaning of a signature: which inputs give names their values, which conditions inputs must meet, how large the
// outputs are.
//
// A walk checks a call, whose sizes are numbers. It also infers shapes before the run, when sizes are numbers, names,
// unknown, or expressions of the engine. An algebra says what a size is and how to compute with sizes:
//
//   struct Algebra {
//     using Size = ...;                                              // trivially copyable
//     Size constant(std::int64_t number);
//     std::optional<std::int64_t> number(Size size);                 // nullopt if it is not known (yet)
//     std::optional<Size> equal(Size a, Size b);                     // the one of two equal sizes that says more;
//                                                                    // nullopt if they can't be equal
//     Status apply(Expr::Kind operation, Size a, Size b, Size& result);  // for two numbers as apply() of sizes.h
//     std::string text(Size size);                                   // "3", "rows", "?"
//   };
//
// ops_build/signature_walk.py does the same in Python. Both are tested with the cases in
// tests/ops_build/walk_cases.txt.
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <string>

#include "inline_vector.h"
#include "signature.h"
#include "signature_text.h"
#include "status.h"

namespace opgate {

/// What is known about one input. In a call everything is known.
template <typename Size>
struct KnownInput {
  bool present = false;
  std::optional<DType> dtype;                 ///< nullopt if it is not known
  std::optional<std::span<const Size>> dims;  ///< nullopt if the rank is not known
  std::optional<Size> value;                  ///< the value of an integer scalar in host memory
};

/// The values that the inputs give to names.
template <typename Size>
struct Binding {
  InlineVector<std::optional<Size>, 12> sizes;  ///< by slot; nullopt if the size has no value
  InlineVector<Size, 8> ellipsis;               ///< the dims of `...`
  bool has_ellipsis = false;
  InlineVector<std::optional<DType>, 4> types;  ///< by type variable
};

/// Walks over a signature, which must outlive the walk.
template <typename Algebra>
class Walk {
 public:
  using Size = typename Algebra::Size;
  using Known = KnownInput<Size>;

  explicit Walk(const Signature& signature, Algebra algebra = {})
      : signature_(signature), algebra_(std::move(algebra)) {}

  const Signature& signature() const { return signature_; }
  const Binding<Size>& binding() const { return binding_; }
  Algebra& algebra() { return algebra_; }

  /// Checks presence, dtypes, ranks and dims of the inputs, as far as they are known, and gives every name its value.
  ///
  /// `inputs` are in the signature's order, the tensors of a variadic input at the end. `integer_of(i)` is the value of
  /// integer attribute i, or nullopt if it is not known. A failure names the input, what was expected and what came.
  template <typename IntegerOf>
  Status bind(std::span<const Known> inputs, IntegerOf&& integer_of);

  /// Sets `value` to the value of an expression. nullopt if it is not known, or if it has a size that the kernel has
  /// not set yet.
  Status evaluate(const Expr& expr, std::optional<Size>& value);

  /// Sets `bound` to the upper bound of a size that the kernel sets. nullopt if it is not known.
  Status bound_of(int slot, std::optional<Size>& bound);

  /// Sets a size that only the kernel knows. nullopt removes its value.
  void set_kernel_size(int slot, std::optional<Size> size) { binding_.sizes[slot] = size; }

  /// Sets `dims` to the dims of an output whose rank is known. A size that is not known, or that the kernel has not set
  /// yet, is Size() there. `complete` says whether there is none. Fails if a dim is negative, or if no memory can hold
  /// the output.
  Status output_dims(const Output& output, InlineVector<Size, 8>& dims, bool& complete);

  /// Whether the rank of an output is known.
  bool knows_rank(const Output& output) const {
    return binding_.has_ellipsis || std::ranges::none_of(output.dims, [](const OutputDim& dim) {
             return dim.kind == OutputDim::Kind::ellipsis;
           });
  }

  std::optional<DType> dtype_of(const ElementType& type) const {
    return type.variable < 0 ? type.dtype : binding_.types[type.variable];
  }

 private:
  const Input& input_at(std::size_t i) const {
    return signature_.inputs[std::min(i, signature_.inputs.size() - 1)];  // the last ones belong to the variadic input
  }

  Status check_presence(std::span<const Known> inputs) const;
  Status bind_type(const Input& input, const Known& known);
  template <typename IntegerOf>
  Status bind_integers(std::span<const Known> inputs, IntegerOf&& integer_of);
  Status bind_dims(const Input& input, const Known& known);
  Status bind_ellipsis(const Input& input, const Known& known, std::span<const Size> dims);
  Status bind_defaults(std::span<const Known> inputs);
  Status check_expressions(const Input& input, const Known& known);
  /// The value of a size that is known and negative, which no size may be; otherwise nullopt.
  std::optional<std::int64_t> negative(const std::optional<Size>& size) {
    const std::optional<std::int64_t> number = size ? algebra_.number(*size) : std::nullopt;
    return number && *number < 0 ? number : std::nullopt;
  }
  Status check_bytes(std::optional<DType> dtype, std::span<const Size> dims);
  /// Adds to an error the input, output or size that it concerns.
  static Status in(const char* kind, const std::string& name, Status status) {
    return status.ok() ? status : std::move(status).with_prefix(std::string(kind) + " '" + name + "': ");
  }
  Status mismatch(const Input& input, const Known& known, const std::string& why = "");
  std::string text_of_dims(std::span<const Size> dims);

  const Signature& signature_;
  Algebra algebra_;
  Binding<Size> binding_;
  InlineVector<bool, 12> has_source_;  ///< by slot: a present input or a default gives the size its value
};

/// The index of `...` or `*` among the dims of an input; the number of dims if it has neither.
inline std::size_t many_index(const Input& input) {
  return static_cast<std::size_t>(std::ranges::find_if(input.dims, &InputDim::is_many) - input.dims.begin());
}

/// The axis that dim `index` describes in a tensor of rank `rank`. Dims before `...` or `*`, which is dim `many`, count
/// from the front, dims after it from the back.
inline std::size_t axis_of(const Input& input, std::size_t index, std::size_t many, std::size_t rank) {
  return index < many ? index : rank - (input.dims.size() - index);
}

template <typename Algebra>
template <typename IntegerOf>
Status Walk<Algebra>::bind(std::span<const Known> inputs, IntegerOf&& integer_of) {
  OPGATE_RETURN_IF_ERROR(check_presence(inputs));
  binding_.sizes.clear();
  binding_.sizes.resize(signature_.slots.size());
  has_source_.clear();
  has_source_.resize(signature_.slots.size());
  binding_.types.clear();
  binding_.types.resize(signature_.type_variables.size());
  binding_.ellipsis.clear();
  binding_.has_ellipsis = false;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].present) OPGATE_RETURN_IF_ERROR(bind_type(input_at(i), inputs[i]));
  }
  OPGATE_RETURN_IF_ERROR(bind_integers(inputs, integer_of));
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].present) OPGATE_RETURN_IF_ERROR(bind_dims(input_at(i), inputs[i]));
  }
  OPGATE_RETURN_IF_ERROR(bind_defaults(inputs));
  if (!signature_.checks_expressions) return {};
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].present) OPGATE_RETURN_IF_ERROR(check_expressions(input_at(i), inputs[i]));
  }
  return {};
}

template <typename Algebra>
Status Walk<Algebra>::check_presence(std::span<const Known> inputs) const {
  const bool variadic = !signature_.inputs.empty() && signature_.inputs.back().variadic;
  if (inputs.size() > signature_.inputs.size() && !variadic) {
    return Status::invalid("expected at most " + std::to_string(signature_.inputs.size()) + " inputs, got " +
                           std::to_string(inputs.size()));
  }
  for (std::size_t i = 0; i < signature_.inputs.size(); ++i) {
    const bool present = i < inputs.size() && inputs[i].present;
    if (!present && !signature_.inputs[i].optional) {
      return Status::invalid("input '" + signature_.inputs[i].name + "' is required and absent");
    }
  }
  return {};
}

template <typename Algebra>
Status Walk<Algebra>::bind_type(const Input& input, const Known& known) {
  if (!known.dtype) return {};
  if (input.type.variable < 0) return *known.dtype == input.type.dtype ? Status() : mismatch(input, known);
  const TypeVariable& variable = signature_.type_variables[input.type.variable];
  std::optional<DType>& type = binding_.types[input.type.variable];
  if (type) {
    if (*known.dtype == *type) return {};
    return mismatch(input, known, " with " + variable.name + " = " + std::string(name_of(*type)));
  }
  if (!std::ranges::count(variable.dtypes, *known.dtype)) {
    std::string allowed;
    for (const DType dtype : variable.dtypes) allowed += (allowed.empty() ? "" : ", ") + std::string(name_of(dtype));
    return mismatch(input, known, " with " + variable.name + " one of " + allowed);
  }
  type = known.dtype;
  return {};
}

/// Sets the sizes whose values are integer attributes or integer scalars in host memory.
template <typename Algebra>
template <typename IntegerOf>
Status Walk<Algebra>::bind_integers(std::span<const Known> inputs, IntegerOf&& integer_of) {
  for (std::size_t s = 0; s < signature_.slots.size(); ++s) {
    const Slot& slot = signature_.slots[s];
    std::optional<Size>& size = binding_.sizes[s];
    if (slot.kind == Slot::Kind::attribute) {
      if (const std::optional<std::int64_t> integer = integer_of(slot.index)) size = algebra_.constant(*integer);
    } else if (slot.kind == Slot::Kind::scalar_input) {
      size = inputs[slot.index].value;
    } else {
      continue;
    }
    if (const auto wrong = negative(size)) return Status::invalid(negative_size(slot.name, *wrong));
  }
  return {};
}

template <typename Algebra>
Status Walk<Algebra>::bind_dims(const Input& input, const Known& known) {
  for (const InputDim& dim : input.dims) {
    if (dim.kind == InputDim::Kind::name) has_source_[dim.slot] = true;
  }
  if (!known.dims) return {};
  const std::span<const Size> dims = *known.dims;
  const std::size_t many = many_index(input);
  const bool any_rank = many < input.dims.size();
  if (any_rank ? dims.size() + 1 < input.dims.size() : dims.size() != input.dims.size()) return mismatch(input, known);
  for (std::size_t i = 0; i < input.dims.size(); ++i) {
    const InputDim& dim = input.dims[i];
    if (dim.kind == InputDim::Kind::ellipsis) {
      OPGATE_RETURN_IF_ERROR(bind_ellipsis(input, known, dims.subspan(i, dims.size() + 1 - input.dims.size())));
    } else if (dim.kind == InputDim::Kind::name) {
      std::optional<Size>& bound = binding_.sizes[dim.slot];
      const Size size = dims[axis_of(input, i, many, dims.size())];
      const std::optional<Size> merged = bound ? algebra_.equal(*bound, size) : size;
      if (!merged)
        return mismatch(input, known, " with " + signature_.slots[dim.slot].name + " = " + algebra_.text(*bound));
      bound = merged;
    }
  }
  return in("input", input.name, check_bytes(known.dtype, dims));
}

template <typename Algebra>
Status Walk<Algebra>::bind_ellipsis(const Input& input, const Known& known, std::span<const Size> dims) {
  if (!binding_.has_ellipsis) {
    binding_.ellipsis = InlineVector<Size, 8>(dims);
    binding_.has_ellipsis = true;
    return {};
  }
  bool same = dims.size() == binding_.ellipsis.size();
  for (std::size_t i = 0; same && i < dims.size(); ++i) {
    const std::optional<Size> merged = algebra_.equal(binding_.ellipsis[i], dims[i]);
    same = merged.has_value();
    if (same) binding_.ellipsis[i] = *merged;
  }
  return same ? Status() : mismatch(input, known, " with ... = " + text_of_dims(binding_.ellipsis));
}

template <typename Algebra>
Status Walk<Algebra>::bind_defaults(std::span<const Known> inputs) {
  for (std::size_t i = 0; i < signature_.inputs.size(); ++i) {
    if (i < inputs.size() && inputs[i].present) continue;
    for (const InputDim& dim : signature_.inputs[i].dims) {
      if (!dim.default_value || has_source_[dim.slot]) continue;
      std::optional<Size>& size = binding_.sizes[dim.slot];
      OPGATE_RETURN_IF_ERROR(in("size", signature_.slots[dim.slot].name, evaluate(*dim.default_value, size)));
      has_source_[dim.slot] = true;
      if (const auto wrong = negative(size)) {
        return Status::invalid("size '" + signature_.slots[dim.slot].name + "' is " + std::to_string(*wrong) +
                               " for these inputs");
      }
    }
  }
  return {};
}

template <typename Algebra>
Status Walk<Algebra>::check_expressions(const Input& input, const Known& known) {
  const std::size_t many = many_index(input);
  for (std::size_t i = 0; i < input.dims.size(); ++i) {
    const InputDim& dim = input.dims[i];
    if (dim.kind != InputDim::Kind::expr) continue;
    std::optional<Size> expected;
    OPGATE_RETURN_IF_ERROR(in("input", input.name, evaluate(dim.expr, expected)));
    if (!expected || !known.dims) continue;
    if (algebra_.equal(*expected, (*known.dims)[axis_of(input, i, many, known.dims->size())])) continue;
    const bool obvious = dim.expr.kind == Expr::Kind::literal;
    return mismatch(input, known,
                    obvious ? "" : " with " + text_of(signature_, dim.expr) + " = " + algebra_.text(*expected));
  }
  return {};
}

template <typename Algebra>
Status Walk<Algebra>::evaluate(const Expr& expr, std::optional<Size>& value) {
  if (expr.kind == Expr::Kind::literal) {
    value = algebra_.constant(expr.value);
    return {};
  }
  if (expr.kind == Expr::Kind::name) {
    const Slot& slot = signature_.slots[expr.slot];
    value = binding_.sizes[expr.slot];
    const bool lost = slot.kind == Slot::Kind::dim && !has_source_[expr.slot];
    return lost ? Status::invalid("size '" + slot.name + "' is not known without the input that has it") : Status();
  }
  std::optional<Size> a, b;
  OPGATE_RETURN_IF_ERROR(evaluate(expr.operands[0], a));
  OPGATE_RETURN_IF_ERROR(evaluate(expr.operands[1], b));
  const bool divides = expr.kind == Expr::Kind::div || expr.kind == Expr::Kind::mod || expr.kind == Expr::Kind::ceildiv;
  if (divides && b && algebra_.number(*b) == 0) return Status::invalid("a size is divided by zero");
  value.reset();
  if (!a || !b) return {};
  Size result{};
  OPGATE_RETURN_IF_ERROR(algebra_.apply(expr.kind, *a, *b, result));
  value = result;
  return {};
}

template <typename Algebra>
Status Walk<Algebra>::bound_of(int slot, std::optional<Size>& bound) {
  for (const Output& output : signature_.outputs) {
    for (const OutputDim& dim : output.dims) {
      if (dim.kind != OutputDim::Kind::bounded || dim.slot != slot) continue;
      OPGATE_RETURN_IF_ERROR(in("size", signature_.slots[slot].name, evaluate(dim.expr, bound)));
      if (const auto wrong = negative(bound)) {
        return Status::invalid("size '" + signature_.slots[slot].name + "': its bound " +
                               text_of(signature_, dim.expr) + " is " + std::to_string(*wrong) + " for these inputs");
      }
      return {};
    }
  }
  return Status::internal("size '" + signature_.slots[slot].name + "' has no bound");
}

template <typename Algebra>
Status Walk<Algebra>::output_dims(const Output& output, InlineVector<Size, 8>& dims, bool& complete) {
  dims.clear();
  complete = true;
  for (const OutputDim& dim : output.dims) {
    if (dim.kind == OutputDim::Kind::ellipsis) {
      for (const Size size : binding_.ellipsis) dims.push_back(size);
      continue;
    }
    std::optional<Size> size;
    if (dim.kind == OutputDim::Kind::bounded)
      size = binding_.sizes[dim.slot];
    else
      OPGATE_RETURN_IF_ERROR(in("output", output.name, evaluate(dim.expr, size)));
    if (const auto wrong = negative(size)) {
      return Status::invalid("output '" + output.name + "': dim " + text_of(signature_, dim.expr) + " is " +
                             std::to_string(*wrong) + " for these inputs");
    }
    complete = complete && size.has_value();
    dims.push_back(size.value_or(Size{}));
  }
  return complete ? in("output", output.name, check_bytes(dtype_of(output.type), dims)) : Status();
}

/// Fails if no memory can hold a tensor. A dim of 0 counts as 1: so kernels may multiply some of the dims of a tensor
/// without elements. Sizes that aren't numbers are not checked.
template <typename Algebra>
Status Walk<Algebra>::check_bytes(std::optional<DType> dtype, std::span<const Size> dims) {
  std::int64_t bytes = dtype ? static_cast<std::int64_t>(size_of(*dtype)) : 1;
  if (bytes == 0) bytes = 1;  // the size of a string isn't known
  bool overflow = false, empty = false;
  for (const Size size : dims) {
    const std::optional<std::int64_t> number = algebra_.number(size);
    if (!number) return {};
    empty = empty || *number == 0;
    overflow = overflow || __builtin_mul_overflow(bytes, *number == 0 ? 1 : *number, &bytes);
  }
  if (!overflow) return {};
  return Status::invalid("expected fewer than 2^63 bytes" + std::string(empty ? ", with dims of 0 taken as 1" : "") +
                         ", got " + (dtype ? std::string(name_of(*dtype)) : "a tensor of shape ") + text_of_dims(dims));
}

/// "input 'b': expected T[m] with T = f32, got i32[4]"
template <typename Algebra>
Status Walk<Algebra>::mismatch(const Input& input, const Known& known, const std::string& why) {
  const std::string type = known.dtype ? std::string(name_of(*known.dtype)) : "a tensor of shape ";
  return Status::invalid("input '" + input.name + "': expected " + text_of(signature_, input) + why + ", got " + type +
                         (known.dims ? text_of_dims(*known.dims) : ""));
}

template <typename Algebra>
std::string Walk<Algebra>::text_of_dims(std::span<const Size> dims) {
  std::string text = "[";
  for (std::size_t i = 0; i < dims.size(); ++i) text += (i ? ", " : "") + algebra_.text(dims[i]);
  return text + "]";
}

}  // namespace opgate
