// ONNX Runtime's C API, and what its errors and types are in ours.
//
// The API version asked for is the lowest that has shape inference for custom ops and KernelContext_ParallelFor, so
// that the library loads into every ONNX Runtime from 1.17 on. With CUDA it is the lowest that has
// KernelContext_GetScratchBuffer too, 1.18's.
#pragma once

#define ORT_API_MANUAL_INIT
#include <onnxruntime_c_api.h>

#include <array>
#include <memory>
#include <optional>

#include "core/dtype.h"
#include "core/status.h"

namespace opgate::ort {

#ifdef OPGATE_WITH_CUDA
inline constexpr std::uint32_t kApiVersion = 18;
#else
inline constexpr std::uint32_t kApiVersion = 17;
#endif

inline const OrtApi* api = nullptr;  // set once, by the first RegisterCustomOps, before any other function here runs

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

/// The engine's status as ours. Releases it.
inline Status from_ort(OrtStatus* status) {
  if (!status) return {};
  const std::string message = api->GetErrorMessage(status);
  const bool invalid = api->GetErrorCode(status) == ORT_INVALID_ARGUMENT;
  api->ReleaseStatus(status);
  return invalid ? Status::invalid(message) : Status::internal(message);
}

/// Our status as the engine's, which the engine releases.
inline OrtStatus* to_ort(const Status& status) {
  if (status.ok()) return nullptr;
  return api->CreateStatus(status.code() == StatusCode::invalid_argument ? ORT_INVALID_ARGUMENT : ORT_FAIL,
                           status.message().c_str());
}

inline constexpr std::array<ONNXTensorElementDataType, kDTypeCount> kElementTypes = {
    ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16, ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT,
    ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE,  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8,     ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8,
    ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32,   ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64,    ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL,
    ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING};

inline ONNXTensorElementDataType to_ort(DType dtype) { return kElementTypes[static_cast<int>(dtype)]; }

/// nullopt where no signature can state the type.
inline std::optional<DType> from_ort(ONNXTensorElementDataType type) {
  for (int i = 0; i < kDTypeCount; ++i) {
    if (kElementTypes[i] == type) return static_cast<DType>(i);
  }
  return std::nullopt;
}

}  // namespace opgate::ort
