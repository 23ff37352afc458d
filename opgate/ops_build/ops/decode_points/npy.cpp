// Reads NumPy's files of f32 or f64 [n, 3 or more].
#include <charconv>
#include <optional>

#include "cloud.h"

namespace opgate::ops::decode_points {
namespace {

/// What the header of a file says.
struct Npy {
  bool wide = false, by_column = false;
  std::uint64_t rows = 0, columns = 0;
};

/// The text after `'key':` in the header, without the spaces before it.
std::optional<std::string_view> value_of(std::string_view header, std::string_view key) {
  std::size_t at = header.find(key);
  if (at == std::string_view::npos) return std::nullopt;
  at = header.find_first_not_of(' ', at + key.size());
  if (at == std::string_view::npos || header[at] != ':') return std::nullopt;
  at = header.find_first_not_of(' ', at + 1);
  if (at == std::string_view::npos) return std::nullopt;
  return header.substr(at);
}

/// Takes a number and the comma or bracket behind it from the front of `text`.
std::optional<std::uint64_t> take_size(std::string_view& text, char behind) {
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  std::uint64_t size = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size);
  if (error != std::errc() || end == text.data() + text.size() || *end != behind) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()) + 1);
  return size;
}

CloudStatus read_header(std::string_view header, Npy& npy) {
  const auto type = value_of(header, "'descr'"), order = value_of(header, "'fortran_order'");
  auto shape = value_of(header, "'shape'");
  if (!type || !order || !shape) return CloudStatus::corrupt;
  npy.wide = type->starts_with("'<f8'");
  if (!npy.wide && !type->starts_with("'<f4'")) return CloudStatus::unsupported;
  npy.by_column = order->starts_with("True");
  if (!npy.by_column && !order->starts_with("False")) return CloudStatus::corrupt;
  if (!shape->starts_with("(")) return CloudStatus::corrupt;
  shape->remove_prefix(1);
  const auto rows = take_size(*shape, ',');
  if (!rows) return CloudStatus::unsupported;
  const auto columns = take_size(*shape, ')');
  if (!columns || *columns < 3) return CloudStatus::unsupported;
  npy.rows = *rows;
  npy.columns = *columns;
  return CloudStatus::good;
}

}  // namespace

CloudStatus read_npy(Bytes file, std::uint64_t max_points, Cloud& cloud) {
  if (file.size() < 12) return CloudStatus::corrupt;
  if (file[6] < 1 || file[6] > 3) return CloudStatus::unsupported;
  const std::size_t begin = file[6] == 1 ? 10 : 12;
  const std::size_t length =
      file[6] == 1 ? little_endian<std::uint16_t>(file.data() + 8) : little_endian<std::uint32_t>(file.data() + 8);
  if (length > file.size() - begin) return CloudStatus::corrupt;
  Npy npy;
  const std::string_view header(reinterpret_cast<const char*>(file.data()) + begin, length);
  if (const CloudStatus status = read_header(header, npy); status != CloudStatus::good) return status;
  if (const CloudStatus status = check_count(npy.rows, max_points); status != CloudStatus::good) return status;
  const Bytes body = file.subspan(begin + length);
  const std::size_t size = npy.wide ? 8 : 4;
  if (npy.columns > body.size() / size / npy.rows) return CloudStatus::corrupt;
  cloud.reserve(3 * npy.rows);
  const std::uint64_t row_step = npy.by_column ? 1 : npy.columns, column_step = npy.by_column ? npy.rows : 1;
  for (std::uint64_t row = 0; row < npy.rows; ++row) {
    for (std::uint64_t axis = 0; axis < 3; ++axis) {
      const std::uint8_t* from = body.data() + size * (row * row_step + axis * column_step);
      const double value = npy.wide ? little_endian<double>(from) : static_cast<double>(little_endian<float>(from));
      if (!append(cloud, value)) return CloudStatus::not_finite;
    }
  }
  return CloudStatus::good;
}

}  // namespace opgate::ops::decode_points
