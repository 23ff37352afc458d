#pragma once

#include "kernel_toolkit/op.h"
#include "points/segments.h"

OPGATE_OP(BallQuery,
          "<T: f32|f64, I: i32|i64> BallQuery(xyz: T[n,d], offset: I[b], new_xyz?: T[m=n,d], new_offset?: I[b]; "
          "max_radius: float, min_radius: float=0, nsample: int=16, with_center: bool=true, pad: {first|fill}=first, "
          "fill: int=-1) -> (idx: i32[m,nsample], count?: i32[m])",
          "Finds the first nsample points of each query's segment whose distance is in [min_radius, max_radius).")

namespace opgate::ops::ball_query {

/// Which squared distances count.
template <typename T>
struct Ball {
  T least, below;    ///< least <= d2 < below
  bool with_center;  ///< 0 counts as well, if it is less than `below`

  static Ball of(const Attributes& attributes) {
    const T least = static_cast<T>(attributes.number("min_radius")),
            below = static_cast<T>(attributes.number("max_radius"));
    return {least * least, below * below, attributes.boolean("with_center")};
  }

  OPGATE_HOST_DEVICE bool has(T d2) const { return d2 < below && (d2 >= least || (with_center && d2 == 0)); }
};

/// The `check` of both kernels.
struct Checked {
  static Status check(const Attributes& attributes, const KnownSizes& sizes) {
    const double least = attributes.number("min_radius"), most = attributes.number("max_radius");
    if (!(most >= 0)) return attributes.refuse("max_radius", "0 or more");
    if (!(least >= 0 && least <= most)) return attributes.refuse("min_radius", "0..max_radius");
    return knn_query::check_rows(attributes, sizes);
  }
};

}  // namespace opgate::ops::ball_query
