// A kernel that breaks one rule in each mode. The core must turn each into an error.
#include <cstdlib>
#include <stdexcept>

#include "kernel_toolkit/op.h"

OPGATE_OP(
    Misbehave,
    "Misbehave(x: f32[n]; how: {throws|throws_in_pool|leaves_open|binds_too_much|asks_unknown|runs_out|reads_as_double|"
    "writes_as_double|reads_null|aborts|fills_the_stack}) -> (y: "
    "f32[v<=n])",
    "Breaks a rule.")

namespace opgate::ops {
[[gnu::noinline]] int deeper(volatile int* before) {  // NOLINT(misc-no-recursion)
  volatile int here[1024] = {*before};
  return here[0] < 0 ? 0 : deeper(here) + here[7];  // it is never below 0
}

struct MisbehaveCpu {
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const std::string& how = attributes.text("how");
    if (how == "throws") throw std::runtime_error("thrown by the kernel");
    if (how == "throws_in_pool") {
      context.parallel_for(64, 1, [](std::int64_t begin, std::int64_t) {
        if (begin == 7) throw std::runtime_error("thrown in the pool");
      });
    }
    if (how == "binds_too_much") return out.bind("v", in.size("n") + 1);
    const std::string unknown = "nothing";
    if (how == "asks_unknown") return out.bind("v", in[unknown].size());
    if (how == "reads_as_double") return out.bind("v", in["x"].data<double>()[0] > 0 ? 1 : 0);
    if (how == "writes_as_double") {
      OPGATE_RETURN_IF_ERROR(out.bind("v", in.size("n")));
      out["y"].data<double>()[0] = 1;
    }
    if (how == "reads_null") {
      const float* volatile nothing = nullptr;
      OPGATE_RETURN_IF_ERROR(out.bind("v", *nothing > 0 ? 1 : 0));
    }
    if (how == "aborts") std::abort();
    if (how == "fills_the_stack") {
      volatile int begin = 0;
      return out.bind("v", deeper(&begin));
    }
    if (how == "runs_out") context.scratch<double>(std::int64_t{1} << 50);
    return {};
  }
};
}  // namespace opgate::ops

OPGATE_CPU_KERNEL(Misbehave, opgate::ops::MisbehaveCpu)
