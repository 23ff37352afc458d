// Shortens strings of header blocks that nghttp2 can't take. Its decoder ends the connection at a string of more than
// 64 KiB, and with it the calls of everybody who shares the connection.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace opgate::rpc {

/// Takes the bytes of a client from the first one of the connection on, and passes them on. It reads only header blocks
/// that may have such a string: https://www.rfc-editor.org/rfc/rfc9113 (frames), rfc7541 (header blocks).
///
/// A string that is too long becomes one of kKept letters. As an entry it is as large for the dynamic table as the
/// other: too large, so that the table is empty afterwards on both sides.
class HeaderFilter {
 public:
  /// The most bytes of a string that stays as it is.
  static constexpr size_t kLongest = 65536;

  using Pass = std::function<bool(const uint8_t* data, size_t size)>;

  /// Hands bytes to `pass`, in pieces. Returns false when that does.
  bool take(const uint8_t* data, size_t size, const Pass& pass);

  /// The size of the longest string that was shortened in the header block that is passed on, 0 if there was none.
  size_t cut() const { return cut_; }

 private:
  static constexpr size_t kMagic = 24, kFrameHeader = 9;
  static constexpr size_t kKept = 8192;    // more than the dynamic table has
  static constexpr size_t kPiece = 16384;  // bytes of a frame that is passed on

  enum class Part { kRepresentation, kInteger, kStringHead, kStringLength, kString };

  void begin_frame();
  bool read_payload(const uint8_t* data, size_t size, const Pass& pass);
  bool end_frame(const Pass& pass);
  bool emit(uint8_t flags, const Pass& pass);
  void read_block(const uint8_t* data, size_t size);
  void read_byte(uint8_t byte);
  void begin_string();
  void go_on() { part_ = strings_ != 0 ? Part::kStringHead : Part::kRepresentation; }

  size_t magic_left_ = kMagic;
  uint8_t frame_header_[kFrameHeader] = {};
  size_t frame_header_filled_ = 0;
  size_t payload_left_ = 0;
  bool reads_ = false;     // whether the payload of this frame is read, and not only passed on
  bool in_block_ = false;  // whether the frames of a header block that is read go on
  // Of the first frame of a block: what its header says of it, whether the length of its padding is still to come, the
  // bytes of its priority that are, and the length of the padding.
  uint8_t stream_[4] = {};
  uint8_t first_flags_ = 0;
  bool wants_padding_ = false;
  size_t priority_left_ = 0, padding_ = 0;
  bool emitted_ = false;  // whether that frame was passed on
  std::string out_;
  size_t cut_ = 0;
  // Where the header block stands.
  Part part_ = Part::kRepresentation;
  int strings_ = 0;      // of this representation that are still to come
  bool broken_ = false;  // whether nghttp2 will refuse it
  uint64_t number_ = 0;
  int shift_ = 0;
  bool huffman_ = false;
  size_t string_left_ = 0;
  bool skips_ = false;  // whether the bytes of this string are dropped
};

}  // namespace opgate::rpc
