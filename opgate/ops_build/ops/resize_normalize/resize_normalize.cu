#include "resize_normalize.h"

#include "images/taps.h"
#include "kernel_toolkit/elementwise.cuh"

namespace opgate::ops::resize_normalize {
namespace {

using images::FilterTaps;
using images::Tap;

constexpr int kThreads = 256;
constexpr int kAcross = 32;  ///< threads of a block in a row
constexpr int kDown = kThreads / kAcross;
constexpr int kPixels = 4;  ///< neighbouring pixels that a thread writes

/// `Taps` says which pixels of the source a pixel of a row or of a column needs.
template <typename Taps>
struct Resize {
  const std::uint8_t* pixels;
  std::int64_t n;
  Size from, to;
  Placement at;
  const Taps *across, *down;
  images::Normalization normalization;
  float* planes;
};

/// The tap of pixel i in a row or a column that is resized to `resized` pixels.
__host__ __device__ void find(Tap& tap, bool linear, int i, int from, int resized) {
  tap = linear ? images::bilinear_tap(i, static_cast<double>(from) / resized, from)
               : Tap{images::nearest_pixel(i, from, resized), 0};
}

/// The same with antialiasing.
__host__ __device__ void find(FilterTaps& taps, bool, int i, int from, int resized) {
  taps = images::triangle_taps(i, static_cast<double>(from) / resized, from);
}

/// The taps of both axes. All pictures share them.
template <typename Taps>
__global__ void __launch_bounds__(kThreads)
    find_taps(bool linear, Size from, Size to, Placement at, Taps* across, Taps* down) {
  const int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (i < to.width) find(across[i], linear, at.left + i, from.width, at.resized.width);
  if (i < to.height) find(down[i], linear, at.top + i, from.height, at.resized.height);
}

constexpr int kColumns = kThreads / 4;  ///< the pixels of a row that a block computes: a thread has one of a plane
constexpr int kSums = 2048;             ///< the sums of a block at a time

/// A block computes pixels of a row: first the weighted sums of the rows of the source that it needs, then the weighted
/// sums of these. `words` says that the rows of the source are aligned to as many bytes as a thread loads.
template <int channels, bool words>
__global__ void __launch_bounds__(kThreads) resize_antialiased(Resize<FilterTaps> resize) {
  constexpr int kBytes = words ? 4 : 1;
  using Bytes = elementwise::Lanes<std::uint8_t, kBytes>;
  using Sums = elementwise::Lanes<float, kBytes>;
  alignas(16) __shared__ float sums[kSums];
  const int thread = static_cast<int>(threadIdx.x), channel = thread / kColumns;
  const int left = static_cast<int>(blockIdx.x) * kColumns, x = left + thread % kColumns;
  const int right = left + kColumns < resize.to.width ? left + kColumns : resize.to.width;
  const bool writes = channel < channels && x < right;
  const FilterTaps first = resize.across[left], last = resize.across[right - 1];
  const FilterTaps across = resize.across[writes ? x : left];
  const int begin = channels * first.first / kBytes * kBytes, end = channels * (last.first + last.count);
  float scale = 0, bias = 0;
#pragma unroll
  for (int c = 0; c < channels; ++c) {  // a register has no index
    if (c != channel) continue;
    scale = resize.normalization.scale[c];
    bias = resize.normalization.bias[c];
  }
  const std::int64_t rows = resize.n * resize.to.height, plane = std::int64_t{resize.to.height} * resize.to.width;
  const std::int64_t row_bytes = std::int64_t{channels} * resize.from.width;
  for (std::int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    const std::int64_t picture = row / resize.to.height, y = row % resize.to.height;
    const FilterTaps down = resize.down[y];
    const std::uint8_t* const source = resize.pixels + (picture * resize.from.height + down.first) * row_bytes;
    float total = 0;
    int tap = 0;
    for (int base = begin; base < end; base += kSums) {
      const int count = end - base < kSums ? end - base : kSums;
      for (int i = kBytes * thread; i < count; i += kBytes * kThreads) {
        Sums sum{};
#pragma unroll 4
        for (int k = 0; k < down.count; ++k) {
          const Bytes bytes = elementwise::load<kBytes>(source + k * row_bytes + base + i);
          const float weight = down.weight(k);
#pragma unroll
          for (int j = 0; j < kBytes; ++j) sum.values[j] += weight * static_cast<float>(bytes.values[j]);
        }
        elementwise::store(sums + i, 0, sum);
      }
      __syncthreads();
      if (writes) {
        for (int at = channels * (across.first + tap) + channel - base; tap < across.count && at < count;
             ++tap, at += channels) {
          total += across.weight(tap) * sums[at];
        }
      }
      __syncthreads();  // the next sums may be written
    }
    if (writes) resize.planes[(channels * picture + channel) * plane + y * resize.to.width + x] = total * scale + bias;
  }
}

__device__ float between(float first, float second, float weight) { return first + (second - first) * weight; }

/// The two rows of a picture between which a row of the result is interpolated.
template <int channels, bool linear>
struct SourceRows {
  const std::uint8_t *upper, *lower;
  float weight;  ///< of the lower row
  int width;

  __device__ SourceRows(const Resize<Tap>& resize, std::int64_t picture, const Tap& tap)
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
__global__ void __launch_bounds__(kThreads) resize_rows(Resize<Tap> resize) {
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
Status launch(const Resize<FilterTaps>& resize, bool, cudaStream_t stream) {
  const dim3 grid(blocks_for(resize.to.width, kColumns),
                  std::min(blocks_for(resize.n * resize.to.height, 1), kMostRows));
  if (reinterpret_cast<std::uintptr_t>(resize.pixels) % 4 == 0 && channels * resize.from.width % 4 == 0) {
    resize_antialiased<channels, true><<<grid, kThreads, 0, stream>>>(resize);
  } else {
    resize_antialiased<channels, false><<<grid, kThreads, 0, stream>>>(resize);
  }
  return launched();
}

template <int channels, bool linear>
Status launch(const Resize<Tap>& resize, cudaStream_t stream) {
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

template <int channels>
Status launch(const Resize<Tap>& resize, bool linear, cudaStream_t stream) {
  return linear ? launch<channels, true>(resize, stream) : launch<channels, false>(resize, stream);
}

class Cuda : public Checked {
 public:
  Status prepare(const Node& node) {
    settings_ = Settings::of(node.attributes());
    from_ = known_size(node);
    if (!from_) return {};
    return settings_.antialias ? filters_.assign(*from_, settings_) : taps_.assign(*from_, settings_);
  }

  static void workspace(Workspace& workspace, const Inputs&, const Attributes& attributes) {
    if (attributes.boolean("antialias"))
      static_cast<void>(Memory<FilterTaps>::take(workspace, Settings::of(attributes)));
    else
      static_cast<void>(Memory<Tap>::take(workspace, Settings::of(attributes)));
  }

  Status operator()(Context& context, const Inputs& in, const Attributes&, Outputs& out) const {
    if (out["tensor"].size() == 0) return {};
    return settings_.antialias ? run(context, filters_, in, out) : run(context, taps_, in, out);
  }

 private:
  template <typename Taps>
  struct Memory {
    std::span<Taps> across, down;

    static Memory take(Workspace& workspace, const Settings& settings) {
      return {workspace.take<Taps>(settings.to.width), workspace.take<Taps>(settings.to.height)};
    }
  };

  /// The taps of both axes for pictures of a static size.
  template <typename Taps>
  struct Axes {
    cuda::DeviceArray<Taps> across, down;

    Status assign(Size from, const Settings& settings) {
      const Placement at = Placement::of(from, settings);
      const auto taps = [&](int from, int resized, int offset, int count) {
        std::vector<Taps> found(static_cast<std::size_t>(count));
        for (int i = 0; i < count; ++i)
          find(found[static_cast<std::size_t>(i)], settings.linear, offset + i, from, resized);
        return found;
      };
      OPGATE_RETURN_IF_ERROR(across.assign(taps(from.width, at.resized.width, at.left, settings.to.width)));
      return down.assign(taps(from.height, at.resized.height, at.top, settings.to.height));
    }
  };

  template <typename Taps>
  Status run(Context& context, const Axes<Taps>& axes, const Inputs& in, Outputs& out) const {
    const Tensor& image = in["image"];
    const Size from = size_of_call(in);
    Resize<Taps> resize{image.data<std::uint8_t>(),
                        image.dim(0),
                        from,
                        settings_.to,
                        Placement::of(from, settings_),
                        axes.across.data(),
                        axes.down.data(),
                        settings_.normalization,
                        out["tensor"].data<float>()};
    const cudaStream_t stream = stream_of(context);
    if (!from_) {
      const auto memory = Memory<Taps>::take(context.workspace(), settings_);
      const unsigned blocks = blocks_for(std::max(resize.to.width, resize.to.height), kThreads);
      find_taps<<<blocks, kThreads, 0, stream>>>(settings_.linear, resize.from, resize.to, resize.at,
                                                 memory.across.data(), memory.down.data());
      OPGATE_RETURN_IF_ERROR(launched());
      resize.across = memory.across.data();
      resize.down = memory.down.data();
    }
    switch (in.size("c")) {
      case 1: return launch<1>(resize, settings_.linear, stream);
      case 3: return launch<3>(resize, settings_.linear, stream);
      default: return launch<4>(resize, settings_.linear, stream);
    }
  }

  Settings settings_;
  std::optional<Size> from_;  ///< the static size of the pictures, for which there are taps below
  Axes<Tap> taps_;
  Axes<FilterTaps> filters_;
};

}  // namespace
}  // namespace opgate::ops::resize_normalize

OPGATE_CUDA_KERNEL(ResizeNormalize, opgate::ops::resize_normalize::Cuda)
