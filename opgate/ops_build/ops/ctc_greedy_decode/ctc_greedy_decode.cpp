#include "ctc_greedy_decode.h"

#include <algorithm>

#include "detection/best_class.h"

namespace opgate::ops::ctc_greedy_decode {
namespace {

using detection::BestClass, detection::best_of, detection::softmax_of_best;

constexpr std::int64_t kGrain = 32768;

struct Cpu : Checked {
  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const std::int64_t n = in.size("n"), t = in.size("t"), c = in.size("c"), blank = attributes.integer("blank");
    const bool softmax = attributes.text("activation") == "softmax";
    const auto* const logits = in["logits"].data<T>();
    auto* const labels = out["labels"].data<std::int32_t>();
    auto* const count = out["count"].data<std::int32_t>();
    auto* const score = out["score"].data<float>();
    const std::int64_t cost = std::max<std::int64_t>(t * c, 1);
    context.parallel_for(n, std::max<std::int64_t>(1, kGrain / cost), [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t row = first; row < last; ++row) {
        std::int32_t* const text = labels + row * t;
        std::int64_t kept = 0, before = blank;
        double sum = 0;
        for (std::int64_t i = 0; i < t; ++i) {
          const T* const step = logits + (row * t + i) * c;
          const BestClass best = best_of(step, c);
          if (best.label != before && best.label != blank) {
            text[kept++] = static_cast<std::int32_t>(best.label);
            sum += softmax ? softmax_of_best(step, c, best.value) : static_cast<double>(best.value);
          }
          before = best.label;
        }
        std::fill(text + kept, text + t, -1);
        count[row] = static_cast<std::int32_t>(kept);
        score[row] = kept == 0 ? 0.0f : static_cast<float>(sum / static_cast<double>(kept));
      }
    });
    return {};
  }
};

}  // namespace
}  // namespace opgate::ops::ctc_greedy_decode

OPGATE_CPU_KERNEL(CTCGreedyDecode, opgate::ops::ctc_greedy_decode::Cpu)
