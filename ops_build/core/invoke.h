// One call of an op.
#pragma once

#include "kernel_cache.h"

namespace opgate {

/// Runs an op once: binds and checks the inputs, makes the outputs, calls the kernel, checks that it finished.
/// Prepared kernels come from `kernels`; without it a kernel that prepares does so for this call alone. Throws nothing.
/// Messages begin with the op's name.
Status invoke(const Op& op, Device device, const InputPointers& inputs, const Attributes& attributes, Engine& engine,
              KernelCache* kernels = nullptr);

/// Checks the inputs of a call against the signature and binds every name.
Status bind_inputs(CallWalk& walk, const InputPointers& inputs, const Attributes& attributes);

/// The bytes of workspace that the op's kernel states for inputs of these dims, whose data is not read. Where two inputs
/// give a name different sizes, because only their upper bounds are known, the larger one counts.
Status measure_workspace(const Op& op, Device device, const InputPointers& inputs, const Attributes& attributes,
                         std::size_t& bytes);

/// The exact dims of an op's outputs, once a kernel on a device has found the sizes that only it knows. `sizes` are those
/// in the order of the signature's slots. For engines that take padded outputs.
Status exact_dims(const Op& op, const InputPointers& inputs, const Attributes& attributes,
                  std::span<const std::int64_t> sizes, std::vector<Dims>& outputs);

/// "<domain>::<op>"
std::string full_name(const Op& op);

/// Runs `body`, which returns a Status. What it throws becomes a Status too. A message that doesn't begin with the op's
/// name gets it.
template <typename Body>
Status named(const Op& op, Body&& body) {
  Status status;
  try {
    status = body();
  } catch (const std::bad_alloc&) {
    status = Status::internal("out of memory");
  } catch (const std::exception& error) {
    status = Status::internal(error.what());
  } catch (...) {
    status = Status::internal("the kernel threw something that is no std::exception");
  }
  const std::string prefix = status.ok() ? "" : full_name(op) + ": ";
  return status.message().starts_with(prefix) ? status : std::move(status).with_prefix(prefix);
}

}  // namespace opgate
