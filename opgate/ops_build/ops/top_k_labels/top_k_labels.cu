#include "top_k_labels.h"

#include "kernel_toolkit/elementwise.cuh"

namespace opgate::ops::top_k_labels {
namespace {

constexpr int kThreads = 512;
constexpr int kBins = 256;

template <typename T>
struct Rows {
  const T* logits;
  std::int64_t n, c, k, wanted, padded;
  Activation activation;
  float* scores;
  std::int32_t* labels;
  Entry* best;  ///< [n, padded]

  __device__ float logit(std::int64_t row, std::int64_t label) const {
    return static_cast<float>(logits[row * c + label]);
  }
  __device__ Entry entry(std::int64_t row, std::int64_t label) const {
    return entry_of(logit(row, label), static_cast<std::uint32_t>(label));
  }
};

__device__ inline float greater(float a, float b) { return b > a ? b : a; }

/// The greatest logit of a row, without NaN. All threads get it.
template <typename T>
__device__ float greatest(const Rows<T>& rows, std::int64_t row) {
  __shared__ float partial[kThreads];
  float most = -INFINITY;
  for (std::int64_t i = threadIdx.x; i < rows.c; i += kThreads) most = greater(most, rows.logit(row, i));
  partial[threadIdx.x] = most;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) partial[threadIdx.x] = greater(partial[threadIdx.x], partial[threadIdx.x + half]);
    __syncthreads();
  }
  most = partial[0];
  __syncthreads();  // the next row writes to `partial` again
  return most;
}

/// The sum of exp(logit - most). All threads get it.
template <typename T>
__device__ double exponentials(const Rows<T>& rows, std::int64_t row, float most) {
  __shared__ double partial[kThreads];
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < rows.c; i += kThreads)
    sum += static_cast<double>(expf(rows.logit(row, i) - most));
  partial[threadIdx.x] = sum;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
    __syncthreads();
  }
  sum = partial[0];
  __syncthreads();
  return sum;
}

/// The `wanted`-th best entry of a row, or one between it and the next. It is found byte by byte, from the highest byte
/// on: a histogram says which value the byte has. It ends early if all entries that share the bytes so far are wanted.
template <typename T>
__device__ Entry last_wanted(const Rows<T>& rows, std::int64_t row) {
  __shared__ unsigned histogram[kBins];
  __shared__ Entry prefix;
  __shared__ std::int64_t left;  // the entries wanted of those that have the prefix
  __shared__ bool done;
  if (threadIdx.x == 0) {
    prefix = 0;
    left = rows.wanted;
    done = false;
  }
  int shift = 56;
  for (; shift >= 0; shift -= 8) {
    if (threadIdx.x < kBins) histogram[threadIdx.x] = 0;
    __syncthreads();
    for (std::int64_t i = threadIdx.x; i < rows.c; i += kThreads) {
      const Entry entry = rows.entry(row, i);
      if (shift == 56 || entry >> (shift + 8) == prefix) atomicAdd(&histogram[entry >> shift & (kBins - 1)], 1u);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      unsigned bin = 0;
      while (histogram[bin] < left) left -= histogram[bin++];
      prefix = prefix << 8 | bin;
      done = histogram[bin] == left;
    }
    __syncthreads();
    if (done) break;
  }
  const int rest = shift < 0 ? 0 : shift;
  const Entry last = (prefix << rest) | ((Entry{1} << rest) - 1);
  __syncthreads();  // the next row changes the prefix
  return last;
}

/// Sorts `count` entries, a power of two, with a bitonic network.
__device__ inline void sort(Entry* entries, std::int64_t count) {
  for (std::int64_t size = 2; size <= count; size *= 2) {
    for (std::int64_t step = size / 2; step > 0; step /= 2) {
      __syncthreads();
      for (std::int64_t i = threadIdx.x; i < count / 2; i += kThreads) {
        const std::int64_t low = 2 * i - (i & (step - 1)), high = low + step;
        const Entry a = entries[low], b = entries[high];
        if ((a > b) == ((low & size) == 0)) {
          entries[low] = b;
          entries[high] = a;
        }
      }
    }
  }
  __syncthreads();
}

/// A block computes a row.
template <typename T>
__global__ void __launch_bounds__(kThreads) find_best(Rows<T> rows) {
  __shared__ unsigned found;
  for (std::int64_t row = blockIdx.x; row < rows.n; row += gridDim.x) {
    Entry* const best = rows.best + row * rows.padded;
    float most = 0;
    double sum = 1;
    if (rows.activation == Activation::softmax) {
      most = greatest(rows, row);
      sum = exponentials(rows, row, most);
    }
    if (rows.wanted > 0) {
      const Entry last = last_wanted(rows, row);
      if (threadIdx.x == 0) found = 0;
      __syncthreads();
      for (std::int64_t i = threadIdx.x; i < rows.c; i += kThreads) {
        const Entry entry = rows.entry(row, i);
        if (entry <= last) best[atomicAdd(&found, 1u)] = entry;
      }
      for (std::int64_t i = rows.wanted + threadIdx.x; i < rows.padded; i += kThreads) best[i] = ~Entry{0};
      sort(best, rows.padded);
    }
    for (std::int64_t i = threadIdx.x; i < rows.k; i += kThreads) {
      const bool used = i < rows.wanted;
      const std::uint32_t label = used ? label_of(best[i]) : 0;
      rows.scores[row * rows.k + i] = used ? score_of(rows.logit(row, label), rows.activation, most, sum) : 0;
      rows.labels[row * rows.k + i] = used ? static_cast<std::int32_t>(label) : -1;
    }
  }
}

struct Cuda : Checked {
  struct Memory {
    std::span<Entry> best;
  };

  template <typename T>
  static Memory workspace(Workspace& workspace, const Inputs& in, const Attributes& attributes) {
    return {workspace.take<Entry>(in.size("n") * padded(std::min(in.size("c"), attributes.integer("k"))))};
  }

  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    Rows<T> rows{};
    rows.n = in.size("n");
    rows.c = in.size("c");
    rows.k = attributes.integer("k");
    if (rows.n == 0 || rows.k == 0) return {};
    rows.logits = in["logits"].data<T>();
    rows.wanted = std::min(rows.c, rows.k);
    rows.padded = padded(rows.wanted);
    rows.activation = activation_of(attributes);
    rows.scores = out["scores"].data<float>();
    rows.labels = out["labels"].data<std::int32_t>();
    rows.best = workspace<T>(context.workspace(), in, attributes).best.data();
    const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(rows.n, 1 << 20));
    find_best<<<blocks, kThreads, 0, stream_of(context)>>>(rows);
    return launched();
  }

 private:
  /// The least power of two that is not less than `count`.
  static std::int64_t padded(std::int64_t count) {
    return count <= 0 ? 0 : static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(count)));
  }
};

}  // namespace
}  // namespace opgate::ops::top_k_labels

OPGATE_CUDA_KERNEL(TopKLabels, opgate::ops::top_k_labels::Cuda)
