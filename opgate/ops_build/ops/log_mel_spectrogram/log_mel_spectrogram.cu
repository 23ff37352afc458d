#include "log_mel_spectrogram.h"

#include "audio/butterflies.h"
#include "kernel_toolkit/divisor.h"
#include "kernel_toolkit/elementwise.cuh"

namespace opgate::ops::log_mel_spectrogram {
namespace {

using audio::Band;
using audio::Root;

using Number = audio::ComplexOf<float>;

constexpr int kThreads = 128;
/// The numbers that a block transforms in shared memory, and the most frames that it has of them.
constexpr int kPoints = 2048, kMostFrames = 16;
/// Of a longer frame, each bin is a sum over all samples. A block has so many samples in shared memory at a time.
constexpr int kTile = 1024;
/// The energies of longer frames that are held at a time.
constexpr std::int64_t kEnergies = 1 << 22;

/// A pass over frames of Stockham's algorithm, as in audio/fft.h: `count` transforms of `factor` numbers, in which
/// `stride` sequences are interleaved.
struct Pass {
  int factor = 1, step = 1;
  Divisor<std::int32_t> count, stride;
};

/// How a frame of n samples is transformed. The samples of an even number are the real and the imaginary parts of half
/// as many numbers.
struct Plan {
  static constexpr int kMostPasses = 12;

  int points = 0, passes = 0;
  bool paired = false;
  Pass pass[kMostPasses];

  static bool fits(std::int64_t n) { return (n % 2 == 0 ? n / 2 : n) <= kPoints; }

  static Plan of(std::int64_t n) {
    Plan plan;
    plan.paired = n % 2 == 0;
    plan.points = static_cast<int>(plan.paired ? n / 2 : n);
    int length = plan.points;
    for (const std::size_t factor : audio::factors_of(static_cast<std::size_t>(plan.points))) {
      const int own = static_cast<int>(factor), stride = plan.points / length;
      plan.pass[plan.passes++] = {own, stride * (plan.paired ? 2 : 1), Divisor<std::int32_t>(plan.points / own),
                                  Divisor<std::int32_t>(stride)};
      length /= own;
    }
    return plan;
  }

  /// The frames that a block transforms.
  int frames() const { return std::clamp(kPoints / points, 1, kMostFrames); }
};

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

/// The transforms of `radix` numbers that a pass does.
template <int radix>
__device__ void transform_some(const Pass& pass, int points, int frames, const Root* __restrict__ roots,
                               const Number* in, Number* out) {
  const int count = pass.count.number(), stride = pass.stride.number();
  for (int i = static_cast<int>(threadIdx.x); i < frames * count; i += kThreads) {
    const int frame = i / pass.count, j = i - frame * count, p = j / pass.stride;
    const Number* const from = in + frame * points + j;
    Number values[radix];
#pragma unroll
    for (int k = 0; k < radix; ++k) values[k] = from[k * count];
    audio::butterfly(values);
    Number* const to = out + frame * points + j + stride * (radix - 1) * p;
    to[0] = values[0];
#pragma unroll
    for (int k = 1; k < radix; ++k) to[stride * k] = values[k] * roots[p * k * pass.step];
  }
}

/// The same for any prime: a thread computes one of its numbers, the sum over all.
__device__ inline void transform_prime(const Pass& pass, int points, int frames, int all,
                                       const Root* __restrict__ roots, const Number* in, Number* out) {
  const int count = pass.count.number(), stride = pass.stride.number(), factor = pass.factor;
  for (int i = static_cast<int>(threadIdx.x); i < frames * points; i += kThreads) {
    const int of_pass = i / pass.count, frame = of_pass / factor, k = of_pass % factor, j = i - of_pass * count;
    const int p = j / pass.stride, step = all / factor * k;
    const Number* const from = in + frame * points + j;
    Number sum = from[0];
    int root = 0;  // k * l modulo the factor, in steps of the roots
    for (int l = 1; l < factor; ++l) {
      root += step;
      if (root >= all) root -= all;
      sum = sum + from[l * count] * roots[root];
    }
    out[frame * points + j + stride * (factor - 1) * p + stride * k] = sum * roots[p * k * pass.step];
  }
}

/// Where a frame is.
struct Frame {
  std::int64_t row, number, length;
  bool behind;  ///< whether it lies behind the row, so that it is silent
};

/// A block computes some frames, from the samples to the bands.
__global__ void __launch_bounds__(kThreads)
    transform_frames(Plan plan, int at_once, std::int64_t all, std::int64_t frames, std::int64_t t, Settings settings,
                     const float* __restrict__ pcm, const std::int32_t* __restrict__ lengths,
                     const float* __restrict__ window, const Root* __restrict__ roots, const Band* __restrict__ bands,
                     const float* __restrict__ weights, float* __restrict__ mel) {
  __shared__ Number numbers[2][kPoints];
  __shared__ Frame places[kMostFrames];
  const int thread = static_cast<int>(threadIdx.x), points = plan.points, n = static_cast<int>(settings.n_fft);
  for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * at_once; first < all;
       first += static_cast<std::int64_t>(gridDim.x) * at_once) {
    const int held = all - first < at_once ? static_cast<int>(all - first) : at_once;
    __syncthreads();  // the frames before are written
    if (thread < held) {
      const std::int64_t row = (first + thread) / frames, length = length_of(lengths, row, t);
      const std::int64_t number = first + thread - row * frames;
      places[thread] = {row, number, length, number >= settings.frames(length)};
    }
    __syncthreads();
    for (int frame = 0; frame < held; ++frame) {
      const Frame place = places[frame];
      const std::int64_t begin = place.number * settings.hop - settings.padding;
      const auto sample = [&](int i) {
        return place.behind ? 0 : settings.sample(pcm + place.row * t, begin + i, place.length) * window[i];
      };
      for (int i = thread; i < points; i += kThreads) {
        numbers[0][frame * points + i] =
            plan.paired ? Number{sample(2 * i), sample(2 * i + 1)} : Number{sample(i), 0.0f};
      }
    }
    int in = 0;
    for (int i = 0; i < plan.passes; ++i, in = 1 - in) {
      __syncthreads();
      const Pass& pass = plan.pass[i];
      const Number* const from = numbers[in];
      Number* const to = numbers[1 - in];
      switch (pass.factor) {
        case 2: transform_some<2>(pass, points, held, roots, from, to); break;
        case 3: transform_some<3>(pass, points, held, roots, from, to); break;
        case 4: transform_some<4>(pass, points, held, roots, from, to); break;
        case 5: transform_some<5>(pass, points, held, roots, from, to); break;
        default: transform_prime(pass, points, held, n, roots, from, to); break;
      }
    }
    __syncthreads();
    const int bins = n / 2 + 1;
    float* const energies = reinterpret_cast<float*>(numbers[1 - in]);
    for (int frame = 0; frame < held; ++frame) {
      const Number* const of_frame = numbers[in] + frame * points;
      for (int k = thread; k < bins; k += kThreads) {
        Number value;
        if (plan.paired) {
          // The transforms of the even and of the odd samples, and from them that of all.
          const Number a = of_frame[k == points ? 0 : k], b = of_frame[k == 0 ? 0 : points - k];
          const Number even{0.5f * (a.re + b.re), 0.5f * (a.im - b.im)};
          const Number odd{0.5f * (a.im + b.im), 0.5f * (b.re - a.re)};
          value = even + odd * roots[k];
        } else {
          value = of_frame[k];
        }
        const float square = value.re * value.re + value.im * value.im;
        energies[frame * bins + k] = settings.power == 1 ? sqrtf(square) : square;
      }
    }
    __syncthreads();
    for (int i = thread; i < held * settings.n_mels; i += kThreads) {
      const int m = i / held, frame = i - m * held;
      const Band band = bands[m];
      const float* const from = energies + frame * bins + band.first;
      float sum = 0;
      for (int k = 0; k < band.count; ++k) sum += from[k] * weights[band.weights + k];
      const Frame place = places[frame];
      mel[(place.row * settings.n_mels + m) * frames + place.number] = settings.logarithm(place.behind ? 0 : sum);
    }
  }
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
    mel[(frame / frames * settings.n_mels + m) * frames + frame % frames] = settings.logarithm(sum);
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
    if (Plan::fits(settings.n_fft)) return {};
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
    if (Plan::fits(settings_.n_fft)) {
      const Plan plan = Plan::of(settings_.n_fft);
      transform_frames<<<blocks_for(all, plan.frames()), kThreads, 0, stream>>>(
          plan, plan.frames(), all, frames, t, settings_, in["pcm"].data<float>(), lengths, window_.data(),
          roots_.data(), bands_.data(), weights_.data(), out["mel"].data<float>());
      return launched();
    }
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
