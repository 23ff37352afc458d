// Plays TVM-FFI with tensors on CUDA: it has the functions of TVM's library that the adapter looks up, makes the
// function of an op, and calls it. In turn it lets the function make its outputs, and gives it those to write to. It
// checks that the function asks for the stream of the device of its tensors.
//
// The runner gets it as the option `--tvm LIBRARY`; the ops are those of the program itself.
#include <cstring>
#include <deque>
#include <map>

#include "kernel_toolkit/cuda.h"
#include "op_call/data_types.h"
#include "op_call/tvm_ffi.h"
#include "runner/caller.h"

extern "C" int __tvm_ffi_opgate_function(void*, const opgate::tvm::Value* arguments, std::int32_t count,
                                         opgate::tvm::Value* result);

namespace opgate {
namespace {

using tvm::Value;

constexpr std::int32_t kCpu = 1, kCuda = 2, kOrdinal = 0;

std::string error_kind, error_message;
void* stream = nullptr;

struct FunctionObject {
  void* self;
  tvm::Function call;
  void (*deleter)(void* self);
};

/// A tensor that an op has made: what an object begins with, and what DLPack knows of it.
struct TensorObject {
  tvm::Object object;
  OpgateTensor tensor;
  tvm::ManagedTensor* managed;
};

/// Behind the beginning of an object, as TVM has arrays.
struct ArrayObject {
  tvm::Object object;
  tvm::Sequence sequence;
  std::vector<Value> values;
};

int make_array(void*, const Value* arguments, std::int32_t count, Value* result) {
  auto* const made = new ArrayObject{{1, tvm::kArray, 0, nullptr}, {}, {arguments, arguments + count}};
  made->sequence = {made->values.data(), count};
  *result = {.kind = tvm::kArray, .small_size = 0, .object = &made->object};
  return 0;
}

FunctionObject array_function{nullptr, &make_array, nullptr};

}  // namespace
}  // namespace opgate

extern "C" {
using namespace opgate;

int TVMFFIObjectDecRef(void*) { return 0; }  // whoever has made an object frees it

void TVMFFIErrorSetRaisedFromCStr(const char* kind, const char* message) {
  error_kind = kind;
  error_message = message;
}

int TVMFFIFunctionCreate(void* self, tvm::Function call, void (*deleter)(void*), void** function) {
  *function = new FunctionObject{self, call, deleter};
  return 0;
}

int TVMFFIFunctionGetGlobal(const tvm::Bytes* name, void** function) {
  *function = std::string_view(name->data, name->size) == "ffi.Array" ? &array_function : nullptr;
  return 0;
}

int TVMFFIFunctionCall(void* function, Value* arguments, std::int32_t count, Value* result) {
  const auto& called = *static_cast<FunctionObject*>(function);
  return called.call(called.self, arguments, count, result);
}

int TVMFFITensorFromDLPack(tvm::ManagedTensor* from, std::int32_t, std::int32_t, void** tensor) {
  *tensor = new TensorObject{{1, tvm::kTensor, 0, nullptr}, from->tensor, from};
  return 0;
}

void* TVMFFIEnvGetStream(std::int32_t kind, std::int32_t device) {
  return kind == kCuda && device == kOrdinal ? stream : nullptr;
}
}

namespace opgate {
namespace {

static_assert(offsetof(TensorObject, tensor) == sizeof(tvm::Object));
static_assert(offsetof(ArrayObject, sequence) == sizeof(tvm::Object));

class Functions {
 public:
  Functions() = default;
  Functions(const Functions&) = delete;
  Functions& operator=(const Functions&) = delete;
  ~Functions() {
    for (const auto& [op, function] : functions_) {
      function->deleter(function->self);
      delete function;
    }
  }

  Status call(const Op& op, const InputPointers& inputs, const Attributes& attributes, Engine& engine) {
    stream = engine.stream();
    lists_.clear();
    kept_.clear();
    FunctionObject* function = nullptr;
    OPGATE_RETURN_IF_ERROR(find(op, function));
    std::deque<OpgateTensor> tensors;
    std::deque<std::vector<Value>> lists;
    std::vector<Value> given, values;
    OPGATE_RETURN_IF_ERROR(add_inputs(op.signature, inputs, tensors, lists, given));
    std::deque<std::string> texts;
    for (std::size_t i = 0; i < op.signature.attributes.size(); ++i) {
      values.push_back(std::visit([&](const auto& value) { return value_of(value, texts, lists); }, attributes.at(i)));
    }
    std::vector<Value> arguments = given;
    arguments.insert(arguments.end(), values.begin(), values.end());
    Value result{};
    OPGATE_RETURN_IF_ERROR(run(*function, arguments, result));
    std::vector<TensorObject*> made;
    if (result.kind == tvm::kTensor) made.push_back(reinterpret_cast<TensorObject*>(result.object));
    if (result.kind == tvm::kArray) {
      const std::unique_ptr<ArrayObject> array(reinterpret_cast<ArrayObject*>(result.object));
      for (const Value& value : array->values) made.push_back(reinterpret_cast<TensorObject*>(value.object));
    }
    if (made.size() != op.signature.outputs.size()) return Status::internal("not all outputs were made");
    std::vector<Value> outputs;
    const bool copies = ++calls_ % 2 != 0;
    for (std::size_t o = 0; o < made.size(); ++o)
      OPGATE_RETURN_IF_ERROR(take(o, *made[o], engine, copies, tensors, outputs));
    if (copies) return {};
    arguments = given;
    arguments.insert(arguments.end(), outputs.begin(), outputs.end());
    arguments.insert(arguments.end(), values.begin(), values.end());
    return run(*function, arguments, result);
  }

 private:
  Status find(const Op& op, FunctionObject*& function) {
    FunctionObject*& known = functions_[&op];
    if (!known) {
      const Value asked[] = {{.kind = tvm::kRawText, .small_size = 0, .raw_text = op.signature.name.c_str()},
                             {.kind = tvm::kInt, .small_size = 0, .integer = -1}};
      Value result{};
      if (__tvm_ffi_opgate_function(nullptr, asked, 2, &result) != 0) return Status::internal(error_message);
      known = reinterpret_cast<FunctionObject*>(result.object);
    }
    function = known;
    return {};
  }

  static Status run(const FunctionObject& function, const std::vector<Value>& arguments, Value& result) {
    const auto count = static_cast<std::int32_t>(arguments.size());
    if (function.call(function.self, arguments.data(), count, &result) == 0) return {};
    return error_kind == "RuntimeError" ? Status::internal(error_message) : Status::invalid(error_message);
  }

  static Value tensor_value(OpgateTensor& tensor) {
    return {.kind = tvm::kTensorPointer, .small_size = 0, .tensor = &tensor};
  }

  static OpgateTensor& described(const Tensor& tensor, std::deque<OpgateTensor>& tensors) {
    const bool on_cpu = tensor.device() == Device::cpu;
    const auto dims = tensor.dims();
    return tensors.emplace_back(OpgateTensor{const_cast<void*>(tensor.raw()),
                                             {on_cpu ? kCpu : kCuda, on_cpu ? 0 : kOrdinal},
                                             static_cast<std::int32_t>(dims.size()),
                                             kDataTypes[static_cast<std::size_t>(tensor.dtype())],
                                             const_cast<std::int64_t*>(dims.data()),
                                             nullptr,
                                             0});
  }

  Status add_inputs(const Signature& signature, const InputPointers& inputs, std::deque<OpgateTensor>& tensors,
                    std::deque<std::vector<Value>>& lists, std::vector<Value>& given) {
    std::size_t next = 0;
    for (const Input& declared : signature.inputs) {
      if (declared.variadic) {
        std::vector<Value> elements;
        for (; next < inputs.size(); ++next) elements.push_back(tensor_value(described(*inputs[next], tensors)));
        given.push_back(list_value(std::move(elements), lists));
      } else {
        const Tensor* const tensor = next < inputs.size() ? inputs[next++] : nullptr;
        given.push_back(tensor ? tensor_value(described(*tensor, tensors)) : Value{});
      }
    }
    return {};
  }

  Value list_value(std::vector<Value> elements, std::deque<std::vector<Value>>&) {
    Value result{};
    make_array(nullptr, elements.data(), static_cast<std::int32_t>(elements.size()), &result);
    lists_.emplace_back(reinterpret_cast<ArrayObject*>(result.object));
    return result;
  }

  template <typename T>
  Value value_of(const T& value, std::deque<std::string>& texts, std::deque<std::vector<Value>>& lists) {
    if constexpr (std::is_same_v<T, std::int64_t>) {
      return {.kind = tvm::kInt, .small_size = 0, .integer = value};
    } else if constexpr (std::is_same_v<T, bool>) {
      return {.kind = tvm::kBool, .small_size = 0, .integer = value};
    } else if constexpr (std::is_same_v<T, double>) {
      return {.kind = tvm::kFloat, .small_size = 0, .number = value};
    } else if constexpr (std::is_same_v<T, std::string>) {
      return {.kind = tvm::kRawText, .small_size = 0, .raw_text = texts.emplace_back(value).c_str()};
    } else {
      std::vector<Value> elements;
      for (const auto& each : value)
        elements.push_back(value_of(static_cast<typename T::value_type>(each), texts, lists));
      return list_value(std::move(elements), lists);
    }
  }

  /// Takes an output that the function has made. With `copies` its elements are what the engine gets. Otherwise
  /// `outputs` gets the tensor that the function shall write to.
  static Status take(std::size_t index, TensorObject& made, Engine& engine, bool copies,
                     std::deque<OpgateTensor>& tensors, std::vector<Value>& outputs) {
    const OpgateTensor& tensor = made.tensor;
    if (tensor.device.type != kCuda || tensor.device.id != kOrdinal)
      return Status::internal("an output lies on another device than the inputs");
    const auto dtype =
        static_cast<DType>(std::ranges::find_if(kDataTypes,
                                                [&](const OpgateDataType& one) {
                                                  return one.code == tensor.dtype.code && one.bits == tensor.dtype.bits;
                                                }) -
                           kDataTypes.begin());
    const std::vector<std::int64_t> dims(tensor.dims, tensor.dims + tensor.rank);
    void* data = nullptr;
    OPGATE_RETURN_IF_ERROR(engine.allocate_output(index, dtype, dims, &data));
    if (copies) OPGATE_RETURN_IF_ERROR(cuda::copy(data, tensor.data, bytes_of(dtype, dims), engine.stream()));
    if (!copies) {
      OpgateTensor& output = tensors.emplace_back(tensor);
      output.data = data;
      output.dims = kept_.emplace_back(dims).data();
      output.strides = nullptr;
      outputs.push_back(tensor_value(output));
    }
    OPGATE_RETURN_IF_ERROR(
        cuda::status(cudaStreamSynchronize(static_cast<cudaStream_t>(engine.stream())), "waiting for a kernel"));
    made.managed->deleter(made.managed);
    delete &made;
    return {};
  }

  inline static std::deque<std::vector<std::int64_t>> kept_;
  std::map<const Op*, FunctionObject*> functions_;
  std::vector<std::unique_ptr<ArrayObject>> lists_;  ///< of the arguments of one call
  int calls_ = 0;
};

Status open_functions(const char*, runner::Call& call) {
  auto functions = std::make_shared<Functions>();
  call = [functions](const Op& op, const InputPointers& inputs, const Attributes& attributes, Engine& engine,
                     KernelCache&) { return functions->call(op, inputs, attributes, engine); };
  return {};
}

const runner::CallerRegistration registration({"--tvm", &open_functions});

}  // namespace
}  // namespace opgate
