#include "json_tensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <type_traits>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace opgate::json {
namespace {

// Where the next 16 bytes are of a kind: bit i stands for byte i.
struct Block {
  static constexpr int kBytes = 16;
  uint32_t special;  // a bracket, a brace or a quote
  uint32_t comma;
};

// The number of bits that are set among the lower 16.
int count_bits(uint32_t bits) {
  static constexpr auto kCounts = [] {
    std::array<uint8_t, 256> counts{};
    for (unsigned i = 0; i < counts.size(); ++i) counts[i] = static_cast<uint8_t>(std::popcount(i));
    return counts;
  }();
  return kCounts[bits & 255] + kCounts[(bits >> 8) & 255];
}

#ifdef __SSE2__
struct Vectors {
  __m128i special;
  __m128i comma;
};

Vectors compare(const char* text) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(text));
  // A bracket differs from the brace of its side in bit 5 only.
  const __m128i folded = _mm_or_si128(bytes, _mm_set1_epi8(0x20));
  const __m128i brackets =
      _mm_or_si128(_mm_cmpeq_epi8(folded, _mm_set1_epi8('{')), _mm_cmpeq_epi8(folded, _mm_set1_epi8('}')));
  return {_mm_or_si128(brackets, _mm_cmpeq_epi8(bytes, _mm_set1_epi8('"'))), _mm_cmpeq_epi8(bytes, _mm_set1_epi8(','))};
}

Block classify(const char* text) {
  const Vectors vectors = compare(text);
  return {static_cast<uint32_t>(_mm_movemask_epi8(vectors.special)),
          static_cast<uint32_t>(_mm_movemask_epi8(vectors.comma))};
}

// Skips whole blocks that have nothing special, and counts their commas.
const char* skip_plain(const char* p, const char* end, int64_t& commas) {
  while (end - p >= Block::kBytes) {
    __m128i counts = _mm_setzero_si128();  // of each byte of a block
    bool special = false;
    for (int i = 0; i < 255 && end - p >= Block::kBytes; ++i, p += Block::kBytes) {
      const Vectors vectors = compare(p);
      special = _mm_movemask_epi8(vectors.special) != 0;
      if (special) break;
      counts = _mm_sub_epi8(counts, vectors.comma);
    }
    const __m128i sums = _mm_sad_epu8(counts, _mm_setzero_si128());
    commas += _mm_cvtsi128_si32(sums) + _mm_extract_epi16(sums, 4);
    if (special) break;
  }
  return p;
}
#else
Block classify(const char* text) {
  Block block{};
  for (int i = 0; i < Block::kBytes; ++i) {
    const char c = text[i];
    const uint32_t bit = 1u << i;
    if (c == '[' || c == ']' || c == '{' || c == '}' || c == '"') block.special |= bit;
    if (c == ',') block.comma |= bit;
  }
  return block;
}

const char* skip_plain(const char* p, const char* end, int64_t& commas) {
  for (; end - p >= Block::kBytes; p += Block::kBytes) {
    const Block block = classify(p);
    if (block.special != 0) break;
    commas += count_bits(block.comma);
  }
  return p;
}
#endif

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }
bool is_digit(char c) { return static_cast<unsigned char>(c - '0') < 10; }

const char* skip_spaces(const char* p, const char* end) {
  while (p != end && is_space(*p)) ++p;
  return p;
}

// Returns the place behind the string that begins at `p`, or null if it doesn't end.
const char* skip_string(const char* p, const char* end) {
  for (++p; p < end; ++p) {
    p = static_cast<const char*>(std::memchr(p, '"', static_cast<size_t>(end - p)));
    if (p == nullptr) return nullptr;
    const char* before = p;
    while (before[-1] == '\\') --before;  // the quote at the beginning ends this loop
    if ((p - before) % 2 == 0) return p + 1;
  }
  return nullptr;
}

// Finds the end of the object at `text[at]`. No type takes an object, so only its end matters.
Failure skip_object(std::string_view text, size_t at, size_t max_depth, size_t& end) {
  size_t depth = 0;
  for (size_t i = at; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') {
      const char* after = skip_string(text.data() + i, text.data() + text.size());
      if (after == nullptr) break;
      i = static_cast<size_t>(after - text.data()) - 1;
    } else if (c == '{' || c == '[') {
      if (depth++ == max_depth) return {Problem::kDepth, i, i + 1};
    } else if ((c == '}' || c == ']') && --depth == 0) {
      end = i + 1;
      return {};
    }
  }
  return {Problem::kSyntax, at, text.size()};
}

// Finds the end and the shape of a list. The list begins at `text[at]`.
class ListScan {
 public:
  ListScan(std::string_view text, size_t at, size_t max_depth) : text_(text), begin_(at), max_depth_(max_depth) {}

  Failure run(Value& value) {
    const char* const base = text_.data();
    const char* const end = base + text_.size();
    const char* p = base + begin_;
    for (;;) {
      if (!levels_.empty()) p = skip_plain(p, end, levels_.back().commas);
      std::array<char, Block::kBytes> tail;
      const bool last = end - p < Block::kBytes;
      if (last) {
        tail.fill(' ');
        std::memcpy(tail.data(), p, static_cast<size_t>(end - p));
      }
      const Block block = classify(last ? tail.data() : p);
      if (block.special == 0) return {Problem::kSyntax, begin_, text_.size()};
      const int length = std::countr_zero(block.special);
      if (length > 0) levels_.back().commas += count_bits(block.comma & ((1u << length) - 1));
      p += length;
      const auto here = static_cast<size_t>(p - base);
      switch (*p) {
        case '"':
          p = skip_string(p, end);
          if (p == nullptr) return {Problem::kSyntax, here, text_.size()};
          break;
        case '{': {
          size_t after = 0;
          if (Failure failure = skip_object(text_, here, max_depth_ - levels_.size(), after)) return failure;
          p = base + after;
          break;
        }
        case '[':
          if (levels_.size() == max_depth_) return {Problem::kDepth, here, here + 1};
          levels_.push_back({});
          if (dims_.size() < levels_.size()) dims_.push_back(-1);
          ++p;
          break;
        case '}': return {Problem::kSyntax, here, here + 1};
        default:
          close(p++);
          if (levels_.empty()) {
            value.begin = begin_;
            value.end = static_cast<size_t>(p - base);
            value.shape = dims_;
            value.even = even_;
            return {};
          }
      }
    }
  }

 private:
  struct Level {
    int64_t commas = 0;
    int64_t lists = 0;  // that ended in this one
  };

  // Ends a list at `p`.
  void close(const char* p) {
    const Level level = levels_.back();
    do --p;
    while (is_space(*p));
    const int64_t count = *p == '[' ? 0 : level.commas + 1;
    int64_t& dim = dims_[levels_.size() - 1];
    if ((dim >= 0 && dim != count) || (level.lists != 0 && level.lists != count)) even_ = false;
    dim = count;
    // Other elements than lists must all be at one depth.
    if (level.lists == 0 && count != 0) {
      if (leaf_ != 0 && leaf_ != levels_.size()) even_ = false;
      leaf_ = levels_.size();
    }
    levels_.pop_back();
    if (!levels_.empty()) ++levels_.back().lists;
  }

  std::string_view text_;
  size_t begin_;
  size_t max_depth_;
  std::vector<Level> levels_;
  std::vector<int64_t> dims_;
  size_t leaf_ = 0;
  bool even_ = true;
};

// Finds the end of the value at `text[at]`.
Failure measure(std::string_view text, size_t at, size_t max_depth, Value& value) {
  value.begin = at;
  const char c = text[at];
  if (c == '[') return ListScan(text, at, max_depth).run(value);
  if (c == '{') return skip_object(text, at, max_depth, value.end);
  if (c == '"') {
    const char* after = skip_string(text.data() + at, text.data() + text.size());
    if (after == nullptr) return {Problem::kSyntax, at, text.size()};
    value.end = static_cast<size_t>(after - text.data());
    return {};
  }
  size_t end = at;
  while (end < text.size() && !is_space(text[end]) && text[end] != ',' && text[end] != '}' && text[end] != ']') ++end;
  value.end = end;
  return end == at ? Failure{Problem::kSyntax, at, at + 1} : Failure{};
}

// Whether a colon at this place stands before a value to cut out.
bool wanted(Place place, const std::string& nesting, bool in_inputs, std::string_view key) {
  if (place == Place::kMembers) return nesting == "{";
  return nesting == "{[{" && in_inputs && key == "data";
}

}  // namespace

Split split(std::string_view text, Place place, const Limits& limits) {
  Split result;
  std::string nesting;
  std::string_view key;
  bool in_inputs = false;
  size_t kept = 0;  // the text before this place is in `rest`, or has been cut out
  size_t at = 0;
  const auto keep = [&](size_t end) {
    if (result.rest.size() + (end - kept) > limits.rest) {
      result.failure = {Problem::kRest, 0, 0};
      return false;
    }
    result.rest.append(text.substr(kept, end - kept));
    kept = end;
    return true;
  };
  while (at < text.size()) {
    if (at - kept > limits.rest) break;  // `keep` fails below
    const char c = text[at];
    if (c == '"') {
      const char* after = skip_string(text.data() + at, text.data() + text.size());
      if (after == nullptr) break;  // the parser of the rest says what is wrong
      const size_t end = static_cast<size_t>(after - text.data());
      key = text.substr(at + 1, end - at - 2);
      at = end;
      continue;
    }
    ++at;
    if (c == '{' || c == '[') {
      if (nesting.size() == limits.depth) {
        result.failure = {Problem::kDepth, at - 1, at};
        return result;
      }
      nesting.push_back(c);
    } else if (c == '}' || c == ']') {
      if (!nesting.empty()) nesting.pop_back();
    } else if (c == ':') {
      if (nesting == "{") in_inputs = key == "inputs";
      if (!wanted(place, nesting, in_inputs, key)) continue;
      at = static_cast<size_t>(skip_spaces(text.data() + at, text.data() + text.size()) - text.data());
      if (at == text.size()) break;
      if (result.values.size() == limits.values) {
        result.failure = {Problem::kCount, at, at};
        return result;
      }
      if (!keep(at)) return result;
      Value value;
      result.failure = measure(text, at, limits.depth - nesting.size(), value);
      if (result.failure) return result;
      result.rest += std::to_string(result.values.size());
      result.rest += ' ';  // what follows must not become a part of the number
      kept = at = value.end;
      result.values.push_back(std::move(value));
    }
  }
  keep(text.size());
  return result;
}

Elements::Step Elements::next() {
  for (;;) {
    at_ = skip_spaces(at_, end_);
    if (at_ == end_) return depth_ == 0 && !expects_ ? Step::kEnd : Step::kSyntax;
    switch (*at_) {
      case '[':
        if (!expects_) return Step::kSyntax;
        ++depth_;
        opened_ = true;
        break;
      case ']':
        if ((expects_ && !opened_) || depth_ == 0) return Step::kSyntax;
        --depth_;
        expects_ = opened_ = false;
        break;
      case ',':
        if (expects_ || depth_ == 0) return Step::kSyntax;
        expects_ = true;
        opened_ = false;
        break;
      default: return expects_ ? Step::kElement : Step::kSyntax;
    }
    ++at_;
  }
}

const char* end_of_element(const char* p, const char* end) {
  if (*p == '"') {
    const char* after = skip_string(p, end);
    return after == nullptr ? end : after;
  }
  const char* after = p + 1;
  while (after != end && !is_space(*after) && *after != ',' && *after != ']' && *after != '}') ++after;
  return after;
}

namespace {

// The powers of ten that a long double of 64 bits holds exactly.
constexpr std::array<long double, 28> kTens = {1e0L,  1e1L,  1e2L,  1e3L,  1e4L,  1e5L,  1e6L,  1e7L,  1e8L,  1e9L,
                                               1e10L, 1e11L, 1e12L, 1e13L, 1e14L, 1e15L, 1e16L, 1e17L, 1e18L, 1e19L,
                                               1e20L, 1e21L, 1e22L, 1e23L, 1e24L, 1e25L, 1e26L, 1e27L};

// The parts of a number by JSON's grammar.
struct Number {
  const char* end = nullptr;  // null if it is no number
  bool negative = false;
  bool integer = true;   // neither a fraction nor an exponent
  bool exact = true;     // whether `digits` holds all digits
  uint64_t digits = 0;   // the digits before and after the point
  int64_t exponent = 0;  // of ten, for `digits`
};

// Reads eight digits at once: pairs, then fours, then all.
bool eight_digits(const char* p, uint32_t& value) {
  uint64_t text;
  std::memcpy(&text, p, sizeof text);
  if constexpr (std::endian::native != std::endian::little) return false;
  const uint64_t high = (text + 0x4646464646464646) | (text - 0x3030303030303030);
  if ((high & 0x8080808080808080) != 0) return false;
  text -= 0x3030303030303030;
  text = text * 10 + (text >> 8);
  const uint64_t fours = (text & 0x000000ff000000ff) * 0x000f424000000064;
  const uint64_t others = ((text >> 16) & 0x000000ff000000ff) * 0x0000271000000001;
  value = static_cast<uint32_t>((fours + others) >> 32);
  return true;
}

Number scan_number(const char* p, const char* end) {
  Number number;
  if (p != end && *p == '-') {
    number.negative = true;
    ++p;
  }
  if (p == end || !is_digit(*p)) return number;
  const char* const first = p;
  uint64_t digits = 0;
  const auto take = [&] {
    for (uint32_t eight; end - p >= 8 && eight_digits(p, eight); p += 8) digits = digits * 100000000 + eight;
    for (; p != end && is_digit(*p); ++p) digits = digits * 10 + static_cast<uint64_t>(*p - '0');
  };
  take();
  if (*first == '0' && p - first > 1) return number;
  auto count = p - first;
  if (p != end && *p == '.') {
    number.integer = false;
    const char* const point = ++p;
    take();
    if (p == point) return number;
    number.exponent = point - p;
    count += p - point;
  }
  if (p != end && (*p == 'e' || *p == 'E')) {
    number.integer = false;
    ++p;
    bool minus = false;
    if (p != end && (*p == '+' || *p == '-')) minus = *p++ == '-';
    if (p == end || !is_digit(*p)) return number;
    int64_t exponent = 0;
    for (; p != end && is_digit(*p); ++p) {
      if (exponent < 100000) exponent = exponent * 10 + (*p - '0');
    }
    number.exponent += minus ? -exponent : exponent;
  }
  number.exact = count <= 19 || (count == 20 && *first == '0');
  number.digits = digits;
  number.end = p;
  return number;
}

// Whether the text at `p` is `word`. Moves `p` behind it.
bool read_word(const char*& p, const char* end, std::string_view word) {
  if (static_cast<size_t>(end - p) < word.size() || std::memcmp(p, word.data(), word.size()) != 0) return false;
  p += word.size();
  return true;
}

template <typename T>
T from_text(const char* begin, const char* end) {
  T value{};
  const auto result = std::from_chars(begin, end, value);
  if (result.ec != std::errc::result_out_of_range) return value;
  // The standard leaves the value open here. It is either too large or too close to zero.
  const double wide = std::strtod(std::string(begin, end).c_str(), nullptr);
  return static_cast<T>(wide);
}

// The numbers that the functions below take lie in the normal range of their type, or are zero, or too large.

// Rounds a number to nearest. Returns false if it can't tell.
bool value_of(const Number& number, double& value) {
  const auto tens = static_cast<size_t>(std::abs(number.exponent));
  if (!number.exact || tens >= kTens.size()) return false;
  if (number.digits <= uint64_t{1} << 53 && tens <= 22) {  // both operands are exact, so the result is rounded once
    const auto digits = static_cast<double>(number.digits);
    const auto ten = static_cast<double>(kTens[tens]);
    value = number.exponent < 0 ? digits / ten : digits * ten;
  } else {
    if (std::numeric_limits<long double>::digits != 64) return false;
    auto wide = static_cast<long double>(number.digits);
    wide = number.exponent < 0 ? wide / kTens[tens] : wide * kTens[tens];
    // Rounding to 64 bits and then to 53 is the same as rounding once, but for what looks like a tie in between.
    uint64_t bits;
    std::memcpy(&bits, &wide, sizeof bits);
    if ((bits & 0x7ff) == 0x400) return false;
    value = static_cast<double>(wide);
  }
  if (number.negative) value = -value;
  return true;
}

bool value_of(const Number& number, float& value) {
  const auto tens = static_cast<size_t>(std::abs(number.exponent));
  if (!number.exact || tens > 22) return false;
  auto wide = static_cast<double>(number.digits);
  const auto ten = static_cast<double>(kTens[tens]);
  wide = number.exponent < 0 ? wide / ten : wide * ten;
  // `wide` was rounded at most twice, so it is off by less than two of its last bits. That decides the upper 24 bits
  // unless the lower 29 are near a tie.
  constexpr int64_t kTie = int64_t{1} << 28;
  const auto low = static_cast<int64_t>(std::bit_cast<uint64_t>(wide)) & (2 * kTie - 1);
  if (std::abs(low - kTie) <= 2) return false;
  value = static_cast<float>(number.negative ? -wide : wide);
  return true;
}

// Rounds to nearest even.
uint16_t half_bits(double value) {
  const auto bits = std::bit_cast<uint64_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 48) & 0x8000);
  const double size = std::fabs(value);
  if (std::isnan(value)) return 0x7e00;
  if (size >= 65520.0) return sign | 0x7c00;
  if (size == 0) return sign;
  // Near 2**k the spacing of halves is 2**(k-10), and 2**-24 below 2**-14.
  int exponent = 0;
  std::frexp(size, &exponent);
  exponent = std::max(exponent - 1, -14);
  const auto steps = static_cast<uint32_t>(std::nearbyint(std::ldexp(size, 10 - exponent)));
  return static_cast<uint16_t>(sign + ((exponent + 14) << 10) + steps);
}

uint16_t bfloat_bits(float value) {
  if (std::isnan(value)) return 0x7fc0;
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

enum class Floating { kHalf, kBfloat, kSingle, kDouble };

template <Floating Kind>
using Storage = std::conditional_t<Kind == Floating::kDouble, double,
                                   std::conditional_t<Kind == Floating::kSingle, float, uint16_t>>;

// bfloat16 is rounded from binary32, binary16 from binary64.
template <Floating Kind>
using Wide = std::conditional_t<Kind == Floating::kDouble || Kind == Floating::kHalf, double, float>;

template <Floating Kind>
constexpr double kLargest = Kind == Floating::kHalf     ? 65504.0
                            : Kind == Floating::kBfloat ? 0x1.fep127
                            : Kind == Floating::kSingle ? static_cast<double>(std::numeric_limits<float>::max())
                                                        : std::numeric_limits<double>::max();

template <Floating Kind>
Storage<Kind> stored(Wide<Kind> value) {
  if constexpr (Kind == Floating::kHalf) {
    return half_bits(value);
  } else if constexpr (Kind == Floating::kBfloat) {
    return bfloat_bits(value);
  } else {
    return value;
  }
}

template <Floating Kind>
Problem read_one(const char*& p, const char* end, Storage<Kind>& out, bool nulls) {
  using T = Wide<Kind>;
  const Number number = scan_number(p, end);
  if (number.end == nullptr) {
    if (read_word(p, end, "NaN") || (nulls && read_word(p, end, "null"))) {
      out = stored<Kind>(std::numeric_limits<T>::quiet_NaN());
    } else if (read_word(p, end, "Infinity")) {
      out = stored<Kind>(std::numeric_limits<T>::infinity());
    } else if (read_word(p, end, "-Infinity")) {
      out = stored<Kind>(-std::numeric_limits<T>::infinity());
    } else {
      return Problem::kKind;
    }
    return Problem::kNone;
  }
  T value;
  if (!value_of(number, value)) value = from_text<T>(p, number.end);
  if (std::fabs(static_cast<double>(value)) > kLargest<Kind>) return Problem::kRange;
  out = stored<Kind>(value);
  p = number.end;
  return Problem::kNone;
}

template <typename T>
Problem read_one(const char*& p, const char* end, T& out)
  requires std::is_integral_v<T>
{
  const Number number = scan_number(p, end);
  if (number.end == nullptr) return Problem::kKind;
  if (!number.integer) return Problem::kFraction;
  // 20 digits may or may not fit, so they are read again.
  uint64_t digits = number.digits;
  if (!number.exact) {
    const auto result = std::from_chars(p + (number.negative ? 1 : 0), number.end, digits);
    if (result.ec != std::errc()) return Problem::kRange;
  }
  using Limit = std::numeric_limits<T>;
  const uint64_t top = static_cast<uint64_t>(Limit::max());
  if (number.negative) {
    const uint64_t bottom = std::is_signed_v<T> ? top + 1 : 0;
    if (digits > bottom) return Problem::kRange;
    out = static_cast<T>(0 - digits);
  } else {
    if (digits > top) return Problem::kRange;
    out = static_cast<T>(digits);
  }
  p = number.end;
  return Problem::kNone;
}

Problem read_bool(const char*& p, const char* end, uint8_t& out) {
  if (read_word(p, end, "true")) {
    out = 1;
  } else if (read_word(p, end, "false")) {
    out = 0;
  } else {
    return Problem::kKind;
  }
  return Problem::kNone;
}

template <typename T, typename Read>
Failure fill_with(std::string_view text, size_t begin, size_t value_end, T* out, size_t count, Read read) {
  Elements elements(text.substr(begin, value_end - begin));
  const char* const base = text.data();
  for (size_t i = 0;; ++i) {
    const Elements::Step step = elements.next();
    const char* p = elements.at();
    const char* const end = elements.end();
    const auto here = static_cast<size_t>(p - base);
    if (step == Elements::Step::kEnd && i == count) return {};
    if (step != Elements::Step::kElement || i == count) return {Problem::kSyntax, here, value_end};
    // Most elements follow a comma and at most one space.
    for (;; ++i) {
      const char* const start = p;
      const Problem problem = read(p, end, out[i]);
      if (problem != Problem::kNone) {
        return {problem, static_cast<size_t>(start - base), static_cast<size_t>(end_of_element(start, end) - base)};
      }
      if (i + 1 == count || end - p < 3 || p[0] != ',') break;
      const char* const next = p + (p[1] == ' ' ? 2 : 1);
      if (!is_digit(*next) && *next != '-') break;
      p = next;
    }
    elements.took(p);
  }
}

}  // namespace

Failure fill(std::string_view text, size_t begin, size_t end, Type type, void* out, size_t count, bool nulls) {
  const auto with = [&]<typename T>(T* typed, auto read) { return fill_with(text, begin, end, typed, count, read); };
  const auto floating = [&]<Floating Kind>(std::integral_constant<Floating, Kind>) {
    return with(static_cast<Storage<Kind>*>(out), [nulls](const char*& p, const char* last, Storage<Kind>& value) {
      return read_one<Kind>(p, last, value, nulls);
    });
  };
  const auto integer = [&]<typename T>(T) {
    return with(static_cast<T*>(out),
                [](const char*& p, const char* last, T& value) { return read_one(p, last, value); });
  };
  switch (type) {
    case Type::kBool: return with(static_cast<uint8_t*>(out), read_bool);
    case Type::kU8: return integer(uint8_t{});
    case Type::kU16: return integer(uint16_t{});
    case Type::kU32: return integer(uint32_t{});
    case Type::kU64: return integer(uint64_t{});
    case Type::kI8: return integer(int8_t{});
    case Type::kI16: return integer(int16_t{});
    case Type::kI32: return integer(int32_t{});
    case Type::kI64: return integer(int64_t{});
    case Type::kF16: return floating(std::integral_constant<Floating, Floating::kHalf>{});
    case Type::kBF16: return floating(std::integral_constant<Floating, Floating::kBfloat>{});
    case Type::kF32: return floating(std::integral_constant<Floating, Floating::kSingle>{});
    case Type::kF64: return floating(std::integral_constant<Floating, Floating::kDouble>{});
  }
  return {Problem::kKind, begin, end};
}

bool read_string(Elements& elements, Text& string) {
  const char* const p = elements.at();
  if (*p != '"') return false;
  const char* const after = skip_string(p, elements.end());
  if (after == nullptr) return false;
  string.inside = std::string_view(p + 1, static_cast<size_t>(after - p - 2));
  string.escapes = string.inside.find('\\') != std::string_view::npos;
  elements.took(after);
  return true;
}

namespace {

// Reads four hexadecimal digits. Returns -1 if there are none.
int hex4(std::string_view text, size_t at) {
  if (text.size() < at + 4) return -1;
  int value = 0;
  const auto result = std::from_chars(text.data() + at, text.data() + at + 4, value, 16);
  return result.ptr == text.data() + at + 4 && value >= 0 && text[at] != '-' ? value : -1;
}

void append_utf8(std::string& out, uint32_t code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xc0 | (code >> 6));
    out += static_cast<char>(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    out += static_cast<char>(0xe0 | (code >> 12));
    out += static_cast<char>(0x80 | ((code >> 6) & 0x3f));
    out += static_cast<char>(0x80 | (code & 0x3f));
  } else {
    out += static_cast<char>(0xf0 | (code >> 18));
    out += static_cast<char>(0x80 | ((code >> 12) & 0x3f));
    out += static_cast<char>(0x80 | ((code >> 6) & 0x3f));
    out += static_cast<char>(0x80 | (code & 0x3f));
  }
}

}  // namespace

bool unescape(std::string_view string, std::string& out) {
  out.clear();
  for (size_t at = 0; at < string.size();) {
    if (string[at] != '\\') {
      const size_t next = std::min(string.find('\\', at), string.size());
      out.append(string, at, next - at);
      at = next;
      continue;
    }
    if (at + 1 == string.size()) return false;
    const char c = string[at + 1];
    at += 2;
    constexpr std::string_view kNames = "\"\\/bfnrt";
    constexpr std::string_view kCharacters = "\"\\/\b\f\n\r\t";
    if (const size_t i = kNames.find(c); i != std::string_view::npos) {
      out += kCharacters[i];
      continue;
    }
    const int code = c == 'u' ? hex4(string, at) : -1;
    if (code < 0) return false;
    at += 4;
    if (code >= 0xdc00 && code < 0xe000) return false;
    if (code < 0xd800 || code >= 0xe000) {
      append_utf8(out, static_cast<uint32_t>(code));
      continue;
    }
    const int low = string.substr(at, 2) == "\\u" ? hex4(string, at + 2) : -1;
    if (low < 0xdc00 || low >= 0xe000) return false;
    at += 6;
    append_utf8(out, 0x10000 + (static_cast<uint32_t>(code - 0xd800) << 10) + static_cast<uint32_t>(low - 0xdc00));
  }
  return true;
}

namespace {

float float_of_half(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int fraction = bits & 1023;
  float size;
  if (exponent == 31) {
    size = fraction != 0 ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity();
  } else {
    size = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                         : std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
  }
  return (bits & 0x8000) != 0 ? -size : size;
}

float float_of_bfloat(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

char* write_text(std::string_view text, char* out) { return std::copy(text.begin(), text.end(), out); }

template <typename T>
char* write_integer(T value, char* out) {
  return std::to_chars(out, out + kMostBytes, value).ptr;
}

template <typename T>
char* write_floating(T value, char* out, bool nulls) {
  if (std::isnan(value)) return write_text(nulls ? "null" : "NaN", out);
  if (std::isinf(value)) return write_text(value < 0 ? "-Infinity" : "Infinity", out);
  char* const end = std::to_chars(out, out + kMostBytes, value).ptr;
  // Without a point or an exponent it would be read as an integer, and -0 would lose its sign.
  const bool is_floating = std::any_of(out, end, [](char digit) { return digit == '.' || digit == 'e'; });
  return is_floating ? end : write_text(".0", end);
}

template <typename T, typename Write>
char* write_all(const void* elements, size_t begin, size_t count, const std::vector<size_t>& rows, char* out,
                Write write) {
  const T* const typed = static_cast<const T*>(elements);
  for (size_t i = begin; i < begin + count; ++i) {
    if (i != 0) *out++ = ',';
    // A list of the last kind begins with every list of the others.
    for (size_t k = rows.size(); k > 0 && i % rows[k - 1] == 0; --k) *out++ = '[';
    out = write(typed[i], out);
    for (size_t k = rows.size(); k > 0 && (i + 1) % rows[k - 1] == 0; --k) *out++ = ']';
  }
  return out;
}

}  // namespace

char* format(const void* elements, size_t begin, size_t count, Type type, const std::vector<size_t>& rows, char* out,
             bool nulls) {
  const auto with = [&]<typename T>(T, auto write) { return write_all<T>(elements, begin, count, rows, out, write); };
  switch (type) {
    case Type::kBool:
      return with(uint8_t{}, [](uint8_t value, char* to) { return write_text(value != 0 ? "true" : "false", to); });
    case Type::kU8: return with(uint8_t{}, write_integer<uint8_t>);
    case Type::kU16: return with(uint16_t{}, write_integer<uint16_t>);
    case Type::kU32: return with(uint32_t{}, write_integer<uint32_t>);
    case Type::kU64: return with(uint64_t{}, write_integer<uint64_t>);
    case Type::kI8: return with(int8_t{}, write_integer<int8_t>);
    case Type::kI16: return with(int16_t{}, write_integer<int16_t>);
    case Type::kI32: return with(int32_t{}, write_integer<int32_t>);
    case Type::kI64: return with(int64_t{}, write_integer<int64_t>);
    case Type::kF16:
      return with(uint16_t{},
                  [nulls](uint16_t value, char* to) { return write_floating(float_of_half(value), to, nulls); });
    case Type::kBF16:
      return with(uint16_t{},
                  [nulls](uint16_t value, char* to) { return write_floating(float_of_bfloat(value), to, nulls); });
    case Type::kF32: return with(float{}, [nulls](float value, char* to) { return write_floating(value, to, nulls); });
    case Type::kF64:
      return with(double{}, [nulls](double value, char* to) { return write_floating(value, to, nulls); });
  }
  return out;
}

}  // namespace opgate::json
