// The gradients of the norms over the last axis, on CUDA. row_gradients.h has the formulas.
#pragma once

#include "kernel_toolkit/rows.cuh"
#include "norms/epsilon.h"

namespace opgate::ops::row_gradients {

using rows::kThreads;

/// A block computes the gradient of a row, and writes what standardizes the row.
template <bool centred, typename T, typename C = ComputeType<T>>
__global__ void __launch_bounds__(kThreads)
    find_grad_x(std::int64_t count, std::int64_t c, C epsilon, const T* __restrict__ grad_y, const T* __restrict__ sum,
                const T* __restrict__ weight, const T* __restrict__ grad_sum, T* __restrict__ grad_x,
                rows::Standard<C>* __restrict__ standards) {
  for (std::int64_t row = blockIdx.x; row < count; row += gridDim.x) {
    const std::int64_t begin = row * c;
    const auto value = [&](std::int64_t i) { return static_cast<C>(sum[begin + i]); };
    const auto gradient = [&](std::int64_t i) {
      const C g = static_cast<C>(grad_y[begin + i]);
      return weight ? g * static_cast<C>(weight[i]) : g;
    };
    const rows::Standard<C> standardize = rows::standard<centred>(c, epsilon, value);
    if (threadIdx.x == 0) standards[row] = standardize;
    C mean = 0;
    if constexpr (centred) mean = rows::sum<C>(c, gradient) / static_cast<C>(c);
    const C slope =
        rows::sum<C>(c, [&](std::int64_t i) { return gradient(i) * standardize(value(i)); }) / static_cast<C>(c);
    for (std::int64_t i = threadIdx.x; i < c; i += kThreads) {
      C result = standardize.scale * ((gradient(i) - mean) - standardize(value(i)) * slope);
      if (grad_sum) result += static_cast<C>(grad_sum[begin + i]);
      grad_x[begin + i] = static_cast<T>(result);
    }
  }
}

/// A thread adds, for one column, what the rows of a chunk contribute to the gradients of weight and bias.
template <typename T, typename C = ComputeType<T>>
__global__ void __launch_bounds__(kThreads)
    sum_chunks(std::int64_t count, std::int64_t c, std::int64_t chunks, const T* __restrict__ grad_y,
               const T* __restrict__ sum, const rows::Standard<C>* __restrict__ standards, C* __restrict__ weights,
               C* __restrict__ biases) {
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (thread >= chunks * c) return;
  const std::int64_t chunk = thread / c, i = thread % c;
  C weight = 0, bias = 0;
  for (std::int64_t row = count * chunk / chunks; row < count * (chunk + 1) / chunks; ++row) {
    const C g = static_cast<C>(grad_y[row * c + i]);
    weight += g * standards[row](static_cast<C>(sum[row * c + i]));
    bias += g;
  }
  if (weights) weights[thread] = weight;
  if (biases) biases[thread] = bias;
}

template <bool centred>
struct Cuda : ChecksEpsilon {
  template <typename C>
  struct Memory {
    std::span<rows::Standard<C>> standards;
    std::span<C> weights, biases;
    std::int64_t count, chunks;
  };

  template <typename T>
  static Memory<ComputeType<T>> workspace(Workspace& workspace, const Inputs& in, const Attributes&) {
    using C = ComputeType<T>;
    const std::int64_t c = in.size("c"), count = c == 0 ? 0 : in["sum"].size() / c;
    // The number depends on the sizes alone, so that the result doesn't depend on the GPU.
    const std::int64_t chunks = std::clamp<std::int64_t>(count / 32, 1, 256);
    Memory<C> memory{workspace.take<rows::Standard<C>>(count), workspace.take<C>(chunks * c), {}, count, chunks};
    if constexpr (centred) memory.biases = workspace.take<C>(chunks * c);
    return memory;
  }

  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    using C = ComputeType<T>;
    const std::int64_t c = in.size("c");
    if (c == 0) return {};
    const Memory<C> memory = workspace<T>(context.workspace(), in, attributes);
    const T* const grad_y = in["grad_y"].data<T>();
    const T* const sum = in["sum"].data<T>();
    T* const grad_weight = data_or_null<T>(out, "grad_weight");
    T* const grad_bias = centred ? data_or_null<T>(out, "grad_bias") : nullptr;
    cudaStream_t stream = stream_of(context);
    if (memory.count > 0) {
      find_grad_x<centred, T><<<blocks_for(memory.count, 1), kThreads, 0, stream>>>(
          memory.count, c, static_cast<C>(attributes.number("epsilon")), grad_y, sum, data_or_null<T>(in, "weight"),
          data_or_null<T>(in, "grad_sum"), out["grad_x_and_residual"].data<T>(), memory.standards.data());
    }
    if (grad_weight || grad_bias) {
      sum_chunks<T><<<blocks_for(memory.chunks * c, kThreads), kThreads, 0, stream>>>(
          memory.count, c, memory.chunks, grad_y, sum, memory.standards.data(),
          grad_weight ? memory.weights.data() : nullptr, grad_bias ? memory.biases.data() : nullptr);
    }
    const unsigned blocks = blocks_for(c, kThreads);
    if (grad_weight) {
      rows::add_chunks<T><<<blocks, kThreads, 0, stream>>>(c, memory.chunks, memory.weights.data(), grad_weight);
    }
    if (grad_bias)
      rows::add_chunks<T><<<blocks, kThreads, 0, stream>>>(c, memory.chunks, memory.biases.data(), grad_bias);
    return launched();
  }
};

}  // namespace opgate::ops::row_gradients
