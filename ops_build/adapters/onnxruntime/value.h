// An engine's value as a tensor that a kernel reads.
#pragma once

#include <vector>

#include "api.h"
#include "core/signature.h"
#include "core/tensor.h"

namespace opgate::ort {

/// Must stay where it is: the tensor refers to it.
class InputValue {
 public:
  InputValue() = default;
  InputValue(const InputValue&) = delete;
  InputValue& operator=(const InputValue&) = delete;

  /// `input` is what the signature says of it. A tensor that it leaves on the host lies there, the others on `device`.
  Status read(const OrtValue* value, const Input& input, Device device);

  const Tensor& tensor() const { return tensor_; }

 private:
  /// Strings, laid out for a kernel.
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
