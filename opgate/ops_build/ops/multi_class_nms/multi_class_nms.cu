#include "multi_class_nms.h"

#include "detection/greedy.cuh"

namespace opgate::ops::multi_class_nms {
namespace {

struct Batch {
  const float *boxes, *values;
  std::int64_t n, classes, anchors;

  __host__ __device__ const float* scores(std::int64_t i) const { return values + i * classes * anchors; }
  __device__ Box box(std::int64_t i, std::int64_t anchor) const {
    return Picture{boxes + i * anchors * 4, scores(i), classes, anchors}.box(anchor);
  }
};

struct Detections {
  detection::KeptRows<4> rows;

  __device__ void operator()(std::int64_t i, std::int64_t k, const Box&, std::uint32_t anchor, std::uint32_t label,
                             float score) const {
    rows.write(i, k, anchor, static_cast<std::int32_t>(label), score);
  }
  __device__ void finish(std::int64_t i, std::int64_t kept) const { detection::finish(rows, i, kept); }
};

class Cuda : public Checked {
 public:
  struct Memory {
    std::span<detection::Candidate> candidates;  ///< of all pictures, one after another
    std::span<std::uint32_t> counts;             ///< the number of candidates of each picture
    std::span<std::uint32_t> numbers;            ///< the detections of each class of each picture, if they are limited
  };

  static Memory workspace(Workspace& workspace, const Inputs& in, const Attributes& attributes) {
    const std::int64_t n = in.size("n"), classes = in.size("c");
    const bool limited = attributes.integer("max_per_class") < attributes.integer("max_detections");
    return {workspace.take<detection::Candidate>(n * classes * in.size("a")), workspace.take<std::uint32_t>(n),
            workspace.take<std::uint32_t>(limited ? n * classes : 0)};
  }

  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const Limits limits = limits_of(attributes);
    const Batch batch{in["boxes"].data<float>(), in["scores"].data<float>(), in.size("n"), in.size("c"), in.size("a")};
    const Memory memory = workspace(context.workspace(), in, attributes);
    const Detections detections{detection::KeptRows<4>::of(in, out, limits.max_detections)};
    return detection::launch_nms(batch, limits, memory.candidates, memory.counts, memory.numbers, detections,
                                 stream_of(context));
  }
};

}  // namespace
}  // namespace opgate::ops::multi_class_nms

OPGATE_CUDA_KERNEL(MultiClassNMS, opgate::ops::multi_class_nms::Cuda)
