// The device side of the emulation: the declarations that nvcc adds to every .cu file.
#pragma once

#define __CUDACC__
#define __CUDA_ARCH__ 900

#include "cuda_runtime_api.h"

namespace emulation {

inline constexpr unsigned kWholeWarp = 0xffffffffu;

template <typename T>
std::uint64_t packed(T value) {
  static_assert(sizeof(T) <= sizeof(std::uint64_t));
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  return bits;
}

inline unsigned lane() { return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % warpSize; }

/// Returns the value that lane `from` has brought, or the caller's value if `from` lies outside of the warp (not
/// `within`).
template <typename T>
T shuffle(unsigned mask, T value, unsigned from, bool within, const char* function, const Location& location) {
  const Values& values = meet(mask, packed(value), function, location);
  if (!within) return value;
  if (!(mask >> from & 1))
    fail(std::string(function) + " reads from lane " + std::to_string(from) + ", which takes no part");
  T received;
  std::memcpy(&received, &values[from], sizeof received);
  return received;
}

inline unsigned ballot(unsigned mask, bool vote, const char* function, const Location& location) {
  const Values& votes = meet(mask, vote, function, location);
  unsigned result = 0;
  for (unsigned i = 0; i < warpSize; ++i) result |= (mask >> i & 1u & static_cast<unsigned>(votes[i])) << i;
  return result;
}

/// Returns the value. The compiler can't fuse the operation that computes it with another one.
template <typename T>
inline T rounded(T value) {
  __asm__ volatile("" : "+x"(value));
  return value;
}

}  // namespace emulation

inline void __syncthreads(emulation::Location location = emulation::Location::current()) {
  emulation::meet(0, 0, "__syncthreads", location);
}
inline void __syncwarp(unsigned mask = emulation::kWholeWarp,
                       emulation::Location location = emulation::Location::current()) {
  emulation::meet(mask, 0, "__syncwarp", location);
}
inline unsigned __ballot_sync(unsigned mask, int vote, emulation::Location location = emulation::Location::current()) {
  return emulation::ballot(mask, vote != 0, "__ballot_sync", location);
}
template <typename T>
T __shfl_sync(unsigned mask, T value, int from, emulation::Location location = emulation::Location::current()) {
  return emulation::shuffle(mask, value, static_cast<unsigned>(from) % warpSize, true, "__shfl_sync", location);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta,
                 emulation::Location location = emulation::Location::current()) {
  const unsigned lane = emulation::lane();
  return emulation::shuffle(mask, value, lane - delta, lane >= delta, "__shfl_up_sync", location);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int bits, emulation::Location location = emulation::Location::current()) {
  return emulation::shuffle(mask, value, emulation::lane() ^ static_cast<unsigned>(bits), true, "__shfl_xor_sync",
                            location);
}

template <typename T>
T atomicAdd(T* address, T value) {
  return std::exchange(*address, static_cast<T>(*address + value));
}

template <typename T>
T atomicExch(T* address, T value) {
  return std::exchange(*address, value);
}

inline int __popc(unsigned bits) { return std::popcount(bits); }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline float __expf(float x) { return std::exp(x); }
/// As on a GPU, the quotient is lost where 1 / b is denormal: it is 0 there, and NaN for an infinite a (CUDA C++
/// Programming Guide, "Intrinsic Functions").
inline float __fdividef(float a, float b) {
  const float size = std::fabs(b);
  return size > 0x1p126f && size <= 0x1.fffffep127f ? a * 0.0f : a / b;
}
inline double normcdf(double x) { return 0.5 * std::erfc(-0.70710678118654752440 * x); }
inline float normcdff(float x) { return static_cast<float>(normcdf(static_cast<double>(x))); }
inline float __fmul_rn(float a, float b) { return emulation::rounded(a * b); }
inline float __fadd_rn(float a, float b) { return emulation::rounded(a + b); }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline double __dmul_rn(double a, double b) { return emulation::rounded(a * b); }
inline double __dadd_rn(double a, double b) { return emulation::rounded(a + b); }
inline double __dsqrt_rn(double a) { return std::sqrt(a); }
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
