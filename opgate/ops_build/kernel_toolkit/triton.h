// Launches kernels in Triton's language. The build has compiled them for each architecture
// (python_ops/triton_kernel.py).
#pragma once

#include <dlfcn.h>

#include <array>
#include <deque>
#include <limits>
#include <map>
#include <mutex>
#include <span>
#include <string>

#include "kernel_toolkit/cuda.h"
#include "op_call/kernel.h"

namespace opgate::triton {

/// A kernel for one architecture, such as 90, and for one choice of dtypes of the type variables. If `aligned` is set,
/// it works on tensors that are aligned to 16 bytes.
struct Cubin {
  int architecture;
  std::array<DType, 4> dtypes;
  bool aligned;
  const char* name;
  unsigned shared_bytes, warps;
  const unsigned char* image;
};

/// The arguments of a launch, in the order of the kernel's parameters.
class Arguments {
 public:
  void tensor(const void* data) {
    aligned_ = aligned_ && reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
    add(data);
  }

  /// Triton's integers have 32 bits.
  Status integer(const char* name, std::int64_t value) {
    using Limits = std::numeric_limits<std::int32_t>;
    if (value < Limits::min() || value > Limits::max()) {
      return Status::invalid("'" + std::string(name) + "' is " + std::to_string(value) +
                             ": expected an integer of 32 bits, as kernels in Triton have");
    }
    add(static_cast<std::int32_t>(value));
    return {};
  }
  void number(double value) { add(static_cast<float>(value)); }
  void boolean(bool value) { add(static_cast<std::uint8_t>(value)); }

  bool aligned() const { return aligned_; }

  /// The addresses of the arguments, and of the two that Triton adds: memory for all blocks, and for profiles.
  std::vector<void*> addresses() {
    add<void*>(nullptr);
    add<void*>(nullptr);
    std::vector<void*> addresses;
    for (std::uint64_t& value : values_) addresses.push_back(&value);
    return addresses;
  }

 private:
  template <typename T>
  void add(T value) {
    std::memcpy(&values_.emplace_back(0), &value, sizeof value);
  }

  std::deque<std::uint64_t> values_;
  bool aligned_ = true;
};

/// The functions of the driver, looked up when the first kernel is launched. So the library loads without a driver.
class Driver {
 public:
  using Module = void*;
  using Function = void*;

  static Status find(const Driver*& found) {
    static const Driver driver;
    found = &driver;
    return driver.launch_ ? Status() : Status::internal("there is no driver for NVIDIA's GPUs: libcuda.so.1");
  }

  /// Loads the kernel of a cubin into the current context.
  Status load(const Cubin& cubin, Function& function) const {
    Module module = nullptr;
    OPGATE_RETURN_IF_ERROR(status(load_(&module, cubin.image), "loading a kernel"));
    OPGATE_RETURN_IF_ERROR(status(get_(&function, module, cubin.name), "finding a kernel"));
    constexpr unsigned kWithoutAsking = 48 * 1024;
    constexpr int kMaxDynamicSharedBytes = 8;
    if (cubin.shared_bytes <= kWithoutAsking) return {};
    return status(set_(function, kMaxDynamicSharedBytes, static_cast<int>(cubin.shared_bytes)),
                  "asking for shared memory");
  }

  Status launch(const Cubin& cubin, Function function, std::array<unsigned, 3> grid, void* stream,
                void** arguments) const {
    constexpr unsigned kWarp = 32;
    return status(launch_(function, grid[0], grid[1], grid[2], kWarp * cubin.warps, 1, 1, cubin.shared_bytes, stream,
                          arguments, nullptr),
                  "launching a kernel");
  }

 private:
  Driver() {
    void* const library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) return;
    const bool all = look_up(library, "cuModuleLoadData", load_) && look_up(library, "cuModuleGetFunction", get_) &&
                     look_up(library, "cuFuncSetAttribute", set_) && look_up(library, "cuGetErrorString", text_) &&
                     look_up(library, "cuLaunchKernel", launch_);
    if (!all) launch_ = nullptr;
  }

  template <typename T>
  static bool look_up(void* library, const char* name, T& function) {
    function = reinterpret_cast<T>(dlsym(library, name));
    return function != nullptr;
  }

  Status status(int error, const char* doing) const {
    if (error == 0) return {};
    const char* text = nullptr;
    static_cast<void>(text_(error, &text));
    return Status::internal(std::string("CUDA, ") + doing + ": " + (text ? text : std::to_string(error)));
  }

  int (*load_)(Module*, const void* image) = nullptr;
  int (*get_)(Function*, Module, const char* name) = nullptr;
  int (*set_)(Function, int attribute, int value) = nullptr;
  int (*text_)(int error, const char** text) = nullptr;
  int (*launch_)(Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned shared, void* stream,
                 void** arguments, void** extra) = nullptr;
};

/// The kernels of one op. They are loaded once for each device.
class Launcher {
 public:
  explicit Launcher(std::span<const Cubin> cubins) : cubins_(cubins) {}

  /// Launches the kernel that fits the device, the dtypes and the tensors, unless the grid is empty.
  Status launch(const Context& context, std::span<const DType> dtypes, const std::array<std::int64_t, 3>& grid,
                Arguments& arguments) {
    constexpr std::array<std::int64_t, 3> kMost = {std::numeric_limits<std::int32_t>::max(), 65535, 65535};
    std::array<unsigned, 3> blocks{};
    for (std::size_t i = 0; i < grid.size(); ++i) {
      if (grid[i] <= 0) return {};
      if (grid[i] > kMost[i])
        return Status::invalid("a grid of " + std::to_string(grid[i]) + " blocks: expected at most " +
                               std::to_string(kMost[i]));
      blocks[i] = static_cast<unsigned>(grid[i]);
    }
    const Driver* driver = nullptr;
    OPGATE_RETURN_IF_ERROR(Driver::find(driver));
    const bool aligned = arguments.aligned();
    const Loaded* loaded = nullptr;
    OPGATE_RETURN_IF_ERROR(find(*driver, context.ordinal(), dtypes, aligned, loaded));
    return driver->launch(*loaded->cubin, loaded->function, blocks, context.stream(), arguments.addresses().data());
  }

 private:
  struct Loaded {
    const Cubin* cubin;
    Driver::Function function;
  };

  Status find(const Driver& driver, int device, std::span<const DType> dtypes, bool aligned, const Loaded*& found) {
    const std::lock_guard lock(mutex_);
    std::array<DType, 4> wanted{};
    std::ranges::copy(dtypes, wanted.begin());
    const auto [place, is_new] = loaded_.try_emplace({device, wanted, aligned});
    found = &place->second;
    if (!is_new && found->cubin) return {};
    int major = 0, minor = 0;
    OPGATE_RETURN_IF_ERROR(cuda::status(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
                                        "asking for the device"));
    OPGATE_RETURN_IF_ERROR(cuda::status(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device),
                                        "asking for the device"));
    const Cubin* best = nullptr;
    for (const Cubin& cubin : cubins_) {
      // A GPU runs what was compiled for its generation, up to its own number.
      const bool runs = cubin.architecture / 10 == major && cubin.architecture % 10 <= minor;
      if (!runs || cubin.dtypes != wanted || cubin.aligned != aligned) continue;
      if (!best || cubin.architecture > best->architecture) best = &cubin;
    }
    if (!best) {
      return Status::internal("no kernel was compiled for a GPU of compute capability " + std::to_string(major) + "." +
                              std::to_string(minor));
    }
    Driver::Function function = nullptr;
    OPGATE_RETURN_IF_ERROR(driver.load(*best, function));
    place->second = {best, function};
    return {};
  }

  std::span<const Cubin> cubins_;
  std::mutex mutex_;
  std::map<std::tuple<int, std::array<DType, 4>, bool>, Loaded> loaded_;
};

}  // namespace opgate::triton
