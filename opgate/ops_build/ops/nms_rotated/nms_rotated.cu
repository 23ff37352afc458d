#include "nms_rotated.h"

#include "detection/greedy.cuh"

namespace opgate::ops::nms_rotated {
namespace {

struct Batch {
  const float *boxes, *values;
  const std::int32_t* labels;  ///< may be null
  std::int64_t n, classes, anchors;
  bool clockwise;

  __host__ __device__ const float* scores(std::int64_t i) const { return values + i * classes * anchors; }
  __device__ Picture picture(std::int64_t i) const {
    return {boxes + i * anchors * 5, scores(i), labels ? labels + i * anchors : nullptr, classes, anchors, clockwise};
  }
  __device__ RotatedBox box(std::int64_t i, std::int64_t anchor) const { return picture(i).box(anchor); }
  __device__ bool same_group(std::int64_t i, std::int64_t anchor, std::int64_t other) const {
    return !labels || labels[i * anchors + anchor] == labels[i * anchors + other];
  }
};

struct Detections {
  Batch batch;
  detection::KeptRows<5> rows;

  __device__ void operator()(std::int64_t i, std::int64_t k, const RotatedBox&, std::uint32_t anchor,
                             std::uint32_t label, float score) const {
    rows.write(i, k, anchor, batch.picture(i).label_of(anchor, label), score);
  }
  __device__ void finish(std::int64_t i, std::int64_t kept) const { detection::finish(rows, i, kept); }
};

class Cuda : public Checked {
 public:
  struct Memory {
    std::span<detection::Candidate> candidates;  ///< of all pictures, one after another
    std::span<std::uint32_t> counts;             ///< the number of candidates of each picture
  };

  static Memory workspace(Workspace& workspace, const Inputs& in, const Attributes&) {
    const std::int64_t n = in.size("n");
    return {workspace.take<detection::Candidate>(n * in.size("c") * in.size("a")), workspace.take<std::uint32_t>(n)};
  }

  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    OPGATE_RETURN_IF_ERROR(check_labels(in));
    const Limits limits = limits_of(attributes);
    const Batch batch{in["boxes"].data<float>(),
                      in["scores"].data<float>(),
                      data_or_null<std::int32_t>(in, "box_labels"),
                      in.size("n"),
                      in.size("c"),
                      in.size("a"),
                      attributes.boolean("clockwise")};
    const Memory memory = workspace(context.workspace(), in, attributes);
    const Detections detections{batch, detection::KeptRows<5>::of(in, out, limits.max_detections)};
    return detection::launch_nms(batch, limits, memory.candidates, memory.counts, {}, detections, stream_of(context));
  }
};

}  // namespace
}  // namespace opgate::ops::nms_rotated

OPGATE_CUDA_KERNEL(NMSRotated, opgate::ops::nms_rotated::Cuda)
