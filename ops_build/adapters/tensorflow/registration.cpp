// Registers all ops of the table with TensorFlow when TensorFlow loads the library.
#include "call.h"
#include "inference.h"
#include "tensorflow/core/framework/kernel_def_builder.h"
#include "tensorflow/core/framework/op.h"

namespace opgate::tf {
namespace {

absl::Status state_op(const Definition& definition, api::OpRegistrationData* data) {
  data->op_def = definition.def;
  data->shape_inference_fn = [&definition](api::shape_inference::InferenceContext* context) {
    return to_tensorflow(infer_shapes(definition, *context));
  };
  return absl::OkStatus();
}

/// TensorFlow calls the factories when the library is loaded. An error of a factory is the error of the load.
bool register_ops() {
  api::OpRegistry& registry = *api::OpRegistry::Global();
  if (const auto& errors = Table::instance().errors(); !errors.empty()) {
    registry.Register([error = errors[0]](api::OpRegistrationData*) {
      return absl::InvalidArgumentError("op library '" + std::string(Table::domain()) + "': " + error);
    });
    return false;
  }
  for (const Definition& definition : definitions()) {
    registry.Register([&definition](api::OpRegistrationData* data) { return state_op(definition, data); });
    const api::KernelDef* kernel = api::KernelDefBuilder(definition.def.name().c_str()).Device(api::DEVICE_CPU).Build();
    api::kernel_factory::OpKernelRegistrar(
        kernel, "NodeKernel",
        [](api::OpKernelConstruction* construction) -> api::OpKernel* { return new NodeKernel(construction); });
  }
  return true;
}

[[maybe_unused]] const bool registered = register_ops();

}  // namespace
}  // namespace opgate::tf
