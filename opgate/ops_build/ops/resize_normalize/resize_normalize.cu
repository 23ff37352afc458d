#include "resize_normalize.h"

#include "images/taps.h"
#include "kernel_toolkit/elementwise.cuh"

namespace opgate::ops::resize_normalize {
namespace {

using images::Tap;

constexpr int kThreads = 256;
constexpr int kAcross = 32;  ///< threads of a block in a row
constexpr int kDown = kThreads / kAcross;
constexpr int kPixels = 4;  ///< neighbouring pixels that a thread writes

struct Resize {
  const std::uint8_t* pixels;
  std::int64_t n;
  Size from, to;
  Placement at;
  const Tap *across, *down;
  images::Normalization normalization;
  float* planes;
};

/// The tap of pixel i in a row or a column that is resized to `resized` pixels.
__host__ __device__ Tap tap_of(bool linear, int i, int from, int resized) {
  if (linear) return images::bilinear_tap(i, static_cast<double>(from) / resized, from);
  return {images::nearest_pixel(i, from, resized), 0};
}

/// The taps of both axes. All pictures share them.
__global__ void __launch_bounds__(kThreads)
    find_taps(bool linear, Size from, Size to, Placement at, Tap* across, Tap* down) {
  const int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (i < to.width) across[i] = tap_of(linear, at.left + i, from.width, at.resized.width);
  if (i < to.height) down[i] = tap_of(linear, at.top + i, from.height, at.resized.height);
}

/// A thread computes a pixel of the result: the weighted sum of the pixels under two triangles.
template <int channels>
__global__ void __launch_bounds__(kThreads) resize_antialiased(Resize resize) {
  const int x = static_cast<int>(blockIdx.x) * kAcross + static_cast<int>(threadIdx.x);
  if (x >= resize.to.width) return;
  const Size from = resize.from, resized = resize.at.resized;
  const images::FilterTaps across =
      images::triangle_taps(resize.at.left + x, static_cast<double>(from.width) / resized.width, from.width);
  const std::int64_t rows = resize.n * resize.to.height, plane = std::int64_t{resize.to.height} * resize.to.width;
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.y) * kDown + threadIdx.y; row < rows;
       row += static_cast<std::int64_t>(gridDim.y) * kDown) {
    const std::int64_t picture = row / resize.to.height;
    const int y = static_cast<int>(row % resize.to.height);
    const images::FilterTaps down =
        images::triangle_taps(resize.at.top + y, static_cast<double>(from.height) / resized.height, from.height);
    float total[channels] = {};
    for (int k = 0; k < down.count; ++k) {
      const std::uint8_t* pixel =
          resize.pixels + channels * ((picture * from.height + down.first + k) * from.width + across.first);
      float sum[channels] = {};
      for (int j = 0; j < across.count; ++j, pixel += channels) {
        const float weight = across.weight(j);
#pragma unroll
        for (int c = 0; c < channels; ++c) sum[c] += weight * static_cast<float>(pixel[c]);
      }
#pragma unroll
      for (int c = 0; c < channels; ++c) total[c] += down.weight(k) * sum[c];
    }
    float* const out = resize.planes + channels * picture * plane + std::int64_t{y} * resize.to.width + x;
#pragma unroll
    for (int c = 0; c < channels; ++c)
      out[c * plane] = total[c] * resize.normalization.scale[c] + resize.normalization.bias[c];
  }
}

__device__ float between(float first, float second, float weight) { return first + (second - first) * weight; }

/// The two rows of a picture between which a row of the result is interpolated.
template <int channels, bool linear>
struct SourceRows {
  const std::uint8_t *upper, *lower;
  float weight;  ///< of the lower row
  int width;

  __device__ SourceRows(const Resize& resize, std::int64_t picture, const Tap& tap)
      : weight(tap.weight), width(resize.from.width) {
    const std::int64_t bytes = std::int64_t{channels} * width;
    const int second = tap.first + 1 < resize.from.height ? tap.first + 1 : tap.first;
    const std::uint8_t* const first_row = resize.pixels + picture * resize.from.height * bytes;
    upper = first_row + tap.first * bytes;
    lower = first_row + second * bytes;
  }

  /// The value of channel c.
  __device__ float value(const Tap& tap, int c) const {
    const int left = channels * tap.first + c;
    if constexpr (linear) {
      const int right = tap.first + 1 < width ? left + channels : left;
      return between(between(upper[left], lower[left], weight), between(upper[right], lower[right], weight),
                     tap.weight);
    } else {
      return upper[left];
    }
  }
};

/// `whole` says that the width is a multiple of kPixels and that all rows are aligned to 16 bytes.
template <int channels, bool linear, bool whole>
__global__ void __launch_bounds__(kThreads) resize_rows(Resize resize) {
  const int x = kPixels * (static_cast<int>(blockIdx.x) * kAcross + static_cast<int>(threadIdx.x));
  if (x >= resize.to.width) return;
  const int count = whole || resize.to.width - x > kPixels ? kPixels : resize.to.width - x;
  const std::int64_t rows = resize.n * resize.to.height, plane = std::int64_t{resize.to.height} * resize.to.width;
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.y) * kDown + threadIdx.y; row < rows;
       row += static_cast<std::int64_t>(gridDim.y) * kDown) {
    const std::int64_t picture = row / resize.to.height, y = row % resize.to.height;
    const SourceRows<channels, linear> source(resize, picture, resize.down[y]);
    elementwise::Lanes<float, kPixels> values[channels];
#pragma unroll
    for (int k = 0; k < kPixels; ++k) {
      if (k >= count) break;
      const Tap tap = resize.across[x + k];
#pragma unroll
      for (int c = 0; c < channels; ++c) {
        values[c].values[k] = source.value(tap, c) * resize.normalization.scale[c] + resize.normalization.bias[c];
      }
    }
#pragma unroll
    for (int c = 0; c < channels; ++c) {
      float* const out = resize.planes + (channels * picture + c) * plane + y * resize.to.width + x;
      if constexpr (whole) {
        *reinterpret_cast<elementwise::Lanes<float, kPixels>*>(out) = values[c];
      } else {
#pragma unroll
        for (int k = 0; k < kPixels; ++k) {
          if (k < count) out[k] = values[c].values[k];
        }
      }
    }
  }
}

constexpr unsigned kMostRows = 65535;

template <int channels>
Status launch_antialiased(const Resize& resize, cudaStream_t stream) {
  const dim3 grid(blocks_for(resize.to.width, kAcross),
                  std::min(blocks_for(resize.n * resize.to.height, kDown), kMostRows));
  resize_antialiased<channels><<<grid, dim3(kAcross, kDown), 0, stream>>>(resize);
  return launched();
}

template <int channels, bool linear>
Status launch(const Resize& resize, cudaStream_t stream) {
  const dim3 grid(blocks_for(resize.to.width, kPixels * kAcross),
                  std::min(blocks_for(resize.n * resize.to.height, kDown), kMostRows));
  const dim3 block(kAcross, kDown);
  if (resize.to.width % kPixels == 0 && elementwise::aligned(resize.planes)) {
    resize_rows<channels, linear, true><<<grid, block, 0, stream>>>(resize);
  } else {
    resize_rows<channels, linear, false><<<grid, block, 0, stream>>>(resize);
  }
  return launched();
}

class Cuda : public Checked {
 public:
  Status prepare(const Node& node) {
    settings_ = Settings::of(node.attributes());
    from_ = known_size(node);
    if (!from_ || settings_.antialias) return {};
    const Placement at = Placement::of(*from_, settings_);
    const auto taps = [&](int from, int resized, int offset, int count) {
      std::vector<Tap> taps(static_cast<std::size_t>(count));
      for (int i = 0; i < count; ++i)
        taps[static_cast<std::size_t>(i)] = tap_of(settings_.linear, offset + i, from, resized);
      return taps;
    };
    OPGATE_RETURN_IF_ERROR(across_.assign(taps(from_->width, at.resized.width, at.left, settings_.to.width)));
    return down_.assign(taps(from_->height, at.resized.height, at.top, settings_.to.height));
  }

  struct Memory {
    std::span<Tap> across, down;
  };

  static Memory workspace(Workspace& workspace, const Inputs&, const Attributes& attributes) {
    return {workspace.take<Tap>(attributes.integer("width")), workspace.take<Tap>(attributes.integer("height"))};
  }

  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const Tensor& image = in["image"];
    const MutableTensor& tensor = out["tensor"];
    if (tensor.size() == 0) return {};
    const Size from = size_of_call(in);
    Resize resize{image.data<std::uint8_t>(),
                  image.dim(0),
                  from,
                  settings_.to,
                  Placement::of(from, settings_),
                  across_.data(),
                  down_.data(),
                  settings_.normalization,
                  tensor.data<float>()};
    const cudaStream_t stream = stream_of(context);
    if (!from_ && !settings_.antialias) {
      const Memory memory = workspace(context.workspace(), in, attributes);
      const unsigned blocks = blocks_for(std::max(resize.to.width, resize.to.height), kThreads);
      find_taps<<<blocks, kThreads, 0, stream>>>(settings_.linear, resize.from, resize.to, resize.at,
                                                 memory.across.data(), memory.down.data());
      OPGATE_RETURN_IF_ERROR(launched());
      resize.across = memory.across.data();
      resize.down = memory.down.data();
    }
    switch (in.size("c")) {
      case 1: return launch_kind<1>(resize, stream);
      case 3: return launch_kind<3>(resize, stream);
      default: return launch_kind<4>(resize, stream);
    }
  }

 private:
  template <int channels>
  Status launch_kind(const Resize& resize, cudaStream_t stream) const {
    if (settings_.antialias) return launch_antialiased<channels>(resize, stream);
    return settings_.linear ? launch<channels, true>(resize, stream) : launch<channels, false>(resize, stream);
  }

  Settings settings_;
  std::optional<Size> from_;  ///< the static size of the pictures, for which there are taps below
  cuda::DeviceArray<Tap> across_, down_;
};

}  // namespace
}  // namespace opgate::ops::resize_normalize

OPGATE_CUDA_KERNEL(ResizeNormalize, opgate::ops::resize_normalize::Cuda)
