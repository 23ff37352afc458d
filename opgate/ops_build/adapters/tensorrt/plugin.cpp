#include "plugin.h"

#include <limits>

#include "call.h"
#include "expressions.h"
#include "kernel_toolkit/cuda.h"
#include "log.h"

namespace opgate::tensorrt {

using nvinfer1::DataType;
using nvinfer1::DimsExprs;
using nvinfer1::DynamicPluginTensorDesc;
using nvinfer1::PluginTensorDesc;

namespace {

template <typename T>
std::span<const T> span_of(const T* first, int count) {
  return {first, static_cast<std::size_t>(count)};
}

/// The tensors with the largest dims that they may have.
std::vector<PluginTensorDesc> largest(const DynamicPluginTensorDesc* tensors, int count) {
  std::vector<PluginTensorDesc> found;
  for (const DynamicPluginTensorDesc& tensor : span_of(tensors, count)) {
    found.push_back(tensor.desc);
    found.back().dims = tensor.max;
  }
  return found;
}

}  // namespace

Plugin::Plugin(const Op& op, const Attributes& attributes, const PresentInputs& present)
    : op_(op),
      attributes_(attributes),
      present_(present),
      layout_(op.signature, present),
      fields_(op.signature, attributes_, present),
      metadata_(fields_.text()) {
  for (const Slot& slot : op.signature.slots) kernel_sizes_ += slot.kind == Slot::Kind::kernel;
}

nvinfer1::IPluginCapability* Plugin::getCapabilityInterface(nvinfer1::PluginCapabilityType type) noexcept {
  switch (type) {
    case nvinfer1::PluginCapabilityType::kCORE: return static_cast<nvinfer1::IPluginV3OneCore*>(this);
    case nvinfer1::PluginCapabilityType::kBUILD: return static_cast<nvinfer1::IPluginV3OneBuild*>(this);
    case nvinfer1::PluginCapabilityType::kRUNTIME: return static_cast<nvinfer1::IPluginV3OneRuntime*>(this);
  }
  return nullptr;
}

Plugin* Plugin::clone() noexcept {
  std::unique_ptr<Plugin> copy;
  logged(op_, [&]() -> Status {
    copy = std::make_unique<Plugin>(op_, attributes_, present_);
    copy->allocator_ = allocator_;
    return {};
  });
  return copy.release();
}

int Plugin::getOutputDataTypes(DataType* outputs, int count, const DataType* inputs, int input_count) const noexcept {
  return logged(op_, [&]() -> Status {
    std::vector<std::optional<DType>> types(op_.signature.type_variables.size());
    std::vector<int> indices;
    OPGATE_RETURN_IF_ERROR(layout_.device(input_count, indices));
    for (int i = 0; i < input_count; ++i) {
      const int variable = op_.signature.inputs[indices[i]].type.variable;
      if (variable >= 0 && !types[variable]) types[variable] = from_trt(inputs[i]);
    }
    for (int o = 0; o < count; ++o) {
      if (o >= static_cast<int>(op_.signature.outputs.size())) {
        outputs[o] = DataType::kINT32;  // TensorRT requires it of a size tensor
        continue;
      }
      const ElementType& type = op_.signature.outputs[o].type;
      const std::optional<DType> dtype = type.variable < 0 ? type.dtype : types[type.variable];
      const auto type_in_trt = dtype ? to_trt(*dtype) : std::nullopt;
      if (!type_in_trt)
        return Status::invalid("the type of output '" + op_.signature.outputs[o].name + "' is not known");
      outputs[o] = *type_in_trt;
    }
    return {};
  });
}

int Plugin::getOutputShapes(const DimsExprs* inputs, int input_count, const DimsExprs* scalars, int scalar_count,
                            DimsExprs* outputs, int output_count, nvinfer1::IExprBuilder& builder) noexcept {
  return logged(op_, [&] {
    return output_shapes(op_.signature, layout_, attributes_, span_of(inputs, input_count),
                         span_of(scalars, scalar_count), {outputs, static_cast<std::size_t>(output_count)}, builder);
  });
}

bool Plugin::supportsFormatCombination(int index, const DynamicPluginTensorDesc* tensors, int input_count,
                                       int) noexcept {
  bool supported = false;
  logged(op_, [&]() -> Status {
    std::vector<int> indices;
    OPGATE_RETURN_IF_ERROR(layout_.device(input_count, indices));
    supported = supports(index, tensors, indices);
    return {};
  });
  return supported;
}

/// `inputs` has the indices in the signature of the layer's inputs.
bool Plugin::supports(int index, const DynamicPluginTensorDesc* tensors, const std::vector<int>& inputs) const {
  const PluginTensorDesc& desc = tensors[index].desc;
  if (desc.format != nvinfer1::TensorFormat::kLINEAR) return false;
  const int count = static_cast<int>(inputs.size()), output = index - count;
  if (output >= static_cast<int>(op_.signature.outputs.size())) return desc.type == DataType::kINT32;
  const ElementType& type =
      index < count ? op_.signature.inputs[inputs[index]].type : op_.signature.outputs[output].type;
  if (type.variable < 0) return to_trt(type.dtype) == desc.type;
  for (int i = 0; i < std::min(index, count); ++i) {  // the first tensor with the type variable decides
    if (op_.signature.inputs[inputs[i]].type.variable == type.variable) return tensors[i].desc.type == desc.type;
  }
  return std::ranges::any_of(op_.signature.type_variables[type.variable].dtypes,
                             [&](DType dtype) { return to_trt(dtype) == desc.type; });
}

std::size_t Plugin::getWorkspaceSize(const DynamicPluginTensorDesc* inputs, int input_count,
                                     const DynamicPluginTensorDesc* outputs, int output_count) const noexcept {
  std::size_t bytes = 0;
  const int failed = logged(op_, [&]() -> Status {
    CallInputs call(op_.signature, layout_);
    OPGATE_RETURN_IF_ERROR(call.read(largest(inputs, input_count), largest(outputs, output_count), nullptr));
    return measure_workspace(op_, Device::cuda, call.pointers(), attributes_, bytes);
  });
  if (failed) return std::numeric_limits<std::size_t>::max();  // no engine can be built with it
  return EnqueueEngine::kernel_workspace_offset(kernel_sizes_) + bytes;
}

/// Prepares the kernel, so that enqueue() allocates nothing.
int Plugin::onShapeChange(const PluginTensorDesc* inputs, int input_count, const PluginTensorDesc* outputs,
                          int output_count) noexcept {
  input_count_ = static_cast<std::size_t>(input_count);
  return logged(op_, [&]() -> Status {
    CallInputs call(op_.signature, layout_);
    OPGATE_RETURN_IF_ERROR(call.read(span_of(inputs, input_count), span_of(outputs, output_count), nullptr));
    if (!call.dims_are_known()) return {};  // another plugin computes a size: enqueue() prepares
    CallWalk walk(op_.signature);
    OPGATE_RETURN_IF_ERROR(bind_inputs(walk, call.pointers(), attributes_));
    OPGATE_RETURN_IF_ERROR(check_node(op_, Device::cuda, attributes_, walk.binding().sizes));
    std::shared_ptr<const void> kernel;
    const NodeFacts facts = facts_of_call(walk, call.pointers(), cuda::current_device());
    return kernels_.find(op_, Device::cuda, attributes_, facts, kernel);
  });
}

int Plugin::enqueue(const PluginTensorDesc* inputs, const PluginTensorDesc* outputs, const void* const* input_data,
                    void* const* output_data, void* workspace, cudaStream_t stream) noexcept {
  return logged(op_, [&]() -> Status {
    const std::size_t output_count = op_.signature.outputs.size();
    CallInputs call(op_.signature, layout_);
    OPGATE_RETURN_IF_ERROR(call.read({inputs, input_count_}, {outputs, output_count}, input_data));
    // The dims of an input that another plugin computes change without a call of onShapeChange().
    std::size_t workspace_bytes = 0;
    OPGATE_RETURN_IF_ERROR(measure_workspace(op_, Device::cuda, call.pointers(), attributes_, workspace_bytes));
    EnqueueEngine engine({{output_data, output_count}, workspace, kernel_sizes_, workspace_bytes, stream, allocator_});
    OPGATE_RETURN_IF_ERROR(invoke(op_, Device::cuda, call.pointers(), attributes_, engine, &kernels_));
    // A size tensor is i32. It gets the lower half of the i64 that the kernel has written.
    for (std::size_t i = 0; i < kernel_sizes_; ++i) {
      OPGATE_RETURN_IF_ERROR(cuda::copy(output_data[output_count + i], static_cast<const std::int64_t*>(workspace) + i,
                                        sizeof(std::int32_t), stream));
    }
    return {};
  });
}

nvinfer1::IPluginV3* Plugin::attachToContext(nvinfer1::IPluginResourceContext* context) noexcept {
  Plugin* attached = clone();
  if (attached && context) attached->allocator_ = context->getGpuAllocator();
  return attached;
}

}  // namespace opgate::tensorrt
