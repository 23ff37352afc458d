/* A library that knows nothing of opgate: functions of TVM-FFI by its C ABI. They get inputs, outputs and attributes.
 */
#include <stdint.h>

typedef struct {
  void* data;
  struct {
    int32_t type, id;
  } device;
  int32_t rank;
  struct {
    uint8_t code, bits;
    uint16_t lanes;
  } dtype;
  int64_t *dims, *strides;
  uint64_t byte_offset;
} Tensor;

typedef struct {
  int32_t kind;
  uint32_t padding;
  union {
    int64_t integer;
    double number;
    const char* text;
    Tensor* tensor;
  } as;
} Value;

#ifndef WITHOUT_ERRORS
void TVMFFIErrorSetRaisedFromCStr(const char* kind, const char* message);

static int refuse(const char* kind, const char* message) {
  TVMFFIErrorSetRaisedFromCStr(kind, message);
  return -1;
}

/* scaled_sum(a, b, y, factor, minus, mode): y = factor * (a + b), or a - b if `minus`. Strides must be there. */
__attribute__((visibility("default"))) int __tvm_ffi_scaled_sum(void* self, const Value* given, int32_t count,
                                                                Value* result) {
  (void)self, (void)result;
  if (count != 6) return refuse("TypeError", "expected six arguments");
  const Tensor *a = given[0].as.tensor, *b = given[1].as.tensor, *y = given[2].as.tensor;
  const double factor = given[3].as.number;
  if (factor < 0) return refuse("ValueError", "factor: expected a number that is not negative");
  if (given[5].as.text[0] == 'f') return refuse("RuntimeError", "the device is on fire");
  if (given[5].as.text[0] == 'q') return -1;
  int64_t size = 1;
  for (int32_t i = 0; i < a->rank; ++i) size *= a->dims[i];
  if (a->rank > 0 && a->strides[a->rank - 1] != 1) return refuse("ValueError", "expected contiguous elements");
  for (int64_t i = 0; i < size; ++i) {
    const float other = ((const float*)b->data)[i];
    ((float*)y->data)[i] = (float)(factor * (((const float*)a->data)[i] + (given[4].as.integer ? -other : other)));
  }
  return 0;
}

#endif

/* offset(x, by, y): y = x + by[0], or x if `by` is none. */
__attribute__((visibility("default"))) int __tvm_ffi_Offset(void* self, const Value* given, int32_t count,
                                                            Value* result) {
  (void)self, (void)result, (void)count;
  const Tensor *x = given[0].as.tensor, *y = given[2].as.tensor;
  const int64_t by = given[1].kind ? *(const int64_t*)given[1].as.tensor->data : 0;
  for (int64_t i = 0; i < x->dims[0]; ++i) ((int64_t*)y->data)[i] = ((const int64_t*)x->data)[i] + by;
  return 0;
}
