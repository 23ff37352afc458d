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

constexpr std::size_t kMaxOps = 1024;

/// The number of prepared kernels that are kept for an op: on the CPU, and on CUDA. A CUDA graph holds the addresses of
/// the memory of the kernels that it has captured, so no kernel for CUDA is ever deleted. There are few, because the
/// sizes of a call don't count as static there.
constexpr std::array<std::size_t, 2> kPreparedKernels = {16, std::numeric_limits<std::size_t>::max()};

/// The function that torch calls for an op on a device. Torch passes no argument that tells the op, so each op and
/// device has its own function.
void call_op(std::size_t index, Device device, StableIValue* stack) {
  using Caches = std::array<std::deque<KernelCache>, 2>;
  static Caches& caches = []() -> Caches& {
    auto& caches = *new Caches;  // never freed, because torch may call ops until the process ends
    for (std::size_t device = 0; device < caches.size(); ++device) {
      for (std::size_t i = 0; i < Table::instance().ops().size(); ++i)
        caches[device].emplace_back(kPreparedKernels[device]);
    }
    return caches;
  }();
  call(Table::instance().ops()[index], device, caches[static_cast<std::size_t>(device)][index], stack);
}

using Boxed = void (*)(StableIValue*, std::uint64_t, std::uint64_t);

template <Device device, std::size_t index>
void boxed_call(StableIValue* stack, std::uint64_t, std::uint64_t) {
  call_op(index, device, stack);
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

Status implement(const char* key, const std::array<Boxed, kMaxOps>& calls, Device device, Library& library) {
  TorchLibraryHandle handle = nullptr;
  OPGATE_RETURN_IF_ERROR(
      from_torch(torch.aoti_torch_library_init_impl(torch_namespace().c_str(), key, __FILE__, __LINE__, &handle),
                 "opening a library"));
  library.reset(handle);
  const auto& ops = Table::instance().ops();
  for (std::size_t i = 0; i < ops.size(); ++i) {
    if (!ops[i].has_kernel(device) || has_strings(ops[i].signature)) continue;
    const std::string name = snake_case(ops[i].signature.name);
    OPGATE_RETURN_IF_ERROR(from_torch(torch.torch_library_impl(handle, name.c_str(), calls[i], TORCH_ABI_VERSION),
                                      "registering a kernel"));
  }
  return {};
}

Status register_ops() {
  const Table& table = Table::instance();
  if (!table.errors().empty()) return Status::internal(table.errors().front());
  if (table.ops().size() > kMaxOps) {
    return Status::internal("the library holds " + std::to_string(table.ops().size()) +
                            " ops, the adapter is made for " + std::to_string(kMaxOps) +
                            ": raise kMaxOps in adapters/torch/registration.cpp");
  }
  OPGATE_RETURN_IF_ERROR(torch.find());
  TorchLibraryHandle handle = nullptr;
  const std::string name = torch_namespace();
  OPGATE_RETURN_IF_ERROR(from_torch(torch.aoti_torch_library_init_def(name.c_str(), __FILE__, __LINE__, &handle),
                                    ("taking the namespace " + name).c_str()));
  Library definitions(handle), cpu, cuda;
  for (const Op& op : table.ops()) {
    if (has_strings(op.signature)) continue;
    const std::string schema = schema_of(op.signature);
    OPGATE_RETURN_IF_ERROR(
        from_torch(torch.aoti_torch_library_def(handle, schema.c_str()), ("defining " + schema).c_str()));
  }
  using Indices = std::make_index_sequence<kMaxOps>;
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
