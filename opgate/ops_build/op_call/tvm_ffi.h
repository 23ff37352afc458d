// The part of TVM-FFI's C ABI that opgate speaks: values, tensors, and functions of them.
//
// https://tvm.apache.org/ffi/concepts/abi_overview.html states the ABI. Nothing here links TVM's library: its functions
// are looked up in the process, which has them where somebody calls through TVM-FFI.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <string_view>

#include "c_kernel.h"

namespace opgate::tvm {

// How a value is known.
enum Kind : std::int32_t {
  kNone = 0,
  kInt = 1,
  kBool = 2,
  kFloat = 3,
  kTensorPointer = 7,  ///< to an OpgateTensor
  kRawText = 8,        ///< zero-terminated
  kSmallText = 11,     ///< of up to 7 bytes, in the value
  kText = 65,
  kError = 67,
  kFunction = 68,
  kShape = 69,
  kTensor = 70,
  kArray = 71,
  kList = 75,
};

/// What an object begins with.
struct Object {
  std::uint64_t references;
  std::int32_t kind;
  std::uint32_t padding;
  void (*deleter)(void* self, int flags);
};

struct Value {
  std::int32_t kind;
  std::uint32_t small_size;  ///< of a small text, else 0
  union {
    std::int64_t integer;
    double number;
    const char* raw_text;
    Object* object;
    OpgateTensor* tensor;
    char small_text[8];
  };
};
static_assert(sizeof(Object) == 24 && sizeof(Value) == 16 && sizeof(OpgateTensor) == 48);

/// A function. Returns 0, or -1 after it has set the error of this thread. `result` is none before.
using Function = int (*)(void* self, const Value* arguments, std::int32_t count, Value* result);

// What lies behind the beginning of an object of these kinds.
struct Bytes {
  const char* data;
  std::size_t size;
};
struct Sequence {
  const Value* values;
  std::int64_t size;
};
struct Shape {
  const std::int64_t* dims;
  std::size_t size;
};
struct Error {
  Bytes kind, message;
};

template <typename T>
const T& content(const Object* object) {
  return *reinterpret_cast<const T*>(object + 1);
}

/// The tensor that a value is, nullptr if it is none.
inline const OpgateTensor* tensor_of(const Value& value) {
  if (value.kind == kTensorPointer) return value.tensor;
  return value.kind == kTensor ? &content<OpgateTensor>(value.object) : nullptr;
}

/// DLManagedTensor of DLPack.
struct ManagedTensor {
  OpgateTensor tensor;
  void* owner;
  void (*deleter)(ManagedTensor* self);
};

/// A function of TVM's library. nullptr if the process hasn't loaded it.
template <typename F>
F* runtime(const char* name) {
  void* found = dlsym(RTLD_DEFAULT, name);
  if (!found) {
    void* const library = dlopen("libtvm_ffi.so", RTLD_LAZY | RTLD_NOLOAD);
    if (library) found = dlsym(library, name);
  }
  return reinterpret_cast<F*>(found);
}

}  // namespace opgate::tvm
