#include "names.h"

#include <algorithm>

#include "lexer.h"
#include "signature_text.h"

namespace opgate {
namespace {

class Resolver {
 public:
  explicit Resolver(Signature& signature) : signature_(signature), always_bound_(signature.slots.size(), false) {}

  void run() {
    check_type_variables();
    for (const Output& output : signature_.outputs) {
      for (const OutputDim& dim : output.dims) claim_kernel_size(dim);
    }
    for (std::size_t i = 0; i < signature_.slots.size(); ++i) resolve(static_cast<int>(i));
    for (const Input& input : signature_.inputs) {
      for (const InputDim& dim : input.dims) check(input, dim);
    }
    for (const Output& output : signature_.outputs) {
      for (const OutputDim& dim : output.dims) check(dim);
    }
  }

 private:
  void check_type_variables() const {
    for (std::size_t v = 0; v < signature_.type_variables.size(); ++v) {
      const TypeVariable& variable = signature_.type_variables[v];
      // If only optional inputs have a type variable, it is unknown when they are absent.
      const bool required = std::ranges::any_of(signature_.inputs, [&](const Input& input) {
        return input.type.variable == static_cast<int>(v) && !input.optional;
      });
      if (!required) fail(variable.column, "type variable " + quoted(variable.name) + " occurs in no required input");
    }
  }

  void claim_kernel_size(const OutputDim& dim) {
    if (dim.kind != OutputDim::Kind::bounded) return;
    Slot& slot = signature_.slots[dim.slot];
    if (slot.kind == Slot::Kind::kernel) fail(dim.column, "size " + quoted(slot.name) + " is bounded twice");
    slot.kind = Slot::Kind::kernel;
  }

  bool any_input_dim(auto&& predicate) const {
    return std::ranges::any_of(signature_.inputs,
                               [&](const Input& input) { return std::ranges::any_of(input.dims, predicate); });
  }

  void resolve(int index) {
    Slot& slot = signature_.slots[index];
    const bool input_dim =
        any_input_dim([&](const InputDim& dim) { return dim.kind == InputDim::Kind::name && dim.slot == index; });
    if (slot.kind == Slot::Kind::kernel && input_dim)
      fail(slot.column, "size " + quoted(slot.name) + " is bound by an input and by '<='");
    for (std::size_t i = 0; i < signature_.attributes.size(); ++i) {
      const Attribute& attribute = signature_.attributes[i];
      if (attribute.name != slot.name) continue;
      if (attribute.kind != Attribute::Kind::integer || attribute.list) {
        fail(slot.column, "attribute " + quoted(slot.name) + " is used as a size and is of type " +
                              type_text(attribute) + ", not int");
      }
      if (any_input_dim([&](const InputDim& dim) { return dim.slot == index && dim.default_value; })) {
        fail(slot.column, "size " + quoted(slot.name) + " is an attribute and can't have a default");
      }
      bind(index, Slot::Kind::attribute, static_cast<int>(i));
    }
    for (std::size_t i = 0; i < signature_.inputs.size(); ++i) {
      const Input& input = signature_.inputs[i];
      if (input.name != slot.name) continue;
      const bool integers =
          input.type.variable < 0 && (input.type.dtype == DType::i32 || input.type.dtype == DType::i64);
      if (input_dim) {
        if (!input.host || !integers || !input.dims.empty()) continue;
        fail(slot.column, "size " + quoted(slot.name) + " is a dim of an input and the name of an integer scalar");
      }
      if (!input.host || !integers || !input.dims.empty() || input.optional || input.variadic) {
        fail(slot.column,
             "input " + quoted(slot.name) + " is used as a size and is not a required 'const' i32[] or i64[]");
      }
      bind(index, Slot::Kind::scalar_input, static_cast<int>(i));
    }
    if (slot.kind == Slot::Kind::dim && !input_dim) {
      fail(slot.column, "size " + quoted(slot.name) + " is bound by no input, attribute or output");
    }
  }

  void bind(int index, Slot::Kind kind, int source) {
    Slot& slot = signature_.slots[index];
    if (slot.kind == Slot::Kind::kernel) fail(slot.column, "size " + quoted(slot.name) + " is bound twice");
    slot.kind = kind;
    slot.index = source;
  }

  /// Goes over the dims of the inputs in their order. A default may use the names that are bound before it, whichever
  /// optional inputs are absent.
  void check(const Input& input, const InputDim& dim) {
    if (dim.kind == InputDim::Kind::expr) check_known_before_run(dim.expr);
    if (dim.kind != InputDim::Kind::name) return;
    if (dim.default_value) {
      check_known_before_run(*dim.default_value);
      check_always_bound(*dim.default_value);
    }
    if (!input.optional || dim.default_value) always_bound_[dim.slot] = true;
  }

  void check(const OutputDim& dim) const {
    if (dim.kind == OutputDim::Kind::ellipsis) return check_ellipsis(dim.column);
    if (dim.kind == OutputDim::Kind::bounded) check_known_before_run(dim.expr);
    check_always_bound(dim.expr);
  }

  void check_ellipsis(int column) const {
    bool somewhere = false, required = false;
    for (const Input& input : signature_.inputs) {
      const bool has =
          std::ranges::any_of(input.dims, [](const InputDim& dim) { return dim.kind == InputDim::Kind::ellipsis; });
      somewhere = somewhere || has;
      required = required || (has && !input.optional);
    }
    if (!somewhere) fail(column, "'...' in an output needs a '...' in an input");
    if (!required) fail(column, "'...' is unknown when the optional input is absent: a required input must have it");
  }

  void check_known_before_run(const Expr& expr) const {
    if (expr.kind == Expr::Kind::name && signature_.slots[expr.slot].kind == Slot::Kind::kernel) {
      fail(expr.column, "size " + quoted(signature_.slots[expr.slot].name) + " is known only after the kernel has run");
    }
    for (const Expr& operand : expr.operands) check_known_before_run(operand);
  }

  /// If only optional inputs bind a name, and it has no default, it is unknown when they are absent.
  void check_always_bound(const Expr& expr) const {
    if (expr.kind == Expr::Kind::name && signature_.slots[expr.slot].kind == Slot::Kind::dim &&
        !always_bound_[expr.slot]) {
      fail(expr.column, "size " + quoted(signature_.slots[expr.slot].name) +
                            " is unknown when the optional input is absent: give its dim a default");
    }
    for (const Expr& operand : expr.operands) check_always_bound(operand);
  }

  Signature& signature_;
  std::vector<bool> always_bound_;  ///< by slot: a required input or a default binds it
};

}  // namespace

void resolve_names(Signature& signature) { Resolver(signature).run(); }

}  // namespace opgate
