#include "expressions.h"

namespace opgate::tensorrt {
namespace {

using nvinfer1::DimsExprs;
using Size = Expressions::Size;

Status known_inputs(const InputLayout& layout, std::span<const DimsExprs> inputs, std::span<const DimsExprs> scalars,
                    InSignatureOrder<KnownInput<Size>>& known) {
  std::vector<int> indices;
  OPGATE_RETURN_IF_ERROR(layout.device(static_cast<int>(inputs.size()), indices));
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const std::span<const Size> dims(inputs[i].d, static_cast<std::size_t>(inputs[i].nbDims));
    known.add(indices[i], {true, std::nullopt, dims, std::nullopt});
  }
  for (std::size_t i = 0; i < layout.host().size(); ++i) {
    const int index = layout.host()[i];
    if (i >= scalars.size() || scalars[i].nbDims < 1) return layout.missing_host_input(index);
    known.add(index, {true, std::nullopt, std::nullopt, scalars[i].d[0]});
  }
  return {};
}

/// Declares a size tensor for each size that only the kernel knows. The first one is output `next`.
Status declare_sizes(ExpressionWalk& walk, std::span<DimsExprs> outputs, std::size_t next) {
  const std::vector<Slot>& slots = walk.signature().slots;
  for (std::size_t s = 0; s < slots.size(); ++s) {
    if (slots[s].kind != Slot::Kind::kernel) continue;
    std::optional<Size> bound;
    OPGATE_RETURN_IF_ERROR(walk.bound_of(static_cast<int>(s), bound));
    outputs[next].nbDims = 0;
    Size size = bound ? walk.algebra().builder->declareSizeTensor(static_cast<int>(next), **bound, **bound) : nullptr;
    if (!size) return Status::internal("TensorRT refuses the size '" + slots[s].name + "'");
    walk.set_kernel_size(static_cast<int>(s), size);
    ++next;
  }
  return {};
}

}  // namespace

Status output_shapes(const Signature& signature, const InputLayout& layout, const Attributes& attributes,
                     std::span<const DimsExprs> inputs, std::span<const DimsExprs> scalars,
                     std::span<DimsExprs> outputs, nvinfer1::IExprBuilder& builder) {
  InSignatureOrder<KnownInput<Size>> known(signature);
  OPGATE_RETURN_IF_ERROR(known_inputs(layout, inputs, scalars, known));
  ExpressionWalk walk(signature, {&builder});
  OPGATE_RETURN_IF_ERROR(walk.bind(known.all(), [&](int attribute) -> std::optional<std::int64_t> {
    return std::get<std::int64_t>(attributes.at(static_cast<std::size_t>(attribute)));
  }));
  OPGATE_RETURN_IF_ERROR(declare_sizes(walk, outputs, signature.outputs.size()));
  for (std::size_t o = 0; o < signature.outputs.size(); ++o) {
    InlineVector<Size, 8> dims;
    bool complete = false;
    OPGATE_RETURN_IF_ERROR(walk.output_dims(signature.outputs[o], dims, complete));
    if (!complete) return Status::internal("a size of output '" + signature.outputs[o].name + "' is not known");
    if (dims.size() > nvinfer1::Dims::MAX_DIMS) return Status::invalid("TensorRT's tensors have at most 8 dims");
    outputs[o].nbDims = static_cast<std::int32_t>(dims.size());
    std::ranges::copy(dims, outputs[o].d);
  }
  return {};
}

}  // namespace opgate::tensorrt
