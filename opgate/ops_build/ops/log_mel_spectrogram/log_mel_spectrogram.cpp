#include "log_mel_spectrogram.h"

#include <cstring>
#include <optional>

#include "fft.h"

namespace opgate::ops::log_mel_spectrogram {
namespace {

/// Two frames share a lane: one is the real part of what is transformed, the other the imaginary part.
constexpr std::int64_t kFrames = 2 * kLanes;

using Bits = std::int32_t __attribute__((vector_size(sizeof(Vector))));

/// The bits of the greater magnitude in each lane. Floats have the order of their bits without the sign, and infinity
/// and NaN come last.
inline Bits greater(Bits most, const Vector& value) {
  Bits bits;
  std::memcpy(&bits, &value, sizeof bits);
  bits &= 0x7fffffff;
  return bits > most ? bits : most;
}

/// The powers of two at or below magnitudes, from their bits, and the inverses of these. 0 for 0.
struct Scale {
  Vector value, inverse;

  explicit Scale(Bits most) {
    // The exponents of which both are normal numbers.
    constexpr std::int32_t kUnit = 1 << 23;
    Bits exponent = most & 0x7f800000;
    exponent = exponent < kUnit ? kUnit - Bits{} : exponent;
    exponent = exponent > 253 * kUnit ? 253 * kUnit - Bits{} : exponent;
    const Bits opposite = 254 * kUnit - exponent;
    exponent = most == 0 ? Bits{} : exponent;
    std::memcpy(&value, &exponent, sizeof value);
    std::memcpy(&inverse, &opposite, sizeof inverse);
  }
};

class Cpu {
 public:
  static Status check(const Attributes& attributes, const KnownSizes& sizes) {
    return check_attributes(attributes, sizes);
  }

  Status prepare(const Node& node) {
    settings_ = Settings::of(node.attributes());
    window_ = hann_window(node.attributes());
    bands_ = Bands::of(node.attributes());
    fourier_.emplace(static_cast<std::size_t>(settings_.n_fft));
    return {};
  }

  Status operator()(Context& context, const Inputs& in, const Attributes&, Outputs& out) const {
    const std::int64_t t = in.size("t"), frames = out["mel"].dim(2);
    if (out["mel"].size() == 0) return {};
    const auto* const pcm = in["pcm"].data<float>();
    auto* const mel = out["mel"].data<float>();
    const std::int64_t groups = (frames + kFrames - 1) / kFrames;
    context.parallel_for(in.size("n") * groups, 1, [&](std::int64_t begin, std::int64_t end) {
      Memory memory(*fourier_);
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t row = i / groups, first = i % groups * kFrames;
        run(pcm + row * t, t, first, std::min(kFrames, frames - first), frames,
            mel + row * settings_.n_mels * frames + first, memory);
      }
    });
    return {};
  }

 private:
  struct Memory {
    explicit Memory(const Fourier& fourier)
        : values(fourier.length()), other(fourier.length()), energies(fourier.length() / 2 + 1) {}
    std::vector<Complex> values, other;
    std::vector<Complex> energies;  ///< of the even and of the odd frames, divided by their scales
  };

  /// Computes `count` frames from frame `first` on.
  void run(const float* pcm, std::int64_t t, std::int64_t first, std::int64_t count, std::int64_t frames, float* mel,
           Memory& memory) const {
    load(pcm, t, first, count, true, true, memory.values);
    Complex scale{};
    if (divide(memory.values, scale)) {
      const Complex* const spectrum = fourier_->run(memory.values.data(), memory.other.data());
      store_energies(spectrum, true, true, memory.energies.data());
    } else {
      // A NaN in one frame of a lane would reach the other.
      for (const bool even : {true, false}) {
        load(pcm, t, first, count, even, !even, memory.values);
        Complex own;
        divide(memory.values, own);
        (even ? scale.re : scale.im) = even ? own.re : own.im;
        const Complex* const spectrum = fourier_->run(memory.values.data(), memory.other.data());
        store_energies(spectrum, even, !even, memory.energies.data());
      }
    }
    const float factor = settings_.factor, floor = settings_.floor;
    for (std::size_t m = 0; m < bands_.bands.size(); ++m) {
      const Band& band = bands_.bands[m];
      Complex sum{};
      for (std::int32_t i = 0; i < band.count; ++i) {
        const float weight = bands_.weights[static_cast<std::size_t>(band.weights + i)];
        const Complex& energy = memory.energies[static_cast<std::size_t>(band.first + i)];
        sum.re += energy.re * weight;
        sum.im += energy.im * weight;
      }
      sum = {sum.re * scale.re * scale.re, sum.im * scale.im * scale.im};
      float energy[kFrames];
      for (int lane = 0; lane < kLanes; ++lane) {
        energy[lane] = sum.re[lane];
        energy[kLanes + lane] = sum.im[lane];
      }
      // A NaN stays one, and so does infinity.
      for (float& value : energy) {
        const float held = select(value < floor, floor, value);
        value = select(held <= 3.4e38f, factor * log_of_normal(held), held);
      }
      std::copy_n(energy, count, mel + static_cast<std::int64_t>(m) * frames);
    }
  }

  /// Loads windowed samples. Frame f is in lane f % kLanes: an even frame as the real part, f < kLanes, an odd one as
  /// the imaginary part. Frames that are not asked for are zeros.
  void load(const float* pcm, std::int64_t t, std::int64_t first, std::int64_t count, bool even, bool odd,
            std::vector<Complex>& values) const {
    constexpr std::int64_t kApart = 2 * kLanes;
    const std::int64_t n_fft = settings_.n_fft;
    const float* const window = window_.data();
    for (std::int64_t f = 0; f < kFrames; ++f) {
      const std::int64_t begin = (first + f) * settings_.hop - settings_.padding;
      float* const lane = reinterpret_cast<float*>(values.data()) + f;
      if (f >= count || !(f < kLanes ? even : odd)) {
        for (std::int64_t i = 0; i < n_fft; ++i) lane[i * kApart] = 0;
      } else if (begin >= 0 && begin + n_fft <= t) {
        for (std::int64_t i = 0; i < n_fft; ++i) lane[i * kApart] = pcm[begin + i] * window[i];
      } else {
        for (std::int64_t i = 0; i < n_fft; ++i) {
          const std::int64_t sample = settings_.sample(begin + i, t);
          lane[i * kApart] = sample < 0 ? 0 : pcm[sample] * window[i];
        }
      }
    }
  }

  /// Divides each frame by a power of two, its scale, so that of two frames in a lane none drowns in what the other is
  /// rounded by. Returns whether all samples are finite.
  static bool divide(std::vector<Complex>& values, Complex& scale) {
    Bits re_most{}, im_most{};
    for (const Complex& value : values) {
      re_most = greater(re_most, value.re);
      im_most = greater(im_most, value.im);
    }
    const Scale re(re_most), im(im_most);
    for (Complex& value : values) value = {value.re * re.inverse, value.im * im.inverse};
    scale = {re.value, im.value};
    const Bits infinite = (re_most >= 0x7f800000) | (im_most >= 0x7f800000);
    bool any = false;
    for (int lane = 0; lane < kLanes; ++lane) any |= infinite[lane] != 0;
    return !any;
  }

  /// Separates the transforms of the two frames of a lane and squares them.
  void store_energies(const Complex* spectrum, bool even, bool odd, Complex* energies) const {
    const auto n = static_cast<std::size_t>(settings_.n_fft);
    for (std::size_t k = 0; k <= n / 2; ++k) {
      const Complex& a = spectrum[k];
      const Complex& b = spectrum[(n - k) % n];
      const Vector even_re = a.re + b.re, even_im = a.im - b.im, odd_re = a.im + b.im, odd_im = b.re - a.re;
      if (even) energies[k].re = 0.25f * (even_re * even_re + even_im * even_im);
      if (odd) energies[k].im = 0.25f * (odd_re * odd_re + odd_im * odd_im);
    }
  }

  Settings settings_{};
  std::vector<float> window_;
  Bands bands_;
  std::optional<Fourier> fourier_;
};

}  // namespace
}  // namespace opgate::ops::log_mel_spectrogram

OPGATE_CPU_KERNEL(LogMelSpectrogram, opgate::ops::log_mel_spectrogram::Cpu)
