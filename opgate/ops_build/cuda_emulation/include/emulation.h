// The part of CUDA that the ops' kernels use, on the CPU. With it a machine without a GPU can run the kernels under the
// address and undefined-behaviour sanitizers. build.py rewrites `<<<...>>>` into a call of emulation::launch.
//
// Blocks run one after the other. The threads of a block are fibers: a fiber runs until it has to wait for others, at a
// barrier or at a shuffle of its warp. Then another fiber runs. EMULATION_SEED chooses which one: with 0 the one that
// has waited the longest, with 1 the one that has waited the shortest, with a higher seed mostly the shortest, and now
// and then a random one.
//
// The emulation shows:
//   - what the kernels compute, and that they stay within their memory. Device memory is on the heap. Shared memory is
//     a global variable. The sanitizer has its zones around both. Neither is initialized.
//   - missing barriers: in one of the orders a thread reads too early or too late.
//   - barriers that not all threads reach.
//   - shuffles whose lanes don't meet, or that read from a lane that takes no part.
//   - host code that touches device memory, which is poisoned except while a kernel runs.
//
// It doesn't show: speed; in which order other blocks of a real device see what a block writes; the last bit of nvcc's
// arithmetic, which may fuse a product and a sum where the emulation doesn't; blocks that disturb one another because
// they run at the same time.
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
#include <vector>

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

using Location = std::source_location;

/// The values that the lanes of a warp bring to a meeting.
using Values = std::array<std::uint64_t, warpSize>;

inline constexpr unsigned kMostThreads = 1024;

[[noreturn]] void fail(const std::string& message);

/// Runs `thread` for each thread of a block of `size`. gridDim, blockDim and blockIdx must describe the block.
void run_block(dim3 size, unsigned seed, const std::function<void()>& thread);

/// Waits until the lanes of the calling thread's warp that `mask` names have called it too, or with mask 0 all threads
/// of the block. Returns the values that the lanes have brought. `function` is the CUDA function, for messages.
const Values& meet(unsigned mask, std::uint64_t value, const char* function, const Location& location);

// Device memory. It is poisoned except while a kernel runs or memory is copied.

/// Returns nullptr if there is no memory left.
void* allocate(std::size_t bytes);
void free(void* memory);
bool on_device(const void* memory, std::size_t bytes);
void with_device_memory(const std::function<void()>& body);

}  // namespace emulation
