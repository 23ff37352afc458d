#include "python_kernels.h"

#include <dlfcn.h>

#include <atomic>
#include <cstring>
#include <fstream>

#include "c_call.h"
#include "packed_attributes.h"
#include "table.h"
#include "table_json.h"

// `opgate build` compiles no op that is a function in Python. It writes the signatures and the sources of such ops
// behind the end of the library (python_ops/embedded.py), where the loader of libraries doesn't look. When the library
// is loaded, they join the table. At the first call of one of them, the library asks the interpreter of the process for
// a function of C that runs them (python_ops/kernels.py).
namespace opgate {
namespace {

constexpr std::string_view kMark = "opgate python 1\n";

/// The file of this library.
std::string library_file() {
  Dl_info info;
  return dladdr(reinterpret_cast<const void*>(&library_file), &info) && info.dli_fname ? info.dli_fname : "";
}

/// The table behind the end of this library: the table, its size in eight bytes, the mark. "" if there is none.
std::string read_table() {
  std::ifstream file(library_file(), std::ios::binary | std::ios::ate);
  const std::streamoff end = file.tellg();
  std::uint64_t size = 0;
  std::string mark(kMark.size(), '\0');
  const std::streamoff tail = static_cast<std::streamoff>(sizeof size + mark.size());
  if (!file || end < tail) return "";
  file.seekg(end - tail);
  file.read(reinterpret_cast<char*>(&size), sizeof size);
  file.read(mark.data(), static_cast<std::streamsize>(mark.size()));
  if (!file || mark != kMark || size > static_cast<std::uint64_t>(end - tail)) return "";
  std::string table(size, '\0');
  file.seekg(end - tail - static_cast<std::streamoff>(size));
  file.read(table.data(), static_cast<std::streamsize>(size));
  return file ? table : "";
}

/// The functions of the interpreter that is in the process. They are in every Python's stable interface.
struct Interpreter {
  using Object = void*;
  int (*is_initialized)() = nullptr;
  int (*ensure)() = nullptr;
  void (*release)(int) = nullptr;
  Object (*import_module)(const char*) = nullptr;
  Object (*call_method)(Object, const char*, const char*, ...) = nullptr;
  void* (*as_pointer)(Object) = nullptr;
  void (*print_error)() = nullptr;
  void (*release_object)(Object) = nullptr;

  bool find() {
    return look_up("Py_IsInitialized", is_initialized) && look_up("PyGILState_Ensure", ensure) &&
           look_up("PyGILState_Release", release) && look_up("PyImport_ImportModule", import_module) &&
           look_up("PyObject_CallMethod", call_method) && look_up("PyLong_AsVoidPtr", as_pointer) &&
           look_up("PyErr_Print", print_error) && look_up("Py_DecRef", release_object) && is_initialized();
  }

 private:
  template <typename Function>
  static bool look_up(const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
    return function != nullptr;
  }
};

/// The ops in Python of this library.
class PythonOps {
 public:
  static PythonOps& instance() {
    static auto& ops = *new PythonOps;  // never freed, because threads may call ops until the process ends
    return ops;
  }

  const std::string& domain() const { return domain_; }

  void add_to(Table& table) {
    packed::Bytes bytes(table_);
    if (table_.empty()) return;
    domain_ = packed::read_text(bytes);
    for (auto count = packed::read<std::uint32_t>(bytes); count > 0; --count) {
      const std::string signature = packed::read_text(bytes), doc = packed::read_text(bytes);
      static_cast<void>(packed::read_text(bytes));  // the name of the file
      static_cast<void>(packed::read_text(bytes));  // the source
      table.add(signature.c_str(), doc.c_str(), Device::cpu, Kernel{.run = &PythonOps::run});
    }
  }

 private:
  PythonOps() : table_(read_table()) {}

  static Status run(const void*, Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) {
    OpgateKernel kernel = nullptr;
    OPGATE_RETURN_IF_ERROR(instance().find(kernel));
    return run_c_kernel(kernel, context, in, attributes, out);
  }

  /// The function of C that runs the ops. Python makes it.
  Status find(OpgateKernel& kernel) {
    kernel = kernel_.load(std::memory_order_acquire);
    if (kernel) return {};
    const std::string described = table_json(Table::instance());
    Interpreter python;
    if (!python.find())
      return Status::internal("the op is a function in Python, and this process has no interpreter of Python");
    const int state = python.ensure();  // Python lets one thread at a time come here
    Interpreter::Object module = python.import_module("opgate.ops_build.python_ops.kernels");
    const auto number = [](const void* pointer) { return reinterpret_cast<unsigned long long>(pointer); };
    Interpreter::Object address =
        module ? python.call_method(module, "attach", "KKs", number(table_.data()),
                                    static_cast<unsigned long long>(table_.size()), described.c_str())
               : nullptr;
    if (address) kernel = reinterpret_cast<OpgateKernel>(python.as_pointer(address));
    if (!kernel) python.print_error();
    for (const Interpreter::Object object : {address, module}) python.release_object(object);
    python.release(state);
    if (!kernel) {
      return Status::internal(
          "the op is a function in Python, and this process's Python can't run it: is opgate installed there?");
    }
    kernel_.store(kernel, std::memory_order_release);
    return {};
  }

  std::string table_, domain_;
  std::atomic<OpgateKernel> kernel_ = nullptr;
};

/// After the kernels of the library, and before the other static objects.
struct Reader {
  Reader() { PythonOps::instance().add_to(Table::instance()); }
};
const Reader reader __attribute__((init_priority(1002)));

}  // namespace

const std::string& python_domain() { return PythonOps::instance().domain(); }

}  // namespace opgate
