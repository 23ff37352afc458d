// A kernel that ends its process, or never ends, if an element has one of some values: each in its own way.
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "kernel_toolkit/op.h"

OPGATE_OP(DiesOn, "DiesOn(x: f32[n,m]) -> (y: f32[n,m])", "2 x, unless x has a value from 101 to 107.")

namespace opgate::ops {
[[gnu::noinline]] int deep(volatile int* before) {  // NOLINT(misc-no-recursion)
  volatile int here[1024] = {*before};
  return here[0] < 0 ? 0 : deep(here) + here[7];  // it is never below 0
}

struct DiesOnCpu {
  Status operator()(Context&, const Inputs& in, const Attributes&, Outputs& out) const {
    const Tensor& x = in["x"];
    for (std::int64_t i = 0; i < x.size(); ++i) {
      const float value = x.data<float>()[i];
      volatile int begin = 0;
      volatile std::uintptr_t nowhere = 8;
      switch (static_cast<int>(value)) {
        case 101: *reinterpret_cast<volatile int*>(nowhere) = 1; break;
        case 102: std::abort();
        case 103: return out.bind("", deep(&begin));
        case 104: std::_Exit(7);
        case 105:
          while (begin == 0) asm volatile("");
          break;
        case 106: {  // memory, until there is none
          std::vector<char*> taken;
          while (char* const piece = static_cast<char*>(std::malloc(1 << 24))) {
            *piece = 1;  // to write all of it would take longer than a run may, where many processes run
            taken.push_back(piece);
          }
          throw std::bad_alloc();
        }
        case 107: std::raise(SIGKILL); break;
        default: break;
      }
      out["y"].data<float>()[i] = 2 * value;
    }
    return {};
  }
};
}  // namespace opgate::ops

OPGATE_CPU_KERNEL(DiesOn, opgate::ops::DiesOnCpu)
