// Reads tensors from JSON text and writes tensors as JSON text, without an object for each value.
//
// `split` cuts the values of tensors out of a JSON text. The caller parses the rest, which is short, with a general
// parser, and then reads each value with `fill` into memory of the tensor's type. Nothing here knows Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace opgate::json {

enum class Problem {
  kNone,
  kSyntax,    // the text is no JSON
  kDepth,     // lists or objects are nested too deep
  kRest,      // the text without the values is too long
  kCount,     // there are too many values
  kKind,      // a value of another kind: a string where a number is expected, say
  kFraction,  // a number with a fraction or an exponent where an integer is expected
  kRange,     // a number that the type doesn't have
  kLength,    // a string is too long
};

// What went wrong, and where: the text from `begin` to `end`.
struct Failure {
  Problem problem = Problem::kNone;
  size_t begin = 0;
  size_t end = 0;

  explicit operator bool() const { return problem != Problem::kNone; }
};

// A value that was cut out: its place in the text, and the shape of its nested lists (no dims for a single value).
struct Value {
  size_t begin = 0;
  size_t end = 0;
  std::vector<int64_t> shape;
  bool even = true;  // whether the lists are nested evenly; if not, `shape` has no meaning
};

struct Limits {
  size_t depth;
  size_t rest;
  size_t values;
};

enum class Place {
  kInputs,   // the member "data" of each object in the list "inputs" of the text's object
  kMembers,  // every member of the text's object
};

struct Split {
  std::string rest;  // the text, in which the number i stands for the value i
  std::vector<Value> values;
  Failure failure;
};

// Cuts the values at `place` out of a text. It checks only how lists, objects and strings begin and end: the parser of
// the rest and `fill` check everything else.
Split split(std::string_view text, Place place, const Limits& limits);

enum class Type { kBool, kU8, kU16, kU32, kU64, kI8, kI16, kI32, kI64, kF16, kF32, kF64, kBF16 };

// Reads a value, evenly nested lists of numbers or booleans, into `count` elements at `out`, in order. Numbers are
// rounded to nearest, and NaN, Infinity and -Infinity are numbers of the floating-point types. With `nulls` null is NaN
// too.
Failure fill(std::string_view text, size_t begin, size_t end, Type type, void* out, size_t count, bool nulls = false);

// Walks over the elements of a value: evenly nested lists, or a single element. Checks the commas.
class Elements {
 public:
  // `text` is the value.
  explicit Elements(std::string_view text) : at_(text.data()), end_(text.data() + text.size()) {}

  enum class Step { kElement, kEnd, kSyntax };

  // Goes to the next element.
  Step next();

  const char* at() const { return at_; }
  const char* end() const { return end_; }

  // Says that the element ends before `after`. If a comma follows, the next element may begin right behind it.
  void took(const char* after) {
    at_ = after;
    expects_ = opened_ = false;
  }

 private:
  const char* at_;
  const char* end_;
  int depth_ = 0;
  bool expects_ = true;  // whether an element or a list must come
  bool opened_ = false;  // whether the text before is the beginning of a list
};

// Returns the end of the element at `p`, which may be no element at all, for a message.
const char* end_of_element(const char* p, const char* end);

// One string among the elements: what is between its quotes, and whether it has escapes.
struct Text {
  std::string_view inside;
  bool escapes;
};

// Reads the element at `elements.at()`. Returns false if it is no complete string.
bool read_string(Elements& elements, Text& string);

// Returns the bytes of a string with escapes. Fails at an escape that JSON doesn't have, and at half a surrogate pair.
bool unescape(std::string_view string, std::string& out);

// The most bytes that `format` writes for an element, without brackets.
inline constexpr size_t kMostBytes = 28;

// Writes the elements `begin` to `begin + count` of an array, each but element 0 with a comma before it. `rows` are the
// numbers of elements after which a list of nested lists ends and the next begins, the longest first; for a flat list
// it is empty. Returns the end of what it wrote: at most kMostBytes + 2 * rows.size() bytes an element. Floating-point
// numbers are the shortest that read back the same. With `nulls` NaN is written as null.
char* format(const void* elements, size_t begin, size_t count, Type type, const std::vector<size_t>& rows, char* out,
             bool nulls = false);

}  // namespace opgate::json
