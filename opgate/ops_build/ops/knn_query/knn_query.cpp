#include "knn_query.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "points/tree.h"

namespace opgate::ops::knn_query {
namespace {

/// The tensors of a call.
template <typename T>
struct Call {
  const T *xyz, *queries;
  bool queries_are_points;
  std::int64_t d, nsample;
  std::int32_t fill;
  std::int32_t* idx;
  T* dist;

  void write(std::int64_t query, std::span<const Neighbour<T>> found) const {
    std::int32_t* const rows = idx + query * nsample;
    T* const distances = dist + query * nsample;
    const auto count = static_cast<std::int64_t>(found.size());
    for (std::int64_t k = 0; k < count; ++k) {
      const Neighbour<T> neighbour = found[static_cast<std::size_t>(k)];
      rows[k] = static_cast<std::int32_t>(index_of(neighbour));
      distances[k] = std::sqrt(squared_distance_of<T>(neighbour));
    }
    std::fill(rows + count, rows + nsample, fill);
    std::fill(distances + count, distances + nsample, std::numeric_limits<T>::infinity());
  }
};

std::int64_t blocks_of(std::int64_t count) { return (count + kLanes - 1) / kLanes; }

/// Computes every distance of the segments that have few points, few queries, or many dims.
template <typename Lists>
class Scan {
 public:
  using T = typename Lists::T;

  static void run(Context& context, const Call<T>& call, std::span<const Segment> segments) {
    std::int64_t most_blocks = 0;
    for (const Segment& segment : segments) most_blocks = std::max(most_blocks, blocks_of(segment.points()));
    const std::span<T> blocks = context.scratch<T>(most_blocks * kLanes * std::max<std::int64_t>(call.d, 1));
    for (const Segment& segment : segments) {
      for (std::int64_t i = 0; i < blocks_of(segment.points()) * kLanes; ++i) {
        const bool is_there = i < segment.points();
        const T* const point = call.xyz + (segment.begin + i) * call.d;
        T* const to = blocks.data() + i / kLanes * kLanes * call.d + i % kLanes;
        for (std::int64_t axis = 0; axis < call.d; ++axis) {
          to[axis * kLanes] = is_there ? point[axis] : std::numeric_limits<T>::infinity();
        }
      }
      const std::int64_t work = std::max<std::int64_t>(1, segment.points() * std::max<std::int64_t>(call.d, 1));
      // A piece of queries has about a million differences.
      context.parallel_for(segment.queries(), std::max<std::int64_t>(1, (std::int64_t{1} << 20) / work),
                           [&](std::int64_t begin, std::int64_t end) {
                             Lists lists(std::clamp<std::int64_t>(segment.points(), 1, call.nsample));
                             for (std::int64_t i = segment.first + begin; i < segment.first + end; ++i) {
                               search(call, segment, blocks.data(), call.queries + i * call.d, lists);
                               call.write(i, lists.sorted(0));
                             }
                           });
    }
  }

 private:
  static void search(const Call<T>& call, const Segment& segment, const T* block, const T* query, Lists& lists) {
    lists.clear(0);
    Neighbour<T> worst = none<T>();
    Lanes<T> limit = squared_distance_of<T>(worst) - Lanes<T>{};
    for (std::int64_t first = 0; first < segment.points(); first += kLanes, block += kLanes * call.d) {
      Lanes<T> sum{};
      for (std::int64_t axis = 0; axis < call.d; ++axis) {
        Lanes<T> at;
        load(block + axis * kLanes, at);
        const Lanes<T> d = at - query[axis];
        sum += d * d;
      }
      T d2[kLanes], most[kLanes];
      std::memcpy(d2, &sum, sizeof sum);
      std::memcpy(most, &limit, sizeof limit);
      unsigned near = not_greater(d2, most);
      if (segment.points() - first < kLanes) near &= (1u << (segment.points() - first)) - 1;
      if (!near) continue;
      std::uint32_t index[kLanes];
      for (int lane = 0; lane < kLanes; ++lane) {
        index[lane] = static_cast<std::uint32_t>(segment.begin + first) + static_cast<std::uint32_t>(lane);
      }
      worst = lists.add(0, near, d2, index);
      limit = squared_distance_of<T>(worst) - Lanes<T>{};
    }
  }
};

/// k-d trees of the segments. They don't depend on the lists of a search, so that they compile once for all.
template <typename T, int D>
class Forest {
 public:
  /// The tree of a segment. It has the rows whose coordinates are finite.
  struct Tree {
    std::int64_t count;
    Entry<T, D>* entries;
    Part<T, D>* nodes;
    Block<T, D>* blocks;
  };

  std::vector<Tree> trees;
  std::vector<std::int64_t> groups;  ///< the blocks of all trees before each tree, and of all trees

  /// Builds a tree of the rows that each segment has between `begin` and `end`.
  static Forest plant(Context& context, const Call<T>& call, std::span<const Segment> segments, const T* rows,
                      std::int64_t Segment::* begin, std::int64_t Segment::* end) {
    std::int64_t count = 0, blocks = 0;
    for (const Segment& segment : segments) {
      count += segment.*end - segment.*begin;
      blocks += blocks_of(segment.*end - segment.*begin);
    }
    Entry<T, D>* entries = context.scratch<Entry<T, D>>(count).data();
    Block<T, D>* block = context.scratch<Block<T, D>>(blocks).data();
    Part<T, D>* nodes = context.scratch<Part<T, D>>(2 * blocks).data();
    Forest forest;
    for (const Segment& segment : segments) {
      forest.trees.push_back({0, entries, nodes, block});
      entries += segment.*end - segment.*begin;
      block += blocks_of(segment.*end - segment.*begin);
      nodes += 2 * blocks_of(segment.*end - segment.*begin);
    }
    const bool are_queries = rows == call.queries;
    context.parallel_for(static_cast<std::int64_t>(segments.size()), 1, [&](std::int64_t from, std::int64_t to) {
      for (auto i = static_cast<std::size_t>(from); i < static_cast<std::size_t>(to); ++i) {
        const Segment& segment = segments[i];
        forest.trees[i].count = collect(call, rows, segment.*begin, segment.*end, are_queries, forest.trees[i].entries);
      }
    });
    grow(context, forest);
    forest.groups.push_back(0);
    for (const Tree& tree : forest.trees) forest.groups.push_back(forest.groups.back() + blocks_of(tree.count));
    return forest;
  }

 private:
  /// Below so many entries, a task of building a tree is not divided.
  static constexpr std::int64_t kWholeTask = 4096;

  /// Copies the rows that are finite, and returns how many. Another query has no neighbours.
  static std::int64_t collect(const Call<T>& call, const T* rows, std::int64_t begin, std::int64_t end,
                              bool are_queries, Entry<T, D>* to) {
    std::int64_t count = 0;
    for (std::int64_t row = begin; row < end; ++row) {
      Entry<T, D> entry{};
      T zero = 0;
      for (std::int64_t axis = 0; axis < std::min<std::int64_t>(call.d, D); ++axis) {
        entry.at[axis] = rows[row * call.d + axis];
        zero += entry.at[axis] * T(0);
      }
      entry.index = static_cast<std::uint32_t>(row);
      if (zero == 0) {
        to[count++] = entry;
      } else if (are_queries) {
        call.write(row, {});
      }
    }
    return count;
  }

  /// Builds the trees. The upper parts of large trees are split first, so that many threads can build the rest.
  static void grow(Context& context, const Forest& forest) {
    std::vector<std::pair<const Tree*, typename Builder<T, D>::Task>> tasks;
    for (const Tree& tree : forest.trees) {
      if (tree.count > 0) tasks.push_back({&tree, {0, tree.count, 0}});
    }
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      while (tasks[i].second.end - tasks[i].second.begin > kWholeTask) {
        const Tree& tree = *tasks[i].first;
        typename Builder<T, D>::Task left = tasks[i].second, right{};
        Builder<T, D>(tree.entries, tree.nodes, tree.blocks).split(left, right);
        tasks[i].second = left;
        tasks.push_back({&tree, right});
      }
    }
    context.parallel_for(static_cast<std::int64_t>(tasks.size()), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const auto& [tree, task] = tasks[static_cast<std::size_t>(i)];
        Builder<T, D>(tree->entries, tree->nodes, tree->blocks).build(task);
      }
    });
  }
};

template <typename T, int D>
Part<T, D> box_of(const Block<T, D>& block, int count) {
  Part<T, D> box{};
  for (int axis = 0; axis < D; ++axis) {
    const auto [low, high] = std::minmax_element(block.at[axis], block.at[axis] + count);
    box.low[axis] = *low;
    box.high[axis] = *high;
  }
  return box;
}

/// Searches k-d trees of the segments. Queries that aren't points have a tree, too: its blocks are groups of queries
/// that are near one another.
template <typename Lists, int D>
class TreeSearch {
 public:
  using T = typename Lists::T;

  static void run(Context& context, const Call<T>& call, std::span<const Segment> segments) {
    std::vector<Forest<T, D>> forests;
    forests.push_back(Forest<T, D>::plant(context, call, segments, call.xyz, &Segment::begin, &Segment::end));
    if (!call.queries_are_points) {
      forests.push_back(Forest<T, D>::plant(context, call, segments, call.queries, &Segment::first, &Segment::last));
    }
    const Forest<T, D>&points = forests.front(), &queries = forests.back();
    context.parallel_for(queries.groups.back(), 16, [&](std::int64_t begin, std::int64_t end) {
      Search<Lists, D> search(nullptr, nullptr, call.nsample);
      std::size_t tree = 0;
      for (std::int64_t group = begin; group < end; ++group) {
        while (group >= queries.groups[tree + 1]) ++tree;
        const std::int64_t own = group - queries.groups[tree];
        const Block<T, D>& block = queries.trees[tree].blocks[own];
        const auto count = static_cast<int>(std::min<std::int64_t>(kLanes, queries.trees[tree].count - own * kLanes));
        if (points.trees[tree].count == 0) {
          for (int i = 0; i < count; ++i) call.write(block.index[i], {});
          continue;
        }
        search.point_to(points.trees[tree].nodes, points.trees[tree].blocks);
        search.run(block, count, box_of(block, count));
        for (int i = 0; i < count; ++i) call.write(block.index[i], search.sorted(i));
      }
    });
  }
};

struct Cpu : Checked {
  template <typename T, typename I>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    std::vector<Segment> segments;
    OPGATE_RETURN_IF_ERROR(read_segments<I>(in, segments));
    Call<T> call{};
    call.xyz = in["xyz"].data<T>();
    call.queries_are_points = !in.has("new_xyz");
    call.queries = call.queries_are_points ? call.xyz : in["new_xyz"].data<T>();
    call.d = in.size("d");
    call.nsample = attributes.integer("nsample");
    call.fill = static_cast<std::int32_t>(attributes.integer("fill"));
    call.idx = out["idx"].data<std::int32_t>();
    call.dist = out["dist"].data<T>();
    if (call.nsample == 0) return {};
    std::vector<Segment> scanned, searched;
    for (const Segment& segment : segments) (has_tree(segment, call) ? searched : scanned).push_back(segment);
    if constexpr (std::is_same_v<T, float>) {
      if (call.nsample <= 8) return run<SortedLists<8>>(context, call, scanned, searched);
      if (call.nsample <= 16) return run<SortedLists<16>>(context, call, scanned, searched);
      if (call.nsample <= 32) return run<SortedLists<32>>(context, call, scanned, searched);
    }
    return run<BufferedLists<T>>(context, call, scanned, searched);
  }

 private:
  /// Whether building a tree takes less time than it saves.
  template <typename T>
  static bool has_tree(const Segment& segment, const Call<T>& call) {
    constexpr std::int64_t kFewQueries = 96, kFewPoints = 96, kMostDims = 8, kMostNeighbours = 1024;
    if (call.d < 1 || call.d > kMostDims || call.nsample > kMostNeighbours) return false;
    const std::int64_t few = std::max(kFewPoints << std::max<std::int64_t>(call.d - 3, 0), 4 * call.nsample);
    return segment.queries() >= kFewQueries && segment.points() >= few;
  }

  template <typename Lists>
  static Status run(Context& context, const Call<typename Lists::T>& call, std::span<const Segment> scanned,
                    std::span<const Segment> searched) {
    Scan<Lists>::run(context, call, scanned);
    if (searched.empty()) return {};
    if constexpr (std::is_same_v<typename Lists::T, float>) {
      if (call.d <= 2) {
        TreeSearch<Lists, 2>::run(context, call, searched);
        return {};
      }
    }
    if (call.d <= 3) {
      TreeSearch<Lists, 3>::run(context, call, searched);
    } else {
      TreeSearch<Lists, 8>::run(context, call, searched);
    }
    return {};
  }
};

}  // namespace
}  // namespace opgate::ops::knn_query

OPGATE_CPU_KERNEL(KNNQuery, opgate::ops::knn_query::Cpu)
