// A text that has been normalized, and which bytes of the original text each of its bytes comes from.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "utf8.h"

namespace opgate::text {

/// A range of bytes.
struct Range {
  std::uint32_t begin, end;
};

class AlignedText {
 public:
  /// A part of the original text that begins at its byte `shift`.
  void assign(std::string_view part, std::uint32_t shift) {
    text_.assign(part);
    origins_.clear();
    identical_ = true;
    shift_ = shift;
  }

  std::string_view view() const { return text_; }
  std::string_view view(Range range) const {
    return std::string_view(text_).substr(range.begin, range.end - range.begin);
  }
  std::uint32_t size() const { return static_cast<std::uint32_t>(text_.size()); }
  bool empty() const { return text_.empty(); }
  /// Where the text begins in the original one.
  std::uint32_t shift() const { return shift_; }
  void set_shift(std::uint32_t shift) { shift_ = shift; }

  /// The bytes, to be replaced by others from the same places. They must stay UTF-8 with the same characters' lengths.
  char* bytes() { return text_.data(); }

  /// The bytes of the original text that byte i comes from.
  Range origin(std::uint32_t i) const {
    if (!identical_) return origins_[i];
    std::uint32_t first = i, end = i + 1;
    while (continues(text_[first])) --first;
    while (end < size() && continues(text_[end])) ++end;
    return {shift_ + first, shift_ + end};
  }

 private:
  friend class Rewriter;

  std::string text_;
  std::vector<Range> origins_;  // of each byte, if the text is not identical to the original
  bool identical_ = true;
  std::uint32_t shift_ = 0;
};

/// Writes a changed copy of a range of a text to the end of another one. It passes over the range from left to right;
/// what it writes takes the origin of the character that it has reached, as `tokenizers` defines it.
class Rewriter {
 public:
  /// `shift` is where the range begins in the original text.
  Rewriter(const AlignedText& from, Range range, std::uint32_t shift, AlignedText& to)
      : from_(from), to_(to), begin_(range.begin), at_(range.begin), end_(range.end), shift_(shift) {
    to_.identical_ = false;
    to_.text_.reserve(to_.text_.size() + (end_ - begin_) + 16);
    to_.origins_.reserve(to_.text_.size() + (end_ - begin_) + 16);
  }

  /// Whether a character is left.
  bool more() const { return at_ < end_; }
  /// The byte that it has reached.
  std::uint32_t at() const { return at_; }
  char32_t peek() const { return character_at(from_.text_.data() + at_).code; }

  /// Writes c in place of the next character.
  void replace(char32_t c) {
    write(c, at_ < end_ ? from_.origin(at_) : before());
    drop();
  }
  /// Writes c with the origin of the character before.
  void insert(char32_t c) { write(c, before()); }
  void insert(std::string_view text) {
    for (std::size_t i = 0; i < text.size();) {
      const Character c = character_at(text.data() + i);
      insert(c.code);
      i += c.length;
    }
  }
  /// Writes text with the origin of the next character, and keeps that.
  void prepend(std::string_view text) {
    if (!more()) return;
    for (std::size_t i = 0; i < text.size();) {
      const Character c = character_at(text.data() + i);
      write(c.code, from_.origin(at_));
      i += c.length;
    }
    keep();
  }
  /// Leaves out the next character.
  void drop() {
    if (at_ < end_) at_ += character_at(from_.text_.data() + at_).length;
  }
  void keep() { keep_to(at_ + character_at(from_.text_.data() + at_).length); }
  /// Keeps the characters before a byte.
  void keep_to(std::uint32_t end) {
    to_.text_.append(from_.text_, at_, end - at_);
    if (!from_.identical_) {
      to_.origins_.insert(to_.origins_.end(), from_.origins_.begin() + at_, from_.origins_.begin() + end);
      at_ = end;
      return;
    }
    to_.origins_.resize(to_.text_.size());
    Range* origin = to_.origins_.data() + to_.text_.size() - (end - at_);
    while (at_ < end) {
      const std::uint32_t length = character_at(from_.text_.data() + at_).length;
      const Range character{from_.shift_ + at_, from_.shift_ + at_ + length};
      for (std::uint32_t i = 0; i < length; ++i) *origin++ = character;
      at_ += length;
    }
  }
  void keep_rest() { keep_to(end_); }

  /// Writes c as `tokenizers` states a change: a positive one inserts, 0 replaces, and -n replaces and leaves out n
  /// more.
  void write(char32_t c, int change) {
    if (change > 0) return insert(c);
    replace(c);
    for (; change < 0; ++change) drop();
  }

 private:
  Range before() const { return at_ > begin_ ? from_.origin(at_ - 1) : Range{shift_, shift_}; }
  void write(char32_t c, Range origin) {
    char bytes[4];
    const std::uint32_t length = write_character(c, bytes);
    to_.text_.append(bytes, length);
    put_origin(length, origin);
  }
  void put_origin(std::uint32_t length, Range origin) {
    for (std::uint32_t i = 0; i < length; ++i) to_.origins_.push_back(origin);
  }

  const AlignedText& from_;
  AlignedText& to_;
  std::uint32_t begin_, at_, end_, shift_;
};

}  // namespace opgate::text
