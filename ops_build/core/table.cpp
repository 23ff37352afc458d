#include "table.h"

#include <algorithm>

#ifndef OPGATE_DOMAIN
#define OPGATE_DOMAIN "opgate"
#endif

namespace opgate {

Table& Table::instance() {
  static Table table;
  return table;
}

const char* Table::domain() { return OPGATE_DOMAIN; }

void Table::add(const char* signature, const char* doc, Device device, KernelFunction kernel) {
  Op op;
  try {
    op.signature = parse_signature(signature);
  } catch (const SignatureError& error) {
    errors_.push_back("signature \"" + std::string(signature) + "\", column " + std::to_string(error.column) + ": " +
                      error.what());
    return;
  }
  if (op.signature.type_variables.size() > 4) {
    errors_.push_back("op " + op.signature.name + ": more than 4 type variables");
    return;
  }
  const auto place =
      std::ranges::lower_bound(ops_, op.signature.name, {}, [](const Op& o) { return o.signature.name; });
  if (place == ops_.end() || place->signature.name != op.signature.name) {
    op.doc = doc;
    op.kernels[static_cast<int>(device)] = kernel;
    ops_.insert(place, std::move(op));
    return;
  }
  KernelFunction& known = place->kernels[static_cast<int>(device)];
  if (place->signature.text != op.signature.text) {
    errors_.push_back("op " + op.signature.name + " is stated twice with different signatures");
  } else if (known) {
    errors_.push_back("op " + op.signature.name + " has two kernels for " + std::string(name_of(device)));
  } else {
    known = kernel;
  }
}

const Op* Table::find(std::string_view name) const {
  const auto place =
      std::ranges::lower_bound(ops_, name, {}, [](const Op& op) { return std::string_view(op.signature.name); });
  return place != ops_.end() && place->signature.name == name ? &*place : nullptr;
}

namespace {

Status no_device_sizes() {
  return Status::internal("this engine can't carry sizes that only the kernel knows, on a device");
}

}  // namespace

Status Engine::allocate_sizes(std::size_t, std::int64_t**) { return no_device_sizes(); }
Status Engine::allocate_bounded(std::size_t, DType, std::span<const std::int64_t>, void**) { return no_device_sizes(); }
Status Engine::read_sizes(std::span<std::int64_t>, bool&) { return no_device_sizes(); }
Status Engine::trim(std::size_t, DType, std::span<const std::int64_t>) { return no_device_sizes(); }

Status Outputs::make(std::size_t index, bool bounded) {
  Made& made = outputs_[index];
  const Output& output = signature_.outputs[index];
  void* data = nullptr;
  const DType dtype = dtype_of(output.type, binding_);
  OPGATE_RETURN_IF_ERROR(bounded ? engine_.allocate_bounded(index, dtype, made.dims, &data)
                                 : engine_.allocate_output(index, dtype, made.dims, &data));
  made.done = true;
  made.bounded = bounded;
  made.wanted = data != nullptr;
  made.tensor = Tensor(data, dtype, made.dims, device_);
  if (!data && !output.optional)
    return Status::internal("output '" + output.name + "' is required and the engine has no place for it");
  return {};
}

Status Outputs::allocate() {
  OPGATE_RETURN_IF_ERROR(allocate_known());
  return device_ == Device::cpu ? Status() : allocate_bounded();
}

Status Outputs::allocate_known() {
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    if (outputs_[i].done) continue;
    bool known = false;
    OPGATE_RETURN_IF_ERROR(output_dims(signature_, signature_.outputs[i], binding_, outputs_[i].dims, known));
    if (known) OPGATE_RETURN_IF_ERROR(make(i, false));
  }
  return {};
}

Status Outputs::allocate_bounded() {
  for (std::size_t s = 0; s < signature_.slots.size(); ++s) {
    if (signature_.slots[s].kind == Slot::Kind::kernel) open_.push_back(s);
  }
  if (open_.empty()) return {};
  OPGATE_RETURN_IF_ERROR(engine_.allocate_sizes(open_.size(), &device_sizes_));
  for (const std::size_t slot : open_) OPGATE_RETURN_IF_ERROR(bound_of(slot, binding_.sizes[slot]));
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    if (outputs_[i].done) continue;
    bool known = false;
    OPGATE_RETURN_IF_ERROR(output_dims(signature_, signature_.outputs[i], binding_, outputs_[i].dims, known));
    OPGATE_RETURN_IF_ERROR(make(i, true));
  }
  for (const std::size_t slot : open_) binding_.sizes[slot] = -1;
  return {};
}

/// The bound that the signature states where it binds the size.
Status Outputs::bound_of(std::size_t slot, std::int64_t& bound) const {
  for (const Output& output : signature_.outputs) {
    for (const OutputDim& dim : output.dims) {
      if (dim.kind == OutputDim::Kind::bounded && dim.slot == static_cast<int>(slot))
        return evaluate(signature_, dim.expr, binding_, bound);
    }
  }
  return Status::internal("size '" + signature_.slots[slot].name + "' has no bound");
}

namespace {

Status out_of_bound(std::string_view size, std::int64_t value, std::int64_t bound) {
  return Status::internal("the kernel made '" + std::string(size) + "' " + std::to_string(value) +
                          ", which is not in 0.." + std::to_string(bound));
}

}  // namespace

Status Outputs::bind(std::string_view size, std::int64_t value) {
  if (device_ != Device::cpu) return Status::internal("on a device a kernel writes a size to device_size()");
  for (std::size_t s = 0; s < signature_.slots.size(); ++s) {
    if (signature_.slots[s].kind != Slot::Kind::kernel || signature_.slots[s].name != size) continue;
    std::int64_t bound = 0;
    OPGATE_RETURN_IF_ERROR(bound_of(s, bound));
    if (value < 0 || value > bound) return out_of_bound(size, value, bound);
    binding_.sizes[s] = value;
    return allocate_known();
  }
  return Status::internal("the kernel binds size '" + std::string(size) +
                          "', which the signature does not leave to it");
}

std::int64_t* Outputs::device_size(std::string_view size) const {
  for (std::size_t i = 0; i < open_.size(); ++i) {
    if (signature_.slots[open_[i]].name == size) return device_sizes_ + i;
  }
  throw std::logic_error("the kernel binds size '" + std::string(size) + "', which the signature does not leave to it");
}

Status Outputs::finish() {
  if (!open_.empty()) {
    std::vector<std::int64_t> sizes(open_.size());
    bool known = true;
    OPGATE_RETURN_IF_ERROR(engine_.read_sizes(sizes, known));
    if (!known) return {};
    for (std::size_t i = 0; i < open_.size(); ++i) {
      std::int64_t bound = 0;
      OPGATE_RETURN_IF_ERROR(bound_of(open_[i], bound));
      if (sizes[i] < 0 || sizes[i] > bound) return out_of_bound(signature_.slots[open_[i]].name, sizes[i], bound);
      binding_.sizes[open_[i]] = sizes[i];
    }
  }
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    Made& made = outputs_[i];
    if (!made.done)
      return Status::internal("the kernel left the size of output '" + signature_.outputs[i].name + "' open");
    if (!made.bounded || !made.wanted) continue;
    Dims dims;
    bool known = false;
    OPGATE_RETURN_IF_ERROR(output_dims(signature_, signature_.outputs[i], binding_, dims, known));
    OPGATE_RETURN_IF_ERROR(engine_.trim(i, made.tensor.dtype(), dims));
  }
  return {};
}

Status invoke(const Op& op, Device device, const InputPointers& inputs, const Attributes& attributes, Engine& engine) {
  const auto run = [&]() -> Status {
    const KernelFunction kernel = op.kernel(device);
    if (!kernel) return Status::internal("no kernel for " + std::string(name_of(device)));
    Binding binding;
    OPGATE_RETURN_IF_ERROR(bind(op.signature, inputs, attributes, binding));
    Outputs outputs(op.signature, device, binding, engine);
    OPGATE_RETURN_IF_ERROR(outputs.allocate());
    Context context(engine, binding);
    OPGATE_RETURN_IF_ERROR(kernel(context, Inputs(op.signature, inputs, binding), attributes, outputs));
    return outputs.finish();
  };
  Status status;
  try {
    status = run();
  } catch (const std::bad_alloc&) {
    status = Status::internal("out of memory");
  } catch (const std::exception& error) {
    status = Status::internal(error.what());
  } catch (...) {
    status = Status::internal("the kernel threw something that is no std::exception");
  }
  if (status.ok()) return status;
  return std::move(status).with_prefix(std::string(Table::domain()) + "::" + op.signature.name + ": ");
}

}  // namespace opgate
