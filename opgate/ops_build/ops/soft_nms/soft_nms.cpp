#include "soft_nms.h"

#include <algorithm>
#include <vector>

namespace opgate::ops::soft_nms {
namespace {

/// The boxes that may still be kept, in the order of the input.
class Remaining {
 public:
  Remaining(const float* boxes, const float* scores, std::int64_t n) {
    const auto count = static_cast<std::size_t>(n);
    for (std::vector<float>* corner : {&x1_, &y1_, &x2_, &y2_}) corner->reserve(count);
    scores_.reserve(count);
    indices_.reserve(count);
    for (std::int64_t i = 0; i < n; ++i) {
      if (first_score(scores[i]) == kNone) continue;
      x1_.push_back(boxes[4 * i]);
      y1_.push_back(boxes[4 * i + 1]);
      x2_.push_back(boxes[4 * i + 2]);
      y2_.push_back(boxes[4 * i + 3]);
      scores_.push_back(scores[i]);
      indices_.push_back(i);
    }
    live_ = scores_.size();
  }

  bool empty() const { return live_ == 0; }

  /// The place of the first one with the greatest score.
  std::size_t best() const {
    constexpr std::size_t kLanes = 16;
    double most[kLanes];
    std::fill_n(most, kLanes, kNone);
    std::size_t i = 0;
    for (; i + kLanes <= scores_.size(); i += kLanes) {
      for (std::size_t lane = 0; lane < kLanes; ++lane)
        most[lane] = scores_[i + lane] > most[lane] ? scores_[i + lane] : most[lane];
    }
    double greatest = *std::max_element(most, most + kLanes);
    for (; i < scores_.size(); ++i) greatest = std::max(greatest, scores_[i]);
    return static_cast<std::size_t>(std::find(scores_.begin(), scores_.end(), greatest) - scores_.begin());
  }

  Box box(std::size_t i) const { return detection::box_of(x1_[i], y1_[i], x2_[i], y2_[i]); }
  double score(std::size_t i) const { return scores_[i]; }
  std::int64_t index(std::size_t i) const { return indices_[i]; }

  void remove(std::size_t i) {
    scores_[i] = kNone;
    --live_;
  }

  /// Removes those with a score below the least one.
  void remove_below(double least) {
    for (std::size_t i = 0; i < scores_.size(); ++i) {
      if (scores_[i] != kNone && !(scores_[i] >= least)) remove(i);
    }
  }

  void lower(std::size_t kept, const Decay& decay) {
    constexpr std::size_t kBlock = 32;
    const Box box = this->box(kept);
    const float x1 = x1_[kept], y1 = y1_[kept], x2 = x2_[kept], y2 = y2_[kept];
    const bool local = decay.is_local();
    for (std::size_t begin = 0; begin < scores_.size(); begin += kBlock) {
      const std::size_t end = std::min(begin + kBlock, scores_.size());
      // Most boxes are elsewhere, which one vectorized loop over a block of them finds out.
      int met = !local;
      for (std::size_t i = begin; i < end; ++i) met |= (x1_[i] < x2) & (x2_[i] > x1) & (y1_[i] < y2) & (y2_[i] > y1);
      if (!met) continue;
      for (std::size_t i = begin; i < end; ++i) {
        if (scores_[i] == kNone) continue;
        if (local && !((x1_[i] < x2) & (x2_[i] > x1) & (y1_[i] < y2) & (y2_[i] > y1))) continue;
        scores_[i] *= decay.weight(detection::iou(box, this->box(i)));
        if (!(scores_[i] >= decay.min_score)) remove(i);
      }
    }
    if (2 * live_ < scores_.size()) compact();
  }

 private:
  void compact() {
    std::size_t to = 0;
    for (std::size_t i = 0; i < scores_.size(); ++i) {
      if (scores_[i] == kNone) continue;
      x1_[to] = x1_[i];
      y1_[to] = y1_[i];
      x2_[to] = x2_[i];
      y2_[to] = y2_[i];
      indices_[to] = indices_[i];
      scores_[to++] = scores_[i];
    }
    for (std::vector<float>* corner : {&x1_, &y1_, &x2_, &y2_}) corner->resize(to);
    scores_.resize(to);
    indices_.resize(to);
  }

  std::vector<float> x1_, y1_, x2_, y2_;
  std::vector<double> scores_;
  std::vector<std::int64_t> indices_;
  std::size_t live_ = 0;
};

struct Kept {
  std::int64_t index;
  double score;
};

struct Cpu : Checked {
  Status operator()(Context&, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const Decay decay = Decay::of(attributes);
    const auto* const boxes = in["boxes"].data<float>();
    Remaining remaining(boxes, in["scores"].data<float>(), in.size("n"));
    std::vector<Kept> kept;
    while (!remaining.empty()) {
      const std::size_t best = remaining.best();
      kept.push_back({remaining.index(best), remaining.score(best)});
      remaining.remove(best);
      remaining.lower(best, decay);
      if (kept.size() == 1) remaining.remove_below(decay.min_score);  // those that nothing has lowered
    }
    OPGATE_RETURN_IF_ERROR(out.bind("k", static_cast<std::int64_t>(kept.size())));
    auto* const detections = out["detections"].data<float>();
    auto* const indices = out["indices"].data<std::int64_t>();
    for (std::size_t i = 0; i < kept.size(); ++i) {
      std::copy_n(boxes + 4 * kept[i].index, 4, detections + 5 * i);
      detections[5 * i + 4] = static_cast<float>(kept[i].score);
      indices[i] = kept[i].index;
    }
    return {};
  }
};

}  // namespace
}  // namespace opgate::ops::soft_nms

OPGATE_CPU_KERNEL(SoftNMS, opgate::ops::soft_nms::Cpu)
