// Resizes pictures of bytes as Pillow and OpenCV do.
#pragma once

#include "filter_taps.h"
#include "placement.h"
#include "upright_rows.h"

namespace opgate::ops::image_preprocess {

/// Resizes the picture whose rows are in `source` with any filter but `fast`, and writes the part of it that `columns`
/// and `rows` say: u8 [rows.count, columns.count, channels]. `out` has room for UprightRows::kSlack bytes more.
codecs::DecodeStatus exact_resize(UprightRows& source, Filter filter, const Part& columns, const Part& rows,
                                  std::uint8_t* out);

}  // namespace opgate::ops::image_preprocess
