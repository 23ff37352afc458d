// Registers all ops of the table with TensorFlow when TensorFlow loads the library.
#include <dlfcn.h>

#include <cstdio>

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
void fail_to_load(absl::Status error) {
  api::OpRegistry::Global()->Register([error](api::OpRegistrationData*) { return error; });
}

/// opgate.tensorflow reads it from the file before anything is loaded: another TensorFlow may lack what the file needs.
constexpr const char* kFits = "fits TensorFlow " OPGATE_TENSORFLOW_VERSION;

/// Whether this is the TensorFlow that the library was built with, as far as can be told. With another one nothing of
/// its C++ API may be used, not even to tell an error.
bool fits() {
  void* version = dlsym(RTLD_DEFAULT, "TF_Version");
  if (void* const library = version ? nullptr : dlopen("libtensorflow_cc.so.2", RTLD_LAZY | RTLD_NOLOAD)) {
    version = dlsym(library, "TF_Version");
    dlclose(library);
  }
  const std::string built = OPGATE_TENSORFLOW_VERSION;
  if (!version || built.empty()) return true;
  const std::string found = reinterpret_cast<const char* (*)()>(version)();
  if (found.starts_with(built + ".")) return true;
  std::fprintf(stderr, "the library of ops '%s' %s, and this is %s: it registers nothing\n", Table::domain(), kFits,
               found.c_str());
  return false;
}

bool register_ops() {
  if (!fits()) return false;
  api::OpRegistry& registry = *api::OpRegistry::Global();
  const std::string domain = Table::domain();
  if (const auto& errors = Table::instance().errors(); !errors.empty()) {
    fail_to_load(absl::InvalidArgumentError("op library '" + domain + "': " + errors[0]));
    return false;
  }
  // TensorFlow would take the ops twice without a word, and then refuse to choose between two kernels. It would ignore
  // an error that says that something exists already. The registry of ops can't be asked while TensorFlow loads.
  if (!definitions().empty() && api::GetRegisteredKernelsForOp(definitions().front().def.name()).kernel_size() > 0) {
    fail_to_load(
        absl::FailedPreconditionError("another library has registered the ops of domain " + domain + " already"));
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
