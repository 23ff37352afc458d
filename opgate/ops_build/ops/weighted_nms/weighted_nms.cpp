#include "weighted_nms.h"

#include "detection/greedy.h"

namespace opgate::ops::weighted_nms {
namespace {

class Cpu : public Checked {
 public:
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const Batch batch = Batch::of(in, attributes, out);
    context.parallel_for(batch.n, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) run_picture(batch, i);
    });
    return {};
  }

 private:
  static void run_picture(const Batch& batch, std::int64_t i) {
    const Picture picture = batch.picture(i);
    const detection::Limits limits = batch.limits_of(i);
    std::vector<Candidate> left = detection::candidates_of(picture, limits.score_threshold);
    std::sort(left.begin(), left.end());
    std::int64_t kept = 0;
    for (; kept < limits.max_detections && !left.empty(); ++kept) {
      const Candidate best = left.front();
      const Box box = picture.box(picture.anchor_of(best));
      const auto others = std::stable_partition(left.begin(), left.end(),
                                                [&](Candidate one) { return picture.belongs(one, best, box, limits); });
      write_mean(picture, {left.begin(), others}, batch.detection(i, kept));
      batch.write(i, kept, picture, best);
      left.erase(left.begin(), others);
    }
    batch.count[i] = static_cast<std::int32_t>(kept);
    for (; kept < limits.max_detections; ++kept) batch.clear(i, kept);
  }

  static void write_mean(const Picture& picture, std::span<const Candidate> all, float* mean) {
    double total = 0;
    for (const Candidate one : all) total += picture.score_of(one);
    for (std::int64_t c = 0; c < picture.numbers; ++c) {
      double sum = 0;
      for (const Candidate one : all) sum += picture.score_of(one) * picture.number_of(one, c);
      mean[c] = static_cast<float>(sum / total);
    }
  }
};

}  // namespace
}  // namespace opgate::ops::weighted_nms

OPGATE_CPU_KERNEL(WeightedNMS, opgate::ops::weighted_nms::Cpu)
