#include "ctc_greedy_decode.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "core/convert.h"
#include "core/elementary.h"

namespace opgate::ops::ctc_greedy_decode {
namespace {

constexpr std::int64_t kBlock = 512, kLanes = 32, kGrain = 32768;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// The best class of a step: the first of the greatest numbers. A NaN is less than any number.
struct Best {
  float value = -kInfinity;
  std::int64_t label = 0;
};

/// The greatest of a block, without NaN. -infinity if there is none.
float greatest(const float* values, std::int64_t count) {
  std::array<float, kLanes> most;
  most.fill(-kInfinity);
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane)
      most[lane] = select(values[i + lane] > most[lane], values[i + lane], most[lane]);
  }
  for (; i < count; ++i) most[0] = select(values[i] > most[0], values[i], most[0]);
  return *std::max_element(most.begin(), most.end());
}

/// The sum of exp(value - shift) of a block.
float exponentials(const float* values, std::int64_t count, float shift) {
  std::array<float, kLanes> sums{};
  const auto term = [shift](float value) {
    const float x = value - shift;
    return select(x < kExpLow<float>, 0.0f, exp_in_range(held(x, kExpLow<float>, kExpHigh<float>)));
  };
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) sums[lane] += term(values[i + lane]);
  }
  for (; i < count; ++i) sums[0] += term(values[i]);
  float sum = 0;
  for (const float lane : sums) sum += lane;
  return sum;
}

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
