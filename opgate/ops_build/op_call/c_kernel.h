/* A kernel as a function of C, for every language that can export one.
 *
 *   int scale(OpgateCall* call) {
 *     const OpgateTensor* x = call->inputs[0];
 *     const OpgateTensor* y = call->output(call, 0);
 *     ...
 *     return 0;
 *   }
 *
 * The op has its signature as every other (OPGATE_C_KERNEL in kernel_toolkit/op.h). When the kernel runs, the inputs
 * and the attributes have been checked against it. The kernel returns 0, or what call->fail() or call->set_size() gave
 * it. All that it gets lives until it returns. It may call the functions of a call from one thread at a time.
 *
 * Version 1. A later version adds members at the end of OpgateCall; none is ever changed or removed. A kernel that
 * needs a later one compares call->version.
 */
#ifndef OPGATE_C_KERNEL_H
#define OPGATE_C_KERNEL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OPGATE_CALL_VERSION 1

/* The layout of OpgateTensor is that of DLTensor in DLPack, so a cast makes one of the other. */

typedef struct {
  int32_t type; /* 1: the CPU, 2: CUDA */
  int32_t id;
} OpgateDevice;

typedef struct {
  uint8_t code; /* 0: int, 1: uint, 2: float, 4: bfloat, 6: bool, 255: strings, which DLPack doesn't have */
  uint8_t bits;
  uint16_t lanes; /* 1 */
} OpgateDataType;

/* The elements are contiguous and in row-major order. Those of an input may not be changed. `data` of an input of
 * strings points to OpgateText; an output of strings has no data, call->set_text() gives it its elements. */
typedef struct {
  void* data;
  OpgateDevice device;
  int32_t rank;
  OpgateDataType dtype;
  const int64_t* dims;
  const int64_t* strides; /* NULL */
  uint64_t byte_offset;   /* 0 */
} OpgateTensor;

/* A text in UTF-8. No zero ends it. */
typedef struct {
  const char* characters;
  size_t size;
} OpgateText;

enum { OPGATE_INTEGERS = 0, OPGATE_NUMBERS = 1, OPGATE_BOOLEANS = 2, OPGATE_TEXTS = 3 };

/* An attribute has one value, or as many as its list. `values` points to int64_t, double, uint8_t or OpgateText. */
typedef struct {
  const char* name;
  int32_t kind;
  int32_t is_list;
  size_t count;
  const void* values;
} OpgateAttribute;

/* What call->fail() says: the client's mistake, or a failure on good input. */
enum { OPGATE_INVALID_ARGUMENT = 1, OPGATE_INTERNAL = 2 };

typedef struct OpgateCall OpgateCall;
struct OpgateCall {
  uint32_t version; /* OPGATE_CALL_VERSION of the library */
  const char* op;   /* the name in the signature */
  void* stream;     /* the CUDA stream, NULL on the CPU */

  /* In the signature's order, NULL for an absent one. The tensors of a variadic input come last. */
  size_t input_count;
  const OpgateTensor* const* inputs;

  /* All attributes in the signature's order, with their defaults. */
  size_t attribute_count;
  const OpgateAttribute* attributes;

  size_t output_count;

  /* Returns an output with its memory. NULL if nobody wants it, or if set_size() has not set a size that it needs. */
  const OpgateTensor* (*output)(OpgateCall* call, size_t index);

  /* Sets a size that only the kernel knows (`v<=n` in the signature). On the CPU only. Returns 0, or what the kernel
   * must return. */
  int (*set_size)(OpgateCall* call, const char* name, int64_t value);

  /* Sets an element of an output of strings. */
  void (*set_text)(OpgateCall* call, size_t output, size_t element, OpgateText text);

  /* Splits [0, count) into pieces of about `grain` and runs body(user, begin, end) for each on the engine's threads. On
   * the CPU only. Returns when all have ended. */
  void (*parallel_for)(OpgateCall* call, int64_t count, int64_t grain,
                       void (*body)(void* user, int64_t begin, int64_t end), void* user);

  /* Memory on the kernel's device, aligned to 64 bytes. NULL if there is none. */
  void* (*scratch)(OpgateCall* call, size_t bytes);

  /* Says why the kernel fails, and returns what it must return. */
  int (*fail)(OpgateCall* call, int code, const char* message);
};

typedef int (*OpgateKernel)(OpgateCall* call);

#ifdef __cplusplus
}
#endif
#endif
