// The types and attributes of the table in TensorRT's terms.
#pragma once

#include <NvInferRuntime.h>

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "core/table.h"

namespace opgate::tensorrt {

/// TensorRT's type; nullopt where plugins can't have it: TensorRT knows no f64 and no str, and lets neither u8 nor bool
/// into a plugin.
std::optional<nvinfer1::DataType> to_trt(DType dtype);
std::optional<DType> from_trt(nvinfer1::DataType type);

nvinfer1::PluginFieldType field_type(const Attribute& attribute);

/// Attributes out of fields, whose types are those of the ONNX attributes or of whoever made them, not the declared
/// ones.
Status read_attributes(const Signature& signature, const nvinfer1::PluginFieldCollection& fields,
                       Attributes& attributes);

/// Which inputs a node has, where it leaves one out before another: TensorRT's layers have no absent inputs, so such a
/// node lists those it has (opgate_inputs, written by model.py). Empty: the first ones.
using PresentInputs = std::vector<std::int64_t>;
inline constexpr const char* kPresentInputs = "opgate_inputs";

Status read_present_inputs(const Signature& signature, const nvinfer1::PluginFieldCollection& fields, PresentInputs& present);

/// Attributes as fields that own their data: what is serialized is read back as what came from a model.
class Fields {
 public:
  Fields(const Signature& signature, const Attributes& attributes, const PresentInputs& present);
  Fields(const Fields&) = delete;
  Fields& operator=(const Fields&) = delete;

  const nvinfer1::PluginFieldCollection* collection() const { return &collection_; }

  /// All values as one text without a zero in it.
  std::string text() const;

 private:
  void add(const char* name, nvinfer1::PluginFieldType type, const AttributeValue& value);

  std::deque<std::string> data_;  // fields point into it
  std::vector<nvinfer1::PluginField> fields_;
  nvinfer1::PluginFieldCollection collection_{};
};

}  // namespace opgate::tensorrt
