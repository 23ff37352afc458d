// The kernel of FakeQuantize and of its gradient on the CPU.
#pragma once

#include "channels.h"
#include "kernel_toolkit/elementwise.h"

namespace opgate::ops::fake_quantize {

/// Rows of channels with few elements each: what each element of a row is quantized with. A loop over such a row
/// vectorizes; one over the elements of a channel is too short.
template <typename C>
struct Table {
  std::span<C> scale, inverse, low, high;

  Table(Context& context, std::int64_t length)
      : scale(context.scratch<C>(length)),
        inverse(context.scratch<C>(length)),
        low(context.scratch<C>(length)),
        high(context.scratch<C>(length)) {}

  void set(std::size_t i, const Channel<C>& channel) const {
    scale[i] = channel.scale;
    inverse[i] = channel.inverse;
    low[i] = channel.low;
    high[i] = channel.high;
  }
};

/// out[i] = Formula()(channel i of the table, in[i]...) for `count` elements. `first` is the first one's place in the
/// table.
template <typename Formula, typename C, typename... In>
[[gnu::flatten]] void run_table(const Table<C>& table, std::int64_t first, std::int64_t count, C* out,
                                const In*... in) {
  const C* const scale = table.scale.data() + first;
  const C* const inverse = table.inverse.data() + first;
  const C* const low = table.low.data() + first;
  const C* const high = table.high.data() + first;
  for (std::int64_t i = 0; i < count; ++i) {
    out[i] = Formula()(Channel<C>(scale[i], inverse[i], low[i], high[i]), in[i]...);
  }
}

/// The same for 16-bit numbers, computed as floats.
template <typename Formula, typename T, std::size_t... k, typename... In>
void run_table_blocks(std::index_sequence<k...>, const Table<float>& table, std::int64_t first, std::int64_t count,
                      T* out, const In*... in) {
  using elementwise::kBlock;
  alignas(64) float wide[sizeof...(In) + 1][kBlock];
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t part = std::min(kBlock, count - begin);
    (widen(in + begin, wide[k], part), ...);
    float* const result = wide[sizeof...(In)];
    run_table<Formula>(table, first + begin, part, result, static_cast<const float*>(wide[k])...);
    narrow(result, out + begin, part);
  }
}

/// A formula of one channel, as a function of the elements alone.
template <typename Formula, typename C>
struct OfChannel {
  Channel<C> channel;

  template <typename... V>
  C operator()(V... values) const {
    return Formula()(channel, values...);
  }
};

template <typename Formula, const char*... names>
struct Cpu : Checked {
  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    OPGATE_RETURN_IF_ERROR(check_values(in, attributes));
    Layout layout;
    OPGATE_RETURN_IF_ERROR(Layout::of(in, attributes, layout));
    return run<T>(context, in, attributes, layout, out.at(0), in[names].template data<T>()...);
  }

 private:
  template <typename T, typename... In>
  static Status run(Context& context, const Inputs& in, const Attributes& attributes, const Layout& layout,
                    const MutableTensor& out, const In*... from) {
    using C = ComputeType<T>;
    const float* const scale = in["scale"].data<float>();
    const std::int32_t* const zero_point = in["zero_point"].data<std::int32_t>();
    const std::int64_t least = attributes.integer("quant_min"), most = attributes.integer("quant_max");
    const auto function_of = [=](std::int64_t channel) {
      return OfChannel<Formula, C>{Channel<C>(scale[channel], zero_point[channel], least, most)};
    };
    T* const to = out.data<T>();
    const std::int64_t inner = layout.inner();
    constexpr std::int64_t kShort = 32;
    if (layout.channels() > 1 && inner < kShort && inner > 0) {
      const std::int64_t length = layout.channels() * inner;
      const Table<C> table(context, length);
      for (std::int64_t i = 0; i < length; ++i) table.set(static_cast<std::size_t>(i), function_of(i / inner).channel);
      context.parallel_for(out.size(), kElementGrain, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t at = begin; at < end;) {
          const std::int64_t first = at % length, count = std::min(end - at, length - first);
          if constexpr (std::is_same_v<C, T>) {
            run_table<Formula>(table, first, count, to + at, (from + at)...);
          } else {
            run_table_blocks<Formula>(std::index_sequence_for<In...>(), table, first, count, to + at, (from + at)...);
          }
          at += count;
        }
      });
      return {};
    }
    // A piece begins and ends anywhere in a row.
    context.parallel_for(out.size(), kElementGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t at = begin; at < end;) {
        const std::int64_t row = at / inner, stop = std::min(end, (row + 1) * inner);
        const OfChannel<Formula, C> function = function_of(layout.channel_of(row));
        if constexpr (std::is_same_v<C, T>) {
          elementwise::run(at, stop, to, function, from...);
        } else {
          elementwise::run_blocks(std::index_sequence_for<In...>(), at, stop, to, function, from...);
        }
        at = stop;
      }
    });
    return {};
  }
};

inline constexpr char kX[] = "x", kGradY[] = "grad_y";

}  // namespace opgate::ops::fake_quantize
