// Reads PLY files, as text or little-endian.
#include <array>
#include <charconv>
#include <limits>
#include <optional>
#include <utility>

#include "cloud.h"

namespace opgate::ops::decode_points {
namespace {

enum class Type { i8, u8, i16, u16, i32, u32, f32, f64 };

constexpr std::array<std::pair<std::string_view, Type>, 16> kTypes{{{"char", Type::i8},
                                                                    {"uchar", Type::u8},
                                                                    {"short", Type::i16},
                                                                    {"ushort", Type::u16},
                                                                    {"int", Type::i32},
                                                                    {"uint", Type::u32},
                                                                    {"float", Type::f32},
                                                                    {"double", Type::f64},
                                                                    {"int8", Type::i8},
                                                                    {"uint8", Type::u8},
                                                                    {"int16", Type::i16},
                                                                    {"uint16", Type::u16},
                                                                    {"int32", Type::i32},
                                                                    {"uint32", Type::u32},
                                                                    {"float32", Type::f32},
                                                                    {"float64", Type::f64}}};

std::size_t size_of(Type type) {
  constexpr std::array<std::size_t, 8> kSizes{1, 1, 2, 2, 4, 4, 4, 8};
  return kSizes[static_cast<std::size_t>(type)];
}

double value_at(Type type, const std::uint8_t* from) {
  switch (type) {
    case Type::i8: return static_cast<double>(little_endian<std::int8_t>(from));
    case Type::u8: return static_cast<double>(*from);
    case Type::i16: return static_cast<double>(little_endian<std::int16_t>(from));
    case Type::u16: return static_cast<double>(little_endian<std::uint16_t>(from));
    case Type::i32: return static_cast<double>(little_endian<std::int32_t>(from));
    case Type::u32: return static_cast<double>(little_endian<std::uint32_t>(from));
    case Type::f32: return static_cast<double>(little_endian<float>(from));
    case Type::f64: return little_endian<double>(from);
  }
  return 0;
}

constexpr std::string_view kSpace = " \t\r\n\v\f";

/// Takes the next word from the front of `text`, which is empty if there is none.
std::string_view take_word(std::string_view& text) {
  text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
  const std::string_view word = text.substr(0, text.find_first_of(kSpace));
  text.remove_prefix(word.size());
  return word;
}

/// The element 'vertex', as the header describes it.
struct Vertices {
  bool text = false;
  std::uint64_t count = 0;
  std::size_t properties = 0, bytes = 0;
  std::array<std::optional<std::size_t>, 3> index, offset;  ///< of x, y and z
  std::array<Type, 3> type{};
};

/// Reads the header line by line.
class HeaderReader {
 public:
  /// Takes the header from the front of `rest`.
  CloudStatus read(std::string_view& rest) {
    while (!rest.empty()) {
      const std::size_t end = rest.find('\n');
      if (end == std::string_view::npos) return CloudStatus::corrupt;
      std::string_view line = rest.substr(0, end);
      rest.remove_prefix(end + 1);
      const std::string_view word = take_word(line);
      if (word == "end_header") return finish();
      if (const CloudStatus status = read_line(word, line); status != CloudStatus::good) return status;
    }
    return CloudStatus::corrupt;
  }

  const Vertices& vertices() const { return vertices_; }

 private:
  enum class Element { none, vertex, behind };

  CloudStatus read_line(std::string_view word, std::string_view line) {
    if (word == "format") return read_format(take_word(line));
    if (word == "element") return read_element(line);
    if (word == "property") return read_property(line);
    return word == "ply" || word == "comment" || word == "obj_info" ? CloudStatus::good : CloudStatus::corrupt;
  }

  CloudStatus read_format(std::string_view format) {
    vertices_.text = format == "ascii";
    known_format_ = vertices_.text || format == "binary_little_endian";
    return known_format_ ? CloudStatus::good : CloudStatus::unsupported;
  }

  CloudStatus read_element(std::string_view line) {
    const std::string_view name = take_word(line), count = take_word(line);
    if (element_ == Element::none) {
      // Elements before the vertices would have to be passed over.
      if (name != "vertex") return CloudStatus::unsupported;
      element_ = Element::vertex;
      const auto [end, error] = std::from_chars(count.data(), count.data() + count.size(), vertices_.count);
      return error == std::errc() && end == count.data() + count.size() ? CloudStatus::good : CloudStatus::corrupt;
    }
    element_ = Element::behind;
    return CloudStatus::good;
  }

  CloudStatus read_property(std::string_view line) {
    if (element_ == Element::none) return CloudStatus::corrupt;
    if (element_ == Element::behind) return CloudStatus::good;
    const std::string_view type_name = take_word(line), name = take_word(line);
    for (const auto& [known, type] : kTypes) {
      if (known != type_name) continue;
      if (const std::size_t axis = std::string_view("xyz").find(name); name.size() == 1 && axis < 3) {
        vertices_.index[axis] = vertices_.properties;
        vertices_.offset[axis] = vertices_.bytes;
        vertices_.type[axis] = type;
      }
      ++vertices_.properties;
      vertices_.bytes += size_of(type);
      return CloudStatus::good;
    }
    return type_name == "list" ? CloudStatus::unsupported : CloudStatus::corrupt;
  }

  CloudStatus finish() const {
    if (!known_format_ || element_ == Element::none) return CloudStatus::corrupt;
    for (const auto& index : vertices_.index) {
      if (!index) return CloudStatus::unsupported;
    }
    return CloudStatus::good;
  }

  Vertices vertices_;
  Element element_ = Element::none;
  bool known_format_ = false;
};

/// Whether a number that no double is near has a magnitude of more than 1: whether the place of its first digit that
/// isn't 0, counted from the decimal point, is before it.
bool is_large(std::string_view number) {
  const std::size_t end = number.find_first_of("eE");
  const std::string_view digits = number.substr(0, end);
  std::int64_t exponent = 0;
  if (end != std::string_view::npos) {
    std::string_view text = number.substr(end + 1);
    if (text.starts_with('+')) text.remove_prefix(1);
    if (std::from_chars(text.data(), text.data() + text.size(), exponent).ec == std::errc::result_out_of_range)
      return !text.starts_with('-');
  }
  const std::size_t first = digits.find_first_of("123456789"), point = std::min(digits.find('.'), digits.size());
  return static_cast<std::int64_t>(point) - static_cast<std::int64_t>(first) + exponent > 0;
}

/// Reads a number, which may have a plus sign. One that is too small for a double is 0, and one that is too large is
/// infinite.
bool read_number(std::string_view word, double& value) {
  if (word.starts_with('+')) word.remove_prefix(1);
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error == std::errc::result_out_of_range) value = is_large(word) ? std::numeric_limits<double>::infinity() : 0;
  const bool number = error == std::errc() || error == std::errc::result_out_of_range;
  return number && end == word.data() + word.size();
}

CloudStatus read_text(const Vertices& vertices, std::string_view body, Cloud& cloud) {
  // Each number takes a character and one between it and the next.
  if (vertices.count > (body.size() + 1) / 2 / vertices.properties) return CloudStatus::corrupt;
  cloud.reserve(3 * vertices.count);
  for (std::uint64_t row = 0; row < vertices.count; ++row) {
    std::array<double, 3> point{};
    for (std::size_t index = 0; index < vertices.properties; ++index) {
      const std::string_view word = take_word(body);
      if (word.empty()) return CloudStatus::corrupt;
      for (std::size_t axis = 0; axis < 3; ++axis) {
        if (vertices.index[axis] == index && !read_number(word, point[axis])) return CloudStatus::corrupt;
      }
    }
    for (const double value : point) {
      if (!append(cloud, value)) return CloudStatus::not_finite;
    }
  }
  return CloudStatus::good;
}

CloudStatus read_binary(const Vertices& vertices, Bytes body, Cloud& cloud) {
  if (vertices.count > body.size() / vertices.bytes) return CloudStatus::corrupt;
  cloud.reserve(3 * vertices.count);
  for (std::uint64_t row = 0; row < vertices.count; ++row) {
    const std::uint8_t* vertex = body.data() + row * vertices.bytes;
    for (std::size_t axis = 0; axis < 3; ++axis) {
      if (!append(cloud, value_at(vertices.type[axis], vertex + *vertices.offset[axis])))
        return CloudStatus::not_finite;
    }
  }
  return CloudStatus::good;
}

}  // namespace

CloudStatus read_ply(Bytes file, std::uint64_t max_points, Cloud& cloud) {
  std::string_view rest(reinterpret_cast<const char*>(file.data()), file.size());
  HeaderReader reader;
  if (const CloudStatus status = reader.read(rest); status != CloudStatus::good) return status;
  const Vertices& vertices = reader.vertices();
  if (const CloudStatus status = check_count(vertices.count, max_points); status != CloudStatus::good) return status;
  if (vertices.text) return read_text(vertices, rest, cloud);
  return read_binary(vertices, file.last(rest.size()), cloud);
}

}  // namespace opgate::ops::decode_points
