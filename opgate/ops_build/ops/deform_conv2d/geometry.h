// The sizes of DeformConv2d and of its gradient, for every device.
#pragma once

#include <initializer_list>
#include <limits>
#include <string>

#include "kernel_toolkit/numbers.h"
#include "kernel_toolkit/op.h"

namespace opgate::ops::deform_conv2d {

struct Geometry {
  std::int64_t n, c, h, w, oc, cg, kh, kw, oh, ow;
  std::int64_t groups, offset_groups;
  std::int64_t stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;

  static Geometry of(const Inputs& in, const Attributes& attributes) {
    Geometry g{in.size("n"),
               in.size("c"),
               in.size("h"),
               in.size("w"),
               in.size("oc"),
               in.size("cg"),
               in.size("kh"),
               in.size("kw"),
               in.size("oh"),
               in.size("ow"),
               0,
               0,
               attributes.integer("stride_h"),
               attributes.integer("stride_w"),
               attributes.integer("pad_h"),
               attributes.integer("pad_w"),
               attributes.integer("dilation_h"),
               attributes.integer("dilation_w")};
    g.groups = g.c / g.cg;
    g.offset_groups = in.size("offsets") / (2 * g.taps());
    return g;
  }

  OPGATE_HOST_DEVICE std::int64_t taps() const { return kh * kw; }
  OPGATE_HOST_DEVICE std::int64_t pixels() const { return oh * ow; }
  OPGATE_HOST_DEVICE std::int64_t ocg() const { return oc / groups; }
  /// The channels of an offset group.
  OPGATE_HOST_DEVICE std::int64_t co() const { return c / offset_groups; }

  /// Where the offset of a tap for an output pixel begins; that of y comes first, and that of x pixels() later.
  OPGATE_HOST_DEVICE std::int64_t offset_at(std::int64_t image, std::int64_t group, std::int64_t tap) const {
    return ((image * offset_groups + group) * taps() + tap) * 2 * pixels();
  }

  /// The row and the column that a tap has without its offset.
  OPGATE_HOST_DEVICE std::int64_t place_y(std::int64_t tap, std::int64_t row) const {
    return row * stride_h - pad_h + tap / kw * dilation_h;
  }
  OPGATE_HOST_DEVICE std::int64_t place_x(std::int64_t tap, std::int64_t column) const {
    return column * stride_w - pad_w + tap % kw * dilation_w;
  }
};

/// What both kernels of both ops have in common.
struct Checked {
  static Status check(const Attributes& attributes, const KnownSizes& sizes) {
    constexpr std::int64_t kMost = 1 << 20;
    for (const char* const name : {"stride_h", "stride_w", "dilation_h", "dilation_w"}) {
      if (attributes.integer(name) < 1 || attributes.integer(name) > kMost) return attributes.refuse(name, "1..2^20");
    }
    for (const char* const name : {"pad_h", "pad_w"}) {
      if (attributes.integer(name) < 0 || attributes.integer(name) > kMost) return attributes.refuse(name, "0..2^20");
    }
    for (const char* const name : {"cg", "kh", "kw"}) {
      if (const auto size = sizes[name]; size && *size < 1)
        return expected("weight", "no axis of size 0 but the first");
    }
    const auto c = sizes["c"], cg = sizes["cg"], oc = sizes["oc"], offsets = sizes["offsets"];
    const auto kh = sizes["kh"], kw = sizes["kw"];
    if (c && cg) {
      if (*c == 0 || *c % *cg != 0)
        return expected("input",
                        "its channels to be a multiple of " + number(cg) + ", those of 'weight', got " + number(c));
      if (oc && *oc % (*c / *cg) != 0)
        return expected("weight", "the output's channels to be a multiple of the " + std::to_string(*c / *cg) +
                                      " groups, got " + number(oc));
    }
    if (kh && kw && offsets) {
      const std::int64_t of_group = 2 * *kh * *kw;
      if (*offsets == 0 || *offsets % of_group != 0)
        return expected("offset", "a multiple of " + std::to_string(of_group) +
                                      " channels, two for each element of a filter, got " + number(offsets));
      if (c && *c % (*offsets / of_group) != 0)
        return expected("offset", "offsets for a number of groups that divides the " + number(c) + " channels, got " +
                                      std::to_string(*offsets / of_group));
    }
    // Kernels number the pixels of all offset groups, and the samples of an image, in 32 bits.
    if (const auto groups = c && offsets && kh && kw ? std::optional(*offsets / (2 * *kh * *kw)) : std::nullopt;
        too_many({sizes["h"], sizes["w"], groups}))
      return expected("input", "fewer than 2^31 pixels, those of each offset group counted");
    if (too_many({offsets, sizes["oh"], sizes["ow"]}))
      return expected("offset", "fewer than 2^31 elements of an image");
    OPGATE_RETURN_IF_ERROR(check_axis(attributes, sizes, "h", "kh", "oh", "rows"));
    return check_axis(attributes, sizes, "w", "kw", "ow", "columns");
  }

 private:
  static std::string number(const std::optional<std::int64_t>& size) { return std::to_string(*size); }

  static Status expected(const char* input, const std::string& text) {
    return Status::invalid("input '" + std::string(input) + "': expected " + text);
  }

  static bool too_many(std::initializer_list<std::optional<std::int64_t>> sizes) {
    std::int64_t product = 1;
    for (const auto& size : sizes) {
      if (!size || *size <= 0) return false;
      if (__builtin_mul_overflow(product, *size, &product) || product > std::numeric_limits<std::int32_t>::max()) {
        product = std::numeric_limits<std::int32_t>::max();
        product += 1;
      }
    }
    return product > std::numeric_limits<std::int32_t>::max();
  }

  static Status check_axis(const Attributes& attributes, const KnownSizes& sizes, const std::string& axis,
                           const char* kernel, const char* output, const char* what) {
    const auto size = sizes[axis], taps = sizes[kernel], out = sizes[output];
    if (!size || !taps || !out) return {};
    const std::int64_t span =
        *size + 2 * attributes.integer("pad_" + axis) - attributes.integer("dilation_" + axis) * (*taps - 1) - 1;
    const std::int64_t wanted = span < 0 ? 0 : span / attributes.integer("stride_" + axis) + 1;
    if (*out == wanted) return {};
    return expected("offset", std::to_string(wanted) + " " + what + ", those of the output, got " + number(out));
  }
};

}  // namespace opgate::ops::deform_conv2d
