/* Plays the driver of NVIDIA's GPUs for kernels that Triton has compiled: it checks each launch, and computes on the
 * host what the kernels of triton_ops compute. The cubins can't run here. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
  const unsigned char* image;
  char name[64];
} Kernel;

static void expect(int good, const char* what) {
  if (good) return;
  fprintf(stderr, "the driver refuses a launch: %s\n", what);
  exit(9);
}

int cuModuleLoadData(void** module, const void* image) {
  const unsigned char* const bytes = image;
  expect((uintptr_t)image % 16 == 0, "the image is not aligned");
  expect(memcmp(bytes,
                "\x7f"
                "ELF",
                4) == 0 &&
             bytes[18] == 190,
         "the image is no cubin");
  /* The flags of an ELF file for CUDA 13 have the architecture: the emulated device is an H100. */
  expect(bytes[49] == 90 || bytes[48] == 90, "the image is for another architecture");
  Kernel* const kernel = calloc(1, sizeof *kernel);
  kernel->image = bytes;
  *module = kernel;
  return 0;
}

int cuModuleGetFunction(void** function, void* module, const char* name) {
  snprintf(((Kernel*)module)->name, sizeof((Kernel*)module)->name, "%s", name);
  *function = module;
  return 0;
}

int cuFuncSetAttribute(void* function, int attribute, int value) {
  return function && attribute == 8 && value > 49152 ? 0 : 1;
}

int cuGetErrorString(int error, const char** text) {
  *text = error == 1 ? "invalid argument" : "unknown error";
  return 0;
}

int cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void* stream, void** arguments, void** extra) {
  const Kernel* const kernel = function;
  expect(y == 1 && z == 1 && by == 1 && bz == 1 && !extra, "a grid or block of more dims");
  if (strcmp(kernel->name, "clamp_add_kernel") == 0) {
    const float *a = *(float**)arguments[0], *b = *(float**)arguments[1];
    float* out = *(float**)arguments[2];
    const int32_t size = *(int32_t*)arguments[3], high = *(int32_t*)arguments[4];
    expect(!*(void**)arguments[5] && !*(void**)arguments[6], "memory that the kernel didn't ask for");
    expect(bx == 128 && shared == 0 && x == ((unsigned)size + 1023) / 1024, "the grid of clamp_add_kernel");
    for (int32_t i = 0; i < size; ++i) {
      const float sum = a[i] + b[i];
      out[i] = sum > (float)high ? (float)high : sum;
    }
    return 0;
  }
  expect(strcmp(kernel->name, "row_softmax_kernel") == 0, "an unknown kernel");
  const float* const in = *(float**)arguments[0];
  float* const out = *(float**)arguments[1];
  const int32_t c = *(int32_t*)arguments[2];
  const float scale = *(float*)arguments[3];
  expect(bx == 64 && shared == 8, "the block of row_softmax_kernel");
  for (unsigned row = 0; row < x; ++row) {
    double total = 0, most = -INFINITY;
    for (int32_t i = 0; i < c; ++i) most = fmax(most, in[row * c + i]);
    for (int32_t i = 0; i < c; ++i) total += exp(scale * (in[row * c + i] - most));
    for (int32_t i = 0; i < c; ++i) out[row * c + i] = (float)(exp(scale * (in[row * c + i] - most)) / total);
  }
  return 0;
}
