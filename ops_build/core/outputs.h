// The outputs of one call: made through the engine as soon as their dims are known, handed to the kernel by name.
#pragma once

#include <stdexcept>

#include "engine.h"
#include "sizes.h"
#include "tensor.h"

namespace opgate {

class Outputs {
 public:
  Outputs(Device device, CallWalk& walk, Engine& engine)
      : signature_(walk.signature()),
        device_(device),
        walk_(walk),
        engine_(engine),
        outputs_(signature_.outputs.size()) {}

  /// An output whose dims are known and that is required, or that has() said is wanted; throws std::logic_error for any
  /// other. On a device an output of a size that only the kernel knows has its upper bound.
  const MutableTensor& operator[](std::string_view name) const { return at(index_of(name)); }

  /// The same by index in the signature.
  const MutableTensor& at(std::size_t index) const {
    if (outputs_[index].wanted) return outputs_[index].tensor;
    throw std::logic_error("the kernel writes output '" + signature_.outputs[index].name + "', " +
                           (outputs_[index].done ? "which nobody asked for" : "whose size it has not bound"));
  }

  /// Whether somebody asked for an output whose dims are known.
  bool has(std::string_view name) const { return outputs_[index_of(name)].wanted; }

  /// Binds a size that only the kernel knows (`v<=n` in the signature) and makes the outputs that waited for it. On the
  /// CPU only.
  Status bind(std::string_view size, std::int64_t value);

  /// Where a kernel on a device writes such a size, in the device's memory. It does so for empty inputs too.
  std::int64_t* device_size(std::string_view size) const;

  // For invoke().

  /// Makes the outputs whose dims are known; on a device the others too, at their bound.
  Status allocate();

  /// After the kernel: fails when it has left a size unbound; gives what a kernel on a device has filled its exact dims.
  Status finish();

 private:
  struct Made {
    MutableTensor tensor;
    Dims dims;
    bool done = false;
    bool wanted = false;
    bool bounded = false;
  };

  Status allocate_known();
  Status allocate_bounded();
  Status make(std::size_t index, bool bounded);
  Status bound_of(int slot, std::int64_t& bound);
  Status read_sizes();
  Status trim();

  std::size_t index_of(std::string_view name) const {
    for (std::size_t i = 0; i < signature_.outputs.size(); ++i) {
      if (signature_.outputs[i].name == name) return i;
    }
    throw std::logic_error("the kernel asks for output '" + std::string(name) + "', which the signature does not have");
  }

  const Signature& signature_;
  Device device_;
  CallWalk& walk_;
  Engine& engine_;
  std::vector<Made> outputs_;
  std::vector<int> kernel_slots_;         // of the sizes that a device's kernel binds
  std::int64_t* device_sizes_ = nullptr;  // one for each of them
};

}  // namespace opgate
