#include "speech_segments.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <vector>

namespace opgate::ops::speech_segments {
namespace {

/// A stretch of speech that is final: from sample to sample, and the mean probability of its windows.
struct Segment {
  double begin, end, score;
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
};

/// What is kept of the windows of a sound so far, in the order of a row of `state`. Places are in samples. Those that
/// may be none have 1 added, so that all is 0 before the first window.
struct State {
  double samples;                      ///< how many there were
  double begun;                        ///< where the speech that goes on began
  double quiet;                        ///< where its silence began, if it has one
  double total, number;                ///< the sum and the number of the probabilities since it began
  double total_before, number_before;  ///< those before its silence
  double first, ended, score;          ///< a segment whose end the next one may still move: begin, end, score
};
constexpr std::int64_t kNumbers = sizeof(State) / sizeof(double);

/// Listens to the windows of one sound. A segment is final once no later one can move its end.
class Listener {
 public:
  Listener(const Settings& settings, const State& state) : settings_(settings), state_(state) {}

  /// Hears windows that have `length` samples.
  void hear(std::span<const float> probabilities, std::int64_t length, float threshold) {
    const double before = state_.samples, behind = before + static_cast<double>(length);
    const auto at = [&](std::size_t i) {
      return before + static_cast<double>(i) * static_cast<double>(settings_.step);
    };
    const float low = quiet_below(threshold);
    const std::size_t count = probabilities.size();
    std::size_t i = 0;
    while (i < count) {
      if (state_.begun == 0) {
        const std::size_t silent = i;
        i = first_from(i, probabilities, [&](float probability) { return probability >= threshold; });
        if (i > silent) finish_before(std::min(at(i), behind));
        if (i == count) break;
        state_.begun = at(i) + 1;
        finish_before(at(i));
      }
      if (state_.quiet == 0) {
        const std::size_t loud = i;
        i = first_from(i, probabilities, [&](float probability) { return probability < low; });
        add(probabilities.subspan(loud, i - loud));
        if (i == count) break;
        state_.quiet = at(i) + 1;
        state_.total_before = state_.total;
        state_.number_before = state_.number;
      }
      const double end = state_.quiet - 1;
      for (; i < count; ++i) {
        if (probabilities[i] >= threshold) {
          state_.quiet = 0;
          break;
        }
        if (probabilities[i] < low && at(i) - end >= settings_.min_silence) {
          close(end, state_.total_before, state_.number_before);
          break;
        }
        add(probabilities.subspan(i, 1));
      }
    }
    state_.samples = behind;
  }

  /// Ends the sound.
  void end() {
    if (state_.begun != 0) close(state_.samples, state_.total, state_.number);
    if (state_.ended != 0) finish(whole(std::min(state_.samples, padded_end())));
    state_ = {};
  }

  /// Where the speech that goes on begins once it is widened, at most to the middle of the silence before it; nothing
  /// while nobody speaks.
  std::optional<double> since() const {
    if (state_.begun == 0) return std::nullopt;
    const double begin = state_.begun - 1;
    return joins() ? begin - half_the_silence() : whole(std::max(0.0, begin - settings_.pad));
  }

  const std::vector<Segment>& segments() const { return segments_; }
  const State& state() const { return state_; }

 private:
  static double whole(double samples) { return std::trunc(samples); }

  /// Below this no window is speech, and with it silence begins.
  float quiet_below(float threshold) const {
    const double low = std::max(static_cast<double>(threshold) - settings_.hysteresis, 0.01);
    auto rounded = static_cast<float>(low);
    if (static_cast<double>(rounded) < low) rounded = std::nextafter(rounded, 1.0f);
    return std::min(threshold, rounded);
  }

  /// The first window from i on that fits, or their count.
  template <typename Fits>
  static std::size_t first_from(std::size_t i, std::span<const float> probabilities, const Fits& fits) {
    constexpr std::size_t kBlock = 32;  // without a way out in between they are compared side by side
    const std::size_t count = probabilities.size();
    for (; i + kBlock <= count; i += kBlock) {
      int some = 0;
      for (std::size_t k = 0; k < kBlock; ++k) some |= static_cast<int>(fits(probabilities[i + k]));
      if (some != 0) break;
    }
    while (i < count && !fits(probabilities[i])) ++i;
    return i;
  }

  void add(std::span<const float> probabilities) {
    double total = state_.total;
    for (const float probability : probabilities) total += static_cast<double>(probability);
    state_.total = total;
    state_.number += static_cast<double>(probabilities.size());
  }

  /// Makes the segment that waits final, if no speech from a place on can move its end.
  void finish_before(double place) {
    if (state_.ended != 0 && place - (state_.ended - 1) >= 2 * settings_.pad) finish(whole(padded_end()));
  }

  double padded_end() const { return state_.ended - 1 + settings_.pad; }
  double silence() const { return state_.begun - state_.ended; }
  double half_the_silence() const { return std::floor(silence() / 2); }
  /// Whether the pads of the speech that goes on and of the segment before it meet.
  bool joins() const { return state_.ended != 0 && silence() < 2 * settings_.pad; }

  /// Ends the speech that goes on, which is dropped if it is short.
  void close(double end, double total, double number) {
    if (end - (state_.begun - 1) > settings_.min_speech) {
      const double begin = since().value_or(0);
      if (state_.ended != 0) finish(joins() ? state_.ended - 1 + half_the_silence() : whole(padded_end()));
      state_.first = begin;
      state_.ended = end + 1;
      state_.score = total / number;
    }
    state_.begun = state_.quiet = state_.total = state_.number = 0;
  }

  /// Makes the segment that waits final.
  void finish(double end) {
    segments_.push_back({state_.first, end, state_.score});
    state_.ended = 0;
  }

  const Settings& settings_;
  State state_;
  std::vector<Segment> segments_;
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
      State state{};
      if (in.has("state")) std::memcpy(&state, in["state"].data<double>() + row * kNumbers, sizeof state);
      Listener listener(settings, state);
      listener.hear(probabilities, length, threshold);
      if (!in.has("last") || in["last"].data<std::int32_t>()[row] != 0) listener.end();
      write(listener, settings, row, out);
    }
    return {};
  }

  static void write(const Listener& listener, const Settings& settings, std::int64_t row, Outputs& out) {
    const std::vector<Segment>& segments = listener.segments();
    const std::int64_t count = std::min(static_cast<std::int64_t>(segments.size()), settings.most);
    auto* const times = out["segments"].data<float>() + row * settings.most * 2;
    auto* const scores = out["scores"].data<float>() + row * settings.most;
    std::fill_n(times, settings.most * 2, 0.0f);
    std::fill_n(scores, settings.most, 0.0f);
    const auto seconds = [&](double samples) {
      return static_cast<float>(samples / static_cast<double>(settings.rate));
    };
    for (std::int64_t i = 0; i < count; ++i) {
      const Segment& segment = segments[static_cast<std::size_t>(i)];
      times[2 * i] = seconds(segment.begin);
      times[2 * i + 1] = seconds(segment.end);
      scores[i] = static_cast<float>(segment.score);
    }
    out["count"].data<std::int32_t>()[row] = static_cast<std::int32_t>(count);
    if (out.has("next_state"))
      std::memcpy(out["next_state"].data<double>() + row * kNumbers, &listener.state(), sizeof(State));
    if (out.has("since")) {
      const std::optional<double> begin = listener.since();
      out["since"].data<float>()[row] = begin ? seconds(*begin) : -1;
    }
  }
};

}  // namespace
}  // namespace opgate::ops::speech_segments

OPGATE_CPU_KERNEL(SpeechSegments, opgate::ops::speech_segments::Cpu)
