// Shows the op table to ONNX Runtime through its C API: RegisterCustomOps is the library's one entry.
//
// The API version asked for is the lowest that has shape inference for custom ops and KernelContext_ParallelFor, so
// that the library loads into every ONNX Runtime from 1.17 on; with CUDA, that has KernelContext_GetScratchBuffer
// (1.18).
#define ORT_API_MANUAL_INIT
#include <onnxruntime_c_api.h>

#include <cstring>
#include <deque>
#include <memory>
#include <mutex>

#include "core/table.h"

#ifdef OPGATE_WITH_CUDA
#include "core/cuda.h"
#endif

namespace opgate {
namespace {

#ifdef OPGATE_WITH_CUDA
constexpr std::uint32_t kApiVersion = 18;
#else
constexpr std::uint32_t kApiVersion = 17;
#endif

const OrtApi* api = nullptr;  // set once, by the first RegisterCustomOps, before any other function here runs

template <auto Release>
struct Releaser {
  template <typename T>
  void operator()(T* held) const {
    (api->*Release)(held);
  }
};
using ShapeInfo = std::unique_ptr<OrtTensorTypeAndShapeInfo, Releaser<&OrtApi::ReleaseTensorTypeAndShapeInfo>>;
using MemoryInfo = std::unique_ptr<OrtMemoryInfo, Releaser<&OrtApi::ReleaseMemoryInfo>>;

/// An engine's error as our Status, the engine's object released.
Status taken(OrtStatus* status) {
  if (!status) return {};
  const std::string message = api->GetErrorMessage(status);
  const bool invalid = api->GetErrorCode(status) == ORT_INVALID_ARGUMENT;
  api->ReleaseStatus(status);
  return invalid ? Status::invalid(message) : Status::internal(message);
}

OrtStatus* given(const Status& status) {
  if (status.ok()) return nullptr;
  return api->CreateStatus(status.code() == StatusCode::invalid_argument ? ORT_INVALID_ARGUMENT : ORT_FAIL,
                           status.message().c_str());
}

constexpr std::array<ONNXTensorElementDataType, kDTypeCount> kElementTypes = {
    ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16, ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT,
    ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE,  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8,     ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8,
    ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32,   ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64,    ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL,
    ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING};

ONNXTensorElementDataType element_type(DType dtype) { return kElementTypes[static_cast<int>(dtype)]; }

std::optional<DType> dtype_of_element(ONNXTensorElementDataType type) {
  for (int i = 0; i < kDTypeCount; ++i) {
    if (kElementTypes[i] == type) return static_cast<DType>(i);
  }
  return std::nullopt;
}

// Attributes.

template <typename T, typename Read>
Status read_list(Read&& read, std::vector<T>& values) {
  std::size_t count = 0;
  OPGATE_RETURN_IF_ERROR(taken(read(nullptr, &count)));
  values.resize(count);
  return count ? taken(read(values.data(), &count)) : Status();
}

Status read_text(const OrtKernelInfo* info, const char* name, std::string& text) {
  std::size_t size = 0;  // with the terminating zero
  OPGATE_RETURN_IF_ERROR(taken(api->KernelInfoGetAttribute_string(info, name, nullptr, &size)));
  text.resize(size);
  OPGATE_RETURN_IF_ERROR(taken(api->KernelInfoGetAttribute_string(info, name, text.data(), &size)));
  text.resize(size ? size - 1 : 0);
  return {};
}

Status read_attribute(const OrtKernelInfo* info, const Attribute& attribute, AttributeValue& value) {
  const char* name = attribute.name.c_str();
  const bool real = attribute.kind == Attribute::Kind::number;
  if (attribute.kind == Attribute::Kind::text || attribute.kind == Attribute::Kind::choice) {
    std::string text;
    OPGATE_RETURN_IF_ERROR(read_text(info, name, text));
    if (attribute.list)
      value = lines(text);  // the C API can't read a list of strings
    else
      value = std::move(text);
  } else if (attribute.list && real) {
    std::vector<float> values;
    OPGATE_RETURN_IF_ERROR(read_list(
        [&](float* out, std::size_t* count) { return api->KernelInfoGetAttributeArray_float(info, name, out, count); },
        values));
    value = std::vector<double>(values.begin(), values.end());
  } else if (attribute.list) {
    std::vector<std::int64_t> values;
    OPGATE_RETURN_IF_ERROR(
        read_list([&](std::int64_t* out,
                      std::size_t* count) { return api->KernelInfoGetAttributeArray_int64(info, name, out, count); },
                  values));
    if (attribute.kind == Attribute::Kind::boolean)
      value = std::vector<bool>(values.begin(), values.end());
    else
      value = std::move(values);
  } else if (real) {
    float number = 0;
    OPGATE_RETURN_IF_ERROR(taken(api->KernelInfoGetAttribute_float(info, name, &number)));
    value = static_cast<double>(number);
  } else {
    std::int64_t integer = 0;
    OPGATE_RETURN_IF_ERROR(taken(api->KernelInfoGetAttribute_int64(info, name, &integer)));
    if (attribute.kind == Attribute::Kind::boolean)
      value = integer != 0;
    else
      value = integer;
  }
  return {};
}

/// Whether the node has the attribute at all: the C API tells only that it can't be read as the type asked for.
bool carries(const OrtKernelInfo* info, const char* name) {
  float real = 0;
  std::int64_t integer = 0;
  std::size_t size = 0;
  const auto works = [](OrtStatus* status) { return taken(status).ok(); };
  return works(api->KernelInfoGetAttribute_int64(info, name, &integer)) ||
         works(api->KernelInfoGetAttribute_float(info, name, &real)) ||
         works(api->KernelInfoGetAttribute_string(info, name, nullptr, &size)) ||
         works(api->KernelInfoGetAttributeArray_int64(info, name, nullptr, &size)) ||
         works(api->KernelInfoGetAttributeArray_float(info, name, nullptr, &size));
}

Status read_attributes(const OrtKernelInfo* info, const Signature& signature, Attributes& attributes) {
  std::vector<std::optional<AttributeValue>> values(signature.attributes.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Attribute& attribute = signature.attributes[i];
    AttributeValue value;
    if (read_attribute(info, attribute, value).ok()) {
      values[i] = std::move(value);
    } else if (carries(info, attribute.name.c_str())) {
      std::string hint;
      if (attribute.list && attribute.kind == Attribute::Kind::text) hint = " as one string, an element a line";
      if (attribute.kind == Attribute::Kind::number) hint = " (1.0, not 1)";
      return Status::invalid("attribute '" + attribute.name + "': expected " + type_text(attribute) + hint +
                             ", got a value of another type");
    }
  }
  return Attributes::make(signature, std::move(values), attributes);
}

// One call of a kernel.

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
    OPGATE_RETURN_IF_ERROR(taken(api->KernelContext_GetOutput(context_, index, dims.data(), dims.size(), &value)));
    if (!value) return {};
    if (dtype != DType::str) {
      OPGATE_RETURN_IF_ERROR(taken(api->GetTensorMutableData(value, data)));
      if (!*data) *data = &nothing_;  // an empty tensor is wanted and has no memory
      return {};
    }
    std::size_t count = 1;
    for (std::int64_t dim : dims) count *= static_cast<std::size_t>(dim);
    texts_.push_back({value, std::make_unique<std::string[]>(count), count});
    *data = texts_.back().values.get();
    return {};
  }

  void parallel_for(std::size_t tasks, void (*task)(void*, std::size_t), void* user) override {
    if (Status status = taken(api->KernelContext_ParallelFor(context_, task, tasks, 0, user)); !status.ok()) {
      throw std::runtime_error(status.message());
    }
  }

  void* scratch(std::size_t bytes) override {
    constexpr std::size_t kAlignment = 64;
    if (!allocator_) {
      OrtMemoryInfo* made = nullptr;
      Status status = memory_info(&made);
      const MemoryInfo info(made);
      if (status.ok()) status = taken(api->KernelContext_GetAllocator(context_, info.get(), &allocator_));
      if (!status.ok()) throw std::runtime_error(status.message());
    }
    void* memory = allocate(*allocator_, bytes + kAlignment);
    if (!memory) throw std::bad_alloc();
    scratch_.push_back(memory);
    const auto address = reinterpret_cast<std::uintptr_t>(memory);
    return reinterpret_cast<void*>((address + kAlignment - 1) / kAlignment * kAlignment);
  }

  /// Hands the strings that the kernel wrote to the engine.
  Status give_texts() const {
    for (const Texts& texts : texts_) {
      for (std::size_t i = 0; i < texts.count; ++i) {
        const std::string& text = texts.values[i];
        char* buffer = nullptr;
        OPGATE_RETURN_IF_ERROR(taken(api->GetResizedStringTensorElementBuffer(texts.value, i, text.size(), &buffer)));
        std::memcpy(buffer, text.data(), text.size());
      }
    }
    return {};
  }

 protected:
  /// Where scratch memory comes from.
  virtual Status memory_info(OrtMemoryInfo** info) const {
    return taken(api->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, info));
  }

  virtual void* allocate(OrtAllocator& allocator, std::size_t bytes) const {
    return allocator.Alloc(&allocator, bytes);
  }

  /// Whether the node has the output at all.
  Status wants(std::size_t index, bool& wanted) {
    if (!counted_) OPGATE_RETURN_IF_ERROR(taken(api->KernelContext_GetOutputCount(context_, &output_count_)));
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

/// A call on the CUDA provider's stream. Outputs of a size that only the kernel knows are made in scratch memory and
/// copied: the engine can't cut a tensor that it has given.
class OrtCudaEngine final : public OrtEngine {
 public:
  using OrtEngine::OrtEngine;

  Status find_stream() { return taken(api->KernelContext_GetGPUComputeStream(context_, &stream_)); }

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

  Status read_sizes(std::span<std::int64_t> sizes, bool&) override {
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
    return taken(api->CreateMemoryInfo("Cuda", OrtDeviceAllocator, device, OrtMemTypeDefault, info));
  }

  /// In the stream's order: what is freed before the kernel has run may go to another stream only after it.
  void* allocate(OrtAllocator& allocator, std::size_t bytes) const override {
    void* memory = nullptr;
    return taken(api->KernelContext_GetScratchBuffer(context_, allocator.Info(&allocator), bytes, &memory)).ok()
               ? memory
               : nullptr;
  }

  void* stream_ = nullptr;
  std::int64_t* sizes_ = nullptr;
  std::vector<void*> bounded_;
};

#endif

/// The strings of an input, laid out for a kernel.
struct InputTexts {
  std::unique_ptr<char[]> characters;
  std::vector<std::string_view> views;
};

Status read_texts(const OrtValue* value, std::size_t count, InputTexts& texts) {
  std::size_t total = 0;
  OPGATE_RETURN_IF_ERROR(taken(api->GetStringTensorDataLength(value, &total)));
  texts.characters = std::make_unique<char[]>(total + 1);
  std::vector<std::size_t> starts(count + 1, total);
  OPGATE_RETURN_IF_ERROR(
      taken(api->GetStringTensorContent(value, texts.characters.get(), total, starts.data(), count)));
  for (std::size_t i = 0; i < count; ++i) {
    texts.views.emplace_back(texts.characters.get() + starts[i], starts[i + 1] - starts[i]);
  }
  return {};
}

struct InputSlot {
  Tensor tensor;
  Dims dims;
};

Status read_input(const OrtValue* value, Device device, InputSlot& slot, std::deque<InputTexts>& texts) {
  OrtTensorTypeAndShapeInfo* made = nullptr;
  OPGATE_RETURN_IF_ERROR(taken(api->GetTensorTypeAndShape(value, &made)));
  const ShapeInfo info(made);
  ONNXTensorElementDataType element = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  std::size_t rank = 0;
  OPGATE_RETURN_IF_ERROR(taken(api->GetTensorElementType(info.get(), &element)));
  OPGATE_RETURN_IF_ERROR(taken(api->GetDimensionsCount(info.get(), &rank)));
  slot.dims.resize(rank);
  OPGATE_RETURN_IF_ERROR(taken(api->GetDimensions(info.get(), slot.dims.data(), rank)));
  const auto dtype = dtype_of_element(element);
  if (!dtype)
    return Status::invalid("an input of ONNX element type " + std::to_string(element) +
                           ", which no signature can state");
  void* data = nullptr;
  if (*dtype == DType::str) {
    std::size_t count = 0;
    OPGATE_RETURN_IF_ERROR(taken(api->GetTensorShapeElementCount(info.get(), &count)));
    OPGATE_RETURN_IF_ERROR(read_texts(value, count, texts.emplace_back()));
    data = texts.back().views.data();
  } else {
    // The API has no accessor for constant data; nothing is written through this pointer.
    OPGATE_RETURN_IF_ERROR(taken(api->GetTensorMutableData(const_cast<OrtValue*>(value), &data)));
  }
  slot.tensor = Tensor(data, *dtype, slot.dims, device);
  return {};
}

/// One node of a session.
struct Kernel {
  const Op* op;
  Device device;
  Attributes attributes;

  Status compute(OrtKernelContext* context) const {
    std::size_t count = 0;
    OPGATE_RETURN_IF_ERROR(taken(api->KernelContext_GetInputCount(context, &count)));
    std::vector<InputSlot> slots(count);
    std::deque<InputTexts> texts;
    InputPointers inputs(count);
    for (std::size_t i = 0; i < count; ++i) {
      const OrtValue* value = nullptr;
      OPGATE_RETURN_IF_ERROR(taken(api->KernelContext_GetInput(context, i, &value)));
      if (!value) continue;
      const Input& declared = op->signature.inputs[std::min(i, op->signature.inputs.size() - 1)];
      OPGATE_RETURN_IF_ERROR(read_input(value, declared.host ? Device::cpu : device, slots[i], texts));
      inputs[i] = &slots[i].tensor;
    }
#ifdef OPGATE_WITH_CUDA
    if (device == Device::cuda) {
      OrtCudaEngine engine(context);
      OPGATE_RETURN_IF_ERROR(engine.find_stream());
      return invoke(*op, device, inputs, attributes, engine);
    }
#endif
    OrtEngine engine(context);
    OPGATE_RETURN_IF_ERROR(invoke(*op, device, inputs, attributes, engine));
    return engine.give_texts();
  }
};

// Shape inference.

Status input_shape(const OrtTensorTypeAndShapeInfo* info, std::optional<SymbolicShape>& shape) {
  std::size_t rank = 0;
  OPGATE_RETURN_IF_ERROR(taken(api->GetDimensionsCount(info, &rank)));
  if (rank == 0) return {};  // a scalar, or an unknown rank: the API shows both so
  std::vector<std::int64_t> values(rank);
  std::vector<const char*> symbols(rank, nullptr);
  OPGATE_RETURN_IF_ERROR(taken(api->GetDimensions(info, values.data(), rank)));
  OPGATE_RETURN_IF_ERROR(taken(api->GetSymbolicDimensions(info, symbols.data(), rank)));
  shape.emplace(rank);
  for (std::size_t i = 0; i < rank; ++i) {
    (*shape)[i].value = values[i] < 0 ? -1 : values[i];
    if (values[i] < 0 && symbols[i]) (*shape)[i].symbol = symbols[i];
  }
  return {};
}

/// What the type variables stand for in one node, as far as its inputs tell.
using NodeTypes = std::vector<std::optional<DType>>;

/// What is known of one input; an absent optional input has no element type. Binds the input's type variable.
Status node_input(const OrtTensorTypeAndShapeInfo* info, const Input& declared, SymbolicInput& input,
                  NodeTypes& types) {
  ONNXTensorElementDataType element = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  OPGATE_RETURN_IF_ERROR(taken(api->GetTensorElementType(info, &element)));
  const auto dtype = dtype_of_element(element);
  input.present = dtype.has_value();
  if (!dtype) return {};
  if (declared.type.variable >= 0) types[declared.type.variable] = dtype;
  return input_shape(info, input.shape);
}

/// The integer attributes that stand in sizes, as this node has them.
std::vector<std::optional<std::int64_t>> integers_of(const Signature& signature, const OrtShapeInferContext* context) {
  std::vector<std::optional<std::int64_t>> integers(signature.attributes.size());
  for (std::size_t i = 0; i < integers.size(); ++i) {
    const Attribute& attribute = signature.attributes[i];
    if (attribute.kind != Attribute::Kind::integer || attribute.list) continue;
    const OrtOpAttr* node_attribute = nullptr;
    std::int64_t value = 0;
    std::size_t size = 0;
    if (taken(api->ShapeInferContext_GetAttribute(context, attribute.name.c_str(), &node_attribute)).ok() &&
        node_attribute && taken(api->ReadOpAttr(node_attribute, ORT_OP_ATTR_INT, &value, sizeof value, &size)).ok()) {
      integers[i] = value;
    } else if (!attribute.required) {
      integers[i] = std::get<std::int64_t>(attribute.default_value);
    }
  }
  return integers;
}

Status set_output_shape(OrtShapeInferContext* context, std::size_t index, DType dtype, const SymbolicShape& shape) {
  OrtTensorTypeAndShapeInfo* made = nullptr;
  OPGATE_RETURN_IF_ERROR(taken(api->CreateTensorTypeAndShapeInfo(&made)));
  const ShapeInfo info(made);
  std::vector<std::int64_t> values;
  std::vector<const char*> symbols;
  for (const SymbolicDim& dim : shape) {
    values.push_back(dim.value);
    symbols.push_back(dim.symbol.c_str());
  }
  OPGATE_RETURN_IF_ERROR(taken(api->SetTensorElementType(info.get(), element_type(dtype))));
  OPGATE_RETURN_IF_ERROR(taken(api->SetDimensions(info.get(), values.data(), values.size())));
  OPGATE_RETURN_IF_ERROR(taken(api->SetSymbolicDimensions(info.get(), symbols.data(), symbols.size())));
  return taken(api->ShapeInferContext_SetOutputTypeShape(context, index, info.get()));
}

Status infer(const Op& op, OrtShapeInferContext* context) {
  const Signature& signature = op.signature;
  std::size_t count = 0;
  OPGATE_RETURN_IF_ERROR(taken(api->ShapeInferContext_GetInputCount(context, &count)));
  std::vector<SymbolicInput> inputs(count);
  NodeTypes types(signature.type_variables.size());
  for (std::size_t i = 0; i < count; ++i) {
    OrtTensorTypeAndShapeInfo* info = nullptr;
    if (!taken(api->ShapeInferContext_GetInputTypeShape(context, i, &info)).ok() || !info) continue;
    const Input& declared = signature.inputs[std::min(i, signature.inputs.size() - 1)];
    OPGATE_RETURN_IF_ERROR(node_input(info, declared, inputs[i], types));
  }
  std::vector<std::optional<SymbolicShape>> outputs;
  OPGATE_RETURN_IF_ERROR(infer_shapes(signature, inputs, integers_of(signature, context), outputs));
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const ElementType& type = signature.outputs[i].type;
    const std::optional<DType> dtype = type.variable < 0 ? type.dtype : types[type.variable];
    // The engine takes the type from here too: one that isn't known must not be set.
    if (outputs[i] && dtype) OPGATE_RETURN_IF_ERROR(set_output_shape(context, i, *dtype, *outputs[i]));
  }
  return {};
}

// Registration: an OrtCustomOp for each op, device and choice of its type variables.

struct Registered : OrtCustomOp {
  const Op* op;
  Device device;
  std::vector<DType> types;  ///< of the type variables

  ONNXTensorElementDataType element(const ElementType& type) const {
    return element_type(type.variable < 0 ? type.dtype : types[type.variable]);
  }
};

const Registered& of(const OrtCustomOp* op) { return *static_cast<const Registered*>(op); }

OrtCustomOpInputOutputCharacteristic characteristic(bool optional, bool variadic) {
  return optional ? INPUT_OUTPUT_OPTIONAL : variadic ? INPUT_OUTPUT_VARIADIC : INPUT_OUTPUT_REQUIRED;
}

/// Runs `body` and turns whatever it throws into an engine's status.
template <typename Body>
OrtStatus* guarded(Body&& body) {
  try {
    return given(body());
  } catch (const std::exception& error) {
    return api->CreateStatus(ORT_FAIL, error.what());
  }
}

void fill(Registered& registered) {
  registered.version = kApiVersion;
  registered.GetName = [](const OrtCustomOp* op) { return of(op).op->signature.name.c_str(); };
  registered.GetExecutionProviderType = [](const OrtCustomOp* op) -> const char* {
    return of(op).device == Device::cuda ? "CUDAExecutionProvider" : nullptr;  // nullptr: the CPU's
  };
  registered.GetInputTypeCount = [](const OrtCustomOp* op) { return of(op).op->signature.inputs.size(); };
  registered.GetOutputTypeCount = [](const OrtCustomOp* op) { return of(op).op->signature.outputs.size(); };
  registered.GetInputType = [](const OrtCustomOp* op, std::size_t i) {
    return of(op).element(of(op).op->signature.inputs[i].type);
  };
  registered.GetOutputType = [](const OrtCustomOp* op, std::size_t i) {
    return of(op).element(of(op).op->signature.outputs[i].type);
  };
  registered.GetInputCharacteristic = [](const OrtCustomOp* op, std::size_t i) {
    const Input& input = of(op).op->signature.inputs[i];
    return characteristic(input.optional, input.variadic);
  };
  registered.GetOutputCharacteristic = [](const OrtCustomOp* op, std::size_t i) {
    return characteristic(of(op).op->signature.outputs[i].optional, false);
  };
  registered.GetInputMemoryType = [](const OrtCustomOp* op, std::size_t i) {
    return of(op).op->signature.inputs[i].host ? OrtMemTypeCPUInput : OrtMemTypeDefault;
  };
  registered.GetVariadicInputMinArity = [](const OrtCustomOp*) { return 1; };
  registered.GetVariadicInputHomogeneity = [](const OrtCustomOp*) { return 1; };
  registered.GetVariadicOutputMinArity = [](const OrtCustomOp*) { return 1; };
  registered.GetVariadicOutputHomogeneity = [](const OrtCustomOp*) { return 1; };
  registered.GetStartVersion = [](const OrtCustomOp* op) { return of(op).op->since_version; };
  registered.GetEndVersion = [](const OrtCustomOp*) { return std::numeric_limits<int>::max(); };
  registered.CreateKernelV2 = [](const OrtCustomOp* op, const OrtApi*, const OrtKernelInfo* info,
                                 void** kernel) -> OrtStatusPtr {
    return guarded([&]() -> Status {
      auto made = std::make_unique<Kernel>();
      made->op = of(op).op;
      made->device = of(op).device;
      Status status = read_attributes(info, made->op->signature, made->attributes);
      if (!status.ok()) {
        return std::move(status).with_prefix(std::string(Table::domain()) + "::" + made->op->signature.name + ": ");
      }
      *kernel = made.release();
      return {};
    });
  };
  registered.KernelComputeV2 = [](void* kernel, OrtKernelContext* context) -> OrtStatusPtr {
    return guarded([&] { return static_cast<const Kernel*>(kernel)->compute(context); });
  };
  registered.KernelDestroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
  registered.InferOutputShapeFn = [](const OrtCustomOp* op, OrtShapeInferContext* context) -> OrtStatusPtr {
    return guarded([&] { return infer(*of(op).op, context); });
  };
}

/// Every choice of dtypes for the type variables, the last one varying fastest.
void choices(const std::vector<TypeVariable>& variables, std::vector<DType>& chosen,
             std::vector<std::vector<DType>>& all) {
  if (chosen.size() == variables.size()) {
    all.push_back(chosen);
    return;
  }
  for (DType dtype : variables[chosen.size()].dtypes) {
    chosen.push_back(dtype);
    choices(variables, chosen, all);
    chosen.pop_back();
  }
}

#ifdef OPGATE_WITH_CUDA
constexpr std::array kDevices = {Device::cpu, Device::cuda};
#else
constexpr std::array kDevices = {Device::cpu};
#endif

Status add(const Op& op, Device device, std::deque<Registered>& registered, OrtCustomOpDomain* domain) {
  std::vector<DType> chosen;
  std::vector<std::vector<DType>> all;
  choices(op.signature.type_variables, chosen, all);
  for (std::vector<DType>& types : all) {
    Registered& entry = registered.emplace_back();
    entry.op = &op;
    entry.device = device;
    entry.types = std::move(types);
    fill(entry);
    OPGATE_RETURN_IF_ERROR(taken(api->CustomOpDomain_Add(domain, &entry)));
  }
  return {};
}

/// The domain with all ops. Sessions share it and may outlive every caller, so it is never released.
Status make_domain(OrtCustomOpDomain** domain) {
  static std::mutex mutex;
  static OrtCustomOpDomain* made = nullptr;
  static std::deque<Registered> registered;
  const std::lock_guard lock(mutex);
  if (!made) {
    const Table& table = Table::instance();
    if (!table.errors().empty())
      return Status::internal("op library '" + std::string(Table::domain()) + "': " + table.errors()[0]);
    OrtCustomOpDomain* fresh = nullptr;
    OPGATE_RETURN_IF_ERROR(taken(api->CreateCustomOpDomain(Table::domain(), &fresh)));
    for (const Op& op : table.ops()) {
      for (const Device device : kDevices) {
        if (op.kernel(device)) OPGATE_RETURN_IF_ERROR(add(op, device, registered, fresh));
      }
    }
    made = fresh;
  }
  *domain = made;
  return {};
}

}  // namespace
}  // namespace opgate

extern "C" __attribute__((visibility("default"))) OrtStatus* ORT_API_CALL RegisterCustomOps(OrtSessionOptions* options,
                                                                                            const OrtApiBase* base) {
  using namespace opgate;
  const OrtApi* asked = base->GetApi(kApiVersion);
  if (!asked) {
    const std::string message = "op library '" + std::string(Table::domain()) + "' needs ONNX Runtime 1." +
                                std::to_string(kApiVersion) + " or later, this is " + base->GetVersionString();
    return base->GetApi(1)->CreateStatus(ORT_FAIL, message.c_str());
  }
  static const OrtApi* const first = api = asked;
  if (first != asked) {
    return asked->CreateStatus(ORT_FAIL, "the op library serves another ONNX Runtime of this process already");
  }
  return guarded([&]() -> Status {
    OrtCustomOpDomain* domain = nullptr;
    OPGATE_RETURN_IF_ERROR(make_domain(&domain));
    return taken(api->AddCustomOpDomain(options, domain));
  });
}
