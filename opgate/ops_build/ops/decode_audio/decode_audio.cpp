#include "decode_audio.h"

#include "audio/codecs/sound.h"
#include "kernel_toolkit/row_ends.h"

namespace opgate::ops::decode_audio {
namespace {

using audio::Bytes;
using audio::SoundStatus;

/// What one file gives, apart from its samples.
struct Row {
  std::int32_t length = 0, rate = 0;
  SoundStatus status = SoundStatus::good;
};

/// Decodes a file to `pcm`, which is silence if that fails.
Row decode(Bytes file, std::int64_t sample_rate, std::span<float> pcm) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  Row row;
  std::size_t count = 0;
  const std::unique_ptr<audio::Sound> sound = audio::open(file, row.status);
  if (sound && sample_rate != 0 && sound->rate() != sample_rate) row.status = SoundStatus::another_rate;
  if (row.status == SoundStatus::good) row.status = sound->read(audio::Mix::mean, pcm, count);
  if (row.status == SoundStatus::good) {
    // A sound that doesn't state its length has ended, or is longer than the row by nobody knows how much.
    const std::int64_t known = count < pcm.size() ? static_cast<std::int64_t>(count) : kMost;
    row.length = static_cast<std::int32_t>(std::min(sound->length().value_or(known), kMost));
    row.rate = static_cast<std::int32_t>(std::min(sound->rate(), kMost));
  } else {
    count = 0;
  }
  std::fill(pcm.begin() + static_cast<std::ptrdiff_t>(count), pcm.end(), 0.0f);
  return row;
}

struct Cpu {
  static Status check(const Attributes& attributes, const KnownSizes&) {
    const std::int64_t samples = attributes.integer("samples"), rate = attributes.integer("sample_rate");
    if (samples < 1 || samples > 1 << 26) return attributes.refuse("samples", "1..2^26");
    if (rate < 0 || rate > std::numeric_limits<std::int32_t>::max())
      return attributes.refuse("sample_rate", "a number of samples per second, or 0 for any");
    return {};
  }

  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const Bytes data = in["data"].span<std::uint8_t>();
    const std::span<const std::int32_t> ends = in["ends"].span<std::int32_t>();
    OPGATE_RETURN_IF_ERROR(check_ends(ends, static_cast<std::int64_t>(data.size())));
    const std::int64_t samples = attributes.integer("samples"), rate = attributes.integer("sample_rate");
    auto* const pcm = out["pcm"].data<float>();
    auto* const lengths = out["length"].data<std::int32_t>();
    auto* const rates = out["rate"].data<std::int32_t>();
    auto* const statuses = out["status"].data<std::int32_t>();
    context.parallel_for(static_cast<std::int64_t>(ends.size()), 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) {
        const std::span<float> row(pcm + i * samples, static_cast<std::size_t>(samples));
        const Row decoded = decode(row_of(data, ends, i), rate, row);
        lengths[i] = decoded.length;
        rates[i] = decoded.rate;
        statuses[i] = static_cast<std::int32_t>(decoded.status);
      }
    });
    return {};
  }
};

}  // namespace
}  // namespace opgate::ops::decode_audio

OPGATE_CPU_KERNEL(DecodeAudio, opgate::ops::decode_audio::Cpu)
