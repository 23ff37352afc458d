// A function of TVM-FFI as its users write it, with TVM's headers.
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

static void added(tvm::ffi::TensorView x, tvm::ffi::TensorView y, int64_t by, tvm::ffi::String mode) {
  if (by < 0) TVM_FFI_THROW(ValueError) << "by: expected a number that is not negative, got " << by;
  TVM_FFI_CHECK(x.IsContiguous() && y.IsContiguous(), ValueError) << "expected contiguous elements";
  for (int64_t i = 0; i < x.size(0); ++i) {
    const auto value = static_cast<const float*>(x.data_ptr())[i];
    static_cast<float*>(y.data_ptr())[i] = mode == "a_long_name" ? -value : value + static_cast<float>(by);
  }
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(added, added)
