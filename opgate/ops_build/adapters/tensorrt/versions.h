// What differs between the major versions of TensorRT, so that one library works in all of them.
//
// The classes of plugins are the same in 10 and 11. Of TensorRT's own classes that plugins call, some have their
// functions in other places. They are called by these places, whichever headers the library is built with.
#pragma once

#include <NvInferRuntime.h>
#include <dlfcn.h>

#include <optional>

namespace opgate::tensorrt {

/// The places of functions in the tables of virtual functions of ILoggerFinder, ILogger and IPluginRegistry.
struct Slots {
  int find_logger, log, register_creator;
};

/// Returns the places in a major version, std::nullopt if they are not known.
inline std::optional<Slots> slots_of(int major) {
  if (major == 10) return Slots{0, 0, 12};
  // The log and its finder have become an IVersionedInterface, and the registry has lost what took plugins of V2.
  // TensorRT-RTX, whose versions are 1.x, is like 11.
  if (major == 11 || major == 1) return Slots{4, 4, 8};
  return std::nullopt;
}

/// Returns the major version of the TensorRT that an object is of: its table of virtual functions lies in the library
/// of TensorRT. If it lies in a program, the version is that of the TensorRT that the program is linked to, or else of
/// the headers. 0 for nullptr.
inline int major_of(const void* object) {
  if (!object) return 0;
  constexpr const char* kName = "getInferLibMajorVersion";
  void* version = nullptr;
  Dl_info found;
  if (dladdr(*static_cast<void* const*>(object), &found)) {
    if (void* const library = dlopen(found.dli_fname, RTLD_LAZY | RTLD_NOLOAD)) {
      version = dlsym(library, kName);
      dlclose(library);
    }
  }
  if (!version) version = dlsym(RTLD_DEFAULT, kName);
  return version ? reinterpret_cast<int (*)()>(version)() : NV_TENSORRT_MAJOR;
}

/// Calls a virtual function by its place, as compilers for Linux do.
template <typename Result, typename... Arguments>
Result call_virtual(void* object, int slot, Arguments... arguments) {
  void* const function = (*static_cast<void***>(object))[slot];
  return reinterpret_cast<Result (*)(void*, Arguments...)>(function)(object, arguments...);
}

}  // namespace opgate::tensorrt
