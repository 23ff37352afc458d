// Shows the op table to PyTorch through its stable C ABI: opgate_torch_register is the library's one entry.
//
// libtorch is not linked: its functions are looked up, once, in the one that the process has loaded. So the same file
// serves every torch from 2.10 on, with CUDA or without, and loads where there is no torch, to have its table read. For
// the same reason loading registers nothing by itself.
#include <dlfcn.h>
#include <torch/csrc/stable/c/shim.h>

#include <cctype>
#include <charconv>
#include <cstring>
#include <memory>
#include <utility>

#include "core/table.h"

#ifdef OPGATE_WITH_CUDA
#include "core/cuda.h"
#endif

namespace opgate {
namespace {

/// Every function of torch that is called here. TORCH_TARGET_VERSION makes the compiler refuse a later one's.
#define OPGATE_TORCH_FUNCTIONS(X)    \
  X(aoti_torch_device_type_cpu)      \
  X(aoti_torch_device_type_cuda)     \
  X(aoti_torch_dtype_float16)        \
  X(aoti_torch_dtype_bfloat16)       \
  X(aoti_torch_dtype_float32)        \
  X(aoti_torch_dtype_float64)        \
  X(aoti_torch_dtype_int8)           \
  X(aoti_torch_dtype_uint8)          \
  X(aoti_torch_dtype_int32)          \
  X(aoti_torch_dtype_int64)          \
  X(aoti_torch_dtype_bool)           \
  X(aoti_torch_get_dtype)            \
  X(aoti_torch_get_dim)              \
  X(aoti_torch_get_sizes)            \
  X(aoti_torch_get_device_type)      \
  X(aoti_torch_get_device_index)     \
  X(aoti_torch_is_contiguous)        \
  X(torch_get_const_data_ptr)        \
  X(torch_get_mutable_data_ptr)      \
  X(aoti_torch_empty_strided)        \
  X(aoti_torch__reinterpret_tensor)  \
  X(aoti_torch_copy_)                \
  X(aoti_torch_delete_tensor_object) \
  X(torch_list_size)                 \
  X(torch_list_get_item)             \
  X(torch_delete_list)               \
  X(torch_string_length)             \
  X(torch_string_c_str)              \
  X(torch_delete_string)             \
  X(torch_parallel_for)              \
  X(aoti_torch_create_device_guard)  \
  X(aoti_torch_delete_device_guard)  \
  X(aoti_torch_library_init_def)     \
  X(aoti_torch_library_init_impl)    \
  X(aoti_torch_library_def)          \
  X(torch_library_impl)              \
  X(aoti_torch_delete_library_object)

struct Torch {
#define OPGATE_MEMBER(name) decltype(&::name) name = nullptr;
  OPGATE_TORCH_FUNCTIONS(OPGATE_MEMBER)
#undef OPGATE_MEMBER
  const char* (*last_error)() = nullptr;                                  ///< from 2.13 on
  AOTITorchError (*current_cuda_stream)(std::int32_t, void**) = nullptr;  ///< in a torch with CUDA

  std::array<std::int32_t, kDTypeCount> dtypes{};  ///< torch's numbers, by DType; -1 for str
  std::int32_t cpu = 0, cuda = 0;                  ///< its device types

  Status find();
};

Torch torch;  // filled once, by opgate_torch_register, before any other function here runs

Status Torch::find() {
  void* library = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  if (!library) return Status::internal("this process has not loaded torch: import torch first");
  const char* missing = nullptr;
#define OPGATE_FIND(name)                                         \
  name = reinterpret_cast<decltype(name)>(dlsym(library, #name)); \
  if (!name) missing = #name;
  OPGATE_TORCH_FUNCTIONS(OPGATE_FIND)
#undef OPGATE_FIND
  if (missing) {
    return Status::internal(std::string("this torch has no ") + missing + ": torch 2.10 or later is needed");
  }
  last_error = reinterpret_cast<decltype(last_error)>(dlsym(library, "torch_exception_get_what_without_backtrace"));
  if (void* with_cuda = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD)) {
    current_cuda_stream =
        reinterpret_cast<decltype(current_cuda_stream)>(dlsym(with_cuda, "aoti_torch_get_current_cuda_stream"));
  }
  dtypes = {aoti_torch_dtype_float16(), aoti_torch_dtype_bfloat16(),
            aoti_torch_dtype_float32(), aoti_torch_dtype_float64(),
            aoti_torch_dtype_int8(),    aoti_torch_dtype_uint8(),
            aoti_torch_dtype_int32(),   aoti_torch_dtype_int64(),
            aoti_torch_dtype_bool(),    -1};
  cpu = aoti_torch_device_type_cpu();
  cuda = aoti_torch_device_type_cuda();
  return {};
}

/// What a failed call of torch has left to say, as our Status. Torch before 2.13 says it on stderr only.
Status taken(AOTITorchError error, const char* doing) {
  if (error == AOTI_TORCH_SUCCESS) return {};
  const char* said = torch.last_error ? torch.last_error() : nullptr;
  return Status::internal(std::string("torch, ") + doing + ": " + (said ? said : "failed, see stderr"));
}

/// For what can only fail on a handle that is none.
void expect(AOTITorchError error, const char* doing) {
  if (Status status = taken(error, doing); !status.ok()) throw std::runtime_error(status.message());
}

/// A tensor that is ours to release.
struct Release {
  void operator()(AtenTensorOpaque* tensor) const { torch.aoti_torch_delete_tensor_object(tensor); }
};
using Handle = std::unique_ptr<AtenTensorOpaque, Release>;

struct Place {
  std::int32_t type = 0, index = 0;

  bool operator==(const Place&) const = default;
};

std::string text_of(Place place) {
  if (place.type == torch.cpu) return "cpu";
  if (place.type == torch.cuda) return "cuda:" + std::to_string(place.index);
  return "a device of type " + std::to_string(place.type);
}

Place place_of(AtenTensorHandle tensor) {
  Place place;
  expect(torch.aoti_torch_get_device_type(tensor, &place.type), "asking for a tensor's device");
  expect(torch.aoti_torch_get_device_index(tensor, &place.index), "asking for a tensor's device");
  if (place.type == torch.cpu) place.index = 0;
  return place;
}

Dims strides_of(std::span<const std::int64_t> dims) {
  Dims strides(dims.size());
  std::int64_t stride = 1;
  for (std::size_t i = dims.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<std::int64_t>(dims[i], 1);
  }
  return strides;
}

/// An uninitialized contiguous tensor from torch's allocator.
Status empty(Place place, std::int32_t dtype, std::span<const std::int64_t> dims, Handle& made) {
  AtenTensorHandle tensor = nullptr;
  OPGATE_RETURN_IF_ERROR(
      taken(torch.aoti_torch_empty_strided(static_cast<std::int64_t>(dims.size()), dims.data(), strides_of(dims).data(),
                                           dtype, place.type, place.index, &tensor),
            "allocating a tensor"));
  made.reset(tensor);
  return {};
}

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

/// Torch's schemas have no default for a list of these, but None.
bool none_for_default(const Attribute& attribute) {
  return attribute.list && !attribute.required &&
         (attribute.kind == Attribute::Kind::boolean || attribute.kind == Attribute::Kind::text);
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
Place place_of(const Signature& signature, const std::vector<Handle>& tensors) {
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
  const Place place = place_of(signature, arguments.tensors);
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

/// "KNNQuery" is "knn_query".
std::string snake_case(std::string_view name) {
  const auto upper = [](char c) { return c >= 'A' && c <= 'Z'; };
  std::string snake;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const bool after_lower = i > 0 && !upper(name[i - 1]) && name[i - 1] != '_';
    const bool starts_word =
        i > 0 && upper(name[i - 1]) && i + 1 < name.size() && name[i + 1] >= 'a' && name[i + 1] <= 'z';
    if (upper(name[i]) && (after_lower || starts_word)) snake += '_';
    snake += upper(name[i]) ? static_cast<char>(name[i] - 'A' + 'a') : name[i];
  }
  return snake;
}

/// The domain as torch's namespaces are written.
std::string torch_namespace() {
  std::string name = Table::domain();
  for (char& c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return name;
}

std::string literal(std::int64_t value) { return std::to_string(value); }
std::string literal(bool value) { return value ? "True" : "False"; }

std::string literal(double value) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), static_cast<float>(value)).ptr;
  std::string number(text.data(), end);
  if (number.find_first_not_of("-0123456789") == std::string::npos) number += ".0";
  return number;
}

std::string literal(const std::string& value) {
  std::string text = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') text += '\\';
    if (c == '\n')
      text += "\\n";
    else
      text += c;
  }
  return text + '"';
}

template <typename T>
std::string literal(const std::vector<T>& values) {
  std::string text = "[";
  for (std::size_t i = 0; i < values.size(); ++i) text += (i ? ", " : "") + literal(T(values[i]));
  return text + "]";
}

std::string declared(const Attribute& attribute) {
  constexpr std::array<const char*, 5> kinds = {"int", "float", "bool", "str", "str"};
  std::string text = kinds[static_cast<int>(attribute.kind)];
  // A size may be a symbol while torch traces.
  if (attribute.kind == Attribute::Kind::integer && !attribute.list) text = "SymInt";
  if (none_for_default(attribute)) return text + "[]? " + attribute.name + "=None";
  text += (attribute.list ? "[] " : " ") + attribute.name;
  if (attribute.required) return text;
  return text + "=" + std::visit([](const auto& value) { return literal(value); }, attribute.default_value);
}

/// "knn_query(Tensor xyz, Tensor offset, Tensor? new_xyz=None, Tensor? new_offset=None, *, SymInt nsample=16) ->
/// (Tensor, Tensor)"
std::string schema_of(const Signature& signature) {
  std::string text = snake_case(signature.name) + "(";
  for (const Input& input : signature.inputs) {
    if (text.back() != '(') text += ", ";
    text += input.variadic ? "Tensor[] " : input.optional ? "Tensor? " : "Tensor ";
    text += input.name + (input.optional ? "=None" : "");
  }
  if (!signature.attributes.empty()) text += signature.inputs.empty() ? "*" : ", *";
  for (const Attribute& attribute : signature.attributes) text += ", " + declared(attribute);
  text += ") -> ";
  if (signature.outputs.size() == 1) return text + "Tensor";
  text += "(";
  for (std::size_t i = 0; i < signature.outputs.size(); ++i) text += i ? ", Tensor" : "Tensor";
  return text + ")";
}

/// Torch has no tensors of strings.
bool has_strings(const Signature& signature) {
  const auto is_text = [](const auto& tensor) { return tensor.type.variable < 0 && tensor.type.dtype == DType::str; };
  return std::ranges::any_of(signature.inputs, is_text) || std::ranges::any_of(signature.outputs, is_text);
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
