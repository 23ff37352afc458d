#include "top_k_labels.h"

#include <algorithm>
#include <vector>

#include "detection/best.h"
#include "kernel_toolkit/convert.h"

namespace opgate::ops::top_k_labels {
namespace {

using detection::Best, detection::exponentials, detection::greatest, detection::kInfinity;

constexpr std::int64_t kBlock = 512;

/// The denominator of a softmax. It is updated by blocks: a greater logit scales the sum down.
struct Denominator {
  float most = -kInfinity;
  double sum = 0;

  void add(float block_most, double block_sum) {
    if (block_sum == 0) return;  // every logit is -infinity
    if (block_most > most) {
      if (sum != 0) sum *= std::exp(static_cast<double>(shift(most)) - shift(block_most));
      most = block_most;
      sum += block_sum;
    } else {
      sum += block_sum * std::exp(static_cast<double>(shift(block_most)) - shift(most));
    }
  }

  /// What is subtracted before the exponential: infinity minus infinity is no number.
  static float shift(float most) { return std::isinf(most) ? 0.0f : most; }
};

/// What is known of a part of a row.
struct Part {
  Denominator denominator;
  std::int64_t found = 0;
};

/// Sees the logits [begin, end) of a row.
template <typename T>
Denominator see(const T* row, std::int64_t begin, std::int64_t end, bool sums, Best& best) {
  Denominator denominator;
  [[maybe_unused]] float wide[kBlock];
  for (std::int64_t at = begin; at < end; at += kBlock) {
    const std::int64_t count = std::min(kBlock, end - at);
    const float* values = nullptr;
    if constexpr (std::is_same_v<T, float>) {
      values = row + at;
    } else {
      widen(row + at, wide, count);
      values = wide;
    }
    const float most = greatest(values, count);
    best.see(values, count, most, at);
    if (sums) denominator.add(most, exponentials(values, count, Denominator::shift(most)));
  }
  return denominator;
}

struct Cpu : Checked {
  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const std::int64_t n = in.size("n"), c = in.size("c"), k = attributes.integer("k");
    if (n == 0 || k == 0) return {};
    const Activation activation = activation_of(attributes);
    const bool sums = activation == Activation::softmax;
    const auto* const logits = in["logits"].data<T>();
    auto* const scores = out["scores"].data<float>();
    auto* const labels = out["labels"].data<std::int32_t>();
    const std::int64_t wanted = std::min(k, c);
    const auto write = [&](std::int64_t row, std::span<const Entry> best, const Denominator& denominator) {
      write_row(logits + row * c, c, best, wanted, activation, denominator, scores + row * k, labels + row * k);
      std::fill(scores + row * k + wanted, scores + (row + 1) * k, 0.0f);
      std::fill(labels + row * k + wanted, labels + (row + 1) * k, -1);
    };
    // A long row is cut into parts, so that all threads have work. The parts are the same for any number of threads.
    const std::int64_t length = std::max(kPart, 8 * std::min(k, c));
    const std::int64_t parts = (c + length - 1) / length;
    if (parts <= 1) {
      context.parallel_for(n, std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(c, 1)),
                           [&](std::int64_t first, std::int64_t last) {
                             for (std::int64_t row = first; row < last; ++row) {
                               Best best(std::max<std::int64_t>(wanted, 1));
                               const Denominator denominator = see(logits + row * c, 0, c, sums, best);
                               write(row, best.sorted(), denominator);
                             }
                           });
      return {};
    }
    const std::span<Part> found = context.scratch<Part>(n * parts);
    const std::span<Entry> entries = context.scratch<Entry>(n * parts * wanted);
    context.parallel_for(n * parts, 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) {
        const std::int64_t row = i / parts, begin = i % parts * length;
        Best best(wanted);
        Part& part = found[static_cast<std::size_t>(i)];
        part.denominator = see(logits + row * c, begin, std::min(begin + length, c), sums, best);
        const std::span<const Entry> sorted = best.sorted();
        part.found = static_cast<std::int64_t>(sorted.size());
        std::copy(sorted.begin(), sorted.end(), entries.begin() + i * wanted);
      }
    });
    context.parallel_for(n, 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t row = first; row < last; ++row) {
        Denominator denominator;
        std::vector<Entry> best;
        for (std::int64_t i = row * parts; i < (row + 1) * parts; ++i) {
          const Part& part = found[static_cast<std::size_t>(i)];
          if (sums) denominator.add(part.denominator.most, part.denominator.sum);
          const auto begin = entries.begin() + i * wanted;
          best.insert(best.end(), begin, begin + part.found);
        }
        const auto kept = std::min(best.size(), static_cast<std::size_t>(wanted));
        std::partial_sort(best.begin(), best.begin() + static_cast<std::ptrdiff_t>(kept), best.end());
        best.resize(kept);
        write(row, best, denominator);
      }
    });
    return {};
  }

 private:
  static constexpr std::int64_t kPart = 65536, kGrain = 16384;

  /// Writes `wanted` classes: the best ones, then those with NaN.
  template <typename T>
  static void write_row(const T* row, std::int64_t c, std::span<const Entry> best, std::int64_t wanted,
                        Activation activation, const Denominator& denominator, float* scores, std::int32_t* labels) {
    // With an infinite logit, infinity minus infinity is no number, and so is the sum.
    const double sum = denominator.most == kInfinity ? std::numeric_limits<double>::quiet_NaN() : denominator.sum;
    const auto write = [&](std::int64_t i, std::int64_t label) {
      scores[i] = score_of(static_cast<float>(row[label]), activation, denominator.most, sum);
      labels[i] = static_cast<std::int32_t>(label);
    };
    auto written = static_cast<std::int64_t>(best.size());
    for (std::int64_t i = 0; i < written; ++i) write(i, label_of(best[static_cast<std::size_t>(i)]));
    for (std::int64_t label = 0; label < c && written < wanted; ++label) {
      if (std::isnan(static_cast<float>(row[label]))) write(written++, label);
    }
  }
};

}  // namespace
}  // namespace opgate::ops::top_k_labels

OPGATE_CPU_KERNEL(TopKLabels, opgate::ops::top_k_labels::Cpu)
