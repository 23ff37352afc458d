#include "detection_postprocess.h"

#include "detection/greedy.cuh"
#include "formula.h"

namespace opgate::ops::detection_postprocess {
namespace {

template <typename T, bool anchors_first>
struct Batch {
  const T* head;
  std::int64_t n, channels, classes, anchors, first_class;
  bool corners;

  __host__ __device__ Head<T> row(std::int64_t i) const {
    return {head + i * channels * anchors, classes, anchors, channels, first_class, anchors_first, corners};
  }
  __host__ __device__ const T* scores(std::int64_t i) const {
    return row(i).values + (anchors_first ? 0 : first_class * anchors);
  }
  __device__ Box box(std::int64_t i, std::int64_t anchor) const { return row(i).box(anchor); }

  // With anchors_first the scores lie between boxes and channels that the op ignores.

  __host__ __device__ std::int64_t scanned() const
    requires anchors_first
  {
    return anchors * channels;
  }

  __device__ bool find(std::int64_t at, std::int64_t& anchor, std::int64_t& label) const
    requires anchors_first
  {
    anchor = at / channels;
    label = at % channels - first_class;
    return label >= 0 && label < classes;
  }

  __device__ float score(std::int64_t i, std::int64_t anchor, std::int64_t label) const {
    return static_cast<float>(
        scores(i)[anchors_first ? anchor * channels + first_class + label : label * anchors + anchor]);
  }
};

template <typename T, bool anchors_first>
struct BatchWithObjectness : Batch<T, anchors_first> {
  __device__ float weight(std::int64_t i, std::int64_t anchor) const {
    return static_cast<float>(
        this->row(i).values[anchors_first ? anchor * this->channels + 4 : 4 * this->anchors + anchor]);
  }

  __device__ float score(std::int64_t i, std::int64_t anchor, std::int64_t label) const {
    return Batch<T, anchors_first>::score(i, anchor, label) * weight(i, anchor);
  }
};

struct Detections {
  std::int64_t most;
  float *boxes, *scores;
  std::int32_t *labels, *count;
  const float* geometry;  ///< may be null
  std::int32_t* indices;  ///< may be null

  __device__ void operator()(std::int64_t i, std::int64_t k, const Box& box, std::uint32_t anchor, std::uint32_t label,
                             float score) const {
    write_box(box, geometry ? geometry + 6 * i : nullptr, boxes + 4 * (i * most + k));
    scores[i * most + k] = score;
    labels[i * most + k] = static_cast<std::int32_t>(label);
    if (indices) indices[i * most + k] = static_cast<std::int32_t>(anchor);
  }

  __device__ void finish(std::int64_t i, std::int64_t kept) const {
    for (std::int64_t k = 4 * kept + threadIdx.x; k < 4 * most; k += blockDim.x) boxes[4 * i * most + k] = 0;
    for (std::int64_t k = kept + threadIdx.x; k < most; k += blockDim.x) {
      scores[i * most + k] = 0;
      labels[i * most + k] = -1;
      if (indices) indices[i * most + k] = -1;
    }
    if (threadIdx.x == 0) count[i] = static_cast<std::int32_t>(kept);
  }
};

class Cuda : public Checked {
 public:
  struct Memory {
    std::span<detection::Candidate> candidates;  ///< of all rows of the batch, one after another
    std::span<std::uint32_t> counts;             ///< the number of candidates of each row
  };

  template <typename T>
  static Memory workspace(Workspace& workspace, const Inputs& in, const Attributes& attributes) {
    const Settings settings = Settings::of(attributes);
    const auto [channels, anchors] = settings.head_size(in);
    const std::int64_t n = in.size("n"), classes = settings.classes_of(channels);
    return {workspace.take<detection::Candidate>(n * std::max<std::int64_t>(classes, 0) * anchors),
            workspace.take<std::uint32_t>(n)};
  }

  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const Settings settings = Settings::of(attributes);
    return settings.anchors_first ? run<T, true>(context, in, attributes, settings, out)
                                  : run<T, false>(context, in, attributes, settings, out);
  }

 private:
  template <typename T, bool anchors_first>
  static Status run(Context& context, const Inputs& in, const Attributes& attributes, const Settings& settings,
                    Outputs& out) {
    const auto [channels, anchors] = settings.head_size(in);
    const Batch<T, anchors_first> batch{
        in["head"].data<T>(), in.size("n"),    channels, settings.classes_of(channels), anchors,
        settings.first_class, settings.corners};
    const Memory memory = workspace<T>(context.workspace(), in, attributes);
    const Detections detections{settings.limits.max_detections,
                                out["boxes"].data<float>(),
                                out["scores"].data<float>(),
                                out["labels"].data<std::int32_t>(),
                                out["count"].data<std::int32_t>(),
                                in.has("geometry") ? in["geometry"].data<float>() : nullptr,
                                data_or_null<std::int32_t>(out, "indices")};
    const auto launch = [&](const auto& pictures) {
      return detection::launch_nms(pictures, settings.limits_of(in), memory.candidates, memory.counts, {}, detections,
                                   stream_of(context));
    };
    return settings.first_class == 4 ? launch(batch) : launch(BatchWithObjectness<T, anchors_first>{batch});
  }
};

}  // namespace
}  // namespace opgate::ops::detection_postprocess

OPGATE_CUDA_KERNEL(DetectionPostprocess, opgate::ops::detection_postprocess::Cuda)
