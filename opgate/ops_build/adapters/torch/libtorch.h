// The stable C ABI of torch. Its functions are looked up in the libtorch that the process has loaded.
#pragma once

#include <torch/csrc/stable/c/shim.h>

#include <array>
#include <memory>
#include <stdexcept>

#include "op_call/tensor.h"
#include "signature/status.h"

namespace opgate::libtorch {

/// All functions of torch that this library calls. TORCH_TARGET_VERSION makes the compiler refuse newer ones.
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
  X(aoti_torch_get_strides)          \
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
  const char* (*last_error)() = nullptr;                                  ///< null before torch 2.13
  AOTITorchError (*current_cuda_stream)(std::int32_t, void**) = nullptr;  ///< null in a torch without CUDA

  std::array<std::int32_t, kDTypeCount> dtypes{};  ///< torch's numbers of the dtypes, by DType; -1 for str
  std::int32_t cpu = 0, cuda = 0;                  ///< torch's numbers of the device types

  Status find();
};

inline Torch torch;  // opgate_torch_register fills it before any other function uses it

/// The Status of a failed call of torch. Torch before 2.13 writes the message to stderr only.
inline Status from_torch(AOTITorchError error, const char* doing) {
  if (error == AOTI_TORCH_SUCCESS) return {};
  const char* said = torch.last_error ? torch.last_error() : nullptr;
  return Status::internal(std::string("torch, ") + doing + ": " + (said ? said : "failed, see stderr"));
}

/// Throws if a call has failed. For calls that can only fail for an invalid handle.
inline void expect(AOTITorchError error, const char* doing) {
  if (Status status = from_torch(error, doing); !status.ok()) throw std::runtime_error(status.message());
}

/// Owns a tensor and releases it.
struct Release {
  void operator()(AtenTensorOpaque* tensor) const { torch.aoti_torch_delete_tensor_object(tensor); }
};
using Handle = std::unique_ptr<AtenTensorOpaque, Release>;

/// The type and the number of a device in torch.
struct Location {
  std::int32_t type = 0, index = 0;

  bool operator==(const Location&) const = default;
};

/// "cpu", "cuda:0"
std::string text_of(Location location);

Location location_of(AtenTensorHandle tensor);

/// The strides of a contiguous tensor.
Dims contiguous_strides(std::span<const std::int64_t> dims);

/// An uninitialized tensor from torch's allocator.
Status make_tensor(Location location, std::int32_t dtype, std::span<const std::int64_t> dims,
                   std::span<const std::int64_t> strides, Handle& owner);

}  // namespace opgate::libtorch
