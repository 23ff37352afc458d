#include "audio_preprocess.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "audio/codecs/sound.h"
#include "kernel_toolkit/row_ends.h"
#include "loudness.h"
#include "resampler.h"

namespace opgate::ops::audio_preprocess {
namespace {

using audio::Bytes;
using audio::SoundStatus;

/// The rates of files that are resampled. A rate outside of them would need a filter of many weights.
constexpr std::int64_t kLeastRate = 1000, kMostRate = 384000;
constexpr std::int64_t kLeastLoudRate = 4000;
constexpr std::int64_t kMostSamples = 1 << 28;

struct Settings {
  std::int64_t sample_rate, max_samples;
  audio::Mix mix;
  std::string resampler, normalize;
  double loudness;

  explicit Settings(const Attributes& attributes)
      : sample_rate(attributes.integer("sample_rate")),
        max_samples(attributes.integer("max_samples")),
        mix(attributes.text("channel") == "first" ? audio::Mix::first : audio::Mix::mean),
        resampler(attributes.text("resampler")),
        normalize(attributes.text("normalize")),
        loudness(attributes.number("loudness")) {}
};

struct Row {
  std::vector<float> pcm;
  std::int64_t rate = 0;
  SoundStatus status = SoundStatus::good;
};

/// Makes the greatest magnitude of a row 1, its mean 0 and its variance 1, or its loudness that of the settings.
/// Silence stays silence.
void normalize(const Settings& settings, std::vector<float>& pcm) {
  const std::string& how = settings.normalize;
  const auto count = static_cast<double>(pcm.size());
  double mean = 0, scale = 0;
  if (how == "none" || pcm.empty()) return;
  if (how == "lufs") {
    const std::optional<double> loudness = loudness_of(pcm, static_cast<double>(settings.sample_rate));
    if (!loudness) return;
    scale = std::pow(10, (*loudness - settings.loudness) / 20);
  } else if (how == "peak") {
    for (const float value : pcm) scale = std::max(scale, static_cast<double>(std::abs(value)));
    if (scale == 0) return;
  } else {
    for (const float value : pcm) mean += static_cast<double>(value) / count;
    double variance = 0;
    for (const float value : pcm) variance += std::pow(static_cast<double>(value) - mean, 2) / count;
    scale = std::sqrt(variance + 1e-7);  // as in transformers
  }
  for (float& value : pcm) value = static_cast<float>((static_cast<double>(value) - mean) / scale);
}

/// Decodes and resamples a whole sound.
SoundStatus read(audio::Sound& sound, const Settings& settings, std::vector<float>& pcm) {
  constexpr std::size_t kAtOnce = 16384;
  if (sound.rate() < kLeastRate || sound.rate() > kMostRate) return SoundStatus::unsupported;
  // So many samples of the file make max_samples.
  const std::int64_t most = settings.max_samples * sound.rate() / settings.sample_rate;
  if (sound.length().value_or(0) > most) return SoundStatus::too_long;
  const std::unique_ptr<Resampler> resampler = Resampler::of(settings.resampler, sound.rate(), settings.sample_rate);
  std::vector<float> part(kAtOnce);
  std::int64_t total = 0;
  for (std::size_t count = kAtOnce; count == kAtOnce;) {
    if (const SoundStatus status = sound.read(settings.mix, part, count); status != SoundStatus::good) return status;
    total += static_cast<std::int64_t>(count);
    if (total > most) return SoundStatus::too_long;
    resampler->add(std::span(part).first(count), pcm);
  }
  resampler->finish(pcm);
  normalize(settings, pcm);
  return SoundStatus::good;
}

Row row_from(Bytes file, const Settings& settings) {
  Row row;
  if (const std::unique_ptr<audio::Sound> sound = audio::open(file, row.status)) {
    row.status = read(*sound, settings, row.pcm);
    row.rate = sound->rate();
  }
  return row.status == SoundStatus::good ? std::move(row) : Row{{}, 0, row.status};
}

class Cpu {
 public:
  static Status check(const Attributes& attributes, const KnownSizes&) {
    const auto in_range = [&](const char* name, std::int64_t low, std::int64_t high) {
      return attributes.integer(name) >= low && attributes.integer(name) <= high;
    };
    if (!in_range("sample_rate", kLeastRate, kMostRate)) return attributes.refuse("sample_rate", "1000..384000");
    if (!in_range("max_samples", 1, kMostSamples)) return attributes.refuse("max_samples", "1..2^28");
    if (!in_range("min_samples", 0, attributes.integer("max_samples")))
      return attributes.refuse("min_samples", "0..max_samples");
    const double loudness = attributes.number("loudness");
    if (!(loudness >= -100 && loudness <= 0)) return attributes.refuse("loudness", "-100..0 LUFS");
    if (attributes.text("normalize") == "lufs" && attributes.integer("sample_rate") < kLeastLoudRate)
      return attributes.refuse("sample_rate", "4000 or more, because a loudness has filters up to 1682 Hz");
    return {};
  }

  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const Bytes data = in["data"].span<std::uint8_t>();
    const std::span<const std::int32_t> ends = in["ends"].span<std::int32_t>();
    OPGATE_RETURN_IF_ERROR(check_ends(ends, static_cast<std::int64_t>(data.size())));
    const Settings settings(attributes);
    std::vector<Row> rows(ends.size());
    const auto n = static_cast<std::int64_t>(ends.size());
    context.parallel_for(n, 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i)
        rows[static_cast<std::size_t>(i)] = row_from(row_of(data, ends, i), settings);
    });
    auto t = static_cast<std::size_t>(attributes.integer("min_samples"));
    for (const Row& row : rows) t = std::max(t, row.pcm.size());
    OPGATE_RETURN_IF_ERROR(out.bind("t", static_cast<std::int64_t>(t)));
    auto* pcm = out["pcm"].data<float>();
    for (std::size_t i = 0; i < rows.size(); ++i, pcm += t) {
      const Row& row = rows[i];
      std::fill(std::copy(row.pcm.begin(), row.pcm.end(), pcm), pcm + t, 0.0f);
      out["length"].data<std::int32_t>()[i] = static_cast<std::int32_t>(row.pcm.size());
      out["rate"].data<std::int32_t>()[i] = static_cast<std::int32_t>(row.rate);
      out["status"].data<std::int32_t>()[i] = static_cast<std::int32_t>(row.status);
    }
    return {};
  }
};

}  // namespace
}  // namespace opgate::ops::audio_preprocess

OPGATE_CPU_KERNEL(AudioPreprocess, opgate::ops::audio_preprocess::Cpu)
