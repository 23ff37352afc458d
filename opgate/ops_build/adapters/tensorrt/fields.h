// Dtypes and attributes as TensorRT has them.
#pragma once

#include <NvInferRuntime.h>

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "op_call/table.h"

namespace opgate::tensorrt {

/// The type in TensorRT. nullopt if plugins can't have it: TensorRT has no f64 and no str, and no plugin may have u8 or
/// bool.
std::optional<nvinfer1::DataType> to_trt(DType dtype);
std::optional<DType> from_trt(nvinfer1::DataType type);

nvinfer1::PluginFieldType field_type(const Attribute& attribute);

/// Reads attributes from fields. The type of a field is that of the ONNX attribute, or the one that the author of the
/// field chose, and not always the declared one.
Status read_attributes(const Signature& signature, const nvinfer1::PluginFieldCollection& fields,
                       Attributes& attributes);

/// The indices of the inputs that a node has. TensorRT's layers have no absent inputs, so a node that leaves one out
/// before another lists the others in the attribute opgate_inputs, which model.py writes. If it is empty, the node has
/// the first inputs.
using PresentInputs = std::vector<std::int64_t>;
inline constexpr const char* kPresentInputs = "opgate_inputs";

Status read_present_inputs(const Signature& signature, const nvinfer1::PluginFieldCollection& fields,
                           PresentInputs& present);

/// Attributes as fields. They own their data. TensorRT stores them in an engine and reads them back.
class Fields {
 public:
  Fields(const Signature& signature, const Attributes& attributes, const PresentInputs& present);
  Fields(const Fields&) = delete;
  Fields& operator=(const Fields&) = delete;

  const nvinfer1::PluginFieldCollection* collection() const { return &collection_; }

  /// All values as one text that contains no zero byte.
  std::string text() const;

 private:
  void add(const char* name, nvinfer1::PluginFieldType type, const AttributeValue& value);

  std::deque<std::string> data_;  // the fields point into it
  std::vector<nvinfer1::PluginField> fields_;
  nvinfer1::PluginFieldCollection collection_{};
};

}  // namespace opgate::tensorrt
