#include "plugin_caller.h"

#include <dlfcn.h>

#include <memory>

#include "constant_shapes.h"
#include "core/cuda.h"
#include "core/invoke.h"
#include "fields.h"

namespace opgate::tensorrt {
namespace {

using nvinfer1::DimsExprs;
using nvinfer1::DynamicPluginTensorDesc;
using nvinfer1::PluginTensorDesc;

/// A layer's tensors, as TensorRT describes them to a plugin.
struct Layer {
  std::vector<PluginTensorDesc> inputs, outputs;
  std::vector<const void*> input_data;
  std::vector<void*> output_data;
  std::vector<DimsExprs> input_shapes, scalars, output_shapes;
  ConstantBuilder builder;
};

Status describe(const Tensor& tensor, const Input& input, Layer& layer) {
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

/// Inputs on the device go to the layer, those on the host to the shapes only. `present` are their places.
Status describe_inputs(const Signature& signature, const InputPointers& inputs, Layer& layer, PresentInputs& present) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i]) continue;
    const std::size_t place = std::min(i, signature.inputs.size() - 1);
    const Input& input = signature.inputs[place];
    if (present.empty() || present.back() != static_cast<std::int64_t>(place)) present.push_back(static_cast<int>(place));
    if (input.host) {
      const std::int64_t value = integer_scalar(*inputs[i]).value_or(0);
      layer.scalars.push_back(layer.builder.dims(&value, 1));
    } else {
      OPGATE_RETURN_IF_ERROR(describe(*inputs[i], input, layer));
    }
  }
  return {};
}

nvinfer1::IPluginV3OneBuild& building(nvinfer1::IPluginV3& plugin) {
  return *static_cast<nvinfer1::IPluginV3OneBuild*>(
      plugin.getCapabilityInterface(nvinfer1::PluginCapabilityType::kBUILD));
}

nvinfer1::IPluginV3OneRuntime& running(nvinfer1::IPluginV3& plugin) {
  return *static_cast<nvinfer1::IPluginV3OneRuntime*>(
      plugin.getCapabilityInterface(nvinfer1::PluginCapabilityType::kRUNTIME));
}

/// Gives no memory: a plugin must not allocate while it is enqueued.
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

/// Whether the plugin takes the types that the tensors have, asked as TensorRT asks.
bool supported(nvinfer1::IPluginV3OneBuild& build, const Layer& layer) {
  std::vector<DynamicPluginTensorDesc> tensors = dynamic(layer.inputs);
  for (const DynamicPluginTensorDesc& tensor : dynamic(layer.outputs)) tensors.push_back(tensor);
  for (int i = 0; i < static_cast<int>(tensors.size()); ++i) {
    if (!build.supportsFormatCombination(i, tensors.data(), static_cast<int>(layer.inputs.size()),
                                         static_cast<int>(layer.outputs.size())))
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

Status Plugins::call(const Op& op, const InputPointers& inputs, const Attributes& attributes, Engine& engine) {
  log_.messages.clear();
  const Signature& signature = op.signature;
  nvinfer1::IPluginCreatorV3One* creator = nullptr;
  for (int i = 0; i < count_; ++i) {
    auto* candidate = static_cast<nvinfer1::IPluginCreatorV3One*>(creators_[i]);
    if (signature.name == candidate->getPluginName()) creator = candidate;
  }
  if (!creator) return Status::internal("the library has no plugin " + signature.name);

  Layer layer;
  PresentInputs present;
  OPGATE_RETURN_IF_ERROR(describe_inputs(signature, inputs, layer, present));
  const Fields fields(signature, attributes, present);
  const std::unique_ptr<nvinfer1::IPluginV3> made(
      creator->createPlugin("node", fields.collection(), nvinfer1::TensorRTPhase::kRUNTIME));
  if (!made) return refused("createPlugin");
  ResourceContext context;
  const std::unique_ptr<nvinfer1::IPluginV3> plugin(running(*made).attachToContext(&context));
  if (!plugin) return refused("attachToContext");
  nvinfer1::IPluginV3OneBuild& build = building(*plugin);

  const auto input_count = static_cast<std::int32_t>(layer.inputs.size());
  const std::int32_t output_count = build.getNbOutputs();
  std::vector<nvinfer1::DataType> input_types, output_types(static_cast<std::size_t>(output_count));
  for (const PluginTensorDesc& desc : layer.inputs) input_types.push_back(desc.type);
  if (build.getOutputDataTypes(output_types.data(), output_count, input_types.data(), input_count))
    return refused("getOutputDataTypes");
  layer.output_shapes.resize(static_cast<std::size_t>(output_count));
  if (build.getOutputShapes(layer.input_shapes.data(), input_count, layer.scalars.data(),
                            static_cast<std::int32_t>(layer.scalars.size()), layer.output_shapes.data(), output_count,
                            layer.builder))
    return refused("getOutputShapes");
  for (std::int32_t o = 0; o < output_count; ++o) {
    PluginTensorDesc& desc = layer.outputs.emplace_back();
    desc.type = output_types[o];
    desc.format = nvinfer1::TensorFormat::kLINEAR;
    desc.dims.nbDims = layer.output_shapes[o].nbDims;
    for (int d = 0; d < desc.dims.nbDims; ++d) desc.dims.d[d] = layer.output_shapes[o].d[d]->getConstantValue();
  }
  if (running(*plugin).onShapeChange(layer.inputs.data(), input_count, layer.outputs.data(), output_count))
    return refused("onShapeChange");
  if (!supported(build, layer)) return refused("supportsFormatCombination");

  for (std::int32_t o = 0; o < output_count; ++o) {
    const PluginTensorDesc& desc = layer.outputs[o];
    const std::span dims(desc.dims.d, static_cast<std::size_t>(desc.dims.nbDims));
    const DType dtype = *from_trt(desc.type);
    void* data = nullptr;
    if (o < static_cast<std::int32_t>(signature.outputs.size()))
      OPGATE_RETURN_IF_ERROR(engine.allocate_output(static_cast<std::size_t>(o), dtype, dims, &data));
    layer.output_data.push_back(data ? data : engine.scratch(bytes_of(dtype, dims)));  // TensorRT makes every output
  }
  const std::vector<DynamicPluginTensorDesc> largest_inputs = dynamic(layer.inputs), largest_outputs = dynamic(layer.outputs);
  const std::size_t workspace_bytes =
      build.getWorkspaceSize(largest_inputs.data(), input_count, largest_outputs.data(), output_count);
  void* const workspace = workspace_bytes ? engine.scratch(workspace_bytes) : nullptr;
  if (running(*plugin).enqueue(layer.inputs.data(), layer.outputs.data(), layer.input_data.data(),
                               layer.output_data.data(), workspace, static_cast<cudaStream_t>(engine.stream())))
    return refused("enqueue");

  std::vector<std::int64_t> sizes;
  for (std::size_t o = signature.outputs.size(); o < layer.output_data.size(); ++o) {
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

}  // namespace opgate::tensorrt
