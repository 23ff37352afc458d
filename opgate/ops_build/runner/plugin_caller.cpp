#include "plugin_caller.h"

#include <dlfcn.h>

#include <memory>

#include "adapters/tensorrt/constant_shapes.h"
#include "adapters/tensorrt/fields.h"
#include "kernel_toolkit/cuda.h"
#include "op_call/invoke.h"

namespace opgate::tensorrt {

using nvinfer1::DimsExprs;
using nvinfer1::DynamicPluginTensorDesc;
using nvinfer1::PluginTensorDesc;

/// The tensors of a layer, as TensorRT describes them to a plugin.
struct Plugins::Layer {
  std::vector<PluginTensorDesc> inputs, outputs;
  std::vector<const void*> input_data;
  std::vector<void*> output_data;
  std::vector<DimsExprs> input_shapes, scalars, output_shapes;
  ConstantBuilder builder;

  std::int32_t input_count() const { return static_cast<std::int32_t>(inputs.size()); }
  std::int32_t output_count() const { return static_cast<std::int32_t>(outputs.size()); }
};

namespace {

nvinfer1::IPluginV3OneBuild& building(nvinfer1::IPluginV3& plugin) {
  return *static_cast<nvinfer1::IPluginV3OneBuild*>(
      plugin.getCapabilityInterface(nvinfer1::PluginCapabilityType::kBUILD));
}

nvinfer1::IPluginV3OneRuntime& running(nvinfer1::IPluginV3& plugin) {
  return *static_cast<nvinfer1::IPluginV3OneRuntime*>(
      plugin.getCapabilityInterface(nvinfer1::PluginCapabilityType::kRUNTIME));
}

/// Refuses every allocation, because a plugin must not allocate in enqueue().
class NoAllocator final : public nvinfer1::IGpuAsyncAllocator {
 public:
  void* allocateAsync(std::uint64_t, std::uint64_t, nvinfer1::AllocatorFlags, cudaStream_t) noexcept override {
    return nullptr;
  }
  bool deallocateAsync(void*, cudaStream_t) noexcept override { return false; }
};

class ResourceContext final : public nvinfer1::IPluginResourceContext {
 public:
  nvinfer1::IGpuAllocator* getGpuAllocator() const noexcept override { return &allocator_; }
  nvinfer1::IErrorRecorder* getErrorRecorder() const noexcept override { return nullptr; }

 private:
  mutable NoAllocator allocator_;
};

std::vector<DynamicPluginTensorDesc> dynamic(const std::vector<PluginTensorDesc>& descs) {
  std::vector<DynamicPluginTensorDesc> tensors;
  for (const PluginTensorDesc& desc : descs) tensors.push_back({desc, desc.dims, desc.dims, desc.dims});
  return tensors;
}

/// Asks the plugin, as TensorRT does, whether it supports the types of the tensors.
bool supported(nvinfer1::IPluginV3OneBuild& build, const std::vector<PluginTensorDesc>& inputs,
               const std::vector<PluginTensorDesc>& outputs) {
  std::vector<DynamicPluginTensorDesc> tensors = dynamic(inputs);
  for (const DynamicPluginTensorDesc& tensor : dynamic(outputs)) tensors.push_back(tensor);
  for (int i = 0; i < static_cast<int>(tensors.size()); ++i) {
    if (!build.supportsFormatCombination(i, tensors.data(), static_cast<int>(inputs.size()),
                                         static_cast<int>(outputs.size())))
      return false;
  }
  return true;
}

}  // namespace

Status Plugins::open(const char* library) {
  void* handle = dlopen(*library ? library : nullptr, RTLD_NOW | RTLD_LOCAL);
  if (!handle) return Status::invalid(dlerror());
  const auto set_finder = reinterpret_cast<void (*)(nvinfer1::ILoggerFinder*)>(dlsym(handle, "setLoggerFinder"));
  const auto get =
      reinterpret_cast<nvinfer1::IPluginCreatorInterface* const* (*)(std::int32_t&)>(dlsym(handle, "getCreators"));
  if (!set_finder || !get) return Status::invalid(std::string(library) + " is no plugin library");
  set_finder(&finder_);
  creators_ = get(count_);
  return {};
}

Status Plugins::refused(const std::string& by) const {
  std::string text = by + " failed";
  for (const std::string& message : log_.messages) text += ": " + message;
  return Status::invalid(text);
}

Status Plugins::describe(const Tensor& tensor, const Input& input, Layer& layer) {
  const auto type = to_trt(tensor.dtype());
  if (!type) return Status::invalid("input '" + input.name + "': TensorRT's plugins take no tensors of its type");
  if (tensor.rank() > nvinfer1::Dims::MAX_DIMS)
    return Status::invalid("input '" + input.name + "': TensorRT's tensors have at most 8 dims");
  PluginTensorDesc desc{};
  desc.type = *type;
  desc.format = nvinfer1::TensorFormat::kLINEAR;
  desc.dims.nbDims = static_cast<std::int32_t>(tensor.rank());
  std::ranges::copy(tensor.dims(), desc.dims.d);
  layer.inputs.push_back(desc);
  layer.input_data.push_back(tensor.raw());
  layer.input_shapes.push_back(layer.builder.dims(tensor.dims().data(), tensor.dims().size()));
  return {};
}

Status Plugins::describe_inputs(const Signature& signature, const InputPointers& inputs, Layer& layer,
                                PresentInputs& present) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i]) continue;
    const std::size_t index = std::min(i, signature.inputs.size() - 1);
    const Input& input = signature.inputs[index];
    if (present.empty() || present.back() != static_cast<std::int64_t>(index))
      present.push_back(static_cast<int>(index));
    if (input.host) {
      const std::int64_t value = integer_scalar(*inputs[i]).value_or(0);
      layer.scalars.push_back(layer.builder.dims(&value, 1));
    } else {
      OPGATE_RETURN_IF_ERROR(describe(*inputs[i], input, layer));
    }
  }
  return {};
}

nvinfer1::IPluginCreatorV3One* Plugins::find_creator(const std::string& op) const {
  for (int i = 0; i < count_; ++i) {
    auto* candidate = static_cast<nvinfer1::IPluginCreatorV3One*>(creators_[i]);
    if (op == candidate->getPluginName()) return candidate;
  }
  return nullptr;
}

Status Plugins::describe_outputs(nvinfer1::IPluginV3OneBuild& build, Layer& layer) const {
  const std::int32_t count = build.getNbOutputs();
  std::vector<nvinfer1::DataType> input_types, output_types(static_cast<std::size_t>(count));
  for (const PluginTensorDesc& desc : layer.inputs) input_types.push_back(desc.type);
  if (build.getOutputDataTypes(output_types.data(), count, input_types.data(), layer.input_count()))
    return refused("getOutputDataTypes");
  layer.output_shapes.resize(static_cast<std::size_t>(count));
  if (build.getOutputShapes(layer.input_shapes.data(), layer.input_count(), layer.scalars.data(),
                            static_cast<std::int32_t>(layer.scalars.size()), layer.output_shapes.data(), count,
                            layer.builder))
    return refused("getOutputShapes");
  for (std::int32_t o = 0; o < count; ++o) {
    PluginTensorDesc& desc = layer.outputs.emplace_back();
    desc.type = output_types[o];
    desc.format = nvinfer1::TensorFormat::kLINEAR;
    desc.dims.nbDims = layer.output_shapes[o].nbDims;
    for (int d = 0; d < desc.dims.nbDims; ++d) desc.dims.d[d] = layer.output_shapes[o].d[d]->getConstantValue();
  }
  return {};
}

Status Plugins::allocate_outputs(const Signature& signature, Engine& engine, Layer& layer) {
  for (std::size_t o = 0; o < layer.outputs.size(); ++o) {
    const PluginTensorDesc& desc = layer.outputs[o];
    const std::span dims(desc.dims.d, static_cast<std::size_t>(desc.dims.nbDims));
    const DType dtype = *from_trt(desc.type);
    void* data = nullptr;
    if (o < signature.outputs.size()) OPGATE_RETURN_IF_ERROR(engine.allocate_output(o, dtype, dims, &data));
    // TensorRT allocates every output, so an output that nothing reads gets memory too.
    layer.output_data.push_back(data ? data : engine.scratch(bytes_of(dtype, dims)));
  }
  return {};
}

Status Plugins::enqueue(nvinfer1::IPluginV3& plugin, Engine& engine, const Layer& layer) const {
  const std::vector<DynamicPluginTensorDesc> inputs = dynamic(layer.inputs), outputs = dynamic(layer.outputs);
  const std::size_t workspace_bytes =
      building(plugin).getWorkspaceSize(inputs.data(), layer.input_count(), outputs.data(), layer.output_count());
  void* const workspace = workspace_bytes ? engine.scratch(workspace_bytes) : nullptr;
  if (running(plugin).enqueue(layer.inputs.data(), layer.outputs.data(), layer.input_data.data(),
                              layer.output_data.data(), workspace, static_cast<cudaStream_t>(engine.stream())))
    return refused("enqueue");
  return {};
}

Status Plugins::trim_outputs(const Op& op, const InputPointers& inputs, const Attributes& attributes,
                             const Layer& layer, Engine& engine) {
  std::vector<std::int64_t> sizes;
  for (std::size_t o = op.signature.outputs.size(); o < layer.output_data.size(); ++o) {
    std::int32_t size = 0;
    OPGATE_RETURN_IF_ERROR(cuda::read(&size, layer.output_data[o], sizeof size, engine.stream()));
    sizes.push_back(size);
  }
  std::vector<Dims> dims;
  OPGATE_RETURN_IF_ERROR(exact_dims(op, inputs, attributes, sizes, dims));
  for (std::size_t o = 0; o < dims.size(); ++o)
    OPGATE_RETURN_IF_ERROR(engine.trim(o, *from_trt(layer.outputs[o].type), dims[o]));
  return {};
}

Status Plugins::call(const Op& op, const InputPointers& inputs, const Attributes& attributes, Engine& engine) {
  log_.messages.clear();
  const Signature& signature = op.signature;
  nvinfer1::IPluginCreatorV3One* const creator = find_creator(signature.name);
  if (!creator) return Status::internal("the library has no plugin " + signature.name);

  Layer layer;
  PresentInputs present;
  OPGATE_RETURN_IF_ERROR(describe_inputs(signature, inputs, layer, present));
  const Fields fields(signature, attributes, present);
  const std::unique_ptr<nvinfer1::IPluginV3> prototype(
      creator->createPlugin("node", fields.collection(), nvinfer1::TensorRTPhase::kRUNTIME));
  if (!prototype) return refused("createPlugin");
  ResourceContext context;
  const std::unique_ptr<nvinfer1::IPluginV3> plugin(running(*prototype).attachToContext(&context));
  if (!plugin) return refused("attachToContext");

  OPGATE_RETURN_IF_ERROR(describe_outputs(building(*plugin), layer));
  if (running(*plugin).onShapeChange(layer.inputs.data(), layer.input_count(), layer.outputs.data(),
                                     layer.output_count()))
    return refused("onShapeChange");
  if (!supported(building(*plugin), layer.inputs, layer.outputs)) return refused("supportsFormatCombination");
  OPGATE_RETURN_IF_ERROR(allocate_outputs(signature, engine, layer));
  OPGATE_RETURN_IF_ERROR(enqueue(*plugin, engine, layer));
  return trim_outputs(op, inputs, attributes, layer, engine);
}

}  // namespace opgate::tensorrt
