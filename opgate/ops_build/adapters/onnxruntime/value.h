// A value of the engine as a Tensor.
#pragma once

#include <vector>

#include "api.h"
#include "op_call/tensor.h"
#include "signature/signature.h"

namespace opgate::ort {

/// Can't be moved, because the Tensor points into it.
class InputValue {
 public:
  InputValue() = default;
  InputValue(const InputValue&) = delete;
  InputValue& operator=(const InputValue&) = delete;

  /// `input` is the declaration in the signature. A `const` input is in host memory, any other on `device`.
  Status read(const OrtValue* value, const Input& input, Device device);

  const Tensor& tensor() const { return tensor_; }

 private:
  /// Converts the strings to an array of std::string_view.
  struct Texts {
    std::unique_ptr<char[]> characters;
    std::vector<std::string_view> views;

    Status read(const OrtValue* value, std::size_t count);
  };

  Tensor tensor_;
  Dims dims_;
  std::unique_ptr<Texts> texts_;
};

}  // namespace opgate::ort
