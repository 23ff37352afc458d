#include "segment_reduce.h"

#include "reductions/rows.cuh"

namespace opgate::ops::segment_reduce {
namespace {

/// The rows of each segment. A kernel can't report wrong ends: they give some range within the rows.
struct Segments {
  struct Range {
    std::int64_t begin, end;
  };
  std::int64_t n;
  const std::int32_t* ends;

  __device__ std::int64_t within(std::int64_t end) const { return end < 0 ? 0 : end > n ? n : end; }
  __device__ Range range(std::int64_t segment) const {
    const std::int64_t begin = segment ? within(ends[segment - 1]) : 0, end = within(ends[segment]);
    return {begin, end < begin ? begin : end};
  }
  __device__ std::int64_t row(std::int64_t i) const { return i; }
};

struct Cuda : Checked {
  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const Segments segments{in.size("n"), in["ends"].data<std::int32_t>()};
    return with_reduction(attributes, [&]<typename Op>(bool mean) {
      return launch<Op>(context, in.size("s"), columns_of(in["x"]), in["x"].data<T>(), segments, mean,
                        out["y"].data<T>());
    });
  }
};

}  // namespace
}  // namespace opgate::ops::segment_reduce

OPGATE_CUDA_KERNEL(SegmentReduce, opgate::ops::segment_reduce::Cuda)
