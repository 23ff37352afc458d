// Greedy non-maximum suppression on CUDA.
//
// `Pictures` is a type with
//   std::int64_t n, classes, anchors;
//   const float* scores(std::int64_t i) const;                    [classes, anchors], or of another type
//   Box box(std::int64_t i, std::int64_t anchor) const;           or RotatedBox
//   std::int64_t scanned() const;                                 may be left out: the values behind scores(i)
//   bool find(std::int64_t at, std::int64_t& anchor, std::int64_t& label) const;      whether value `at` is a score
//   float score(std::int64_t i, std::int64_t anchor, std::int64_t label) const;       with these two functions
//   bool same_group(std::int64_t i, std::int64_t anchor, std::int64_t other) const;   may be left out
// Boxes of a class suppress one another, if they are of the same group. `Write` knows the class, 0, 1, ...
// And `Write` has two device functions:
//   void operator()(i, k, box, anchor, label, score) const       writes detection k of picture i, in one thread
//   void finish(i, count) const                                  fills the unused rows, in all threads of a block
#pragma once

#include "kept_rows.h"
#include "kernel_toolkit/elementwise.cuh"
#include "nms.h"

namespace opgate::detection {

constexpr int kThreads = 512;
constexpr int kWarp = 32;
constexpr unsigned kWholeWarp = 0xffffffffu;

/// Replaces a candidate that was kept or suppressed. No candidate has this value, which would be that of a NaN.
constexpr Candidate kGone = ~Candidate{0};

template <typename Pictures>
using ScoreOf = std::remove_cvref_t<decltype(*std::declval<const Pictures&>().scores(0))>;

/// The number of values behind scores(i) among which the scores are.
template <typename Pictures>
__host__ __device__ std::int64_t scanned(const Pictures& pictures) {
  if constexpr (requires { pictures.scanned(); })
    return pictures.scanned();
  else
    return pictures.classes * pictures.anchors;
}

/// Finds whose score the value at a place is. False: it is no score.
template <typename Pictures>
__device__ bool find_score(const Pictures& pictures, std::int64_t at, std::int64_t& anchor, std::int64_t& label) {
  if constexpr (requires { pictures.find(at, anchor, label); }) {
    return pictures.find(at, anchor, label);
  } else {
    label = at / pictures.anchors;
    anchor = at % pictures.anchors;
    return true;
  }
}

template <typename Pictures>
__device__ float score_of(const Pictures& pictures, std::int64_t i, std::int64_t anchor, std::int64_t label) {
  if constexpr (requires { pictures.score(i, anchor, label); })
    return pictures.score(i, anchor, label);
  else
    return pictures.scores(i)[label * pictures.anchors + anchor];
}

/// Finds the candidates of each picture, in no particular order. A thread tests `lanes` scores.
template <int lanes, typename Pictures>
__global__ void __launch_bounds__(kThreads)
    find_candidates(Pictures pictures, float threshold, Candidate* candidates, std::uint32_t* counts) {
  using Vector = elementwise::Lanes<ScoreOf<Pictures>, lanes>;
  constexpr bool may_be_none = requires { pictures.scanned(); };
  constexpr bool weighted = requires { pictures.weight(0, 0); };
  const std::int64_t total = scanned(pictures), room = pictures.classes * pictures.anchors;
  const std::int64_t first = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * lanes;
  const unsigned lane = threadIdx.x % kWarp;
  for (std::int64_t i = blockIdx.y; i < pictures.n; i += gridDim.y) {
    Vector scores{};
    if (first < total) scores = *reinterpret_cast<const Vector*>(pictures.scores(i) + first);
    float values[lanes];
    unsigned passed[lanes];
    unsigned all = 0;
#pragma unroll
    for (int k = 0; k < lanes; ++k) {
      values[k] = static_cast<float>(scores.values[k]);
      bool passes = first < total;
      if constexpr (weighted) {
        std::int64_t anchor, label;
        passes = passes && find_score(pictures, first + k, anchor, label);
        if (passes) values[k] *= pictures.weight(i, anchor);
      }
      passes = passes && values[k] > threshold;
      if constexpr (may_be_none && !weighted) {
        std::int64_t anchor, label;
        passes = passes && find_score(pictures, first + k, anchor, label);
      }
      passed[k] = __ballot_sync(kWholeWarp, passes);
      all += static_cast<unsigned>(__popc(passed[k]));
    }
    if (all == 0) continue;  // nearly always
    // One atomic addition for the whole warp.
    unsigned slot = lane == 0 ? atomicAdd(counts + i, all) : 0;
    slot = __shfl_sync(kWholeWarp, slot, 0);
#pragma unroll
    for (int k = 0; k < lanes; ++k) {
      if (passed[k] >> lane & 1u) {
        std::int64_t anchor, label;
        find_score(pictures, first + k, anchor, label);
        const unsigned before = static_cast<unsigned>(__popc(passed[k] & ((1u << lane) - 1)));
        candidates[i * room + slot + before] =
            candidate(values[k], static_cast<std::uint32_t>(anchor * pictures.classes + label));
      }
      slot += static_cast<unsigned>(__popc(passed[k]));
    }
  }
}

/// The smallest value of the block. All threads get it. `partial` must not be that of the previous call.
__device__ inline Candidate block_least(Candidate value, Candidate* partial) {
  for (int bits = kWarp / 2; bits > 0; bits /= 2) {
    const Candidate other = __shfl_xor_sync(kWholeWarp, value, bits);
    if (other < value) value = other;
  }
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = value;
  __syncthreads();
  for (int i = 0; i < kThreads / kWarp; ++i) {
    if (partial[i] < value) value = partial[i];
  }
  return value;
}

/// A block computes a picture. The best remaining candidate is the next detection. Then the threads go over all other
/// candidates: they remove those that the detection suppresses, and find the best of the rest. That is greedy NMS
/// without sorting. `numbers` counts the detections of each class; it may be null if classes have no limit.
template <typename Pictures, typename Write>
__global__ void __launch_bounds__(kThreads)
    keep_best(Pictures pictures, Limits limits, Candidate* all_candidates, const std::uint32_t* counts,
              std::uint32_t* numbers, Write write) {
  __shared__ Candidate partial[2][kThreads / kWarp];
  const std::int64_t i = blockIdx.x;
  Candidate* const candidates = all_candidates + i * pictures.classes * pictures.anchors;
  const std::uint32_t count = counts[i];
  const double iou_threshold = limits.iou_threshold_of(i);

  Candidate best = kGone;
  for (std::uint32_t j = threadIdx.x; j < count; j += kThreads) {
    if (candidates[j] < best) best = candidates[j];
  }
  std::int64_t kept = 0;
  for (; kept < limits.max_detections; ++kept) {
    best = block_least(best, partial[kept % 2]);
    if (best == kGone) break;
    const auto classes = static_cast<std::uint32_t>(pictures.classes);
    const std::uint32_t label = index_of(best) % classes, anchor = index_of(best) / classes;
    const auto box = pictures.box(i, anchor);
    if (threadIdx.x == 0) write(i, kept, box, anchor, label, score_of(pictures, i, anchor, label));
    bool full = false;
    if (numbers) {
      std::uint32_t& number = numbers[i * pictures.classes + label];
      const std::uint32_t with_this = number + 1;
      full = with_this >= limits.max_per_class;
      __syncthreads();  // all threads have read it
      if (threadIdx.x == 0) number = with_this;
    }
    Candidate next = kGone;
    for (std::uint32_t j = threadIdx.x; j < count; j += kThreads) {
      const Candidate other = candidates[j];
      if (other == kGone) continue;
      bool same = index_of(other) % classes == label;
      if constexpr (requires { pictures.same_group(i, anchor, anchor); })
        same = same && pictures.same_group(i, anchor, index_of(other) / classes);
      const bool gone =
          other == best || (full && same) ||
          ((limits.class_agnostic || same) && iou(box, pictures.box(i, index_of(other) / classes)) > iou_threshold);
      if (gone) {
        candidates[j] = kGone;
      } else if (other < next) {
        next = other;
      }
    }
    best = next;
  }
  write.finish(i, kept);
}

/// Clears the unused rows of picture i, in all threads of a block.
template <int numbers>
__device__ void finish(const KeptRows<numbers>& rows, std::int64_t i, std::int64_t kept) {
  for (std::int64_t k = kept + threadIdx.x; k < rows.most; k += blockDim.x) rows.clear(i, k);
  if (threadIdx.x == 0) rows.count[i] = static_cast<std::int32_t>(kept);
}

/// Finds and suppresses. `candidates` has room for all scores, `counts` for n numbers, `numbers` for n * classes.
template <typename Pictures, typename Write>
Status launch_nms(const Pictures& pictures, const Limits& limits, std::span<Candidate> candidates,
                  std::span<std::uint32_t> counts, std::span<std::uint32_t> numbers, const Write& write,
                  cudaStream_t stream) {
  if (pictures.n == 0) return {};
  constexpr std::int64_t kMostRows = 65535;
  constexpr int lanes = elementwise::kBytes / sizeof(ScoreOf<Pictures>);
  const auto clear = [&](std::span<std::uint32_t> values) {
    if (values.empty()) return Status();
    return cuda::status(cudaMemsetAsync(values.data(), 0, values.size_bytes(), stream), "clearing counts");
  };
  OPGATE_RETURN_IF_ERROR(clear(counts));
  OPGATE_RETURN_IF_ERROR(clear(numbers));
  const std::int64_t total = scanned(pictures);
  const float threshold = limits.score_threshold;
  Candidate* const found = candidates.data();
  if (pictures.classes * pictures.anchors > 0 && limits.max_detections > 0 && limits.max_per_class > 0) {
    const auto rows = static_cast<unsigned>(std::min(pictures.n, kMostRows));
    // The vectors of all pictures are aligned if those of the first two are.
    if (elementwise::aligned(pictures.scores(0)) && elementwise::aligned(pictures.scores(1)) && total % lanes == 0) {
      const dim3 grid(blocks_for(total, lanes * kThreads), rows);
      find_candidates<lanes><<<grid, kThreads, 0, stream>>>(pictures, threshold, found, counts.data());
    } else {
      const dim3 grid(blocks_for(total, kThreads), rows);
      find_candidates<1><<<grid, kThreads, 0, stream>>>(pictures, threshold, found, counts.data());
    }
    OPGATE_RETURN_IF_ERROR(launched());
  }
  keep_best<<<blocks_for(pictures.n, 1), kThreads, 0, stream>>>(pictures, limits, found, counts.data(), numbers.data(),
                                                                write);
  return launched();
}

}  // namespace opgate::detection
