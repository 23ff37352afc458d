#include "resize_normalize.h"

#include "checks.h"
#include "core/elementwise.cuh"
#include "formula.h"

namespace opgate::ops {
namespace {

constexpr int kThreads = 256;
constexpr int kAcross = 32;  ///< of a block's threads; the others are rows
constexpr int kDown = kThreads / kAcross;
constexpr int kPixels = 4;  ///< of a thread, side by side

struct Resize {
  const std::uint8_t* pixels;
  std::int64_t n;
  int from_height, from_width, height, width;
  const Tap *across, *down;
  Normalization normalization;
  float* planes;
};

template <bool linear>
__device__ Tap tap_of(int i, int from, int to) {
  if constexpr (linear) {
    return bilinear_tap(i, static_cast<double>(from) / to, from);
  } else {
    return {nearest_place(i, from, to), 0};
  }
}

/// Where the places of both axes come from, once for all rows and pictures.
template <bool linear>
__global__ void __launch_bounds__(kThreads) find_taps(Resize resize, Tap* across, Tap* down) {
  const int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (i < resize.width) across[i] = tap_of<linear>(i, resize.from_width, resize.width);
  if (i < resize.height) down[i] = tap_of<linear>(i, resize.from_height, resize.height);
}

__device__ float between(float first, float second, float weight) { return first + (second - first) * weight; }

/// The rows of a picture that one row of the result lies between.
template <bool linear>
struct SourceRows {
  const std::uint8_t *upper, *lower;
  float weight;  ///< of the lower
  int width;

  __device__ SourceRows(const Resize& resize, std::int64_t picture, const Tap& tap)
      : weight(tap.weight), width(resize.from_width) {
    const std::int64_t bytes = std::int64_t{3} * width;
    const int second = tap.first + 1 < resize.from_height ? tap.first + 1 : tap.first;
    const std::uint8_t* const first_row = resize.pixels + picture * resize.from_height * bytes;
    upper = first_row + tap.first * bytes;
    lower = first_row + second * bytes;
  }

  /// Of channel c.
  __device__ float value(const Tap& tap, int c) const {
    const int left = 3 * tap.first + c;
    if constexpr (linear) {
      const int right = tap.first + 1 < width ? left + 3 : left;
      return between(between(upper[left], lower[left], weight), between(upper[right], lower[right], weight),
                     tap.weight);
    } else {
      return upper[left];
    }
  }
};

/// `whole`: rows are whole numbers of a thread's pixels and begin at 16 bytes.
template <bool linear, bool whole>
__global__ void __launch_bounds__(kThreads) resize_rows(Resize resize) {
  const int x = kPixels * (static_cast<int>(blockIdx.x) * kAcross + static_cast<int>(threadIdx.x));
  if (x >= resize.width) return;
  const int count = whole || resize.width - x > kPixels ? kPixels : resize.width - x;
  const std::int64_t rows = resize.n * resize.height, plane = std::int64_t{resize.height} * resize.width;
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.y) * kDown + threadIdx.y; row < rows;
       row += static_cast<std::int64_t>(gridDim.y) * kDown) {
    const std::int64_t picture = row / resize.height, y = row % resize.height;
    const SourceRows<linear> source(resize, picture, resize.down[y]);
    elementwise::Lanes<float, kPixels> values[3];
#pragma unroll
    for (int k = 0; k < kPixels; ++k) {
      if (k >= count) break;
      const Tap tap = resize.across[x + k];
#pragma unroll
      for (int c = 0; c < 3; ++c) {
        values[c].values[k] = source.value(tap, c) * resize.normalization.scale[c] + resize.normalization.bias[c];
      }
    }
#pragma unroll
    for (int c = 0; c < 3; ++c) {
      float* const out = resize.planes + (3 * picture + c) * plane + y * resize.width + x;
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

template <bool linear>
Status launch(Context& context, Resize resize) {
  const cudaStream_t stream = stream_of(context);
  auto* const across = context.scratch<Tap>(resize.width).data();
  auto* const down = context.scratch<Tap>(resize.height).data();
  const unsigned blocks = blocks_for(std::max(resize.width, resize.height), kThreads);
  find_taps<linear><<<blocks, kThreads, 0, stream>>>(resize, across, down);
  OPGATE_RETURN_IF_ERROR(launched());
  resize.across = across;
  resize.down = down;
  constexpr unsigned kMostRows = 65535;
  const dim3 grid(blocks_for(resize.width, kPixels * kAcross),
                  std::min(blocks_for(resize.n * resize.height, kDown), kMostRows));
  const dim3 block(kAcross, kDown);
  if (resize.width % kPixels == 0 && elementwise::aligned(resize.planes)) {
    resize_rows<linear, true><<<grid, block, 0, stream>>>(resize);
  } else {
    resize_rows<linear, false><<<grid, block, 0, stream>>>(resize);
  }
  return launched();
}

struct ResizeNormalizeCuda {
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    Resize resize{};
    OPGATE_RETURN_IF_ERROR(read_normalization(attributes, resize.normalization));
    OPGATE_RETURN_IF_ERROR(check_sides(attributes));
    const Tensor &image = in["image"], &tensor = out["tensor"];
    if (tensor.size() == 0) return {};
    OPGATE_RETURN_IF_ERROR(check_pictures(image));
    resize.pixels = image.data<const std::uint8_t>();
    resize.n = image.dim(0);
    resize.from_height = static_cast<int>(image.dim(1));
    resize.from_width = static_cast<int>(image.dim(2));
    resize.height = static_cast<int>(tensor.dim(2));
    resize.width = static_cast<int>(tensor.dim(3));
    resize.planes = tensor.data<float>();
    return attributes.text("interpolation") == "nearest" ? launch<false>(context, resize)
                                                         : launch<true>(context, resize);
  }
};

}  // namespace
}  // namespace opgate::ops

OPGATE_CUDA_KERNEL(ResizeNormalize, opgate::ops::ResizeNormalizeCuda)
