#include "ball_query.h"

#include <atomic>
#include <cmath>
#include <limits>
#include <mutex>
#include <optional>

#include "first_rows.h"
#include "grid.h"

namespace opgate::ops::ball_query {
namespace {

using knn_query::Segment;

/// The tensors and attributes of a call.
template <typename T>
struct Call {
  const T *xyz, *queries;
  std::int64_t d, nsample;
  Ball<T> ball;
  T last;  ///< the greatest squared distance that counts
  bool pads_first;
  std::int32_t fill;
  std::int32_t* idx;
  std::int32_t* count;  ///< null if nobody wants it

  /// Finishes the row of a query of which `found` places are written.
  void finish(std::int64_t query, std::int64_t found) const {
    std::int32_t* const rows = idx + query * nsample;
    std::fill(rows + found, rows + nsample, found && pads_first ? rows[0] : fill);
    if (count) count[query] = static_cast<std::int32_t>(found);
  }
};

/// The points of a segment, and the search for those in balls.
template <typename T, int D>
class Points {
 public:
  Points(Context& context, const Call<T>& call, std::int64_t most)
      : call_(call),
        plain_{context.scratch<T>(most ? call.d * (most + kLanes) : 0).data(), most + kLanes, call.d},
        sorted_(plain_),
        rows_() {}

  /// Copies the points of a segment to columns.
  void load(Context& context, const Segment& segment) {
    segment_ = segment;
    grid_.reset();
    tree_.reset();
    planted_.emplace();
    looked_at_ = 0;
    const std::int64_t n = segment.points(), d = call_.d;
    if (n == 0) return;
    const T* const from = call_.xyz + segment.begin * d;
    context.parallel_for(n, 1 << 15, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        for (std::int64_t axis = 0; axis < d; ++axis) plain_.at[axis * plain_.stride + i] = from[i * d + axis];
      }
    });
    for (std::int64_t axis = 0; axis < d; ++axis) std::fill_n(plain_.at + axis * plain_.stride + n, kLanes, T(0));
    if (!pays()) return;
    if (rows_.empty()) {
      sorted_.at = context.scratch<T>(d * plain_.stride).data();
      std::fill_n(sorted_.at, d * plain_.stride, T(0));
      rows_ = context.scratch<std::uint32_t>(plain_.stride);
    }
    grid_.emplace(plain_, n, Grid<T>::width_of(call_.ball.below), sorted_, rows_);
  }

  void run(std::int64_t begin, std::int64_t end) {
    std::optional<RowSet> set;
    if (grid_) set.emplace(segment_.points());
    std::vector<std::uint32_t> rows;
    for (std::int64_t i = begin; i < end; ++i) {
      const T* const query = call_.queries + i * call_.d;
      std::int32_t* const to = call_.idx + i * call_.nsample;
      call_.finish(i, !finite(query) ? 0 : set ? search(query, *set, rows, to) : scan_all(query, rows, to));
    }
  }

  /// About how many points a thread should look at, at least.
  std::int64_t grain() const {
    return std::max<std::int64_t>(1, (1 << 16) / (grid_ ? 512 : std::max<std::int64_t>(segment_.points(), 1)));
  }

 private:
  static constexpr int kTreeAxes = D ? D : 8;
  using Tree = FirstRows<T, kTreeAxes>;

  struct Scanned {
    std::int64_t found, points;
  };

  /// Writes the first rows that are in the ball to `to`, unless it is null. Looks at the first `most` points.
  Scanned scan(const T* query, std::int64_t most, std::int32_t* to) const {
    std::int64_t found = 0, first = 0;
    for (; first < most && found < call_.nsample; first += kLanes) {
      unsigned hits = hits_of<D>(plain_, first, query, call_.ball.least, call_.last, call_.ball.with_center);
      for (hits &= lanes(most - first); hits && found < call_.nsample; hits &= hits - 1, ++found) {
        if (to) to[found] = static_cast<std::int32_t>(segment_.begin + first + std::countr_zero(hits));
      }
    }
    return {found, std::min(first, most)};
  }

  bool finite(const T* query) const {
    T zero = 0;
    for (std::int64_t axis = 0; axis < call_.d; ++axis) zero += query[axis] * T(0);
    return zero == 0;
  }

  /// The same for all points of the segment.
  std::int64_t scan_all(const T* query, std::vector<std::uint32_t>& rows, std::int32_t* to) {
    const std::int64_t n = segment_.points();
    const Scanned scanned = scan(query, std::min(n, kMany), to);
    if (scanned.found == call_.nsample || scanned.points == n) return scanned.found;
    if (const Tree* const tree = tree_for(n)) return find(*tree, query, rows, to);
    return scan(query, n, to).found;
  }

  /// The same with the grid. Where the points near the query are many, the first rows of all are likely to have enough.
  std::int64_t search(const T* query, RowSet& set, std::vector<std::uint32_t>& rows, std::int32_t* to) {
    const auto near = grid_->ranges_of(query);
    if (near.points == 0) return 0;
    const Tree* const tree = near.points > kMany ? tree_for(near.points) : nullptr;
    const std::int64_t n = segment_.points(), enough = 2 * near.points;
    const std::int64_t expected = call_.nsample * n / near.points * kPartOfCells;
    if (expected < enough) {
      const Scanned scanned = scan(query, std::min({tree ? 4 * expected : enough, enough, n}), to);
      if (scanned.found == call_.nsample || scanned.points == n) return scanned.found;
    }
    if (tree) return find(*tree, query, rows, to);
    for (int i = 0; i < near.count; ++i) {
      const auto& range = near.ranges[i];
      for (std::int64_t first = range.begin; first < range.end; first += kLanes) {
        unsigned hits = hits_of<D>(sorted_, first, query, call_.ball.least, call_.last, call_.ball.with_center);
        for (hits &= lanes(range.end - first); hits; hits &= hits - 1) {
          set.add(rows_[static_cast<std::size_t>(first + std::countr_zero(hits))]);
        }
      }
    }
    std::int64_t found = 0;
    set.take(call_.nsample, [&](std::uint32_t row) {
      to[found++] = static_cast<std::int32_t>(segment_.begin + static_cast<std::int64_t>(row));
    });
    return found;
  }

  std::int64_t find(const Tree& tree, const T* query, std::vector<std::uint32_t>& rows, std::int32_t* to) const {
    tree.find(query, call_.ball, call_.last, static_cast<std::size_t>(call_.nsample), rows);
    for (std::size_t i = 0; i < rows.size(); ++i) to[i] = static_cast<std::int32_t>(segment_.begin + rows[i]);
    return static_cast<std::int64_t>(rows.size());
  }

  /// A tree for queries that would look at very many points, once there were so many of them that it pays; before that
  /// nullptr. There is none for points of many coordinates.
  const Tree* tree_for(std::int64_t points) {
    if (call_.d > kTreeAxes) return nullptr;
    if (looked_at_.fetch_add(points) < kTimeOfPlanting * segment_.points()) return nullptr;
    std::call_once(*planted_, [&] { tree_.emplace(call_.xyz + segment_.begin * call_.d, segment_.points(), call_.d); });
    return &*tree_;
  }

  /// Whether a grid takes less time than it saves: some queries say how many points a scan looks at.
  bool pays() const {
    constexpr std::int64_t kFewPoints = 256, kFewQueries = 64, kSamples = 8;
    const std::int64_t n = segment_.points(), queries = segment_.queries();
    if (n < kFewPoints || queries < kFewQueries || call_.d == 0 || !Grid<T>::width_of(call_.ball.below)) return false;
    std::int64_t looked_at = 0;
    for (std::int64_t i = 0; i < kSamples; ++i) {
      const std::int64_t query = segment_.first + i * queries / kSamples;
      looked_at += scan(call_.queries + query * call_.d, n, nullptr).points;
    }
    // In units of the time for a point of a scan.
    return looked_at / kSamples * queries > kTimeOfPlacing * n + kTimeOfSearching * queries;
  }

  static constexpr std::int64_t kTimeOfPlacing = 60, kTimeOfSearching = 500, kTimeOfPlanting = 200;
  static constexpr std::int64_t kMany = 2048;      ///< from so many points on, a tree is faster
  static constexpr std::int64_t kPartOfCells = 6;  ///< a ball has about this part of the 27 cells around it

  const Call<T>& call_;
  Columns<T> plain_, sorted_;
  std::span<std::uint32_t> rows_;
  Segment segment_{};
  std::optional<Grid<T>> grid_;
  std::optional<Tree> tree_;
  std::optional<std::once_flag> planted_;
  std::atomic<std::int64_t> looked_at_ = 0;  ///< by queries that looked at many points
};

struct Cpu : Checked {
  template <typename T, typename I>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    std::vector<Segment> segments;
    OPGATE_RETURN_IF_ERROR(knn_query::read_segments<I>(in, segments));
    Call<T> call{};
    call.xyz = in["xyz"].data<T>();
    call.queries = in.has("new_xyz") ? in["new_xyz"].data<T>() : call.xyz;
    call.d = in.size("d");
    call.nsample = attributes.integer("nsample");
    call.ball = Ball<T>::of(attributes);
    call.last = std::nextafter(call.ball.below, T(-1));
    call.pads_first = attributes.text("pad") == "first";
    call.fill = static_cast<std::int32_t>(attributes.integer("fill"));
    call.idx = out["idx"].data<std::int32_t>();
    call.count = out.has("count") ? out["count"].data<std::int32_t>() : nullptr;
    return call.d == 3 ? run<3>(context, call, segments) : run<0>(context, call, segments);
  }

 private:
  template <int D, typename T>
  static Status run(Context& context, const Call<T>& call, std::span<const Segment> segments) {
    std::int64_t most = 0;
    for (const Segment& segment : segments) most = std::max(most, segment.points());
    Points<T, D> points(context, call, most);
    for (const Segment& segment : segments) {
      if (segment.queries() == 0) continue;
      points.load(context, segment);
      context.parallel_for(segment.queries(), points.grain(), [&](std::int64_t begin, std::int64_t end) {
        points.run(segment.first + begin, segment.first + end);
      });
    }
    return {};
  }
};

}  // namespace
}  // namespace opgate::ops::ball_query

OPGATE_CPU_KERNEL(BallQuery, opgate::ops::ball_query::Cpu)
