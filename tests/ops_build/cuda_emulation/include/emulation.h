// CUDA on the CPU, as much of it as the ops' kernels use, so that a machine without a GPU can run them under the
// address and undefined-behaviour sanitizers. `<<<...>>>` is rewritten into a call of emulation::launch (build.py).
//
// Blocks run one after the other. A block's threads are fibers: each runs until it has to wait for others, at a barrier
// or a warp's shuffle, and then another one runs, in an order that EMULATION_SEED chooses: 0 the one that has waited
// the longest, 1 the shortest, more: the shortest but for chance. That shows
//   - what the kernels compute, and that they stay within their memory: device memory is the heap's, shared memory a
//     global's, both with the sanitizer's zones around, and neither initialized;
//   - barriers that are missing, for somebody reads too early or too late in one of the orders; ones that not all
//   threads
//     reach; shuffles whose lanes don't meet, or that read from a lane that isn't there;
//   - that the host doesn't touch device memory: it is poisoned but while a kernel runs.
// It doesn't show speed, the order in which a real device's memory is seen by other blocks, what nvcc's arithmetic
// makes of the last bit (here as there a product and a sum may be fused), or that blocks running at once get in one
// another's way.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <source_location>
#include <string>
#include <tuple>
#include <utility>

#define __host__
#define __device__
#define __global__
#define __forceinline__ inline
#define __constant__
#define __launch_bounds__(...)
#define __shared__ static __attribute__((section("emulated_shared")))

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

inline dim3 gridDim, blockDim, blockIdx, threadIdx;
inline constexpr int warpSize = 32;

namespace emulation {

using Place = std::source_location;

/// What the lanes of a warp bring to a meeting.
using Values = std::array<std::uint64_t, warpSize>;

inline constexpr unsigned kMostThreads = 1024;

[[noreturn]] void fail(const std::string& message);

/// Runs a block of `size` threads, which gridDim, blockDim and blockIdx describe, each of them `thread`.
void run_block(dim3 size, unsigned seed, const std::function<void()>& thread);

/// Called by a thread: waits until the lanes that `mask` names, of its own warp, or (mask 0) all threads of the block
/// have come here too. Returns the values that the lanes have brought.
const Values& meet(unsigned mask, std::uint64_t value, const char* what, const Place& place);

// Device memory, poisoned but while a kernel runs or a copy is made.

/// nullptr where there is no more.
void* allocate(std::size_t bytes);
void free(void* memory);
bool on_device(const void* memory, std::size_t bytes);
void with_device_memory(const std::function<void()>& body);

}  // namespace emulation
