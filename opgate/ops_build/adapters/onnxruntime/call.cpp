#include "call.h"

#include <cstring>

#include "attributes.h"
#include "inference.h"

#ifdef OPGATE_WITH_CUDA
#include "kernel_toolkit/cuda.h"
#endif

namespace opgate::ort {
namespace {

class OrtEngine : public Engine {
 public:
  explicit OrtEngine(OrtKernelContext* context) : context_(context) {}

  ~OrtEngine() override {
    for (void* memory : scratch_) allocator_->Free(allocator_, memory);
    if (allocator_) api->ReleaseAllocator(allocator_);
  }

  Status allocate_output(std::size_t index, DType dtype, std::span<const std::int64_t> dims, void** data) override {
    bool wanted = false;
    OPGATE_RETURN_IF_ERROR(wants(index, wanted));
    if (!wanted) return {};
    OrtValue* value = nullptr;
    OPGATE_RETURN_IF_ERROR(from_ort(api->KernelContext_GetOutput(context_, index, dims.data(), dims.size(), &value)));
    if (!value) return {};
    if (dtype != DType::str) {
      OPGATE_RETURN_IF_ERROR(from_ort(api->GetTensorMutableData(value, data)));
      if (!*data) *data = &nothing_;  // a tensor without elements has no memory
      return {};
    }
    std::size_t count = 1;
    for (std::int64_t dim : dims) count *= static_cast<std::size_t>(dim);
    texts_.push_back({value, std::make_unique<std::string[]>(count), count});
    *data = texts_.back().values.get();
    return {};
  }

  void parallel_for(std::size_t tasks, void (*task)(void*, std::size_t), void* user) override {
    if (Status status = from_ort(api->KernelContext_ParallelFor(context_, task, tasks, 0, user)); !status.ok()) {
      throw std::runtime_error(status.message());
    }
  }

  void* scratch(std::size_t bytes) override {
    constexpr std::size_t kAlignment = 64;
    if (!allocator_) {
      OrtMemoryInfo* host_info = nullptr;
      Status status = memory_info(&host_info);
      const MemoryInfo info(host_info);
      if (status.ok()) status = from_ort(api->KernelContext_GetAllocator(context_, info.get(), &allocator_));
      if (!status.ok()) throw std::runtime_error(status.message());
    }
    void* memory = allocate(*allocator_, bytes + kAlignment);
    if (!memory) throw std::bad_alloc();
    scratch_.push_back(memory);
    const auto address = reinterpret_cast<std::uintptr_t>(memory);
    return reinterpret_cast<void*>((address + kAlignment - 1) / kAlignment * kAlignment);
  }

  /// Gives the engine the strings that the kernel has written.
  Status hand_over_texts() const {
    for (const Texts& texts : texts_) {
      for (std::size_t i = 0; i < texts.count; ++i) {
        const std::string& text = texts.values[i];
        char* buffer = nullptr;
        OPGATE_RETURN_IF_ERROR(
            from_ort(api->GetResizedStringTensorElementBuffer(texts.value, i, text.size(), &buffer)));
        std::memcpy(buffer, text.data(), text.size());
      }
    }
    return {};
  }

 protected:
  /// The memory from which scratch memory comes.
  virtual Status memory_info(OrtMemoryInfo** info) const {
    return from_ort(api->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, info));
  }

  virtual void* allocate(OrtAllocator& allocator, std::size_t bytes) const {
    return allocator.Alloc(&allocator, bytes);
  }

  /// Whether the node has the output.
  Status wants(std::size_t index, bool& wanted) {
    if (!counted_) OPGATE_RETURN_IF_ERROR(from_ort(api->KernelContext_GetOutputCount(context_, &output_count_)));
    counted_ = true;
    wanted = index < output_count_;
    return {};
  }

  OrtKernelContext* context_;

 private:
  struct Texts {
    OrtValue* value;
    std::unique_ptr<std::string[]> values;
    std::size_t count;
  };

  OrtAllocator* allocator_ = nullptr;
  std::vector<void*> scratch_;
  std::vector<Texts> texts_;
  std::size_t output_count_ = 0;
  bool counted_ = false;
  char nothing_ = 0;
};

#ifdef OPGATE_WITH_CUDA

/// A call on the stream of the CUDA provider. An output with a size that only the kernel knows is written to scratch
/// memory and then copied, because the engine can't shrink a tensor.
class OrtCudaEngine final : public OrtEngine {
 public:
  using OrtEngine::OrtEngine;

  Status find_stream() { return from_ort(api->KernelContext_GetGPUComputeStream(context_, &stream_)); }

  int ordinal() override { return cuda::current_device(); }

  void* stream() override { return stream_; }

  Status allocate_sizes(std::size_t count, std::int64_t** sizes) override {
    *sizes = sizes_ = static_cast<std::int64_t*>(scratch(count * sizeof(std::int64_t)));
    return {};
  }

  Status allocate_bounded(std::size_t index, DType dtype, std::span<const std::int64_t> dims, void** data) override {
    bool wanted = false;
    OPGATE_RETURN_IF_ERROR(wants(index, wanted));
    if (!wanted) return {};
    *data = scratch(bytes_of(dtype, dims));
    bounded_.resize(std::max(bounded_.size(), index + 1));
    bounded_[index] = *data;
    return {};
  }

  Status read_sizes(std::span<std::int64_t> sizes) override {
    return cuda::read(sizes.data(), sizes_, sizes.size_bytes(), stream_);
  }

  Status trim(std::size_t index, DType dtype, std::span<const std::int64_t> dims) override {
    void* data = nullptr;
    OPGATE_RETURN_IF_ERROR(allocate_output(index, dtype, dims, &data));
    return data ? cuda::copy(data, bounded_[index], bytes_of(dtype, dims), stream_) : Status();
  }

 private:
  Status memory_info(OrtMemoryInfo** info) const override {
    int device = 0;
    OPGATE_RETURN_IF_ERROR(cuda::status(cudaGetDevice(&device), "asking for the device"));
    return from_ort(api->CreateMemoryInfo("Cuda", OrtDeviceAllocator, device, OrtMemTypeDefault, info));
  }

  /// Scratch memory in the stream's order: other streams can't get it before the kernel has run.
  void* allocate(OrtAllocator& allocator, std::size_t bytes) const override {
    void* memory = nullptr;
    return from_ort(api->KernelContext_GetScratchBuffer(context_, allocator.Info(&allocator), bytes, &memory)).ok()
               ? memory
               : nullptr;
  }

  void* stream_ = nullptr;
  std::int64_t* sizes_ = nullptr;
  std::vector<void*> bounded_;
};

/// The number of the GPU on which a node runs.
Status ordinal_of(const OrtKernelInfo* info, int& ordinal) {
  OrtAllocator* allocator = nullptr;
  const OrtMemoryInfo* memory = nullptr;
  OPGATE_RETURN_IF_ERROR(from_ort(api->KernelInfoGetAllocator(info, OrtMemTypeDefault, &allocator)));
  Status status = from_ort(api->AllocatorGetInfo(allocator, &memory));
  if (status.ok()) status = from_ort(api->MemoryInfoGetId(memory, &ordinal));
  api->ReleaseAllocator(allocator);
  return status;
}

#endif

Status name_of_node(const OrtKernelInfo* info, std::string& name) {
  std::size_t size = 0;  // with the zero at the end
  OPGATE_RETURN_IF_ERROR(from_ort(api->KernelInfo_GetNodeName(info, nullptr, &size)));
  name.resize(size);
  OPGATE_RETURN_IF_ERROR(from_ort(api->KernelInfo_GetNodeName(info, name.data(), &size)));
  name.resize(size ? size - 1 : 0);
  return {};
}

}  // namespace

Status NodeKernel::prepare(const OrtKernelInfo* info) {
  return named(op_, [&]() -> Status {
    std::string name;
    OPGATE_RETURN_IF_ERROR(name_of_node(info, name));
    times_ = times_of(op_.signature.name, name);
    OPGATE_RETURN_IF_ERROR(read_attributes(info, op_.signature, attributes_));
    NodeInputs inputs;
    OPGATE_RETURN_IF_ERROR(inputs.read(info, op_.signature, device_));
    NodeFacts facts;
    OPGATE_RETURN_IF_ERROR(inputs.bind(op_.signature, attributes_, facts));
    OPGATE_RETURN_IF_ERROR(check_node(op_, device_, attributes_, facts.sizes));
    std::shared_ptr<const void> kernel;
#ifdef OPGATE_WITH_CUDA
    if (device_ == Device::cuda) {
      OPGATE_RETURN_IF_ERROR(ordinal_of(info, facts.ordinal));
      const cuda::DeviceGuard guard(facts.ordinal);
      return kernels_.find(op_, device_, attributes_, facts, kernel);
    }
#endif
    return kernels_.find(op_, device_, attributes_, facts, kernel);
  });
}

Status NodeKernel::compute(OrtKernelContext* context) {
  return named(op_, [&] { return run(context); });
}

Status NodeKernel::run(OrtKernelContext* context) {
  std::size_t count = 0;
  OPGATE_RETURN_IF_ERROR(from_ort(api->KernelContext_GetInputCount(context, &count)));
  std::vector<InputValue> values(count);
  InputPointers inputs(count);
  for (std::size_t i = 0; i < count; ++i) {
    const OrtValue* value = nullptr;
    OPGATE_RETURN_IF_ERROR(from_ort(api->KernelContext_GetInput(context, i, &value)));
    if (!value) continue;
    const Input& input = op_.signature.inputs[std::min(i, op_.signature.inputs.size() - 1)];
    OPGATE_RETURN_IF_ERROR(values[i].read(value, input, device_));
    inputs[i] = &values[i].tensor();
  }
#ifdef OPGATE_WITH_CUDA
  if (device_ == Device::cuda) {
    OrtCudaEngine engine(context);
    OPGATE_RETURN_IF_ERROR(engine.find_stream());
    return invoke(op_, device_, inputs, attributes_, engine, &kernels_);
  }
#endif
  OrtEngine engine(context);
  OPGATE_RETURN_IF_ERROR(invoke(op_, device_, inputs, attributes_, engine, &kernels_));
  return engine.hand_over_texts();
}

}  // namespace opgate::ort
