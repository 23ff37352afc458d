#include "call.h"

#include <cstring>

#include "kernel_toolkit/cuda.h"

namespace opgate::tensorrt {

Status CallInputs::read(std::span<const nvinfer1::PluginTensorDesc> inputs,
                        std::span<const nvinfer1::PluginTensorDesc> outputs, const void* const* data) {
  std::vector<int> indices;
  OPGATE_RETURN_IF_ERROR(layout_.device(static_cast<int>(inputs.size()), indices));
  InSignatureOrder<const Tensor*> tensors(signature_);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Input& input = signature_.inputs[indices[i]];
    const auto dtype = from_trt(inputs[i].type);
    if (!dtype) return Status::invalid("input '" + input.name + "' has a type that the ops don't know");
    const Dims& dims = dims_.emplace_back(std::span(inputs[i].dims.d, static_cast<std::size_t>(inputs[i].dims.nbDims)));
    tensors.add(indices[i], &tensors_.emplace_back(data ? data[i] : nullptr, *dtype, dims, Device::cuda, input.name));
  }
  for (const int index : layout_.host()) {
    const Tensor* tensor = nullptr;
    OPGATE_RETURN_IF_ERROR(read_scalar(index, outputs, tensor));
    tensors.add(index, tensor);
  }
  tensors_in_order_ = tensors.all();
  while (!tensors_in_order_.empty() && !tensors_in_order_.back()) tensors_in_order_.pop_back();
  return {};
}

/// TensorRT gives the values of inputs on the host to the shapes only. Where a value is a dim of an output, it is read
/// there.
Status CallInputs::read_scalar(int index, std::span<const nvinfer1::PluginTensorDesc> outputs, const Tensor*& tensor) {
  const Input& input = signature_.inputs[index];
  for (std::size_t o = 0; o < signature_.outputs.size(); ++o) {
    const std::vector<OutputDim>& dims = signature_.outputs[o].dims;
    const nvinfer1::Dims& sizes = outputs[o].dims;
    bool behind_ellipsis = false;
    for (std::size_t d = 0; d < dims.size(); ++d) {
      behind_ellipsis |= dims[d].kind == OutputDim::Kind::ellipsis;
      if (dims[d].kind != OutputDim::Kind::expr || dims[d].expr.kind != Expr::Kind::name) continue;
      const Slot& slot = signature_.slots[dims[d].expr.slot];
      if (slot.kind != Slot::Kind::scalar_input || slot.index != index) continue;
      const std::size_t at = behind_ellipsis ? static_cast<std::size_t>(sizes.nbDims) - (dims.size() - d) : d;
      std::int64_t& value = scalars_.emplace_back(sizes.d[at]);
      if (input.type.dtype == DType::i32) {
        const auto narrow = static_cast<std::int32_t>(value);
        std::memcpy(&value, &narrow, sizeof narrow);
      }
      tensor =
          &tensors_.emplace_back(&value, input.type.dtype, std::span<const std::int64_t>(), Device::cpu, input.name);
      return {};
    }
  }
  return Status::invalid("input '" + input.name + "' is read on the host, and TensorRT gives its value to a kernel " +
                         "only where it is an output's dim");
}

EnqueueEngine::~EnqueueEngine() {
  for (void* memory : scratch_) {
    if (call_.allocator)
      call_.allocator->deallocateAsync(memory, call_.stream);
    else
      static_cast<void>(cuda::status(cudaFreeAsync(memory, call_.stream), "freeing memory"));
  }
}

std::size_t EnqueueEngine::kernel_workspace_offset(std::size_t kernel_sizes) {
  const std::size_t bytes = kernel_sizes * sizeof(std::int64_t);
  return (bytes + Workspace::kAlignment - 1) / Workspace::kAlignment * Workspace::kAlignment;
}

Status EnqueueEngine::allocate_output(std::size_t index, DType dtype, std::span<const std::int64_t> dims, void** data) {
  *data = call_.outputs[index];
  if (!*data && bytes_of(dtype, dims) == 0) *data = &nothing_;  // an empty tensor has no memory
  return {};
}

Status EnqueueEngine::allocate_sizes(std::size_t, std::int64_t** sizes) {
  *sizes = static_cast<std::int64_t*>(call_.workspace);
  return {};
}

std::span<char> EnqueueEngine::workspace() {
  if (!call_.workspace_bytes) return {};
  return {static_cast<char*>(call_.workspace) + kernel_workspace_offset(call_.kernel_sizes), call_.workspace_bytes};
}

int EnqueueEngine::ordinal() { return cuda::current_device(); }

void* EnqueueEngine::scratch(std::size_t bytes) {
  void* memory = nullptr;
  if (call_.allocator)
    memory = call_.allocator->allocateAsync(bytes, Workspace::kAlignment, 0, call_.stream);
  else if (!cuda::status(cudaMallocAsync(&memory, bytes, call_.stream), "allocating memory").ok())
    memory = nullptr;
  if (!memory) throw std::bad_alloc();
  scratch_.push_back(memory);
  return memory;
}

}  // namespace opgate::tensorrt
