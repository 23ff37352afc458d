#include "sliding_window.h"

#include <algorithm>
#include <vector>

#include "core/elementwise.h"

namespace opgate::ops::sliding_window {
namespace {

/// Up to this size every window is read as a whole: its values are in the cache, and the loops over them vectorize.
constexpr std::int64_t kDirect = 64;

struct Cpu {
  static Status check(const Attributes& attributes, const KnownSizes&) { return check_attributes(attributes); }

  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const std::int64_t t = in.size("t"), windows = out["mean"].dim(1), n = in.size("n");
    const std::int64_t size = attributes.integer("size"), step = attributes.integer("step");
    const auto ddof = static_cast<double>(attributes.integer("ddof"));
    if (windows == 0) return {};
    const Written<T> written = outputs_of<T>(out);
    const T* const x = in["x"].data<T>();
    // A piece is a run of windows of a row. Long windows are computed for a whole block of starts at once.
    const std::int64_t in_piece = size <= kDirect ? 4096 : std::max<std::int64_t>(1, (8 * size + step - 1) / step);
    const std::int64_t pieces = (windows + in_piece - 1) / in_piece;
    context.parallel_for(n * pieces, 1, [&](std::int64_t begin, std::int64_t end) {
      std::vector<Summary> before, after;
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t row = i / pieces, first = i % pieces * in_piece, last = std::min(first + in_piece, windows);
        const T* const values = x + row * t;
        if (size <= kDirect) {
          for (std::int64_t w = first; w < last; ++w) {
            written.put(row * windows + w, direct(values + w * step, size), ddof);
          }
        } else {
          blocks(values, size, step, first, last, row * windows, ddof, written, before, after);
        }
      }
    });
    return {};
  }

  /// Reads the values of a window.
  template <typename T>
  static Summary direct(const T* x, std::int64_t size) {
    double sum = 0;
    T least = x[0], greatest = x[0];
    bool number = true;
    for (std::int64_t i = 0; i < size; ++i) {
      sum += static_cast<double>(x[i]);
      least = x[i] < least ? x[i] : least;
      greatest = x[i] > greatest ? x[i] : greatest;
      number &= x[i] == x[i];
    }
    const double mean = sum / static_cast<double>(size);
    double squares = 0;
    for (std::int64_t i = 0; i < size; ++i) {
      const double apart = static_cast<double>(x[i]) - mean;
      squares += apart * apart;
    }
    if (!number) return {static_cast<double>(size), sum, squares, sum, sum};
    return {static_cast<double>(size), sum, squares, static_cast<double>(least), static_cast<double>(greatest)};
  }

  /// Windows [first, last) of a row. The row is cut into blocks of `size` values. A window is the end of a block and
  /// the beginning of the next one, so that each value is merged into two summaries, however long the windows are: M.
  /// van Herk, "A fast algorithm for local minimum and maximum filters on rectangular and octagonal kernels", 1992.
  template <typename T>
  static void blocks(const T* x, std::int64_t size, std::int64_t step, std::int64_t first, std::int64_t last,
                     std::int64_t out, double ddof, const Written<T>& written, std::vector<Summary>& before,
                     std::vector<Summary>& after) {
    before.resize(static_cast<std::size_t>(size));
    after.resize(static_cast<std::size_t>(size));
    for (std::int64_t w = first; w < last;) {
      const std::int64_t begin = w * step;  // a block begins where the next window does
      // before[i]: the values from begin + i to the end of the block.
      Summary summary = Summary::of(static_cast<double>(x[begin + size - 1]));
      before[static_cast<std::size_t>(size - 1)] = summary;
      for (std::int64_t i = size - 2; i >= 0; --i) {
        summary = Summary::of(static_cast<double>(x[begin + i])).merged(summary);
        before[static_cast<std::size_t>(i)] = summary;
      }
      // after[i]: the first i + 1 values behind the block, as far as a window that begins in the block needs them.
      const std::int64_t in_block = std::min((begin + size - 1) / step, last - 1);  // the last such window
      const std::int64_t behind = in_block * step - begin;
      for (std::int64_t i = 0; i < behind; ++i) {
        const Summary one = Summary::of(static_cast<double>(x[begin + size + i]));
        summary = i == 0 ? one : summary.merged(one);
        after[static_cast<std::size_t>(i)] = summary;
      }
      for (; w <= in_block; ++w) {
        const std::int64_t offset = w * step - begin;
        const Summary& head = before[static_cast<std::size_t>(offset)];
        written.put(out + w, offset == 0 ? head : head.merged(after[static_cast<std::size_t>(offset - 1)]), ddof);
      }
    }
  }
};

}  // namespace
}  // namespace opgate::ops::sliding_window

OPGATE_CPU_KERNEL(SlidingWindow, opgate::ops::sliding_window::Cpu)
