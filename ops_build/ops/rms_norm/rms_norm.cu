#include "rms_norm.h"

#include "core/elementwise.cuh"

namespace opgate::ops::rms_norm {
namespace {

constexpr int kThreads = 256;
constexpr int kWarp = 32;
constexpr unsigned kWholeWarp = 0xffffffffu;

/// The most vectors that a thread keeps in registers between the sum of squares and the output. It loads the rest of a
/// row again, from the cache.
constexpr int kMostHeld = 4;

template <typename T>
struct Rows {
  std::int64_t count, c;
  const T *x, *weight, *residual;  ///< residual may be null
  T *y, *sum;                      ///< sum may be null
  float epsilon;
};

/// The sum over the threads of a row: a part of a warp, a warp, or the block. All of them get it.
template <int threads>
__device__ float row_sum(float value) {
  for (int bits = (threads < kWarp ? threads : kWarp) / 2; bits > 0; bits /= 2) {
    value += __shfl_xor_sync(kWholeWarp, value, bits);
  }
  if constexpr (threads > kWarp) {
    __shared__ float partial[threads / kWarp];
    if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = value;
    __syncthreads();
    value = 0;
    for (const float part : partial) value += part;
    __syncthreads();  // the next row writes to `partial` again
  }
  return value;
}

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
    x.values[i] = static_cast<T>(static_cast<float>(x.values[i]) + static_cast<float>(residual.values[i]));
}

template <typename T, int lanes>
__device__ float squares_of(const Vector<T, lanes>& x) {
  float squares = 0;
#pragma unroll
  for (int i = 0; i < lanes; ++i) squares += static_cast<float>(x.values[i]) * static_cast<float>(x.values[i]);
  return squares;
}

template <typename T, int lanes>
__device__ Vector<T, lanes> scaled(const Vector<T, lanes>& x, const Vector<T, lanes>& weight, float scale) {
  Vector<T, lanes> y;
#pragma unroll
  for (int i = 0; i < lanes; ++i)
    y.values[i] = static_cast<T>(static_cast<float>(x.values[i]) * scale * static_cast<float>(weight.values[i]));
  return y;
}

/// `threads` threads compute a row, `lanes` elements at a time. Each holds `held` vectors, and loads all of them before
/// it uses the first one. `longer` says whether a row may have more vectors than the threads hold.
template <typename T, int lanes, int threads, int held, bool residual, bool longer>
__global__ void __launch_bounds__(kThreads)
    normalize(std::int64_t count, std::int64_t c, const T* __restrict__ x, const T* __restrict__ weight,
              const T* __restrict__ addend, T* __restrict__ y, T* __restrict__ sum, float epsilon) {
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
    float squares = 0;
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
        float part_squares = 0;
        for (int vector = part; vector < end && vector < part + kPart * threads; vector += threads) {
          const Vector<T, lanes> value = total_of(vector);
          if (sum) store(sum + begin, vector, value);
          part_squares += squares_of(value);
        }
        squares += part_squares;
      }
    }
    const float mean = row_sum<threads>(squares) / static_cast<float>(c);
    const float scale = 1.0f / sqrtf(mean + epsilon);
#pragma unroll
    for (int k = 0; k < held; ++k) {
      const int vector = thread + k * threads;
      if (vector < end) store(y + begin, vector, scaled(total[k], load<T, lanes>(weight, vector), scale));
    }
    if constexpr (longer) {
      for (int vector = thread + held * threads; vector < end; vector += threads)
        store(y + begin, vector, scaled(total_of(vector), load<T, lanes>(weight, vector), scale));
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

struct Cuda : Checked {
  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    Rows<T> rows{};
    rows.epsilon = static_cast<float>(attributes.number("epsilon"));
    const Tensor& x = in["x"];
    rows.c = in.size("c");
    if (x.size() == 0) return {};
    rows.count = x.size() / rows.c;
    rows.x = x.data<T>();
    rows.weight = in["weight"].data<T>();
    rows.residual = in.has("residual") ? in["residual"].data<T>() : nullptr;
    rows.y = out["y"].data<T>();
    rows.sum = out.has("sum") ? out["sum"].data<T>() : nullptr;
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
