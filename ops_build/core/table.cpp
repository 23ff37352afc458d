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

Status Outputs::allocate() {
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    Made& made = outputs_[i];
    if (made.done) continue;
    const Output& output = signature_.outputs[i];
    bool known = false;
    OPGATE_RETURN_IF_ERROR(output_dims(signature_, output, binding_, made.dims, known));
    if (!known) continue;
    void* data = nullptr;
    const DType dtype = dtype_of(output.type, binding_);
    OPGATE_RETURN_IF_ERROR(engine_.allocate_output(i, dtype, made.dims, &data));
    made.done = true;
    made.wanted = data != nullptr;
    made.tensor = Tensor(data, dtype, made.dims);
    if (!data && !output.optional)
      return Status::internal("output '" + output.name + "' is required and the engine has no place for it");
  }
  return {};
}

Status Outputs::bind(std::string_view size, std::int64_t value) {
  for (const Output& output : signature_.outputs) {
    for (const OutputDim& dim : output.dims) {
      if (dim.kind != OutputDim::Kind::bounded || signature_.slots[dim.slot].name != size) continue;
      std::int64_t bound = 0;
      OPGATE_RETURN_IF_ERROR(evaluate(signature_, dim.expr, binding_, bound));
      if (value < 0 || value > bound) {
        return Status::internal("the kernel made '" + std::string(size) + "' " + std::to_string(value) +
                                ", which is not in 0.." + std::to_string(bound));
      }
      binding_.sizes[dim.slot] = value;
      return allocate();
    }
  }
  return Status::internal("the kernel binds size '" + std::string(size) +
                          "', which the signature does not leave to it");
}

Status Outputs::finished() const {
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    if (!outputs_[i].done)
      return Status::internal("the kernel left the size of output '" + signature_.outputs[i].name + "' open");
  }
  return {};
}

Status invoke(const Op& op, Device device, const InputPointers& inputs, const Attributes& attributes, Engine& engine) {
  const auto run = [&]() -> Status {
    const KernelFunction kernel = op.kernel(device);
    if (!kernel) return Status::internal("no kernel for " + std::string(name_of(device)));
    Binding binding;
    OPGATE_RETURN_IF_ERROR(bind(op.signature, inputs, attributes, binding));
    Outputs outputs(op.signature, binding, engine);
    OPGATE_RETURN_IF_ERROR(outputs.allocate());
    Context context(engine, binding);
    OPGATE_RETURN_IF_ERROR(kernel(context, Inputs(op.signature, inputs, binding), attributes, outputs));
    return outputs.finished();
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
