#include "segment_reduce.h"

#include "reductions/rows.h"

namespace opgate::ops::segment_reduce {
namespace {

struct Cpu : Checked {
  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const std::int64_t n = in.size("n"), s = in.size("s"), columns = columns_of(in["x"]);
    const auto* const ends = in["ends"].data<std::int32_t>();
    std::int32_t before = 0;
    for (std::int64_t i = 0; i < s; before = ends[i++]) {
      if (ends[i] < before) {
        return Status::invalid("input 'ends': element " + std::to_string(i) + " is " + std::to_string(ends[i]) +
                               ", expected at least " + std::to_string(before));
      }
    }
    if (before != n) return wrong_last_end(n, std::to_string(before));
    if (columns == 0 || s == 0) return {};
    const T* const x = in["x"].data<T>();
    T* const y = out["y"].data<T>();
    // Rows of few columns are reduced side by side. Rows of very many are reduced in parts.
    const std::int64_t together = columns < kNarrow ? kNarrow / columns : 1;
    const std::int64_t parts = (columns + kWidth - 1) / kWidth;
    const std::int64_t work = std::max<std::int64_t>(1, n / s) * std::min(columns, kWidth);
    return with_reduction(attributes, [&]<typename Op>(bool mean) -> Status {
      context.parallel_for(s * parts, std::max<std::int64_t>(1, kElementGrain / work),
                           [&](std::int64_t begin, std::int64_t end) {
                             for (std::int64_t i = begin; i < end; ++i) {
                               const std::int64_t segment = parts == 1 ? i : i / parts;
                               const std::int64_t column = (i - segment * parts) * kWidth;
                               const std::int64_t first = segment ? ends[segment - 1] : 0;
                               const auto row = [&](std::int64_t k) { return x + (first + k) * columns + column; };
                               reduce_rows<Op>(ends[segment] - first, std::min(kWidth, columns - column), together,
                                               mean, row, y + segment * columns + column);
                             }
                           });
      return {};
    });
  }

 private:
  static constexpr std::int64_t kNarrow = 64;
};

}  // namespace
}  // namespace opgate::ops::segment_reduce

OPGATE_CPU_KERNEL(SegmentReduce, opgate::ops::segment_reduce::Cpu)
