#pragma once

#include "ops/fake_quantize/channels.h"

OPGATE_OP(FakeQuantizeBackward,
          "<T: f16|bf16|f32|f64> FakeQuantizeBackward(grad_y: T[...], x: T[...], scale: f32[k], zero_point: i32[k]; "
          "axis: int=1, quant_min: int=-128, quant_max: int=127) -> (grad_x: T[...])",
          "The gradient of FakeQuantize as if it rounded nothing: grad_y where x is in the range, 0 elsewhere.")

namespace opgate::ops::fake_quantize_backward {

struct Formula {
  template <typename V>
  OPGATE_HOST_DEVICE V operator()(const fake_quantize::Channel<V>& channel, V grad_y, V x) const {
    const V low = channel.low, high = channel.high;
    const V rounded = fake_quantize::nearest(held(x * channel.inverse, low - V(1), high + V(1)));
    const V below_high = select(rounded > high, V(0), grad_y);
    return select(rounded >= low, below_high, V(0));  // 0 for NaN
  }
};

}  // namespace opgate::ops::fake_quantize_backward
