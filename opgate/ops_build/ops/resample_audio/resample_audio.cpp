#include "resample_audio.h"

#include <algorithm>

#include "kernel_toolkit/elementwise.h"

namespace opgate::ops::resample_audio {
namespace {

class Cpu {
 public:
  static Status check(const Attributes& attributes, const KnownSizes&) { return check_attributes(attributes); }

  Status prepare(const Node& node) {
    rates_ = Rates::of(node.attributes());
    half_ = rates_.half(node.attributes().integer("zeros"));
    filter_ = Filter::of(node.attributes());
    return {};
  }

  Status operator()(Context& context, const Inputs& in, const Attributes&, Outputs& out) const {
    const std::int64_t n = in.size("n"), t = in.size("t"), wanted = out["y"].dim(1);
    if (out["y"].size() == 0) return {};
    const auto* const x = in["x"].data<float>();
    auto* const y = out["y"].data<float>();
    const std::int64_t in_piece = std::max<std::int64_t>(1, kElementGrain / 4);
    const std::int64_t pieces = (wanted + in_piece - 1) / in_piece;
    context.parallel_for(n * pieces, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t row = i / pieces, first = i % pieces * in_piece;
        run(x + row * t, t, first, std::min(first + in_piece, wanted), y + row * wanted);
      }
    });
    return {};
  }

 private:
  void run(const float* x, std::int64_t t, std::int64_t first, std::int64_t last, float* y) const {
    for (std::int64_t j = first; j < last; ++j) {
      const std::int64_t position = j * rates_.down;
      const std::int64_t sample = Filter::first_sample(position, half_, rates_.up);
      const float* const weights = filter_.weights.data() + position % rates_.up * filter_.stride;
      if (sample >= 0 && sample + filter_.stride <= t) [[likely]] {
        y[j] = dot(x + sample, weights, filter_.stride);
        // The last weights are 0, and what they are multiplied with counts only if it is NaN or infinite.
        if (y[j] == y[j]) [[likely]]
          continue;
      }
      const std::int64_t end = std::min(t, Filter::end_sample(position, half_, rates_.up));
      const std::int64_t low = std::max<std::int64_t>(0, -sample), high = end - sample;
      y[j] = low < high ? dot(x + sample + low, weights + low, high - low) : 0.0f;
    }
  }

  /// Has several partial sums, because they vectorize and round less than one sum.
  static float dot(const float* a, const float* b, std::int64_t count) {
    constexpr std::int64_t kLanes = kMultiple;
    float lanes[kLanes] = {};
    std::int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      for (std::int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
    }
    float rest = 0;
    for (; i < count; ++i) rest += a[i] * b[i];
    for (std::int64_t half = kLanes / 2; half > 0; half /= 2) {
      for (std::int64_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    }
    return lanes[0] + rest;
  }

  Rates rates_{};
  std::int64_t half_ = 0;
  Filter filter_{};
};

}  // namespace
}  // namespace opgate::ops::resample_audio

OPGATE_CPU_KERNEL(ResampleAudio, opgate::ops::resample_audio::Cpu)
