#include "top_k_labels.h"

#include "detection/smallest.cuh"
#include "kernel_toolkit/rows.cuh"

namespace opgate::ops::top_k_labels {
namespace {

using detection::select, detection::sort;

constexpr int kThreads = detection::kThreads;
/// Entries up to this number are sorted in shared memory.
constexpr std::int64_t kSorted = 1024;
/// Fewer rows than this are computed by several blocks each, if they are long. A block has so many logits at least.
constexpr std::int64_t kManyRows = 256, kLeastChunk = 8192;

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

/// Rows in chunks of `size` logits, and what the blocks find in each.
struct Chunks {
  std::int64_t size, count;
  Entry* candidates;  ///< [n, count, wanted]
  float* most;        ///< [n, count]
  double* sums;       ///< [n, count]
};

/// The greatest of term(i) for i in [0, count), without NaN. All threads get it.
template <typename Term>
__device__ float greatest(std::int64_t count, const Term& term) {
  const auto greater = [](float a, float b) { return b > a ? b : a; };
  float most = -INFINITY;
  for (std::int64_t i = threadIdx.x; i < count; i += kThreads) most = greater(most, term(i));
  return rows::over_threads<kThreads>(most, greater);
}

/// The sum of exp(term(i) - most). A partial sum of f32 adds few values. All threads get it.
template <typename Term>
__device__ double exponentials(std::int64_t count, float most, const Term& term) {
  constexpr std::int64_t kPart = 32;
  double sum = 0;
  for (std::int64_t part = threadIdx.x; part < count; part += kPart * kThreads) {
    float some = 0;
    for (std::int64_t i = part; i < count && i < part + kPart * kThreads; i += kThreads) some += expf(term(i) - most);
    sum += static_cast<double>(some);
  }
  return rows::sum_over_threads<kThreads>(sum);
}

/// A block finds the greatest logit of a chunk.
template <typename T>
__global__ void __launch_bounds__(kThreads) find_greatest(Rows<T> rows, Chunks chunks) {
  for (std::int64_t tile = blockIdx.x; tile < rows.n * chunks.count; tile += gridDim.x) {
    const std::int64_t row = tile / chunks.count, begin = tile % chunks.count * chunks.size;
    const std::int64_t count = rows.c - begin < chunks.size ? rows.c - begin : chunks.size;
    const float most = greatest(count, [&](std::int64_t i) { return rows.logit(row, begin + i); });
    if (threadIdx.x == 0) chunks.most[tile] = most;
  }
}

/// The greatest logit of a row.
template <typename T>
__device__ float greatest_of_row(const Rows<T>& rows, const Chunks& chunks, std::int64_t row) {
  if (rows.activation != Activation::softmax) return 0;
  if (chunks.count > 1)
    return greatest(chunks.count, [&](std::int64_t i) { return chunks.most[row * chunks.count + i]; });
  return greatest(rows.c, [&](std::int64_t i) { return rows.logit(row, i); });
}

/// A block finds the best of a chunk, and the sum of its exponentials.
template <typename T>
__global__ void __launch_bounds__(kThreads) find_candidates(Rows<T> rows, Chunks chunks) {
  for (std::int64_t tile = blockIdx.x; tile < rows.n * chunks.count; tile += gridDim.x) {
    const std::int64_t row = tile / chunks.count, begin = tile % chunks.count * chunks.size;
    const std::int64_t count = rows.c - begin < chunks.size ? rows.c - begin : chunks.size;
    if (rows.activation == Activation::softmax) {
      const float most = greatest_of_row(rows, chunks, row);
      const double sum = exponentials(count, most, [&](std::int64_t i) { return rows.logit(row, begin + i); });
      if (threadIdx.x == 0) chunks.sums[tile] = sum;
    }
    select(
        count, count < rows.wanted ? count : rows.wanted, rows.wanted,
        [&](std::int64_t i) { return rows.entry(row, begin + i); }, chunks.candidates + tile * rows.wanted);
  }
}

/// A block computes a row, from its logits or from what was found in its chunks.
template <typename T>
__global__ void __launch_bounds__(kThreads) find_best(Rows<T> rows, Chunks chunks) {
  __shared__ Entry sorted[kSorted];
  for (std::int64_t row = blockIdx.x; row < rows.n; row += gridDim.x) {
    Entry* const best = rows.padded <= kSorted ? sorted : rows.best + row * rows.padded;
    const float most = greatest_of_row(rows, chunks, row);
    double sum = 1;
    if (rows.activation == Activation::softmax) {
      if (chunks.count > 1) {
        double own = 0;
        for (std::int64_t i = threadIdx.x; i < chunks.count; i += kThreads) own += chunks.sums[row * chunks.count + i];
        sum = rows::sum_over_threads<kThreads>(own);
      } else {
        sum = exponentials(rows.c, most, [&](std::int64_t i) { return rows.logit(row, i); });
      }
    }
    if (rows.wanted > 0) {
      if (chunks.count > 1) {
        const std::int64_t count = chunks.count * rows.wanted;
        const Entry* const candidates = chunks.candidates + row * count;
        select(count, rows.wanted, rows.padded, [&](std::int64_t i) { return candidates[i]; }, best);
      } else {
        select(rows.c, rows.wanted, rows.padded, [&](std::int64_t i) { return rows.entry(row, i); }, best);
      }
      sort(best, rows.padded);
    }
    for (std::int64_t i = threadIdx.x; i < rows.k; i += kThreads) {
      const bool used = i < rows.wanted;
      const std::uint32_t label = used ? label_of(best[i]) : 0;
      rows.scores[row * rows.k + i] = used ? score_of(rows.logit(row, label), rows.activation, most, sum) : 0;
      rows.labels[row * rows.k + i] = used ? static_cast<std::int32_t>(label) : -1;
    }
    __syncthreads();  // the next row writes to `sorted` again
  }
}

struct Cuda : Checked {
  struct Memory {
    std::span<Entry> best, candidates;
    std::span<float> most;
    std::span<double> sums;
  };

  template <typename T>
  static Memory workspace(Workspace& workspace, const Inputs& in, const Attributes& attributes) {
    const std::int64_t n = in.size("n"), c = in.size("c"), k = attributes.integer("k"), wanted = std::min(c, k);
    // No less for more rows, though these have no chunks.
    const std::int64_t chunks = std::min(n, kManyRows) * chunks_of(c, k);
    return {workspace.take<Entry>(padded(wanted) <= kSorted ? 0 : n * padded(wanted)),
            workspace.take<Entry>(chunks * wanted), workspace.take<float>(chunks), workspace.take<double>(chunks)};
  }

  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    Rows<T> rows{};
    rows.n = in.size("n");
    rows.c = in.size("c");
    rows.k = attributes.integer("k");
    if (rows.n == 0 || rows.k == 0) return {};
    const Memory memory = workspace<T>(context.workspace(), in, attributes);
    rows.logits = in["logits"].data<T>();
    rows.wanted = std::min(rows.c, rows.k);
    rows.padded = padded(rows.wanted);
    rows.activation = activation_of(attributes);
    rows.scores = out["scores"].data<float>();
    rows.labels = out["labels"].data<std::int32_t>();
    rows.best = memory.best.data();
    Chunks chunks{chunk(rows.k), rows.n < kManyRows ? chunks_of(rows.c, rows.k) : 0, memory.candidates.data(),
                  memory.most.data(), memory.sums.data()};
    const cudaStream_t stream = stream_of(context);
    const unsigned blocks = blocks_for(rows.n * chunks.count, 1);
    if (chunks.count > 1 && rows.activation == Activation::softmax)
      find_greatest<<<blocks, kThreads, 0, stream>>>(rows, chunks);
    if (chunks.count > 1) find_candidates<<<blocks, kThreads, 0, stream>>>(rows, chunks);
    find_best<<<static_cast<unsigned>(std::min<std::int64_t>(rows.n, 1 << 20)), kThreads, 0, stream>>>(rows, chunks);
    return launched();
  }

 private:
  /// The logits of a chunk: many for each of the best, so that few are left to choose among.
  static std::int64_t chunk(std::int64_t k) {
    return std::max(kLeastChunk, std::int64_t{16} * std::min<std::int64_t>(k, std::int64_t{1} << 31));
  }

  /// The chunks of a row, 0 for a short one.
  static std::int64_t chunks_of(std::int64_t c, std::int64_t k) {
    const std::int64_t count = (c + chunk(k) - 1) / chunk(k);
    return count < 4 ? 0 : count;
  }

  /// The least power of two that is not less than `count`.
  static std::int64_t padded(std::int64_t count) {
    return count <= 0 ? 0 : static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(count)));
  }
};

}  // namespace
}  // namespace opgate::ops::top_k_labels

OPGATE_CUDA_KERNEL(TopKLabels, opgate::ops::top_k_labels::Cuda)
