// One call of a kernel from a plugin.
#pragma once

#include <NvInferRuntime.h>

#include <algorithm>
#include <deque>

#include "layout.h"
#include "op_call/invoke.h"

namespace opgate::tensorrt {

/// The inputs of a layer as Tensors. Can't be moved, because the Tensors point into it.
class CallInputs {
 public:
  CallInputs(const Signature& signature, const InputLayout& layout) : signature_(signature), layout_(layout) {}
  CallInputs(const CallInputs&) = delete;
  CallInputs& operator=(const CallInputs&) = delete;

  /// `data` is nullptr if nobody reads the elements. The values of inputs on the host come from dims of the outputs.
  Status read(std::span<const nvinfer1::PluginTensorDesc> inputs, std::span<const nvinfer1::PluginTensorDesc> outputs,
              const void* const* data);

  InputPointers pointers() const { return InputPointers(tensors_in_order_); }

  /// Whether TensorRT knows every dim. A dim that another plugin computes is -1 until it has run.
  bool dims_are_known() const {
    return std::ranges::all_of(
        dims_, [](const Dims& dims) { return std::ranges::all_of(dims, [](std::int64_t dim) { return dim >= 0; }); });
  }

 private:
  Status read_scalar(int index, std::span<const nvinfer1::PluginTensorDesc> outputs, const Tensor*& tensor);

  const Signature& signature_;
  const InputLayout& layout_;
  std::deque<Dims> dims_;
  std::deque<Tensor> tensors_;
  std::deque<std::int64_t> scalars_;
  std::vector<const Tensor*> tensors_in_order_;
};

/// The Engine of a call in enqueue(). Its memory is that of the outputs and of the workspace that getWorkspaceSize()
/// has requested. The workspace begins with the sizes that only the kernel knows.
class EnqueueEngine final : public Engine {
 public:
  struct Call {
    std::span<void* const> outputs;  ///< without the size tensors
    void* workspace;
    std::size_t kernel_sizes;     ///< the number of sizes that only the kernel knows
    std::size_t workspace_bytes;  ///< without the sizes
    cudaStream_t stream;
    nvinfer1::IGpuAllocator* allocator;  ///< nullptr if CUDA allocates
  };

  /// The offset of the kernel's workspace, behind the sizes.
  static std::size_t kernel_workspace_offset(std::size_t kernel_sizes);

  explicit EnqueueEngine(const Call& call) : call_(call) {}
  ~EnqueueEngine() override;

  Status allocate_output(std::size_t index, DType dtype, std::span<const std::int64_t> dims, void** data) override;
  Status allocate_bounded(std::size_t index, DType dtype, std::span<const std::int64_t> dims, void** data) override {
    return allocate_output(index, dtype, dims, data);
  }
  Status allocate_sizes(std::size_t count, std::int64_t** sizes) override;
  bool takes_padded_outputs() const override { return true; }
  std::span<char> workspace() override;
  int ordinal() override;
  void* stream() override { return call_.stream; }

  void parallel_for(std::size_t tasks, void (*task)(void*, std::size_t), void* user) override {
    for (std::size_t i = 0; i < tasks; ++i) task(user, i);
  }

  /// Memory from TensorRT's allocator, in the stream's order. For kernels that state no workspace.
  void* scratch(std::size_t bytes) override;

 private:
  Call call_;
  std::vector<void*> scratch_;
  char nothing_ = 0;
};

}  // namespace opgate::tensorrt
