// Formulas over rows on CUDA: a warp computes a short row, a block a long one.
#pragma once

#include "elementwise.cuh"
#include "row_formula_kernel.h"
#include "rows.cuh"

namespace opgate::rows {

/// Rows of so many columns or fewer are computed by a warp.
inline constexpr std::int64_t kWarpRow = 1024;

/// The memory of a call: for each output that is a sum over rows, the sums of each chunk.
template <typename V, std::size_t outputs>
struct ChunkSums {
  V* sums[outputs];
  std::int64_t chunks;
};

/// A row, as each of the threads that compute it sees it.
template <typename T, typename Rows, int threads>
class DeviceRow {
 public:
  using V = ComputeType<T>;
  using Sums = ChunkSums<V, Tensors<T, Rows>::kOutputs>;

  __device__ DeviceRow(const Tensors<T, Rows>& tensors, const Sums& sums, int thread)
      : tensors_(tensors), sums_(sums), thread_(thread) {}

  /// Goes to a row of a chunk, the first one or another.
  __device__ void go_to(std::int64_t row, std::int64_t chunk, bool first) {
    row_ = row;
    chunk_ = chunk;
    first_ = first;
  }

  __device__ std::int64_t length() const { return tensors_.length; }

  struct Values {
    const T* from;

    __device__ V operator[](std::int64_t i) const { return static_cast<V>(from[i]); }
  };

  template <std::size_t k>
  __device__ Values values() const {
    constexpr bool elements = Rows::kInputs[k] == Over::elements;
    return {tensors_.in[k] + (elements ? row_ * length() : 0)};
  }

  template <std::size_t k>
  __device__ V value() const {
    return static_cast<V>(tensors_.in[k][row_]);
  }

  template <Reduction... kinds, typename Function>
  __device__ Reduced<V, sizeof...(kinds)> reduce(const Function& function) const {
    // A partial sum adds few values, so the error doesn't grow with the row.
    constexpr std::int64_t kPart = 32;
    Reduced<V, sizeof...(kinds)> total;
    begin<0, kinds...>(total);
    for (std::int64_t part = thread_; part < length(); part += kPart * threads) {
      Reduced<V, sizeof...(kinds)> partial;
      begin<0, kinds...>(partial);
      for (std::int64_t i = part; i < length() && i < part + kPart * threads; i += threads)
        combine<0, kinds...>(partial, function(i));
      combine<0, kinds...>(total, partial);
    }
    finish<0, kinds...>(total);
    return total;
  }

  /// f(i), computed where it is asked for: memory costs more here.
  template <typename Function>
  struct Kept {
    Function function;

    __device__ V operator[](std::int64_t i) const { return function(i); }
  };

  template <std::size_t k, typename Function>
  __device__ Kept<Function> keep(const Function& function) const {
    return {function};
  }

  template <std::size_t... k, typename Function>
  __device__ void write(const Function& function) const {
    for (std::int64_t i = thread_; i < length(); i += threads) put_each<0, k...>(i, function(i));
  }

  template <std::size_t k>
  __device__ void put(V value) const {
    if (thread_ == 0) tensors_.out[k][row_] = static_cast<T>(value);
  }

  template <std::size_t... k, typename Function>
  __device__ void add(const Function& function) const {
    for (std::int64_t i = thread_; i < length(); i += threads) add_each<0, k...>(i, function(i));
  }

 private:
  template <std::size_t s, Reduction kind, Reduction... more, typename Result>
  static __device__ void begin(Result& result) {
    place_of<s>(result) = neutral<kind, V>();
    if constexpr (sizeof...(more) > 0) begin<s + 1, more...>(result);
  }

  template <std::size_t s, Reduction kind, Reduction... more, typename Result>
  static __device__ void combine(Result& result, const Result& terms) {
    place_of<s>(result) = combined<kind>(place_of<s>(result), result_of<s>(terms));
    if constexpr (sizeof...(more) > 0) combine<s + 1, more...>(result, terms);
  }

  template <std::size_t s, Reduction kind, Reduction... more, typename Result>
  static __device__ void finish(Result& result) {
    place_of<s>(result) = over_threads<threads>(place_of<s>(result), [](V a, V b) { return combined<kind>(a, b); });
    if constexpr (sizeof...(more) > 0) finish<s + 1, more...>(result);
  }

  template <std::size_t s, std::size_t k, std::size_t... more, typename Result>
  __device__ void put_each(std::int64_t i, const Result& values) const {
    tensors_.out[k][row_ * length() + i] = static_cast<T>(result_of<s>(values));
    if constexpr (sizeof...(more) > 0) put_each<s + 1, more...>(i, values);
  }

  template <std::size_t s, std::size_t k, std::size_t... more, typename Result>
  __device__ void add_each(std::int64_t i, const Result& values) const {
    V& sum = sums_.sums[k][chunk_ * length() + i];
    sum = first_ ? V(result_of<s>(values)) : sum + result_of<s>(values);
    if constexpr (sizeof...(more) > 0) add_each<s + 1, more...>(i, values);
  }

  const Tensors<T, Rows>& tensors_;
  const Sums& sums_;
  int thread_;
  std::int64_t row_ = 0, chunk_ = 0;
  bool first_ = true;
};

/// `threads` threads compute the rows of a chunk, one after the other. A row is a chunk if there are no sums over rows.
template <int threads, typename T, typename Rows, typename Sums, typename Formula>
__global__ void __launch_bounds__(kThreads) run_rows(Tensors<T, Rows> tensors, Sums sums, Formula formula) {
  constexpr int kTeams = kThreads / threads;
  DeviceRow<T, Rows, threads> row(tensors, sums, static_cast<int>(threadIdx.x) % threads);
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kTeams;
  for (std::int64_t chunk = static_cast<std::int64_t>(blockIdx.x) * kTeams + threadIdx.x / threads; chunk < sums.chunks;
       chunk += step) {
    const std::int64_t begin = tensors.count * chunk / sums.chunks, end = tensors.count * (chunk + 1) / sums.chunks;
    for (std::int64_t at = begin; at < end; ++at) {
      row.go_to(at, chunk, at == begin);
      formula.template operator()<ComputeType<T>>(row);
    }
  }
}

struct CudaLoop {
  template <typename T, typename Rows>
  using Sums = ChunkSums<ComputeType<T>, Tensors<T, Rows>::kOutputs>;

  /// The number of chunks depends on the sizes alone, so that the result doesn't depend on the GPU.
  template <typename T, typename Rows>
  static Sums<T, Rows> workspace(Workspace& workspace, std::int64_t count, std::int64_t length) {
    Sums<T, Rows> sums{{}, count};
    if constexpr (columns_of<Rows>() > 0) {
      sums.chunks = std::min(count, std::clamp<std::int64_t>(count / 8, 1, 1024));
      for (std::size_t k = 0; k < std::size(Rows::kOutputs); ++k) {
        if (Rows::kOutputs[k] == Over::column)
          sums.sums[k] = workspace.take<ComputeType<T>>(sums.chunks * length).data();
      }
    }
    return sums;
  }

  template <typename T, typename Rows, typename Formula>
  static Status run(Context& context, const Tensors<T, Rows>& tensors, const Formula& formula) {
    const Sums<T, Rows> sums = workspace<T, Rows>(context.workspace(), tensors.count, tensors.length);
    if (sums.chunks > 0) {
      if (tensors.length <= kWarpRow) {
        run_rows<kWarp>
            <<<blocks_for(sums.chunks, kThreads / kWarp), kThreads, 0, stream_of(context)>>>(tensors, sums, formula);
      } else {
        run_rows<kThreads><<<blocks_for(sums.chunks, 1), kThreads, 0, stream_of(context)>>>(tensors, sums, formula);
      }
    }
    for (std::size_t k = 0; k < std::size(Rows::kOutputs); ++k) {
      if (Rows::kOutputs[k] != Over::column || tensors.length == 0) continue;
      add_chunks<T><<<blocks_for(tensors.length, kThreads), kThreads, 0, stream_of(context)>>>(
          tensors.length, sums.chunks, sums.sums[k], tensors.out[k]);
    }
    return launched();
  }
};

}  // namespace opgate::rows

namespace opgate {

/// The kernel of an op over rows.
template <typename Rows>
struct CudaRows : rows::Kernel<Rows, rows::CudaLoop> {
  template <typename T>
  static auto workspace(Workspace& workspace, const Inputs& in, const Attributes&) {
    return rows::CudaLoop::workspace<T, Rows>(workspace, rows::Tensors<T, Rows>::rows_of(in), in.size(Rows::kLength));
  }
};

}  // namespace opgate
