#include "log_mel_spectrogram.h"

#include "kernel_toolkit/elementwise.cuh"

namespace opgate::ops::log_mel_spectrogram {
namespace {

using audio::Band;
using audio::Root;

constexpr int kThreads = 128;
/// The samples of a frame that a block has in shared memory at a time.
constexpr int kTile = 1024;
/// The energies that are held at a time.
constexpr std::int64_t kEnergies = 1 << 22;

/// The frames `first`, ..., `first + count - 1` of all clips.
struct Chunk {
  std::int64_t first, count;
};

/// The samples of row `row`, which has room for `t`. A length that the CPU refuses counts as the nearest one that it
/// takes.
__device__ std::int64_t length_of(const std::int32_t* lengths, std::int64_t row, std::int64_t t) {
  if (!lengths) return t;
  const std::int64_t length = lengths[row];
  return length < 0 ? 0 : length < t ? length : t;
}

/// The energies of the bins of frames: a block computes kThreads bins of a frame, each thread the sum over all samples.
__global__ void __launch_bounds__(kThreads)
    transform(Chunk chunk, std::int64_t frames, std::int64_t t, std::int64_t bins, Settings settings,
              const float* __restrict__ pcm, const std::int32_t* __restrict__ lengths, const float* __restrict__ window,
              const Root* __restrict__ roots, float* __restrict__ energies) {
  __shared__ float tile[kTile];
  const int n = static_cast<int>(settings.n_fft);
  const int bin = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x);
  for (std::int64_t i = blockIdx.x; i < chunk.count; i += gridDim.x) {
    const std::int64_t frame = chunk.first + i;
    const float* const row = pcm + frame / frames * t;
    const std::int64_t length = length_of(lengths, frame / frames, t);
    // A frame behind its row has no energies, and sum_bands reads none.
    if (frame % frames >= settings.frames(length)) continue;
    const std::int64_t begin = frame % frames * settings.hop - settings.padding;
    float re = 0, im = 0;
    int root = 0;  // bin * i modulo n
    for (int first = 0; first < n; first += kTile) {
      const int held = n - first < kTile ? n - first : kTile;
      __syncthreads();
      for (int i = static_cast<int>(threadIdx.x); i < held; i += kThreads) {
        tile[i] = settings.sample(row, begin + first + i, length) * window[first + i];
      }
      __syncthreads();
      if (bin >= bins) continue;
      for (int i = 0; i < held; ++i) {
        re += tile[i] * roots[root].re;
        im += tile[i] * roots[root].im;
        root += bin;
        if (root >= n) root -= n;
      }
    }
    const float square = re * re + im * im;
    if (bin < bins) energies[i * bins + bin] = settings.power == 1 ? sqrtf(square) : square;
  }
}

__global__ void __launch_bounds__(kThreads)
    sum_bands(Chunk chunk, std::int64_t frames, std::int64_t t, std::int64_t bins, Settings settings,
              const std::int32_t* __restrict__ lengths, const float* __restrict__ energies,
              const Band* __restrict__ bands, const float* __restrict__ weights, float* __restrict__ mel) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  const std::int64_t count = chunk.count * settings.n_mels;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count; i += step) {
    const std::int64_t m = i / chunk.count, frame = chunk.first + i % chunk.count;
    const Band band = bands[m];
    const float* const from = energies + i % chunk.count * bins + band.first;
    const bool behind = frame % frames >= settings.frames(length_of(lengths, frame / frames, t));
    float sum = 0;
    for (int k = 0; !behind && k < band.count; ++k) sum += from[k] * weights[band.weights + k];
    const float held = (sum < settings.least ? settings.least : sum) + settings.added;
    mel[(frame / frames * settings.n_mels + m) * frames + frame % frames] = settings.factor * logf(held);
  }
}

__global__ void __launch_bounds__(kThreads)
    count_frames(std::int64_t n, std::int64_t t, Settings settings, const std::int32_t* __restrict__ lengths,
                 std::int32_t* __restrict__ counts) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; row < n; row += step)
    counts[row] = static_cast<std::int32_t>(settings.frames(length_of(lengths, row, t)));
}

class Cuda {
 public:
  static Status check(const Attributes& attributes, const KnownSizes& sizes) {
    return check_attributes(attributes, sizes);
  }

  Status prepare(const Node& node) {
    settings_ = Settings::of(node.attributes());
    const audio::Bands bands = bands_from(node.attributes());
    const std::vector<float> window = window_from(node.attributes());
    OPGATE_RETURN_IF_ERROR(window_.assign(window));
    OPGATE_RETURN_IF_ERROR(roots_.assign(audio::roots_of_unity(static_cast<std::size_t>(settings_.n_fft))));
    OPGATE_RETURN_IF_ERROR(bands_.assign(bands.bands));
    return weights_.assign(bands.weights);
  }

  static std::span<float> workspace(Workspace& workspace, const Inputs& in, const Attributes& attributes) {
    const Settings settings = Settings::of(attributes);
    const std::int64_t samples = in.size("t") + 2 * settings.padding - settings.n_fft;
    const std::int64_t frames = samples < 0 ? 0 : 1 + samples / settings.hop;
    const std::int64_t bins = settings.n_fft / 2 + 1;
    return workspace.take<float>(std::min(in.size("n") * frames, frames_at_once(bins)) * bins);
  }

  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const std::span<float> energies = workspace(context.workspace(), in, attributes);
    const cudaStream_t stream = stream_of(context);
    const std::int32_t* const lengths = in.has("length") ? in["length"].data<std::int32_t>() : nullptr;
    const std::int64_t n = in.size("n"), t = in.size("t");
    if (out.has("frames") && n > 0) {
      count_frames<<<blocks_for(n, kThreads), kThreads, 0, stream>>>(n, t, settings_, lengths,
                                                                     out["frames"].data<std::int32_t>());
      OPGATE_RETURN_IF_ERROR(launched());
    }
    if (out["mel"].size() == 0) return {};
    const std::int64_t frames = out["mel"].dim(2), all = n * frames, bins = settings_.n_fft / 2 + 1;
    for (std::int64_t first = 0; first < all; first += frames_at_once(bins)) {
      const Chunk chunk{first, std::min(all - first, frames_at_once(bins))};
      const dim3 blocks(blocks_for(chunk.count, 1), static_cast<unsigned>((bins + kThreads - 1) / kThreads));
      transform<<<blocks, kThreads, 0, stream>>>(chunk, frames, t, bins, settings_, in["pcm"].data<float>(), lengths,
                                                 window_.data(), roots_.data(), energies.data());
      OPGATE_RETURN_IF_ERROR(launched());
      sum_bands<<<blocks_for(chunk.count * settings_.n_mels, kThreads), kThreads, 0, stream>>>(
          chunk, frames, t, bins, settings_, lengths, energies.data(), bands_.data(), weights_.data(),
          out["mel"].data<float>());
      OPGATE_RETURN_IF_ERROR(launched());
    }
    return {};
  }

 private:
  static std::int64_t frames_at_once(std::int64_t bins) { return std::max<std::int64_t>(1, kEnergies / bins); }

  Settings settings_{};
  cuda::DeviceArray<float> window_, weights_;
  cuda::DeviceArray<Root> roots_;
  cuda::DeviceArray<Band> bands_;
};

}  // namespace
}  // namespace opgate::ops::log_mel_spectrogram

OPGATE_CUDA_KERNEL(LogMelSpectrogram, opgate::ops::log_mel_spectrogram::Cuda)
