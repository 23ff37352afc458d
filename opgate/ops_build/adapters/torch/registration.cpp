// Registers the ops with PyTorch through its stable C ABI, when Python calls opgate_torch_register.
//
// The library doesn't link to libtorch. It looks up the functions of the libtorch that the process has loaded. So one
// file works with every torch from 2.10 on, with CUDA or without. Without torch it can still be loaded, and its table
// can be read. For this reason loading the library registers nothing.
#include <deque>
#include <limits>
#include <utility>

#include "call.h"
#include "schema.h"

namespace opgate::libtorch {
namespace {

constexpr std::size_t kMaxFunctions = 1024;

/// The number of prepared kernels that are kept for an op: on the CPU, and on CUDA. A CUDA graph holds the addresses of
/// the memory of the kernels that it has captured, so no kernel for CUDA is ever deleted. There are few, because the
/// sizes of a call don't count as static there.
constexpr std::array<std::size_t, 2> kPreparedKernels = {16, std::numeric_limits<std::size_t>::max()};

/// A function of an op in torch.
struct Function {
  const Op* op;
  Returns returns;
  std::string name;
};

/// All functions of the table's ops. An op that torch can't have has none.
const std::vector<Function>& functions() {
  static const auto& functions = *[] {
    auto* functions = new std::vector<Function>;  // never freed, because torch may call ops until the process ends
    for (const Op& op : Table::instance().ops()) {
      if (has_strings(op.signature)) continue;
      for (const Returns returns : {Returns::usual, Returns::required, Returns::all}) {
        if (has_function(op.signature, returns))
          functions->push_back({&op, returns, function_name(op.signature, returns)});
      }
    }
    return functions;
  }();
  return functions;
}

/// What torch calls for a function on a device. Torch passes no argument that tells the function, so each has its own
/// for each device.
void call_function(std::size_t index, Device device, StableIValue* stack) {
  using Caches = std::array<std::deque<KernelCache>, 2>;
  static Caches& caches = []() -> Caches& {
    auto& caches = *new Caches;  // never freed either
    for (std::size_t device = 0; device < caches.size(); ++device) {
      for (std::size_t i = 0; i < functions().size(); ++i) caches[device].emplace_back(kPreparedKernels[device]);
    }
    return caches;
  }();
  const Function& function = functions()[index];
  call(*function.op, device, function.returns, caches[static_cast<std::size_t>(device)][index], stack);
}

using Boxed = void (*)(StableIValue*, std::uint64_t, std::uint64_t);

template <Device device, std::size_t index>
void boxed_call(StableIValue* stack, std::uint64_t, std::uint64_t) {
  call_function(index, device, stack);
}

template <Device device, std::size_t... indices>
constexpr std::array<Boxed, sizeof...(indices)> boxed_calls(std::index_sequence<indices...>) {
  return {&boxed_call<device, indices>...};
}

/// The registrations in a namespace. Torch removes them when the handle is deleted.
struct Unregister {
  void operator()(TorchLibraryOpaque* library) const { torch.aoti_torch_delete_library_object(library); }
};
using Library = std::unique_ptr<TorchLibraryOpaque, Unregister>;

Status implement(const char* key, const std::array<Boxed, kMaxFunctions>& calls, Device device, Library& library) {
  TorchLibraryHandle handle = nullptr;
  OPGATE_RETURN_IF_ERROR(
      from_torch(torch.aoti_torch_library_init_impl(torch_namespace().c_str(), key, __FILE__, __LINE__, &handle),
                 "opening a library"));
  library.reset(handle);
  for (std::size_t i = 0; i < functions().size(); ++i) {
    const Function& function = functions()[i];
    if (!function.op->has_kernel(device)) continue;
    OPGATE_RETURN_IF_ERROR(from_torch(
        torch.torch_library_impl(handle, function.name.c_str(), calls[i], TORCH_ABI_VERSION), "registering a kernel"));
  }
  return {};
}

Status register_ops() {
  const Table& table = Table::instance();
  if (!table.errors().empty()) return Status::internal(table.errors().front());
  if (functions().size() > kMaxFunctions) {
    return Status::internal("the ops of the library have " + std::to_string(functions().size()) +
                            " functions, the adapter is made for " + std::to_string(kMaxFunctions) +
                            ": raise kMaxFunctions in adapters/torch/registration.cpp");
  }
  OPGATE_RETURN_IF_ERROR(torch.find());
  TorchLibraryHandle handle = nullptr;
  const std::string name = torch_namespace();
  OPGATE_RETURN_IF_ERROR(from_torch(torch.aoti_torch_library_init_def(name.c_str(), __FILE__, __LINE__, &handle),
                                    ("taking the namespace " + name).c_str()));
  Library definitions(handle), cpu, cuda;
  for (const Function& function : functions()) {
    const std::string schema = schema_of(function.op->signature, function.returns);
    OPGATE_RETURN_IF_ERROR(
        from_torch(torch.aoti_torch_library_def(handle, schema.c_str()), ("defining " + schema).c_str()));
  }
  using Indices = std::make_index_sequence<kMaxFunctions>;
  static constexpr auto cpu_calls = boxed_calls<Device::cpu>(Indices());
  OPGATE_RETURN_IF_ERROR(implement("CPU", cpu_calls, Device::cpu, cpu));
#ifdef OPGATE_WITH_CUDA
  static constexpr auto cuda_calls = boxed_calls<Device::cuda>(Indices());
  OPGATE_RETURN_IF_ERROR(implement("CUDA", cuda_calls, Device::cuda, cuda));
#endif
  // The ops stay registered until the process ends, because torch may use them until then.
  for (Library* library : {&definitions, &cpu, &cuda}) static_cast<void>(library->release());
  return {};
}

}  // namespace
}  // namespace opgate::libtorch

/// Registers all ops with the torch that the process has loaded, when it is called for the first time. Returns nullptr,
/// or an error message.
extern "C" __attribute__((visibility("default"))) const char* opgate_torch_register() {
  static const std::string error = [] {
    try {
      return opgate::libtorch::register_ops().message();
    } catch (const std::exception& thrown) {
      return std::string(thrown.what());
    } catch (...) {
      return std::string("an unknown exception");
    }
  }();
  return error.empty() ? nullptr : error.c_str();
}
