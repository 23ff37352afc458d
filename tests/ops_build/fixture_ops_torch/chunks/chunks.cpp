// Tests sizes that torch must compute with symbols: minimum, maximum, quotients and remainders, also of an attribute.
#include "kernel_toolkit/op.h"

OPGATE_OP(Chunks,
          "Chunks(x: f32[n,m]; k: int=3) -> (a: f32[min(n,m),max(n,k)], b: f32[ceildiv(n,k),n/k,n%k+2], "
          "c: i32[2*n-n])",
          "Ones.")

namespace opgate::ops {
struct ChunksCpu {
  Status operator()(Context&, const Inputs&, const Attributes&, Outputs& out) const {
    std::ranges::fill(out["a"].span<float>(), 1.0f);
    std::ranges::fill(out["b"].span<float>(), 1.0f);
    std::ranges::fill(out["c"].span<std::int32_t>(), 1);
    return {};
  }
};
}  // namespace opgate::ops

OPGATE_CPU_KERNEL(Chunks, opgate::ops::ChunksCpu)
