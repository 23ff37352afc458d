#include "inference.h"

#include <algorithm>

#include "op_call/invoke.h"

namespace opgate::tf {
namespace {

using api::shape_inference::DimensionHandle;
using api::shape_inference::InferenceContext;
using api::shape_inference::ShapeHandle;

/// A number, or an unknown dim of TensorFlow, or neither if TensorFlow has not seen the size yet.
struct GraphSize {
  std::optional<std::int64_t> number;
  std::optional<DimensionHandle> dim;
};

/// The algebra (signature/walk.h) of sizes while TensorFlow builds a graph.
struct GraphSizes {
  using Size = GraphSize;

  InferenceContext* context;

  static Size constant(std::int64_t number) { return {number, {}}; }
  static std::optional<std::int64_t> number(const Size& size) { return size.number; }
  static std::optional<Size> equal(const Size& a, const Size& b) {
    if (a.number && b.number && *a.number != *b.number) return std::nullopt;
    return a.number || (!b.number && a.dim) ? a : b;
  }
  static Status apply(Expr::Kind operation, const Size& a, const Size& b, Size& result) {
    result = {};
    if (!a.number || !b.number) return {};
    return opgate::apply(operation, *a.number, *b.number, result.number.emplace());
  }
  static std::string text(const Size& size) { return size.number ? std::to_string(*size.number) : "?"; }

  /// The size as a dim that TensorFlow knows.
  DimensionHandle dim_of(const Size& size) const {
    if (size.number) return context->MakeDim(*size.number);
    return size.dim ? *size.dim : context->UnknownDim();
  }
};

using GraphWalk = Walk<GraphSizes>;

/// What TensorFlow knows about the inputs of a node.
class NodeInputs {
 public:
  NodeInputs(const Signature& signature, InferenceContext& context) : signature_(signature), context_(context) {}

  /// `lengths` are the numbers of tensors of the inputs, `types` the node's types.
  Status read(const std::vector<std::size_t>& lengths, const std::vector<DType>& types) {
    int next = 0;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      const Input& input = signature_.inputs[i];
      if (lengths[i] == 0) known_.emplace_back();
      for (std::size_t k = 0; k < lengths[i]; ++k) {
        const DType dtype =
            input.type.variable < 0 ? input.type.dtype : types[static_cast<std::size_t>(input.type.variable)];
        known_.push_back(read_one(next++, input, dtype));
      }
    }
    if (next == context_.num_inputs()) return {};
    return Status::invalid("expected " + std::to_string(next) + " inputs, got " +
                           std::to_string(context_.num_inputs()));
  }

  std::span<const KnownInput<GraphSize>> known() const { return known_; }

 private:
  KnownInput<GraphSize> read_one(int index, const Input& input, DType dtype) {
    KnownInput<GraphSize> known{true, dtype, std::nullopt, std::nullopt};
    const ShapeHandle shape = context_.input(index);
    if (InferenceContext::RankKnown(shape)) {
      std::vector<GraphSize>& sizes = storage_.emplace_back();
      for (int axis = 0; axis < InferenceContext::Rank(shape); ++axis) {
        const DimensionHandle dim = context_.Dim(shape, axis);
        const bool known_size = InferenceContext::ValueKnown(dim);
        sizes.push_back({known_size ? std::optional<std::int64_t>(InferenceContext::Value(dim)) : std::nullopt, dim});
      }
      known.dims = sizes;
    }
    if (input.host) known.value = scalar(index, dtype);
    return known;
  }

  /// The value of an integer scalar that is a constant of the graph.
  std::optional<GraphSize> scalar(int index, DType dtype) {
    const api::Tensor* value = context_.input_tensor(index);
    if (!value || value->dims() != 0) return std::nullopt;
    if (dtype == DType::i32) return GraphSizes::constant(value->scalar<std::int32_t>()());
    if (dtype == DType::i64) return GraphSizes::constant(value->scalar<std::int64_t>()());
    return std::nullopt;
  }

  const Signature& signature_;
  InferenceContext& context_;
  std::vector<KnownInput<GraphSize>> known_;
  std::deque<std::vector<GraphSize>> storage_;  // what `known_` points into
};

Status read_types(const Definition& definition, const FindAttribute& find, std::vector<DType>& types) {
  for (const std::string& name : definition.names.types) {
    const api::AttrValue* value = find(name);
    const std::optional<DType> dtype = value ? from_tensorflow(value->type()) : std::nullopt;
    if (!dtype) return Status::invalid("attribute '" + name + "': expected a type of the signature");
    types.push_back(*dtype);
  }
  return {};
}

Status set_outputs(GraphWalk& walk, const std::vector<std::size_t>& lengths) {
  const Signature& signature = walk.signature();
  InferenceContext& context = *walk.algebra().context;
  for (std::size_t s = 0; s < signature.slots.size(); ++s) {
    if (signature.slots[s].kind != Slot::Kind::kernel) continue;
    std::optional<GraphSize> bound;
    OPGATE_RETURN_IF_ERROR(walk.bound_of(static_cast<int>(s), bound));
    const bool none = bound && bound->number == 0;
    // All outputs with this size get the same unknown dim.
    walk.set_kernel_size(static_cast<int>(s),
                         none ? GraphSizes::constant(0) : GraphSize{std::nullopt, context.UnknownDim()});
  }
  int next = 0;
  for (std::size_t o = 0; o < lengths.size(); ++o) {
    const Output& output = signature.outputs[o];
    ShapeHandle shape = context.UnknownShape();
    if (walk.knows_rank(output)) {
      InlineVector<GraphSize, 8> sizes;
      bool complete = false;
      OPGATE_RETURN_IF_ERROR(walk.output_dims(output, sizes, complete));
      std::vector<DimensionHandle> dims;
      for (const GraphSize& size : sizes) dims.push_back(walk.algebra().dim_of(size));
      shape = context.MakeShape(dims);
    }
    if (lengths[o]) context.set_output(next++, shape);
  }
  return {};
}

}  // namespace

Status infer_shapes(const Definition& definition, InferenceContext& context) {
  const Op& op = *definition.op;
  return named(op, [&]() -> Status {
    const FindAttribute find = [&](const std::string& name) { return context.GetAttr(name); };
    Attributes attributes;
    std::vector<DType> types;
    std::vector<std::size_t> input_lengths, output_lengths;
    OPGATE_RETURN_IF_ERROR(read_attributes(definition, find, attributes));
    OPGATE_RETURN_IF_ERROR(read_types(definition, find, types));
    OPGATE_RETURN_IF_ERROR(read_lengths(definition.names.input_lengths, find, input_lengths));
    OPGATE_RETURN_IF_ERROR(read_lengths(definition.names.output_lengths, find, output_lengths));
    NodeInputs inputs(op.signature, context);
    OPGATE_RETURN_IF_ERROR(inputs.read(input_lengths, types));
    GraphWalk walk(op.signature, GraphSizes{&context});
    OPGATE_RETURN_IF_ERROR(walk.bind(inputs.known(), [&](int attribute) -> std::optional<std::int64_t> {
      return std::get<std::int64_t>(attributes.at(static_cast<std::size_t>(attribute)));
    }));
    InlineVector<std::optional<std::int64_t>, 12> sizes;
    for (const std::optional<GraphSize>& size : walk.binding().sizes)
      sizes.push_back(size ? size->number : std::nullopt);
    OPGATE_RETURN_IF_ERROR(check_node(op, Device::cpu, attributes, sizes));
    return set_outputs(walk, output_lengths);
  });
}

}  // namespace opgate::tf
