#include "detection_postprocess.h"

#include "core/elementwise.cuh"
#include "formula.h"

namespace opgate::ops::detection_postprocess {
namespace {

constexpr int kThreads = 512;
constexpr int kWarp = 32;
constexpr unsigned kWholeWarp = 0xffffffffu;

/// Replaces a candidate that was kept or suppressed. No candidate has this value, which would be that of a NaN.
constexpr Candidate kGone = ~Candidate{0};

struct Batch {
  const float* head;
  std::int64_t n, classes, anchors;

  __host__ __device__ std::int64_t probabilities() const { return classes * anchors; }
  __device__ Head row(std::int64_t i) const { return {head + i * (4 + classes) * anchors, classes, anchors}; }
};

/// Finds the candidates of each row, in no particular order. A thread tests `lanes` probabilities.
template <int lanes>
__global__ void __launch_bounds__(kThreads)
    find_candidates(Batch batch, float threshold, Candidate* candidates, std::uint32_t* counts) {
  using Vector = elementwise::Lanes<float, lanes>;
  const std::int64_t total = batch.probabilities();
  const std::int64_t first = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * lanes;
  const unsigned lane = threadIdx.x % kWarp;
  for (std::int64_t i = blockIdx.y; i < batch.n; i += gridDim.y) {
    Vector scores{};
    if (first < total) scores = *reinterpret_cast<const Vector*>(batch.row(i).values + 4 * batch.anchors + first);
    unsigned passed[lanes];
    unsigned all = 0;
#pragma unroll
    for (int k = 0; k < lanes; ++k) {
      passed[k] = __ballot_sync(kWholeWarp, first < total && scores.values[k] > threshold);
      all += static_cast<unsigned>(__popc(passed[k]));
    }
    if (all == 0) continue;  // nearly always
    // One atomic addition for the whole warp.
    unsigned slot = lane == 0 ? atomicAdd(counts + i, all) : 0;
    slot = __shfl_sync(kWholeWarp, slot, 0);
#pragma unroll
    for (int k = 0; k < lanes; ++k) {
      if (passed[k] >> lane & 1u) {
        const std::int64_t label = (first + k) / batch.anchors, anchor = (first + k) % batch.anchors;
        const unsigned before = static_cast<unsigned>(__popc(passed[k] & ((1u << lane) - 1)));
        candidates[i * total + slot + before] =
            candidate(scores.values[k], static_cast<std::uint32_t>(anchor * batch.classes + label));
      }
      slot += static_cast<unsigned>(__popc(passed[k]));
    }
  }
}

/// The smallest value of the block. All threads get it. `partial` must not be that of the previous call.
__device__ Candidate block_least(Candidate value, Candidate* partial) {
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

struct Detections {
  float *boxes, *scores;
  std::int32_t *labels, *count;
  const float* geometry;  ///< may be null
};

/// A block computes a row. The best remaining candidate is the next detection. Then the threads go over all other
/// candidates: they remove those that the detection suppresses, and find the best of the rest. That is greedy NMS
/// without sorting.
__global__ void __launch_bounds__(kThreads)
    keep_best(Batch batch, Settings settings, Candidate* all_candidates, const std::uint32_t* counts, Detections out) {
  __shared__ Candidate partial[2][kThreads / kWarp];
  const std::int64_t i = blockIdx.x, most = settings.max_detections;
  const Head head = batch.row(i);
  Candidate* const candidates = all_candidates + i * batch.probabilities();
  const std::uint32_t count = counts[i];
  float* const boxes = out.boxes + 4 * i * most;
  float* const scores = out.scores + i * most;
  std::int32_t* const labels = out.labels + i * most;

  Candidate best = kGone;
  for (std::uint32_t j = threadIdx.x; j < count; j += kThreads) {
    if (candidates[j] < best) best = candidates[j];
  }
  std::int64_t kept = 0;
  for (; kept < most; ++kept) {
    best = block_least(best, partial[kept % 2]);
    if (best == kGone) break;
    const auto classes = static_cast<std::uint32_t>(batch.classes);
    const std::uint32_t label = index_of(best) % classes, anchor = index_of(best) / classes;
    const Box box = head.box(anchor, settings.corners);
    if (threadIdx.x == 0) {
      write_box(box, out.geometry ? out.geometry + 6 * i : nullptr, boxes + 4 * kept);
      scores[kept] = head.probability(anchor, label);
      labels[kept] = static_cast<std::int32_t>(label);
    }
    Candidate next = kGone;
    for (std::uint32_t j = threadIdx.x; j < count; j += kThreads) {
      const Candidate other = candidates[j];
      if (other == kGone) continue;
      const bool gone =
          other == best || (index_of(other) % classes == label &&
                            iou(box, head.box(index_of(other) / classes, settings.corners)) > settings.iou_threshold);
      if (gone) {
        candidates[j] = kGone;
      } else if (other < next) {
        next = other;
      }
    }
    best = next;
  }
  for (std::int64_t k = 4 * kept + threadIdx.x; k < 4 * most; k += kThreads) boxes[k] = 0;
  for (std::int64_t k = kept + threadIdx.x; k < most; k += kThreads) {
    scores[k] = 0;
    labels[k] = -1;
  }
  if (threadIdx.x == 0) out.count[i] = static_cast<std::int32_t>(kept);
}

class Cuda : public Checked {
 public:
  Status prepare(const Node& node) {
    settings_ = Settings::of(node.attributes());
    return {};
  }

  struct Memory {
    std::span<Candidate> candidates;  ///< of all rows of the batch, one after another
    std::span<std::uint32_t> counts;  ///< the number of candidates of each row
  };

  static Memory workspace(Workspace& workspace, const Inputs& in, const Attributes&) {
    const Batch batch = batch_of(in);
    return {workspace.take<Candidate>(batch.n * batch.probabilities()), workspace.take<std::uint32_t>(batch.n)};
  }

  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const Batch batch = batch_of(in);
    if (batch.n == 0) return {};
    const cudaStream_t stream = stream_of(context);
    const Memory memory = workspace(context.workspace(), in, attributes);
    auto* const candidates = memory.candidates.data();
    auto* const counts = memory.counts.data();
    OPGATE_RETURN_IF_ERROR(
        cuda::status(cudaMemsetAsync(counts, 0, memory.counts.size_bytes(), stream), "clearing counts"));
    if (batch.probabilities() > 0 && settings_.max_detections > 0) {
      OPGATE_RETURN_IF_ERROR(find(batch, settings_.score_threshold, candidates, counts, stream));
    }
    const Detections detections{out["boxes"].data<float>(), out["scores"].data<float>(),
                                out["labels"].data<std::int32_t>(), out["count"].data<std::int32_t>(),
                                in.has("geometry") ? in["geometry"].data<float>() : nullptr};
    keep_best<<<blocks_for(batch.n, 1), kThreads, 0, stream>>>(batch, settings_, candidates, counts, detections);
    return launched();
  }

 private:
  static Batch batch_of(const Inputs& in) {
    return {in["head"].data<float>(), in.size("n"), std::max<std::int64_t>(in.size("c") - 4, 0), in.size("a")};
  }

  static Status find(const Batch& batch, float threshold, Candidate* candidates, std::uint32_t* counts,
                     cudaStream_t stream) {
    constexpr std::int64_t kMostRows = 65535;
    const auto rows = static_cast<unsigned>(std::min(batch.n, kMostRows));
    // Four rows of boxes come first, so the probabilities are aligned to 16 bytes if the rows are.
    if (elementwise::aligned(batch.head) && batch.probabilities() % 4 == 0) {
      const dim3 grid(blocks_for(batch.probabilities(), 4 * kThreads), rows);
      find_candidates<4><<<grid, kThreads, 0, stream>>>(batch, threshold, candidates, counts);
    } else {
      const dim3 grid(blocks_for(batch.probabilities(), kThreads), rows);
      find_candidates<1><<<grid, kThreads, 0, stream>>>(batch, threshold, candidates, counts);
    }
    return launched();
  }

  Settings settings_;
};

}  // namespace
}  // namespace opgate::ops::detection_postprocess

OPGATE_CUDA_KERNEL(DetectionPostprocess, opgate::ops::detection_postprocess::Cuda)
