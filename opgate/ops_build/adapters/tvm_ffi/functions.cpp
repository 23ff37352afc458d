// The ops as functions of TVM-FFI, which take the tensors of any library that has DLPack. Any language that loads this
// library as a module of TVM-FFI calls opgate_function("<op>") in it and gets the function of an op.
//
//   op(inputs..., attributes...) -> outputs
//   op(inputs..., outputs..., attributes...)
//
// An absent input is None, a variadic one an array of tensors. An attribute that is None or left out has its default.
// If a tensor follows the inputs, it is the first output, and the kernel writes to it; None is an output that nobody
// wants. Otherwise the function returns new tensors: one, or an array of them.
//
// Tensors lie on the CPU, or all on one CUDA device, apart from `const` inputs, which the host reads. On CUDA a call is
// work on the stream that TVM-FFI has for the device.
#include <atomic>
#include <deque>
#include <thread>

#include "adapters/direct.h"
#include "cuda_functions.h"
#include "op_call/data_types.h"
#include "op_call/running_op.h"
#include "op_call/tvm_ffi.h"
#include "signature/signature_text.h"

namespace opgate::tvm {
namespace {

/// The functions of TVM's library that are used here.
struct Runtime {
  int (*release)(void* object) = runtime<int(void*)>("TVMFFIObjectDecRef");
  void (*set_error)(const char* kind,
                    const char* message) = runtime<void(const char*, const char*)>("TVMFFIErrorSetRaisedFromCStr");
  int (*create_function)(void* self, Function call, void (*deleter)(void* self), void** function) =
      runtime<int(void*, Function, void (*)(void*), void**)>("TVMFFIFunctionCreate");
  int (*find_function)(const Bytes* name,
                       void** function) = runtime<int(const Bytes*, void**)>("TVMFFIFunctionGetGlobal");
  int (*call)(void* function, Value* arguments, std::int32_t count,
              Value* result) = runtime<int(void*, Value*, std::int32_t, Value*)>("TVMFFIFunctionCall");
  int (*take_tensor)(ManagedTensor* from, std::int32_t alignment, std::int32_t contiguous, void** tensor) =
      runtime<int(ManagedTensor*, std::int32_t, std::int32_t, void**)>("TVMFFITensorFromDLPack");
  void* (*stream)(std::int32_t kind,
                  std::int32_t device) = runtime<void*(std::int32_t, std::int32_t)>("TVMFFIEnvGetStream");

  bool complete() const { return release && set_error && create_function && find_function && call && take_tensor; }
};

const Runtime& tvm() {
  static const Runtime found;
  return found;
}

/// A mistake that Python calls a TypeError.
struct TypeMistake : std::runtime_error {
  using std::runtime_error::runtime_error;
};
/// One that it calls a ValueError.
struct ValueMistake : std::runtime_error {
  using std::runtime_error::runtime_error;
};

std::string kind_name(const Value& value) {
  switch (value.kind) {
    case kNone: return "None";
    case kInt: return "int";
    case kBool: return "bool";
    case kFloat: return "float";
    case kRawText:
    case kSmallText:
    case kText: return "str";
    case kShape:
    case kArray:
    case kList: return "a list";
    default: return tensor_of(value) ? "a tensor" : "a value of kind " + std::to_string(value.kind);
  }
}

std::optional<std::string> text_in(const Value& value) {
  if (value.kind == kRawText) return value.raw_text;
  if (value.kind == kSmallText) return std::string(value.small_text, value.small_size);
  if (value.kind != kText) return std::nullopt;
  const Bytes& bytes = content<Bytes>(value.object);
  return std::string(bytes.data, bytes.size);
}

/// The elements of an array, a list or a shape. nullopt if a value is none of them.
std::optional<std::vector<Value>> elements_of(const Value& value) {
  if (value.kind == kArray || value.kind == kList) {
    const Sequence& sequence = content<Sequence>(value.object);
    return std::vector<Value>(sequence.values, sequence.values + sequence.size);
  }
  if (value.kind != kShape) return std::nullopt;
  std::vector<Value> elements;
  const Shape& shape = content<Shape>(value.object);
  for (const std::int64_t dim : std::span(shape.dims, shape.size)) {
    elements.push_back(Value{.kind = kInt, .small_size = 0, .integer = dim});
  }
  return elements;
}

/// The value as an attribute has it. nullopt if it is of another type.
template <typename T>
std::optional<T> element(const Value& value) {
  if constexpr (std::is_same_v<T, std::string>) {
    return text_in(value);
  } else if constexpr (std::is_same_v<T, bool>) {
    return value.kind == kBool ? std::optional(value.integer != 0) : std::nullopt;
  } else {
    if (value.kind == kInt) return static_cast<T>(value.integer);
    if (std::is_same_v<T, double> && value.kind == kFloat) return static_cast<T>(value.number);
    return std::nullopt;
  }
}

template <typename T>
std::optional<AttributeValue> value_as(const Value& value, bool list) {
  if (!list) {
    std::optional<T> one = element<T>(value);
    return one ? std::optional<AttributeValue>(std::move(*one)) : std::nullopt;
  }
  const auto given = elements_of(value);
  if (!given) return std::nullopt;
  std::vector<T> values;
  for (const Value& each : *given) {
    std::optional<T> one = element<T>(each);
    if (!one) return std::nullopt;
    values.push_back(std::move(*one));
  }
  return values;
}

AttributeValue attribute_value(const Attribute& declared, const Value& value) {
  std::optional<AttributeValue> found;
  switch (declared.kind) {
    case Attribute::Kind::integer: found = value_as<std::int64_t>(value, declared.list); break;
    case Attribute::Kind::number: found = value_as<double>(value, declared.list); break;
    case Attribute::Kind::boolean: found = value_as<bool>(value, declared.list); break;
    default: found = value_as<std::string>(value, declared.list);
  }
  if (found) return *std::move(found);
  throw TypeMistake("attribute '" + declared.name + "': expected " + type_text(declared) + ", got " + kind_name(value));
}

std::string types_text(const Signature& signature, const ElementType& type) {
  if (type.variable < 0) return std::string(name_of(type.dtype));
  std::string text;
  for (const DType dtype : signature.type_variables[static_cast<std::size_t>(type.variable)].dtypes) {
    text += (text.empty() ? "" : " or ") + std::string(name_of(dtype));
  }
  return text;
}

// The devices of DLPack.
constexpr std::int32_t kCpu = 1, kCuda = 2, kCudaHost = 3;

/// Where a call runs.
struct Place {
  Device device = Device::cpu;
  std::int32_t ordinal = 0;

  bool holds(const OpgateTensor& tensor) const {
    if (device == Device::cpu) return tensor.device.type == kCpu || tensor.device.type == kCudaHost;
    return tensor.device.type == kCuda && tensor.device.id == ordinal;
  }
  std::string text() const { return device == Device::cpu ? "the CPU" : "cuda:" + std::to_string(ordinal); }
};

std::string place_text(const OpgateTensor& tensor) {
  if (tensor.device.type == kCpu || tensor.device.type == kCudaHost) return "the CPU";
  if (tensor.device.type == kCuda) return "cuda:" + std::to_string(tensor.device.id);
  return "DLPack's device " + std::to_string(tensor.device.type);
}

/// Checks that a kernel can read or write a tensor where it lies, and returns its dtype. `where` is "input 'x': ".
DType checked(const OpgateTensor& tensor, const Place& place, const std::string& where, const std::string& types) {
  const auto same = [&](const OpgateDataType& dtype) {
    return dtype.code == tensor.dtype.code && dtype.bits == tensor.dtype.bits && dtype.lanes == tensor.dtype.lanes;
  };
  const auto found = std::ranges::find_if(kDataTypes, same);
  if (found == kDataTypes.end() || found == kDataTypes.end() - 1) {
    throw TypeMistake(where + "expected " + types + ", got DLPack's type " + std::to_string(tensor.dtype.code) +
                      " of " + std::to_string(tensor.dtype.bits * tensor.dtype.lanes) + " bits");
  }
  if (!place.holds(tensor))
    throw ValueMistake(where + "expected a tensor on " + place.text() + ", got one on " + place_text(tensor));
  const auto dtype = static_cast<DType>(found - kDataTypes.begin());
  std::int64_t step = 1;
  bool contiguous = true, empty = false;
  for (std::int32_t i = tensor.rank - 1; i >= 0; --i) {
    if (tensor.strides && tensor.dims[i] != 1 && tensor.strides[i] != step) contiguous = false;
    step *= tensor.dims[i];
    empty = empty || tensor.dims[i] == 0;
  }
  if (!contiguous && !empty) throw ValueMistake(where + "expected contiguous elements in row-major order");
  if ((reinterpret_cast<std::uintptr_t>(tensor.data) + tensor.byte_offset) % size_of(dtype) != 0) {
    throw ValueMistake(where + "expected elements that are aligned to " + std::to_string(size_of(dtype)) + " bytes");
  }
  return dtype;
}

void* data_of(const OpgateTensor& tensor) {
  static char nothing;  // a tensor without elements may have no address, but a kernel's has one
  return tensor.data ? static_cast<char*>(tensor.data) + tensor.byte_offset : &nothing;
}

std::span<const std::int64_t> dims_of(const OpgateTensor& tensor) {
  return {tensor.dims, static_cast<std::size_t>(tensor.rank)};
}

/// A new tensor: its memory, and its dims and strides behind what DLPack passes on. `stream` is that of a call on CUDA.
struct NewTensor {
  ManagedTensor managed{};
  std::vector<std::int64_t> dims, strides;

  NewTensor(DType dtype, std::span<const std::int64_t> given, const Place& place, void* stream)
      : dims(given.begin(), given.end()), strides(given.size(), 1) {
    for (std::size_t i = dims.size(); i-- > 1;) strides[i - 1] = strides[i] * dims[i];
    const std::size_t bytes = std::max<std::size_t>(bytes_of(dtype, given), 1);
    const bool on_cpu = place.device == Device::cpu;
    managed.tensor = {on_cpu ? aligned_memory(bytes) : cuda_functions->allocate(bytes, stream),
                      {on_cpu ? kCpu : kCuda, place.ordinal},
                      static_cast<std::int32_t>(dims.size()),
                      kDataTypes[static_cast<std::size_t>(dtype)],
                      dims.data(),
                      strides.data(),
                      0};
    managed.owner = this;
    managed.deleter = [](ManagedTensor* self) { delete static_cast<NewTensor*>(self->owner); };
  }
  NewTensor(const NewTensor&) = delete;
  NewTensor& operator=(const NewTensor&) = delete;
  ~NewTensor() {
    if (managed.tensor.device.type == kCpu) {
      std::free(managed.tensor.data);
    } else {
      cuda_functions->release_in_the_end(managed.tensor.data);
    }
  }
};

/// An object of TVM's that is released in the end.
class Handle {
 public:
  Handle() = default;
  explicit Handle(void* object) : object_(object) {}
  Handle(Handle&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Handle() {
    if (object_) tvm().release(object_);
  }

  explicit operator bool() const { return object_ != nullptr; }
  Value value(Kind kind) const { return {.kind = kind, .small_size = 0, .object = static_cast<Object*>(object_)}; }
  Object* give() { return static_cast<Object*>(std::exchange(object_, nullptr)); }

 private:
  void* object_ = nullptr;
};

/// How many threads a call may use.
std::atomic<std::size_t> threads = std::thread::hardware_concurrency();

class TvmEngine : public DirectEngine {
 public:
  /// Outputs that are `given` are written to. If none is, those that are `wanted`, a bit for each, are new.
  TvmEngine(const Signature& signature, std::span<const Value> given, std::uint64_t wanted, const Place& place = {})
      : DirectEngine(threads),
        signature_(signature),
        given_(given),
        wanted_(wanted),
        place_(place),
        made_(signature.outputs.size()) {}

  Status allocate_output(std::size_t index, DType dtype, std::span<const std::int64_t> dims, void** data) override {
    if (!given_.empty()) {
      const OpgateTensor* const tensor = tensor_of(given_[index]);
      if (tensor) mistake_ = written(index, *tensor, dtype, dims, *data);
      return mistake_ ? Status::invalid("an output doesn't fit") : Status();
    }
    if (!wants(index)) return {};
    auto made = std::make_unique<NewTensor>(dtype, dims, place_, stream());
    void* tensor = nullptr;
    if (tvm().take_tensor(&made->managed, 0, 0, &tensor) != 0) return Status::internal("TVM-FFI made no tensor");
    *data = made.release()->managed.tensor.data;
    made_[index] = Handle(tensor);
    return {};
  }

  /// Whether the output is given, or a new one that somebody wants.
  bool wants(std::size_t index) const {
    return given_.empty() ? (wanted_ >> index & 1) != 0 : index < given_.size() && tensor_of(given_[index]) != nullptr;
  }

  /// Throws what is wrong with an output that was given.
  void check() const {
    if (mistake_) std::rethrow_exception(mistake_);
  }

  /// Sets what the function returns: the new tensors.
  Status give(Value& result) {
    std::vector<Value> tensors;
    for (const Handle& made : made_) {
      if (made) tensors.push_back(made.value(kTensor));
    }
    if (tensors.size() == 1) {
      const auto only = std::ranges::find_if(made_, [](const Handle& made) { return static_cast<bool>(made); });
      result = tensors[0];
      static_cast<void>(only->give());
    } else if (!tensors.empty()) {
      const std::string_view name = "ffi.Array";
      const Bytes bytes{name.data(), name.size()};
      void* array = nullptr;
      if (tvm().find_function(&bytes, &array) != 0 || !array) return Status::internal("TVM-FFI has no arrays");
      const Handle function(array);
      if (tvm().call(array, tensors.data(), static_cast<std::int32_t>(tensors.size()), &result) != 0)
        return Status::internal("TVM-FFI made no array");
    }
    return {};
  }

 private:
  /// Sets `data` to where a tensor has its elements. Returns what is wrong with it, null if nothing is.
  std::exception_ptr written(std::size_t index, const OpgateTensor& tensor, DType dtype,
                             std::span<const std::int64_t> dims, void*& data) const {
    try {
      const std::string where = "output '" + signature_.outputs[index].name + "': ";
      const DType given = checked(tensor, place_, where, std::string(name_of(dtype)));
      const std::string message = where + "expected " + std::string(name_of(dtype)) + dims_text(dims) + ", got " +
                                  std::string(name_of(given)) + dims_text(dims_of(tensor));
      if (given != dtype) throw TypeMistake(message);
      if (!std::ranges::equal(dims, dims_of(tensor))) throw ValueMistake(message);
      data = data_of(tensor);
      return nullptr;
    } catch (...) {
      return std::current_exception();
    }
  }

  const Signature& signature_;
  std::span<const Value> given_;
  std::uint64_t wanted_;
  Place place_;
  std::vector<Handle> made_;
  std::exception_ptr mistake_;
};

/// A call on a CUDA device, which is selected meanwhile. An output with a size that only the kernel knows is written to
/// scratch memory and then copied.
class TvmCudaEngine final : public TvmEngine {
 public:
  TvmCudaEngine(const Signature& signature, std::span<const Value> given, std::uint64_t wanted, const Place& place)
      : TvmEngine(signature, given, wanted, place),
        stream_(tvm().stream ? tvm().stream(kCuda, place.ordinal) : nullptr),
        ordinal_(place.ordinal),
        before_(cuda_functions->select(place.ordinal)) {}
  TvmCudaEngine(const TvmCudaEngine&) = delete;
  TvmCudaEngine& operator=(const TvmCudaEngine&) = delete;
  ~TvmCudaEngine() override {
    for (void* const memory : scratch_) cuda_functions->release(memory, stream_);
    cuda_functions->select(before_);
  }

  void* scratch(std::size_t bytes) override {
    scratch_.reserve(scratch_.size() + 1);
    scratch_.push_back(cuda_functions->allocate(std::max<std::size_t>(bytes, 1), stream_));
    return scratch_.back();
  }

  int ordinal() override { return ordinal_; }
  void* stream() override { return stream_; }

  Status allocate_sizes(std::size_t count, std::int64_t** sizes) override {
    *sizes = sizes_ = static_cast<std::int64_t*>(scratch(count * sizeof(std::int64_t)));
    return {};
  }

  Status allocate_bounded(std::size_t index, DType dtype, std::span<const std::int64_t> dims, void** data) override {
    bounded_.resize(std::max(bounded_.size(), index + 1));
    if (!wants(index)) return {};
    *data = bounded_[index] = scratch(bytes_of(dtype, dims));
    return {};
  }

  Status read_sizes(std::span<std::int64_t> sizes) override {
    return cuda_functions->read(sizes.data(), sizes_, sizes.size_bytes(), stream_);
  }

  Status trim(std::size_t index, DType dtype, std::span<const std::int64_t> dims) override {
    void* data = nullptr;
    OPGATE_RETURN_IF_ERROR(allocate_output(index, dtype, dims, &data));
    return data ? cuda_functions->copy(data, bounded_[index], bytes_of(dtype, dims), stream_) : Status();
  }

 private:
  void* stream_;
  int ordinal_, before_;
  std::int64_t* sizes_ = nullptr;
  std::vector<void*> scratch_, bounded_;
};

/// The function of one op.
class OpFunction {
 public:
  OpFunction(const Op& op, std::uint64_t wanted) : op_(op), signature_(op.signature), wanted_(wanted) {}

  int call(std::span<const Value> arguments, Value& result) const {
    const char* kind = "RuntimeError";
    const Running running(op_);
    const Status status = named(op_, [&] {
      try {
        Status run_status = run(arguments, result);
        if (run_status.code() == StatusCode::invalid_argument) kind = "ValueError";
        return run_status;
      } catch (const TypeMistake& mistake) {
        kind = "TypeError";
        return Status::invalid(mistake.what());
      } catch (const ValueMistake& mistake) {
        kind = "ValueError";
        return Status::invalid(mistake.what());
      }
    });
    if (status.ok()) return 0;
    tvm().set_error(kind, status.message().c_str());
    return -1;
  }

 private:
  Status run(std::span<const Value> arguments, Value& result) const {
    const std::size_t count = signature_.inputs.size();
    const auto inputs = arguments.first(std::min(count, arguments.size()));
    auto rest = arguments.subspan(inputs.size());
    std::span<const Value> outputs;
    if (!rest.empty() && tensor_of(rest[0])) {
      outputs = rest.first(std::min(signature_.outputs.size(), rest.size()));
      rest = rest.subspan(outputs.size());
      check_outputs(outputs);
    }
    const Place place = place_of(inputs);
    std::deque<Tensor> tensors;
    const InputPointers pointers = read_inputs(inputs, place, tensors);
    Attributes attributes;
    OPGATE_RETURN_IF_ERROR(read_attributes(rest, attributes));
    const auto call = [&](TvmEngine& engine) {
      const Status status = invoke(op_, place.device, pointers, attributes, engine, kernels_of(op_, place.device));
      engine.check();
      return status.ok() ? engine.give(result) : status;
    };
    if (place.device == Device::cuda) {
      TvmCudaEngine engine(signature_, outputs, wanted_, place);
      return call(engine);
    }
    TvmEngine engine(signature_, outputs, wanted_);
    return call(engine);
  }

  /// The device of the first input that isn't `const`. Throws ValueMistake if the op has no kernel for it.
  Place place_of(std::span<const Value> inputs) const {
    const OpgateTensor* first = nullptr;
    for (std::size_t i = 0; i < inputs.size() && !first; ++i) {
      if (signature_.inputs[i].host) continue;
      const auto elements = elements_of(inputs[i]);
      first = tensor_of(elements && !elements->empty() ? elements->front() : inputs[i]);
    }
    const Place place = first && first->device.type == kCuda ? Place{Device::cuda, first->device.id} : Place{};
    if (place.device == Device::cuda && !cuda_functions)
      throw ValueMistake("expected tensors on the CPU, got one on " + place.text() +
                         ": this library has no CUDA kernels");
    if (!op_.has_kernel(place.device))
      throw ValueMistake("expected tensors on " + std::string(place.device == Device::cuda ? "the CPU" : "CUDA") +
                         ", for which the op has its kernel, got one on " + place.text());
    return place;
  }

  void check_outputs(std::span<const Value> outputs) const {
    for (std::size_t i = 0; i < signature_.outputs.size(); ++i) {
      const Output& declared = signature_.outputs[i];
      const bool given = i < outputs.size() && outputs[i].kind != kNone;
      if (given && tensor_of(outputs[i])) continue;
      if (given || !declared.optional) {
        throw TypeMistake("output '" + declared.name + "': expected a tensor, got " +
                          (i < outputs.size() ? kind_name(outputs[i]) : "none"));
      }
    }
  }

  InputPointers read_inputs(std::span<const Value> given, const Place& call, std::deque<Tensor>& tensors) const {
    InputPointers pointers;
    std::vector<std::optional<DType>> bound(signature_.type_variables.size());
    const auto read = [&](const Input& declared, const Value& value) {
      const std::string where = "input '" + declared.name + "': ", types = types_text(signature_, declared.type);
      const OpgateTensor* const tensor = tensor_of(value);
      if (!tensor) throw TypeMistake(where + "expected a tensor of " + types + ", got " + kind_name(value));
      const Place place = declared.host ? Place{} : call;
      const DType dtype = checked(*tensor, place, where, types);
      check_type(declared, dtype, bound, where);
      pointers.push_back(&tensors.emplace_back(data_of(*tensor), dtype, dims_of(*tensor), place.device, declared.name));
    };
    for (std::size_t i = 0; i < signature_.inputs.size(); ++i) {
      const Input& declared = signature_.inputs[i];
      if (i >= given.size() || given[i].kind == kNone) {
        if (!declared.optional) throw TypeMistake("input '" + declared.name + "' is required");
        pointers.push_back(nullptr);
      } else if (!declared.variadic) {
        read(declared, given[i]);
      } else {
        const auto elements = elements_of(given[i]);
        if (!elements) {
          throw TypeMistake("input '" + declared.name + "': expected a list of tensors, got " + kind_name(given[i]));
        }
        for (const Value& element : *elements) read(declared, element);
      }
    }
    return pointers;
  }

  /// Throws TypeMistake if an input can't have a dtype. invoke() checks it too, but says no more than that it is wrong.
  void check_type(const Input& declared, DType dtype, std::vector<std::optional<DType>>& bound,
                  const std::string& where) const {
    std::string expected = types_text(signature_, declared.type);
    bool good = dtype == declared.type.dtype;
    if (declared.type.variable >= 0) {
      const auto variable = static_cast<std::size_t>(declared.type.variable);
      const TypeVariable& stated = signature_.type_variables[variable];
      good = std::ranges::find(stated.dtypes, dtype) != stated.dtypes.end() && bound[variable].value_or(dtype) == dtype;
      if (bound[variable]) expected = name_of(*bound[variable]);
      if (!bound[variable]) bound[variable] = dtype;
    }
    if (!good) throw TypeMistake(where + "expected " + expected + ", got " + std::string(name_of(dtype)));
  }

  Status read_attributes(std::span<const Value> given, Attributes& attributes) const {
    const auto& declared = signature_.attributes;
    if (given.size() > declared.size()) {
      throw TypeMistake("expected at most " + std::to_string(declared.size()) + " attributes, got " +
                        std::to_string(given.size()));
    }
    std::vector<std::optional<AttributeValue>> values(declared.size());
    for (std::size_t i = 0; i < declared.size(); ++i) {
      if (i < given.size() && given[i].kind != kNone) values[i] = attribute_value(declared[i], given[i]);
      if (!values[i] && declared[i].required) {
        throw TypeMistake("attribute '" + declared[i].name + "' is required: expected " + type_text(declared[i]));
      }
    }
    return Attributes::make(signature_, std::move(values), attributes);
  }

  const Op& op_;
  const Signature& signature_;
  std::uint64_t wanted_;
};

/// The op that can be called through TVM-FFI.
const Op& op_named(const Value* arguments, std::int32_t count) {
  const auto name = count > 0 ? text_in(arguments[0]) : std::nullopt;
  if (!name) throw TypeMistake("opgate_function: expected the name of an op");
  const Op* const op = Table::instance().find(*name);
  const std::string library = "the library of " + std::string(Table::domain());
  if (!op) throw ValueMistake(library + " has no op " + *name);
  if (!op->has_kernel(Device::cpu) && !op->has_kernel(Device::cuda))
    throw ValueMistake(full_name(*op) + " has no kernel in this library");
  const auto strings = [](const auto& tensor) { return tensor.type.variable < 0 && tensor.type.dtype == DType::str; };
  if (std::ranges::any_of(op->signature.inputs, strings) || std::ranges::any_of(op->signature.outputs, strings)) {
    throw ValueMistake(full_name(*op) + " has tensors of strings, which DLPack doesn't have");
  }
  return *op;
}

/// The outputs of an op but those on request, a bit for each.
std::uint64_t usual_outputs(const Op& op) {
  std::uint64_t wanted = 0;
  for (std::size_t i = 0; i < op.signature.outputs.size(); ++i) {
    if (!op.signature.outputs[i].on_request) wanted |= std::uint64_t{1} << i;
  }
  return wanted;
}

/// A function may live longer than the module that it is from.
void keep_loaded() {
  Dl_info info;
  if (dladdr(reinterpret_cast<const void*>(&keep_loaded), &info)) {
    static_cast<void>(dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE));
  }
}

void make_function(const Value* arguments, std::int32_t count, Value& result) {
  const Op& op = op_named(arguments, count);
  if (count > 1 && arguments[1].kind != kInt) throw TypeMistake("opgate_function: expected a number of bits");
  const std::uint64_t wanted = count > 1 ? static_cast<std::uint64_t>(arguments[1].integer) : usual_outputs(op);
  keep_loaded();
  auto function = std::make_unique<OpFunction>(op, wanted);
  const auto call = [](void* self, const Value* given, std::int32_t number, Value* returned) {
    return static_cast<const OpFunction*>(self)->call({given, static_cast<std::size_t>(number)}, *returned);
  };
  void* made = nullptr;
  if (tvm().create_function(function.get(), call, [](void* self) { delete static_cast<OpFunction*>(self); }, &made))
    throw std::runtime_error("TVM-FFI made no function");
  static_cast<void>(function.release());
  result = {.kind = kFunction, .small_size = 0, .object = static_cast<Object*>(made)};
}

/// Runs `body`, and tells TVM-FFI what it throws.
template <typename Body>
int guarded(Body&& body) {
  if (!tvm().complete()) return -1;
  const char* kind = "RuntimeError";
  std::string message;
  try {
    body();
    return 0;
  } catch (const TypeMistake& mistake) {
    kind = "TypeError";
    message = mistake.what();
  } catch (const ValueMistake& mistake) {
    kind = "ValueError";
    message = mistake.what();
  } catch (const std::exception& error) {
    message = error.what();
  }
  tvm().set_error(kind, message.c_str());
  return -1;
}

}  // namespace
}  // namespace opgate::tvm

#define OPGATE_EXPORT extern "C" __attribute__((visibility("default")))

/// opgate_function(op, outputs): the function of an op. It makes the outputs whose bits are set in `outputs`; if that
/// is left out, all but those on request.
OPGATE_EXPORT int __tvm_ffi_opgate_function(void*, const opgate::tvm::Value* arguments, std::int32_t count,
                                            opgate::tvm::Value* result) {
  return opgate::tvm::guarded([&] { opgate::tvm::make_function(arguments, count, *result); });
}

/// opgate_set_num_threads(count): how many threads a call may use, the caller's own among them.
OPGATE_EXPORT int __tvm_ffi_opgate_set_num_threads(void*, const opgate::tvm::Value* arguments, std::int32_t count,
                                                   opgate::tvm::Value*) {
  using namespace opgate::tvm;
  return guarded([&] {
    if (count != 1 || arguments[0].kind != kInt || arguments[0].integer < 1)
      throw ValueMistake("opgate_set_num_threads: expected at least one thread");
    threads = static_cast<std::size_t>(arguments[0].integer);
  });
}
