// The first rows of a segment that are in a ball, by a k-d tree: for points of which a scan or a grid would look at too
// many.
#pragma once

#include <algorithm>
#include <compare>
#include <functional>
#include <vector>

#include "ball_query.h"
#include "grid.h"
#include "points/tree.h"

namespace opgate::ops::ball_query {
namespace {

/// Points of up to D coordinates. Those that aren't finite are left out.
template <typename T, int D>
class FirstRows {
 public:
  /// `points` are rows of `d` numbers.
  FirstRows(const T* points, std::int64_t count, std::int64_t d) : d_(d) {
    std::vector<knn_query::Entry<T, D>> entries;
    for (std::int64_t row = 0; row < count; ++row) {
      knn_query::Entry<T, D> entry{};
      T zero = 0;
      for (std::int64_t axis = 0; axis < d; ++axis) {
        entry.at[axis] = points[row * d + axis];
        zero += entry.at[axis] * T(0);
      }
      entry.index = static_cast<std::uint32_t>(row);
      if (zero == 0) entries.push_back(entry);
    }
    if (entries.empty()) return;
    blocks_.resize((entries.size() + knn_query::kLanes - 1) / knn_query::kLanes);
    nodes_.resize(2 * blocks_.size());
    knn_query::Builder<T, D>(entries.data(), nodes_.data(), blocks_.data())
        .build({0, static_cast<std::int64_t>(entries.size()), 0});
  }

  /// Sets `rows` to the lowest rows in the ball around a query that is finite, at most `most`, in their order. `last`
  /// is the greatest squared distance that counts.
  void find(const T* query, const Ball<T>& ball, T last, std::size_t most, std::vector<std::uint32_t>& rows) const {
    rows.clear();
    if (nodes_.empty() || most == 0) return;
    T at[D] = {};
    std::copy_n(query, d_, at);
    // `rows` is a heap with the greatest first, `visits` one with the lowest row first.
    std::vector<Visit> visits;
    const auto visit = [&](std::uint32_t node, std::uint32_t block) {
      if (!may_have(nodes_[node], at, ball, last)) return;
      visits.push_back({nodes_[node].lowest, node, block});
      std::push_heap(visits.begin(), visits.end(), std::greater());
    };
    visit(0, 0);
    while (!visits.empty()) {
      const auto [lowest, number, block] = visits.front();
      if (rows.size() == most && lowest > rows.front()) break;
      std::pop_heap(visits.begin(), visits.end(), std::greater());
      visits.pop_back();
      const Part& node = nodes_[number];
      if (node.blocks <= kTogether) {
        for (std::uint32_t i = block; i < block + node.blocks; ++i) add(blocks_[i], at, ball, last, most, rows);
      } else {
        visit(number + 1, block);
        visit(number + node.right(), block + node.left_blocks());
      }
    }
    std::sort_heap(rows.begin(), rows.end());
  }

 private:
  using Part = knn_query::Part<T, D>;
  using Block = knn_query::Block<T, D>;

  static constexpr std::uint32_t kTogether = 16;

  struct Visit {
    std::uint32_t lowest, node, block;

    auto operator<=>(const Visit&) const = default;
  };

  /// Whether a point of the node may be in the ball. The bounds of the squared distances are computed like these, and
  /// rounding keeps the order of numbers.
  static bool may_have(const Part& node, const T* at, const Ball<T>& ball, T last) {
    T near = 0, far = 0;
    for (int axis = 0; axis < D; ++axis) {
      const T below = node.low[axis] - at[axis], above = at[axis] - node.high[axis];
      near = knn_query::add_square(near, std::max({below, above, T(0)}));
      far = knn_query::add_square(far, std::max(-below, -above));
    }
    return near <= last && (far >= ball.least || (ball.with_center && near == 0));
  }

  static void add(const Block& block, const T* at, const Ball<T>& ball, T last, std::size_t most,
                  std::vector<std::uint32_t>& rows) {
    const Columns<T> points{const_cast<T*>(block.at[0]), knn_query::kLanes, D};
    for (unsigned hits = hits_of<D>(points, 0, at, ball.least, last, ball.with_center); hits; hits &= hits - 1) {
      const std::uint32_t row = block.index[std::countr_zero(hits)];
      if (rows.size() == most) {
        if (row > rows.front()) continue;
        std::pop_heap(rows.begin(), rows.end());
        rows.pop_back();
      }
      rows.push_back(row);
      std::push_heap(rows.begin(), rows.end());
    }
  }

  std::int64_t d_;
  std::vector<Part> nodes_;
  std::vector<Block> blocks_;
};

}  // namespace
}  // namespace opgate::ops::ball_query
