// Greedy non-maximum suppression on the CPU.
//
// A picture is a type with
//   std::int64_t classes, anchors;
//   const float* scores() const;                                  [classes, anchors], or Scores<T>
//   Box box(std::int64_t anchor) const;                            or RotatedBox
//   std::vector<std::int64_t> groups() const;                     may be left out: the group of each anchor, 0, 1, ...
// The boxes of a class suppress one another. If there are groups there is one class, and those of a group do so.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "greater.h"
#include "kernel_toolkit/convert.h"
#include "nms.h"

namespace opgate::detection {

template <typename Picture>
auto scores_of(const Picture& picture) {
  if constexpr (std::is_pointer_v<decltype(picture.scores())>)
    return Scores<float>{picture.scores(), picture.classes, picture.anchors, picture.anchors, false};
  else
    return picture.scores();
}

/// A block of scores as floats: they themselves, or a copy in `room`.
inline const float* as_floats(const float* values, std::int64_t, float*) { return values; }

template <typename T>
const float* as_floats(const T* values, std::int64_t count, float* room) {
  widen(values, room, count);
  return room;
}

template <typename Picture>
std::vector<Candidate> candidates_of(const Picture& picture, float threshold) {
  constexpr std::int64_t kBlock = 64;
  float room[kBlock];
  std::vector<Candidate> found;
  const auto scores = scores_of(picture);
  if (scores.length == 0) return found;  // of very many lines, perhaps
  for (std::int64_t line = 0; line < scores.lines; ++line) {
    for (std::int64_t begin = 0; begin < scores.length; begin += kBlock) {
      const std::int64_t count = std::min(kBlock, scores.length - begin);
      const float* block = as_floats(scores.line(line) + begin, count, room);
      if (scores.weights) {
        for (std::int64_t i = 0; i < count; ++i)
          room[i] = block[i] * scores.weight(scores.by_anchor ? line : begin + i);
        block = room;
      }
      for_each_greater(block, count, threshold, [&](std::int64_t i) {
        const std::int64_t at = begin + i;
        const std::int64_t index = scores.by_anchor ? line * picture.classes + at : at * picture.classes + line;
        found.push_back(candidate(block[i], static_cast<std::uint32_t>(index)));
      });
    }
  }
  return found;
}

/// The boxes that were kept, in groups whose boxes suppress one another. A group is a list of blocks, and the blocks of
/// all groups lie in one piece of memory: most groups have few boxes.
template <typename Box>
class KeptBoxes {
 public:
  explicit KeptBoxes(std::int64_t groups) : last_(static_cast<std::size_t>(groups), -1) {}

  void add(std::size_t group, const Box& box) {
    if (last_[group] < 0 || blocks_[at(last_[group])].count == kBlock) {
      blocks_.emplace_back().before = last_[group];
      last_[group] = static_cast<std::int32_t>(blocks_.size() - 1);
    }
    Block& block = blocks_[at(last_[group])];
    const Outer outer(box);
    block.boxes[block.count] = box;
    block.x1[block.count] = outer.x1;
    block.y1[block.count] = outer.y1;
    block.x2[block.count] = outer.x2;
    block.y2[block.count] = outer.y2;
    ++block.count;
  }

  /// Whether the IoU of the box with one of the group is greater than `threshold`.
  bool suppress(std::size_t group, const Box& box, double threshold) const {
    const Outer outer(box);
    for (std::int32_t number = last_[group]; number >= 0; number = blocks_[at(number)].before) {
      const Block& block = blocks_[at(number)];
      // Nearly all boxes are elsewhere, which one vectorized loop over a block of them finds out.
      int met = 0;
      for (int i = 0; i < kBlock; ++i) met |= block.meets(outer, i);
      if (!met) continue;
      for (int i = 0; i < block.count; ++i) {
        if (block.meets(outer, i) && iou(block.boxes[i], box) > threshold) return true;
      }
    }
    return false;
  }

 private:
  static constexpr int kBlock = 16;
  static constexpr float kInfinity = std::numeric_limits<float>::infinity();

  struct Block {
    // A place without a box meets none.
    Block() { std::fill_n(x1, kBlock, kInfinity); }

    int meets(const Outer& outer, int i) const {
      return (x1[i] < outer.x2) & (x2[i] > outer.x1) & (y1[i] < outer.y2) & (y2[i] > outer.y1);
    }

    float x1[kBlock], y1[kBlock] = {}, x2[kBlock] = {}, y2[kBlock] = {};
    int count = 0;
    std::int32_t before = -1;  ///< the block of the group before this one
    Box boxes[kBlock];
  };

  static std::size_t at(std::int32_t number) { return static_cast<std::size_t>(number); }

  std::vector<std::int32_t> last_;  ///< the last block of each group, or -1
  std::vector<Block> blocks_;
};

template <typename Picture>
using BoxOf = decltype(std::declval<const Picture&>().box(0));

template <typename Box>
struct Kept {
  Box box;
  std::int64_t anchor, label;
  float score;
};

/// Greedy suppression over all candidates in their order. This is also the order of the output, so it stops at the last
/// wanted detection. For this reason the candidates are sorted chunk by chunk.
template <typename Picture>
std::vector<Kept<BoxOf<Picture>>> suppress(const Picture& picture, const Limits& limits) {
  using Box = BoxOf<Picture>;
  std::vector<Kept<Box>> kept;
  if (limits.max_detections <= 0 || limits.max_per_class <= 0) return kept;
  std::vector<Candidate> candidates = candidates_of(picture, limits.score_threshold);
  if (candidates.empty()) return kept;
  std::vector<std::int64_t> groups;
  if constexpr (requires { picture.groups(); }) groups = picture.groups();
  const std::int64_t classes = groups.empty() ? picture.classes : *std::max_element(groups.begin(), groups.end()) + 1;
  KeptBoxes<Box> others(limits.class_agnostic ? 1 : classes);
  std::vector<std::int64_t> numbers;  // the boxes kept of each class, if somebody limits them
  if (limits.max_per_class < limits.max_detections) numbers.resize(static_cast<std::size_t>(classes));
  std::size_t sorted = 0;
  for (std::size_t next = 0; next < candidates.size(); ++next) {
    if (static_cast<std::int64_t>(kept.size()) == limits.max_detections) break;
    if (next == sorted) {
      sorted = std::min(candidates.size(), 2 * sorted + 512);
      const auto end = candidates.begin() + static_cast<std::ptrdiff_t>(sorted);
      const auto begin = candidates.begin() + static_cast<std::ptrdiff_t>(next);
      if (end != candidates.end()) std::nth_element(begin, end, candidates.end());
      std::sort(begin, end);
    }
    const std::int64_t anchor = index_of(candidates[next]) / picture.classes;
    const std::int64_t label = index_of(candidates[next]) % picture.classes;
    const auto of_class = static_cast<std::size_t>(groups.empty() ? label : groups[static_cast<std::size_t>(anchor)]);
    if (!numbers.empty() && numbers[of_class] == limits.max_per_class) continue;
    const Box box = picture.box(anchor);
    const std::size_t group = limits.class_agnostic ? 0 : of_class;
    if (others.suppress(group, box, limits.iou_threshold)) continue;
    others.add(group, box);
    if (!numbers.empty()) ++numbers[of_class];
    kept.push_back({box, anchor, label, scores_of(picture).of(anchor, label)});
  }
  return kept;
}

}  // namespace opgate::detection
