#include "corner_pool.h"

#include <algorithm>

#include "kernel_toolkit/convert.h"

namespace opgate::ops::corner_pool {
namespace {

constexpr std::int64_t kBlock = 512, kRows = 8;

template <typename T>
constexpr bool kNarrow = sizeof(T) == 2;

/// The running maxima down or up the columns [begin, end) of a plane. Whole rows are vectorized.
template <typename T>
void down(const T* x, T* y, std::int64_t h, std::int64_t w, std::int64_t begin, std::int64_t end, bool up) {
  const std::int64_t count = end - begin;
  [[maybe_unused]] float most[kBlock], row[kBlock];
  for (std::int64_t i = 0; i < h; ++i) {
    const std::int64_t at = (up ? h - 1 - i : i) * w + begin;
    if constexpr (kNarrow<T>) {
      widen(x + at, i == 0 ? most : row, count);
      if (i > 0) {
        for (std::int64_t k = 0; k < count; ++k) most[k] = greater(most[k], row[k]);
      }
      narrow(most, y + at, count);
    } else {
      const T* const from = x + at;
      T* const to = y + at;
      if (i == 0) {
        std::copy_n(from, count, to);
        continue;
      }
      const T* const before = up ? to + w : to - w;
      for (std::int64_t k = 0; k < count; ++k) to[k] = greater(before[k], from[k]);
    }
  }
}

/// The running maxima along `rows` rows of equal length, side by side: each is a chain, so several keep the processor
/// busy. `most` holds the maxima so far.
template <int rows, typename V>
void along(const V* x, V* y, std::int64_t stride, std::int64_t count, bool left, V* most) {
  V held[rows];
  std::copy_n(most, rows, held);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t at = left ? count - 1 - i : i;
    for (int r = 0; r < rows; ++r) {
      held[r] = greater(held[r], x[r * stride + at]);
      y[r * stride + at] = held[r];
    }
  }
  std::copy_n(held, rows, most);
}

template <int rows, typename T>
void along_rows(const T* x, T* y, std::int64_t w, bool left) {
  using Wide = std::conditional_t<kNarrow<T>, float, T>;
  Wide most[rows];
  for (int r = 0; r < rows; ++r) most[r] = static_cast<Wide>(x[r * w + (left ? w - 1 : 0)]);
  if constexpr (kNarrow<T>) {
    float wide[rows * kBlock];
    for (std::int64_t done = 0; done < w; done += kBlock) {
      const std::int64_t count = std::min(kBlock, w - done), begin = left ? w - done - count : done;
      for (int r = 0; r < rows; ++r) widen(x + r * w + begin, wide + r * kBlock, count);
      along<rows>(wide, wide, kBlock, count, left, most);
      for (int r = 0; r < rows; ++r) narrow(wide + r * kBlock, y + r * w + begin, count);
    }
  } else {
    along<rows>(x, y, w, w, left, most);
  }
}

struct Cpu {
  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const Mode mode = Mode::of(attributes);
    const std::int64_t planes = in.size("n") * in.size("c"), h = in.size("h"), w = in.size("w");
    const T* const x = in["x"].data<T>();
    T* const y = out["y"].data<T>();
    if (planes == 0 || h == 0 || w == 0) return {};
    if (mode.vertical) {
      const std::int64_t blocks = (w + kBlock - 1) / kBlock;
      const std::int64_t grain = std::max<std::int64_t>(1, kGrain / (h * std::min(w, kBlock)));
      context.parallel_for(planes * blocks, grain, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t i = first; i < last; ++i) {
          const std::int64_t plane = i / blocks * h * w, begin = i % blocks * kBlock;
          down(x + plane, y + plane, h, w, begin, std::min(begin + kBlock, w), mode.backwards);
        }
      });
    } else {
      context.parallel_for(planes * h, std::max<std::int64_t>(kRows, kGrain / w),
                           [&](std::int64_t first, std::int64_t last) {
                             std::int64_t row = first;
                             for (; row + kRows <= last; row += kRows)
                               along_rows<kRows>(x + row * w, y + row * w, w, mode.backwards);
                             for (; row < last; ++row) along_rows<1>(x + row * w, y + row * w, w, mode.backwards);
                           });
    }
    return {};
  }

 private:
  static constexpr std::int64_t kGrain = 16384;
};

}  // namespace
}  // namespace opgate::ops::corner_pool

OPGATE_CPU_KERNEL(CornerPool, opgate::ops::corner_pool::Cpu)
