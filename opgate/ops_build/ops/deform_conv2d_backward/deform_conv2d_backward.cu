#include "deform_conv2d_backward.h"

#include "kernel_toolkit/rows.cuh"
#include "kernel_toolkit/sorted.cuh"
#include "ops/deform_conv2d/columns.cuh"

namespace opgate::ops::deform_conv2d_backward {
namespace {

using namespace deform_conv2d;

static_assert(kThreads == rows::kThreads);

/// A tap's sample of an output pixel, for the gradients of the four pixels of the input.
template <typename C>
struct alignas(16) Tap {
  std::int32_t x, y;
  std::uint32_t row, tap;
  C weights[4];
};

/// The kernels of a call. They compute some images at once, whose output pixels are the rows: those of one image after
/// the other. A row has a column and its gradient.
template <typename T>
struct Arguments {
  using C = ComputeType<T>;

  Arranged<T> g;
  std::int64_t image;          ///< the first one
  std::uint32_t images, rows;  ///< how many
  std::int64_t stride;         ///< the numbers of a channel in `upstream`: the rows, padded with zeros to whole vectors
  const T *grad_output, *input, *weight, *offset, *mask;
  T *filters, *pictures, *upstream, *columns;
  C *grad_columns, *sums, *totals;
  Tap<C>* taps;
  std::uint32_t* starts;  ///< of each key among the sorted ones

  OPGATE_HOST_DEVICE std::int64_t samples() const { return rows * g.offset_groups * g.taps(); }
  /// A key for each pixel of each offset group, and one behind them for samples outside.
  OPGATE_HOST_DEVICE std::int64_t keys() const { return images * g.offset_groups * g.size(); }

  Arrange<T> arrange() const {
    const bool filters_too = image == 0 && !few(g);
    return {g, images, filters_too ? weight : nullptr, input + image * g.c * g.size(), filters, pictures};
  }
};

/// Puts filters, pictures and the gradient of the output in order: upstream[channel][row].
template <typename T>
__global__ void __launch_bounds__(kThreads) arrange_all(Arguments<T> arguments, Arrange<T> arranging) {
  const std::int64_t thread = thread_index(), i = thread - arranging.vectors();
  if (i < 0) return arranging.write(thread);
  const Arranged<T>& g = arguments.g;
  const std::int64_t of_channel = arguments.stride / g.kVector, channel = quotient(i, of_channel);
  if (channel >= g.oc) return;
  const auto first = static_cast<std::uint32_t>((i - channel * of_channel) * g.kVector);
  const auto pixels = static_cast<std::uint32_t>(g.pixels());
  std::int64_t image = arguments.image + first / pixels;
  std::uint32_t pixel = first % pixels;
  products::Vector<T> vector;
#pragma unroll
  for (int j = 0; j < g.kVector; ++j) {
    vector.values[j] =
        first + j < arguments.rows ? arguments.grad_output[(image * g.oc + channel) * pixels + pixel] : T{};
    if (++pixel < pixels) continue;
    pixel = 0;
    ++image;
  }
  reinterpret_cast<products::Vector<T>*>(arguments.upstream)[i] = vector;
}

/// The gradients of the columns: upstream times filters.
template <typename T>
__global__ void __launch_bounds__(products::kThreads, products::kBlocks<T>)
    find_grad_columns(Arguments<T> arguments, products::Grid grid) {
  using C = ComputeType<T>;
  const Arranged<T>& g = arguments.g;
  const auto tile = products::Place::of(grid);
  const std::int64_t channel = tile.group * g.filters_of_group;
  C* const to = arguments.grad_columns + tile.first_row * g.depth + tile.group * g.group_depth + tile.first_column;
  const products::Matrix<T, false> rows{arguments.upstream + channel * arguments.stride, arguments.stride,
                                        arguments.rows};
  const products::Matrix<T, false> numbers{arguments.filters + channel * g.group_depth, g.group_depth, g.group_depth};
  products::multiply_tile<false>(rows, tile.first_row, numbers, tile.first_column, tile.begin, tile.end,
                                 [&](int row, int number, C sum) { to[row * g.depth + number] = sum; });
}

/// The same for groups of few channels and filters: a thread computes a vector of a column.
template <typename T>
__global__ void __launch_bounds__(kThreads) find_few_grad_columns(Arguments<T> arguments) {
  using C = ComputeType<T>;
  const Arranged<T>& g = arguments.g;
  const std::int64_t vector = quotient(thread_index(), arguments.rows), row = thread_index() - vector * arguments.rows;
  if (vector >= g.depth / g.kVector) return;
  const std::int64_t of_tap = quotient(vector, g.segment_vectors), segment = quotient(of_tap, g.taps());
  const std::int64_t tap = of_tap - segment * g.taps(), first = (vector - of_tap * g.segment_vectors) * g.kVector;
  elementwise::Lanes<C, Arranged<T>::kVector> gradients{};
#pragma unroll
  for (int j = 0; j < g.kVector; ++j) {
    if (first + j >= g.segment) break;
    const std::int64_t channel = segment * g.segment + first + j, group = quotient(channel, g.cg);
    const std::int64_t filter = group * g.filters_of_group;
    const T* weight = arguments.weight + (filter * g.cg + channel - group * g.cg) * g.taps() + tap;
    const T* upstream = arguments.upstream + filter * arguments.stride + row;
    for (std::int64_t k = 0; k < g.filters_of_group; ++k) {
      gradients.values[j] += static_cast<C>(*upstream) * static_cast<C>(*weight);
      weight += g.cg * g.taps();
      upstream += arguments.stride;
    }
  }
  *reinterpret_cast<elementwise::Lanes<C, Arranged<T>::kVector>*>(arguments.grad_columns + row * g.depth +
                                                                  vector * g.kVector) = gradients;
}

/// Computes the columns, and the gradients of offsets and mask. Some threads share a sample. Its key is the pixel above
/// and to the left of it, or where that doesn't exist, the next one. A sample outside comes behind all others.
template <typename T>
__global__ void __launch_bounds__(kThreads) find_grad_offset(Arguments<T> arguments, int lanes, std::uint32_t* keys,
                                                             std::uint32_t* values, T* grad_offset, T* grad_mask) {
  using C = ComputeType<T>;
  using Gradients = elementwise::Lanes<C, Arranged<T>::kVector>;
  const Arranged<T>& g = arguments.g;
  const int lane = static_cast<int>(threadIdx.x) & (lanes - 1);
  const std::int64_t thread = thread_index() >> (__ffs(lanes) - 1);
  // All lanes of a warp meet at the shuffles: those without a sample join with another one.
  const bool exists = thread < arguments.samples();
  const auto number = static_cast<std::uint32_t>(exists ? thread : 0), taps = static_cast<std::uint32_t>(g.taps());
  const std::uint32_t sample = number / arguments.rows, row = number % arguments.rows;
  const std::uint32_t group = sample / taps, tap = sample % taps, pixels = static_cast<std::uint32_t>(g.pixels());
  const std::uint32_t picture = row / pixels, pixel = row % pixels;
  const std::int64_t image = arguments.image + picture;
  const auto corners = Corners<C>::of(g, arguments.offset, arguments.mask, image, group, tap, pixel);
  const T* const from = arguments.pictures + picture * g.picture() + std::int64_t{group} * g.sample_vectors * g.kVector;
  C weights[4], sums[4] = {};
#pragma unroll
  for (int corner = 0; corner < 4; ++corner) weights[corner] = corners.weight(corner);
  for (int vector = exists ? lane : g.sample_vectors; vector < g.sample_vectors; vector += lanes) {
    const std::int64_t at = row * g.depth + g.in_column(group, tap, vector);
    const auto gradients = *reinterpret_cast<const Gradients*>(arguments.grad_columns + at);
    products::Vector<T> numbers[4], result;
    corners.load(from, g.row, vector, numbers);
#pragma unroll
    for (int j = 0; j < g.kVector; ++j) {
      C value = 0;
#pragma unroll
      for (int corner = 0; corner < 4; ++corner) {
        const C here = static_cast<C>(numbers[corner].values[j]);
        value += weights[corner] * here;
        sums[corner] += here * gradients.values[j];
      }
      result.values[j] = static_cast<T>(value);
    }
    *reinterpret_cast<products::Vector<T>*>(arguments.columns + at) = result;
  }
#pragma unroll
  for (int corner = 0; corner < 4; ++corner) {
    for (int bits = lanes / 2; bits > 0; bits /= 2) sums[corner] += __shfl_xor_sync(0xffffffffu, sums[corner], bits);
    if (!corners.exists(corner)) sums[corner] = 0;  // also if the gradient is no number
  }
  if (lane > 0 || !exists) return;
  const C left = C(1) - corners.right, above = C(1) - corners.below;
  const C to_y = left * (sums[2] - sums[0]) + corners.right * (sums[3] - sums[1]);
  const C to_x = above * (sums[1] - sums[0]) + corners.below * (sums[3] - sums[2]);
  const std::int64_t at = g.offset_at(image, group, tap) + pixel;
  grad_offset[at] = static_cast<T>(to_y * corners.factor);
  grad_offset[at + pixels] = static_cast<T>(to_x * corners.factor);
  if (grad_mask) {
    C sum = 0;
    for (int corner = 0; corner < 4; ++corner) sum += corners.near(corner) * sums[corner];
    grad_mask[((image * g.offset_groups + group) * taps + tap) * pixels + pixel] = static_cast<T>(sum);
  }
  std::int64_t key = arguments.keys();
  for (int corner = 3; corner >= 0; --corner) {
    if (corners.exists(corner)) key = (picture * g.offset_groups + group) * g.size() + corners.pixel[corner];
  }
  keys[number] = static_cast<std::uint32_t>(key);
  values[number] = number;
  arguments.taps[number] = {corners.x, corners.y, row, tap, {weights[0], weights[1], weights[2], weights[3]}};
}

template <typename T>
__global__ void __launch_bounds__(kThreads) find_starts(Arguments<T> arguments, const std::uint32_t* sorted_keys) {
  const std::int64_t key = thread_index();
  if (key > arguments.keys()) return;
  arguments.starts[key] =
      static_cast<std::uint32_t>(first_of(sorted_keys, arguments.samples(), static_cast<std::uint32_t>(key)));
}

/// Computes the gradients of the pictures, in their place, from the samples whose key a pixel is or one of its
/// neighbours. Some threads share a pixel of an offset group.
template <typename T>
__global__ void __launch_bounds__(kThreads, 4)
    find_grad_pictures(Arguments<T> arguments, int lanes, const std::uint32_t* sorted_values) {
  using C = ComputeType<T>;
  using Gradients = elementwise::Lanes<C, Arranged<T>::kVector>;
  const Arranged<T>& g = arguments.g;
  const int lane = static_cast<int>(threadIdx.x) & (lanes - 1);
  const std::int64_t thread = thread_index() >> (__ffs(lanes) - 1);
  if (thread >= arguments.keys()) return;
  const auto number = static_cast<std::uint32_t>(thread), size = static_cast<std::uint32_t>(g.size());
  const std::uint32_t of_group = number / size, place = number % size,
                      groups = static_cast<std::uint32_t>(g.offset_groups);
  const std::uint32_t picture = of_group / groups, group = of_group % groups, width = static_cast<std::uint32_t>(g.w);
  const auto x = static_cast<std::int32_t>(place % width), y = static_cast<std::int32_t>(place / width);
  T* const to =
      arguments.pictures + picture * g.picture() + place * g.row + std::int64_t{group} * g.sample_vectors * g.kVector;
  for (int vector = lane; vector < g.sample_vectors; vector += lanes) {
    const C* const from = arguments.grad_columns + g.in_column(group, 0, vector);
    C totals[Arranged<T>::kVector] = {};
#pragma unroll 1
    for (int corner = 0; corner < 4; ++corner) {
      const std::int32_t left = x - corner % 2, top = y - corner / 2;
      const std::uint32_t* const starts =
          arguments.starts + of_group * g.size() + (top > 0 ? top : 0) * g.w + (left > 0 ? left : 0);
      for (std::uint32_t i = starts[0], end = starts[1]; i < end;) {
        C parts[Arranged<T>::kVector] = {};  // few samples are added before they are added to the others
        for (const std::uint32_t last = i + 64 < end ? i + 64 : end; i < last; ++i) {
          const Tap<C>& sample = arguments.taps[sorted_values[i]];
          if (sample.x != left || sample.y != top) continue;
          const C weight = sample.weights[corner];
          const auto gradients =
              *reinterpret_cast<const Gradients*>(from + sample.row * g.depth + sample.tap * g.padded);
#pragma unroll
          for (int j = 0; j < g.kVector; ++j) parts[j] += weight * gradients.values[j];
        }
#pragma unroll
        for (int j = 0; j < g.kVector; ++j) totals[j] += parts[j];
      }
    }
    products::Vector<T> result;
#pragma unroll
    for (int j = 0; j < g.kVector; ++j) result.values[j] = static_cast<T>(totals[j]);
    reinterpret_cast<products::Vector<T>*>(to)[vector] = result;
  }
}

/// Writes the gradients of the pictures where the input's numbers are. A thread writes those of a vector, beside its
/// neighbours.
template <typename T>
__global__ void __launch_bounds__(kThreads) write_grad_input(Arguments<T> arguments, T* grad_input) {
  const Arranged<T>& g = arguments.g;
  const std::int64_t rest = quotient(thread_index(), g.size()), pixel = thread_index() - rest * g.size();
  const std::int64_t of_row = g.segments * g.segment_vectors, picture = quotient(rest, of_row);
  if (picture >= arguments.images) return;
  const std::int64_t vector = rest - picture * of_row, segment = quotient(vector, g.segment_vectors);
  const std::int64_t first = (vector - segment * g.segment_vectors) * g.kVector;
  const auto numbers =
      reinterpret_cast<const products::Vector<T>*>(arguments.pictures + picture * g.picture() + pixel * g.row)[vector];
  T* const to = grad_input + ((arguments.image + picture) * g.c + segment * g.segment + first) * g.size() + pixel;
#pragma unroll
  for (int j = 0; j < g.kVector; ++j) {
    if (first + j < g.segment) to[j * g.size()] = numbers.values[j];
  }
}

/// The gradients of the filters, in parts of the rows: columns times upstream.
template <typename T>
__global__ void __launch_bounds__(products::kThreads, products::kBlocks<T>)
    find_grad_weight(Arguments<T> arguments, products::Grid grid) {
  using C = ComputeType<T>;
  const Arranged<T>& g = arguments.g;
  const auto tile = products::Place::of(grid);
  const std::int64_t channel = tile.group * g.filters_of_group;
  C* const to = arguments.sums + (tile.split * g.oc + channel + tile.first_column) * g.group_depth + tile.first_row;
  const products::Matrix<T, false> numbers{arguments.columns + tile.group * g.group_depth, g.depth, g.group_depth};
  const products::Matrix<T, true> filters{arguments.upstream + channel * arguments.stride, arguments.stride,
                                          g.filters_of_group};
  products::multiply_tile<true>(numbers, tile.first_row, filters, tile.first_column, tile.begin, tile.end,
                                [&](int number, int filter, C sum) { to[filter * g.group_depth + number] = sum; });
}

/// The same for groups of few channels and filters: a thread computes a channel's gradients of a tap of kFew filters,
/// in the order of the filters.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    find_few_grad_weight(Arguments<T> arguments, std::int64_t part, std::int64_t splits) {
  using C = ComputeType<T>;
  const Arranged<T>& g = arguments.g;
  const std::int64_t split = quotient(thread_index(), g.depth), number = thread_index() - split * g.depth;
  if (split >= splits) return;
  const std::int64_t of_tap = quotient(number, g.padded), segment = quotient(of_tap, g.taps());
  const std::int64_t tap = of_tap - segment * g.taps(), in_segment = number - of_tap * g.padded;
  if (in_segment >= g.segment) return;
  const std::int64_t channel = segment * g.segment + in_segment, group = quotient(channel, g.cg);
  const std::int64_t begin = split * part, end = begin + part < arguments.rows ? begin + part : arguments.rows;
  for (std::int64_t first = 0; first < g.filters_of_group; first += kFew) {
    const std::int64_t filter = group * g.filters_of_group + first;
    const int count = static_cast<int>(g.filters_of_group - first < kFew ? g.filters_of_group - first : kFew);
    C sums[kFew] = {};
    for (std::int64_t row = begin; row < end; ++row) {
      const C value = static_cast<C>(arguments.columns[row * g.depth + number]);
#pragma unroll
      for (int k = 0; k < kFew; ++k) {
        if (k < count) sums[k] += value * static_cast<C>(arguments.upstream[(filter + k) * arguments.stride + row]);
      }
    }
#pragma unroll
    for (int k = 0; k < kFew; ++k) {
      if (k >= count) break;
      const std::int64_t at = ((split * g.oc + filter + k) * g.cg + channel - group * g.cg) * g.taps() + tap;
      arguments.sums[at] = sums[k];
    }
  }
}

/// Adds the parts of the gradients of the filters, in their order, and those of the images before. After the last image
/// it writes them where the filters' numbers are.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    add_grad_weight(Arguments<T> arguments, std::int64_t numbers, std::int64_t splits, bool arranged, T* grad_weight) {
  using C = ComputeType<T>;
  const Arranged<T>& g = arguments.g;
  const std::int64_t i = thread_index();
  if (i >= numbers) return;
  C total = arguments.image > 0 ? arguments.totals[i] : C(0);
  for (std::int64_t split = 0; split < splits; ++split) total += arguments.sums[split * numbers + i];
  if (arguments.image + arguments.images < g.n) {
    arguments.totals[i] = total;
  } else if (!arranged) {
    grad_weight[i] = static_cast<T>(total);
  } else {
    const std::int64_t of_tap = quotient(i, g.padded), segment = quotient(of_tap, g.taps());
    const std::int64_t tap = of_tap - segment * g.taps(), channel = i - of_tap * g.padded;
    if (channel < g.segment) grad_weight[(segment * g.segment + channel) * g.taps() + tap] = static_cast<T>(total);
  }
}

/// A block computes the gradient of a channel's bias.
template <typename T>
__global__ void __launch_bounds__(kThreads) find_grad_bias(Geometry g, const T* grad_output, T* grad_bias) {
  using C = ComputeType<T>;
  for (std::int64_t k = blockIdx.x; k < g.oc; k += gridDim.x) {
    C total = 0;
    for (std::int64_t image = 0; image < g.n; ++image) {
      const T* const from = grad_output + (image * g.oc + k) * g.pixels();
      total += rows::sum<C>(g.pixels(), [&](std::int64_t i) { return static_cast<C>(from[i]); });
    }
    if (threadIdx.x == 0) grad_bias[k] = static_cast<T>(total);
  }
}

/// How the work is divided. It depends only on the sizes.
template <typename T>
struct Plan {
  using C = ComputeType<T>;

  static constexpr std::int64_t kMostBytes = 4 * kChunkBytes;
  /// Where groups have few channels and filters, about so many threads add at least so many rows for the filters.
  static constexpr std::int64_t kFewThreads = 1 << 16, kFewRows = 64;

  Arranged<T> g;
  bool with_few;
  std::int64_t image_bytes;                          ///< what is kept of an image
  std::int64_t images, rows, stride, samples, keys;  ///< of the images that are computed at once
  products::Grid columns, filters;
  std::int64_t part, splits, numbers;  ///< the rows that are added at once for the filters, how many parts, their size

  static Plan of(const Inputs& in, const Attributes& attributes) {
    const Geometry geometry = Geometry::of(in, attributes);
    Plan plan{Arranged<T>::of(geometry, few(geometry)), few(geometry), {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}};
    const Arranged<T>& g = plan.g;
    const std::int64_t of_image = g.offset_groups * std::max(g.taps() * g.pixels(), g.size());
    plan.image_bytes = g.picture() * sizeof(T) + g.pixels() * (g.depth * (sizeof(T) + sizeof(C)) + g.oc * sizeof(T)) +
                       g.offset_groups * (g.taps() * g.pixels() * sizeof(Tap<C>) + g.size() * sizeof(std::uint32_t));
    // Samples, keys and rows have 32 bits.
    plan.images =
        std::min(together(g.n, plan.image_bytes, kMostBytes), 0x7fffffff / std::max<std::int64_t>(1, of_image));
    plan.rows = plan.images * g.pixels();
    plan.stride = (plan.rows + g.kVector - 1) / g.kVector * g.kVector;
    plan.samples = plan.rows * g.offset_groups * g.taps();
    plan.keys = plan.images * g.offset_groups * g.size();
    if (g.oc == 0) return plan;
    if (plan.with_few) {
      const std::int64_t parts =
          std::clamp<std::int64_t>(kFewThreads / g.depth, 1, std::max<std::int64_t>(1, plan.rows / kFewRows));
      plan.part = std::max<std::int64_t>(1, (plan.rows + parts - 1) / parts);
      plan.splits = (plan.rows + plan.part - 1) / plan.part;
      plan.numbers = g.oc * g.cg * g.taps();
    } else {
      plan.columns = products::Grid::of(plan.rows, g.group_depth, g.ocg(), g.groups);
      plan.columns.splits = 1;
      plan.columns.part = plan.columns.depth;
      plan.filters = products::Grid::of(g.group_depth, g.ocg(), plan.rows, g.groups);
      plan.splits = plan.filters.splits;
      plan.numbers = g.oc * g.group_depth;
    }
    return plan;
  }

  // What a call may need. It doesn't shrink for more images or pixels.

  std::int64_t most_bytes() const {
    constexpr std::int64_t kArrays = 6;
    return together_bytes(g.n, image_bytes, kMostBytes) + g.oc * g.kVector * sizeof(T) + kArrays * kArrayAlignment;
  }
  std::int64_t most_samples() const {
    const std::int64_t of_image = g.offset_groups * g.taps() * g.pixels();
    return together_bytes(g.n, of_image, kMostBytes / sizeof(Tap<C>));
  }
  std::int64_t most_sums() const {
    const std::int64_t rows = g.n * g.pixels();
    return std::max(numbers, with_few ? std::min(kFewThreads * g.ocg(), rows / kFewRows * numbers)
                                      : products::Grid::most_parts(numbers, rows));
  }

  static constexpr std::int64_t kArrayAlignment = Workspace::kAlignment;
};

template <typename T>
class Gradients {
 public:
  using C = ComputeType<T>;

  Gradients(Context& context, const Plan<T>& plan, const Arguments<T>& arguments, const SortedKeys& sorted,
            Outputs& out)
      : context_(context),
        plan_(plan),
        arguments_(arguments),
        sorted_(sorted),
        out_(out),
        stream_(stream_of(context)) {}

  Status compute() {
    const Arranged<T>& g = plan_.g;
    if (g.n * g.oc * g.pixels() == 0) return nothing();
    for (arguments_.image = 0; arguments_.image < g.n; arguments_.image += plan_.images) {
      arguments_.images = static_cast<std::uint32_t>(std::min(plan_.images, g.n - arguments_.image));
      arguments_.rows = static_cast<std::uint32_t>(arguments_.images * g.pixels());
      OPGATE_RETURN_IF_ERROR(of_samples());
      if (g.size() > 0) OPGATE_RETURN_IF_ERROR(of_input());
      OPGATE_RETURN_IF_ERROR(of_weight());
    }
    if (!out_.has("grad_bias")) return {};
    find_grad_bias<T><<<blocks_for(g.oc, 1), kThreads, 0, stream_>>>(g, arguments_.grad_output, data("grad_bias"));
    return launched();
  }

 private:
  T* data(const char* name) { return out_[name].template data<T>(); }

  /// Without output nothing flows back.
  Status nothing() {
    for (const char* const name : {"grad_input", "grad_weight", "grad_offset", "grad_bias", "grad_mask"}) {
      if (!out_.has(name) || out_[name].size() == 0) continue;
      const auto bytes = static_cast<std::size_t>(out_[name].size()) * sizeof(T);
      OPGATE_RETURN_IF_ERROR(cuda::status(cudaMemsetAsync(data(name), 0, bytes, stream_), "filling with zeros"));
    }
    return {};
  }

  Status of_samples() {
    const Arranged<T>& g = plan_.g;
    const Arrange<T> arranging = arguments_.arrange();
    const std::int64_t vectors = arranging.vectors() + g.oc * (arguments_.stride / g.kVector);
    arrange_all<T><<<blocks_for(vectors, kThreads), kThreads, 0, stream_>>>(arguments_, arranging);
    OPGATE_RETURN_IF_ERROR(launched());
    if (plan_.with_few) {
      const std::int64_t threads = arguments_.rows * (g.depth / g.kVector);
      find_few_grad_columns<T><<<blocks_for(threads, kThreads), kThreads, 0, stream_>>>(arguments_);
    } else {
      products::Grid grid = plan_.columns;
      grid.row_tiles = grid.tiles_of(arguments_.rows, products::kRows);
      find_grad_columns<T><<<blocks_for(grid.tiles(), 1), products::kThreads, 0, stream_>>>(arguments_, grid);
    }
    OPGATE_RETURN_IF_ERROR(launched());
    T* const grad_mask = out_.has("grad_mask") ? data("grad_mask") : nullptr;
    find_grad_offset<T><<<blocks_for(arguments_.samples() * g.lanes(), kThreads), kThreads, 0, stream_>>>(
        arguments_, g.lanes(), sorted_.keys.data(), sorted_.values.data(), data("grad_offset"), grad_mask);
    return launched();
  }

  Status of_input() {
    const Arranged<T>& g = plan_.g;
    const auto samples = static_cast<std::size_t>(arguments_.samples());
    SortedKeys sorted = sorted_;  // the last images may be fewer
    sorted.keys = sorted.keys.first(samples);
    OPGATE_RETURN_IF_ERROR(sorted.sort(context_, plan_.keys));
    find_starts<T>
        <<<blocks_for(arguments_.keys() + 1, kThreads), kThreads, 0, stream_>>>(arguments_, sorted_.sorted_keys.data());
    OPGATE_RETURN_IF_ERROR(launched());
    find_grad_pictures<T><<<blocks_for(arguments_.keys() * g.lanes(), kThreads), kThreads, 0, stream_>>>(
        arguments_, g.lanes(), sorted_.sorted_values.data());
    OPGATE_RETURN_IF_ERROR(launched());
    const std::int64_t threads = arguments_.images * g.size() * (g.row / g.kVector);
    write_grad_input<T><<<blocks_for(threads, kThreads), kThreads, 0, stream_>>>(arguments_, data("grad_input"));
    return launched();
  }

  Status of_weight() {
    const Arranged<T>& g = plan_.g;
    if (plan_.with_few) {
      find_few_grad_weight<T><<<blocks_for(plan_.splits * g.depth, kThreads), kThreads, 0, stream_>>>(
          arguments_, plan_.part, plan_.splits);
    } else {
      products::Grid grid = plan_.filters;
      grid.depth = arguments_.rows;
      find_grad_weight<T><<<blocks_for(grid.tiles(), 1), products::kThreads, 0, stream_>>>(arguments_, grid);
    }
    OPGATE_RETURN_IF_ERROR(launched());
    add_grad_weight<T><<<blocks_for(plan_.numbers, kThreads), kThreads, 0, stream_>>>(
        arguments_, plan_.numbers, plan_.splits, !plan_.with_few, data("grad_weight"));
    return launched();
  }

  Context& context_;
  const Plan<T>& plan_;
  Arguments<T> arguments_;
  const SortedKeys& sorted_;
  Outputs& out_;
  cudaStream_t stream_;
};

/// Arrays one after the other.
struct Arrays {
  char* next;

  template <typename N>
  N* take(std::int64_t count) {
    constexpr std::int64_t kAlignment = Workspace::kAlignment;
    char* const array = next;
    next += (count * static_cast<std::int64_t>(sizeof(N)) + kAlignment - 1) / kAlignment * kAlignment;
    return reinterpret_cast<N*>(array);
  }
};

struct Cuda : Checked {
  template <typename T>
  struct Memory {
    std::span<T> filters;
    std::span<ComputeType<T>> sums, totals;
    std::span<char> of_images;
    SortedKeys sorted;
  };

  template <typename T>
  static Memory<T> workspace(Workspace& workspace, const Inputs& in, const Attributes& attributes) {
    using C = ComputeType<T>;
    const auto plan = Plan<T>::of(in, attributes);
    const Arranged<T>& g = plan.g;
    if (g.n * g.oc * g.pixels() == 0) return {};
    return {workspace.take<T>(plan.with_few ? 0 : plan.numbers), workspace.take<C>(plan.most_sums()),
            workspace.take<C>(plan.numbers), workspace.take<char>(plan.most_bytes()),
            SortedKeys::take(workspace, plan.most_samples())};
  }

  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    using C = ComputeType<T>;
    const auto plan = Plan<T>::of(in, attributes);
    const Memory<T> memory = workspace<T>(context.workspace(), in, attributes);
    Arrays arrays{memory.of_images.data()};
    const Arguments<T> arguments{plan.g,
                                 0,
                                 0,
                                 0,
                                 plan.stride,
                                 in["grad_output"].data<T>(),
                                 in["input"].data<T>(),
                                 in["weight"].data<T>(),
                                 in["offset"].data<T>(),
                                 in.has("mask") ? in["mask"].data<T>() : nullptr,
                                 memory.filters.data(),
                                 arrays.take<T>(plan.images * plan.g.picture()),
                                 arrays.take<T>(plan.g.oc * plan.stride),
                                 arrays.take<T>(plan.rows * plan.g.depth),
                                 arrays.take<C>(plan.rows * plan.g.depth),
                                 memory.sums.data(),
                                 memory.totals.data(),
                                 arrays.take<Tap<C>>(plan.samples),
                                 arrays.take<std::uint32_t>(plan.keys + 1)};
    return Gradients<T>(context, plan, arguments, memory.sorted, out).compute();
  }
};

}  // namespace
}  // namespace opgate::ops::deform_conv2d_backward

OPGATE_CUDA_KERNEL(DeformConv2dBackward, opgate::ops::deform_conv2d_backward::Cuda)
