#include "inference.h"

#include "op_call/invoke.h"

namespace opgate::ort {
namespace {

/// The dims of an input. nullopt for rank 0, because the API shows an unknown rank as rank 0 too.
Status read_dims(const OrtTensorTypeAndShapeInfo* info, std::deque<std::vector<SymbolicSize>>& storage,
                 std::optional<std::span<const SymbolicSize>>& dims) {
  std::size_t rank = 0;
  OPGATE_RETURN_IF_ERROR(from_ort(api->GetDimensionsCount(info, &rank)));
  if (rank == 0) return {};
  std::vector<std::int64_t> numbers(rank);
  std::vector<const char*> names(rank, nullptr);
  OPGATE_RETURN_IF_ERROR(from_ort(api->GetDimensions(info, numbers.data(), rank)));
  OPGATE_RETURN_IF_ERROR(from_ort(api->GetSymbolicDimensions(info, names.data(), rank)));
  std::vector<SymbolicSize>& sizes = storage.emplace_back(rank);
  for (std::size_t i = 0; i < rank; ++i) {
    if (numbers[i] >= 0)
      sizes[i] = Symbols::constant(numbers[i]);
    else if (names[i])
      sizes[i].name = names[i];
  }
  dims = sizes;
  return {};
}

/// What is known about one input. An absent optional input has no element type.
Status read_known(const OrtTensorTypeAndShapeInfo* info, bool required, std::deque<std::vector<SymbolicSize>>& storage,
                  KnownInput<SymbolicSize>& known) {
  ONNXTensorElementDataType element = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  OPGATE_RETURN_IF_ERROR(from_ort(api->GetTensorElementType(info, &element)));
  known.dtype = from_ort(element);
  known.present = required || known.dtype;
  return known.dtype ? read_dims(info, storage, known.dims) : Status();
}

const Input& input_at(const Signature& signature, std::size_t index) {
  return signature.inputs[std::min(index, signature.inputs.size() - 1)];
}

/// The value of an integer attribute that sizes use.
std::optional<std::int64_t> integer_of(const Attribute& attribute, const OrtShapeInferContext* context) {
  const OrtOpAttr* node_attribute = nullptr;
  std::int64_t value = 0;
  std::size_t size = 0;
  if (from_ort(api->ShapeInferContext_GetAttribute(context, attribute.name.c_str(), &node_attribute)).ok() &&
      node_attribute && from_ort(api->ReadOpAttr(node_attribute, ORT_OP_ATTR_INT, &value, sizeof value, &size)).ok()) {
    return value;
  }
  if (attribute.required) return std::nullopt;
  return std::get<std::int64_t>(attribute.default_value);
}

Status set_output(OrtShapeInferContext* context, std::size_t index, DType dtype,
                  const InlineVector<SymbolicSize, 8>& dims) {
  OrtTensorTypeAndShapeInfo* fresh = nullptr;
  OPGATE_RETURN_IF_ERROR(from_ort(api->CreateTensorTypeAndShapeInfo(&fresh)));
  const ShapeInfo info(fresh);
  std::vector<std::int64_t> numbers;
  std::vector<std::string> names;
  std::vector<const char*> pointers;
  for (const SymbolicSize& size : dims) {
    numbers.push_back(size.number.value_or(-1));
    names.emplace_back(size.number ? std::string_view() : size.name);
  }
  for (const std::string& name : names) pointers.push_back(name.c_str());
  OPGATE_RETURN_IF_ERROR(from_ort(api->SetTensorElementType(info.get(), to_ort(dtype))));
  OPGATE_RETURN_IF_ERROR(from_ort(api->SetDimensions(info.get(), numbers.data(), numbers.size())));
  OPGATE_RETURN_IF_ERROR(from_ort(api->SetSymbolicDimensions(info.get(), pointers.data(), pointers.size())));
  return from_ort(api->ShapeInferContext_SetOutputTypeShape(context, index, info.get()));
}

}  // namespace

Status infer_outputs(const Op& op, OrtShapeInferContext* context) {
  const Signature& signature = op.signature;
  std::size_t count = 0;
  OPGATE_RETURN_IF_ERROR(from_ort(api->ShapeInferContext_GetInputCount(context, &count)));
  std::deque<std::vector<SymbolicSize>> dims;
  std::vector<KnownInput<SymbolicSize>> known(count);
  for (std::size_t i = 0; i < count; ++i) {
    const bool required = !input_at(signature, i).optional;
    known[i].present = required;
    OrtTensorTypeAndShapeInfo* info = nullptr;
    if (!from_ort(api->ShapeInferContext_GetInputTypeShape(context, i, &info)).ok() || !info) continue;
    OPGATE_RETURN_IF_ERROR(read_known(info, required, dims, known[i]));
  }
  SymbolicWalk walk(signature);
  OPGATE_RETURN_IF_ERROR(walk.bind(known, [&](int attribute) {
    return integer_of(signature.attributes[static_cast<std::size_t>(attribute)], context);
  }));
  std::deque<std::string> names;
  std::vector<SymbolicShape> shapes;
  OPGATE_RETURN_IF_ERROR(output_shapes(walk, names, shapes));
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const std::optional<DType> dtype = walk.dtype_of(signature.outputs[i].type);
    // The engine takes the type from here too, so a type that is not known must not be set.
    if (shapes[i] && dtype) OPGATE_RETURN_IF_ERROR(set_output(context, i, *dtype, *shapes[i]));
  }
  return {};
}

Status NodeInputs::read(const OrtKernelInfo* info, const Signature& signature, Device device) {
  std::size_t count = 0;
  OPGATE_RETURN_IF_ERROR(from_ort(api->KernelInfo_GetInputCount(info, &count)));
  known_.resize(count);
  constants_.resize(count, nullptr);
  for (std::size_t i = 0; i < count; ++i) {
    const Input& input = input_at(signature, i);
    known_[i].present = !input.optional;
    OrtTypeInfo* type = nullptr;
    // The API returns an error for an absent input, which has no type.
    if (!from_ort(api->KernelInfo_GetInputTypeInfo(info, i, &type)).ok() || !type) continue;
    infos_.emplace_back(type);
    const OrtTensorTypeAndShapeInfo* shape = nullptr;
    OPGATE_RETURN_IF_ERROR(from_ort(api->CastTypeInfoToTensorInfo(type, &shape)));
    if (shape) OPGATE_RETURN_IF_ERROR(read_known(shape, !input.optional, dims_, known_[i]));
    OPGATE_RETURN_IF_ERROR(read_constant(info, i, input, device));
  }
  return {};
}

Status NodeInputs::read_constant(const OrtKernelInfo* info, std::size_t index, const Input& input, Device device) {
  int is_constant = 0;
  const OrtValue* value = nullptr;
  OPGATE_RETURN_IF_ERROR(from_ort(api->KernelInfoGetConstantInput_tensor(info, index, &is_constant, &value)));
  if (!is_constant || !value) return {};
  InputValue& held = values_.emplace_back();
  OPGATE_RETURN_IF_ERROR(held.read(value, input, device));
  constants_[index] = &held.tensor();
  // The dims of a constant are known, even those of a scalar.
  std::vector<SymbolicSize>& dims = dims_.emplace_back();
  for (const std::int64_t size : held.tensor().dims()) dims.push_back(Symbols::constant(size));
  known_[index].dims = dims;
  if (input.host) {
    if (const auto scalar = integer_scalar(held.tensor())) known_[index].value = Symbols::constant(*scalar);
  }
  return {};
}

Status NodeInputs::bind(const Signature& signature, const Attributes& attributes, NodeFacts& facts) const {
  SymbolicWalk walk(signature);
  OPGATE_RETURN_IF_ERROR(walk.bind(known_, [&](int attribute) -> std::optional<std::int64_t> {
    return std::get<std::int64_t>(attributes.at(static_cast<std::size_t>(attribute)));
  }));
  std::deque<std::string> names;
  std::vector<SymbolicShape> shapes;
  OPGATE_RETURN_IF_ERROR(output_shapes(walk, names, shapes));
  for (const std::optional<SymbolicSize>& size : walk.binding().sizes)
    facts.sizes.push_back(size ? size->number : std::nullopt);
  facts.types = walk.binding().types;
  facts.present.resize(signature.inputs.size());
  facts.constants.resize(signature.inputs.size());
  for (std::size_t i = 0; i < std::min(known_.size(), signature.inputs.size()); ++i) {
    facts.present[i] = known_[i].present;
    facts.constants[i] = signature.inputs[i].variadic ? nullptr : constants_[i];
  }
  return {};
}

}  // namespace opgate::ort
