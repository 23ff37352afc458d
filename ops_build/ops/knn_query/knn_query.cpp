#include "knn_query.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "formula.h"

namespace opgate::ops::knn_query {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// The coordinates of the points: first all x, then all y, then all z, so that the loop over points vectorizes.
struct Cloud {
  const float *x, *y, *z;
};

/// The nearest points of one query so far.
class Nearest {
 public:
  /// The number of points in a block, for which distances are computed together.
  static constexpr std::int64_t kBlock = 64;

  /// Keeps `most` >= 1 points. The buffer has room for as many again, so that selecting the nearest happens rarely.
  explicit Nearest(std::int64_t most)
      : most_(static_cast<std::size_t>(most)), buffer_(most_ + std::max<std::size_t>(most_, kBlock)) {}

  void clear() {
    size_ = 0;
    limit_ = kInfinity;
  }

  /// Adds `count` <= kBlock points from `first` on. Calls must come with ascending indices.
  void add(const Cloud& cloud, const float* query, std::int64_t first, std::int64_t count) {
    float d2[kBlock];
    const float *const x = cloud.x + first, *const y = cloud.y + first, *const z = cloud.z + first;
    const float query_x = query[0], query_y = query[1], query_z = query[2];
    int nearer = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      d2[i] = squared_distance(x[i] - query_x, y[i] - query_y, z[i] - query_z);
      nearer |= d2[i] < limit_;
    }
    // Most blocks have no near point. A comparison with NaN is false.
    if (!nearer) return;
    if (size_ + kBlock > buffer_.size()) select();
    // Each point is written, and counted if it is near. A branch would often be mispredicted.
    for (std::int64_t i = 0; i < count; ++i) {
      buffer_[size_] = neighbour(d2[i], static_cast<std::uint32_t>(first + i));
      size_ += d2[i] < limit_;
    }
  }

  /// The nearest points, sorted.
  std::span<const Neighbour> sorted() {
    if (size_ > most_) select();
    std::sort(buffer_.begin(), at(size_));
    return {buffer_.data(), size_};
  }

 private:
  /// Keeps the `most_` nearest points. A later point must be nearer than the last of them: if it is as near, it loses
  /// because its index is higher.
  void select() {
    if (size_ <= most_) return;
    std::nth_element(buffer_.begin(), at(most_ - 1), at(size_));
    size_ = most_;
    limit_ = squared_distance_of(buffer_[most_ - 1]);
  }

  std::vector<Neighbour>::iterator at(std::size_t index) {
    return buffer_.begin() + static_cast<std::ptrdiff_t>(index);
  }

  std::size_t most_, size_ = 0;
  std::vector<Neighbour> buffer_;
  float limit_ = kInfinity;
};

/// Reads and checks the ends of the segments: ascending, up to `total`, the number of rows of input `rows`.
Status check_offsets(const std::string& name, std::span<const std::int32_t> ends, const std::string& rows,
                     std::int64_t total) {
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    if (ends[i] < begin) {
      return Status::invalid("input '" + name + "': expected ends of segments that don't decrease, got " +
                             std::to_string(ends[i]) + " at " + std::to_string(i) + " after " + std::to_string(begin));
    }
    begin = ends[i];
  }
  return begin == total ? Status() : wrong_last_end(name, rows, total, std::to_string(begin));
}

struct Cpu : Checked {
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const std::int64_t n = in.size("n"), m = in.size("m"), nsample = attributes.integer("nsample");
    const std::span<const std::int32_t> offset = in["offset"].span<std::int32_t>();
    std::span<const std::int32_t> query_offset = offset;
    const auto whole = static_cast<std::int32_t>(m);
    OPGATE_RETURN_IF_ERROR(check_segments_given(in));
    OPGATE_RETURN_IF_ERROR(check_offsets("offset", offset, "xyz", n));
    if (in.has("new_offset")) {
      query_offset = in["new_offset"].span<std::int32_t>();
      OPGATE_RETURN_IF_ERROR(check_offsets("new_offset", query_offset, "new_xyz", m));
    } else if (in.has("new_xyz")) {
      query_offset = {&whole, 1};
    }
    const auto* const xyz = in["xyz"].data<float>();
    const auto* const queries = in.has("new_xyz") ? in["new_xyz"].data<float>() : xyz;
    auto* const idx = out["idx"].data<std::int32_t>();
    auto* const dist = out["dist"].data<float>();
    if (nsample == 0) return {};
    const Cloud cloud = by_coordinate(context, xyz, n);
    // A piece of queries has about a million distances.
    const std::int64_t grain = std::max<std::int64_t>(1, (std::int64_t{1} << 20) / std::max<std::int64_t>(n, 1));
    context.parallel_for(m, grain, [&](std::int64_t begin, std::int64_t end) {
      Nearest nearest(std::clamp<std::int64_t>(n, 1, nsample));
      for (std::int64_t i = begin; i < end; ++i) {
        const auto segment = std::upper_bound(query_offset.begin(), query_offset.end(), i) - query_offset.begin();
        const std::int64_t last = offset[static_cast<std::size_t>(segment)];
        nearest.clear();
        for (std::int64_t first = segment ? offset[static_cast<std::size_t>(segment - 1)] : 0; first < last;) {
          const std::int64_t count = std::min(Nearest::kBlock, last - first);
          nearest.add(cloud, queries + 3 * i, first, count);
          first += count;
        }
        write(nearest.sorted(), nsample, idx + i * nsample, dist + i * nsample);
      }
    });
    return {};
  }

 private:
  static Cloud by_coordinate(Context& context, const float* xyz, std::int64_t n) {
    float* const x = context.scratch<float>(3 * n).data();
    float *const y = x + n, *const z = y + n;
    for (std::int64_t i = 0; i < n; ++i) {
      x[i] = xyz[3 * i];
      y[i] = xyz[3 * i + 1];
      z[i] = xyz[3 * i + 2];
    }
    return {x, y, z};
  }

  static void write(std::span<const Neighbour> found, std::int64_t nsample, std::int32_t* idx, float* dist) {
    const auto count = static_cast<std::int64_t>(found.size());
    for (std::int64_t k = 0; k < count; ++k) {
      idx[k] = static_cast<std::int32_t>(index_of(found[static_cast<std::size_t>(k)]));
      dist[k] = std::sqrt(squared_distance_of(found[static_cast<std::size_t>(k)]));
    }
    std::fill(idx + count, idx + nsample, -1);
    std::fill(dist + count, dist + nsample, kInfinity);
  }
};

}  // namespace
}  // namespace opgate::ops::knn_query

OPGATE_CPU_KERNEL(KNNQuery, opgate::ops::knn_query::Cpu)
