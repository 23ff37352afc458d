// The spectra of many frames of sound at once, on the CPU.
#pragma once

#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "audio/fft.h"
#include "audio/spectrum.h"

namespace opgate::audio {

/// Two frames share a lane: one is the real part of what is transformed, the other the imaginary part.
inline constexpr std::int64_t kFrames = 2 * kLanes;

using LaneBits = std::int32_t __attribute__((vector_size(sizeof(Vector))));

/// The bits of the greater magnitude in each lane. Floats have the order of their bits without the sign, and infinity
/// and NaN come last.
inline LaneBits greater(LaneBits most, const Vector& value) {
  LaneBits bits;
  std::memcpy(&bits, &value, sizeof bits);
  bits &= 0x7fffffff;
  return bits > most ? bits : most;
}

/// The powers of two at or below magnitudes, from their bits, and the inverses of these. 0 for 0.
struct LaneScale {
  Vector value, inverse;

  explicit LaneScale(LaneBits most) {
    // The exponents of which both are normal numbers.
    constexpr std::int32_t kUnit = 1 << 23;
    LaneBits exponent = most & 0x7f800000;
    exponent = exponent < kUnit ? kUnit - LaneBits{} : exponent;
    exponent = exponent > 253 * kUnit ? 253 * kUnit - LaneBits{} : exponent;
    const LaneBits opposite = 254 * kUnit - exponent;
    exponent = most == 0 ? LaneBits{} : exponent;
    std::memcpy(&value, &exponent, sizeof value);
    std::memcpy(&inverse, &opposite, sizeof inverse);
  }
};

/// Transforms kFrames frames and adds up their energies in bands.
class Spectra {
 public:
  /// What a thread needs.
  struct Memory {
    explicit Memory(const Spectra& spectra)
        : values(spectra.fourier_.length()),
          other(spectra.fourier_.length()),
          energies(spectra.fourier_.length() / 2 + 1) {}

    /// The windowed sample `i` of frame f is the float at frame(f)[i * kApart]. Frame f is in lane f % kLanes: as the
    /// real part if f < kLanes, else as the imaginary part.
    float* frame(std::int64_t f) { return reinterpret_cast<float*>(values.data()) + f; }
    static constexpr std::int64_t kApart = 2 * kLanes;

    std::vector<Complex> values, other;
    std::vector<Complex> energies;  ///< of the even and of the odd frames, divided by their scales
    Complex scale{};
  };

  /// With power 1 an energy is the magnitude of a bin, with 2 its square.
  Spectra(std::size_t n_fft, std::int64_t power) : fourier_(n_fft), power_(power) {}

  /// `load(even, odd)` writes the frames, and zeros for the even or the odd ones if they are not asked for.
  template <typename Load>
  void run(const Load& load, Memory& memory) const {
    load(true, true);
    if (divide(memory.values, memory.scale)) {
      const Complex* const spectrum = fourier_.run(memory.values.data(), memory.other.data());
      store_energies(spectrum, true, true, memory.energies.data());
    } else {
      // A NaN in one frame of a lane would reach the other.
      for (const bool even : {true, false}) {
        load(even, !even);
        Complex own;
        divide(memory.values, own);
        (even ? memory.scale.re : memory.scale.im) = even ? own.re : own.im;
        const Complex* const spectrum = fourier_.run(memory.values.data(), memory.other.data());
        store_energies(spectrum, even, !even, memory.energies.data());
      }
    }
  }

  /// The energy of each frame in a band.
  std::array<float, kFrames> sum(const Bands& bands, const Band& band, const Memory& memory) const {
    Complex sum{};
    for (std::int32_t i = 0; i < band.count; ++i) {
      const float weight = bands.weights[static_cast<std::size_t>(band.weights + i)];
      const Complex& energy = memory.energies[static_cast<std::size_t>(band.first + i)];
      sum.re += energy.re * weight;
      sum.im += energy.im * weight;
    }
    for (std::int64_t i = 0; i < power_; ++i) sum = {sum.re * memory.scale.re, sum.im * memory.scale.im};
    std::array<float, kFrames> energies;
    std::memcpy(energies.data(), &sum, sizeof sum);
    return energies;
  }

 private:
  /// Divides each frame by a power of two, its scale, so that of two frames in a lane none drowns in what the other is
  /// rounded by. Returns whether all samples are finite.
  static bool divide(std::vector<Complex>& values, Complex& scale) {
    LaneBits re_most{}, im_most{};
    for (const Complex& value : values) {
      re_most = greater(re_most, value.re);
      im_most = greater(im_most, value.im);
    }
    const LaneScale re(re_most), im(im_most);
    for (Complex& value : values) value = {value.re * re.inverse, value.im * im.inverse};
    scale = {re.value, im.value};
    const LaneBits infinite = (re_most >= 0x7f800000) | (im_most >= 0x7f800000);
    bool any = false;
    for (int lane = 0; lane < kLanes; ++lane) any |= infinite[lane] != 0;
    return !any;
  }

  /// Separates the transforms of the two frames of a lane and squares them.
  void store_energies(const Complex* spectrum, bool even, bool odd, Complex* energies) const {
    const std::size_t n = fourier_.length();
    for (std::size_t k = 0; k <= n / 2; ++k) {
      const Complex& a = spectrum[k];
      const Complex& b = spectrum[(n - k) % n];
      const Vector even_re = a.re + b.re, even_im = a.im - b.im, odd_re = a.im + b.im, odd_im = b.re - a.re;
      if (even) energies[k].re = powered(0.25f * (even_re * even_re + even_im * even_im));
      if (odd) energies[k].im = powered(0.25f * (odd_re * odd_re + odd_im * odd_im));
    }
  }

  /// The energy of a bin, from the square of its magnitude.
  Vector powered(Vector square) const {
    if (power_ == 1) {
      for (int lane = 0; lane < kLanes; ++lane) square[lane] = std::sqrt(square[lane]);
    }
    return square;
  }

  Fourier fourier_;
  std::int64_t power_;
};

}  // namespace opgate::audio
