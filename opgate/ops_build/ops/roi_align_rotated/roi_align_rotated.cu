#include "roi_align_rotated.h"

#include "kernel_toolkit/elementwise.cuh"

namespace opgate::ops::roi_align_rotated {
namespace {

constexpr int kThreads = 256;

/// From so many samples of a bin on, it is worth finding which of them lie in the picture.
constexpr std::int64_t kMany = 256;

__device__ std::int64_t thread_index() { return static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; }

__global__ void __launch_bounds__(kThreads)
    find_regions(std::int64_t count, std::int64_t pictures, Settings settings, const float* rois, Region* regions) {
  const std::int64_t i = thread_index();
  if (i < count) regions[i] = Region::of(rois + 6 * i, pictures, settings);
}

/// A thread computes a bin of a channel.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    average(std::int64_t count, std::int64_t channels, int height, int width, Settings settings,
            const Region* __restrict__ regions, const T* __restrict__ input, T* __restrict__ output) {
  const std::int64_t element = thread_index();
  if (element >= count) return;
  const std::int64_t bins = settings.bins();
  const std::int64_t channel = element / bins % channels;
  const int bin = static_cast<int>(element % bins), row = bin / settings.width, column = bin % settings.width;
  const Region region = regions[element / bins / channels];
  if (region.picture < 0) {
    output[element] = static_cast<T>(0.0f);
    return;
  }
  const T* const plane = input + (region.picture * channels + channel) * height * width;
  const auto pixel = [&](int y, int x) { return static_cast<float>(plane[std::int64_t{y} * width + x]); };
  float sum = 0;
  const bool many = region.samples() > kMany;
  for (int down = 0; down < region.samples_down; ++down) {
    SampleRange range{0, region.samples_across};
    if (many) range = SampleRange::inside(region, settings, height, width, row, column, down);
    float of_row = 0;  // so that the error doesn't grow with the number of samples
    for (int across = range.begin; across < range.end; ++across) {
      const Sample s = sample_of(region, settings, height, width, row, column, down, across);
      if (!s.inside()) continue;
      of_row += s.upper * s.left * pixel(s.rows[0], s.columns[0]) + s.upper * s.right * pixel(s.rows[0], s.columns[1]) +
                s.lower * s.left * pixel(s.rows[1], s.columns[0]) + s.lower * s.right * pixel(s.rows[1], s.columns[1]);
    }
    sum += of_row;
  }
  output[element] = static_cast<T>(region.samples() ? sum / static_cast<float>(region.samples()) : 0.0f);
}

struct Cuda : Checked {
  struct Memory {
    std::span<Region> regions;
  };

  template <typename T>
  static Memory workspace(Workspace& workspace, const Inputs& in, const Attributes&) {
    return {workspace.take<Region>(in.size("r"))};
  }

  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const std::int64_t count = out["output"].size(), r = in.size("r"), h = in.size("h"), w = in.size("w");
    if (count == 0) return {};
    const Settings settings =
        Settings::of(attributes, attributes.integer("output_height"), attributes.integer("output_width"));
    const Memory memory = workspace<T>(context.workspace(), in, attributes);
    const std::int64_t pictures = h > 0 && w > 0 ? in.size("n") : 0;  // without pixels all is 0
    find_regions<<<blocks_for(r, kThreads), kThreads, 0, stream_of(context)>>>(
        r, pictures, settings, in["rois"].data<float>(), memory.regions.data());
    OPGATE_RETURN_IF_ERROR(launched());
    average<<<blocks_for(count, kThreads), kThreads, 0, stream_of(context)>>>(
        count, in.size("c"), static_cast<int>(h), static_cast<int>(w), settings,
        static_cast<const Region*>(memory.regions.data()), in["input"].data<T>(), out["output"].data<T>());
    return launched();
  }
};

}  // namespace
}  // namespace opgate::ops::roi_align_rotated

OPGATE_CUDA_KERNEL(RoiAlignRotated, opgate::ops::roi_align_rotated::Cuda)
