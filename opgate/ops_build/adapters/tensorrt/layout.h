// Which inputs of the signature the inputs of a layer are. TensorRT has two lists of inputs, those on the device and
// those on the host, and its layers have no absent inputs.
#pragma once

#include <algorithm>

#include "fields.h"

namespace opgate::tensorrt {

class InputLayout {
 public:
  InputLayout(const Signature& signature, const PresentInputs& present) : signature_(signature) {
    for (std::size_t i = 0; i < (present.empty() ? signature.inputs.size() : present.size()); ++i) {
      const int index = static_cast<int>(present.empty() ? i : present[i]);
      (signature.inputs[index].host ? host_ : device_).push_back(index);
    }
  }

  /// Sets `indices` to the indices in the signature of `count` inputs on the device. All tensors of a variadic input
  /// have the index of that input.
  Status device(int count, std::vector<int>& indices) const {
    indices.assign(device_.begin(), device_.begin() + std::min<std::ptrdiff_t>(count, std::ssize(device_)));
    if (count == static_cast<int>(indices.size())) return {};
    if (!device_.empty() && signature_.inputs[device_.back()].variadic) {
      indices.resize(static_cast<std::size_t>(count), device_.back());
      return {};
    }
    if (!host_.empty()) return missing_host_input(host_[0]);
    return Status::invalid("expected at most " + std::to_string(device_.size()) + " inputs, got " +
                           std::to_string(count));
  }

  /// The indices in the signature of the inputs on the host.
  const std::vector<int>& host() const { return host_; }

  Status missing_host_input(int index) const {
    return Status::invalid("input '" + signature_.inputs[index].name + "' is read on the host: its node needs the " +
                           "attribute tensorrt_plugin_shape_input_indices; `opgate tensorrt` writes it");
  }

 private:
  const Signature& signature_;
  std::vector<int> device_, host_;
};

/// A list with an element for each input of the signature, and then for the further tensors of a variadic input. That
/// is how the core wants inputs.
template <typename T>
class InSignatureOrder {
 public:
  explicit InSignatureOrder(const Signature& signature) : slots_(signature.inputs.size()) {}

  void add(int index, const T& value) {
    if (taken_.size() < slots_.size()) taken_.resize(slots_.size(), false);
    if (taken_[index]) {
      slots_.push_back(value);  // a further tensor of the variadic input, which is the last input
    } else {
      slots_[index] = value;
      taken_[index] = true;
    }
  }

  const std::vector<T>& all() const { return slots_; }

 private:
  std::vector<T> slots_;
  std::vector<bool> taken_;
};

}  // namespace opgate::tensorrt
