#include "sliding_window.h"

#include <algorithm>
#include <vector>

#include "kernel_toolkit/elementwise.h"

namespace opgate::ops::sliding_window {
namespace {

/// Up to this size every window is read as a whole.
constexpr std::int64_t kDirect = 3;

/// What is known of the values from the beginning of something to each of its values, or from each to the end: the sums
/// of the distances from `shift` and of their squares, the least and the greatest value.
template <typename T>
struct Sums {
  std::vector<double> sum, squares;
  std::vector<T> least, greatest;

  void resize(std::int64_t size) {
    const auto count = static_cast<std::size_t>(size);
    sum.resize(count);
    squares.resize(count);
    least.resize(count);
    greatest.resize(count);
  }

  /// Stores what is known at `i`, one value more than at `before`; the first value if `before` is negative.
  void add(std::int64_t i, std::int64_t before, T value, double shift) {
    const double apart = static_cast<double>(value) - shift;
    const bool first = before < 0;
    sum[i] = apart + (first ? 0 : sum[before]);
    squares[i] = apart * apart + (first ? 0 : squares[before]);
    least[i] = first ? value : lesser(value, least[before]);
    greatest[i] = first ? value : greater(value, greatest[before]);
  }
};

struct Cpu {
  static Status check(const Attributes& attributes, const KnownSizes&) { return check_attributes(attributes); }

  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const std::int64_t t = in.size("t"), windows = out["mean"].dim(1), n = in.size("n");
    const std::int64_t size = attributes.integer("size"), step = attributes.integer("step");
    const auto ddof = static_cast<double>(attributes.integer("ddof"));
    if (n * windows == 0) return {};
    const Written<T> written = outputs_of<T>(out);
    const T* const x = in["x"].data<T>();
    // A piece is a run of windows of a row. Long windows are computed for a whole block of starts at once.
    const std::int64_t in_piece = size <= kDirect ? 4096 : std::max<std::int64_t>(1, 8 * size / step);
    const std::int64_t pieces = (windows + in_piece - 1) / in_piece;
    context.parallel_for(n * pieces, 1, [&](std::int64_t begin, std::int64_t end) {
      Sums<T> before, after;
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t row = i / pieces, first = i % pieces * in_piece, last = std::min(first + in_piece, windows);
        if (size <= kDirect) {
          for (std::int64_t w = first; w < last; ++w) {
            written.put(row * windows + w, direct(x + row * t + w * step, size), ddof);
          }
        } else {
          blocks(x + row * t, size, step, first, last, written.from(row * windows), ddof, before, after);
        }
      }
    });
    return {};
  }

  /// Reads the values of a window.
  template <typename T>
  static Summary<T> direct(const T* x, std::int64_t size) {
    double sum = 0;
    T least = x[0], greatest = x[0];
    for (std::int64_t i = 0; i < size; ++i) {
      sum += static_cast<double>(x[i]);
      least = lesser(least, x[i]);
      greatest = greater(greatest, x[i]);
    }
    const double mean = sum / static_cast<double>(size);
    double squares = 0;
    for (std::int64_t i = 0; i < size; ++i) {
      const double apart = static_cast<double>(x[i]) - mean;
      squares += apart * apart;
    }
    return {static_cast<double>(size), mean, squares, least, greatest};
  }

  /// Windows [first, last) of a row. The row is cut into blocks of `size` values. A window is the end of a block and
  /// the beginning of the next one, so that each value is added to two sums, however long the windows are: M. van Herk,
  /// "A fast algorithm for local minimum and maximum filters on rectangular and octagonal kernels", 1992. Nothing is
  /// subtracted from a sum. The values are counted from one that all windows of the block have, so that a large value
  /// takes no digits from windows without it.
  template <typename T>
  static void blocks(const T* x, std::int64_t size, std::int64_t step, std::int64_t first, std::int64_t last,
                     const Written<T>& written, double ddof, Sums<T>& before, Sums<T>& after) {
    before.resize(size);
    after.resize(size);
    const auto count = static_cast<double>(size);
    for (std::int64_t w = first; w < last;) {
      const std::int64_t begin = w * step;  // a block begins where the next window does
      const T* const block = x + begin;
      const double in_all = static_cast<double>(block[size - 1]);
      const double shift = in_all * in_all - in_all * in_all == 0 ? in_all : 0;  // else distances overflow
      // before: from a value to the end of the block.
      before.add(size - 1, -1, block[size - 1], shift);
      for (std::int64_t i = size - 2; i >= 0; --i) before.add(i, i + 1, block[i], shift);
      // after: the first values behind the block, as far as a window that begins in the block needs them.
      const std::int64_t in_block = std::min((begin + size - 1) / step, last - 1);  // the last such window
      const std::int64_t behind = in_block * step - begin;
      for (std::int64_t i = 0; i < behind; ++i) after.add(i, i - 1, block[size + i], shift);
      const auto put = [&](std::int64_t at, double sum, double squares, T least, T greatest) {
        const double mean = sum / count;
        // Squares of large numbers overflow, and so does the product.
        const bool overflow = squares - squares != 0 && sum - sum == 0;
        written.put(at, Summary<T>{count, shift + mean, overflow ? squares : squares - sum * mean, least, greatest},
                    ddof);
      };
      put(w, before.sum[0], before.squares[0], before.least[0], before.greatest[0]);
      for (++w; w <= in_block; ++w) {
        const std::int64_t i = w * step - begin, k = i - 1;
        put(w, before.sum[i] + after.sum[k], before.squares[i] + after.squares[k],
            lesser(before.least[i], after.least[k]), greater(before.greatest[i], after.greatest[k]));
      }
    }
  }
};

}  // namespace
}  // namespace opgate::ops::sliding_window

OPGATE_CPU_KERNEL(SlidingWindow, opgate::ops::sliding_window::Cpu)
