#include "deform_conv2d.h"

#include "columns.h"

namespace opgate::ops::deform_conv2d {
namespace {

/// So many numbers of a column are multiplied at once: with the filters' numbers they fill the first cache.
constexpr std::int64_t kDepth = 256;

/// The distance of two columns. It is no power of two, so that they don't share places in the cache.
constexpr std::int64_t kColumnStride = kDepth + 16;

/// How many numbers the packed filters have.
template <typename C>
std::int64_t packed_size(const Geometry& g) {
  return g.groups * padded<C>(g.ocg()) * g.taps() * g.cg;
}

/// So many channels of a panel of filters fit the first cache.
constexpr std::int64_t kPackedTogether = 16;

/// How many blocks of filters there are to pack.
template <typename C>
std::int64_t packed_blocks(const Geometry& g) {
  return g.groups * (padded<C>(g.ocg()) / kColumns<C>)*((g.cg + kPackedTogether - 1) / kPackedTogether);
}

/// Packs blocks [begin, end) of the filters as panels of kColumns output channels: the numbers (tap, channel of the
/// group) of all of them side by side.
template <typename T, typename C>
void pack(const Geometry& g, const T* weight, std::int64_t begin, std::int64_t end, C* to) {
  constexpr std::int64_t kWidth = kColumns<C>;
  const std::int64_t depth = g.taps() * g.cg, panels = padded<C>(g.ocg()) / kWidth;
  const std::int64_t blocks = (g.cg + kPackedTogether - 1) / kPackedTogether;
  for (std::int64_t i = begin; i < end; ++i) {
    const std::int64_t panel = i / blocks, group = panel / panels, first = panel % panels * kWidth;
    const std::int64_t low = i % blocks * kPackedTogether, high = std::min(low + kPackedTogether, g.cg);
    for (std::int64_t j = 0; j < kWidth; ++j) {
      C* const numbers = to + panel * depth * kWidth + j;
      const bool exists = first + j < g.ocg();
      const T* const filter = weight + (exists ? group * g.ocg() + first + j : 0) * depth;
      for (std::int64_t channel = low; channel < high; ++channel) {
        for (std::int64_t tap = 0; tap < g.taps(); ++tap) {
          numbers[(tap * g.cg + channel) * kWidth] = exists ? static_cast<C>(filter[channel * g.taps() + tap]) : C(0);
        }
      }
    }
  }
}

/// Computes blocks of output pixels.
template <typename T>
class Blocks {
 public:
  using C = ComputeType<T>;

  /// `bias` and `mask` may be null.
  Blocks(const Geometry& g, const C* input, const C* offset, const C* mask, const C* weight, const C* bias, T* output)
      : g_(g),
        segments_(Segment::all(g)),
        input_(input),
        offset_(offset),
        mask_(mask),
        weight_(weight),
        bias_(bias),
        output_(output) {}

  /// What a thread needs for a block of `size` pixels.
  struct Memory {
    std::vector<MaskedSample<C>> samples;
    std::vector<C> columns, sums;

    std::int64_t size;

    Memory(const Geometry& g, std::int64_t size)
        : samples(static_cast<std::size_t>(g.offset_groups * g.taps() * size)),
          columns(static_cast<std::size_t>(size * kColumnStride)),
          sums(static_cast<std::size_t>(size * padded<C>(g.ocg()))),
          size(size) {}
  };

  /// Computes the pixels [first, first + count) of an image, at most memory.size.
  void compute(std::int64_t image, std::int64_t first, std::int64_t count, Memory& memory) const {
    find_samples(g_, offset_, mask_, image, first, count, memory.size, memory.samples.data());
    const std::int64_t depth = g_.taps() * g_.cg, width = padded<C>(g_.ocg());
    std::size_t segment = 0;
    for (std::int64_t group = 0; group < g_.groups; ++group) {
      std::fill(memory.sums.begin(), memory.sums.end(), C(0));
      // A chunk is some taps with all their channels, or some channels of a tap.
      const std::int64_t taps = std::max<std::int64_t>(1, kDepth / g_.cg);
      for (std::int64_t tap = 0; tap < g_.taps(); tap += taps) {
        const std::int64_t last = std::min(tap + taps, g_.taps());
        for (std::int64_t channel = 0; channel < g_.cg; channel += kDepth) {
          const std::int64_t end = std::min(channel + kDepth, g_.cg);
          fill(image, group, segment, tap, last, channel, end, count, memory);
          const std::int64_t numbers = (last - tap) * (end - channel);
          multiply(weight_ + group * width * depth + (tap * g_.cg + channel) * kColumns<C>, depth, numbers, count,
                   memory);
        }
      }
      store(image, group, first, count, memory);
      while (segment < segments_.size() && segments_[segment].group == group) ++segment;
    }
  }

 private:
  /// Writes the columns of the taps [tap, last) and the channels [channel, end) of a group.
  void fill(std::int64_t image, std::int64_t group, std::size_t segment, std::int64_t tap, std::int64_t last,
            std::int64_t channel, std::int64_t end, std::int64_t count, Memory& memory) const {
    const C* const from = input_ + image * g_.h * g_.w * g_.c;
    for (; segment < segments_.size() && segments_[segment].group == group; ++segment) {
      const Segment& s = segments_[segment];
      const std::int64_t low = std::max(s.channel, group * g_.cg + channel);
      const std::int64_t high = std::min(s.channel + s.count, group * g_.cg + end);
      if (low >= high) continue;
      for (std::int64_t t = tap; t < last; ++t) {
        const MaskedSample<C>* const samples = memory.samples.data() + (s.offset_group * g_.taps() + t) * memory.size;
        C* const to = memory.columns.data() + (t - tap) * (end - channel) + low - group * g_.cg - channel;
        for (std::int64_t i = 0; i < count; ++i) {
          sample_row(samples[i], from + low, g_.c, high - low, to + i * kColumnStride);
        }
      }
    }
  }

  /// sums += columns x filters.
  [[gnu::noinline]] void multiply(const C* weight, std::int64_t depth, std::int64_t numbers, std::int64_t count,
                                  Memory& memory) const {
    const std::int64_t width = padded<C>(g_.ocg());
    for (std::int64_t panel = 0; panel < width; panel += kColumns<C>) {
      for (std::int64_t i = 0; i < count; i += kRows) {
        add_product(numbers, memory.columns.data() + i * kColumnStride, kColumnStride, 1, weight + panel * depth,
                    kColumns<C>, memory.sums.data() + i * width + panel, width);
      }
    }
  }

  void store(std::int64_t image, std::int64_t group, std::int64_t first, std::int64_t count, Memory& memory) const {
    const std::int64_t width = padded<C>(g_.ocg());
    for (std::int64_t k = 0; k < g_.ocg(); ++k) {
      const std::int64_t channel = group * g_.ocg() + k;
      const C bias = bias_ ? bias_[channel] : C(0);
      C row[kPixels];
      for (std::int64_t i = 0; i < count; ++i) row[i] = memory.sums[static_cast<std::size_t>(i * width + k)] + bias;
      T* const to = output_ + (image * g_.oc + channel) * g_.pixels() + first;
      if constexpr (std::is_same_v<T, C>)
        std::copy_n(row, count, to);
      else
        narrow(row, to, count);
    }
  }

  const Geometry& g_;
  const std::vector<Segment> segments_;
  const C *input_, *offset_, *mask_, *weight_, *bias_;
  T* output_;
};

class Cpu : public Checked {
 public:
  /// Packs filters that are the same in every run.
  Status prepare(const Node& node) {
    const Tensor* const weight = node.constant("weight");
    const auto c = node.size("c");
    if (!weight || !c) return {};
    Geometry g{};
    g.c = *c;
    g.oc = weight->dim(0);
    g.cg = weight->dim(1);
    g.kh = weight->dim(2);
    g.kw = weight->dim(3);
    g.groups = g.c / g.cg;
    switch (weight->dtype()) {
      case DType::f16: pack_all<f16>(g, *weight, narrow_); break;
      case DType::bf16: pack_all<bf16>(g, *weight, narrow_); break;
      case DType::f32: pack_all<float>(g, *weight, narrow_); break;
      default: pack_all<double>(g, *weight, wide_); break;
    }
    return {};
  }

  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    using C = ComputeType<T>;
    const Geometry g = Geometry::of(in, attributes);
    if (g.n * g.oc * g.pixels() == 0) return {};
    C* const input = context.scratch<C>(g.n * g.c * g.h * g.w).data();
    channels_last(context, in["input"].data<T>(), g.n, g.c, g.h * g.w, input);
    const C* weight = prepared<C>();
    if (!weight) {
      C* const packed = context.scratch<C>(packed_size<C>(g)).data();
      const T* const filters = in["weight"].data<T>();
      context.parallel_for(packed_blocks<C>(g), 8,
                           [&](std::int64_t begin, std::int64_t end) { pack(g, filters, begin, end, packed); });
      weight = packed;
    }
    const C* const mask = in.has("mask") ? rows::wide<T>(context, in["mask"]) : nullptr;
    const C* const bias = in.has("bias") ? rows::wide<T>(context, in["bias"]) : nullptr;
    const Blocks<T> blocks(g, input, rows::wide<T>(context, in["offset"]), mask, weight, bias, out["output"].data<T>());
    const PixelBlocks pixels(g.pixels(), packed_size<C>(g) * static_cast<std::int64_t>(sizeof(C)));
    context.parallel_for(g.n * pixels.count, 1, [&](std::int64_t begin, std::int64_t end) {
      typename Blocks<T>::Memory memory(g, pixels.size);
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t first = i % pixels.count * pixels.size;
        blocks.compute(i / pixels.count, first, std::min(pixels.size, g.pixels() - first), memory);
      }
    });
    return {};
  }

 private:
  template <typename T, typename C>
  static void pack_all(const Geometry& g, const Tensor& weight, std::vector<C>& to) {
    to.resize(static_cast<std::size_t>(packed_size<C>(g)));
    pack(g, weight.data<T>(), 0, packed_blocks<C>(g), to.data());
  }

  /// The filters that prepare() has packed, or nullptr.
  template <typename C>
  const C* prepared() const {
    if constexpr (std::is_same_v<C, float>)
      return narrow_.empty() ? nullptr : narrow_.data();
    else
      return wide_.empty() ? nullptr : wide_.data();
  }

  std::vector<float> narrow_;
  std::vector<double> wide_;
};

}  // namespace
}  // namespace opgate::ops::deform_conv2d

OPGATE_CPU_KERNEL(DeformConv2d, opgate::ops::deform_conv2d::Cpu)
