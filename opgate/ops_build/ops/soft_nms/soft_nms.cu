#include "soft_nms.h"

#include "kernel_toolkit/elementwise.cuh"

namespace opgate::ops::soft_nms {
namespace {

constexpr int kThreads = 512;
constexpr int kWarp = 32;
constexpr unsigned kWholeWarp = 0xffffffffu;

/// A score as an integer of the same order: f64, and its comparisons too, are slow on most GPUs. 0 is none.
using Key = std::uint64_t;
constexpr Key kSign = Key{1} << 63;

__device__ Key key_of(double score) {
  const double positive_zero = score + 0.0;  // -0 becomes 0
  Key bits;
  memcpy(&bits, &positive_zero, sizeof bits);
  return score == kNone ? 0 : bits & kSign ? ~bits : bits | kSign;
}

__device__ double score_of(Key key) {
  const Key bits = key & kSign ? key & ~kSign : ~key;
  double score;
  memcpy(&score, &bits, sizeof score);
  return score;
}

/// A box and its score. The greater score is better, then the lower index.
struct Best {
  Key score;
  std::uint32_t index;

  __device__ void take(Key other, std::uint32_t other_index) {
    if (other > score || (other == score && other_index < index)) {
      score = other;
      index = other_index;
    }
  }
};

/// The best of the block. All threads get it.
__device__ Best block_best(Best best) {
  __shared__ Key scores[kThreads / kWarp];
  __shared__ std::uint32_t indices[kThreads / kWarp];
  for (int bits = kWarp / 2; bits > 0; bits /= 2) {
    const Key score = __shfl_xor_sync(kWholeWarp, best.score, bits);
    const std::uint32_t index = __shfl_xor_sync(kWholeWarp, best.index, bits);
    best.take(score, index);
  }
  if (threadIdx.x % kWarp == 0) {
    scores[threadIdx.x / kWarp] = best.score;
    indices[threadIdx.x / kWarp] = best.index;
  }
  __syncthreads();
  for (int i = 0; i < kThreads / kWarp; ++i) best.take(scores[i], indices[i]);
  __syncthreads();  // the next call writes again
  return best;
}

struct Corners {
  float x1, y1, x2, y2;

  __device__ Corners(const float* boxes, std::uint32_t i) {
    const float* const corners = boxes + 4 * static_cast<std::int64_t>(i);
    x1 = corners[0];
    y1 = corners[1];
    x2 = corners[2];
    y2 = corners[3];
  }

  /// Boxes that don't meet have an IoU of 0.
  __device__ bool meets(const Corners& other) const {
    return x1 < other.x2 && x2 > other.x1 && y1 < other.y2 && y2 > other.y1;
  }

  __device__ Box box() const { return detection::box_of(x1, y1, x2, y2); }
};

/// One block. Each thread lowers the scores of its boxes and finds the best of them.
__global__ void __launch_bounds__(kThreads)
    keep(std::int64_t n, const float* boxes, const float* scores, Decay decay, Key* lowered, float* detections,
         std::int64_t* indices, std::int64_t* k) {
  const bool local = decay.is_local();
  const Key least = key_of(decay.min_score);
  Best best{0, 0};
  for (std::int64_t i = threadIdx.x; i < n; i += kThreads) {
    lowered[i] = key_of(first_score(scores[i]));
    best.take(lowered[i], static_cast<std::uint32_t>(i));
  }
  std::int64_t kept = 0;
  for (; kept < n; ++kept) {
    best = block_best(best);
    if (best.score == 0) break;
    const std::uint32_t index = best.index;
    const Corners kept_box(boxes, index);
    if (threadIdx.x == 0) {
      for (int corner = 0; corner < 4; ++corner)
        detections[5 * kept + corner] = boxes[4 * static_cast<std::int64_t>(index) + corner];
      detections[5 * kept + 4] = static_cast<float>(score_of(best.score));
      indices[kept] = index;
    }
    best = {0, 0};
    for (std::int64_t i = threadIdx.x; i < n; i += kThreads) {
      Key score = lowered[i];
      if (score == 0) continue;
      const auto other = static_cast<std::uint32_t>(i);
      const Corners corners(boxes, other);
      if (!local || corners.meets(kept_box)) {
        const double iou = detection::iou(kept_box.box(), corners.box());
        if (iou > 0 || !local) {
          const double weighted = score_of(score) * decay.weight(iou);
          score = weighted == weighted ? key_of(weighted) : 0;
        }
      }
      if (other == index || score < least) score = 0;
      lowered[i] = score;
      best.take(score, other);
    }
  }
  if (threadIdx.x == 0) *k = kept;
}

struct Cuda : Checked {
  struct Memory {
    std::span<Key> scores;
  };

  static Memory workspace(Workspace& workspace, const Inputs& in, const Attributes&) {
    return {workspace.take<Key>(in.size("n"))};
  }

  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const Memory memory = workspace(context.workspace(), in, attributes);
    keep<<<1, kThreads, 0, stream_of(context)>>>(in.size("n"), in["boxes"].data<float>(), in["scores"].data<float>(),
                                                 Decay::of(attributes), memory.scores.data(),
                                                 out["detections"].data<float>(), out["indices"].data<std::int64_t>(),
                                                 out.device_size("k"));
    return launched();
  }
};

}  // namespace
}  // namespace opgate::ops::soft_nms

OPGATE_CUDA_KERNEL(SoftNMS, opgate::ops::soft_nms::Cuda)
