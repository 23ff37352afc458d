// One call of an op.
#pragma once

#include "kernel_cache.h"

namespace opgate {

/// Runs an op once: checks the inputs, creates the outputs, calls the kernel and checks that it has set all sizes. A
/// prepared kernel comes from `kernels`. Without `kernels`, a kernel that prepares does so for this call alone. Throws
/// nothing. Messages begin with the op's name.
Status invoke(const Op& op, Device device, const InputPointers& inputs, const Attributes& attributes, Engine& engine,
              KernelCache* kernels = nullptr);

/// Refuses attributes and sizes that no run of a node can use. An adapter calls it as soon as it knows the attributes,
/// with the sizes that it knows, in the order of the signature's slots. A call checks again, with all sizes.
Status check_node(const Op& op, Device device, const Attributes& attributes,
                  std::span<const std::optional<std::int64_t>> sizes = {});

/// Checks the inputs of a call against the signature and binds every name.
Status bind_inputs(CallWalk& walk, const InputPointers& inputs, const Attributes& attributes);

/// Sets `bytes` to the size of the workspace that the op's kernel states for inputs of these dims. Their data is not
/// read. If two inputs give a name different sizes, because the dims are upper bounds only, the larger size counts.
Status measure_workspace(const Op& op, Device device, const InputPointers& inputs, const Attributes& attributes,
                         std::size_t& bytes);

/// The exact dims of the outputs after a kernel has found the sizes that only it knows. `sizes` has these sizes in the
/// order of the signature's slots. For engines that take padded outputs.
Status exact_dims(const Op& op, const InputPointers& inputs, const Attributes& attributes,
                  std::span<const std::int64_t> sizes, std::vector<Dims>& outputs);

/// "<domain>::<op>"
std::string full_name(const Op& op);

/// Runs `body`, which returns a Status. An exception becomes a Status too. A message gets the op's name as its
/// beginning if it doesn't have it.
template <typename Body>
Status named(const Op& op, Body&& body) {
  Status status;
  try {
    status = body();
  } catch (const std::bad_alloc&) {
    status = Status::internal("out of memory");
  } catch (const std::length_error&) {  // of a vector that no memory holds
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
