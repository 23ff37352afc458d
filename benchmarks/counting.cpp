// Counts the allocations and the large copies of a process. Preload it and set OPGATE_COUNTS to a file of 32 bytes; the
// file then holds, as 64-bit numbers: allocations, allocated bytes, large copies, and bytes of those.
// Allocations by memalign, valloc and reallocarray, which nothing uses for each request, are not counted.

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

extern "C" {
void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* memory, size_t size);
void* __libc_memalign(size_t alignment, size_t size);
}

namespace {

constexpr size_t large = 32768;

struct Counts {
  std::atomic<uint64_t> allocations, allocated, copies, copied;
};

Counts unused;
Counts* counts = &unused;
using Copy = void* (*)(void*, const void*, size_t);
Copy copy_forward = nullptr;
Copy copy_any = nullptr;

__attribute__((constructor)) void begin() {
  copy_any = reinterpret_cast<Copy>(dlsym(RTLD_NEXT, "memmove"));
  copy_forward = reinterpret_cast<Copy>(dlsym(RTLD_NEXT, "memcpy"));
  const char* path = std::getenv("OPGATE_COUNTS");
  const int file = path == nullptr ? -1 : open(path, O_RDWR);
  if (file < 0) return;
  void* memory = mmap(nullptr, sizeof(Counts), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory != MAP_FAILED) counts = static_cast<Counts*>(memory);
}

void allocated(size_t size) {
  counts->allocations.fetch_add(1, std::memory_order_relaxed);
  counts->allocated.fetch_add(size, std::memory_order_relaxed);
}

void* copied(Copy copy, void* to, const void* from, size_t size) {
  if (size >= large) {
    counts->copies.fetch_add(1, std::memory_order_relaxed);
    counts->copied.fetch_add(size, std::memory_order_relaxed);
  }
  if (copy != nullptr) return copy(to, from, size);
  // Before `begin`, while libraries are loaded. Their copies don't overlap.
  auto* target = static_cast<volatile char*>(to);
  const auto* source = static_cast<const char*>(from);
  for (size_t i = 0; i < size; ++i) target[i] = source[i];
  return to;
}

}  // namespace

extern "C" {

void* malloc(size_t size) {
  allocated(size);
  return __libc_malloc(size);
}

void* calloc(size_t count, size_t size) {
  allocated(count * size);
  return __libc_calloc(count, size);
}

void* realloc(void* memory, size_t size) {
  allocated(size);
  return __libc_realloc(memory, size);
}

void* aligned_alloc(size_t alignment, size_t size) {
  allocated(size);
  return __libc_memalign(alignment, size);
}

int posix_memalign(void** memory, size_t alignment, size_t size) {
  allocated(size);
  *memory = __libc_memalign(alignment, size);
  return *memory == nullptr ? 12 : 0;  // ENOMEM
}

void* memcpy(void* to, const void* from, size_t size) { return copied(copy_forward, to, from, size); }

void* memmove(void* to, const void* from, size_t size) { return copied(copy_any, to, from, size); }

}  // extern "C"
