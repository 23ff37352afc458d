/* Plays the driver of NVIDIA's GPUs for shared memory. Its GPUs' memory lies in files of /dev/shm. No address of it is
 * one of the host's, so that a program that reads it without the driver ends. What CUDA calls an error is one here. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { OK = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3, INVALID_DEVICE = 101, INVALID_CONTEXT = 201, ILLEGAL = 700 };
enum { DEVICES = 2, MOST = 64, HEADER = 4096 };
static const uint64_t DEVICE_MEMORY = 1ull << 60;

/* The beginning of a file. */
typedef struct {
  uint64_t size;
  int64_t owner, device, opened, broken;
} Header;

typedef struct {
  char bytes[64];
} Handle;

typedef struct {
  Header* header;
  char name[48];
} Memory;

static Memory memories[MOST];
static int initialized;
static char contexts[DEVICES];
static _Thread_local char* current;

static uint64_t address_of(const Memory* memory) { return (uint64_t)memory->header + HEADER + DEVICE_MEMORY; }

static Memory* find(uint64_t address) {
  for (int i = 0; i < MOST; ++i) {
    Memory* const memory = &memories[i];
    if (memory->header != NULL && address >= address_of(memory) && address < address_of(memory) + memory->header->size)
      return memory;
  }
  return NULL;
}

static Memory* map(const char* name, int flags, uint64_t size) {
  Memory* memory = memories;
  while (memory->header != NULL) ++memory;
  const int file = shm_open(name, flags | O_RDWR, 0600);
  if (file < 0) return NULL;
  if (size > 0 && ftruncate(file, HEADER + (off_t)size) != 0) abort();
  if (size == 0) size = (uint64_t)lseek(file, 0, SEEK_END) - HEADER;
  memory->header = mmap(NULL, HEADER + size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  snprintf(memory->name, sizeof memory->name, "%s", name);
  return memory;
}

int cuInit(unsigned flags) {
  initialized = 1;
  return (int)flags;
}

int cuDeviceGetCount(int* count) {
  *count = DEVICES;
  return initialized ? OK : NOT_INITIALIZED;
}

int cuDeviceGet(int* device, int number) {
  *device = number;
  return number >= 0 && number < DEVICES ? OK : INVALID_DEVICE;
}

int cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = &contexts[device];
  return OK;
}

int cuCtxSetCurrent(void* context) {
  current = context;
  return OK;
}

int cuMemAlloc_v2(uint64_t* address, size_t size) {
  static int made;
  char name[48];
  if (current == NULL) return INVALID_CONTEXT;
  snprintf(name, sizeof name, "/opgate_test_gpu_%d_%d", (int)getpid(), made++);
  const Memory* const memory = map(name, O_CREAT | O_EXCL, size);
  if (memory == NULL) return INVALID_VALUE;
  *memory->header = (Header){size, getpid(), current - contexts, 0, 0};
  *address = address_of(memory);
  return OK;
}

int cuMemFree_v2(uint64_t address) {
  Memory* const memory = find(address);
  if (memory == NULL) return INVALID_VALUE;
  shm_unlink(memory->name);
  munmap(memory->header, HEADER + memory->header->size);
  memory->header = NULL;
  return OK;
}

int cuIpcGetMemHandle(Handle* handle, uint64_t address) {
  const Memory* const memory = find(address);
  if (memory == NULL) return INVALID_VALUE;
  memset(handle, 0, sizeof *handle);
  memcpy(handle->bytes, memory->name, sizeof memory->name);
  return OK;
}

int cuIpcOpenMemHandle_v2(uint64_t* address, Handle handle, unsigned flags) {
  if (current == NULL) return INVALID_CONTEXT;
  if (flags != 1 || strncmp(handle.bytes, "/opgate_test_gpu_", 17) != 0) return INVALID_VALUE;
  Memory* const memory = map(handle.bytes, 0, 0);
  if (memory == NULL) return INVALID_VALUE;
  if (memory->header->owner == getpid() || memory->header->device != current - contexts) {
    munmap(memory->header, HEADER + memory->header->size);
    memory->header = NULL;
    return INVALID_VALUE;
  }
  __atomic_add_fetch(&memory->header->opened, 1, __ATOMIC_SEQ_CST);
  *address = address_of(memory);
  return OK;
}

int cuIpcCloseMemHandle(uint64_t address) {
  Memory* const memory = find(address);
  if (current == NULL) return INVALID_CONTEXT;
  if (memory == NULL || address != address_of(memory)) return INVALID_VALUE;
  __atomic_sub_fetch(&memory->header->opened, 1, __ATOMIC_SEQ_CST);
  munmap(memory->header, HEADER + memory->header->size);
  memory->header = NULL;
  return OK;
}

int cuMemGetAddressRange_v2(uint64_t* base, size_t* size, uint64_t address) {
  const Memory* const memory = find(address);
  if (memory == NULL) return INVALID_VALUE;
  *base = address_of(memory);
  *size = memory->header->size;
  return OK;
}

static int copy(uint64_t address, void* into, const void* from, size_t count) {
  if (current == NULL) return INVALID_CONTEXT;
  const Memory* const memory = find(address);
  if (memory == NULL || address + count > address_of(memory) + memory->header->size) return INVALID_VALUE;
  if (memory->header->broken) return ILLEGAL;
  char* const data = (char*)(address - DEVICE_MEMORY);
  memcpy(into == NULL ? data : into, from == NULL ? data : from, count);
  return OK;
}

int cuMemcpyDtoH_v2(void* into, uint64_t from, size_t count) { return copy(from, into, NULL, count); }

/* As CUDA may, it returns before the bytes are there. */
static _Thread_local struct {
  uint64_t into;
  void* bytes;
  size_t count;
} pending;

int cuStreamSynchronize(void* stream) {
  (void)stream;
  const int code = pending.bytes == NULL ? OK : copy(pending.into, NULL, pending.bytes, pending.count);
  free(pending.bytes);
  pending.bytes = NULL;
  return code;
}

int cuMemcpyHtoD_v2(uint64_t into, const void* from, size_t count) {
  const int code = cuStreamSynchronize(NULL);
  pending.into = into;
  pending.count = count;
  pending.bytes = memcpy(malloc(count), from, count);
  return code;
}

int cuGetErrorName(int code, const char** name) {
  *name = code == INVALID_VALUE ? "CUDA_ERROR_INVALID_VALUE" : code == ILLEGAL ? "CUDA_ERROR_ILLEGAL_ADDRESS" : NULL;
  return *name == NULL ? INVALID_VALUE : OK;
}

/* For tests: how often other processes have memory open, and whether copies of it fail. */
int64_t opened(uint64_t address) { return find(address)->header->opened; }

void set_broken(uint64_t address, int64_t broken) { find(address)->header->broken = broken; }
