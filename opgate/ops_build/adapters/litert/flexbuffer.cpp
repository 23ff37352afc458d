#include "flexbuffer.h"

#include <bit>
#include <stdexcept>

namespace opgate::litert {
namespace {

/// The types of FlexBuffers that options have. Typed vectors have elements of one type, without a byte for each.
enum Type : std::uint8_t {
  kNull = 0,
  kInt = 1,
  kUInt = 2,
  kFloat = 3,
  kKey = 4,
  kString = 5,
  kIndirectInt = 6,
  kIndirectUInt = 7,
  kIndirectFloat = 8,
  kMap = 9,
  kVector = 10,
  kVectorInt = 11,
  kVectorUInt = 12,
  kVectorFloat = 13,
  kVectorKey = 14,
  kVectorString = 15,
  kBool = 26,
  kVectorBool = 36,
};

struct Damaged : std::runtime_error {
  Damaged() : std::runtime_error("the node's options are no FlexBuffer map") {}
};

struct TooLarge : std::runtime_error {
  TooLarge() : std::runtime_error("the node's options point to the same texts or lists too often") {}
};

/// A value at a place in the bytes. `width` is the number of bytes that it takes there; what it points to has elements
/// of `element_width` bytes.
struct Reference {
  std::size_t place = 0, width = 1, element_width = 1;
  Type type = kNull;
};

class Reader {
 public:
  explicit Reader(std::span<const std::uint8_t> bytes) : bytes_(bytes), left_(kFree + kTimes * bytes.size()) {}

  Reference root() const {
    if (bytes_.size() < 3) throw Damaged();
    const std::size_t width = checked_width(bytes_.back());
    if (bytes_.size() < 2 + width) throw Damaged();
    return reference(bytes_.size() - 2 - width, width, bytes_[bytes_.size() - 2]);
  }

  Options map(const Reference& reference) const {
    if (reference.type != kMap) throw Damaged();
    const std::size_t begin = target(reference), width = reference.element_width;
    if (begin < 3 * width) throw Damaged();
    const std::size_t keys = offset_from(begin - 3 * width, width);
    const std::size_t key_width = checked_width(number(begin - 2 * width, width));
    Options options;
    take(count(begin, width) * sizeof(OptionValue));
    for (std::size_t i = 0; i < count(begin, width); ++i) {
      const std::size_t key = offset_from(keys + i * key_width, key_width);
      options[terminated(key)] = value(element(begin, width, i));
    }
    return options;
  }

 private:
  /// Many offsets may point to the same text or list. What is made of it takes at most so many times the bytes that the
  /// options have, and what small options need.
  static constexpr std::size_t kTimes = 64, kFree = 1u << 20u;

  /// Counts the bytes of what is made of the options.
  void take(std::size_t bytes) const {
    if (bytes > left_) throw TooLarge();
    left_ -= bytes;
  }

  static std::size_t checked_width(std::uint64_t width) {
    if (width != 1 && width != 2 && width != 4 && width != 8) throw Damaged();
    return static_cast<std::size_t>(width);
  }

  static Reference reference(std::size_t place, std::size_t width, std::uint8_t packed) {
    return {place, width, std::size_t{1} << (packed & 3u), static_cast<Type>(packed >> 2u)};
  }

  void check(std::size_t place, std::size_t length) const {
    if (place > bytes_.size() || length > bytes_.size() - place) throw Damaged();
  }

  std::uint64_t number(std::size_t place, std::size_t width) const {
    check(place, width);
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < width; ++i) value |= std::uint64_t{bytes_[place + i]} << (8 * i);
    return value;
  }

  std::int64_t signed_number(std::size_t place, std::size_t width) const {
    const auto shift = static_cast<unsigned>(64 - 8 * width);
    return static_cast<std::int64_t>(number(place, width) << shift) >> shift;
  }

  double real(std::size_t place, std::size_t width) const {
    const std::uint64_t bits = number(place, width);
    if (width == 8) return std::bit_cast<double>(bits);
    if (width == 4) return std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    throw Damaged();
  }

  /// An offset counts backwards from the place where it stands.
  std::size_t offset_from(std::size_t place, std::size_t width) const {
    const std::uint64_t offset = number(place, width);
    if (offset > place) throw Damaged();
    return place - static_cast<std::size_t>(offset);
  }

  std::size_t target(const Reference& reference) const { return offset_from(reference.place, reference.width); }

  /// The number of elements of a vector, a map or a string, which stands before the first one.
  std::size_t count(std::size_t begin, std::size_t width) const {
    if (begin < width) throw Damaged();
    const std::uint64_t elements = number(begin - width, width);
    if (elements > bytes_.size()) throw Damaged();
    return static_cast<std::size_t>(elements);
  }

  std::string terminated(std::size_t begin) const {
    std::string text;
    for (std::size_t at = begin;; ++at) {
      check(at, 1);
      if (bytes_[at] == 0) return text;
      take(1);
      text += static_cast<char>(bytes_[at]);
    }
  }

  std::string text(const Reference& reference) const {
    const std::size_t begin = target(reference);
    if (reference.type == kKey) return terminated(begin);
    const std::size_t length = count(begin, reference.element_width);
    check(begin, length);
    take(length);
    return {bytes_.begin() + static_cast<std::ptrdiff_t>(begin),
            bytes_.begin() + static_cast<std::ptrdiff_t>(begin + length)};
  }

  /// An element of an untyped vector or of a map. Their types stand behind the elements.
  Reference element(std::size_t begin, std::size_t width, std::size_t index) const {
    const std::size_t types = begin + count(begin, width) * width;
    check(types, index + 1);
    return reference(begin + index * width, width, bytes_[types + index]);
  }

  OptionValue value(const Reference& reference) const {
    const auto [place, width, element_width, type] = reference;
    switch (type) {
      case kInt: return signed_number(place, width);
      case kUInt: return static_cast<std::int64_t>(number(place, width));
      case kBool: return number(place, width) != 0;
      case kFloat: return real(place, width);
      case kIndirectInt: return signed_number(target(reference), element_width);
      case kIndirectUInt: return static_cast<std::int64_t>(number(target(reference), element_width));
      case kIndirectFloat: return real(target(reference), element_width);
      case kKey:
      case kString: return text(reference);
      case kVector: return untyped(reference);
      case kVectorInt:
      case kVectorUInt:
      case kVectorBool:
      case kVectorFloat:
      case kVectorKey:
      case kVectorString: return typed(reference);
      default: return std::monostate();
    }
  }

  OptionValue typed(const Reference& reference) const {
    constexpr std::uint8_t kElementOf = kVectorInt - kInt;
    const Type type = reference.type == kVectorBool ? kBool : static_cast<Type>(reference.type - kElementOf);
    const std::size_t begin = target(reference), width = reference.element_width;
    std::vector<OptionValue> elements;
    take(count(begin, width) * sizeof(OptionValue));
    for (std::size_t i = 0; i < count(begin, width); ++i)
      elements.push_back(value({begin + i * width, width, 1, type}));
    return joined(elements);
  }

  OptionValue untyped(const Reference& reference) const {
    const std::size_t begin = target(reference), width = reference.element_width;
    std::vector<OptionValue> elements;
    take(count(begin, width) * sizeof(OptionValue));
    for (std::size_t i = 0; i < count(begin, width); ++i) {
      const Reference found = element(begin, width, i);
      const bool nested = found.type == kVector || found.type == kMap || found.type >= kVectorBool;
      elements.push_back(nested ? std::monostate() : value(found));
    }
    return joined(elements);
  }

  static OptionValue joined(const std::vector<OptionValue>& elements) {
    if (elements.empty()) return EmptyList();
    if (auto list = list_of<std::int64_t>(elements)) return *list;
    if (auto list = list_of<bool>(elements)) return *list;
    if (auto list = list_of<std::string>(elements)) return *list;
    if (auto list = list_of<double>(elements)) return *list;
    return std::monostate();
  }

  /// nullopt if an element is of another kind.
  template <typename Element>
  static std::optional<std::vector<Element>> list_of(const std::vector<OptionValue>& elements) {
    std::vector<Element> list;
    for (const OptionValue& element : elements) {
      [[maybe_unused]] const auto* integer = std::get_if<std::int64_t>(&element);
      if (const auto* held = std::get_if<Element>(&element)) {
        list.push_back(*held);
      } else if constexpr (std::is_same_v<Element, double>) {
        if (!integer) return std::nullopt;
        list.push_back(static_cast<double>(*integer));
      } else {
        return std::nullopt;
      }
    }
    return list;
  }

  std::span<const std::uint8_t> bytes_;
  mutable std::size_t left_;  // the bytes that take() may still count
};

}  // namespace

Status read_options(std::span<const std::uint8_t> bytes, Options& options) {
  options.clear();
  if (bytes.empty()) return {};
  try {
    const Reader reader(bytes);
    options = reader.map(reader.root());
    return {};
  } catch (const std::runtime_error& error) {
    return Status::invalid(error.what());
  }
}

}  // namespace opgate::litert
