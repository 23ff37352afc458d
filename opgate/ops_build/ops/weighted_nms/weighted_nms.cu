#include "weighted_nms.h"

#include "detection/greedy.cuh"

namespace opgate::ops::weighted_nms {
namespace {

using detection::kNone;
using detection::kThreads;
using detection::kWarp;
using detection::kWholeWarp;

/// The sum of the block, in the same order each time. All threads get it. `partial` must not be that of the previous
/// call.
__device__ double block_sum(double value, double* partial) {
  for (int bits = kWarp / 2; bits > 0; bits /= 2) value += __shfl_xor_sync(kWholeWarp, value, bits);
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = value;
  __syncthreads();
  value = 0;
  for (int i = 0; i < kThreads / kWarp; ++i) value += partial[i];
  return value;
}

/// A block computes a picture. Each thread has the candidates at its places, and looks at no others.
__global__ void __launch_bounds__(kThreads) blend(Batch batch, Candidate* all_candidates, bool* all_taken) {
  __shared__ Candidate least[2][kThreads / kWarp];
  __shared__ double partial[2][kThreads / kWarp];
  const std::int64_t i = blockIdx.x;
  const Picture picture = batch.picture(i);
  const detection::Limits limits = batch.limits_of(i);
  const std::int64_t places = picture.classes * picture.anchors;
  Candidate* const candidates = all_candidates + i * places;
  bool* const taken = all_taken + i * places;  // by the mean that is computed
  Candidate best = kNone;
  for (std::int64_t j = threadIdx.x; j < places; j += kThreads) {
    const float score = picture.values[j];
    const std::int64_t label = j / picture.anchors, anchor = j % picture.anchors;
    candidates[j] = score > limits.score_threshold
                        ? detection::candidate(score, static_cast<std::uint32_t>(anchor * picture.classes + label))
                        : kNone;
    if (candidates[j] < best) best = candidates[j];
  }
  std::int64_t kept = 0;
  for (; kept < limits.max_detections; ++kept) {
    best = detection::block_least(best, least[kept % 2]);
    if (best == kNone) break;
    const Box box = picture.box(picture.anchor_of(best));
    Candidate next = kNone;
    double total = 0;
    for (std::int64_t j = threadIdx.x; j < places; j += kThreads) {
      const Candidate one = candidates[j];
      if (one == kNone) continue;
      taken[j] = picture.belongs(one, best, box, limits);
      if (taken[j])
        total += picture.score_of(one);
      else if (one < next)
        next = one;
    }
    total = block_sum(total, partial[1]);
    for (std::int64_t c = 0; c < picture.numbers; ++c) {
      double sum = 0;
      for (std::int64_t j = threadIdx.x; j < places; j += kThreads) {
        const Candidate one = candidates[j];
        if (one == kNone || !taken[j]) continue;
        sum += picture.score_of(one) * picture.number_of(one, c);
        if (c + 1 == picture.numbers) candidates[j] = kNone;
      }
      sum = block_sum(sum, partial[c % 2]);
      if (threadIdx.x == 0) batch.detection(i, kept)[c] = static_cast<float>(sum / total);
    }
    if (threadIdx.x == 0) batch.write(i, kept, picture, best);
    best = next;
  }
  for (std::int64_t k = kept + threadIdx.x; k < limits.max_detections; k += kThreads) batch.clear(i, k);
  if (threadIdx.x == 0) batch.count[i] = static_cast<std::int32_t>(kept);
}

class Cuda : public Checked {
 public:
  struct Memory {
    std::span<Candidate> candidates;  ///< of all pictures, one after another
    std::span<bool> taken;            ///< of all candidates
  };

  static Memory workspace(Workspace& workspace, const Inputs& in, const Attributes&) {
    const std::int64_t places = in.size("n") * in.size("c") * in.size("a");
    return {workspace.take<Candidate>(places), workspace.take<bool>(places)};
  }

  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const Batch batch = Batch::of(in, attributes, out);
    if (batch.n == 0) return {};
    const Memory memory = workspace(context.workspace(), in, attributes);
    blend<<<blocks_for(batch.n, 1), kThreads, 0, stream_of(context)>>>(batch, memory.candidates.data(),
                                                                       memory.taken.data());
    return launched();
  }
};

}  // namespace
}  // namespace opgate::ops::weighted_nms

OPGATE_CUDA_KERNEL(WeightedNMS, opgate::ops::weighted_nms::Cuda)
