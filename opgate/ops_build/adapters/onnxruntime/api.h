// ONNX Runtime's C API, and conversions of its errors and types.
//
// The library asks for the lowest API version that has shape inference for custom ops and KernelContext_ParallelFor, so
// that every ONNX Runtime from 1.17 on can load it. The library with CUDA also needs KernelContext_GetScratchBuffer, so
// it asks for the version of ONNX Runtime 1.18.
#pragma once

#define ORT_API_MANUAL_INIT
#include <onnxruntime_c_api.h>

#include <array>
#include <memory>
#include <optional>

#include "signature/dtype.h"
#include "signature/status.h"

namespace opgate::ort {

#ifdef OPGATE_WITH_CUDA
inline constexpr std::uint32_t kApiVersion = 18;
#else
inline constexpr std::uint32_t kApiVersion = 17;
#endif

inline const OrtApi* api = nullptr;  // the first RegisterCustomOps sets it before any other function uses it

template <auto Release>
struct Releaser {
  template <typename T>
  void operator()(T* held) const {
    (api->*Release)(held);
  }
};
using ShapeInfo = std::unique_ptr<OrtTensorTypeAndShapeInfo, Releaser<&OrtApi::ReleaseTensorTypeAndShapeInfo>>;
using TypeInfo = std::unique_ptr<OrtTypeInfo, Releaser<&OrtApi::ReleaseTypeInfo>>;
using MemoryInfo = std::unique_ptr<OrtMemoryInfo, Releaser<&OrtApi::ReleaseMemoryInfo>>;

/// Converts a status of the engine, and releases it.
inline Status from_ort(OrtStatus* status) {
  if (!status) return {};
  const std::string message = api->GetErrorMessage(status);
  const bool invalid = api->GetErrorCode(status) == ORT_INVALID_ARGUMENT;
  api->ReleaseStatus(status);
  return invalid ? Status::invalid(message) : Status::internal(message);
}

/// Converts a Status to one of the engine. The engine releases it. Some of its runs tell only the message, so the
/// message itself says whose mistake it is.
inline OrtStatus* to_ort(const Status& status) {
  if (status.ok()) return nullptr;
  if (status.code() == StatusCode::invalid_argument)
    return api->CreateStatus(ORT_INVALID_ARGUMENT, status.message().c_str());
  return api->CreateStatus(ORT_FAIL, ("internal error: " + status.message()).c_str());
}

inline constexpr std::array<ONNXTensorElementDataType, kDTypeCount> kElementTypes = {
    ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16, ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT,
    ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE,  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8,     ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8,
    ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32,   ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64,    ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL,
    ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING};

inline ONNXTensorElementDataType to_ort(DType dtype) { return kElementTypes[static_cast<int>(dtype)]; }

/// The dtype of an element type of the engine. nullopt if no signature can state it.
inline std::optional<DType> from_ort(ONNXTensorElementDataType type) {
  for (int i = 0; i < kDTypeCount; ++i) {
    if (kElementTypes[i] == type) return static_cast<DType>(i);
  }
  return std::nullopt;
}

}  // namespace opgate::ort
