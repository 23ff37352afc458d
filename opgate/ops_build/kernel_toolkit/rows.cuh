// Rows of numbers on CUDA: a block computes a row.
#pragma once

#include "elementwise.cuh"
#include "numbers.h"

namespace opgate::rows {

inline constexpr int kThreads = 256;

inline constexpr int kWarp = 32;

/// combine() of the values of the threads of a row: a part of a warp, a warp, or a block of `threads` threads. All of
/// them get it, and all must call this.
template <int threads, typename C, typename Combine>
__device__ C over_threads(C value, Combine combine) {
  for (int bits = (threads < kWarp ? threads : kWarp) / 2; bits > 0; bits /= 2)
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, bits));
  if constexpr (threads > kWarp) {
    __shared__ C partial[threads / kWarp];
    if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = value;
    __syncthreads();
    value = partial[0];
    for (int warp = 1; warp < threads / kWarp; ++warp) value = combine(value, partial[warp]);
    __syncthreads();  // the next call writes to `partial` again
  }
  return value;
}

/// The sum over the threads of a row.
template <int threads, typename C>
__device__ C sum_over_threads(C value) {
  return over_threads<threads>(value, [](C a, C b) { return a + b; });
}

/// The sum over i in [0, count) of term(i), which `threads` threads compute. A partial sum adds few values, so the
/// error doesn't grow with the row.
template <typename C, int threads = kThreads, typename Term>
__device__ C sum(std::int64_t count, Term term) {
  constexpr std::int64_t kPart = 32;
  C total = 0;
  for (std::int64_t part = static_cast<int>(threadIdx.x) % threads; part < count; part += kPart * threads) {
    C partial = 0;
    for (std::int64_t i = part; i < count && i < part + kPart * threads; i += threads) partial += term(i);
    total += partial;
  }
  return sum_over_threads<threads>(total);
}

/// What makes a row one with mean 0 and variance 1, as in rows.h.
template <typename C>
struct Standard {
  C shift, rest, scale;

  __device__ C operator()(C x) const { return ((x - shift) - rest) * scale; }
};

/// If `centred`, with the mean and the variance of a row; else with the root of the mean of its squares. mean(term)
/// returns the mean of term(value) over the row.
template <bool centred, typename C, typename Mean>
__device__ Standard<C> standard_of(C epsilon, const Mean& mean) {
  Standard<C> standard{};
  if constexpr (centred) {
    standard.shift = mean([](C value) { return value; });
    standard.rest = mean([&](C value) { return value - standard.shift; });
  }
  const C second = mean([&](C value) {
    const C d = (value - standard.shift) - standard.rest;
    return d * d;
  });
  standard.scale = C(1) / sqrt(second + epsilon);
  return standard;
}

/// The same for the row value(0), value(1), ..., which a block computes.
template <bool centred, typename C, typename Value>
__device__ Standard<C> standard(std::int64_t count, C epsilon, Value value) {
  return standard_of<centred>(epsilon, [&](const auto& term) {
    return sum<C>(count, [&](std::int64_t i) { return term(value(i)); }) / static_cast<C>(count);
  });
}

/// to[i] = the sum of sums[chunk * c + i] over the chunks. A thread adds those of one column; none give 0.
template <typename T, typename C = ComputeType<T>>
__global__ void __launch_bounds__(kThreads)
    add_chunks(std::int64_t c, std::int64_t chunks, const C* __restrict__ sums, T* __restrict__ to) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= c) return;
  C total = 0;
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) total += sums[chunk * c + i];
  to[i] = static_cast<T>(total);
}

}  // namespace opgate::rows
