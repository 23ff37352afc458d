#include "resample_audio.h"

#include <algorithm>
#include <optional>

#include "kernel_toolkit/elementwise.h"

namespace opgate::ops::resample_audio {
namespace {

class Cpu {
 public:
  static Status check(const Attributes& attributes, const KnownSizes&) { return check_attributes(attributes); }

  Status prepare(const Node& node) {
    filter_.emplace(filter_of(node.attributes()));
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
        const std::span<const float> samples(x + row * t, static_cast<std::size_t>(t));
        filter_->run(samples, 0, first, std::min(first + in_piece, wanted), y + row * wanted + first);
      }
    });
    return {};
  }

 private:
  std::optional<audio::Filter> filter_;
};

}  // namespace
}  // namespace opgate::ops::resample_audio

OPGATE_CPU_KERNEL(ResampleAudio, opgate::ops::resample_audio::Cpu)
