#include "roi_align_rotated_backward.h"

#include "kernel_toolkit/elementwise.cuh"

namespace opgate::ops::roi_align_rotated_backward {
namespace {

constexpr int kThreads = 256;
/// So many channels a thread computes together: it finds the samples around its pixel once for all.
constexpr int kChannels = 8;

__device__ std::int64_t thread_index() { return static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; }

__global__ void __launch_bounds__(kThreads)
    find_regions(std::int64_t count, std::int64_t pictures, Settings settings, const float* rois, Region* regions) {
  const std::int64_t i = thread_index();
  if (i < count) regions[i] = Region::of(rois + 6 * i, pictures, settings);
}

/// The positions of an axis whose samples give something to a pixel: the last pixels count for the edge, too.
struct Reach {
  double middle, half;

  __device__ static Reach of(int pixel, int size) {
    const double low = pixel - 1, high = pixel == size - 1 ? size : pixel + 1;
    return {(low + high) / 2, (high - low) / 2};
  }
};

/// The samples along an axis of a region, over all its bins, that may lie within `half` of `middle` along that axis.
struct Samples {
  std::int64_t begin, end;

  __device__ static Samples near(double middle, double half, float side, int bins, int samples) {
    const double all = static_cast<double>(bins) * samples, step = side / all;
    double begin = 0, end = all;
    // More than what sample_of rounds.
    const double room = 1e-3 + 0x1p-18 * (fabs(middle) + side);
    roi_align_rotated::narrow_to((step - side) / 2, step, middle - half - room, middle + half + room, begin, end);
    return {static_cast<std::int64_t>(begin), static_cast<std::int64_t>(end)};
  }
};

/// The weight that a sample gives to a pixel.
__device__ inline float weight_of(const Sample& sample, int y, int x) {
  float rows = 0, columns = 0;
  for (int i = 0; i < 2; ++i) {
    if (sample.rows[i] == y) rows += i ? sample.lower : sample.upper;
    if (sample.columns[i] == x) columns += i ? sample.right : sample.left;
  }
  return sample.inside() ? rows * columns : 0;
}

/// A thread computes a pixel of some channels: it looks for the samples around it in all regions of its picture.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    gather(std::int64_t count, std::int64_t channels, std::int64_t regions_count, int height, int width,
           Settings settings, const Region* __restrict__ regions, const T* __restrict__ grad_output,
           T* __restrict__ grad_input) {
  const std::int64_t element = thread_index();
  if (element >= count) return;
  const std::int64_t pixels = std::int64_t{height} * width, blocks = (channels + kChannels - 1) / kChannels;
  const int pixel = static_cast<int>(element % pixels), y = pixel / width, x = pixel % width;
  const std::int64_t picture = element / pixels / blocks, first = element / pixels % blocks * kChannels;
  const Reach across_reach = Reach::of(x, width), down_reach = Reach::of(y, height);
  float sums[kChannels] = {};
  for (std::int64_t r = 0; r < regions_count; ++r) {
    const Region region = regions[r];
    if (region.picture != picture || region.samples() == 0) continue;
    const double cosine = region.cosine, sine = region.sine;
    const double dx = across_reach.middle - region.x, dy = down_reach.middle - region.y;
    const double half_across = across_reach.half * fabs(cosine) + down_reach.half * fabs(sine);
    const double half_down = across_reach.half * fabs(sine) + down_reach.half * fabs(cosine);
    const Samples across =
        Samples::near(dx * cosine + dy * sine, half_across, region.width, settings.width, region.samples_across);
    const Samples down =
        Samples::near(dy * cosine - dx * sine, half_down, region.height, settings.height, region.samples_down);
    float parts[kChannels] = {};  // so that the error doesn't grow with the number of samples
    for (std::int64_t v = down.begin; v < down.end; ++v) {
      for (std::int64_t u = across.begin; u < across.end; ++u) {
        const int row = static_cast<int>(v / region.samples_down), column = static_cast<int>(u / region.samples_across);
        const Sample sample =
            sample_of(region, settings, height, width, row, column, static_cast<int>(v % region.samples_down),
                      static_cast<int>(u % region.samples_across));
        const float weight = weight_of(sample, y, x);
        if (weight == 0) continue;
        for (int k = 0; k < kChannels && first + k < channels; ++k) {
          const std::int64_t bin = std::int64_t{row} * settings.width + column;
          parts[k] += weight * static_cast<float>(grad_output[(r * channels + first + k) * settings.bins() + bin]);
        }
      }
    }
    for (int k = 0; k < kChannels; ++k) sums[k] += parts[k] / static_cast<float>(region.samples());
  }
  for (int k = 0; k < kChannels && first + k < channels; ++k)
    grad_input[(picture * channels + first + k) * pixels + pixel] = static_cast<T>(sums[k]);
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
    if (out["grad_input"].size() == 0) return {};
    const Settings settings = Settings::of(attributes, in.size("y"), in.size("x"));
    const std::int64_t n = in.size("n"), c = in.size("c"), r = in.size("r"), h = in.size("h"), w = in.size("w");
    const Memory memory = workspace<T>(context.workspace(), in, attributes);
    if (r > 0) {
      find_regions<<<blocks_for(r, kThreads), kThreads, 0, stream_of(context)>>>(
          r, n, settings, in["rois"].data<float>(), memory.regions.data());
      OPGATE_RETURN_IF_ERROR(launched());
    }
    const std::int64_t count = n * h * w * ((c + kChannels - 1) / kChannels);
    gather<<<blocks_for(count, kThreads), kThreads, 0, stream_of(context)>>>(
        count, c, r, static_cast<int>(h), static_cast<int>(w), settings,
        static_cast<const Region*>(memory.regions.data()), in["grad_output"].data<T>(), out["grad_input"].data<T>());
    return launched();
  }
};

}  // namespace
}  // namespace opgate::ops::roi_align_rotated_backward

OPGATE_CUDA_KERNEL(RoiAlignRotatedBackward, opgate::ops::roi_align_rotated_backward::Cuda)
