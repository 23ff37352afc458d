// The points of a segment in blocks, and a k-d tree over the blocks.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "nearest.h"

namespace opgate::ops::knn_query {
namespace {

/// A point and its row.
template <typename T, int D>
struct Entry {
  T at[D];
  std::uint32_t index;
};

/// kLanes points: their first coordinates, their second ones, and so on. Lanes without a point are at infinity.
template <typename T, int D>
struct Block {
  T at[D][kLanes];
  std::uint32_t index[kLanes];
};

/// A part of the points: the box around them, and the lowest of their rows.
template <typename T, int D>
struct Part {
  T low[D], high[D];
  std::uint32_t lowest;
  std::uint32_t blocks;  ///< the node of a tree is a leaf if it has one block

  /// The blocks of the left child, whose node is the next one.
  std::uint32_t left_blocks() const { return (blocks + 1) / 2; }
  /// The distance from this node to its right child: a tree of b blocks has 2 b - 1 nodes.
  std::uint32_t right() const { return 2 * left_blocks(); }
};

/// A lower bound of the squared distances between the points of two boxes. It is computed like these, and rounding
/// keeps the order of numbers, so no computed distance is less.
template <typename T, int D>
T bound(const Part<T, D>& a, const Part<T, D>& b) {
  T sum = 0;
  for (int axis = 0; axis < D; ++axis) {
    const T gap = std::max(std::max(b.low[axis] - a.high[axis], a.low[axis] - b.high[axis]), T(0));
    sum = add_square(sum, gap);
  }
  return sum;
}

/// Builds the tree of a segment. The left children have whole blocks, so that block i has the entries from 16 i on.
template <typename T, int D>
class Builder {
 public:
  struct Task {
    std::int64_t begin, end;  ///< entries
    std::int64_t node;
  };

  Builder(Entry<T, D>* entries, Part<T, D>* nodes, Block<T, D>* blocks)
      : entries_(entries), nodes_(nodes), blocks_(blocks) {}

  void build(Task task) const {
    Task right{};
    while (split(task, right)) {
      build(right);
    }
  }

  /// Makes the node of a task. If it is no leaf, the task becomes that of the left child, and `right` the other.
  bool split(Task& task, Task& right) const {
    Part<T, D>& node = nodes_[task.node];
    measure(task.begin, task.end, node);
    if (node.blocks == 1) {
      fill(task.begin, task.end, blocks_[task.begin / kLanes]);
      return false;
    }
    int axis = 0;
    for (int other = 1; other < D; ++other) {
      if (node.high[other] - node.low[other] > node.high[axis] - node.low[axis]) axis = other;
    }
    const std::int64_t middle = task.begin + std::int64_t{kLanes} * node.left_blocks();
    const auto select = [&](auto less) {
      std::nth_element(entries_ + task.begin, entries_ + middle, entries_ + task.end, less);
    };
    if (node.high[axis] > node.low[axis]) {
      select([axis](const auto& a, const auto& b) { return a.at[axis] < b.at[axis]; });
    } else {
      // All points are equal. Parts with low rows are searched first, and the others then not at all.
      select([](const auto& a, const auto& b) { return a.index < b.index; });
    }
    right = {middle, task.end, task.node + node.right()};
    task = {task.begin, middle, task.node + 1};
    return true;
  }

  static void fill_block(const Entry<T, D>* entries, std::int64_t count, Block<T, D>& block) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const bool is_there = lane < count;
      for (int axis = 0; axis < D; ++axis) {
        block.at[axis][lane] = is_there ? entries[lane].at[axis] : std::numeric_limits<T>::infinity();
      }
      block.index[lane] = is_there ? entries[lane].index : 0;
    }
  }

 private:
  void fill(std::int64_t begin, std::int64_t end, Block<T, D>& block) const {
    fill_block(entries_ + begin, end - begin, block);
  }

  void measure(std::int64_t begin, std::int64_t end, Part<T, D>& part) const {
    Part<T, D> all;
    for (int axis = 0; axis < D; ++axis) all.low[axis] = all.high[axis] = entries_[begin].at[axis];
    all.lowest = entries_[begin].index;
    for (std::int64_t i = begin + 1; i < end; ++i) {
      for (int axis = 0; axis < D; ++axis) {
        all.low[axis] = std::min(all.low[axis], entries_[i].at[axis]);
        all.high[axis] = std::max(all.high[axis], entries_[i].at[axis]);
      }
      all.lowest = std::min(all.lowest, entries_[i].index);
    }
    all.blocks = static_cast<std::uint32_t>((end - begin + kLanes - 1) / kLanes);
    part = all;
  }

  Entry<T, D>* entries_;
  Part<T, D>* nodes_;
  Block<T, D>* blocks_;
};

/// Finds the neighbours of up to kLanes queries at a time, which share the way through the tree.
template <typename Lists, int D>
class Search {
 public:
  using T = typename Lists::T;

  Search(const Part<T, D>* nodes, const Block<T, D>* blocks, std::int64_t nsample)
      : nodes_(nodes), blocks_(blocks), most_(nsample), lists_(nsample) {}

  void point_to(const Part<T, D>* nodes, const Block<T, D>* blocks) {
    nodes_ = nodes;
    blocks_ = blocks;
  }

  /// Searches for `count` queries: those of `queries`, which are within `box`.
  void run(const Block<T, D>& queries, int count, const Part<T, D>& box) {
    start(queries, count);
    for (int query = 0; query < count; ++query) begin_near(queries, query);
    struct Visit {
      std::uint32_t node, block;
      Neighbour<T> key;
    };
    Visit stack[kDeepest];
    int size = 0;
    stack[size++] = {0, 0, 0};
    Neighbour<T> worst = worst_of_all();
    while (size > 0) {
      const Visit visit = stack[--size];
      if (!(visit.key < worst)) continue;
      const Part<T, D>& node = nodes_[visit.node];
      if (node.blocks == 1) {
        if (visit_block(queries, node, visit.block)) worst = worst_of_all();
        continue;
      }
      const std::uint32_t left = visit.node + 1, right = visit.node + node.right();
      const Visit first{left, visit.block, key_of(box, nodes_[left])};
      const Visit second{right, visit.block + node.left_blocks(), key_of(box, nodes_[right])};
      const bool swapped = second.key < first.key;
      stack[size] = swapped ? first : second;
      size += stack[size].key < worst;
      stack[size] = swapped ? second : first;
      size += stack[size].key < worst;
    }
  }

  /// The neighbours of a query of the last run.
  std::span<const Neighbour<T>> sorted(int query) { return lists_.sorted(query); }

 private:
  static constexpr int kDeepest = 72;

  static Neighbour<T> key_of(const Part<T, D>& box, const Part<T, D>& node) {
    return neighbour(bound(box, node), node.lowest);
  }

  void start(const Block<T, D>& queries, int count) {
    for (int query = 0; query < kLanes; ++query) {
      const bool is_there = query < count;
      worst_[query] = is_there ? none<T>() : 0;
      limit_[query] = is_there ? std::numeric_limits<T>::infinity() : T(-1);
      seed_begin_[query] = seed_end_[query] = 0;
      if (is_there) lists_.clear(query);
    }
  }

  /// Searches the smallest part of the tree around a query that may have enough points.
  void begin_near(const Block<T, D>& queries, int query) {
    Part<T, D> at;
    for (int axis = 0; axis < D; ++axis) at.low[axis] = at.high[axis] = queries.at[axis][query];
    const std::uint32_t enough = static_cast<std::uint32_t>((most_ + kLanes - 1) / kLanes);
    std::uint32_t node = 0, block = 0;
    while (nodes_[node].blocks > enough) {
      const std::uint32_t left = node + 1, right = node + nodes_[node].right();
      if (key_of(at, nodes_[right]) < key_of(at, nodes_[left])) {
        block += nodes_[node].left_blocks();
        node = right;
      } else {
        node = left;
      }
    }
    seed_begin_[query] = block;
    seed_end_[query] = block + nodes_[node].blocks;
    for (; block < seed_end_[query]; ++block) add(queries, query, blocks_[block]);
  }

  /// Searches a block for all queries that may have neighbours in it. Returns whether there is one.
  bool visit_block(const Block<T, D>& queries, const Part<T, D>& node, std::uint32_t block) {
    Lanes<T> sum{};
    for (int axis = 0; axis < D; ++axis) {
      Lanes<T> at;
      load(queries.at[axis], at);
      const Lanes<T> below = node.low[axis] - at, above = at - node.high[axis];
      const Lanes<T> outside = below > above ? below : above;
      const Lanes<T> gap = outside > Lanes<T>{} ? outside : Lanes<T>{};
      sum += gap * gap;
    }
    T bounds[kLanes];
    std::memcpy(bounds, &sum, sizeof sum);
    unsigned near = not_greater(bounds, limit_);
    bool any = false;
    for (; near; near &= near - 1) {
      const int query = std::countr_zero(near);
      if (block >= seed_begin_[query] && block < seed_end_[query]) continue;
      add(queries, query, blocks_[block]);
      any = true;
    }
    return any;
  }

  void add(const Block<T, D>& queries, int query, const Block<T, D>& block) {
    Lanes<T> sum{};
    for (int axis = 0; axis < D; ++axis) {
      Lanes<T> at;
      load(block.at[axis], at);
      const Lanes<T> d = at - queries.at[axis][query];
      sum += d * d;
    }
    T d2[kLanes], most[kLanes];
    std::memcpy(d2, &sum, sizeof sum);
    const Lanes<T> limit = limit_[query] - Lanes<T>{};
    std::memcpy(most, &limit, sizeof limit);
    const unsigned near = not_greater(d2, most);
    if (!near) return;
    worst_[query] = lists_.add(query, near, d2, block.index);
    limit_[query] = squared_distance_of<T>(worst_[query]);
  }

  Neighbour<T> worst_of_all() const {
    Neighbour<T> worst = 0;
    for (const Neighbour<T>& other : worst_) worst = std::max(worst, other);
    return worst;
  }

  const Part<T, D>* nodes_;
  const Block<T, D>* blocks_;
  std::int64_t most_;
  Lists lists_;
  Neighbour<T> worst_[kLanes];
  T limit_[kLanes];
  std::uint32_t seed_begin_[kLanes], seed_end_[kLanes];
};

}  // namespace
}  // namespace opgate::ops::knn_query
