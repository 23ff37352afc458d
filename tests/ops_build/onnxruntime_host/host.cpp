// Plays ONNX Runtime with its CUDA provider: it has the part of the C API that the adapter uses, registers the custom
// ops, creates the kernel of a node and computes it. It checks what the real one would rely on:
//
//   - the kernel belongs to the CUDA provider, and its `const` inputs are declared to lie in host memory;
//   - scratch memory is asked for on the device, and given back exactly once;
//   - the kernel gets the stream of the call, and no other.
//
// The runner gets it as the option `--onnxruntime LIBRARY`; the ops are those of the program itself.
#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <set>
#include <stdexcept>

#include "adapters/onnxruntime/api.h"
#include "runner/caller.h"

// The types that the C API keeps opaque.

struct OrtStatus {
  OrtErrorCode code;
  std::string message;
};

struct OrtMemoryInfo {
  std::string name;
  OrtAllocatorType type;
  int id;
};

struct OrtTensorTypeAndShapeInfo {
  ONNXTensorElementDataType element = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  std::vector<std::int64_t> dims;
};

struct OrtTypeInfo {
  OrtTensorTypeAndShapeInfo tensor;
};

struct OrtValue {
  OrtTensorTypeAndShapeInfo info;
  void* data;
};

struct OrtCustomOpDomain {
  std::string name;
  std::vector<const OrtCustomOp*> ops;
};

struct OrtSessionOptions {
  OrtCustomOpDomain* domain = nullptr;
};

/// A node, as the session knows it before the run.
struct OrtKernelInfo {
  const opgate::Signature& signature;
  const opgate::Attributes& attributes;
  std::vector<const OrtValue*> inputs;  ///< nullptr for an absent one
};

/// A run of the node.
struct OrtKernelContext {
  opgate::Engine& engine;
  std::vector<const OrtValue*> inputs;
  std::deque<OrtValue> outputs;
  std::set<void*> scratch;
  std::string mistake;  ///< what the adapter did wrong
};

extern "C" OrtStatus* ORT_API_CALL RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base);

namespace opgate {
namespace {

OrtStatus* error(OrtErrorCode code, const std::string& message) { return new OrtStatus{code, message}; }

const OrtMemoryInfo kDevice{"Cuda", OrtDeviceAllocator, 0};

/// The allocator of the device's memory during a call.
struct DeviceAllocator : OrtAllocator {
  OrtKernelContext* context;  ///< nullptr before the run
};

const AttributeValue* find(const OrtKernelInfo* info, const char* name) {
  const auto& attributes = info->signature.attributes;
  for (std::size_t i = 0; i < attributes.size(); ++i) {
    if (attributes[i].name == name) return &info->attributes.at(i);
  }
  return nullptr;
}

/// The attribute as T. An error if it is of another type, as in ONNX Runtime.
template <typename T>
OrtStatus* read(const OrtKernelInfo* info, const char* name, T& value) {
  const AttributeValue* attribute = find(info, name);
  if (const auto* integer = attribute ? std::get_if<std::int64_t>(attribute) : nullptr; integer) {
    if constexpr (std::is_same_v<T, std::int64_t>) return value = *integer, nullptr;
  }
  if (const auto* boolean = attribute ? std::get_if<bool>(attribute) : nullptr; boolean) {
    if constexpr (std::is_same_v<T, std::int64_t>) return value = *boolean, nullptr;
  }
  if (const auto* number = attribute ? std::get_if<double>(attribute) : nullptr; number) {
    if constexpr (std::is_same_v<T, float>) return value = static_cast<float>(*number), nullptr;
  }
  return error(ORT_FAIL, std::string("no such attribute: ") + name);
}

/// Writes the elements to `out`, or only their number if `out` is nullptr.
template <typename T, typename Values>
OrtStatus* list(const Values& values, T* out, std::size_t* count) {
  if (out) std::ranges::transform(values, out, [](auto value) { return static_cast<T>(value); });
  *count = values.size();
  return nullptr;
}

/// A text, or a list of texts as one text with a line for each.
OrtStatus* text(const OrtKernelInfo* info, const char* name, char* out, std::size_t* size) {
  const AttributeValue* attribute = find(info, name);
  std::string text;
  if (const auto* one = attribute ? std::get_if<std::string>(attribute) : nullptr; one) {
    text = *one;
  } else if (const auto* lines = attribute ? std::get_if<std::vector<std::string>>(attribute) : nullptr; lines) {
    for (std::size_t i = 0; i < lines->size(); ++i) text += (i ? "\n" : "") + (*lines)[i];
  } else {
    return error(ORT_FAIL, std::string("no such attribute: ") + name);
  }
  if (out) std::memcpy(out, text.c_str(), text.size() + 1);
  *size = text.size() + 1;
  return nullptr;
}

OrtStatus* scratch(OrtKernelContext* context, const OrtMemoryInfo* info, std::size_t bytes, void** memory) {
  if (info->name != kDevice.name || info->type != kDevice.type || info->id != kDevice.id)
    context->mistake = "scratch memory was asked for in the memory " + info->name;
  *memory = context->engine.scratch(bytes);
  context->scratch.insert(*memory);
  return nullptr;
}

void free_scratch(OrtAllocator* allocator, void* memory) {
  OrtKernelContext& context = *static_cast<DeviceAllocator*>(allocator)->context;
  if (!context.scratch.erase(memory)) context.mistake = "memory was freed that was not allocated, or twice";
}

void* alloc(OrtAllocator* allocator, std::size_t) {
  static_cast<DeviceAllocator*>(allocator)->context->mistake = "memory was allocated without regard to the stream";
  return nullptr;
}

DeviceAllocator* device_allocator(OrtKernelContext* context) {
  auto* allocator = new DeviceAllocator;
  allocator->version = ORT_API_VERSION;
  allocator->context = context;
  allocator->Alloc = &alloc;
  allocator->Free = &free_scratch;
  allocator->Info = [](const OrtAllocator*) { return &kDevice; };
  return allocator;
}

OrtStatus* output(OrtKernelContext* context, std::size_t index, const std::int64_t* dims, std::size_t rank,
                  OrtValue** value) {
  OrtValue& created = context->outputs[index];
  created.info.dims.assign(dims, dims + rank);
  const std::span sizes(dims, rank);
  const DType dtype = *ort::from_ort(created.info.element);
  if (const Status status = context->engine.allocate_output(index, dtype, sizes, &created.data); !status.ok())
    return error(ORT_FAIL, status.message());
  *value = created.data ? &created : nullptr;  // nobody wants an output without memory
  return nullptr;
}

void fill_memory(OrtApi& api) {
  api.CreateMemoryInfo = [](const char* name, OrtAllocatorType type, int id, OrtMemType,
                            OrtMemoryInfo** info) noexcept -> OrtStatusPtr {
    *info = new OrtMemoryInfo{name, type, id};
    return nullptr;
  };
  api.ReleaseMemoryInfo = [](OrtMemoryInfo* info) noexcept { delete info; };
  api.MemoryInfoGetId = [](const OrtMemoryInfo* info, int* id) noexcept -> OrtStatusPtr {
    return *id = info->id, nullptr;
  };
  api.AllocatorGetInfo = [](const OrtAllocator* allocator, const OrtMemoryInfo** info) noexcept -> OrtStatusPtr {
    return *info = allocator->Info(allocator), nullptr;
  };
  api.ReleaseAllocator = [](OrtAllocator* allocator) noexcept { delete static_cast<DeviceAllocator*>(allocator); };
  api.KernelInfoGetAllocator = [](const OrtKernelInfo*, OrtMemType, OrtAllocator** allocator) noexcept -> OrtStatusPtr {
    return *allocator = device_allocator(nullptr), nullptr;
  };
  api.KernelContext_GetAllocator = [](const OrtKernelContext* context, const OrtMemoryInfo* info,
                                      OrtAllocator** allocator) noexcept -> OrtStatusPtr {
    if (info->name != kDevice.name) return error(ORT_FAIL, "there is no allocator of " + info->name);
    return *allocator = device_allocator(const_cast<OrtKernelContext*>(context)), nullptr;
  };
  api.KernelContext_GetScratchBuffer = [](const OrtKernelContext* context, const OrtMemoryInfo* info, std::size_t bytes,
                                          void** memory) noexcept -> OrtStatusPtr {
    return scratch(const_cast<OrtKernelContext*>(context), info, bytes, memory);
  };
}

void fill_values(OrtApi& api) {
  api.GetTensorTypeAndShape = [](const OrtValue* value, OrtTensorTypeAndShapeInfo** info) noexcept -> OrtStatusPtr {
    return *info = new OrtTensorTypeAndShapeInfo(value->info), nullptr;
  };
  api.ReleaseTensorTypeAndShapeInfo = [](OrtTensorTypeAndShapeInfo* info) noexcept { delete info; };
  api.ReleaseTypeInfo = [](OrtTypeInfo* info) noexcept { delete info; };
  api.CastTypeInfoToTensorInfo = [](const OrtTypeInfo* type,
                                    const OrtTensorTypeAndShapeInfo** info) noexcept -> OrtStatusPtr {
    return *info = &type->tensor, nullptr;
  };
  api.GetTensorElementType = [](const OrtTensorTypeAndShapeInfo* info,
                                ONNXTensorElementDataType* element) noexcept -> OrtStatusPtr {
    return *element = info->element, nullptr;
  };
  api.GetDimensionsCount = [](const OrtTensorTypeAndShapeInfo* info, std::size_t* rank) noexcept -> OrtStatusPtr {
    return *rank = info->dims.size(), nullptr;
  };
  api.GetDimensions = [](const OrtTensorTypeAndShapeInfo* info, std::int64_t* dims,
                         std::size_t rank) noexcept -> OrtStatusPtr {
    std::copy_n(info->dims.begin(), rank, dims);
    return nullptr;
  };
  api.GetSymbolicDimensions = [](const OrtTensorTypeAndShapeInfo*, const char** names,
                                 std::size_t rank) noexcept -> OrtStatusPtr {
    std::fill_n(names, rank, "");
    return nullptr;
  };
  api.GetTensorMutableData = [](OrtValue* value, void** data) noexcept -> OrtStatusPtr {
    return *data = value->data, nullptr;
  };
}

void fill_node(OrtApi& api) {
  api.KernelInfo_GetNodeName = [](const OrtKernelInfo*, char* name, std::size_t* size) noexcept -> OrtStatusPtr {
    constexpr std::string_view kName("node\0", 5);  // ONNX Runtime gives the zero too
    if (name) std::copy_n(kName.begin(), std::min(*size, kName.size()), name);
    return *size = kName.size(), nullptr;
  };
  api.KernelInfo_GetInputCount = [](const OrtKernelInfo* info, std::size_t* count) noexcept -> OrtStatusPtr {
    return *count = info->inputs.size(), nullptr;
  };
  api.KernelInfo_GetInputTypeInfo = [](const OrtKernelInfo* info, std::size_t i,
                                       OrtTypeInfo** type) noexcept -> OrtStatusPtr {
    if (!info->inputs[i]) return error(ORT_FAIL, "the input is absent");
    return *type = new OrtTypeInfo{info->inputs[i]->info}, nullptr;
  };
  api.KernelInfoGetConstantInput_tensor = [](const OrtKernelInfo*, std::size_t, int* is_constant,
                                             const OrtValue** value) noexcept -> OrtStatusPtr {
    return *is_constant = 0, *value = nullptr, nullptr;
  };
  api.KernelInfoGetAttribute_int64 = [](const OrtKernelInfo* info, const char* name,
                                        std::int64_t* value) noexcept -> OrtStatusPtr {
    return read(info, name, *value);
  };
  api.KernelInfoGetAttribute_float = [](const OrtKernelInfo* info, const char* name,
                                        float* value) noexcept -> OrtStatusPtr { return read(info, name, *value); };
  api.KernelInfoGetAttribute_string = [](const OrtKernelInfo* info, const char* name, char* out,
                                         std::size_t* size) noexcept -> OrtStatusPtr {
    return text(info, name, out, size);
  };
  api.KernelInfoGetAttributeArray_int64 = [](const OrtKernelInfo* info, const char* name, std::int64_t* out,
                                             std::size_t* count) noexcept -> OrtStatusPtr {
    const AttributeValue* attribute = find(info, name);
    if (const auto* integers = attribute ? std::get_if<std::vector<std::int64_t>>(attribute) : nullptr; integers)
      return list(*integers, out, count);
    if (const auto* booleans = attribute ? std::get_if<std::vector<bool>>(attribute) : nullptr; booleans)
      return list(*booleans, out, count);
    return error(ORT_FAIL, std::string("no such attribute: ") + name);
  };
  api.KernelInfoGetAttributeArray_float = [](const OrtKernelInfo* info, const char* name, float* out,
                                             std::size_t* count) noexcept -> OrtStatusPtr {
    const AttributeValue* attribute = find(info, name);
    const auto* numbers = attribute ? std::get_if<std::vector<double>>(attribute) : nullptr;
    return numbers ? list(*numbers, out, count) : error(ORT_FAIL, std::string("no such attribute: ") + name);
  };
}

void fill_run(OrtApi& api) {
  api.KernelContext_GetInputCount = [](const OrtKernelContext* context, std::size_t* count) noexcept -> OrtStatusPtr {
    return *count = context->inputs.size(), nullptr;
  };
  api.KernelContext_GetInput = [](const OrtKernelContext* context, std::size_t i,
                                  const OrtValue** value) noexcept -> OrtStatusPtr {
    return *value = context->inputs[i], nullptr;
  };
  api.KernelContext_GetOutputCount = [](const OrtKernelContext* context, std::size_t* count) noexcept -> OrtStatusPtr {
    return *count = context->outputs.size(), nullptr;
  };
  api.KernelContext_GetOutput = [](OrtKernelContext* context, std::size_t index, const std::int64_t* dims,
                                   std::size_t rank, OrtValue** value) noexcept -> OrtStatusPtr {
    return output(context, index, dims, rank, value);
  };
  api.KernelContext_GetGPUComputeStream = [](const OrtKernelContext* context, void** stream) noexcept -> OrtStatusPtr {
    return *stream = context->engine.stream(), nullptr;
  };
  api.KernelContext_ParallelFor = [](const OrtKernelContext*, void (*task)(void*, std::size_t), std::size_t count,
                                     std::size_t, void* user) noexcept -> OrtStatusPtr {
    for (std::size_t i = 0; i < count; ++i) task(user, i);
    return nullptr;
  };
}

void fill_session(OrtApi& api) {
  api.CreateStatus = [](OrtErrorCode code, const char* message) noexcept -> OrtStatusPtr {
    return error(code, message);
  };
  api.ReleaseStatus = [](OrtStatus* status) noexcept { delete status; };
  api.GetErrorMessage = [](const OrtStatus* status) noexcept { return status->message.c_str(); };
  api.GetErrorCode = [](const OrtStatus* status) noexcept { return status->code; };
  api.CreateCustomOpDomain = [](const char* name, OrtCustomOpDomain** domain) noexcept -> OrtStatusPtr {
    return *domain = new OrtCustomOpDomain{name, {}}, nullptr;
  };
  api.CustomOpDomain_Add = [](OrtCustomOpDomain* domain, const OrtCustomOp* op) noexcept -> OrtStatusPtr {
    return domain->ops.push_back(op), nullptr;
  };
  api.AddCustomOpDomain = [](OrtSessionOptions* options, OrtCustomOpDomain* domain) noexcept -> OrtStatusPtr {
    return options->domain = domain, nullptr;
  };
}

const OrtApi* host_api() {
  static const OrtApi api = [] {
    OrtApi filled{};
    fill_session(filled);
    fill_memory(filled);
    fill_values(filled);
    fill_node(filled);
    fill_run(filled);
    return filled;
  }();
  return &api;
}

/// Releases a status. Its message belongs to the op.
Status taken(OrtStatus* status) {
  if (!status) return {};
  const Status result =
      status->code == ORT_INVALID_ARGUMENT ? Status::invalid(status->message) : Status::internal(status->message);
  delete status;
  return result;
}

/// Whether the op is the one for a provider and for these inputs.
bool fits(const OrtCustomOp* candidate, const std::string& provider, const Op& op,
          const std::vector<const OrtValue*>& inputs) {
  const char* const own = candidate->GetExecutionProviderType(candidate);
  if (op.signature.name != candidate->GetName(candidate) || !own || own != provider) return false;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const std::size_t declared = std::min(i, candidate->GetInputTypeCount(candidate) - 1);
    if (inputs[i] && candidate->GetInputType(candidate, declared) != inputs[i]->info.element) return false;
  }
  return true;
}

/// Calls the kernels of the ops that the adapter has registered.
class Session {
 public:
  explicit Session(const std::string& provider) : provider_(provider) {}

  static Status open(Session& session) {
    static const OrtApiBase base{[](std::uint32_t) noexcept { return host_api(); },
                                 []() noexcept { return "the host"; }};
    return taken(RegisterCustomOps(&session.options_, &base));
  }

  Status call(const Op& op, const InputPointers& tensors, const Attributes& attributes, Engine& engine) const {
    std::deque<OrtValue> values;
    std::vector<const OrtValue*> inputs;
    for (const Tensor* tensor : tensors) {
      if (tensor) {
        const auto dims = tensor->dims();
        values.push_back(
            {{ort::to_ort(tensor->dtype()), {dims.begin(), dims.end()}}, const_cast<void*>(tensor->raw())});
      }
      inputs.push_back(tensor ? &values.back() : nullptr);
    }
    while (!inputs.empty() && !inputs.back()) inputs.pop_back();
    const auto candidate = std::ranges::find_if(
        options_.domain->ops, [&](const OrtCustomOp* one) { return fits(one, provider_, op, inputs); });
    if (candidate == options_.domain->ops.end())
      return Status::invalid("no kernel of " + provider_ + " has these types of inputs");
    const OrtCustomOp* const custom = *candidate;
    for (std::size_t i = 0; i < op.signature.inputs.size(); ++i) {
      const OrtMemType expected = op.signature.inputs[i].host ? OrtMemTypeCPUInput : OrtMemTypeDefault;
      if (custom->GetInputMemoryType(custom, i) != expected)
        return Status::internal("an input lies in the wrong memory");
    }
    const OrtKernelInfo info{op.signature, attributes, inputs};
    void* kernel = nullptr;
    OPGATE_RETURN_IF_ERROR(taken(custom->CreateKernelV2(custom, host_api(), &info, &kernel)));
    OrtKernelContext context{engine, inputs, {}, {}, {}};
    for (std::size_t o = 0; o < op.signature.outputs.size(); ++o)
      context.outputs.push_back({{custom->GetOutputType(custom, o), {}}, nullptr});
    const Status status = taken(custom->KernelComputeV2(kernel, &context));
    custom->KernelDestroy(kernel);
    if (!context.mistake.empty()) return Status::internal(context.mistake);
    if (!context.scratch.empty()) return Status::internal("scratch memory was not given back");
    return status;
  }

 private:
  std::string provider_;
  OrtSessionOptions options_;
};

/// `provider` is the name of the provider that the host plays, "" for that of ONNX Runtime itself.
Status open_session(const char* provider, runner::Call& call) {
  auto session = std::make_shared<Session>(*provider ? provider : "CUDAExecutionProvider");
  OPGATE_RETURN_IF_ERROR(Session::open(*session));
  call = [session](const Op& op, const InputPointers& inputs, const Attributes& attributes, Engine& engine,
                   KernelCache&) { return session->call(op, inputs, attributes, engine); };
  return {};
}

const runner::CallerRegistration registration({"--onnxruntime", &open_session});

}  // namespace
}  // namespace opgate
