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
#include "smallest.cuh"

namespace opgate::detection {

/// So many of the best candidates are looked at together.
constexpr int kTogether = 1024;

/// Is behind all candidates. None has this value, which would be that of a NaN.
constexpr Candidate kNone = ~Candidate{0};

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
template <typename Value>
__device__ Value block_least(Value value, Value* partial) {
  for (int bits = kWarp / 2; bits > 0; bits /= 2) {
    const Value other = __shfl_xor_sync(kWholeWarp, value, bits);
    if (other < value) value = other;
  }
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = value;
  __syncthreads();
  for (int i = 0; i < kThreads / kWarp; ++i) {
    if (partial[i] < value) value = partial[i];
  }
  return value;
}

/// Which candidates of a picture a kept one suppresses.
template <typename Pictures>
struct Suppression {
  const Pictures& pictures;
  std::int64_t i;
  bool class_agnostic;
  double iou_threshold;

  __device__ std::uint32_t label(Candidate candidate) const {
    return index_of(candidate) % static_cast<std::uint32_t>(pictures.classes);
  }
  __device__ std::uint32_t anchor(Candidate candidate) const {
    return index_of(candidate) / static_cast<std::uint32_t>(pictures.classes);
  }
  __device__ auto box(Candidate candidate) const { return pictures.box(i, anchor(candidate)); }

  __device__ bool same(Candidate kept, Candidate other) const {
    bool result = label(kept) == label(other);
    if constexpr (requires { pictures.same_group(i, 0, 0); })
      result = result && pictures.same_group(i, anchor(kept), anchor(other));
    return result;
  }
  /// Nearly all boxes are elsewhere, which the boxes in floats tell. Some say more. f64 is slow on most GPUs.
  template <typename Rounded>
  __device__ bool operator()(Candidate kept, const Rounded& rounded_kept, Candidate other,
                             const Rounded& rounded) const {
    if (!rounded.meets(rounded_kept) || !(class_agnostic || same(kept, other))) return false;
    if constexpr (requires { rounded.compare(rounded_kept, 0.0f); }) {
      const Verdict verdict = rounded.compare(rounded_kept, static_cast<float>(iou_threshold));
      if (verdict != Verdict::unknown) return verdict == Verdict::greater;
    }
    return iou(box(kept), box(other)) > iou_threshold;
  }
};

/// A block computes a picture: greedy NMS of the best kTogether candidates in their order, and then of the best of the
/// rest that none of these suppresses. `numbers` counts the detections of each class; it may be null if classes have no
/// limit.
template <typename Pictures, typename Write>
__global__ void __launch_bounds__(kThreads)
    keep_best(Pictures pictures, Limits limits, Candidate* all_candidates, const std::uint32_t* counts,
              std::uint32_t* numbers, Write write) {
  constexpr unsigned kOwn = kTogether / kThreads;
  __shared__ Candidate chosen[kTogether];
  using Rounded = decltype(rounded(pictures.box(0, 0)));
  __shared__ Rounded around[kTogether];
  __shared__ std::uint16_t kept_places[kTogether];
  __shared__ unsigned partial[2][kThreads / kWarp];
  const std::int64_t i = blockIdx.x;
  Candidate* const candidates = all_candidates + i * pictures.classes * pictures.anchors;
  const Suppression<Pictures> suppresses{pictures, i, limits.class_agnostic, limits.iou_threshold_of(i)};
  std::int64_t kept = 0;
  for (std::uint32_t count = counts[i]; count > 0 && kept < limits.max_detections;) {
    const unsigned taken = count < kTogether ? count : kTogether;
    unsigned padded = 1;
    while (padded < taken) padded *= 2;
    const Candidate last =
        select(count, taken, padded, [&](std::int64_t j) { return candidates[j]; }, static_cast<Candidate*>(chosen));
    sort(chosen, padded);
    bool alive[kOwn];
    unsigned next = kTogether;
    for (unsigned k = 0; k < kOwn; ++k) {
      const unsigned place = threadIdx.x + k * kThreads;
      alive[k] = place < taken;
      if (!alive[k]) continue;
      around[place] = rounded(suppresses.box(chosen[place]));
      if (place < next) next = place;
    }
    unsigned kept_now = 0;
    for (; kept < limits.max_detections; ++kept) {
      const unsigned best = block_least(next, partial[kept % 2]);
      if (best == kTogether) break;
      const Candidate candidate = chosen[best];
      const std::uint32_t label = suppresses.label(candidate), anchor = suppresses.anchor(candidate);
      if (threadIdx.x == 0) {
        write(i, kept, pictures.box(i, anchor), anchor, label, score_of(pictures, i, anchor, label));
        kept_places[kept_now] = static_cast<std::uint16_t>(best);
      }
      ++kept_now;
      bool full = false;
      if (numbers) {
        std::uint32_t& number = numbers[i * pictures.classes + label];
        const std::uint32_t with_this = number + 1;
        full = with_this >= limits.max_per_class;
        __syncthreads();  // all threads have read it
        if (threadIdx.x == 0) number = with_this;
      }
      next = kTogether;
      for (unsigned k = 0; k < kOwn; ++k) {
        const unsigned place = threadIdx.x + k * kThreads;
        if (!alive[k]) continue;
        alive[k] = place != best && !(full && suppresses.same(candidate, chosen[place])) &&
                   !suppresses(candidate, around[best], chosen[place], around[place]);
        if (alive[k] && place < next) next = place;
      }
    }
    if (count <= kTogether) break;
    // The rest moves to the front. A thread writes to where all have read.
    std::uint32_t left = 0;
    for (std::uint32_t first = 0; kept < limits.max_detections && first < count; first += kThreads) {
      __syncthreads();
      const std::uint32_t j = first + threadIdx.x;
      const Candidate other = j < count ? candidates[j] : kNone;
      bool stays = j < count && other > last;
      if (stays && numbers) stays = numbers[i * pictures.classes + suppresses.label(other)] < limits.max_per_class;
      if (stays) {
        const Rounded around_other = rounded(suppresses.box(other));
        for (unsigned k = 0; stays && k < kept_now; ++k)
          stays = !suppresses(chosen[kept_places[k]], around[kept_places[k]], other, around_other);
      }
      const Sums sums = sums_of(stays);
      if (stays) candidates[left + sums.up_to - 1] = other;
      left += sums.all;
    }
    count = left;
    __syncthreads();  // all have read what the next candidates overwrite
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
