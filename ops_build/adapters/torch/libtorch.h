// torch's stable C ABI, looked up in the libtorch that the process has loaded.
#pragma once

#include <dlfcn.h>
#include <torch/csrc/stable/c/shim.h>

#include <algorithm>
#include <array>
#include <memory>
#include <stdexcept>

#include "core/status.h"
#include "core/tensor.h"

namespace opgate {

/// Every function of torch that is called here. TORCH_TARGET_VERSION makes the compiler refuse a later one's.
#define OPGATE_TORCH_FUNCTIONS(X)    \
  X(aoti_torch_device_type_cpu)      \
  X(aoti_torch_device_type_cuda)     \
  X(aoti_torch_dtype_float16)        \
  X(aoti_torch_dtype_bfloat16)       \
  X(aoti_torch_dtype_float32)        \
  X(aoti_torch_dtype_float64)        \
  X(aoti_torch_dtype_int8)           \
  X(aoti_torch_dtype_uint8)          \
  X(aoti_torch_dtype_int32)          \
  X(aoti_torch_dtype_int64)          \
  X(aoti_torch_dtype_bool)           \
  X(aoti_torch_get_dtype)            \
  X(aoti_torch_get_dim)              \
  X(aoti_torch_get_sizes)            \
  X(aoti_torch_get_device_type)      \
  X(aoti_torch_get_device_index)     \
  X(aoti_torch_is_contiguous)        \
  X(torch_get_const_data_ptr)        \
  X(torch_get_mutable_data_ptr)      \
  X(aoti_torch_empty_strided)        \
  X(aoti_torch__reinterpret_tensor)  \
  X(aoti_torch_copy_)                \
  X(aoti_torch_delete_tensor_object) \
  X(torch_list_size)                 \
  X(torch_list_get_item)             \
  X(torch_delete_list)               \
  X(torch_string_length)             \
  X(torch_string_c_str)              \
  X(torch_delete_string)             \
  X(torch_parallel_for)              \
  X(aoti_torch_create_device_guard)  \
  X(aoti_torch_delete_device_guard)  \
  X(aoti_torch_library_init_def)     \
  X(aoti_torch_library_init_impl)    \
  X(aoti_torch_library_def)          \
  X(torch_library_impl)              \
  X(aoti_torch_delete_library_object)

struct Torch {
#define OPGATE_MEMBER(name) decltype(&::name) name = nullptr;
  OPGATE_TORCH_FUNCTIONS(OPGATE_MEMBER)
#undef OPGATE_MEMBER
  const char* (*last_error)() = nullptr;                                  ///< from 2.13 on
  AOTITorchError (*current_cuda_stream)(std::int32_t, void**) = nullptr;  ///< in a torch with CUDA

  std::array<std::int32_t, kDTypeCount> dtypes{};  ///< torch's numbers, by DType; -1 for str
  std::int32_t cpu = 0, cuda = 0;                  ///< its device types

  Status find();
};

inline Torch torch;  // filled once, by opgate_torch_register, before any other function here runs

inline Status Torch::find() {
  void* library = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  if (!library) return Status::internal("this process has not loaded torch: import torch first");
  const char* missing = nullptr;
#define OPGATE_FIND(name)                                         \
  name = reinterpret_cast<decltype(name)>(dlsym(library, #name)); \
  if (!name) missing = #name;
  OPGATE_TORCH_FUNCTIONS(OPGATE_FIND)
#undef OPGATE_FIND
  if (missing) {
    return Status::internal(std::string("this torch has no ") + missing + ": torch 2.10 or later is needed");
  }
  last_error = reinterpret_cast<decltype(last_error)>(dlsym(library, "torch_exception_get_what_without_backtrace"));
  if (void* with_cuda = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD)) {
    current_cuda_stream =
        reinterpret_cast<decltype(current_cuda_stream)>(dlsym(with_cuda, "aoti_torch_get_current_cuda_stream"));
  }
  dtypes = {aoti_torch_dtype_float16(), aoti_torch_dtype_bfloat16(),
            aoti_torch_dtype_float32(), aoti_torch_dtype_float64(),
            aoti_torch_dtype_int8(),    aoti_torch_dtype_uint8(),
            aoti_torch_dtype_int32(),   aoti_torch_dtype_int64(),
            aoti_torch_dtype_bool(),    -1};
  cpu = aoti_torch_device_type_cpu();
  cuda = aoti_torch_device_type_cuda();
  return {};
}

/// What a failed call of torch has left to say, as our Status. Torch before 2.13 says it on stderr only.
inline Status taken(AOTITorchError error, const char* doing) {
  if (error == AOTI_TORCH_SUCCESS) return {};
  const char* said = torch.last_error ? torch.last_error() : nullptr;
  return Status::internal(std::string("torch, ") + doing + ": " + (said ? said : "failed, see stderr"));
}

/// For what can only fail on a handle that is none.
inline void expect(AOTITorchError error, const char* doing) {
  if (Status status = taken(error, doing); !status.ok()) throw std::runtime_error(status.message());
}

/// A tensor that is ours to release.
struct Release {
  void operator()(AtenTensorOpaque* tensor) const { torch.aoti_torch_delete_tensor_object(tensor); }
};
using Handle = std::unique_ptr<AtenTensorOpaque, Release>;

struct Place {
  std::int32_t type = 0, index = 0;

  bool operator==(const Place&) const = default;
};

inline std::string text_of(Place place) {
  if (place.type == torch.cpu) return "cpu";
  if (place.type == torch.cuda) return "cuda:" + std::to_string(place.index);
  return "a device of type " + std::to_string(place.type);
}

inline Place place_of(AtenTensorHandle tensor) {
  Place place;
  expect(torch.aoti_torch_get_device_type(tensor, &place.type), "asking for a tensor's device");
  expect(torch.aoti_torch_get_device_index(tensor, &place.index), "asking for a tensor's device");
  if (place.type == torch.cpu) place.index = 0;
  return place;
}

inline Dims strides_of(std::span<const std::int64_t> dims) {
  Dims strides(dims.size());
  std::int64_t stride = 1;
  for (std::size_t i = dims.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<std::int64_t>(dims[i], 1);
  }
  return strides;
}

/// An uninitialized contiguous tensor from torch's allocator.
inline Status empty(Place place, std::int32_t dtype, std::span<const std::int64_t> dims, Handle& made) {
  AtenTensorHandle tensor = nullptr;
  OPGATE_RETURN_IF_ERROR(
      taken(torch.aoti_torch_empty_strided(static_cast<std::int64_t>(dims.size()), dims.data(), strides_of(dims).data(),
                                           dtype, place.type, place.index, &tensor),
            "allocating a tensor"));
  made.reset(tensor);
  return {};
}

}  // namespace opgate
