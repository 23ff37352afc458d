#include "invoke.h"

#include "guard.h"
#include "op_times.h"

namespace opgate {
namespace {

template <typename Sizes>
Status bind(Walk<Sizes>& walk, const InputPointers& inputs, const Attributes& attributes) {
  const Signature& signature = walk.signature();
  InlineVector<KnownInput<std::int64_t>, 8> known(inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i]) continue;
    const bool host = i < signature.inputs.size() && signature.inputs[i].host;
    known[i] = {true, inputs[i]->dtype(), inputs[i]->dims(), host ? integer_scalar(*inputs[i]) : std::nullopt};
  }
  return walk.bind(known, [&](int attribute) -> std::optional<std::int64_t> {
    return std::get<std::int64_t>(attributes.at(static_cast<std::size_t>(attribute)));
  });
}

/// Notes for the recording of this thread what a call was given and what it gave.
void note(const InputPointers& inputs, const Outputs& outputs) {
  std::vector<std::string> in, out;
  for (const Tensor* tensor : inputs) in.push_back(tensor ? type_text(tensor->dtype(), tensor->dims()) : "none");
  for (std::size_t i = 0; i < outputs.count(); ++i) {
    const MutableTensor* tensor = outputs.created(i);
    out.push_back(tensor ? type_text(tensor->dtype(), tensor->dims()) : "none");
  }
  recording->note(std::move(in), std::move(out));
}

Status run(const Op& op, Device device, const InputPointers& inputs, const Attributes& attributes, Engine& engine,
           KernelCache* kernels) {
  const Kernel& type = op.kernel(device);
  if (!type.run) return Status::internal("no kernel for " + std::string(name_of(device)));
  CallWalk walk(op.signature);
  OPGATE_RETURN_IF_ERROR(bind(walk, inputs, attributes));
  OPGATE_RETURN_IF_ERROR(check_node(op, device, attributes, walk.binding().sizes));
  std::shared_ptr<const void> kernel;
  if (type.prepare) {
    NodeFacts facts = facts_of_call(walk, inputs, engine.ordinal());
    if (!engine.prepares_for_sizes()) std::ranges::fill(facts.sizes, std::nullopt);
    OPGATE_RETURN_IF_ERROR(kernels ? kernels->find(op, device, attributes, facts, kernel)
                                   : type.prepare(Node(op.signature, attributes, facts), kernel));
  }
  Outputs outputs(device, walk, engine);
  OPGATE_RETURN_IF_ERROR(outputs.allocate());
  Context context(engine);
  const Inputs in(op.signature, walk.binding(), inputs);
  const bool noted = recording && recording->takes_tensors();
  OPGATE_RETURN_IF_ERROR(type.run(kernel.get(), context, in, attributes, outputs));
  OPGATE_RETURN_IF_ERROR(outputs.finish());
  if (noted) note(inputs, outputs);
  return {};
}

}  // namespace

std::string full_name(const Op& op) { return std::string(Table::domain()) + "::" + op.signature.name; }

Status bind_inputs(CallWalk& walk, const InputPointers& inputs, const Attributes& attributes) {
  return bind(walk, inputs, attributes);
}

Status check_node(const Op& op, Device device, const Attributes& attributes,
                  std::span<const std::optional<std::int64_t>> sizes) {
  const Kernel& type = op.kernel(device);
  return type.check ? type.check(attributes, KnownSizes(op.signature, sizes)) : Status();
}

Status invoke(const Op& op, Device device, const InputPointers& inputs, const Attributes& attributes, Engine& engine,
              KernelCache* kernels) {
  return named(op, [&]() -> Status {
    if (device != Device::cpu || !guards_tensors()) return run(op, device, inputs, attributes, engine, kernels);
    const GuardedInputs copies(full_name(op), inputs);
    GuardedEngine guarded(op.signature, full_name(op), engine);
    OPGATE_RETURN_IF_ERROR(run(op, device, copies.pointers(), attributes, guarded, kernels));
    return guarded.finish();
  });
}

namespace {

/// Two sizes that are equal in every call, of which only the upper bounds are known: the larger bound.
struct LargestSizes : Integers {
  static std::optional<Size> equal(Size a, Size b) { return std::max(a, b); }
};

}  // namespace

Status measure_workspace(const Op& op, Device device, const InputPointers& inputs, const Attributes& attributes,
                         std::size_t& bytes) {
  bytes = 0;
  const Kernel& type = op.kernel(device);
  if (!type.take_workspace) return {};
  return named(op, [&]() -> Status {
    Walk<LargestSizes> walk(op.signature);
    OPGATE_RETURN_IF_ERROR(bind(walk, inputs, attributes));
    Workspace measured;
    const Inputs in(op.signature, walk.binding(), inputs);
    OPGATE_RETURN_IF_ERROR(type.take_workspace(measured, in, attributes));
    bytes = measured.bytes();
    return {};
  });
}

Status exact_dims(const Op& op, const InputPointers& inputs, const Attributes& attributes,
                  std::span<const std::int64_t> sizes, std::vector<Dims>& outputs) {
  CallWalk walk(op.signature);
  OPGATE_RETURN_IF_ERROR(bind(walk, inputs, attributes));
  std::size_t next = 0;
  for (std::size_t s = 0; s < op.signature.slots.size(); ++s) {
    if (op.signature.slots[s].kind == Slot::Kind::kernel) walk.set_kernel_size(static_cast<int>(s), sizes[next++]);
  }
  outputs.clear();
  for (const Output& output : op.signature.outputs) {
    bool complete = false;
    OPGATE_RETURN_IF_ERROR(walk.output_dims(output, outputs.emplace_back(), complete));
  }
  return {};
}

}  // namespace opgate
