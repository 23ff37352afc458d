#include "rms_norm.h"

#include "kernel_toolkit/rows.cuh"

namespace opgate::ops::rms_norm {
namespace {

using rows::kThreads, rows::kWarp;

/// The most vectors that a thread keeps in registers between the sum of squares and the output. It loads the rest of a
/// row again, from the cache.
constexpr int kMostHeld = 4;

template <typename T>
struct Rows {
  std::int64_t count, c;
  const T *x, *weight, *residual;  ///< weight and residual may be null
  T *y, *sum;                      ///< sum may be null
  ComputeType<T> epsilon;
};

template <typename T, int lanes>
using Vector = elementwise::Lanes<T, lanes>;

template <typename T, int lanes>
__device__ Vector<T, lanes> load(const T* row, std::int64_t vector) {
  return reinterpret_cast<const Vector<T, lanes>*>(row)[vector];
}

template <typename T, int lanes>
__device__ void store(T* row, std::int64_t vector, const Vector<T, lanes>& values) {
  reinterpret_cast<Vector<T, lanes>*>(row)[vector] = values;
}

/// x + residual, rounded.
template <typename T, int lanes>
__device__ void add(Vector<T, lanes>& x, const Vector<T, lanes>& residual) {
#pragma unroll
  for (int i = 0; i < lanes; ++i)
    x.values[i] =
        static_cast<T>(static_cast<ComputeType<T>>(x.values[i]) + static_cast<ComputeType<T>>(residual.values[i]));
}

template <typename T, int lanes>
__device__ ComputeType<T> squares_of(const Vector<T, lanes>& x) {
  using C = ComputeType<T>;
  C squares = 0;
#pragma unroll
  for (int i = 0; i < lanes; ++i) squares += static_cast<C>(x.values[i]) * static_cast<C>(x.values[i]);
  return squares;
}

template <typename T, int lanes>
__device__ Vector<T, lanes> scaled(const Vector<T, lanes>& x, const T* weight, std::int64_t vector,
                                   ComputeType<T> scale) {
  using C = ComputeType<T>;
  Vector<T, lanes> factor{}, y;
  if (weight) factor = load<T, lanes>(weight, vector);
#pragma unroll
  for (int i = 0; i < lanes; ++i)
    y.values[i] =
        static_cast<T>(static_cast<C>(x.values[i]) * scale * (weight ? static_cast<C>(factor.values[i]) : C(1)));
  return y;
}

/// `threads` threads compute a row, `lanes` elements at a time. Each holds `held` vectors, and loads all of them before
/// it uses the first one. `longer` says whether a row may have more vectors than the threads hold.
template <typename T, int lanes, int threads, int held, bool residual, bool longer>
__global__ void __launch_bounds__(kThreads)
    normalize(std::int64_t count, std::int64_t c, const T* __restrict__ x, const T* __restrict__ weight,
              const T* __restrict__ addend, T* __restrict__ y, T* __restrict__ sum, ComputeType<T> epsilon) {
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
      if (thread + k * threads < end) total[k] = load<T, lanes>(x + begin, thread + k * threads);
    }
    if constexpr (residual) {
#pragma unroll
      for (int k = 0; k < held; ++k) {
        if (thread + k * threads < end) added[k] = load<T, lanes>(addend + begin, thread + k * threads);
      }
    }
    C squares = 0;
#pragma unroll
    for (int k = 0; k < held; ++k) {
      const int vector = thread + k * threads;
      if (vector >= end) continue;
      if constexpr (residual) add(total[k], added[k]);
      if (sum) store(sum + begin, vector, total[k]);
      squares += squares_of(total[k]);
    }
    const auto total_of = [&](int vector) {
      Vector<T, lanes> value = load<T, lanes>(x + begin, vector);
      if constexpr (residual) add(value, load<T, lanes>(addend + begin, vector));
      return value;
    };
    if constexpr (longer) {
      // A partial sum adds few values, so that the error doesn't grow with the row.
      constexpr int kPart = 32;
      for (int part = thread + held * threads; part < end; part += kPart * threads) {
        C part_squares = 0;
        for (int vector = part; vector < end && vector < part + kPart * threads; vector += threads) {
          const Vector<T, lanes> value = total_of(vector);
          if (sum) store(sum + begin, vector, value);
          part_squares += squares_of(value);
        }
        squares += part_squares;
      }
    }
    const C mean = rows::sum_over_threads<threads>(squares) / static_cast<C>(c);
    const C scale = C(1) / sqrt(mean + epsilon);
#pragma unroll
    for (int k = 0; k < held; ++k) {
      const int vector = thread + k * threads;
      if (vector < end) store(y + begin, vector, scaled(total[k], weight, vector, scale));
    }
    if constexpr (longer) {
      for (int vector = thread + held * threads; vector < end; vector += threads)
        store(y + begin, vector, scaled(total_of(vector), weight, vector, scale));
    }
  }
}

template <typename T, int lanes, int threads, int held, bool longer = false>
void launch(const Rows<T>& rows, cudaStream_t stream) {
  const unsigned blocks = blocks_for(rows.count, kThreads / threads);
  if (rows.residual) {
    normalize<T, lanes, threads, held, true, longer><<<blocks, kThreads, 0, stream>>>(
        rows.count, rows.c, rows.x, rows.weight, rows.residual, rows.y, rows.sum, rows.epsilon);
  } else {
    normalize<T, lanes, threads, held, false, longer><<<blocks, kThreads, 0, stream>>>(
        rows.count, rows.c, rows.x, rows.weight, nullptr, rows.y, rows.sum, rows.epsilon);
  }
}

/// Chooses how many threads compute a row and how much each of them holds.
template <typename T, int lanes>
void launch_by_length(const Rows<T>& rows, cudaStream_t stream) {
  const std::int64_t vectors = rows.c / lanes;
  if (vectors <= 8) return launch<T, lanes, 8, 1>(rows, stream);
  if (vectors <= kWarp) return launch<T, lanes, kWarp, 1>(rows, stream);
  if (vectors <= kWarp * 2) return launch<T, lanes, kWarp, 2>(rows, stream);
  if (vectors <= kWarp * kMostHeld) return launch<T, lanes, kWarp, kMostHeld>(rows, stream);
  if (vectors <= kThreads) return launch<T, lanes, kThreads, 1>(rows, stream);
  if (vectors <= kThreads * 2) return launch<T, lanes, kThreads, 2>(rows, stream);
  if (vectors <= kThreads * kMostHeld) return launch<T, lanes, kThreads, kMostHeld>(rows, stream);
  return launch<T, lanes, kThreads, kMostHeld, true>(rows, stream);
}

/// For rows whose vectors are not aligned: an element at a time.
template <typename T>
void launch_elements(const Rows<T>& rows, cudaStream_t stream) {
  if (rows.c <= kWarp * kMostHeld) return launch<T, 1, kWarp, kMostHeld>(rows, stream);
  return launch<T, 1, kThreads, kMostHeld, true>(rows, stream);
}

struct Cuda : ChecksEpsilon {
  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    Rows<T> rows{};
    rows.epsilon = static_cast<ComputeType<T>>(attributes.number("epsilon"));
    const Tensor& x = in["x"];
    rows.c = in.size("c");
    if (x.size() == 0) return {};
    rows.count = x.size() / rows.c;
    rows.x = x.data<T>();
    rows.weight = data_or_null<T>(in, "weight");
    rows.residual = data_or_null<T>(in, "residual");
    rows.y = out["y"].data<T>();
    rows.sum = data_or_null<T>(out, "sum");
    using elementwise::aligned;
    constexpr int lanes = elementwise::kBytes / sizeof(T);
    const bool whole = rows.c % lanes == 0 && aligned(rows.x) && aligned(rows.weight) && aligned(rows.residual) &&
                       aligned(rows.y) && aligned(rows.sum);
    if (whole) {
      launch_by_length<T, lanes>(rows, stream_of(context));
    } else {
      launch_elements(rows, stream_of(context));
    }
    return launched();
  }
};

}  // namespace
}  // namespace opgate::ops::rms_norm

OPGATE_CUDA_KERNEL(RMSNorm, opgate::ops::rms_norm::Cuda)
