#include "ctc_greedy_decode.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "detection/best.h"
#include "kernel_toolkit/convert.h"

namespace opgate::ops::ctc_greedy_decode {
namespace {

using detection::exponentials, detection::greatest, detection::kInfinity;

constexpr std::int64_t kBlock = 512, kGrain = 32768;

/// The best class of a step: the first of the greatest numbers. A NaN is less than any number.
struct Best {
  float value = -kInfinity;
  std::int64_t label = 0;
};

/// Calls use(values, count, label of the first) for the blocks of a step in f32, until it returns false.
template <typename T, typename Use>
void for_each_block(const T* step, std::int64_t c, Use use) {
  [[maybe_unused]] float wide[kBlock];
  for (std::int64_t at = 0; at < c; at += kBlock) {
    const std::int64_t count = std::min(kBlock, c - at);
    if constexpr (std::is_same_v<T, float>) {
      if (!use(step + at, count, at)) return;
    } else {
      widen(step + at, wide, count);
      if (!use(wide, count, at)) return;
    }
  }
}

template <typename T>
Best best_of(const T* step, std::int64_t c) {
  Best best;
  std::int64_t block = 0;
  for_each_block(step, c, [&](const float* values, std::int64_t count, std::int64_t at) {
    if (const float most = greatest(values, count); most > best.value) {
      best.value = most;
      block = at;
    }
    return true;
  });
  while (block < c && !(static_cast<float>(step[block]) == best.value)) ++block;
  best.label = block < c ? block : 0;  // a step of NaN has no number
  return best;
}

/// The softmax of the greatest number of a step.
template <typename T>
double softmax_of_best(const T* step, std::int64_t c, float most) {
  if (std::isinf(most)) return std::numeric_limits<double>::quiet_NaN();
  double sum = 0;
  for_each_block(step, c, [&](const float* values, std::int64_t count, std::int64_t) {
    sum += exponentials(values, count, most);
    return true;
  });
  return 1 / sum;
}

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
          const Best best = best_of(step, c);
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
