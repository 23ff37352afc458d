#pragma once

#include "channels.h"

OPGATE_OP(FakeQuantize,
          "<T: f16|bf16|f32|f64> FakeQuantize(x: T[...], scale: f32[k], zero_point: i32[k]; axis: int=1, "
          "quant_min: int=-128, quant_max: int=127) -> (y: T[...])",
          "x as it is after it was quantized to integers and back, with one scale or one for each channel.")

namespace opgate::ops::fake_quantize {

struct Formula {
  template <typename V>
  OPGATE_HOST_DEVICE V operator()(const Channel<V>& channel, V x) const {
    const V scaled = x * channel.inverse;
    // NaN becomes the least number, as in PyTorch.
    const V within = select(scaled >= channel.low, select(scaled > channel.high, channel.high, scaled), channel.low);
    return nearest(within) * channel.scale;
  }
};

}  // namespace opgate::ops::fake_quantize
