#include "note_events.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace opgate::ops::note_events {
namespace {

struct Note {
  std::int64_t begin, end, pitch;
  double amplitude;
};

/// How many frames before one are compared with it to infer that a note begins.
constexpr std::int64_t kBefore = 2;

struct Settings {
  std::int64_t most, min_frames, tolerance;
  double onset, frame;
  bool infer, without_onsets;

  explicit Settings(const Attributes& attributes)
      : most(attributes.integer("max_notes")),
        min_frames(attributes.integer("min_frames")),
        tolerance(attributes.integer("tolerance")),
        onset(attributes.number("onset_threshold")),
        frame(attributes.number("frame_threshold")),
        infer(attributes.boolean("infer_onsets")),
        without_onsets(attributes.boolean("without_onsets")) {}
};

/// Finds the notes of one row of `t` frames with `p` pitches.
class Row {
 public:
  Row(const Settings& settings, const float* onsets, const float* frames, std::int64_t t, std::int64_t p)
      : settings_(settings),
        frames_(frames),
        t_(t),
        p_(p),
        left_(frames, frames + t * p),
        onsets_(onsets, onsets + t * p) {
    if (settings_.infer) infer();
  }

  std::vector<Note> notes() {
    for (std::int64_t i = t_ - 2; i > 0; --i) {
      for (std::int64_t pitch = p_ - 1; pitch >= 0; --pitch) {
        const double here = onset(i, pitch);
        if (here >= settings_.onset && here > onset(i - 1, pitch) && here > onset(i + 1, pitch)) from_onset(i, pitch);
      }
    }
    if (settings_.without_onsets) rest();
    std::sort(found_.begin(), found_.end(), [](const Note& a, const Note& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.pitch != b.pitch ? a.pitch < b.pitch : a.end < b.end;
    });
    return std::move(found_);
  }

 private:
  double onset(std::int64_t i, std::int64_t pitch) const { return onsets_[static_cast<std::size_t>(i * p_ + pitch)]; }
  float& left(std::int64_t i, std::int64_t pitch) { return left_[static_cast<std::size_t>(i * p_ + pitch)]; }

  /// Raises onsets where the frames grow fast, in proportion to the greatest onset.
  void infer() {
    std::vector<double> grown(onsets_.size());
    double most = 0, greatest = onsets_.empty() ? 0 : *std::max_element(onsets_.begin(), onsets_.end());
    for (std::int64_t i = kBefore; i < t_; ++i) {
      for (std::int64_t pitch = 0; pitch < p_; ++pitch) {
        const auto at = [&](std::int64_t k) { return static_cast<double>(frames_[k * p_ + pitch]); };
        double least = at(i) - at(i - 1);
        for (std::int64_t k = 2; k <= kBefore; ++k) least = std::min(least, at(i) - at(i - k));
        grown[static_cast<std::size_t>(i * p_ + pitch)] = std::max(least, 0.0);
        most = std::max(most, least);
      }
    }
    if (!(most > 0)) return;
    for (std::size_t i = 0; i < grown.size(); ++i) onsets_[i] = std::max(onsets_[i], greatest * grown[i] / most);
  }

  /// Takes the energy of a pitch and of those beside it away.
  void clear(std::int64_t i, std::int64_t pitch) {
    left(i, pitch) = 0;
    if (pitch + 1 < p_) left(i, pitch + 1) = 0;
    if (pitch > 0) left(i, pitch - 1) = 0;
  }

  void add(std::int64_t begin, std::int64_t end, std::int64_t pitch) {
    double sum = 0;
    for (std::int64_t i = begin; i < end; ++i) sum += static_cast<double>(frames_[i * p_ + pitch]);
    found_.push_back({begin, end, pitch, sum / static_cast<double>(end - begin)});
  }

  void from_onset(std::int64_t begin, std::int64_t pitch) {
    std::int64_t i = begin + 1, quiet = 0;
    for (; i < t_ - 1 && quiet < settings_.tolerance; ++i) quiet = below(i, pitch) ? quiet + 1 : 0;
    i -= quiet;
    if (i - begin <= settings_.min_frames) return;
    for (std::int64_t k = begin; k < i; ++k) clear(k, pitch);
    add(begin, i, pitch);
  }

  bool below(std::int64_t i, std::int64_t pitch) { return static_cast<double>(left(i, pitch)) < settings_.frame; }

  /// Notes out of the energy that no onset explains, the loudest frame first.
  void rest() {
    std::vector<std::int64_t> order;
    for (std::int64_t i = 0; i < t_ * p_; ++i)
      if (static_cast<double>(left_[static_cast<std::size_t>(i)]) > settings_.frame) order.push_back(i);
    const std::vector<float> was = left_;
    std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
      return was[static_cast<std::size_t>(a)] > was[static_cast<std::size_t>(b)];
    });
    for (const std::int64_t place : order) {
      if (left_[static_cast<std::size_t>(place)] != 0) around(place / p_, place % p_);
    }
  }

  void around(std::int64_t middle, std::int64_t pitch) {
    left(middle, pitch) = 0;
    std::int64_t i = middle + 1, quiet = 0;
    for (; i < t_ - 1 && quiet < settings_.tolerance; ++i) {
      quiet = below(i, pitch) ? quiet + 1 : 0;
      clear(i, pitch);
    }
    const std::int64_t end = i - 1 - quiet;
    quiet = 0;
    for (i = middle - 1; i > 0 && quiet < settings_.tolerance; --i) {
      quiet = below(i, pitch) ? quiet + 1 : 0;
      clear(i, pitch);
    }
    const std::int64_t begin = i + 1 + quiet;
    if (end - begin > settings_.min_frames) add(begin, end, pitch);
  }

  const Settings& settings_;
  const float* frames_;
  std::int64_t t_, p_;
  std::vector<float> left_;
  std::vector<double> onsets_;
  std::vector<Note> found_;
};

struct Cpu {
  static Status check(const Attributes& attributes, const KnownSizes& sizes) {
    const std::int64_t most = attributes.integer("max_notes");
    if (most < 1 || most > 1 << 20) return attributes.refuse("max_notes", "1..2^20");
    for (const char* name : {"onset_threshold", "frame_threshold"})
      if (!(attributes.number(name) >= 0 && attributes.number(name) <= 1)) return attributes.refuse(name, "0..1");
    for (const char* name : {"min_frames", "tolerance"})
      if (attributes.integer(name) < 0 || attributes.integer(name) > 1 << 20) return attributes.refuse(name, "0..2^20");
    const auto p = sizes["p"];
    if (p && *p > 1 << 16)
      return Status::invalid("input 'onsets': expected up to 65536 pitches, got " + std::to_string(*p));
    return {};
  }

  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const Settings settings(attributes);
    const std::int64_t n = in.size("n"), t = in.size("t"), p = in.size("p");
    const auto* const lengths = in["length"].data<std::int32_t>();
    for (std::int64_t row = 0; row < n; ++row) {
      if (lengths[row] < 0 || lengths[row] > t) {
        return Status::invalid("input 'length': expected 0.." + std::to_string(t) + " frames, got " +
                               std::to_string(lengths[row]) + " at " + std::to_string(row));
      }
    }
    context.parallel_for(n, 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t row = first; row < last; ++row) {
        Settings own = settings;
        if (in.has("thresholds")) own.onset = static_cast<double>(in["thresholds"].data<float>()[row]);
        const std::int64_t at = row * t * p;
        const std::vector<Note> notes =
            Row(own, in["onsets"].data<float>() + at, in["frames"].data<float>() + at, lengths[row], p).notes();
        write(notes, settings.most, row, out);
      }
    });
    return {};
  }

  static void write(const std::vector<Note>& notes, std::int64_t most, std::int64_t row, Outputs& out) {
    auto* const begin = out["begin"].data<std::int32_t>() + row * most;
    auto* const end = out["end"].data<std::int32_t>() + row * most;
    auto* const pitch = out["pitch"].data<std::int32_t>() + row * most;
    auto* const amplitude = out["amplitude"].data<float>() + row * most;
    const std::int64_t count = std::min<std::int64_t>(static_cast<std::int64_t>(notes.size()), most);
    for (std::int64_t i = 0; i < most; ++i) {
      const Note note = i < count ? notes[static_cast<std::size_t>(i)] : Note{};
      begin[i] = static_cast<std::int32_t>(note.begin);
      end[i] = static_cast<std::int32_t>(note.end);
      pitch[i] = static_cast<std::int32_t>(note.pitch);
      amplitude[i] = static_cast<float>(note.amplitude);
    }
    out["count"].data<std::int32_t>()[row] = static_cast<std::int32_t>(count);
  }
};

}  // namespace
}  // namespace opgate::ops::note_events

OPGATE_CPU_KERNEL(NoteEvents, opgate::ops::note_events::Cpu)
