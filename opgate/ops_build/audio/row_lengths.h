// Rows of sound that end before their tensor does: the inputs 'pcm' and 'length', and the output 'frames'.
#pragma once

#include <string>

#include "kernel_toolkit/op.h"

namespace opgate::audio {

/// How many samples each row of 'pcm' has: what the optional input 'length' says, or all.
class RowLengths {
 public:
  /// Refuses lengths that no row has.
  Status read(const Inputs& in) {
    t_ = in.size("t");
    lengths_ = in.has("length") ? in["length"].data<std::int32_t>() : nullptr;
    for (std::int64_t row = 0; lengths_ && row < in.size("n"); ++row) {
      if (lengths_[row] >= 0 && lengths_[row] <= t_) continue;
      return Status::invalid("input 'length': expected 0.." + std::to_string(t_) + " (the samples of a row), got " +
                             std::to_string(lengths_[row]) + " for row " + std::to_string(row));
    }
    return {};
  }

  std::int64_t operator[](std::int64_t row) const { return lengths_ ? lengths_[row] : t_; }

  /// Writes the optional output 'frames': frames_of(length) for each row.
  template <typename FramesOf>
  void write_frames(Outputs& out, std::int64_t n, const FramesOf& frames_of) const {
    if (!out.has("frames")) return;
    auto* const counts = out["frames"].data<std::int32_t>();
    for (std::int64_t row = 0; row < n; ++row) counts[row] = static_cast<std::int32_t>(frames_of((*this)[row]));
  }

 private:
  const std::int32_t* lengths_ = nullptr;
  std::int64_t t_ = 0;
};

}  // namespace opgate::audio
