#include "value.h"

namespace opgate::ort {

Status InputValue::Texts::read(const OrtValue* value, std::size_t count) {
  std::size_t total = 0;
  OPGATE_RETURN_IF_ERROR(from_ort(api->GetStringTensorDataLength(value, &total)));
  characters = std::make_unique<char[]>(total + 1);
  std::vector<std::size_t> starts(count + 1, total);
  OPGATE_RETURN_IF_ERROR(from_ort(api->GetStringTensorContent(value, characters.get(), total, starts.data(), count)));
  for (std::size_t i = 0; i < count; ++i) views.emplace_back(characters.get() + starts[i], starts[i + 1] - starts[i]);
  return {};
}

Status InputValue::read(const OrtValue* value, const Input& input, Device device) {
  OrtTensorTypeAndShapeInfo* type = nullptr;
  OPGATE_RETURN_IF_ERROR(from_ort(api->GetTensorTypeAndShape(value, &type)));
  const ShapeInfo info(type);
  ONNXTensorElementDataType element = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  std::size_t rank = 0;
  OPGATE_RETURN_IF_ERROR(from_ort(api->GetTensorElementType(info.get(), &element)));
  OPGATE_RETURN_IF_ERROR(from_ort(api->GetDimensionsCount(info.get(), &rank)));
  dims_.resize(rank);
  OPGATE_RETURN_IF_ERROR(from_ort(api->GetDimensions(info.get(), dims_.data(), rank)));
  const auto dtype = from_ort(element);
  if (!dtype) {
    return Status::invalid("input '" + input.name + "' is of ONNX element type " + std::to_string(element) +
                           ", which no signature can state");
  }
  void* data = nullptr;
  if (*dtype == DType::str) {
    std::size_t count = 0;
    OPGATE_RETURN_IF_ERROR(from_ort(api->GetTensorShapeElementCount(info.get(), &count)));
    texts_ = std::make_unique<Texts>();
    OPGATE_RETURN_IF_ERROR(texts_->read(value, count));
    data = texts_->views.data();
  } else {
    // The API has no function for read-only data. Nobody writes through this pointer.
    OPGATE_RETURN_IF_ERROR(from_ort(api->GetTensorMutableData(const_cast<OrtValue*>(value), &data)));
  }
  tensor_ = Tensor(data, *dtype, dims_, input.host ? Device::cpu : device, input.name);
  return {};
}

}  // namespace opgate::ort
