// The inputs of one call. A kernel reads them by name.
#pragma once

#include <stdexcept>

#include "signature/known_sizes.h"
#include "signature/sizes.h"
#include "tensor.h"

namespace opgate {

/// The inputs of one call in the signature's order, with nullptr for an absent optional one. The tensors of a variadic
/// input come last.
using InputPointers = InlineVector<const Tensor*, 8>;

/// The value of an integer scalar in host memory. nullopt if the tensor is no integer scalar.
inline std::optional<std::int64_t> integer_scalar(const Tensor& tensor) {
  if (tensor.rank() != 0 || !tensor.raw()) return std::nullopt;
  if (tensor.dtype() == DType::i32) return *tensor.data<std::int32_t>();
  if (tensor.dtype() == DType::i64) return *tensor.data<std::int64_t>();
  return std::nullopt;
}

class Inputs {
 public:
  Inputs(const Signature& signature, const Binding<std::int64_t>& binding, const InputPointers& tensors)
      : signature_(signature), binding_(binding), tensors_(tensors) {}

  /// An input that is present. Throws std::logic_error if it is absent.
  const Tensor& operator[](std::string_view name) const { return at(index_of(name)); }

  /// The input with this index in the signature.
  const Tensor& at(std::size_t index) const {
    if (index < tensors_.size() && tensors_[index]) return *tensors_[index];
    if (index >= signature_.inputs.size()) {
      throw std::logic_error("the kernel reads input " + std::to_string(index) + ", and the signature has " +
                             std::to_string(signature_.inputs.size()));
    }
    throw std::logic_error("the kernel reads input '" + signature_.inputs[index].name + "', which is absent");
  }

  /// All tensors: one for each input of the signature, null for an absent one, and those of the variadic input last.
  const InputPointers& tensors() const { return tensors_; }

  const Signature& signature() const { return signature_; }

  /// The number of inputs in the signature.
  std::size_t count() const { return signature_.inputs.size(); }

  bool has(std::string_view name) const {
    const std::size_t index = index_of(name);
    return index < tensors_.size() && tensors_[index];
  }

  /// All tensors of the variadic input.
  std::span<const Tensor* const> all(std::string_view name) const {
    return std::span<const Tensor* const>(tensors_).subspan(index_of(name));
  }

  /// A named size of the signature.
  std::int64_t size(std::string_view name) const { return binding_.sizes[slot_named(signature_, name)].value_or(-1); }

  /// The dtype that a type variable stands for, by its index in the signature.
  DType type(std::size_t variable) const { return *binding_.types[variable]; }

 private:
  std::size_t index_of(std::string_view name) const {
    for (std::size_t i = 0; i < signature_.inputs.size(); ++i) {
      if (signature_.inputs[i].name == name) return i;
    }
    throw std::logic_error("the kernel asks for input '" + std::string(name) + "', which the signature does not have");
  }

  const Signature& signature_;
  const Binding<std::int64_t>& binding_;
  const InputPointers& tensors_;
};

}  // namespace opgate
