// The smallest of many 64-bit numbers, found by a block: candidates, of which the smallest are the best.
#pragma once

#include "nms.h"

namespace opgate::detection {

constexpr int kThreads = 512;
constexpr int kWarp = 32;
constexpr unsigned kWholeWarp = 0xffffffffu;

/// A candidate is looked at in digits of so many bits, the highest ones first: f32's sign, its exponent and two bits
/// more. With fewer bits most scores would have one digit, and their threads would wait for each other to count it.
constexpr int kBits = 11, kBins = 1 << kBits, kCandidateBits = 64;

/// The sum of a number of each of the threads up to this one, and that of all.
struct Sums {
  unsigned up_to, all;
};

__device__ inline Sums sums_of(unsigned value) {
  __shared__ unsigned totals[kThreads / kWarp];
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  for (unsigned step = 1; step < kWarp; step *= 2) {
    const unsigned before = __shfl_up_sync(kWholeWarp, value, step);
    if (lane >= step) value += before;
  }
  if (lane == kWarp - 1) totals[warp] = value;
  __syncthreads();
  Sums sums{value, 0};
  for (unsigned i = 0; i < kThreads / kWarp; ++i) {
    if (i < warp) sums.up_to += totals[i];
    sums.all += totals[i];
  }
  __syncthreads();  // the next call writes to `totals` again
  return sums;
}

/// The `wanted`-th smallest of candidate_at(i) for i in [0, count), or a number between it and the next. It is found
/// digit by digit: a histogram says which value a digit has. It ends early if all candidates that share the digits so
/// far are wanted.
template <typename CandidateAt>
__device__ Candidate last_wanted(std::int64_t count, std::int64_t wanted, const CandidateAt& candidate_at) {
  __shared__ unsigned histogram[kBins];
  __shared__ Candidate prefix;
  __shared__ unsigned left;  // the candidates wanted of those that have the prefix
  __shared__ bool done;
  if (threadIdx.x == 0) {
    prefix = 0;
    left = static_cast<unsigned>(wanted);
    done = false;
  }
  int shift = kCandidateBits;
  while (shift > 0) {
    const int above = shift;
    shift = shift > kBits ? shift - kBits : 0;
    const Candidate digits = (Candidate{1} << (above - shift)) - 1;
    for (int bin = static_cast<int>(threadIdx.x); bin < kBins; bin += kThreads) histogram[bin] = 0;
    __syncthreads();
    for (std::int64_t i = threadIdx.x; i < count; i += kThreads) {
      const Candidate candidate = candidate_at(i);
      const bool counts = above == kCandidateBits || candidate >> above == prefix;
      if (counts) atomicAdd(&histogram[candidate >> shift & digits], 1u);
    }
    __syncthreads();
    constexpr int kOwn = kBins / kThreads;
    const unsigned* const own = histogram + threadIdx.x * kOwn;
    unsigned sum = 0;
    for (int i = 0; i < kOwn; ++i) sum += own[i];
    const unsigned up_to = sums_of(sum).up_to, missing = left;
    const Candidate known = prefix;
    __syncthreads();  // all have read them
    if (up_to >= missing && up_to - sum < missing) {
      unsigned rest = missing - (up_to - sum), i = 0;
      while (own[i] < rest) rest -= own[i++];
      left = rest;
      prefix = (above == kCandidateBits ? 0 : known << (above - shift)) | (threadIdx.x * kOwn + i);
      done = own[i] == rest;
    }
    __syncthreads();
    if (done) break;
  }
  const Candidate last = (prefix << shift) | ((Candidate{1} << shift) - 1);
  __syncthreads();  // the next call changes the prefix
  return last;
}

/// Writes the `wanted` smallest of candidate_at(i) for i in [0, count) to `to`, in any order, and ~0 to what is left of
/// `room`. Returns the greatest of them, or a number between it and the next; ~0 if all are wanted.
template <typename CandidateAt>
__device__ Candidate select(std::int64_t count, std::int64_t wanted, std::int64_t room, const CandidateAt& candidate_at,
                            Candidate* to) {
  __shared__ unsigned found;
  Candidate last = ~Candidate{0};
  if (wanted < count) last = last_wanted(count, wanted, candidate_at);
  if (threadIdx.x == 0) found = 0;
  __syncthreads();
  for (std::int64_t i = threadIdx.x; i < count; i += kThreads) {
    const Candidate candidate = candidate_at(i);
    if (candidate <= last) to[atomicAdd(&found, 1u)] = candidate;
  }
  for (std::int64_t i = wanted + threadIdx.x; i < room; i += kThreads) to[i] = ~Candidate{0};
  __syncthreads();
  return last;
}

/// Sorts `count` candidates, a power of two, with a bitonic network.
__device__ inline void sort(Candidate* candidates, std::int64_t count) {
  for (std::int64_t size = 2; size <= count; size *= 2) {
    for (std::int64_t step = size / 2; step > 0; step /= 2) {
      __syncthreads();
      for (std::int64_t i = threadIdx.x; i < count / 2; i += kThreads) {
        const std::int64_t low = 2 * i - (i & (step - 1)), high = low + step;
        const Candidate a = candidates[low], b = candidates[high];
        if ((a > b) == ((low & size) == 0)) {
          candidates[low] = b;
          candidates[high] = a;
        }
      }
    }
  }
  __syncthreads();
}

}  // namespace opgate::detection
