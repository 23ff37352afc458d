// Registers the ops with ONNX Runtime, which calls RegisterCustomOps. Each op becomes an OrtCustomOp for each device
// and each choice of dtypes for its type variables.
#include <algorithm>
#include <charconv>
#include <deque>
#include <limits>
#include <mutex>

#include "api.h"
#include "call.h"
#include "inference.h"
#include "op_call/running_op.h"

namespace opgate::ort {
namespace {

/// An execution provider of ONNX Runtime, and the device on which it runs.
struct Provider {
  Device device;
  const char* name;  ///< null for the one of the CPU
};

#ifdef OPGATE_WITH_CUDA
/// CUDA has two: the one that is a part of ONNX Runtime, and the one of a library that a program registers. That has
/// its own name, or the name of the former.
constexpr std::array kProviders = {Provider{Device::cpu, nullptr}, Provider{Device::cuda, "CUDAExecutionProvider"},
                                   Provider{Device::cuda, "CudaPluginExecutionProvider"}};
#else
constexpr std::array kProviders = {Provider{Device::cpu, nullptr}};
#endif

struct Registered : OrtCustomOp {
  const Op* op;
  Provider provider;
  std::vector<DType> types;  ///< of the type variables

  ONNXTensorElementDataType element(const ElementType& type) const {
    return to_ort(type.variable < 0 ? type.dtype : types[type.variable]);
  }
};

const Registered& of(const OrtCustomOp* op) { return *static_cast<const Registered*>(op); }

OrtCustomOpInputOutputCharacteristic characteristic(bool optional, bool variadic) {
  return optional ? INPUT_OUTPUT_OPTIONAL : variadic ? INPUT_OUTPUT_VARIADIC : INPUT_OUTPUT_REQUIRED;
}

/// Runs `body`. An exception becomes a status of the engine.
template <typename Body>
OrtStatus* guarded(Body&& body) {
  try {
    return to_ort(body());
  } catch (const std::exception& error) {
    return api->CreateStatus(ORT_FAIL, error.what());
  } catch (...) {
    return api->CreateStatus(ORT_FAIL, "an unknown exception");
  }
}

/// Whether an input may be absent that has another one behind it.
bool has_gaps(const Signature& signature) {
  const auto& inputs = signature.inputs;
  return std::any_of(inputs.begin(), inputs.end() - !inputs.empty(), [](const Input& input) { return input.optional; });
}

/// `infers` says whether ONNX Runtime asks for the shapes of outputs when it loads a model.
void fill(Registered& registered, bool infers) {
  registered.version = kApiVersion;
  registered.GetName = [](const OrtCustomOp* op) { return of(op).op->signature.name.c_str(); };
  registered.GetExecutionProviderType = [](const OrtCustomOp* op) { return of(op).provider.name; };
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
      auto node = std::make_unique<NodeKernel>(*of(op).op, of(op).provider.device);
      OPGATE_RETURN_IF_ERROR(node->prepare(info));
      *kernel = node.release();
      return {};
    });
  };
  registered.KernelComputeV2 = [](void* kernel, OrtKernelContext* context) -> OrtStatusPtr {
    auto& node = *static_cast<NodeKernel*>(kernel);
    const Running running(node.op());
    return guarded([&] {
      CallTimer timer(node.times());
      Status status = node.compute(context);
      if (status.ok()) timer.succeeded();
      return status;
    });
  };
  registered.KernelDestroy = [](void* kernel) { delete static_cast<NodeKernel*>(kernel); };
  registered.InferOutputShapeFn = [](const OrtCustomOp* op, OrtShapeInferContext* context) -> OrtStatusPtr {
    return guarded([&] { return named(*of(op).op, [&] { return infer_outputs(*of(op).op, context); }); });
  };
  if (!infers) registered.InferOutputShapeFn = nullptr;
}

/// Every choice of dtypes for the type variables. The last variable changes fastest.
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

Status add(const Op& op, const Provider& provider, bool infers, std::deque<Registered>& registered,
           OrtCustomOpDomain* domain) {
  std::vector<DType> chosen;
  std::vector<std::vector<DType>> all;
  choices(op.signature.type_variables, chosen, all);
  for (std::vector<DType>& types : all) {
    Registered& entry = registered.emplace_back();
    entry.op = &op;
    entry.provider = provider;
    entry.types = std::move(types);
    fill(entry, infers);
    OPGATE_RETURN_IF_ERROR(from_ort(api->CustomOpDomain_Add(domain, &entry)));
  }
  return {};
}

/// 23 of "1.23.2"
int minor_of(std::string_view version) {
  int minor = 0;
  const std::size_t point = version.find('.');
  if (point != std::string_view::npos)
    std::from_chars(version.data() + point + 1, version.data() + version.size(), minor);
  return minor;
}

/// The domain with all ops. Sessions share it and may outlive every caller, so it is never released.
Status make_domain(const OrtApiBase* base, OrtCustomOpDomain** domain) {
  static std::mutex mutex;
  static OrtCustomOpDomain* shared = nullptr;
  static std::deque<Registered> registered;
  const std::lock_guard lock(mutex);
  if (!shared) {
    const Table& table = Table::instance();
    if (!table.errors().empty())
      return Status::internal("op library '" + std::string(Table::domain()) + "': " + table.errors()[0]);
    OrtCustomOpDomain* fresh = nullptr;
    OPGATE_RETURN_IF_ERROR(from_ort(api->CreateCustomOpDomain(Table::domain(), &fresh)));
    // ONNX Runtime before 1.24 crashes before it asks for the shapes of a node that lacks an input in the middle.
    const bool crashes = minor_of(base->GetVersionString()) < 24;
    for (const Op& op : table.ops()) {
      const bool infers = !crashes || !has_gaps(op.signature);
      for (const Provider& provider : kProviders) {
        if (op.has_kernel(provider.device)) OPGATE_RETURN_IF_ERROR(add(op, provider, infers, registered, fresh));
      }
    }
    shared = fresh;
  }
  *domain = shared;
  return {};
}

}  // namespace
}  // namespace opgate::ort

extern "C" __attribute__((visibility("default"))) OrtStatus* ORT_API_CALL RegisterCustomOps(OrtSessionOptions* options,
                                                                                            const OrtApiBase* base) {
  using namespace opgate;
  using namespace opgate::ort;
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
    OPGATE_RETURN_IF_ERROR(make_domain(base, &domain));
    return from_ort(api->AddCustomOpDomain(options, domain));
  });
}
