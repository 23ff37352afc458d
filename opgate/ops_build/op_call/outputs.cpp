#include "outputs.h"

namespace opgate {

Status Outputs::make(std::size_t index, bool bounded) {
  Created& created = outputs_[index];
  const Output& output = signature_.outputs[index];
  const DType dtype = *walk_.dtype_of(output.type);
  void* data = nullptr;
  Status status;
  try {
    status = bounded ? engine_.allocate_bounded(index, dtype, created.dims, &data)
                     : engine_.allocate_output(index, dtype, created.dims, &data);
  } catch (const std::bad_alloc&) {
    status = Status::internal("out of memory");
  } catch (const std::length_error&) {  // of the texts of an output
    status = Status::internal("out of memory");
  }
  if (!status.ok()) {
    return std::move(status).with_prefix("output '" + output.name + "', " + std::string(name_of(dtype)) +
                                         dims_text(created.dims) + ": ");
  }
  created.done = true;
  created.bounded = bounded;
  created.wanted = data != nullptr;
  created.tensor = MutableTensor(data, dtype, created.dims, device_, output.name);
  if (!data && !output.optional)
    return Status::internal("output '" + output.name + "' is required and the engine gave no memory for it");
  return {};
}

Status Outputs::allocate() {
  OPGATE_RETURN_IF_ERROR(allocate_known());
  return device_ == Device::cpu ? Status() : allocate_bounded();
}

Status Outputs::allocate_known() {
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    if (outputs_[i].done) continue;
    bool complete = false;
    OPGATE_RETURN_IF_ERROR(walk_.output_dims(signature_.outputs[i], outputs_[i].dims, complete));
    if (complete) OPGATE_RETURN_IF_ERROR(make(i, false));
  }
  return {};
}

Status Outputs::allocate_bounded() {
  for (std::size_t s = 0; s < signature_.slots.size(); ++s) {
    if (signature_.slots[s].kind == Slot::Kind::kernel) kernel_slots_.push_back(static_cast<int>(s));
  }
  if (kernel_slots_.empty()) return {};
  OPGATE_RETURN_IF_ERROR(engine_.allocate_sizes(kernel_slots_.size(), &device_sizes_));
  for (const int slot : kernel_slots_) {
    std::int64_t bound = 0;
    OPGATE_RETURN_IF_ERROR(bound_of(slot, bound));
    walk_.set_kernel_size(slot, bound);
  }
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    if (outputs_[i].done) continue;
    bool complete = false;
    OPGATE_RETURN_IF_ERROR(walk_.output_dims(signature_.outputs[i], outputs_[i].dims, complete));
    OPGATE_RETURN_IF_ERROR(make(i, true));
  }
  for (const int slot : kernel_slots_) walk_.set_kernel_size(slot, std::nullopt);
  return {};
}

Status Outputs::bound_of(int slot, std::int64_t& bound) {
  std::optional<std::int64_t> value;
  OPGATE_RETURN_IF_ERROR(walk_.bound_of(slot, value));
  bound = value.value_or(0);
  return {};
}

namespace {

Status out_of_bound(std::string_view size, std::int64_t value, std::int64_t bound) {
  return Status::internal("the kernel set '" + std::string(size) + "' to " + std::to_string(value) +
                          ", which is not in 0.." + std::to_string(bound));
}

}  // namespace

Status Outputs::bind(std::string_view size, std::int64_t value) {
  if (device_ != Device::cpu) return Status::internal("on a device a kernel writes a size to device_size()");
  for (std::size_t s = 0; s < signature_.slots.size(); ++s) {
    if (signature_.slots[s].kind != Slot::Kind::kernel || signature_.slots[s].name != size) continue;
    std::int64_t bound = 0;
    OPGATE_RETURN_IF_ERROR(bound_of(static_cast<int>(s), bound));
    if (value < 0 || value > bound) return out_of_bound(size, value, bound);
    walk_.set_kernel_size(static_cast<int>(s), value);
    return allocate_known();
  }
  return Status::internal("the kernel binds size '" + std::string(size) +
                          "', which the signature does not leave to it");
}

std::int64_t* Outputs::device_size(std::string_view size) const {
  for (std::size_t i = 0; i < kernel_slots_.size(); ++i) {
    if (signature_.slots[kernel_slots_[i]].name == size) return device_sizes_ + i;
  }
  throw std::logic_error("the kernel binds size '" + std::string(size) + "', which the signature does not leave to it");
}

Status Outputs::finish() {
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    if (!outputs_[i].done)
      return Status::internal("the kernel left the size of output '" + signature_.outputs[i].name + "' open");
  }
  if (kernel_slots_.empty() || engine_.takes_padded_outputs()) return {};
  OPGATE_RETURN_IF_ERROR(read_sizes());
  return trim();
}

/// Reads the sizes that the kernel has written to device_size().
Status Outputs::read_sizes() {
  std::vector<std::int64_t> sizes(kernel_slots_.size());
  OPGATE_RETURN_IF_ERROR(engine_.read_sizes(sizes));
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const int slot = kernel_slots_[i];
    std::int64_t bound = 0;
    OPGATE_RETURN_IF_ERROR(bound_of(slot, bound));
    if (sizes[i] < 0 || sizes[i] > bound) return out_of_bound(signature_.slots[slot].name, sizes[i], bound);
    walk_.set_kernel_size(slot, sizes[i]);
  }
  return {};
}

Status Outputs::trim() {
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    const Created& created = outputs_[i];
    if (!created.bounded || !created.wanted) continue;
    Dims dims;
    bool complete = false;
    OPGATE_RETURN_IF_ERROR(walk_.output_dims(signature_.outputs[i], dims, complete));
    OPGATE_RETURN_IF_ERROR(engine_.trim(i, created.tensor.dtype(), dims));
  }
  return {};
}

}  // namespace opgate
