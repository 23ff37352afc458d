#include "header_filter.h"

#include <nghttp2/nghttp2.h>

#include <algorithm>

namespace opgate::rpc {

bool HeaderFilter::take(const uint8_t* data, size_t size, const Pass& pass) {
  size_t at = 0, passed = 0;  // what lies between is passed on as it is
  while (at < size) {
    if (magic_left_ != 0 || (payload_left_ != 0 && !reads_)) {
      size_t& left = magic_left_ != 0 ? magic_left_ : payload_left_;
      const size_t part = std::min(left, size - at);
      left -= part;
      at += part;
      continue;
    }
    if (payload_left_ != 0) {
      const size_t part = std::min(payload_left_, size - at);
      payload_left_ -= part;
      if (!read_payload(data + at, part, pass)) return false;
      at += part;
      passed = at;
      if (payload_left_ == 0 && !end_frame(pass)) return false;
      continue;
    }
    // The header of a frame that is read is not passed on, and that of others waits until it is complete.
    const bool split = frame_header_filled_ != 0;
    const size_t begin = at, part = std::min(kFrameHeader - frame_header_filled_, size - at);
    std::copy(data + at, data + at + part, frame_header_ + frame_header_filled_);
    frame_header_filled_ += part;
    at += part;
    if (frame_header_filled_ == kFrameHeader) begin_frame();
    if (!split && frame_header_filled_ == 0 && !reads_ && out_.empty()) continue;
    if (begin > passed && !pass(data + passed, begin - passed)) return false;
    passed = at;
    if (frame_header_filled_ != 0) continue;
    if (!reads_) {
      if (!out_.empty() && !emit(0, pass)) return false;  // another frame within a block, which nghttp2 refuses
      if (!pass(frame_header_, kFrameHeader)) return false;
    } else if (payload_left_ == 0 && !end_frame(pass)) {
      return false;
    }
  }
  return passed == size || pass(data + passed, size - passed);
}

void HeaderFilter::begin_frame() {
  frame_header_filled_ = 0;
  payload_left_ =
      static_cast<size_t>(frame_header_[0]) << 16 | static_cast<size_t>(frame_header_[1]) << 8 | frame_header_[2];
  const uint8_t type = frame_header_[3], flags = frame_header_[4];
  wants_padding_ = false;
  priority_left_ = padding_ = 0;
  if (type == NGHTTP2_HEADERS && !in_block_) {
    in_block_ = payload_left_ > kLongest || (flags & NGHTTP2_FLAG_END_HEADERS) == 0;
    reads_ = in_block_;
    cut_ = 0;
    emitted_ = broken_ = false;
    part_ = Part::kRepresentation;
    first_flags_ = flags & static_cast<uint8_t>(~(NGHTTP2_FLAG_END_HEADERS | NGHTTP2_FLAG_PADDED));
    wants_padding_ = (flags & NGHTTP2_FLAG_PADDED) != 0;
    priority_left_ = (flags & NGHTTP2_FLAG_PRIORITY) != 0 ? 5 : 0;
    std::copy(frame_header_ + 5, frame_header_ + kFrameHeader, stream_);
  } else {
    reads_ = in_block_ && type == NGHTTP2_CONTINUATION && std::equal(stream_, stream_ + 4, frame_header_ + 5);
    in_block_ = reads_;
  }
}

bool HeaderFilter::read_payload(const uint8_t* data, size_t size, const Pass& pass) {
  if (wants_padding_ && size != 0) {
    padding_ = *data++;
    --size;
    wants_padding_ = false;
    broken_ = padding_ + priority_left_ > size + payload_left_;
  }
  const size_t priority = std::min(priority_left_, size);
  out_.append(reinterpret_cast<const char*>(data), priority);
  priority_left_ -= priority;
  data += priority;
  size -= priority;
  // The padding is at the end, and is dropped.
  size -= payload_left_ < padding_ ? std::min(size, padding_ - payload_left_) : 0;
  while (size != 0) {
    const size_t part = std::min(size, kPiece);
    read_block(data, part);
    data += part;
    size -= part;
    if (out_.size() >= kPiece && !emit(0, pass)) return false;
  }
  return true;
}

bool HeaderFilter::end_frame(const Pass& pass) {
  reads_ = false;
  if ((frame_header_[4] & NGHTTP2_FLAG_END_HEADERS) == 0) return true;
  in_block_ = false;
  if (broken_ || part_ != Part::kRepresentation) out_.push_back('\xff');  // an integer that doesn't end
  return emit(NGHTTP2_FLAG_END_HEADERS, pass);
}

/// Passes on what is there as a frame.
bool HeaderFilter::emit(uint8_t flags, const Pass& pass) {
  uint8_t header[kFrameHeader];
  header[0] = static_cast<uint8_t>(out_.size() >> 16);
  header[1] = static_cast<uint8_t>(out_.size() >> 8);
  header[2] = static_cast<uint8_t>(out_.size());
  header[3] = emitted_ ? NGHTTP2_CONTINUATION : NGHTTP2_HEADERS;
  header[4] = static_cast<uint8_t>(flags | (emitted_ ? 0 : first_flags_));
  std::copy(stream_, stream_ + 4, header + 5);
  emitted_ = true;
  out_.insert(0, reinterpret_cast<const char*>(header), kFrameHeader);
  const bool passed = pass(reinterpret_cast<const uint8_t*>(out_.data()), out_.size());
  out_.clear();
  return passed;
}

/// Reads a piece of the block. What stays of it goes to `out_`.
void HeaderFilter::read_block(const uint8_t* data, size_t size) {
  for (size_t at = 0; at < size;) {
    if (part_ != Part::kString && !broken_) {
      read_byte(data[at++]);
      continue;
    }
    const size_t part = broken_ ? size - at : std::min(string_left_, size - at);
    if (broken_ || !skips_) out_.append(reinterpret_cast<const char*>(data + at), part);
    at += part;
    if (broken_) continue;
    string_left_ -= part;
    if (string_left_ == 0) go_on();
  }
}

/// Reads a byte that is not one of a string.
void HeaderFilter::read_byte(uint8_t byte) {
  switch (part_) {
    case Part::kRepresentation: {
      out_.push_back(static_cast<char>(byte));
      // Indexed, with incremental indexing, a new size of the table, and without indexing or never indexed.
      const int prefix = byte >= 0x80 ? 7 : byte >= 0x40 ? 6 : byte >= 0x20 ? 5 : 4;
      const int mask = (1 << prefix) - 1;
      const bool literal = prefix == 6 || prefix == 4;
      strings_ = !literal ? 0 : (byte & mask) == 0 ? 2 : 1;
      shift_ = 0;
      go_on();
      if ((byte & mask) == mask) part_ = Part::kInteger;
      return;
    }
    case Part::kInteger:
      out_.push_back(static_cast<char>(byte));
      broken_ = ++shift_ > 8;
      if ((byte & 0x80) == 0) go_on();
      return;
    case Part::kStringHead:
      --strings_;
      huffman_ = (byte & 0x80) != 0;
      number_ = byte & 0x7f;
      shift_ = 0;
      part_ = Part::kStringLength;
      if (number_ == 0x7f) return;
      out_.push_back(static_cast<char>(byte));
      skips_ = false;
      begin_string();
      return;
    case Part::kStringLength: {
      number_ += static_cast<uint64_t>(byte & 0x7f) << shift_;
      shift_ += 7;
      broken_ = shift_ > 35;
      if (!broken_ && (byte & 0x80) != 0) return;
      skips_ = number_ > kLongest;
      // The letters take the place of a string that is packed with a Huffman code too.
      out_.push_back(huffman_ && !skips_ ? '\xff' : '\x7f');
      size_t rest = (skips_ ? kKept : static_cast<size_t>(number_)) - 0x7f;
      for (; rest >= 0x80; rest >>= 7) out_.push_back(static_cast<char>(rest | 0x80));
      out_.push_back(static_cast<char>(rest));
      if (skips_) {
        cut_ = std::max(cut_, static_cast<size_t>(number_));
        out_.push_back(strings_ == 0 ? '/' : 'x');  // a path begins so, and a name doesn't
        out_.append(kKept - 1, 'x');
      }
      begin_string();
      return;
    }
    case Part::kString: return;
  }
}

void HeaderFilter::begin_string() {
  string_left_ = static_cast<size_t>(number_);
  if (string_left_ == 0) {
    go_on();
  } else {
    part_ = Part::kString;
  }
}

}  // namespace opgate::rpc
