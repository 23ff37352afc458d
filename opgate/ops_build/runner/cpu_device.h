// Memory of the host.
#pragma once

#include <cstdlib>
#include <cstring>
#include <new>

#include "op_call/table.h"

namespace opgate::runner {

/// Kernels on the CPU have no stream.
struct Cpu {
  static constexpr Device kDevice = Device::cpu;
  using Stream = void*;

  static void* allocate(std::size_t bytes, std::size_t alignment, bool, Stream) {
    void* memory = nullptr;
    if (posix_memalign(&memory, alignment, bytes) != 0) throw std::bad_alloc();
    return memory;
  }
  static void release(void* memory, bool, Stream) { std::free(memory); }
  static void fill(void* to, int value, std::size_t bytes, Stream) { std::memset(to, value, bytes); }
  static void write(void* to, const void* from, std::size_t bytes, Stream) { std::memcpy(to, from, bytes); }
  static Status read(void* to, const void* from, std::size_t bytes, Stream) {
    std::memcpy(to, from, bytes);
    return {};
  }
  static Status wait(Stream) { return {}; }
};

}  // namespace opgate::runner
