// Gives TensorRT a creator of V3 plugins for each op. TensorRT calls getCreators and setLoggerFinder.
#include <dlfcn.h>

#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>

#include "log.h"
#include "op_call/invoke.h"
#include "plugin.h"

namespace opgate::tensorrt {
namespace {

using nvinfer1::PluginField;
using nvinfer1::PluginFieldCollection;
using nvinfer1::PluginFieldType;

class Creator final : public nvinfer1::IPluginCreatorV3One {
 public:
  explicit Creator(const Op& op) : op_(op) {
    for (const Attribute& attribute : op.signature.attributes)
      names_.emplace_back(attribute.name.c_str(), nullptr, field_type(attribute), 1);
    names_.emplace_back(kPresentInputs, nullptr, PluginFieldType::kINT64, 1);
    collection_ = {static_cast<int>(names_.size()), names_.data()};
  }

  nvinfer1::IPluginV3* createPlugin(const char*, const PluginFieldCollection* fields,
                                    nvinfer1::TensorRTPhase) noexcept override {
    std::unique_ptr<Plugin> plugin;
    logged(op_, [&]() -> Status {
      OPGATE_RETURN_IF_ERROR(check_types());
      const PluginFieldCollection all = fields ? *fields : PluginFieldCollection{};
      Attributes attributes;
      PresentInputs present;
      OPGATE_RETURN_IF_ERROR(read_attributes(op_.signature, all, attributes));
      OPGATE_RETURN_IF_ERROR(read_present_inputs(op_.signature, all, present));
      OPGATE_RETURN_IF_ERROR(check_node(op_, Device::cuda, attributes));
      plugin = std::make_unique<Plugin>(op_, attributes, present);
      return {};
    });
    return plugin.release();
  }

  const PluginFieldCollection* getFieldNames() noexcept override { return &collection_; }
  const char* getPluginName() const noexcept override { return op_.signature.name.c_str(); }
  const char* getPluginVersion() const noexcept override { return "1"; }
  const char* getPluginNamespace() const noexcept override { return ""; }

 private:
  /// Fails if plugins can have no type of a tensor of the op.
  Status check_types() const {
    const auto check = [&](const std::string& what, const std::string& name, const ElementType& type) -> Status {
      std::span<const DType> dtypes(&type.dtype, 1);
      if (type.variable >= 0) dtypes = op_.signature.type_variables[type.variable].dtypes;
      if (std::ranges::any_of(dtypes, [](DType dtype) { return to_trt(dtype).has_value(); })) return {};
      return Status::invalid(what + " '" + name + "': TensorRT's plugins take no tensors of type " +
                             std::string(opgate::name_of(dtypes[0])));
    };
    for (const Input& input : op_.signature.inputs) OPGATE_RETURN_IF_ERROR(check("input", input.name, input.type));
    for (const Output& output : op_.signature.outputs)
      OPGATE_RETURN_IF_ERROR(check("output", output.name, output.type));
    return {};
  }

  const Op& op_;
  std::vector<PluginField> names_;
  PluginFieldCollection collection_{};
};

std::span<nvinfer1::IPluginCreatorInterface* const> creators() {
  static std::deque<Creator> all;
  static std::vector<nvinfer1::IPluginCreatorInterface*> pointers;
  static std::once_flag once;
  std::call_once(once, [] {
    for (const std::string& error : Table::instance().errors()) log_error(error);
    for (const Op& op : Table::instance().ops()) {
      if (op.has_kernel(Device::cuda)) pointers.push_back(&all.emplace_back(op));
    }
  });
  return pointers;
}

/// Registers the creators in the registry of a library such as libnvinfer.so.11. Returns whether it could.
bool register_in(const char* library) {
  void* handle = dlopen(library, RTLD_LAZY);
  void* registry_of = handle ? dlsym(handle, "getPluginRegistry") : nullptr;
  void* version_of = registry_of ? dlsym(handle, "getInferLibMajorVersion") : nullptr;
  if (!version_of) {
    log_error(std::string("OPGATE_TENSORRT_REGISTRY: ") + dlerror());
    return false;
  }
  const int version = reinterpret_cast<int (*)()>(version_of)();
  const auto slots = slots_of(version);
  if (!slots) {
    log_error("OPGATE_TENSORRT_REGISTRY: " + std::string(library) + " is of TensorRT " + std::to_string(version) +
              ", and these plugins fit 10 and 11");
    return false;
  }
  void* registry = reinterpret_cast<void* (*)()>(registry_of)();
  for (nvinfer1::IPluginCreatorInterface* creator : creators()) {
    if (!call_virtual<bool>(registry, slots->register_creator, creator, ""))
      log_error(std::string(library) + " refused to register a plugin: is there another one of its name?");
  }
  return true;
}

/// Registers the creators when the library is loaded, if OPGATE_TENSORRT_REGISTRY names the library of TensorRT. ONNX
/// Runtime's TensorRT provider needs that: it loads a library of plugins and then calls nothing of it.
bool register_on_load() {
  const char* library = std::getenv("OPGATE_TENSORRT_REGISTRY");
  return library && *library && register_in(library);
}

const bool registered_on_load = register_on_load();

}  // namespace
}  // namespace opgate::tensorrt

extern "C" __attribute__((visibility("default"))) void setLoggerFinder(nvinfer1::ILoggerFinder* finder) {
  opgate::tensorrt::logger_finder = finder;
}

extern "C" __attribute__((visibility("default"))) nvinfer1::IPluginCreatorInterface* const* getCreators(
    std::int32_t& count) {
  using namespace opgate::tensorrt;
  // TensorRT registers what this returns, and nothing may be registered twice.
  count = registered_on_load ? 0 : static_cast<std::int32_t>(creators().size());
  return creators().data();
}
