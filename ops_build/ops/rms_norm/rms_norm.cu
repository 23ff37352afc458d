#include "rms_norm.h"

#include "core/elementwise.cuh"

namespace opgate::ops::rms_norm {
namespace {

constexpr int kThreads = 256;
constexpr int kWarp = 32;
constexpr unsigned kWholeWarp = 0xffffffffu;

/// How many loads a thread keeps in registers between the sum of squares and the output. It loads the rest of a row
/// again, from the cache.
constexpr int kHeld = 4;

template <typename T>
struct Rows {
  std::int64_t count, c;
  const T *x, *weight, *residual;  ///< residual may be null
  T *y, *sum;                      ///< sum may be null
  float epsilon;
};

/// The sum over the threads of a row, which are a warp or the block. All of them get it.
template <int threads>
__device__ float row_sum(float value) {
  for (int bits = kWarp / 2; bits > 0; bits /= 2) value += __shfl_xor_sync(kWholeWarp, value, bits);
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

/// One row, `lanes` elements at a time.
template <typename T, int lanes>
struct Row {
  using Vector = elementwise::Lanes<T, lanes>;

  const Rows<T>& rows;
  std::int64_t first;  ///< the index of the first element

  __device__ static Vector load(const T* values, std::int64_t vector) {
    return reinterpret_cast<const Vector*>(values)[vector];
  }

  /// x + residual, rounded.
  __device__ Vector total(std::int64_t vector) const {
    Vector total = load(rows.x + first, vector);
    if (rows.residual) {
      const Vector residual = load(rows.residual + first, vector);
#pragma unroll
      for (int i = 0; i < lanes; ++i) {
        total.values[i] = static_cast<T>(static_cast<float>(total.values[i]) + static_cast<float>(residual.values[i]));
      }
    }
    return total;
  }

  /// Returns total(), writes it to `sum` and adds its squares.
  __device__ Vector begin(std::int64_t vector, float& squares) const {
    const Vector total = this->total(vector);
    if (rows.sum) reinterpret_cast<Vector*>(rows.sum + first)[vector] = total;
#pragma unroll
    for (int i = 0; i < lanes; ++i) {
      const auto value = static_cast<float>(total.values[i]);
      squares += value * value;
    }
    return total;
  }

  __device__ void finish(std::int64_t vector, const Vector& total, float scale) const {
    const Vector weight = load(rows.weight, vector);
    Vector y;
#pragma unroll
    for (int i = 0; i < lanes; ++i) {
      const float normal = static_cast<float>(total.values[i]) * scale;
      y.values[i] = static_cast<T>(normal * static_cast<float>(weight.values[i]));
    }
    reinterpret_cast<Vector*>(rows.y + first)[vector] = y;
  }
};

/// `threads` threads compute a row: a warp or the block.
template <typename T, int lanes, int threads>
__global__ void __launch_bounds__(kThreads) normalize(Rows<T> rows) {
  constexpr int kRows = kThreads / threads;
  const int thread = static_cast<int>(threadIdx.x) % threads;
  const std::int64_t vectors = rows.c / lanes;
  for (std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * kRows + threadIdx.x / threads; index < rows.count;
       index += static_cast<std::int64_t>(gridDim.x) * kRows) {
    const Row<T, lanes> row{rows, index * rows.c};
    typename Row<T, lanes>::Vector held[kHeld];
    float squares = 0;
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      const int vector = thread + k * threads;
      if (vector < vectors) held[k] = row.begin(vector, squares);
    }
    for (std::int64_t vector = thread + kHeld * threads; vector < vectors; vector += threads)
      row.begin(vector, squares);
    const float mean = row_sum<threads>(squares) / static_cast<float>(rows.c);
    const float scale = 1.0f / sqrtf(mean + rows.epsilon);
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      const int vector = thread + k * threads;
      if (vector < vectors) row.finish(vector, held[k], scale);
    }
    for (std::int64_t vector = thread + kHeld * threads; vector < vectors; vector += threads) {
      row.finish(vector, row.total(vector), scale);
    }
  }
}

template <typename T, int lanes>
void launch(const Rows<T>& rows, cudaStream_t stream) {
  if (rows.c / lanes <= kHeld * kWarp) {
    normalize<T, lanes, kWarp><<<blocks_for(rows.count, kThreads / kWarp), kThreads, 0, stream>>>(rows);
  } else {
    normalize<T, lanes, kThreads><<<blocks_for(rows.count, 1), kThreads, 0, stream>>>(rows);
  }
}

struct Cuda {
  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    Rows<T> rows{};
    OPGATE_RETURN_IF_ERROR(read_epsilon(attributes, rows.epsilon));
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
      launch<T, lanes>(rows, stream_of(context));
    } else {
      launch<T, 1>(rows, stream_of(context));
    }
    return launched();
  }
};

}  // namespace
}  // namespace opgate::ops::rms_norm

OPGATE_CUDA_KERNEL(RMSNorm, opgate::ops::rms_norm::Cuda)
