#include "libtorch.h"

#include <dlfcn.h>

#include <algorithm>

namespace opgate::libtorch {

Status Torch::find() {
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

std::string text_of(Location location) {
  if (location.type == torch.cpu) return "cpu";
  if (location.type == torch.cuda) return "cuda:" + std::to_string(location.index);
  return "a device of type " + std::to_string(location.type);
}

Location location_of(AtenTensorHandle tensor) {
  Location location;
  expect(torch.aoti_torch_get_device_type(tensor, &location.type), "asking for a tensor's device");
  expect(torch.aoti_torch_get_device_index(tensor, &location.index), "asking for a tensor's device");
  if (location.type == torch.cpu) location.index = 0;
  return location;
}

Dims contiguous_strides(std::span<const std::int64_t> dims) {
  Dims strides(dims.size());
  std::uint64_t stride = 1;  // unsigned: the dims of an empty tensor may overflow
  for (std::size_t i = dims.size(); i-- > 0;) {
    strides[i] = static_cast<std::int64_t>(stride);
    stride *= static_cast<std::uint64_t>(std::max<std::int64_t>(dims[i], 1));
  }
  return strides;
}

Status make_tensor(Location location, std::int32_t dtype, std::span<const std::int64_t> dims,
                   std::span<const std::int64_t> strides, Handle& owner) {
  AtenTensorHandle tensor = nullptr;
  OPGATE_RETURN_IF_ERROR(
      from_torch(torch.aoti_torch_empty_strided(static_cast<std::int64_t>(dims.size()), dims.data(), strides.data(),
                                                dtype, location.type, location.index, &tensor),
                 "allocating a tensor"));
  owner.reset(tensor);
  return {};
}

}  // namespace opgate::libtorch
