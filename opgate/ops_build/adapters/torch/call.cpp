#include "call.h"

#include <utility>

#include "layout.h"
#include "op_call/invoke.h"

#ifdef OPGATE_WITH_CUDA
#include "kernel_toolkit/cuda.h"
#endif

namespace opgate::libtorch {
namespace {

const Input& input_at(const Signature& signature, std::size_t index) {
  return signature.inputs[std::min(index, signature.inputs.size() - 1)];
}

/// The device of a call: the device of its first input that is not `const`.
Location location_of_call(const Signature& signature, const std::vector<Handle>& tensors) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i] && !input_at(signature, i).host) return location_of(tensors[i].get());
  }
  return {torch.cpu, 0};
}

/// A Tensor for the kernel. Replaces the handle by a copy if the tensor has another layout than the call.
Status make_view(const Input& input, Location location, const Layout& layout, Handle& tensor, Tensor& view) {
  const Location expected = input.host ? Location{torch.cpu, 0} : location;
  if (const Location found = location_of(tensor.get()); found != expected) {
    return Status::invalid("input '" + input.name + "': expected a tensor on " + text_of(expected) +
                           (input.host ? ", whatever the device of the others" : ", as the others") + ", got one on " +
                           text_of(found));
  }
  std::int32_t number = 0;
  expect(torch.aoti_torch_get_dtype(tensor.get(), &number), "asking for a tensor's dtype");
  const auto dtype = std::ranges::find(torch.dtypes, number);
  if (dtype == torch.dtypes.end()) {
    return Status::invalid("input '" + input.name +
                           "': a tensor of a dtype that no signature can state (torch's number " +
                           std::to_string(number) + ")");
  }
  OPGATE_RETURN_IF_ERROR(layout.arrange(tensor, number, expected));
  const void* data = nullptr;
  expect(torch.torch_get_const_data_ptr(tensor.get(), &data), "asking for a tensor's data");
  view = Tensor(data, static_cast<DType>(dtype - torch.dtypes.begin()), dims_of(tensor.get()),
                expected.type == torch.cpu ? Device::cpu : Device::cuda, input.name);
  return {};
}

class TorchEngine : public Engine {
 public:
  TorchEngine(Location location, const Layout& layout, const Signature& signature, Returns returns)
      : outputs(signature.outputs.size()),
        signature_(signature),
        returns_(returns),
        location_(location),
        layout_(layout) {}

  std::vector<Handle> outputs;

  bool returned(std::size_t index) const { return is_returned(signature_.outputs[index], returns_); }

  Status allocate_output(std::size_t index, DType dtype, std::span<const std::int64_t> dims, void** data) override {
    *data = nullptr;
    if (!returned(index)) return {};
    OPGATE_RETURN_IF_ERROR(
        make_tensor(location_, torch.dtypes[static_cast<int>(dtype)], dims, layout_.strides(dims), outputs[index]));
    OPGATE_RETURN_IF_ERROR(
        from_torch(torch.torch_get_mutable_data_ptr(outputs[index].get(), data), "asking for a tensor's data"));
    if (!*data) *data = &nothing_;  // a tensor without elements has no memory
    return {};
  }

  void parallel_for(std::size_t tasks, void (*task)(void*, std::size_t), void* user) override {
    std::pair context(task, user);
    const auto run = [](std::int64_t begin, std::int64_t end, void* held) {
      const auto& [task, user] = *static_cast<decltype(context)*>(held);
      for (std::int64_t i = begin; i < end; ++i) task(user, static_cast<std::size_t>(i));
    };
    expect(torch.torch_parallel_for(0, static_cast<std::int64_t>(tasks), 1, run, &context), "running on its threads");
  }

  void* scratch(std::size_t bytes) override {
    const auto size = static_cast<std::int64_t>(bytes), stride = std::int64_t{1};
    const std::int32_t byte = torch.dtypes[static_cast<int>(DType::u8)];
    void* data = nullptr;
    // Torch aligns memory to 64 bytes at least.
    if (!make_tensor(location_, byte, {&size, 1}, {&stride, 1}, scratch_.emplace_back()).ok()) throw std::bad_alloc();
    expect(torch.torch_get_mutable_data_ptr(scratch_.back().get(), &data), "asking for a tensor's data");
    return data;
  }

 protected:
  const Signature& signature_;
  const Returns returns_;
  const Location location_;
  const Layout& layout_;

 private:
  std::vector<Handle> scratch_;
  char nothing_ = 0;
};

#ifdef OPGATE_WITH_CUDA

/// A call on torch's current stream of a device. An output with a size that only the kernel knows keeps the memory for
/// its upper bound.
class TorchCudaEngine final : public TorchEngine {
 public:
  TorchCudaEngine(Location location, const Layout& layout, const Signature& signature, Returns returns)
      : TorchEngine(location, layout, signature, returns) {
    if (!torch.current_cuda_stream) throw std::runtime_error("this torch has no CUDA streams");
    DeviceGuardHandle guard = nullptr;
    expect(torch.aoti_torch_create_device_guard(location.index, &guard), "changing the device");
    guard_.reset(guard);
    expect(torch.current_cuda_stream(location.index, &stream_), "asking for the current stream");
  }

  void* stream() override { return stream_; }
  int ordinal() override { return location_.index; }

  /// A CUDA graph that torch captures holds the memory of prepared kernels, which are never deleted (registration.cpp).
  /// With a kernel for each size there would be no end of them.
  bool prepares_for_sizes() const override { return false; }

  Status allocate_sizes(std::size_t count, std::int64_t** sizes) override {
    *sizes = sizes_ = static_cast<std::int64_t*>(scratch(count * sizeof(std::int64_t)));
    return {};
  }

  Status allocate_bounded(std::size_t index, DType dtype, std::span<const std::int64_t> dims, void** data) override {
    return allocate_output(index, dtype, dims, data);
  }

  Status read_sizes(std::span<std::int64_t> sizes) override {
    return cuda::read(sizes.data(), sizes_, sizes.size_bytes(), stream_);
  }

  Status trim(std::size_t index, DType, std::span<const std::int64_t> dims) override {
    AtenTensorHandle cut = nullptr;
    OPGATE_RETURN_IF_ERROR(
        from_torch(torch.aoti_torch__reinterpret_tensor(outputs[index].get(), static_cast<std::int64_t>(dims.size()),
                                                        dims.data(), contiguous_strides(dims).data(), 0, &cut),
                   "cutting an output"));
    outputs[index].reset(cut);
    return {};
  }

 private:
  struct Restore {
    void operator()(DeviceGuardOpaque* guard) const { torch.aoti_torch_delete_device_guard(guard); }
  };

  std::unique_ptr<DeviceGuardOpaque, Restore> guard_;
  void* stream_ = nullptr;
  std::int64_t* sizes_ = nullptr;
};

#endif

Status run_on(TorchEngine& engine, const Op& op, Device device, const InputPointers& inputs,
              const Attributes& attributes, KernelCache& kernels, StableIValue* stack) {
  OPGATE_RETURN_IF_ERROR(invoke(op, device, inputs, attributes, engine, &kernels));
  for (std::size_t i = 0; i < engine.outputs.size(); ++i) {
    if (engine.returned(i)) *stack++ = boxed(engine.outputs[i].release());
  }
  return {};
}

Status run(const Op& op, Device device, Returns returns, KernelCache& kernels, Arguments& arguments,
           StableIValue* stack) {
  const Signature& signature = op.signature;
  const Location location = location_of_call(signature, arguments.tensors);
  const Layout layout(signature, arguments.tensors);
  InlineVector<Tensor, 8> views(arguments.tensors.size());
  InputPointers inputs(views.size());
  for (std::size_t i = 0; i < views.size(); ++i) {
    if (!arguments.tensors[i]) continue;
    OPGATE_RETURN_IF_ERROR(make_view(input_at(signature, i), location, layout, arguments.tensors[i], views[i]));
    inputs[i] = &views[i];
  }
  Attributes attributes;
  OPGATE_RETURN_IF_ERROR(Attributes::make(signature, std::move(arguments.attributes), attributes));
#ifdef OPGATE_WITH_CUDA
  if (device == Device::cuda) {
    TorchCudaEngine engine(location, layout, signature, returns);
    return run_on(engine, op, device, inputs, attributes, kernels, stack);
  }
#endif
  TorchEngine engine(location, layout, signature, returns);
  return run_on(engine, op, device, inputs, attributes, kernels, stack);
}

}  // namespace

void call(const Op& op, Device device, Returns returns, KernelCache& kernels, StableIValue* stack) {
  Arguments arguments(op.signature, stack);
  const Status status = named(op, [&] { return run(op, device, returns, kernels, arguments, stack); });
  if (status.ok()) return;
  if (status.code() == StatusCode::invalid_argument) throw std::invalid_argument(status.message());
  throw std::runtime_error(status.message());
}

}  // namespace opgate::libtorch
