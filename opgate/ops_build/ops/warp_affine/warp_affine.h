#pragma once

#include <cmath>
#include <string>

#include "images/normalization.h"
#include "images/sides.h"
#include "kernel_toolkit/op.h"

OPGATE_OP(WarpAffine,
          "<T: f32|f64> WarpAffine(image: u8[n,h,w,3], matrix: T[r,2,3], index?: i32[r]; height: int, width: int, "
          "maps_to: {crop|image}=crop, border: int[3]=[0,0,0], mean: float[3]=[0,0,0], std: float[3]=[1,1,1]) "
          "-> (tensor: f32[r,3,height,width])",
          "Cuts turned and scaled crops out of pictures, normalizes them and writes them as planes.")

namespace opgate::ops::warp_affine {

inline constexpr std::int64_t kMaxSide = 1 << 24;

struct Settings {
  int height, width;  ///< of a crop
  bool maps_to_crop;
  std::uint8_t border[3];
  images::Normalization normalization;

  static Settings of(const Attributes& attributes) {
    const std::vector<std::int64_t>& border = attributes.integers("border");
    return {static_cast<int>(attributes.integer("height")),
            static_cast<int>(attributes.integer("width")),
            attributes.text("maps_to") == "crop",
            {static_cast<std::uint8_t>(border[0]), static_cast<std::uint8_t>(border[1]),
             static_cast<std::uint8_t>(border[2])},
            images::normalization_of(attributes)};
  }
};

/// From a pixel x, y of a crop to the place in the picture: (a x + b y + c, d x + e y + f).
struct Map {
  double a, b, c, d, e, f;

  /// `matrix` maps in the other direction if `inverted`. A matrix without an inverse gives places outside the picture.
  template <typename T>
  OPGATE_HOST_DEVICE static Map of(const T* matrix, bool inverted) {
    const double a = matrix[0], b = matrix[1], c = matrix[2], d = matrix[3], e = matrix[4], f = matrix[5];
    if (!inverted) return {a, b, c, d, e, f};
    const double determinant = a * e - b * d;
    const double s = determinant == 0 ? static_cast<double>(NAN) : 1 / determinant;
    const Map map{e * s, -b * s, 0, -d * s, a * s, 0};
    return {map.a, map.b, -(map.a * c + map.b * f), map.d, map.e, -(map.d * c + map.e * f)};
  }
};

/// A place along an axis between -2 and `size`. Two pixels around such an end are both outside. A NaN is outside.
OPGATE_HOST_DEVICE inline double within(double at, double size) {
  const double least = at >= -2 ? at : -2;
  return least <= size ? least : size;
}

/// The pixel before a place, which is at least -2.
OPGATE_HOST_DEVICE inline int pixel_before(double at) { return static_cast<int>(at + 2) - 2; }

/// The `check` of both kernels.
struct Checked {
  static Status check(const Attributes& attributes, const KnownSizes& sizes) {
    for (const char* name : {"height", "width"}) {
      if (attributes.integer(name) > kMaxSide) return attributes.refuse(name, "at most " + std::to_string(kMaxSide));
    }
    for (const std::int64_t value : attributes.integers("border")) {
      if (value < 0 || value > 255) return attributes.refuse("border", "numbers in 0..255");
    }
    OPGATE_RETURN_IF_ERROR(images::check_sides(sizes, "image", kMaxSide));
    return images::check_normalization(attributes);
  }
};

}  // namespace opgate::ops::warp_affine
