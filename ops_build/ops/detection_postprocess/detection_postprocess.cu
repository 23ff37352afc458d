#include "detection_postprocess.h"

#include "detection/greedy.cuh"
#include "formula.h"

namespace opgate::ops::detection_postprocess {
namespace {

struct Batch {
  const float* head;
  std::int64_t n, channels, classes, anchors;
  bool corners;

  __host__ __device__ Head row(std::int64_t i) const {
    return {head + i * channels * anchors, classes, anchors, corners};
  }
  __host__ __device__ const float* scores(std::int64_t i) const { return row(i).scores(); }
  __device__ Box box(std::int64_t i, std::int64_t anchor) const { return row(i).box(anchor); }
};

struct Detections {
  std::int64_t most;
  float *boxes, *scores;
  std::int32_t *labels, *count;
  const float* geometry;  ///< may be null

  __device__ void operator()(std::int64_t i, std::int64_t k, const Box& box, std::uint32_t, std::uint32_t label,
                             float score) const {
    write_box(box, geometry ? geometry + 6 * i : nullptr, boxes + 4 * (i * most + k));
    scores[i * most + k] = score;
    labels[i * most + k] = static_cast<std::int32_t>(label);
  }

  __device__ void finish(std::int64_t i, std::int64_t kept) const {
    for (std::int64_t k = 4 * kept + threadIdx.x; k < 4 * most; k += blockDim.x) boxes[4 * i * most + k] = 0;
    for (std::int64_t k = kept + threadIdx.x; k < most; k += blockDim.x) {
      scores[i * most + k] = 0;
      labels[i * most + k] = -1;
    }
    if (threadIdx.x == 0) count[i] = static_cast<std::int32_t>(kept);
  }
};

class Cuda : public Checked {
 public:
  Status prepare(const Node& node) {
    settings_ = Settings::of(node.attributes());
    return {};
  }

  struct Memory {
    std::span<detection::Candidate> candidates;  ///< of all rows of the batch, one after another
    std::span<std::uint32_t> counts;             ///< the number of candidates of each row
  };

  static Memory workspace(Workspace& workspace, const Inputs& in, const Attributes& attributes) {
    const std::int64_t n = in.size("n"), classes = Settings::of(attributes).classes_of(in.size("c"));
    return {workspace.take<detection::Candidate>(n * std::max<std::int64_t>(classes, 0) * in.size("a")),
            workspace.take<std::uint32_t>(n)};
  }

  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const std::int64_t channels = in.size("c");
    const Batch batch{in["head"].data<float>(),       in.size("n"), channels,
                      settings_.classes_of(channels), in.size("a"), settings_.corners};
    const Memory memory = workspace(context.workspace(), in, attributes);
    const Detections detections{
        settings_.limits.max_detections,   out["boxes"].data<float>(),
        out["scores"].data<float>(),       out["labels"].data<std::int32_t>(),
        out["count"].data<std::int32_t>(), in.has("geometry") ? in["geometry"].data<float>() : nullptr};
    return detection::launch_nms(batch, settings_.limits, memory.candidates, memory.counts, {}, detections,
                                 stream_of(context));
  }

 private:
  Settings settings_;
};

}  // namespace
}  // namespace opgate::ops::detection_postprocess

OPGATE_CUDA_KERNEL(DetectionPostprocess, opgate::ops::detection_postprocess::Cuda)
