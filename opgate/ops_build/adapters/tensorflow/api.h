// What the adapter needs of TensorFlow's C++ API.
#pragma once

#include <array>
#include <optional>
#include <string>

#include "absl/status/status.h"

#include "signature/dtype.h"
#include "signature/status.h"
#include "tensorflow/core/framework/types.h"

namespace opgate::tf {

namespace api = ::tensorflow;

/// TensorFlow's types by DType.
inline constexpr std::array<api::DataType, kDTypeCount> kDataTypes = {
    api::DT_HALF,  api::DT_BFLOAT16, api::DT_FLOAT, api::DT_DOUBLE, api::DT_INT8,
    api::DT_UINT8, api::DT_INT32,    api::DT_INT64, api::DT_BOOL,   api::DT_STRING};

inline api::DataType to_tensorflow(DType dtype) { return kDataTypes[static_cast<std::size_t>(dtype)]; }

inline std::optional<DType> from_tensorflow(api::DataType type) {
  for (std::size_t i = 0; i < kDataTypes.size(); ++i) {
    if (kDataTypes[i] == type) return static_cast<DType>(i);
  }
  return std::nullopt;
}

inline absl::Status to_tensorflow(const Status& status) {
  if (status.ok()) return absl::OkStatus();
  if (status.code() == StatusCode::invalid_argument) return absl::InvalidArgumentError(status.message());
  return absl::InternalError(status.message());
}

inline Status from_tensorflow(const absl::Status& status) {
  if (status.ok()) return {};
  const std::string message(status.message());
  return absl::IsInvalidArgument(status) ? Status::invalid(message) : Status::internal(message);
}

}  // namespace opgate::tf
