// A kernel that calls a function of TVM-FFI in a library that somebody else has compiled: it gets the inputs, the
// outputs and then the attributes, and writes to the outputs. CMake compiles this file for each such op (opgate_adopt
// in CMakeLists.txt), with the library in it, so the library of the ops stays one file to copy and to trust.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "tvm_ffi.h"

// The bytes of a file, between two symbols that no other file sees.
#define OPGATE_BYTES(name, path)                                                                      \
  asm(".pushsection .rodata\n" #name "_begin:\n.incbin \"" path "\"\n" #name "_end:\n.popsection\n"); \
  extern "C" __attribute__((visibility("hidden"))) const char name##_begin[], name##_end[];

OPGATE_BYTES(opgate_adopted_library, OPGATE_LIBRARY)
#ifdef OPGATE_RUNTIME
OPGATE_BYTES(opgate_adopted_runtime, OPGATE_RUNTIME)
#endif

namespace opgate::tvm {
namespace {

/// A file without a name that has these bytes, -1 if there can be none. It stays open, because the loader of libraries
/// takes two files of one name for the same library.
int file_of(const char* begin, const char* end) {
  int file = memfd_create("opgate-adopted", MFD_CLOEXEC);
  if (file < 0) {  // a process whose memory is counted may not make any
    char path[] = "/tmp/opgate-adopted-XXXXXX";
    file = mkostemp(path, O_CLOEXEC);
    if (file >= 0) unlink(path);
  }
  while (file >= 0 && begin < end) {
    const ssize_t written = write(file, begin, static_cast<std::size_t>(end - begin));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return -1;
    begin += written;
  }
  return file;
}

/// Loads a library from these bytes. Returns nullptr and says why if it can't.
void* loaded(const char* begin, const char* end, int scope, std::string& why) {
  const int file = file_of(begin, end);
  if (file < 0) {
    why = std::string("no file can be made for it: ") + std::strerror(errno);
    return nullptr;
  }
  const std::string path = "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(file);
  void* const library = dlopen(path.c_str(), RTLD_NOW | scope);
  if (!library) why = dlerror();
  return library;
}

#ifdef OPGATE_RUNTIME
bool has_runtime() { return dlsym(RTLD_DEFAULT, "TVMFFIErrorMoveFromRaised") != nullptr; }

/// Loads TVM-FFI's library from the package of the interpreter that is in the process, if there are both. A program
/// that imports the package later would otherwise load a second one, and TVM-FFI ends a process that has two.
void load_packaged_runtime() {
  if (has_runtime()) return;
  const auto is_initialized = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "Py_IsInitialized"));
  const auto ensure = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "PyGILState_Ensure"));
  const auto release = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "PyGILState_Release"));
  const auto run = reinterpret_cast<int (*)(const char*, void*)>(dlsym(RTLD_DEFAULT, "PyRun_SimpleStringFlags"));
  if (!is_initialized || !ensure || !release || !run || !is_initialized()) return;
  const int state = ensure();
  run(R"(exec("""
import ctypes, importlib.util, pathlib
package = importlib.util.find_spec("tvm_ffi")
for folder in (package and package.submodule_search_locations) or ():
    for path in pathlib.Path(folder).glob("lib/libtvm_ffi.so"):
        ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
""", {}))",
      nullptr);
  release(state);
}
#endif

/// The function, or why there is none.
struct Foreign {
  Function function = nullptr;
  std::string why;

  Foreign() {
    std::string missing;
#ifdef OPGATE_RUNTIME
    if (!has_runtime() && !dlopen("libtvm_ffi.so", RTLD_NOW | RTLD_GLOBAL))
      loaded(opgate_adopted_runtime_begin, opgate_adopted_runtime_end, RTLD_GLOBAL, missing);
#endif
    void* const library = loaded(opgate_adopted_library_begin, opgate_adopted_library_end, RTLD_LOCAL, why);
    if (!library) {
      why = OPGATE_NAME " can't be loaded: " + why + (missing.empty() ? "" : "; TVM-FFI's library: " + missing);
      return;
    }
    function = reinterpret_cast<Function>(dlsym(library, OPGATE_SYMBOL));
    if (!function) why = OPGATE_NAME " has no function " OPGATE_SYMBOL;
  }
};

/// What a call passes.
class Arguments {
 public:
  void add(const OpgateTensor& given) {
    OpgateTensor& tensor = tensors_.emplace_back(given);
    auto& strides = strides_.emplace_back(static_cast<std::size_t>(given.rank), 1);
    for (std::int32_t i = given.rank - 1; i > 0; --i) {
      const auto at = static_cast<std::size_t>(i);
      strides[at - 1] = strides[at] * given.dims[i];
    }
    tensor.strides = strides.data();  // not every function knows what tensors without strides are
    values_.push_back({.kind = kTensorPointer, .small_size = 0, .tensor = &tensor});
  }

  void add(const OpgateAttribute& attribute) {
    if (attribute.kind == OPGATE_INTEGERS) {
      add(kInt, *static_cast<const std::int64_t*>(attribute.values));
    } else if (attribute.kind == OPGATE_BOOLEANS) {
      add(kBool, *static_cast<const std::uint8_t*>(attribute.values));
    } else if (attribute.kind == OPGATE_NUMBERS) {
      const double number = *static_cast<const double*>(attribute.values);
      values_.push_back({.kind = kFloat, .small_size = 0, .number = number});
    } else {
      const auto& text = *static_cast<const OpgateText*>(attribute.values);
      const std::string& held = texts_.emplace_back(text.characters, text.size);
      values_.push_back({.kind = kRawText, .small_size = 0, .raw_text = held.c_str()});
    }
  }

  void add_none() { add(kNone, 0); }

  int call(Function function, Value& result) const {
    return function(nullptr, values_.data(), static_cast<std::int32_t>(values_.size()), &result);
  }

 private:
  void add(Kind kind, std::int64_t integer) { values_.push_back({.kind = kind, .small_size = 0, .integer = integer}); }

  std::deque<OpgateTensor> tensors_;
  std::deque<std::vector<std::int64_t>> strides_;
  std::deque<std::string> texts_;
  std::vector<Value> values_;
};

std::string text_of(const Bytes& bytes) { return {bytes.data, bytes.size}; }

void release(Object* object) {
  if (auto* const run = runtime<int(void*)>("TVMFFIObjectDecRef")) run(object);
}

/// Fails with the error that the function has set for this thread.
int fail_with_error(OpgateCall* call, int returned) {
  Object* object = nullptr;
  if (auto* const move = runtime<void(Object**)>("TVMFFIErrorMoveFromRaised")) move(&object);
  if (!object) {
    const std::string message = OPGATE_SYMBOL " returned " + std::to_string(returned) + " and no error";
    return call->fail(call, OPGATE_INTERNAL, message.c_str());
  }
  const Error& error = content<Error>(object);
  const std::string kind = text_of(error.kind), message = kind + ": " + text_of(error.message);
  release(object);
  const bool invalid = kind == "ValueError" || kind == "TypeError" || kind == "IndexError";
  return call->fail(call, invalid ? OPGATE_INVALID_ARGUMENT : OPGATE_INTERNAL, message.c_str());
}

int run(OpgateCall* call) {
#ifdef OPGATE_RUNTIME
  // Not under the lock of a static object: a thread that has the interpreter's lock may wait for that one.
  static std::atomic<bool> looked = false;
  if (!looked) load_packaged_runtime();
  looked = true;
#endif
  static const auto& foreign = *new Foreign;  // threads may call it until the process ends
  if (!foreign.function) return call->fail(call, OPGATE_INTERNAL, foreign.why.c_str());
  Arguments arguments;
  for (std::size_t i = 0; i < call->input_count; ++i)
    call->inputs[i] ? arguments.add(*call->inputs[i]) : arguments.add_none();
  for (std::size_t i = 0; i < call->output_count; ++i) {
    const OpgateTensor* const output = call->output(call, i);
    output ? arguments.add(*output) : arguments.add_none();
  }
  for (std::size_t i = 0; i < call->attribute_count; ++i) arguments.add(call->attributes[i]);
  Value result{};
  const int returned = arguments.call(foreign.function, result);
  if (result.kind >= kText - 1) release(result.object);  // nobody wants what it returns
  return returned == 0 ? 0 : fail_with_error(call, returned);
}

}  // namespace
}  // namespace opgate::tvm

extern "C" int OPGATE_KERNEL(OpgateCall* call);

extern "C" int OPGATE_KERNEL(OpgateCall* call) {
  try {
    return opgate::tvm::run(call);
  } catch (const std::exception& error) {
    return call->fail(call, OPGATE_INTERNAL, error.what());
  }
}
