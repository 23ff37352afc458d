#include "shapes.h"

#include <algorithm>
#include <atomic>
#include <limits>

namespace opgate {
namespace {

Status arithmetic(Expr::Kind kind, std::int64_t a, std::int64_t b, std::int64_t& value) {
  bool overflow = false;
  switch (kind) {
    case Expr::Kind::add: overflow = __builtin_add_overflow(a, b, &value); break;
    case Expr::Kind::sub: overflow = __builtin_sub_overflow(a, b, &value); break;
    case Expr::Kind::mul: overflow = __builtin_mul_overflow(a, b, &value); break;
    case Expr::Kind::min: value = std::min(a, b); break;
    case Expr::Kind::max: value = std::max(a, b); break;
    default: {
      if (b == 0) return Status::invalid("a size is divided by zero");
      if (a == std::numeric_limits<std::int64_t>::min() && b == -1) return Status::invalid("a size overflows 64 bits");
      const std::int64_t quotient = a / b, remainder = a % b;
      const bool apart = remainder != 0 && (remainder < 0) != (b < 0);
      if (kind == Expr::Kind::div)
        value = quotient - apart;
      else if (kind == Expr::Kind::mod)
        value = remainder + (apart ? b : 0);
      else
        value = quotient + (remainder != 0 && !apart);  // ceildiv
    }
  }
  return overflow ? Status::invalid("a size overflows 64 bits") : Status();
}

std::string expr_text(const Signature& signature, const Expr& expr) {
  const auto operand = [&](int i) { return expr_text(signature, expr.operands[i]); };
  switch (expr.kind) {
    case Expr::Kind::literal: return std::to_string(expr.value);
    case Expr::Kind::name: return signature.slots[expr.slot].name;
    case Expr::Kind::add: return "(" + operand(0) + " + " + operand(1) + ")";
    case Expr::Kind::sub: return "(" + operand(0) + " - " + operand(1) + ")";
    case Expr::Kind::mul: return operand(0) + "*" + operand(1);
    case Expr::Kind::div: return operand(0) + "/" + operand(1);
    case Expr::Kind::mod: return operand(0) + "%" + operand(1);
    case Expr::Kind::min: return "min(" + operand(0) + ", " + operand(1) + ")";
    case Expr::Kind::max: return "max(" + operand(0) + ", " + operand(1) + ")";
    case Expr::Kind::ceildiv: return "ceildiv(" + operand(0) + ", " + operand(1) + ")";
  }
  return "";
}

/// "f32[n, 3]"
std::string input_text(const Signature& signature, const Input& input) {
  std::string text = input.type.variable >= 0 ? signature.type_variables[input.type.variable].name
                                              : std::string(name_of(input.type.dtype));
  text += "[";
  for (std::size_t i = 0; i < input.dims.size(); ++i) {
    const InputDim& dim = input.dims[i];
    text += i ? ", " : "";
    if (dim.kind == InputDim::Kind::ellipsis)
      text += "...";
    else if (dim.kind == InputDim::Kind::name)
      text += signature.slots[dim.slot].name;
    else
      text += expr_text(signature, dim.expr);
  }
  return text + "]";
}

std::string actual_text(const Tensor& tensor) {
  return std::string(name_of(tensor.dtype())) + dims_text(tensor.dims());
}

Status mismatch(const Signature& signature, const Input& input, const Tensor& tensor, const std::string& why) {
  return Status::invalid("input '" + input.name + "': expected " + input_text(signature, input) + why + ", got " +
                         actual_text(tensor));
}

Status bind_type(const Signature& signature, const Input& input, const Tensor& tensor, Binding& binding,
                 InlineVector<bool, 4>& bound) {
  if (input.type.variable < 0) {
    return tensor.dtype() == input.type.dtype ? Status() : mismatch(signature, input, tensor, "");
  }
  const TypeVariable& variable = signature.type_variables[input.type.variable];
  DType& type = binding.types[input.type.variable];
  if (bound[input.type.variable]) {
    if (tensor.dtype() == type) return {};
    return mismatch(signature, input, tensor, " with " + variable.name + " = " + std::string(name_of(type)));
  }
  if (!std::ranges::count(variable.dtypes, tensor.dtype())) {
    std::string allowed;
    for (DType dtype : variable.dtypes) allowed += (allowed.empty() ? "" : ", ") + std::string(name_of(dtype));
    return mismatch(signature, input, tensor, " with " + variable.name + " one of " + allowed);
  }
  type = tensor.dtype();
  bound[input.type.variable] = true;
  return {};
}

/// Where each of an input's dims lies in a tensor's: those before `...` from the front, those after from the back.
std::size_t place_of(std::size_t dim, std::size_t ellipsis, std::size_t dims, std::size_t rank) {
  return dim < ellipsis ? dim : rank - (dims - dim);
}

std::size_t ellipsis_place(const Input& input) {
  for (std::size_t i = 0; i < input.dims.size(); ++i) {
    if (input.dims[i].kind == InputDim::Kind::ellipsis) return i;
  }
  return input.dims.size();
}

Status bind_dims(const Signature& signature, const Input& input, const Tensor& tensor, Binding& binding) {
  const std::size_t dims = input.dims.size(), rank = tensor.dims().size(), ellipsis = ellipsis_place(input);
  if (ellipsis == dims ? rank != dims : rank + 1 < dims) return mismatch(signature, input, tensor, "");
  for (std::size_t i = 0; i < dims; ++i) {
    const InputDim& dim = input.dims[i];
    if (dim.kind == InputDim::Kind::ellipsis) {
      const auto middle = tensor.dims().subspan(i, rank + 1 - dims);
      if (!binding.has_ellipsis) {
        binding.ellipsis = middle;
        binding.has_ellipsis = true;
      } else if (!std::ranges::equal(binding.ellipsis, middle)) {
        return mismatch(signature, input, tensor, " with ... = " + dims_text(binding.ellipsis));
      }
    } else if (dim.kind == InputDim::Kind::name) {
      std::int64_t& bound = binding.sizes[dim.slot];
      const std::int64_t size = tensor.dim(place_of(i, ellipsis, dims, rank));
      if (bound < 0)
        bound = size;
      else if (bound != size) {
        return mismatch(signature, input, tensor,
                        " with " + signature.slots[dim.slot].name + " = " + std::to_string(bound));
      }
    }
  }
  return {};
}

Status check_expressions(const Signature& signature, const Input& input, const Tensor& tensor, const Binding& binding) {
  const std::size_t dims = input.dims.size(), ellipsis = ellipsis_place(input);
  for (std::size_t i = 0; i < dims; ++i) {
    const InputDim& dim = input.dims[i];
    if (dim.kind != InputDim::Kind::expr) continue;
    std::int64_t wanted = 0;
    OPGATE_RETURN_IF_ERROR(evaluate(signature, dim.expr, binding, wanted));
    if (tensor.dim(place_of(i, ellipsis, dims, tensor.dims().size())) == wanted) continue;
    const bool obvious = dim.expr.kind == Expr::Kind::literal;
    return mismatch(signature, input, tensor,
                    obvious ? "" : " with " + expr_text(signature, dim.expr) + " = " + std::to_string(wanted));
  }
  return {};
}

/// Integer attributes and integer scalars that are used as sizes.
Status bind_scalars(const Signature& signature, const InputPointers& inputs, const Attributes& attributes,
                    Binding& binding) {
  for (std::size_t s = 0; s < signature.slots.size(); ++s) {
    const Slot& slot = signature.slots[s];
    if (slot.kind == Slot::Kind::attribute) {
      binding.sizes[s] = std::get<std::int64_t>(attributes.at(slot.index));
    } else if (slot.kind == Slot::Kind::scalar_input) {
      const Tensor* tensor = static_cast<std::size_t>(slot.index) < inputs.size() ? inputs[slot.index] : nullptr;
      if (!tensor || tensor->rank() != 0) continue;  // reported where inputs are bound
      binding.sizes[s] = tensor->dtype() == DType::i32 ? *tensor->data<std::int32_t>() : *tensor->data<std::int64_t>();
    } else {
      continue;
    }
    if (binding.sizes[s] < 0) {
      return Status::invalid("'" + slot.name + "' is a size: expected a number from 0, got " +
                             std::to_string(binding.sizes[s]));
    }
  }
  return {};
}

Status bind_defaults(const Signature& signature, const InputPointers& inputs, Binding& binding) {
  for (std::size_t i = 0; i < signature.inputs.size(); ++i) {
    const Input& input = signature.inputs[i];
    if (!input.optional || (i < inputs.size() && inputs[i])) continue;
    for (const InputDim& dim : input.dims) {
      if (dim.kind != InputDim::Kind::name || dim.default_value.empty() || binding.sizes[dim.slot] >= 0) continue;
      std::int64_t& size = binding.sizes[dim.slot];
      OPGATE_RETURN_IF_ERROR(evaluate(signature, dim.default_value[0], binding, size));
      if (size < 0) {
        return Status::invalid("size '" + signature.slots[dim.slot].name + "' is " + std::to_string(size) +
                               " for these inputs");
      }
    }
  }
  return {};
}

Status check_count(const Signature& signature, const InputPointers& inputs) {
  const bool variadic = !signature.inputs.empty() && signature.inputs.back().variadic;
  if (inputs.size() > signature.inputs.size() && !variadic) {
    return Status::invalid("expected at most " + std::to_string(signature.inputs.size()) + " inputs, got " +
                           std::to_string(inputs.size()));
  }
  for (std::size_t i = 0; i < signature.inputs.size(); ++i) {
    const bool present = i < inputs.size() && inputs[i];
    if (!present && !signature.inputs[i].optional) {
      return Status::invalid("input '" + signature.inputs[i].name + "' is required and absent");
    }
  }
  return {};
}

}  // namespace

Status bind(const Signature& signature, const InputPointers& inputs, const Attributes& attributes, Binding& binding) {
  OPGATE_RETURN_IF_ERROR(check_count(signature, inputs));
  binding.sizes.resize(signature.slots.size());
  std::ranges::fill(binding.sizes, -1);
  binding.types.resize(signature.type_variables.size());
  binding.has_ellipsis = false;
  InlineVector<bool, 4> types_bound(signature.type_variables.size());
  const auto input_of = [&](std::size_t i) -> const Input& {
    return signature.inputs[std::min(i, signature.inputs.size() - 1)];  // the rest are the variadic input's
  };
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i]) continue;
    OPGATE_RETURN_IF_ERROR(bind_type(signature, input_of(i), *inputs[i], binding, types_bound));
  }
  OPGATE_RETURN_IF_ERROR(bind_scalars(signature, inputs, attributes, binding));
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i]) OPGATE_RETURN_IF_ERROR(bind_dims(signature, input_of(i), *inputs[i], binding));
  }
  OPGATE_RETURN_IF_ERROR(bind_defaults(signature, inputs, binding));
  if (!signature.checks_expressions) return {};
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i]) OPGATE_RETURN_IF_ERROR(check_expressions(signature, input_of(i), *inputs[i], binding));
  }
  return {};
}

Status evaluate(const Signature& signature, const Expr& expr, const Binding& binding, std::int64_t& value) {
  if (expr.kind == Expr::Kind::literal) {
    value = expr.value;
    return {};
  }
  if (expr.kind == Expr::Kind::name) {
    value = binding.sizes[expr.slot];
    return value >= 0 ? Status() : Status::invalid("size '" + signature.slots[expr.slot].name + "' is not known");
  }
  std::int64_t a = 0, b = 0;
  OPGATE_RETURN_IF_ERROR(evaluate(signature, expr.operands[0], binding, a));
  OPGATE_RETURN_IF_ERROR(evaluate(signature, expr.operands[1], binding, b));
  return arithmetic(expr.kind, a, b, value);
}

namespace {

bool awaits_kernel(const Signature& signature, const Expr& expr, const Binding& binding) {
  if (expr.kind == Expr::Kind::name) {
    return signature.slots[expr.slot].kind == Slot::Kind::kernel && binding.sizes[expr.slot] < 0;
  }
  return std::ranges::any_of(expr.operands,
                             [&](const Expr& operand) { return awaits_kernel(signature, operand, binding); });
}

}  // namespace

Status output_dims(const Signature& signature, const Output& output, const Binding& binding, Dims& dims, bool& known) {
  dims.clear();
  known = true;
  for (const OutputDim& dim : output.dims) {
    std::int64_t size = 0;
    if (dim.kind == OutputDim::Kind::ellipsis) {
      for (std::int64_t middle : binding.ellipsis) dims.push_back(middle);
      continue;
    }
    if (dim.kind == OutputDim::Kind::bounded) {
      size = binding.sizes[dim.slot];
      if (size < 0) known = false;
    } else if (awaits_kernel(signature, dim.expr, binding)) {
      known = false;
    } else {
      OPGATE_RETURN_IF_ERROR(evaluate(signature, dim.expr, binding, size));
      if (size < 0) {
        return Status::invalid("output '" + output.name + "': dim " + expr_text(signature, dim.expr) + " is " +
                               std::to_string(size) + " for these inputs");
      }
    }
    dims.push_back(size);
  }
  return {};
}

DType dtype_of(const ElementType& type, const Binding& binding) {
  return type.variable < 0 ? type.dtype : binding.types[type.variable];
}

// Shape inference. A name stands for an unknown but fixed size; an expression of names is unknown.
namespace {

bool same_or_unknown(const SymbolicDim& a, const SymbolicDim& b) {
  return a.value < 0 || b.value < 0 || a.value == b.value;
}

bool empty(const SymbolicDim& dim) { return dim.value < 0 && dim.symbol.empty(); }

/// The more exact of two descriptions of one size.
void merge(SymbolicDim& into, const SymbolicDim& other) {
  if (into.value < 0 && (other.value >= 0 || empty(into))) into = other;
}

struct SymbolicBinding {
  std::vector<SymbolicDim> sizes;
  std::optional<SymbolicShape> ellipsis;
};

SymbolicDim evaluate_symbolic(const Expr& expr, const SymbolicBinding& binding) {
  if (expr.kind == Expr::Kind::literal) return {expr.value, {}};
  if (expr.kind == Expr::Kind::name) return binding.sizes[expr.slot];
  const SymbolicDim a = evaluate_symbolic(expr.operands[0], binding), b = evaluate_symbolic(expr.operands[1], binding);
  std::int64_t value = -1;
  if (a.value < 0 || b.value < 0 || !arithmetic(expr.kind, a.value, b.value, value).ok() || value < 0) return {};
  return {value, {}};
}

Status contradiction(const Signature& signature, const Input& input) {
  return Status::invalid("input '" + input.name + "': its shape does not fit " + input_text(signature, input));
}

Status bind_symbolic(const Signature& signature, const Input& input, const SymbolicShape& shape,
                     SymbolicBinding& binding) {
  const std::size_t dims = input.dims.size(), rank = shape.size(), ellipsis = ellipsis_place(input);
  if (ellipsis == dims ? rank != dims : rank + 1 < dims) return contradiction(signature, input);
  for (std::size_t i = 0; i < dims; ++i) {
    const InputDim& dim = input.dims[i];
    if (dim.kind == InputDim::Kind::ellipsis) {
      SymbolicShape middle(shape.begin() + i, shape.begin() + i + (rank + 1 - dims));
      if (!binding.ellipsis)
        binding.ellipsis = std::move(middle);
      else if (binding.ellipsis->size() != middle.size())
        return contradiction(signature, input);
      else {
        for (std::size_t d = 0; d < middle.size(); ++d) {
          if (!same_or_unknown((*binding.ellipsis)[d], middle[d])) return contradiction(signature, input);
          merge((*binding.ellipsis)[d], middle[d]);
        }
      }
    } else if (dim.kind == InputDim::Kind::name) {
      SymbolicDim& bound = binding.sizes[dim.slot];
      const SymbolicDim& size = shape[place_of(i, ellipsis, dims, rank)];
      if (!same_or_unknown(bound, size)) return contradiction(signature, input);
      merge(bound, size);
    }
  }
  return {};
}

void infer_defaults(const Signature& signature, const std::vector<SymbolicInput>& inputs, SymbolicBinding& binding) {
  for (std::size_t i = 0; i < signature.inputs.size(); ++i) {
    if (i < inputs.size() && inputs[i].present) continue;
    for (const InputDim& dim : signature.inputs[i].dims) {
      if (dim.kind == InputDim::Kind::name && !dim.default_value.empty() && empty(binding.sizes[dim.slot])) {
        binding.sizes[dim.slot] = evaluate_symbolic(dim.default_value[0], binding);
      }
    }
  }
}

/// A name for a size that nothing is known of, unlike any other, so that no two unknown sizes are taken for equal.
std::string fresh_symbol(const std::string& what) {
  static std::atomic<std::uint64_t> count{0};
  return what + "_" + std::to_string(count++);
}

std::optional<SymbolicShape> output_shape(const Signature& signature, const Output& output,
                                          const SymbolicBinding& binding) {
  SymbolicShape shape;
  for (const OutputDim& dim : output.dims) {
    if (dim.kind == OutputDim::Kind::ellipsis) {
      if (!binding.ellipsis) return std::nullopt;
      shape.insert(shape.end(), binding.ellipsis->begin(), binding.ellipsis->end());
    } else {
      shape.push_back(dim.kind == OutputDim::Kind::bounded ? binding.sizes[dim.slot]
                                                           : evaluate_symbolic(dim.expr, binding));
    }
  }
  for (SymbolicDim& dim : shape) {
    if (empty(dim)) dim.symbol = fresh_symbol(signature.name);
  }
  return shape;
}

}  // namespace

Status infer_shapes(const Signature& signature, const std::vector<SymbolicInput>& inputs,
                    const std::vector<std::optional<std::int64_t>>& integers,
                    std::vector<std::optional<SymbolicShape>>& outputs) {
  SymbolicBinding binding;
  binding.sizes.resize(signature.slots.size());
  for (std::size_t s = 0; s < signature.slots.size(); ++s) {
    const Slot& slot = signature.slots[s];
    if (slot.kind == Slot::Kind::attribute && integers[slot.index]) binding.sizes[s].value = *integers[slot.index];
    if (slot.kind == Slot::Kind::kernel) binding.sizes[s].symbol = fresh_symbol(signature.name + "_" + slot.name);
  }
  outputs.assign(signature.outputs.size(), std::nullopt);
  for (std::size_t i = 0; i < inputs.size() && !signature.inputs.empty(); ++i) {
    if (!inputs[i].shape) continue;
    const Input& input = signature.inputs[std::min(i, signature.inputs.size() - 1)];
    OPGATE_RETURN_IF_ERROR(bind_symbolic(signature, input, *inputs[i].shape, binding));
  }
  infer_defaults(signature, inputs, binding);
  for (std::size_t i = 0; i < signature.outputs.size(); ++i) {
    outputs[i] = output_shape(signature, signature.outputs[i], binding);
  }
  return {};
}

}  // namespace opgate
