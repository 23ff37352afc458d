#include "speech_segments.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace opgate::ops::speech_segments {
namespace {

/// A stretch of speech, in samples, and the windows that it was found in.
struct Segment {
  std::int64_t begin, end, first_window, last_window;
};

struct Settings {
  std::int64_t step, rate, most;
  double hysteresis, min_speech, min_silence, pad;

  explicit Settings(const Attributes& attributes)
      : step(attributes.integer("step")),
        rate(attributes.integer("rate")),
        most(attributes.integer("max_segments")),
        hysteresis(attributes.number("hysteresis")),
        min_speech(samples(attributes, "min_speech_ms")),
        min_silence(samples(attributes, "min_silence_ms")),
        pad(samples(attributes, "pad_ms")) {}

  double samples(const Attributes& attributes, const char* milliseconds) const {
    return static_cast<double>(attributes.integer(milliseconds)) * static_cast<double>(rate) / 1000;
  }

  /// Returns the segments of one row of `length` samples, without the pad.
  std::vector<Segment> found(std::span<const float> probabilities, std::int64_t length, float threshold) const {
    const double low = std::max(static_cast<double>(threshold) - hysteresis, 0.01);
    std::vector<Segment> segments;
    bool speaks = false;
    std::int64_t begin = 0, quiet_since = -1, first = 0;
    const auto close = [&](std::int64_t end, std::int64_t last) {
      if (static_cast<double>(end - begin) > min_speech) segments.push_back({begin, end, first, last});
      speaks = false;
      quiet_since = -1;
    };
    const auto windows = static_cast<std::int64_t>(probabilities.size());
    for (std::int64_t i = 0; i < windows; ++i) {
      const float probability = probabilities[static_cast<std::size_t>(i)];
      const std::int64_t at = i * step;
      if (probability >= threshold) {
        quiet_since = -1;
        if (!speaks) {
          speaks = true;
          begin = at;
          first = i;
        }
      } else if (speaks && static_cast<double>(probability) < low) {
        if (quiet_since < 0) quiet_since = at;
        if (static_cast<double>(at - quiet_since) >= min_silence) close(quiet_since, quiet_since / step);
      }
    }
    if (speaks) close(length, windows);
    return segments;
  }

  /// Widens segments, at most to the middle of the silence between them.
  void widen(std::vector<Segment>& segments, std::int64_t length) const {
    const auto whole = [](double samples) { return static_cast<std::int64_t>(samples); };
    if (segments.empty()) return;
    Segment& first = segments.front();
    first.begin = whole(std::max(0.0, static_cast<double>(first.begin) - pad));
    for (std::size_t i = 0; i + 1 < segments.size(); ++i) {
      std::int64_t &end = segments[i].end, &begin = segments[i + 1].begin;
      const std::int64_t silence = begin - end;
      if (static_cast<double>(silence) < 2 * pad) {
        end += silence / 2;
        begin -= silence / 2;
      } else {
        end = whole(static_cast<double>(end) + pad);
        begin = whole(static_cast<double>(begin) - pad);
      }
    }
    Segment& last = segments.back();
    last.end = whole(std::min(static_cast<double>(length), static_cast<double>(last.end) + pad));
  }
};

struct Cpu {
  static Status check(const Attributes& attributes, const KnownSizes&) {
    const auto in_range = [&](const char* name, std::int64_t low, std::int64_t high) {
      return attributes.integer(name) >= low && attributes.integer(name) <= high;
    };
    if (!in_range("step", 1, 1 << 26)) return attributes.refuse("step", "1..2^26 samples");
    if (!in_range("rate", 1, 1 << 26)) return attributes.refuse("rate", "1..2^26 samples a second");
    if (!in_range("max_segments", 1, 1 << 20)) return attributes.refuse("max_segments", "1..2^20");
    for (const char* name : {"threshold", "hysteresis"}) {
      const double value = attributes.number(name);
      if (!(value >= 0 && value <= 1)) return attributes.refuse(name, "0..1");
    }
    for (const char* name : {"min_speech_ms", "min_silence_ms", "pad_ms"})
      if (!in_range(name, 0, 3'600'000)) return attributes.refuse(name, "0..3600000 milliseconds");
    return {};
  }

  Status operator()(Context&, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const Settings settings(attributes);
    const std::int64_t n = in.size("n"), w = in.size("w");
    const auto* const lengths = in["length"].data<std::int32_t>();
    for (std::int64_t row = 0; row < n; ++row) {
      if (lengths[row] < 0) {
        return Status::invalid("input 'length': expected 0 or more samples, got " + std::to_string(lengths[row]) +
                               " at " + std::to_string(row));
      }
      const std::int64_t length = lengths[row];
      const std::int64_t windows = std::min(w, (length + settings.step - 1) / settings.step);
      const std::span<const float> probabilities(in["probabilities"].data<float>() + row * w,
                                                 static_cast<std::size_t>(windows));
      const float threshold = in.has("thresholds") ? in["thresholds"].data<float>()[row]
                                                   : static_cast<float>(attributes.number("threshold"));
      std::vector<Segment> segments = settings.found(probabilities, length, threshold);
      settings.widen(segments, length);
      const std::int64_t count = std::min(static_cast<std::int64_t>(segments.size()), settings.most);
      auto* const times = out["segments"].data<float>() + row * settings.most * 2;
      auto* const scores = out["scores"].data<float>() + row * settings.most;
      std::fill_n(times, settings.most * 2, 0.0f);
      std::fill_n(scores, settings.most, 0.0f);
      for (std::int64_t i = 0; i < count; ++i) {
        const Segment& segment = segments[static_cast<std::size_t>(i)];
        const auto seconds = [&](std::int64_t samples) {
          return static_cast<float>(static_cast<double>(samples) / static_cast<double>(settings.rate));
        };
        times[2 * i] = seconds(segment.begin);
        times[2 * i + 1] = seconds(segment.end);
        double sum = 0;
        for (std::int64_t k = segment.first_window; k < segment.last_window; ++k)
          sum += static_cast<double>(probabilities[static_cast<std::size_t>(k)]);
        scores[i] = static_cast<float>(sum / static_cast<double>(segment.last_window - segment.first_window));
      }
      out["count"].data<std::int32_t>()[row] = static_cast<std::int32_t>(count);
    }
    return {};
  }
};

}  // namespace
}  // namespace opgate::ops::speech_segments

OPGATE_CPU_KERNEL(SpeechSegments, opgate::ops::speech_segments::Cpu)
