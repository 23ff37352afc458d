// The option --plugins: the runner calls the TensorRT plugins of the ops instead of their kernels.
#include <memory>

#include "caller.h"
#include "plugin_caller.h"

namespace opgate::runner {
namespace {

Status open_plugins(const char* library, Call& call) {
  auto plugins = std::make_shared<tensorrt::Plugins>();
  OPGATE_RETURN_IF_ERROR(plugins->open(library));
  call = [plugins](const Op& op, const InputPointers& inputs, const Attributes& attributes, Engine& engine,
                   KernelCache&) { return plugins->call(op, inputs, attributes, engine); };
  return {};
}

const CallerRegistration registration({"--plugins", &open_plugins});

}  // namespace
}  // namespace opgate::runner
