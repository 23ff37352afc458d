// Rows with mean 0 and variance 1, or with a mean of squares of 1, on CUDA: RMSNorm, LayerNorm, and GroupNorm, whose
// rows are groups of channels.
#pragma once

#include "kernel_toolkit/divisor.h"
#include "kernel_toolkit/rows.cuh"

namespace opgate::norms {

using rows::kThreads, rows::kWarp;

/// The most vectors that a thread keeps in registers between the sums and the output. It loads the rest of a row again,
/// from the cache.
constexpr int kMostHeld = 4;

/// From so many long rows on, a block for each is enough for a GPU. Fewer are computed by several blocks each.
constexpr std::int64_t kManyRows = 128;

/// Pointers that may be null: all but x and y. y = standard(x + residual) * weight + bias, and sum = x + residual.
template <typename T>
struct Rows {
  std::int64_t count, c;
  const T *x, *residual, *weight, *bias;
  T *y, *sum;
  ComputeType<T> epsilon;
  /// Of rows that are groups of channels, element i belongs to channel row % groups * (c / part) + i / part, which has
  /// one weight and one bias. Of others, each element has its own.
  std::int64_t groups = 1, part = 1;

  static Rows of(const Inputs& in, const Attributes& attributes, Outputs& out, std::int64_t count, std::int64_t c) {
    const auto input = [&](const char* name) { return data_or_null<T>(in, name); };
    return {count,
            c,
            input("x"),
            input("residual"),
            input("weight"),
            nullptr,
            out["y"].template data<T>(),
            data_or_null<T>(out, "sum"),
            static_cast<ComputeType<T>>(attributes.number("epsilon"))};
  }
};

using elementwise::load, elementwise::store;

template <typename T, int lanes>
using Vector = elementwise::Lanes<T, lanes>;

/// x + residual, rounded.
template <typename T, int lanes>
__device__ void add(Vector<T, lanes>& x, const Vector<T, lanes>& residual) {
#pragma unroll
  for (int i = 0; i < lanes; ++i)
    x.values[i] =
        static_cast<T>(static_cast<ComputeType<T>>(x.values[i]) + static_cast<ComputeType<T>>(residual.values[i]));
}

/// Weights and biases of a row. `channels` says whether those of a channel are one number.
template <typename T, bool channels>
struct Affine {
  const T *weight, *bias;
  std::int64_t groups, channels_of_row;
  Divisor<std::int32_t> part;
  bool together;  ///< whether a vector lies in one channel

  /// Those of a row.
  __device__ Affine of_row(std::int64_t row) const {
    Affine own = *this;
    if constexpr (channels) {
      const std::int64_t first = row % groups * channels_of_row;
      if (weight) own.weight += first;
      if (bias) own.bias += first;
    }
    return own;
  }

  template <int lanes>
  __device__ Vector<T, lanes> operator()(const Vector<T, lanes>& x, const rows::Standard<ComputeType<T>>& standard,
                                         int vector) const {
    using C = ComputeType<T>;
    Vector<T, lanes> factor{}, term{}, y;
    if constexpr (!channels) {
      if (weight) factor = load<lanes>(weight, vector);
      if (bias) term = load<lanes>(bias, vector);
    }
#pragma unroll
    for (int i = 0; i < lanes; ++i) {
      int own = i;
      if constexpr (channels) {
        own = 0;
        if (i == 0 || !together) {
          const int channel = (vector * lanes + i) / part;
          if (weight) factor.values[0] = weight[channel];
          if (bias) term.values[0] = bias[channel];
        }
      }
      C value = standard(static_cast<C>(x.values[i]));
      if (weight) value *= static_cast<C>(factor.values[own]);
      if (bias) value += static_cast<C>(term.values[own]);
      y.values[i] = static_cast<T>(value);
    }
    return y;
  }
};

/// The sum over the values of a vector of term(value).
template <typename C, typename T, int lanes, typename Term>
__device__ C sum_of(const Vector<T, lanes>& x, const Term& term) {
  C sum = 0;
#pragma unroll
  for (int i = 0; i < lanes; ++i) sum += term(static_cast<C>(x.values[i]));
  return sum;
}

/// `threads` threads compute a row, `lanes` elements at a time. Each holds `held` vectors, and loads all of them before
/// it uses the first one. `longer` says whether a row may have more vectors than the threads hold.
template <typename T, int lanes, int threads, int held, bool centred, bool channels, bool longer>
__global__ void __launch_bounds__(kThreads)
    normalize(std::int64_t count, std::int64_t c, const T* __restrict__ x, const T* __restrict__ addend,
              Affine<T, channels> affine, T* __restrict__ y, T* __restrict__ sum, ComputeType<T> epsilon) {
  using C = ComputeType<T>;
  constexpr int kRows = kThreads / threads;
  const int thread = static_cast<int>(threadIdx.x) % threads;
  const int vectors = static_cast<int>(c / lanes);
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kRows;
  // All threads of a warp go through the loop equally often, because they sum together.
  for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kRows; first < count; first += step) {
    const std::int64_t row = first + threadIdx.x / threads;
    const int end = row < count ? vectors : 0;
    const std::int64_t begin = row * c;
    Vector<T, lanes> total[held], added[held];
#pragma unroll
    for (int k = 0; k < held; ++k) {
      if (thread + k * threads < end) total[k] = load<lanes>(x + begin, thread + k * threads);
    }
    if (addend) {
#pragma unroll
      for (int k = 0; k < held; ++k) {
        if (thread + k * threads < end) added[k] = load<lanes>(addend + begin, thread + k * threads);
      }
    }
#pragma unroll
    for (int k = 0; k < held; ++k) {
      const int vector = thread + k * threads;
      if (vector >= end) continue;
      if (addend) add(total[k], added[k]);
      if (sum) store(sum + begin, vector, total[k]);
    }
    const auto total_of = [&](int vector) {
      Vector<T, lanes> value = load<lanes>(x + begin, vector);
      if (addend) add(value, load<lanes>(addend + begin, vector));
      return value;
    };
    const rows::Standard<C> standard = rows::standard_of<centred>(epsilon, [&](const auto& term) {
      C terms = 0;
#pragma unroll
      for (int k = 0; k < held; ++k) {
        if (thread + k * threads < end) terms += sum_of<C>(total[k], term);
      }
      if constexpr (longer) {
        // A partial sum adds few values, so that the error doesn't grow with the row.
        constexpr int kPart = 32;
        for (int part = thread + held * threads; part < end; part += kPart * threads) {
          C some = 0;
          for (int vector = part; vector < end && vector < part + kPart * threads; vector += threads)
            some += sum_of<C>(total_of(vector), term);
          terms += some;
        }
      }
      return rows::sum_over_threads<threads>(terms) / static_cast<C>(c);
    });
    const Affine<T, channels> own = affine.of_row(row);
#pragma unroll
    for (int k = 0; k < held; ++k) {
      const int vector = thread + k * threads;
      if (vector < end) store(y + begin, vector, own(total[k], standard, vector));
    }
    if constexpr (longer) {
      for (int vector = thread + held * threads; vector < end; vector += threads) {
        const Vector<T, lanes> value = total_of(vector);
        if (sum) store(sum + begin, vector, value);
        store(y + begin, vector, own(value, standard, vector));
      }
    }
  }
}

/// The number of vectors of a chunk of a row.
constexpr int kChunk = kThreads * kMostHeld;

/// The number of vectors of the chunk that begins with a vector of a row.
__device__ inline int length_of_chunk(std::int64_t vectors, std::int64_t first) {
  return vectors - first < kChunk ? static_cast<int>(vectors - first) : kChunk;
}

/// The mean of a chunk, in two parts, and the sum of its squares around it. If not centred, the mean counts as 0.
template <typename C>
struct Moments {
  C shift, rest, second;
};

/// A block finds the moments of a chunk.
template <typename T, int lanes, bool centred>
__global__ void __launch_bounds__(kThreads)
    find_moments(std::int64_t count, std::int64_t c, std::int64_t chunks, const T* __restrict__ x,
                 const T* __restrict__ addend, T* __restrict__ sum, Moments<ComputeType<T>>* __restrict__ moments) {
  using C = ComputeType<T>;
  for (std::int64_t tile = blockIdx.x; tile < count * chunks; tile += gridDim.x) {
    const std::int64_t first = tile % chunks * kChunk, begin = tile / chunks * c + first * lanes;
    const int end = length_of_chunk(c / lanes, first);
    Vector<T, lanes> total[kMostHeld];
#pragma unroll
    for (int k = 0; k < kMostHeld; ++k) {
      const int vector = static_cast<int>(threadIdx.x) + k * kThreads;
      if (vector < end) total[k] = load<lanes>(x + begin, vector);
    }
    const auto each = [&](const auto& use) {
#pragma unroll
      for (int k = 0; k < kMostHeld; ++k) {
        const int vector = static_cast<int>(threadIdx.x) + k * kThreads;
        if (vector < end) use(vector, total[k]);
      }
    };
    if (addend) each([&](int vector, Vector<T, lanes>& value) { add(value, load<lanes>(addend + begin, vector)); });
    if (sum) each([&](int vector, const Vector<T, lanes>& value) { store(sum + begin, vector, value); });
    const C length = static_cast<C>(end * lanes);
    Moments<C> found{};
    const auto add_up = [&](const auto& term) {
      C terms = 0;
      each([&](int, const Vector<T, lanes>& value) { terms += sum_of<C>(value, term); });
      return rows::sum_over_threads<kThreads>(terms);
    };
    if constexpr (centred) {
      found.shift = add_up([](C value) { return value; }) / length;
      found.rest = add_up([&](C value) { return value - found.shift; }) / length;
    }
    found.second = add_up([&](C value) {
      const C d = (value - found.shift) - found.rest;
      return d * d;
    });
    if (threadIdx.x == 0) moments[tile] = found;
  }
}

/// A block writes a chunk.
template <typename T, int lanes, bool centred, bool channels>
__global__ void __launch_bounds__(kThreads)
    normalize_chunks(std::int64_t count, std::int64_t c, std::int64_t chunks, const T* __restrict__ x,
                     const T* __restrict__ addend, Affine<T, channels> affine,
                     const Moments<ComputeType<T>>* __restrict__ moments, T* __restrict__ y, ComputeType<T> epsilon) {
  using C = ComputeType<T>;
  const int vectors = static_cast<int>(c / lanes);
  for (std::int64_t tile = blockIdx.x; tile < count * chunks; tile += gridDim.x) {
    const std::int64_t row = tile / chunks, begin = row * c;
    const auto* const of_row = moments + row * chunks;
    const auto add_up = [&](const auto& term) {
      C terms = 0;
      for (std::int64_t chunk = threadIdx.x; chunk < chunks; chunk += kThreads) {
        const int length = lanes * length_of_chunk(vectors, chunk * kChunk);
        terms += term(of_row[chunk], static_cast<C>(length));
      }
      return rows::sum_over_threads<kThreads>(terms) / static_cast<C>(c);
    };
    rows::Standard<C> standard{};
    const auto away = [&](const Moments<C>& of) { return (of.shift - standard.shift) + of.rest; };
    if constexpr (centred) {
      standard.shift = of_row[0].shift;
      standard.rest = add_up([&](const Moments<C>& of, C length) { return away(of) * length; });
    }
    const C second = add_up([&](const Moments<C>& of, C length) {
      const C d = away(of) - standard.rest;
      return of.second + length * (d * d);
    });
    standard.scale = C(1) / sqrt(second + epsilon);
    const Affine<T, channels> own = affine.of_row(row);
    const int first = static_cast<int>(tile % chunks) * kChunk, end = first + length_of_chunk(vectors, first);
#pragma unroll
    for (int k = 0; k < kMostHeld; ++k) {
      const int vector = first + static_cast<int>(threadIdx.x) + k * kThreads;
      if (vector >= end) continue;
      Vector<T, lanes> value = load<lanes>(x + begin, vector);
      if (addend) add(value, load<lanes>(addend + begin, vector));
      store(y + begin, vector, own(value, standard, vector));
    }
  }
}

/// The norm of an op. `centred` says whether the mean is subtracted, `channels` whether rows are groups of channels.
template <bool centred, bool channels>
struct Norm {
  /// The memory of a call: for each chunk of a long row its moments, none for short rows.
  template <typename T>
  static std::span<Moments<ComputeType<T>>> workspace(Workspace& workspace, std::int64_t count, std::int64_t c) {
    const std::int64_t chunks = c > kChunk ? (c + kChunk - 1) / kChunk : 0;
    return workspace.take<Moments<ComputeType<T>>>(std::min(count, kManyRows) * chunks);
  }

  template <typename T>
  static Status run(Context& context, const Rows<T>& rows) {
    using elementwise::aligned;
    constexpr int lanes = elementwise::kBytes / sizeof(T);
    if (rows.c > kMostElements) {
      return Status::invalid("input 'x': expected rows of at most " + std::to_string(kMostElements) +
                             " elements, got " + std::to_string(rows.c));
    }
    const bool whole = rows.c % lanes == 0 && aligned(rows.x) && aligned(rows.residual) && aligned(rows.y) &&
                       aligned(rows.sum) && (channels || (aligned(rows.weight) && aligned(rows.bias)));
    const std::span<Moments<ComputeType<T>>> moments = workspace<T>(context.workspace(), rows.count, rows.c);
    if (whole) {
      launch_by_length<T, lanes>(rows, moments, stream_of(context));
    } else {
      launch_elements<T>(rows, moments, stream_of(context));
    }
    return launched();
  }

 private:
  /// The elements of a row have numbers of 32 bits, also those that threads behind the last one would have.
  static constexpr std::int64_t kMostElements = (std::int64_t{1} << 31) - (1 << 20);

  template <typename T, int lanes>
  static Affine<T, channels> affine_of(const Rows<T>& rows) {
    const std::int64_t part = channels ? rows.part : 1;
    return {rows.weight, rows.bias, rows.groups, rows.c / part, Divisor<std::int32_t>(part), part % lanes == 0};
  }

  template <typename T, int lanes, int threads, int held, bool longer = false>
  static void launch(const Rows<T>& rows, cudaStream_t stream) {
    normalize<T, lanes, threads, held, centred, channels, longer>
        <<<blocks_for(rows.count, kThreads / threads), kThreads, 0, stream>>>(
            rows.count, rows.c, rows.x, rows.residual, affine_of<T, lanes>(rows), rows.y, rows.sum, rows.epsilon);
  }

  template <typename T, int lanes>
  static void launch_chunks(const Rows<T>& rows, std::span<Moments<ComputeType<T>>> moments, cudaStream_t stream) {
    const std::int64_t chunks = (rows.c / lanes + kChunk - 1) / kChunk;
    const unsigned blocks = blocks_for(rows.count * chunks, 1);
    find_moments<T, lanes, centred>
        <<<blocks, kThreads, 0, stream>>>(rows.count, rows.c, chunks, rows.x, rows.residual, rows.sum, moments.data());
    normalize_chunks<T, lanes, centred, channels>
        <<<blocks, kThreads, 0, stream>>>(rows.count, rows.c, chunks, rows.x, rows.residual, affine_of<T, lanes>(rows),
                                          moments.data(), rows.y, rows.epsilon);
  }

  /// Chooses how many threads compute a row and how much each of them holds.
  template <typename T, int lanes>
  static void launch_by_length(const Rows<T>& rows, std::span<Moments<ComputeType<T>>> moments, cudaStream_t stream) {
    const std::int64_t vectors = rows.c / lanes;
    if (vectors <= 8) return launch<T, lanes, 8, 1>(rows, stream);
    if (vectors <= kWarp) return launch<T, lanes, kWarp, 1>(rows, stream);
    if (vectors <= kWarp * kMostHeld) return launch<T, lanes, kWarp, kMostHeld>(rows, stream);
    if (vectors <= kThreads) return launch<T, lanes, kThreads, 1>(rows, stream);
    if (vectors <= kThreads * kMostHeld) return launch<T, lanes, kThreads, kMostHeld>(rows, stream);
    if (rows.count < kManyRows) return launch_chunks<T, lanes>(rows, moments, stream);
    return launch<T, lanes, kThreads, kMostHeld, true>(rows, stream);
  }

  /// For rows whose vectors are not aligned: an element at a time.
  template <typename T>
  static void launch_elements(const Rows<T>& rows, std::span<Moments<ComputeType<T>>> moments, cudaStream_t stream) {
    if (rows.c <= kWarp * kMostHeld) return launch<T, 1, kWarp, kMostHeld>(rows, stream);
    if (rows.c > kChunk && rows.count < kManyRows) return launch_chunks<T, 1>(rows, moments, stream);
    return launch<T, 1, kThreads, kMostHeld, true>(rows, stream);
  }
};

}  // namespace opgate::norms
