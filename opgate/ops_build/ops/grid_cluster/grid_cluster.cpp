#include "grid_cluster.h"

#include <algorithm>
#include <mutex>
#include <string>
#include <vector>

#include "formula.h"
#include "kernel_toolkit/elementwise.h"

namespace opgate::ops::grid_cluster {
namespace {

/// So many points are computed together. Their coordinates stay interleaved, so that every loop goes over contiguous
/// numbers.
constexpr std::int64_t kBlock = 32;

/// The least and the greatest coordinate on each axis. A NaN doesn't count.
template <typename T>
struct Bounds {
  std::vector<T> low, high;

  explicit Bounds(std::int64_t d)
      : low(static_cast<std::size_t>(d), std::numeric_limits<T>::infinity()),
        high(static_cast<std::size_t>(d), -std::numeric_limits<T>::infinity()) {}

  void add(const Bounds& other) {
    for (std::size_t axis = 0; axis < low.size(); ++axis) {
      low[axis] = std::min(low[axis], other.low[axis]);
      high[axis] = std::max(high[axis], other.high[axis]);
    }
  }
};

/// The bounds of `count` points. D is the number of axes, or 0 if it is known only to `dims`.
template <int D, typename T>
Bounds<T> bounds_of(const T* pos, std::int64_t count, std::int64_t dims) {
  const std::int64_t d = D ? D : dims;
  constexpr std::int64_t kTogether = 16;  // points whose bounds are kept apart until the end
  const std::int64_t width = d * kTogether;
  std::vector<T> memory(static_cast<std::size_t>(2 * width), std::numeric_limits<T>::infinity());
  T *const low = memory.data(), *const high = memory.data() + width;
  std::fill(high, high + width, -std::numeric_limits<T>::infinity());
  std::int64_t row = 0;
  if constexpr (D) {
    constexpr std::int64_t kWidth = D * kTogether;
    T least[kWidth], most[kWidth];
    std::copy_n(low, kWidth, least);
    std::copy_n(high, kWidth, most);
    for (; row + kTogether <= count; row += kTogether) {
      const T* const from = pos + row * D;
      for (std::int64_t i = 0; i < kWidth; ++i) {
        least[i] = from[i] < least[i] ? from[i] : least[i];
        most[i] = from[i] > most[i] ? from[i] : most[i];
      }
    }
    std::copy_n(least, kWidth, low);
    std::copy_n(most, kWidth, high);
  }
  for (; row < count; row += kTogether) {
    const T* const from = pos + row * d;
    const std::int64_t numbers = std::min(kTogether, count - row) * d;
    for (std::int64_t i = 0; i < numbers; ++i) {
      low[i] = from[i] < low[i] ? from[i] : low[i];
      high[i] = from[i] > high[i] ? from[i] : high[i];
    }
  }
  Bounds<T> bounds(d);
  for (std::int64_t i = 0; i < width; ++i) {
    const auto axis = static_cast<std::size_t>(i % d);
    bounds.low[axis] = std::min(bounds.low[axis], low[i]);
    bounds.high[axis] = std::max(bounds.high[axis], high[i]);
  }
  return bounds;
}

/// The grid, repeated for each point of a block.
template <typename T>
struct Grid {
  std::vector<T> start, size;
  std::vector<T> behind;  ///< the number of cells on each axis
  std::vector<std::int32_t> stride;
  std::vector<std::int64_t> strides;  ///< one for each axis
  bool narrow = true;                 ///< whether i32 holds the numbers of all cells

  Grid(std::int64_t d, const T* starts, const T* ends, const T* sizes) {
    std::int64_t all = 1;
    for (std::int64_t axis = 0; axis < d; ++axis) {
      strides.push_back(all);
      const std::int64_t here = cells(starts[axis], ends[axis], sizes[axis]);
      narrow = narrow && here >= 1 && !__builtin_mul_overflow_p(all, here, std::int32_t{});
      all = times(all, here);
    }
    for (std::int64_t i = 0; i < d * kBlock; ++i) {
      const std::int64_t axis = i % d;
      start.push_back(starts[axis]);
      size.push_back(sizes[axis]);
      behind.push_back(static_cast<T>(cells(starts[axis], ends[axis], sizes[axis])));
      stride.push_back(static_cast<std::int32_t>(strides[static_cast<std::size_t>(axis)]));
    }
  }
};

/// Writes the cells of at most kBlock points. D is the number of axes, or 0 if it is known only to `dims`.
template <int D, typename T>
void find_cells(const Grid<T>& grid, const T* pos, std::int64_t count, std::int64_t dims, T* quotients,
                std::int32_t* parts, std::int64_t* cluster) {
  const std::int64_t d = D ? D : dims;
  const std::int64_t numbers = count == kBlock ? d * kBlock : d * count;
  const T *const start = grid.start.data(), *const size = grid.size.data(), *const behind = grid.behind.data();
  int outside = 0;
  for (std::int64_t i = 0; i < numbers; ++i) {
    quotients[i] = (pos[i] - start[i]) / size[i];
    outside |= !((quotients[i] > T(-1)) & (quotients[i] < behind[i]));
  }
  if (!outside && grid.narrow) {
    const std::int32_t* const stride = grid.stride.data();
    for (std::int64_t i = 0; i < numbers; ++i) parts[i] = static_cast<std::int32_t>(quotients[i]) * stride[i];
    for (std::int64_t row = 0; row < count; ++row) {
      std::int32_t cell = 0;
      for (std::int64_t axis = 0; axis < d; ++axis) cell += parts[row * d + axis];
      cluster[row] = cell;
    }
    return;
  }
  // A point outside of the grid gets the number that the formula gives.
  for (std::int64_t row = 0; row < count; ++row) {
    std::int64_t cell = 0;
    for (std::int64_t axis = 0; axis < d; ++axis) {
      cell = plus(cell, times(truncated(quotients[row * d + axis]), grid.strides[static_cast<std::size_t>(axis)]));
    }
    cluster[row] = cell;
  }
}

struct Cpu {
  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes&, Outputs& out) const {
    const std::int64_t n = in.size("n"), d = in.size("d");
    const T* const size = in["size"].data<T>();
    for (std::int64_t axis = 0; axis < d; ++axis) {
      if (!(size[axis] > 0)) {
        return Status::invalid("input 'size': element " + std::to_string(axis) + " is " + std::to_string(size[axis]) +
                               ", expected a positive number");
      }
    }
    auto* const cluster = out["cluster"].data<std::int64_t>();
    if (n == 0) return {};
    if (d == 0) return std::fill_n(cluster, n, 0), Status();
    if (d == 1) return run<1, T>(context, in, size, cluster);
    if (d == 2) return run<2, T>(context, in, size, cluster);
    if (d == 3) return run<3, T>(context, in, size, cluster);
    return run<0, T>(context, in, size, cluster);
  }

 private:
  template <int D, typename T>
  static Status run(Context& context, const Inputs& in, const T* size, std::int64_t* cluster) {
    const std::int64_t n = in.size("n"), d = in.size("d");
    const T* const pos = in["pos"].data<T>();
    const std::int64_t grain = std::max(kBlock, kElementGrain / d);
    Bounds<T> bounds(d);
    if (!in.has("start") || !in.has("end")) {
      std::mutex mutex;
      context.parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end) {
        const Bounds<T> own = bounds_of<D>(pos + begin * d, end - begin, d);
        const std::lock_guard lock(mutex);
        bounds.add(own);
      });
    }
    const Grid<T> grid(d, in.has("start") ? in["start"].data<T>() : bounds.low.data(),
                       in.has("end") ? in["end"].data<T>() : bounds.high.data(), size);
    context.parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end) {
      std::vector<T> quotients(static_cast<std::size_t>(d * kBlock));
      std::vector<std::int32_t> parts(static_cast<std::size_t>(d * kBlock));
      for (std::int64_t row = begin; row < end; row += kBlock) {
        find_cells<D>(grid, pos + row * d, std::min(kBlock, end - row), d, quotients.data(), parts.data(),
                      cluster + row);
      }
    });
    return {};
  }
};

}  // namespace
}  // namespace opgate::ops::grid_cluster

OPGATE_CPU_KERNEL(GridCluster, opgate::ops::grid_cluster::Cpu)
