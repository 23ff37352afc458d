// Shows the op table to PyTorch through its stable C ABI: opgate_torch_register is the library's one entry.
//
// libtorch is not linked: its functions are looked up, once, in the one that the process has loaded. So the same file
// serves every torch from 2.10 on, with CUDA or without, and loads where there is no torch, to have its table read. For
// the same reason loading registers nothing by itself.
#include <cstring>
#include <utility>

#include "core/table.h"
#include "libtorch.h"
#include "schema.h"

#ifdef OPGATE_WITH_CUDA
#include "core/cuda.h"
#endif

namespace opgate {
namespace {

// A call's arguments. The kernel owns what lies on the stack and must take every one, whatever happens.

template <typename T>
T value_of(StableIValue boxed) {
  T value;
  std::memcpy(&value, &boxed, sizeof value);
  return value;
}

template <typename T>
StableIValue boxed(T value) {
  StableIValue result = 0;
  std::memcpy(&result, &value, sizeof value);
  return result;
}

std::vector<StableIValue> take_list(StableIValue boxed) {
  const auto list = value_of<StableListHandle>(boxed);
  std::size_t size = 0;
  expect(torch.torch_list_size(list, &size), "reading a list");
  std::vector<StableIValue> values(size);
  for (std::size_t i = 0; i < size; ++i) expect(torch.torch_list_get_item(list, i, &values[i]), "reading a list");
  expect(torch.torch_delete_list(list), "deleting a list");
  return values;
}

std::string take_text(StableIValue boxed) {
  const auto handle = value_of<StringHandle>(boxed);
  std::size_t length = 0;
  const char* characters = nullptr;
  expect(torch.torch_string_length(handle, &length), "reading a string");
  expect(torch.torch_string_c_str(handle, &characters), "reading a string");
  std::string text(characters, length);
  expect(torch.torch_delete_string(handle), "deleting a string");
  return text;
}

template <typename T, typename Take>
std::vector<T> take_all(StableIValue boxed, Take&& take) {
  std::vector<T> values;
  for (const StableIValue item : take_list(boxed)) values.push_back(take(item));
  return values;
}

/// A float attribute has single precision in every engine.
double single(StableIValue boxed) { return static_cast<float>(value_of<double>(boxed)); }

AttributeValue take_attribute(const Attribute& attribute, StableIValue boxed) {
  switch (attribute.kind) {
    case Attribute::Kind::integer:
      if (attribute.list) return take_all<std::int64_t>(boxed, value_of<std::int64_t>);
      return value_of<std::int64_t>(boxed);
    case Attribute::Kind::number:
      if (attribute.list) return take_all<double>(boxed, single);
      return single(boxed);
    case Attribute::Kind::boolean:
      if (attribute.list) return take_all<bool>(boxed, value_of<bool>);
      return value_of<bool>(boxed);
    case Attribute::Kind::text:
    case Attribute::Kind::choice: break;
  }
  if (attribute.list) return take_all<std::string>(boxed, take_text);
  return take_text(boxed);
}

/// The tensors in the signature's order, those of a variadic input at the end, and the attributes.
struct Arguments {
  std::vector<Handle> tensors;  ///< null: an optional input that is absent
  std::vector<std::optional<AttributeValue>> attributes;

  Arguments(const Signature& signature, const StableIValue* stack) {
    tensors.reserve(signature.inputs.size());
    for (const Input& input : signature.inputs) {
      const StableIValue boxed = *stack++;
      if (input.variadic) {
        for (const StableIValue item : take_list(boxed)) tensors.emplace_back(value_of<AtenTensorHandle>(item));
      } else if (input.optional) {
        const std::unique_ptr<StableIValue> held(value_of<StableIValue*>(boxed));
        tensors.emplace_back(held ? value_of<AtenTensorHandle>(*held) : nullptr);
      } else {
        tensors.emplace_back(value_of<AtenTensorHandle>(boxed));
      }
    }
    for (const Attribute& attribute : signature.attributes) {
      const StableIValue boxed = *stack++;
      if (!none_for_default(attribute)) {
        attributes.emplace_back(take_attribute(attribute, boxed));
      } else if (const std::unique_ptr<StableIValue> held(value_of<StableIValue*>(boxed)); held) {
        attributes.emplace_back(take_attribute(attribute, *held));
      } else {
        attributes.emplace_back(std::nullopt);
      }
    }
  }
};

const Input& input_at(const Signature& signature, std::size_t index) {
  return signature.inputs[std::min(index, signature.inputs.size() - 1)];
}

/// Where a call runs: where its first input that is no host memory lies.
Place place_of_call(const Signature& signature, const std::vector<Handle>& tensors) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i] && !input_at(signature, i).host) return place_of(tensors[i].get());
  }
  return {torch.cpu, 0};
}

/// A tensor as a kernel sees it. `tensor` is exchanged for a contiguous copy if need be.
Status view_of(const Input& input, Place place, Handle& tensor, Tensor& view) {
  const Place expected = input.host ? Place{torch.cpu, 0} : place;
  if (const Place found = place_of(tensor.get()); found != expected) {
    return Status::invalid("input '" + input.name + "': expected a tensor on " + text_of(expected) +
                           (input.host ? ", whatever the device of the others" : ", as the others") + ", got one on " +
                           text_of(found));
  }
  std::int32_t number = 0;
  std::int64_t rank = 0;
  std::int64_t* sizes = nullptr;
  bool contiguous = false;
  const void* data = nullptr;
  expect(torch.aoti_torch_get_dtype(tensor.get(), &number), "asking for a tensor's dtype");
  expect(torch.aoti_torch_get_dim(tensor.get(), &rank), "asking for a tensor's rank");
  const auto dtype = std::ranges::find(torch.dtypes, number);
  if (dtype == torch.dtypes.end()) {
    return Status::invalid("input '" + input.name +
                           "': a tensor of a dtype that no signature can state (torch's number " +
                           std::to_string(number) + ")");
  }
  expect(torch.aoti_torch_is_contiguous(tensor.get(), &contiguous), "asking for a tensor's strides");
  expect(torch.aoti_torch_get_sizes(tensor.get(), &sizes), "asking for a tensor's sizes");
  if (!contiguous) {
    Handle packed;
    OPGATE_RETURN_IF_ERROR(empty(expected, number, {sizes, static_cast<std::size_t>(rank)}, packed));
    OPGATE_RETURN_IF_ERROR(taken(torch.aoti_torch_copy_(packed.get(), tensor.get(), 0), "packing a tensor"));
    tensor = std::move(packed);
    expect(torch.aoti_torch_get_sizes(tensor.get(), &sizes), "asking for a tensor's sizes");
  }
  expect(torch.torch_get_const_data_ptr(tensor.get(), &data), "asking for a tensor's data");
  // Nothing is written through an input's pointer.
  view = Tensor(const_cast<void*>(data), static_cast<DType>(dtype - torch.dtypes.begin()),
                {sizes, static_cast<std::size_t>(rank)}, expected.type == torch.cpu ? Device::cpu : Device::cuda);
  return {};
}

// One call of a kernel.

class TorchEngine : public Engine {
 public:
  TorchEngine(Place place, std::size_t outputs) : outputs(outputs), place_(place) {}

  std::vector<Handle> outputs;

  Status allocate_output(std::size_t index, DType dtype, std::span<const std::int64_t> dims, void** data) override {
    OPGATE_RETURN_IF_ERROR(empty(place_, torch.dtypes[static_cast<int>(dtype)], dims, outputs[index]));
    OPGATE_RETURN_IF_ERROR(
        taken(torch.torch_get_mutable_data_ptr(outputs[index].get(), data), "asking for a tensor's data"));
    if (!*data) *data = &nothing_;  // an empty tensor is wanted and has no memory
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
    const auto size = static_cast<std::int64_t>(bytes);
    void* data = nullptr;
    // Torch aligns to 64 bytes and more.
    if (!empty(place_, torch.dtypes[static_cast<int>(DType::u8)], {&size, 1}, scratch_.emplace_back()).ok()) {
      throw std::bad_alloc();
    }
    expect(torch.torch_get_mutable_data_ptr(scratch_.back().get(), &data), "asking for a tensor's data");
    return data;
  }

 protected:
  const Place place_;

 private:
  std::vector<Handle> scratch_;
  char nothing_ = 0;
};

#ifdef OPGATE_WITH_CUDA

/// A call on torch's current stream of a device. An output of a size that only the kernel knows keeps the memory of its
/// upper bound.
class TorchCudaEngine final : public TorchEngine {
 public:
  TorchCudaEngine(Place place, std::size_t outputs) : TorchEngine(place, outputs) {
    if (!torch.current_cuda_stream) throw std::runtime_error("this torch has no CUDA streams");
    DeviceGuardHandle guard = nullptr;
    expect(torch.aoti_torch_create_device_guard(place.index, &guard), "changing the device");
    guard_.reset(guard);
    expect(torch.current_cuda_stream(place.index, &stream_), "asking for the current stream");
  }

  void* stream() override { return stream_; }

  Status allocate_sizes(std::size_t count, std::int64_t** sizes) override {
    *sizes = sizes_ = static_cast<std::int64_t*>(scratch(count * sizeof(std::int64_t)));
    return {};
  }

  Status allocate_bounded(std::size_t index, DType dtype, std::span<const std::int64_t> dims, void** data) override {
    return allocate_output(index, dtype, dims, data);
  }

  Status read_sizes(std::span<std::int64_t> sizes, bool&) override {
    return cuda::read(sizes.data(), sizes_, sizes.size_bytes(), stream_);
  }

  Status trim(std::size_t index, DType, std::span<const std::int64_t> dims) override {
    AtenTensorHandle cut = nullptr;
    OPGATE_RETURN_IF_ERROR(
        taken(torch.aoti_torch__reinterpret_tensor(outputs[index].get(), static_cast<std::int64_t>(dims.size()),
                                                   dims.data(), strides_of(dims).data(), 0, &cut),
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
              const Attributes& attributes, StableIValue* stack) {
  OPGATE_RETURN_IF_ERROR(invoke(op, device, inputs, attributes, engine));
  for (std::size_t i = 0; i < engine.outputs.size(); ++i) stack[i] = boxed(engine.outputs[i].release());
  return {};
}

Status run(const Op& op, Device device, Arguments& arguments, StableIValue* stack) {
  const Signature& signature = op.signature;
  const auto named = [&](Status status) {
    return status.ok() ? std::move(status)
                       : std::move(status).with_prefix(std::string(Table::domain()) + "::" + signature.name + ": ");
  };
  const Place place = place_of_call(signature, arguments.tensors);
  std::vector<Tensor> views(arguments.tensors.size());
  InputPointers inputs(views.size());
  for (std::size_t i = 0; i < views.size(); ++i) {
    if (!arguments.tensors[i]) continue;
    OPGATE_RETURN_IF_ERROR(named(view_of(input_at(signature, i), place, arguments.tensors[i], views[i])));
    inputs[i] = &views[i];
  }
  Attributes attributes;
  OPGATE_RETURN_IF_ERROR(named(Attributes::make(signature, std::move(arguments.attributes), attributes)));
#ifdef OPGATE_WITH_CUDA
  if (device == Device::cuda) {
    TorchCudaEngine engine(place, signature.outputs.size());
    return run_on(engine, op, device, inputs, attributes, stack);
  }
#endif
  TorchEngine engine(place, signature.outputs.size());
  return run_on(engine, op, device, inputs, attributes, stack);
}

// Registration. Torch calls a function without telling it for which op: there is one for each place in the table.

constexpr std::size_t kMaxOps = 1024;

/// Runs an op of the table. Torch turns std::invalid_argument into ValueError, any other exception into RuntimeError.
void call(std::size_t index, Device device, StableIValue* stack) {
  const Op& op = Table::instance().ops()[index];
  Arguments arguments(op.signature, stack);
  const Status status = run(op, device, arguments, stack);
  if (status.ok()) return;
  if (status.code() == StatusCode::invalid_argument) throw std::invalid_argument(status.message());
  throw std::runtime_error(status.message());
}

using Boxed = void (*)(StableIValue*, std::uint64_t, std::uint64_t);

template <Device device, std::size_t index>
void boxed_call(StableIValue* stack, std::uint64_t, std::uint64_t) {
  call(index, device, stack);
}

template <Device device, std::size_t... indices>
constexpr std::array<Boxed, sizeof...(indices)> boxed_calls(std::index_sequence<indices...>) {
  return {&boxed_call<device, indices>...};
}

/// What belongs to a namespace; torch forgets it all if it is deleted.
struct Unregister {
  void operator()(TorchLibraryOpaque* library) const { torch.aoti_torch_delete_library_object(library); }
};
using Library = std::unique_ptr<TorchLibraryOpaque, Unregister>;

Status implement(const char* key, const std::array<Boxed, kMaxOps>& calls, Device device, Library& library) {
  TorchLibraryHandle made = nullptr;
  OPGATE_RETURN_IF_ERROR(
      taken(torch.aoti_torch_library_init_impl(torch_namespace().c_str(), key, __FILE__, __LINE__, &made),
            "opening a library"));
  library.reset(made);
  const auto& ops = Table::instance().ops();
  for (std::size_t i = 0; i < ops.size(); ++i) {
    if (!ops[i].kernel(device) || has_strings(ops[i].signature)) continue;
    const std::string name = snake_case(ops[i].signature.name);
    OPGATE_RETURN_IF_ERROR(
        taken(torch.torch_library_impl(made, name.c_str(), calls[i], TORCH_ABI_VERSION), "registering a kernel"));
  }
  return {};
}

Status register_ops() {
  const Table& table = Table::instance();
  if (!table.errors().empty()) return Status::internal(table.errors().front());
  if (table.ops().size() > kMaxOps) {
    return Status::internal("the library holds " + std::to_string(table.ops().size()) +
                            " ops, the adapter is made for " + std::to_string(kMaxOps) +
                            ": raise kMaxOps in adapters/torch/adapter.cpp");
  }
  OPGATE_RETURN_IF_ERROR(torch.find());
  TorchLibraryHandle made = nullptr;
  const std::string name = torch_namespace();
  OPGATE_RETURN_IF_ERROR(taken(torch.aoti_torch_library_init_def(name.c_str(), __FILE__, __LINE__, &made),
                               ("taking the namespace " + name).c_str()));
  Library definitions(made), cpu, cuda;
  for (const Op& op : table.ops()) {
    if (has_strings(op.signature)) continue;
    const std::string schema = schema_of(op.signature);
    OPGATE_RETURN_IF_ERROR(taken(torch.aoti_torch_library_def(made, schema.c_str()), ("defining " + schema).c_str()));
  }
  using Indices = std::make_index_sequence<kMaxOps>;
  static constexpr auto cpu_calls = boxed_calls<Device::cpu>(Indices());
  OPGATE_RETURN_IF_ERROR(implement("CPU", cpu_calls, Device::cpu, cpu));
#ifdef OPGATE_WITH_CUDA
  static constexpr auto cuda_calls = boxed_calls<Device::cuda>(Indices());
  OPGATE_RETURN_IF_ERROR(implement("CUDA", cuda_calls, Device::cuda, cuda));
#endif
  // Ops stay until the process ends: nothing says when torch has stopped to use them.
  for (Library* library : {&definitions, &cpu, &cuda}) static_cast<void>(library->release());
  return {};
}

}  // namespace
}  // namespace opgate

/// Registers every op with the torch that the process has loaded, the first time it is called. Returns nullptr, or what
/// went wrong.
extern "C" __attribute__((visibility("default"))) const char* opgate_torch_register() {
  static const std::string error = [] {
    try {
      return opgate::register_ops().message();
    } catch (const std::exception& thrown) {
      return std::string(thrown.what());
    }
  }();
  return error.empty() ? nullptr : error.c_str();
}
