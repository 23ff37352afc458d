#include "deform_conv2d_backward.h"

#include "ops/deform_conv2d/columns.h"

namespace opgate::ops::deform_conv2d_backward {
namespace {

using namespace deform_conv2d;

constexpr std::int64_t rows_for(std::int64_t count) { return (count + kRows - 1) / kRows * kRows; }

/// Some pixels of an image: their samples, and the gradients of these. All have room for whole rows of tiles.
template <typename C>
struct Part {
  std::int64_t first = 0, count = 0;  ///< the pixels
  std::int64_t size;                  ///< the most pixels
  std::int64_t depth, stride;         ///< numbers of a group of a pixel, and of a pixel
  std::int64_t upstream_stride;
  std::vector<MaskedSample<C>> samples;
  std::vector<C> columns, grad_columns, upstream;

  explicit Part(const Geometry& g)
      : depth(padded<C>(rows_for(g.taps() * g.cg))),
        stride(odd_lines(g.groups * depth)),
        upstream_stride(odd_lines(g.groups * padded<C>(g.ocg()))) {
    constexpr std::int64_t kBytes = 1 << 21;
    const std::int64_t fitting = kBytes / (stride * static_cast<std::int64_t>(sizeof(C)));
    size = rows_for(std::min(std::clamp<std::int64_t>(fitting, 4 * kRows, 1024), g.pixels() + 1));
    samples.resize(static_cast<std::size_t>(g.offset_groups * g.taps() * size));
    columns.resize(static_cast<std::size_t>(size * stride));
    grad_columns.resize(columns.size());
    upstream.resize(static_cast<std::size_t>(size * upstream_stride));
  }

  /// Rounds up to an odd number of cache lines: the rows of a tile then don't share places in the cache.
  static std::int64_t odd_lines(std::int64_t count) {
    constexpr std::int64_t kLine = 64 / sizeof(C);
    return ((count + kLine - 1) / kLine | 1) * kLine;
  }

  /// Where the numbers of a tap of a segment begin.
  std::int64_t at(const Geometry& g, const Segment& s, std::int64_t tap) const {
    return s.group * depth + tap * g.cg + s.channel - s.group * g.cg;
  }
};

template <typename T>
class Gradients {
 public:
  using C = ComputeType<T>;

  Gradients(Context& context, const Inputs& in, const Geometry& g, Outputs& out)
      : context_(context),
        g_(g),
        segments_(Segment::all(g)),
        part_(g),
        upstream_(in["grad_output"].data<T>()),
        offset_(rows::wide<T>(context, in["offset"])),
        mask_(in.has("mask") ? rows::wide<T>(context, in["mask"]) : nullptr),
        grad_input_(out["grad_input"].data<T>()),
        grad_weight_(out["grad_weight"].data<T>()),
        grad_offset_(out["grad_offset"].data<T>()),
        grad_bias_(out.has("grad_bias") ? out["grad_bias"].data<T>() : nullptr),
        grad_mask_(out.has("grad_mask") ? out["grad_mask"].data<T>() : nullptr) {
    C* const last = context.scratch<C>(g.n * g.c * g.h * g.w).data();
    channels_last(context, in["input"].data<T>(), g.n, g.c, g.h * g.w, last);
    input_ = last;
    arrange(in["weight"].data<T>());
    for (const Segment& s : segments_) {
      for (std::int64_t i = 0; i < s.count; i += kPiece) {
        pieces_.push_back({s.group, s.offset_group, s.channel + i, std::min(kPiece, s.count - i)});
      }
    }
  }

  void compute() {
    const std::int64_t width = padded<C>(g_.ocg());
    std::vector<C> sums(static_cast<std::size_t>(g_.groups * part_.depth * width));
    std::vector<C> input(static_cast<std::size_t>(g_.h * g_.w * g_.c));
    for (std::int64_t image = 0; image < g_.n; ++image) {
      std::fill(input.begin(), input.end(), C(0));
      for (part_.first = 0; part_.first < g_.pixels(); part_.first += part_.size) {
        part_.count = std::min(part_.size, g_.pixels() - part_.first);
        context_.parallel_for(rows_for(part_.count) / kRows, 2, [&](std::int64_t begin, std::int64_t end) {
          std::vector<C> tile(static_cast<std::size_t>(g_.oc * kRows));
          for (std::int64_t i = begin; i < end; ++i) of_tile(image, i * kRows, tile.data());
        });
        context_.parallel_for(static_cast<std::int64_t>(pieces_.size()), 1, [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin; i < end; ++i) scatter(pieces_[static_cast<std::size_t>(i)], input.data());
        });
        const std::int64_t tiles = part_.depth / kRows;
        context_.parallel_for(g_.groups * tiles, 1, [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin; i < end; ++i) of_filters(i / tiles, i % tiles * kRows, sums.data());
        });
      }
      store_input(image, input.data());
    }
    store_weight(sums.data());
    if (grad_bias_) store_bias();
  }

 private:
  static constexpr std::int64_t kPiece = 64;

  /// Writes the filters as panels of kColumns numbers (tap, channel), the output channels of a group one after the
  /// other.
  void arrange(const T* weight) {
    weight_.resize(static_cast<std::size_t>(g_.oc * part_.depth));
    for (std::int64_t k = 0; k < g_.oc; ++k) {
      for (std::int64_t i = 0; i < g_.cg; ++i) {
        for (std::int64_t tap = 0; tap < g_.taps(); ++tap) {
          const std::int64_t column = tap * g_.cg + i;
          panel(k / g_.ocg(), column / kColumns<C>)[k % g_.ocg() * kColumns<C> + column % kColumns<C>] =
              static_cast<C>(weight[(k * g_.cg + i) * g_.taps() + tap]);
        }
      }
    }
  }

  C* panel(std::int64_t group, std::int64_t number) {
    return weight_.data() + group * g_.ocg() * part_.depth + number * g_.ocg() * kColumns<C>;
  }

  /// Computes the samples of kRows pixels, their gradients, and those of the offsets and the mask.
  void of_tile(std::int64_t image, std::int64_t pixel, C* tile) {
    const std::int64_t count = std::min<std::int64_t>(kRows, part_.count - pixel), width = padded<C>(g_.ocg());
    find_samples(g_, offset_, mask_, image, part_.first + pixel, count, part_.size, part_.samples.data() + pixel);
    for (std::int64_t k = 0; k < g_.oc; ++k) {
      const T* const from = upstream_ + (image * g_.oc + k) * g_.pixels() + part_.first + pixel;
      for (std::int64_t i = 0; i < kRows; ++i) {
        const C value = i < count ? static_cast<C>(from[i]) : C(0);
        tile[k * kRows + i] = value;
        part_.upstream[static_cast<std::size_t>((pixel + i) * part_.upstream_stride + k / g_.ocg() * width +
                                                k % g_.ocg())] = value;
      }
    }
    C* const gradients = part_.grad_columns.data() + pixel * part_.stride;
    std::fill_n(gradients, kRows * part_.stride, C(0));
    for (std::int64_t group = 0; group < g_.groups; ++group) {
      const std::int64_t k = group * g_.ocg();
      for (std::int64_t column = 0; column < part_.depth; column += kColumns<C>) {
        add_product(g_.ocg(), tile + k * kRows, 1, kRows, panel(group, column / kColumns<C>), kColumns<C>,
                    gradients + group * part_.depth + column, part_.stride);
      }
    }
    for (std::int64_t i = 0; i < count; ++i) of_pixel(image, pixel + i);
  }

  void of_pixel(std::int64_t image, std::int64_t pixel) {
    const C* const from = input_ + image * g_.h * g_.w * g_.c;
    const std::int64_t to = part_.first + pixel;
    for (std::int64_t group = 0; group < g_.offset_groups; ++group) {
      for (std::int64_t tap = 0; tap < g_.taps(); ++tap) {
        const MaskedSample<C>& sample =
            part_.samples[static_cast<std::size_t>((group * g_.taps() + tap) * part_.size + pixel)];
        C products[4] = {};
        for (const Segment& s : segments_) {
          if (s.offset_group != group) continue;
          const std::int64_t at = pixel * part_.stride + part_.at(g_, s, tap);
          sample_row(sample, from + s.channel, g_.c, s.count, part_.columns.data() + at);
          for (int corner = 0; corner < 4; ++corner) {
            if (sample.pixel[corner] < 0) continue;
            products[corner] +=
                rows::product(part_.grad_columns.data() + at, from + sample.pixel[corner] * g_.c + s.channel, s.count);
          }
        }
        const C right = sample.right, below = sample.below, left = C(1) - right, above = C(1) - below;
        const C to_y = left * (products[2] - products[0]) + right * (products[3] - products[1]);
        const C to_x = above * (products[1] - products[0]) + below * (products[3] - products[2]);
        T* const grad_offset = grad_offset_ + g_.offset_at(image, group, tap) + to;
        grad_offset[0] = static_cast<T>(to_y * sample.factor);
        grad_offset[g_.pixels()] = static_cast<T>(to_x * sample.factor);
        if (!grad_mask_) continue;
        grad_mask_[((image * g_.offset_groups + group) * g_.taps() + tap) * g_.pixels() + to] = static_cast<T>(
            above * (left * products[0] + right * products[1]) + below * (left * products[2] + right * products[3]));
      }
    }
  }

  /// Adds the gradients of samples to those of the input's pixels, for the channels of a piece.
  void scatter(const Segment& piece, C* input) const {
    for (std::int64_t pixel = 0; pixel < part_.count; ++pixel) {
      for (std::int64_t tap = 0; tap < g_.taps(); ++tap) {
        const MaskedSample<C>& sample =
            part_.samples[static_cast<std::size_t>((piece.offset_group * g_.taps() + tap) * part_.size + pixel)];
        const C* const from = part_.grad_columns.data() + pixel * part_.stride + part_.at(g_, piece, tap);
        for (int corner = 0; corner < 4; ++corner) {
          if (sample.pixel[corner] < 0) continue;
          const C weight = weight_of(sample, corner) * sample.factor;
          C* const __restrict__ to = input + sample.pixel[corner] * g_.c + piece.channel;
          for (std::int64_t i = 0; i < piece.count; ++i) to[i] += weight * from[i];
        }
      }
    }
  }

  /// Adds the pixels' part of the gradients of kRows numbers of all filters of a group.
  void of_filters(std::int64_t group, std::int64_t number, C* sums) const {
    const std::int64_t width = padded<C>(g_.ocg());
    for (std::int64_t column = 0; column < width; column += kColumns<C>) {
      add_product(part_.count, part_.columns.data() + group * part_.depth + number, 1, part_.stride,
                  part_.upstream.data() + group * width + column, part_.upstream_stride,
                  sums + (group * part_.depth + number) * width + column, width);
    }
  }

  void store_input(std::int64_t image, const C* input) const {
    T* const to = grad_input_ + image * g_.c * g_.h * g_.w;
    context_.parallel_for(g_.c, 4, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t channel = begin; channel < end; ++channel) {
        for (std::int64_t i = 0; i < g_.h * g_.w; ++i) {
          to[channel * g_.h * g_.w + i] = static_cast<T>(input[i * g_.c + channel]);
        }
      }
    });
  }

  void store_weight(const C* sums) const {
    const std::int64_t width = padded<C>(g_.ocg());
    for (std::int64_t k = 0; k < g_.oc; ++k) {
      const C* const from = sums + k / g_.ocg() * part_.depth * width + k % g_.ocg();
      for (std::int64_t i = 0; i < g_.cg; ++i) {
        for (std::int64_t tap = 0; tap < g_.taps(); ++tap) {
          grad_weight_[(k * g_.cg + i) * g_.taps() + tap] = static_cast<T>(from[(tap * g_.cg + i) * width]);
        }
      }
    }
  }

  void store_bias() const {
    context_.parallel_for(g_.oc, 4, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t k = begin; k < end; ++k) {
        double sum = 0;
        for (std::int64_t image = 0; image < g_.n; ++image) {
          const T* const from = upstream_ + (image * g_.oc + k) * g_.pixels();
          for (std::int64_t i = 0; i < g_.pixels(); ++i) sum += static_cast<double>(static_cast<C>(from[i]));
        }
        grad_bias_[k] = static_cast<T>(static_cast<C>(sum));
      }
    });
  }

  Context& context_;
  const Geometry& g_;
  const std::vector<Segment> segments_;
  std::vector<Segment> pieces_;
  Part<C> part_;
  std::vector<C> weight_;
  const T* upstream_;
  const C *input_, *offset_, *mask_;
  T *grad_input_, *grad_weight_, *grad_offset_, *grad_bias_, *grad_mask_;
};

struct Cpu : Checked {
  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const Geometry g = Geometry::of(in, attributes);
    if (g.n * g.oc > 0) {
      Gradients<T>(context, in, g, out).compute();
      return {};
    }
    // Nothing flows back. Parts of a picture of very many channels would take memory.
    for (const char* name : {"grad_input", "grad_offset", "grad_weight", "grad_bias", "grad_mask"}) {
      if (out.has(name)) std::fill_n(out[name].data<T>(), out[name].size(), T(0));
    }
    return {};
  }
};

}  // namespace
}  // namespace opgate::ops::deform_conv2d_backward

OPGATE_CPU_KERNEL(DeformConv2dBackward, opgate::ops::deform_conv2d_backward::Cpu)
