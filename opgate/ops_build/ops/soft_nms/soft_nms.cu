#include "soft_nms.h"

#include "kernel_toolkit/elementwise.cuh"

namespace opgate::ops::soft_nms {
namespace {

constexpr int kThreads = 512;
constexpr int kWarp = 32;
constexpr unsigned kWholeWarp = 0xffffffffu;

/// A box and its score. The greater score is better, then the lower index.
struct Best {
  double score;
  std::uint32_t index;

  __device__ void take(double other, std::uint32_t other_index) {
    if (other > score || (other == score && other_index < index)) {
      score = other;
      index = other_index;
    }
  }
};

/// The best of the block. All threads get it.
__device__ Best block_best(Best best) {
  __shared__ double scores[kThreads / kWarp];
  __shared__ std::uint32_t indices[kThreads / kWarp];
  for (int bits = kWarp / 2; bits > 0; bits /= 2) {
    const double score = __shfl_xor_sync(kWholeWarp, best.score, bits);
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

__device__ inline Box box_at(const float* boxes, std::uint32_t i) {
  const float* corners = boxes + 4 * static_cast<std::int64_t>(i);
  return detection::box_of(corners[0], corners[1], corners[2], corners[3]);
}

/// One block. Each thread lowers the scores of its boxes and finds the best of them.
__global__ void __launch_bounds__(kThreads)
    keep(std::int64_t n, const float* boxes, const float* scores, Decay decay, double* lowered, float* detections,
         std::int64_t* indices, std::int64_t* k) {
  Best best{kNone, 0};
  for (std::int64_t i = threadIdx.x; i < n; i += kThreads) {
    lowered[i] = first_score(scores[i]);
    best.take(lowered[i], static_cast<std::uint32_t>(i));
  }
  std::int64_t kept = 0;
  for (; kept < n; ++kept) {
    best = block_best(best);
    if (best.score == kNone) break;
    const std::uint32_t index = best.index;
    const Box box = box_at(boxes, index);
    if (threadIdx.x == 0) {
      for (int corner = 0; corner < 4; ++corner)
        detections[5 * kept + corner] = boxes[4 * static_cast<std::int64_t>(index) + corner];
      detections[5 * kept + 4] = static_cast<float>(best.score);
      indices[kept] = index;
    }
    best = {kNone, 0};
    for (std::int64_t i = threadIdx.x; i < n; i += kThreads) {
      double score = lowered[i];
      if (score == kNone) continue;
      const auto other = static_cast<std::uint32_t>(i);
      const double iou = detection::iou(box, box_at(boxes, other));
      if (iou > 0 || !decay.is_local()) score *= decay.weight(iou);
      if (other == index || !(score >= decay.min_score)) score = kNone;
      lowered[i] = score;
      best.take(score, other);
    }
  }
  if (threadIdx.x == 0) *k = kept;
}

struct Cuda : Checked {
  struct Memory {
    std::span<double> scores;
  };

  static Memory workspace(Workspace& workspace, const Inputs& in, const Attributes&) {
    return {workspace.take<double>(in.size("n"))};
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
