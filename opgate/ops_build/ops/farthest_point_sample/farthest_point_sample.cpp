#include "farthest_point_sample.h"

#include "buckets.h"
#include "points/tree.h"

namespace opgate::ops::farthest_point_sample {
namespace {

using knn_query::Segment;

/// Below so many samples, sorting the points costs more time than it saves.
constexpr std::int64_t kFewSamples = 64;

/// Puts rows in the order of the blocks of a k-d tree.
template <int D, typename T>
void sort_by_tree(const T* xyz, std::int64_t d, std::vector<std::uint32_t>& rows) {
  const std::size_t blocks = (rows.size() + kLanes - 1) / kLanes;
  std::vector<knn_query::Entry<T, D>> entries(rows.size());
  std::vector<knn_query::Part<T, D>> nodes(2 * blocks);
  std::vector<knn_query::Block<T, D>> filled(blocks);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::copy_n(xyz + static_cast<std::int64_t>(rows[i]) * d, d, entries[i].at);
    entries[i].index = rows[i];
  }
  knn_query::Builder<T, D>(entries.data(), nodes.data(), filled.data())
      .build({0, static_cast<std::int64_t>(rows.size()), 0});
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = entries[i].index;
}

/// Samples a segment: its points are rows [begin, end) of xyz, its samples places [first, last) of idx.
template <int D, typename T>
void sample(const T* xyz, std::int64_t d, const Segment& segment, std::int32_t* idx) {
  if (segment.queries() == 0) return;
  std::vector<std::uint32_t> rows, others;
  for (std::int64_t row = segment.begin; row < segment.end; ++row) {
    T zero = 0;
    for (std::int64_t axis = 0; axis < d; ++axis) zero += xyz[row * d + axis] * T(0);
    if (zero == 0) {
      rows.push_back(static_cast<std::uint32_t>(row));
    } else if (row > segment.begin) {
      others.push_back(static_cast<std::uint32_t>(row));
    }
  }
  if (segment.queries() > kFewSamples && rows.size() > kLanes && d > 0) {
    if (d <= 3) {
      sort_by_tree<3>(xyz, d, rows);
    } else if (d <= 8) {
      sort_by_tree<8>(xyz, d, rows);
    }
  }
  Buckets<D, T> buckets(xyz, d, rows);
  idx[segment.first] = static_cast<std::int32_t>(segment.begin);
  const bool finite = rows.size() + others.size() == static_cast<std::size_t>(segment.points());
  if (finite) buckets.take_first(static_cast<std::uint32_t>(segment.begin));
  std::int64_t place = segment.first + 1;
  for (; place < segment.last; ++place) {
    if (finite || place > segment.first + 1) buckets.approach(xyz + static_cast<std::int64_t>(idx[place - 1]) * d);
    const std::uint32_t row = buckets.farthest();
    if (row == buckets.kNone) break;
    buckets.take(row);
    idx[place] = static_cast<std::int32_t>(row);
  }
  for (std::size_t i = 0; place < segment.last; ++place, ++i) idx[place] = static_cast<std::int32_t>(others[i]);
}

struct Cpu : Checked {
  template <typename T, typename I>
  Status operator()(Context& context, const Inputs& in, const Attributes&, Outputs& out) const {
    std::vector<std::int64_t> ends, new_ends;
    OPGATE_RETURN_IF_ERROR(knn_query::read_ends<I>(in["offset"], "xyz", in.size("n"), ends));
    OPGATE_RETURN_IF_ERROR(knn_query::read_ascending<I>(in["new_offset"], new_ends));
    std::vector<Segment> segments;
    Segment segment{};
    for (std::size_t i = 0; i < ends.size(); ++i) {
      segment = {segment.end, ends[i], segment.last, new_ends[i]};
      if (segment.queries() > segment.points()) {
        return Status::invalid("input 'new_offset': segment " + std::to_string(i) + " asks for " +
                               std::to_string(segment.queries()) + " samples, expected at most its " +
                               std::to_string(segment.points()) + " points");
      }
      segments.push_back(segment);
    }
    OPGATE_RETURN_IF_ERROR(out.bind("v", segment.last));
    const T* const xyz = in["xyz"].data<T>();
    const std::int64_t d = in.size("d");
    auto* const idx = out["idx"].data<std::int32_t>();
    context.parallel_for(static_cast<std::int64_t>(segments.size()), 1, [&](std::int64_t begin, std::int64_t end) {
      for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
        if (d == 3) {
          sample<3>(xyz, d, segments[i], idx);
        } else {
          sample<0>(xyz, d, segments[i], idx);
        }
      }
    });
    return {};
  }
};

}  // namespace
}  // namespace opgate::ops::farthest_point_sample

OPGATE_CPU_KERNEL(FarthestPointSample, opgate::ops::farthest_point_sample::Cpu)
