#include "db_postprocess.h"

#include "rectangle.h"
#include "regions.h"

namespace opgate::ops::db_postprocess {
namespace {

struct Corner {
  double x, y;
};

/// One map of the batch.
class Map {
 public:
  Map(const float* values, std::int64_t height, std::int64_t width, const Settings& settings)
      : height_(height), width_(width), settings_(settings), sums_(static_cast<std::size_t>(height * (width + 1))) {
    std::vector<std::uint8_t> above(static_cast<std::size_t>(width)), row(above), grown(above);
    for (std::int64_t y = 0; y < height; ++y) {
      add_sums(values + y * width, y);
      for (std::int64_t x = 0; x < width; ++x) row[x] = values[y * width + x] > settings.threshold;
      if (settings.dilation) {
        for (std::int64_t x = 0; x < width; ++x) grown[x] = row[x] | above[x];
        for (std::int64_t x = width - 1; x > 0; --x) grown[x] |= grown[x - 1];
      }
      regions_.add_row(static_cast<std::int32_t>(y), (settings.dilation ? grown : row).data(),
                       static_cast<std::int32_t>(width));
      std::swap(above, row);
    }
  }

  /// Calls use(corners, score) for each region that is text, until it returns false.
  template <typename Use>
  void for_each_text(Use use) {
    const double least = static_cast<double>(settings_.min_size);
    regions_.for_each([&](std::span<const Run> runs) {
      const Rectangle rectangle = least_rectangle(hull_of(runs));
      const double w = rectangle.width(), h = rectangle.height();
      if (!(std::min(w, h) >= least)) return true;  // also where a region is a line, and has no rectangle
      const auto score = static_cast<float>(mean(rectangle));
      const double distance = w * h * settings_.unclip_ratio / (2 * (w + h));
      if (score < settings_.box_threshold || std::min(w, h) + 2 * distance < least + 2) return true;
      return use(corners_of(rectangle, distance), score);
    });
  }

 private:
  /// Adds the sums of the probabilities before each pixel of a row.
  void add_sums(const float* values, std::int64_t y) {
    double* const sums = sums_.data() + y * (width_ + 1);
    double sum = 0;
    for (std::int64_t x = 0; x < width_; ++x) {
      sums[x] = sum;
      sum += values[x] > 0 ? std::min(values[x], 1.0f) : 0.0f;  // a NaN is 0
    }
    sums[width_] = sum;
  }

  /// The mean probability of the pixels in a rectangle. It has some, the corners of the hull.
  double mean(const Rectangle& rectangle) const {
    const auto [top, bottom] = rectangle.rows();
    const auto first = std::max<std::int64_t>(0, static_cast<std::int64_t>(std::floor(top)) - 1);
    const auto last = std::min(height_ - 1, static_cast<std::int64_t>(std::ceil(bottom)) + 1);
    double sum = 0;
    std::int64_t count = 0;
    for (std::int64_t y = first; y <= last; ++y) {
      const auto [left, right] = rectangle.columns(y, width_);
      if (left > right) continue;
      const double* const sums = sums_.data() + y * (width_ + 1);
      sum += sums[right + 1] - sums[left];
      count += right + 1 - left;
    }
    return sum / static_cast<double>(count);
  }

  /// The corners of a rectangle that is grown by a distance on each side, clockwise.
  static std::array<Corner, 4> corners_of(const Rectangle& rectangle, double distance) {
    const double more = distance * rectangle.length(), scale = 1 / rectangle.length_squared();
    const double p[] = {static_cast<double>(rectangle.p_least) - more, static_cast<double>(rectangle.p_most) + more};
    const double q[] = {static_cast<double>(rectangle.q_least) - more, static_cast<double>(rectangle.q_most) + more};
    const auto dx = static_cast<double>(rectangle.dx), dy = static_cast<double>(rectangle.dy);
    const auto corner = [&](int i, int j) {
      return Corner{(dx * p[i] - dy * q[j]) * scale, (dy * p[i] + dx * q[j]) * scale};
    };
    return {corner(0, 0), corner(1, 0), corner(1, 1), corner(0, 1)};
  }

  std::int64_t height_, width_;
  const Settings& settings_;
  std::vector<double> sums_;  ///< [height, width + 1]
  Regions regions_;
};

/// Orders corners: the upper and the lower one of the two at the left are the first and the last. Of two that are
/// equally far left, the upper one counts as farther left, also where they differ by a rounding.
void order(std::array<Corner, 4>& corners) {
  const auto sort = [&](auto key, std::size_t first, std::size_t count) {
    for (std::size_t i = first; i < first + count; ++i) {
      for (std::size_t k = i; k > first && key(corners[k]) < key(corners[k - 1]); --k)
        std::swap(corners[k], corners[k - 1]);
    }
  };
  const auto height = [](const Corner& corner) { return corner.y; };
  sort([](const Corner& corner) { return corner.x + corner.y / 4096; }, 0, 4);
  sort(height, 0, 2);
  sort(height, 2, 2);
  corners = {corners[0], corners[2], corners[3], corners[1]};
}

/// Writes corners in pixels of the source picture, with the geometry from ImagePreprocess, or of the map without one.
void write_quad(std::array<Corner, 4> corners, const float* geometry, float* out) {
  if (geometry) {
    for (Corner& corner : corners) {
      corner.x = (corner.x - geometry[2]) * geometry[0];
      corner.y = (corner.y - geometry[3]) * geometry[1];
    }
  }
  order(corners);
  const auto held = [](double value, double most) { return value < 0 ? 0 : value > most ? most : value; };
  for (const Corner& corner : corners) {
    *out++ = static_cast<float>(geometry ? held(corner.x, geometry[4]) : corner.x);
    *out++ = static_cast<float>(geometry ? held(corner.y, geometry[5]) : corner.y);
  }
}

struct Cpu : Checked {
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const Settings settings = Settings::of(attributes);
    const std::int64_t h = in.size("h"), w = in.size("w"), most = settings.max_detections;
    const auto* const maps = in["probabilities"].data<float>();
    const auto* const geometry = data_or_null<float>(in, "geometry");
    const auto* const thresholds = data_or_null<float>(in, "thresholds");
    const auto* const box_thresholds = data_or_null<float>(in, "box_thresholds");
    auto* const quads = out["quads"].data<float>();
    auto* const scores = out["scores"].data<float>();
    auto* const counts = out["count"].data<std::int32_t>();
    context.parallel_for(in.size("n"), 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) {
        Settings own = settings;
        if (thresholds) own.threshold = thresholds[i];
        if (box_thresholds) own.box_threshold = box_thresholds[i];
        std::int64_t count = 0;
        const auto write = [&](const std::array<Corner, 4>& corners, float score) {
          const std::int64_t at = i * most + count++;
          write_quad(corners, geometry ? geometry + 6 * i : nullptr, quads + 8 * at);
          scores[at] = score;
          return count < most;
        };
        if (most > 0 && w > 0) Map(maps + i * h * w, h, w, own).for_each_text(write);
        std::fill(quads + 8 * (i * most + count), quads + 8 * (i + 1) * most, 0.0f);
        std::fill(scores + i * most + count, scores + (i + 1) * most, 0.0f);
        counts[i] = static_cast<std::int32_t>(count);
      }
    });
    return {};
  }
};

}  // namespace
}  // namespace opgate::ops::db_postprocess

OPGATE_CPU_KERNEL(DBPostprocess, opgate::ops::db_postprocess::Cpu)
