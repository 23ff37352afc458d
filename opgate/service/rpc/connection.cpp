#include "connection.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>

namespace opgate::rpc {
namespace {

constexpr uint32_t kStreamWindow = 4 << 20;
constexpr int32_t kConnectionWindow = 64 << 20;
constexpr uint32_t kFrameSize = 1 << 20;
constexpr size_t kFraming = 5;
// A message gets memory for so many bytes at first, then for kGrowth times as many, and above kLastPart for all of it.
// A page may have 2 MB, so a little of each of many parts is resident as a whole.
constexpr size_t kFirstPart = 16 << 10, kLastPart = 1 << 20, kGrowth = 8;
// Of the text of a status when it is encoded.
constexpr size_t kTextBytes = 4096;
// Frames without data (pings, settings, window updates, new calls, ...) that a client may send at once. Bytes both
// ways, messages that are sent and ended calls earn others.
constexpr size_t kFrames = 20'000;
// Frames after the first one of a header block. The filter joins small ones.
constexpr size_t kContinuations = 1000;
// A call that holds no more than this is small.
constexpr size_t kSmallCall = 64 << 10;
constexpr size_t kFramesForAnswer = 8;  // for a message, and for the end of a call
constexpr size_t kFramesForGone = 3;    // for a call that the client cancels
constexpr size_t kBytesForFrame = 512;
constexpr size_t kFramesForSweep = 200;
// What a message of a stream costs beside its bytes, while it waits to be taken.
constexpr size_t kMessageCost = 256;
// Calls that a client may cancel at once, and in each second.
constexpr uint64_t kResets = 20'000, kResetsASecond = 1'000;
constexpr char kNoRoom[] = "the calls of this connection, or of all clients, hold all the memory for messages";
constexpr uint8_t kDrainPing[8] = {'d', 'r', 'a', 'i', 'n', 0, 0, 0};

nghttp2_nv pair_of(std::string_view name, std::string_view value) {
  return {reinterpret_cast<uint8_t*>(const_cast<char*>(name.data())),
          reinterpret_cast<uint8_t*>(const_cast<char*>(value.data())), name.size(), value.size(), NGHTTP2_NV_FLAG_NONE};
}

void append(std::vector<nghttp2_nv>& headers, const Metadata& metadata) {
  for (const auto& [name, value] : metadata) headers.push_back(pair_of(name, value));
}

// Returns the text of a grpc-message: percent signs and what is no printable ASCII as %XX. Clients take headers of a
// few kilobytes only, so a long text ends early, between two characters of UTF-8.
std::string percent_encoded(std::string_view text) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  std::string encoded;
  size_t whole = 0;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte & 0xC0) != 0x80) whole = encoded.size();
    if (byte >= ' ' && byte <= '~' && byte != '%') {
      encoded += c;
    } else {
      encoded += '%';
      encoded += kDigits[byte >> 4];
      encoded += kDigits[byte & 15];
    }
    if (encoded.size() > kTextBytes) return encoded.substr(0, whole) + "...";
  }
  return encoded;
}

// Returns the microseconds of a grpc-timeout: at most eight digits and a unit. Returns -2 if it is none.
int64_t timeout_of(std::string_view text) {
  if (text.size() < 2 || text.size() > 9) return -2;
  int64_t amount = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size() - 1, amount);
  if (error != std::errc() || end != text.data() + text.size() - 1 || amount < 0) return -2;
  switch (text.back()) {
    case 'H': return amount * 3'600'000'000;
    case 'M': return amount * 60'000'000;
    case 'S': return amount * 1'000'000;
    case 'm': return amount * 1'000;
    case 'u': return amount;
    case 'n': return (amount + 999) / 1'000;
    default: return -2;
  }
}

bool is_grpc(std::string_view content_type) {
  constexpr std::string_view kType = "application/grpc";
  if (content_type.substr(0, kType.size()) != kType) return false;
  const auto rest = content_type.substr(kType.size());
  return rest.empty() || rest[0] == '+' || rest[0] == ';';
}

}  // namespace

Connection::Connection(Owner& owner, const Limits& limits)
    : owner_(owner), limits_(limits), frames_left_(kFrames), skip_(NGHTTP2_CLIENT_MAGIC_LEN) {
  nghttp2_session_callbacks* callbacks = nullptr;
  if (nghttp2_session_callbacks_new(&callbacks) != 0) throw std::bad_alloc();
  nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks, on_begin_headers);
  nghttp2_session_callbacks_set_on_header_callback(callbacks, on_header);
  nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, on_frame);
  nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data);
  nghttp2_session_callbacks_set_on_frame_send_callback(callbacks, on_sent);
  nghttp2_session_callbacks_set_on_frame_not_send_callback(callbacks, on_not_sent);
  nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, on_close);
  nghttp2_session_callbacks_set_send_data_callback(callbacks, send_data);
  nghttp2_session_callbacks_set_data_source_read_length_callback(callbacks, frame_size);
  nghttp2_option* options = nullptr;
  if (nghttp2_option_new(&options) != 0) {
    nghttp2_session_callbacks_del(callbacks);
    throw std::bad_alloc();
  }
  nghttp2_option_set_no_auto_window_update(options, 1);
  nghttp2_option_set_no_closed_streams(options, 1);
  nghttp2_option_set_max_settings(options, 32);
  // gRPC's libraries send metadata as a client gives it, with spaces around it.
  nghttp2_option_set_no_rfc9113_leading_and_trailing_ws_validation(options, 1);
  nghttp2_option_set_max_outbound_ack(options, 1000);
  nghttp2_option_set_max_continuations(options, kContinuations);
  nghttp2_option_set_stream_reset_rate_limit(options, kResets, kResetsASecond);
  nghttp2_session* session = nullptr;
  const int failed = nghttp2_session_server_new2(&session, callbacks, this, options);
  nghttp2_option_del(options);
  nghttp2_session_callbacks_del(callbacks);
  if (failed != 0) throw std::bad_alloc();
  session_.reset(session);
  const std::array<nghttp2_settings_entry, 4> settings = {{
      {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, limits.streams},
      {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, kStreamWindow},
      {NGHTTP2_SETTINGS_MAX_FRAME_SIZE, kFrameSize},
      {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, static_cast<uint32_t>(limits.header_bytes)},
  }};
  nghttp2_submit_settings(session, NGHTTP2_FLAG_NONE, settings.data(), settings.size());
  nghttp2_session_set_local_window_size(session, NGHTTP2_FLAG_NONE, 0, kConnectionWindow);
}

Connection::~Connection() { close(); }

void Connection::drop(Memory& memory) {
  if (memory.handle != nullptr) owner_.release(memory);
  memory = {};
}

void Connection::drop_parts(Call& call) {
  for (Part& part : call.parts) drop(part.memory);
  call.parts.clear();
  unsent_ -= call.waiting;
  owner_.hold(-static_cast<ptrdiff_t>(call.waiting));
  call.waiting = 0;
}

void Connection::drop_all(Call& call) {
  drop(call.memory);
  drop_parts(call);
  let_go(call, call.held);
}

bool Connection::hold(Call& call, size_t size) {
  call.held += size;
  held_ += size;
  const bool small = call.size <= kSmallCall && call.held <= kSmallCall;
  return owner_.hold(static_cast<ptrdiff_t>(size), small) && held_ <= limits_.held_bytes;
}

void Connection::let_go(Call& call, size_t size) {
  size = std::min(size, call.held);
  call.held -= size;
  held_ -= size;
  owner_.hold(-static_cast<ptrdiff_t>(size));
}

bool Connection::hold(int32_t stream, ptrdiff_t size) {
  Call* call = find(stream);
  if (call == nullptr || call->finished) return true;
  if (size >= 0) return hold(*call, static_cast<size_t>(size));
  let_go(*call, 0 - static_cast<size_t>(size));
  return true;
}

bool Connection::receive(const uint8_t* data, size_t size, std::string& error) {
  if (!pay(data, size)) {
    error = failure_;
    return false;
  }
  return filter_.take(data, size, [&](const uint8_t* part, size_t count) {
    const ssize_t read = nghttp2_session_mem_recv(session_.get(), part, count);
    if (read == static_cast<ssize_t>(count)) return true;
    error = read == NGHTTP2_ERR_BAD_CLIENT_MAGIC ? "not HTTP/2" : nghttp2_strerror(static_cast<int>(read));
    return false;
  });
}

std::vector<Event> Connection::events() {
  ++batch_;
  return std::exchange(events_, {});
}

void Connection::close() {
  for (auto& [id, call] : calls_) drop_all(*call);
  calls_.clear();
  for (Event& event : events_) drop(event.message);
  events_.clear();
}

Connection::Call* Connection::find(int32_t stream) {
  const auto found = calls_.find(stream);
  return found == calls_.end() ? nullptr : found->second.get();
}

size_t Connection::waiting(int32_t stream) const {
  const auto found = calls_.find(stream);
  return found == calls_.end() ? 0 : found->second->waiting;
}

// ---- What bounds a client ----

void Connection::earn(size_t frames) { frames_left_ = std::min(kFrames, frames_left_ + frames); }

// Counts the frames that begin in these bytes. nghttp2 doesn't tell of those that it ignores. Returns false, and ends
// the connection, if there are too many.
bool Connection::pay(const uint8_t* data, size_t size) {
  size_t at = 0;
  while (at < size) {
    if (skip_ != 0) {
      const size_t part = std::min(skip_, size - at);
      skip_ -= part;
      at += part;
      continue;
    }
    frame_header_[frame_header_filled_++] = data[at++];
    if (frame_header_filled_ < sizeof frame_header_) continue;
    frame_header_filled_ = 0;
    skip_ = static_cast<size_t>(frame_header_[0]) << 16 | static_cast<size_t>(frame_header_[1]) << 8 | frame_header_[2];
    if (frame_header_[3] == NGHTTP2_DATA) {
      earned_bytes_ += skip_;
      earn(earned_bytes_ / kBytesForFrame);
      earned_bytes_ %= kBytesForFrame;
      const bool ends = (frame_header_[4] & NGHTTP2_FLAG_END_STREAM) != 0;
      const bool padded = (frame_header_[4] & NGHTTP2_FLAG_PADDED) != 0;
      if (ends || (skip_ != 0 && !padded)) continue;
    }
    if (frames_left_ == 0) {
      failure_ = "too many frames that carry nothing";
      nghttp2_session_terminate_session(session_.get(), NGHTTP2_ENHANCE_YOUR_CALM);
      return false;
    }
    --frames_left_;
  }
  return true;
}

void Connection::sweep(int in, int out) {
  earn(kFramesForSweep);
  for (auto& [id, call] : calls_) {
    const bool expected =
        !call->ended && !call->ignored && call->unopened == 0 && (!call->client_streams || call->prefix_filled != 0);
    call->idle_in = expected && !std::exchange(call->came, false) && in != 0 ? call->idle_in + 1 : 0;
    // Also the end of a call waits for the window, if it comes after data.
    const bool waits = call->waiting != 0 || call->finished;
    call->idle_out = waits && !std::exchange(call->went, false) && out != 0 ? call->idle_out + 1 : 0;
    if (in != 0 && call->idle_in >= in) {
      refuse(*call, kDeadlineExceeded, "nothing of the message came in the time for it");
    } else if (out != 0 && call->idle_out >= out) {
      if (!call->finished) gone(*call);
      drop_all(*call);
      call->ignored = call->finished = true;
      nghttp2_submit_rst_stream(session_.get(), NGHTTP2_FLAG_NONE, id, NGHTTP2_CANCEL);
    }
  }
}

// ---- What comes ----

int Connection::on_begin_headers(nghttp2_session*, const nghttp2_frame* frame, void* user) {
  if (frame->hd.type != NGHTTP2_HEADERS || frame->headers.cat != NGHTTP2_HCAT_REQUEST) return 0;
  Connection& me = self(user);
  auto call = std::make_unique<Call>();
  call->id = frame->hd.stream_id;
  me.last_ = std::max(me.last_, call->id);
  me.calls_[frame->hd.stream_id] = std::move(call);
  return 0;
}

int Connection::on_header(nghttp2_session*, const nghttp2_frame* frame, const uint8_t* name_at, size_t name_size,
                          const uint8_t* value_at, size_t value_size, uint8_t, void* user) {
  Connection& me = self(user);
  Call* call = me.find(frame->hd.stream_id);
  if (call == nullptr) return 0;
  call->header_bytes += name_size + value_size + 32;
  // A little more than the limit gets an answer that says so. Much more is not decoded.
  if (call->header_bytes > 4 * me.limits_.header_bytes) return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
  if (frame->headers.cat != NGHTTP2_HCAT_REQUEST) return 0;
  const std::string_view name(reinterpret_cast<const char*>(name_at), name_size);
  const std::string_view value(reinterpret_cast<const char*>(value_at), value_size);
  if (name == ":path") {
    call->path = value;
  } else if (name == ":method") {
    call->method = value;
  } else if (name == "content-type") {
    call->content_type = value;
  } else if (name == "grpc-timeout") {
    call->timeout_us = timeout_of(value);
  } else if (name == "grpc-encoding") {
    call->encoding = value;
  } else if (name[0] != ':' && name != "te" && name != "grpc-accept-encoding" &&
             call->header_bytes <= me.limits_.header_bytes) {
    call->metadata.emplace_back(name, value);
  }
  return 0;
}

int Connection::on_frame(nghttp2_session*, const nghttp2_frame* frame, void* user) {
  Connection& me = self(user);
  if (frame->hd.type == NGHTTP2_SETTINGS) {
    me.ready_ = true;
    return 0;
  }
  if (frame->hd.type == NGHTTP2_PING) {
    const bool answered = (frame->hd.flags & NGHTTP2_FLAG_ACK) != 0 && me.draining_ && !me.refuses_;
    if (answered && std::memcmp(frame->ping.opaque_data, kDrainPing, sizeof kDrainPing) == 0) me.go_away(true);
    return 0;
  }
  Call* call = me.find(frame->hd.stream_id);
  if (call == nullptr || (frame->hd.type != NGHTTP2_HEADERS && frame->hd.type != NGHTTP2_DATA)) return 0;
  if (frame->hd.type == NGHTTP2_HEADERS && frame->headers.cat == NGHTTP2_HCAT_REQUEST) me.head_complete(*call);
  if ((frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0) me.client_ended(*call);
  return 0;
}

void Connection::head_complete(Call& call) {
  if (call.ignored) return;  // a sweep ended it before its head was complete
  if (refuses_) {
    call.ignored = true;
    nghttp2_submit_rst_stream(session_.get(), NGHTTP2_FLAG_NONE, call.id, NGHTTP2_REFUSED_STREAM);
    return;
  }
  if (call.method != "POST") return refuse_http(call, "405", "gRPC calls are POST requests\n");
  if (!is_grpc(call.content_type))
    return refuse_http(call, "415", "this port speaks gRPC: expected content-type application/grpc\n");
  if (const size_t cut = filter_.cut(); cut != 0) {
    return refuse(call, kResourceExhausted,
                  "the metadata has an entry of " + std::to_string(cut) + " bytes, the limit is " +
                      std::to_string(std::min(limits_.header_bytes, HeaderFilter::kLongest)));
  }
  if (call.header_bytes > limits_.header_bytes) {
    return refuse(call, kResourceExhausted,
                  "the metadata has " + std::to_string(call.header_bytes) + " bytes, the limit is " +
                      std::to_string(limits_.header_bytes));
  }
  if (call.timeout_us == -2) return refuse(call, kInternal, "grpc-timeout: expected digits and a unit");
  call.number = owner_.find(call.path, call.client_streams);
  if (call.number < 0) return refuse(call, kUnimplemented, "there is no method " + call.path.substr(0, 200));
  if (!hold(call, call.header_bytes)) {  // many small calls can have much metadata
    return refuse(call, kResourceExhausted, kNoRoom);
  }
  if (call.client_streams) announce(Event::kOpen, call);
}

// Tells the owner of a new call.
void Connection::announce(Event::Kind kind, Call& call) {
  call.opened = true;
  call.announced_in = batch_;
  call.announced_at = events_.size();
  Event event{kind, call.id};
  event.method = call.number;
  event.timeout_us = call.timeout_us;
  event.message = std::exchange(call.memory, {});
  event.compressed = call.compressed;
  event.encoding = call.encoding;
  event.metadata = std::move(call.metadata);
  events_.push_back(std::move(event));
}

int Connection::on_data(nghttp2_session* session, uint8_t, int32_t stream, const uint8_t* data, size_t size,
                        void* user) {
  Connection& me = self(user);
  nghttp2_session_consume_connection(session, size);
  Call* call = me.find(stream);
  if (call == nullptr) {
    nghttp2_session_consume_stream(session, stream, size);
    return 0;
  }
  call->came = true;
  me.take(*call, data, size);
  call->unopened += size;
  me.open_window(*call);
  return 0;
}

// The window of a stream of messages stays as it is while many of them wait to be taken.
void Connection::open_window(Call& call) {
  if (call.untaken > kStreamWindow || call.unopened == 0) return;
  nghttp2_session_consume_stream(session_.get(), call.id, std::exchange(call.unopened, 0));
}

void Connection::take(Call& call, const uint8_t* data, size_t size) {
  while (size != 0 && !call.ignored) {
    if (call.complete) return refuse(call, kInternal, "a unary call has more than one message");
    if (call.prefix_filled < kFraming) {
      const size_t part = std::min(size, kFraming - call.prefix_filled);
      std::memcpy(call.prefix + call.prefix_filled, data, part);
      call.prefix_filled += part;
      data += part;
      size -= part;
      if (call.prefix_filled < kFraming) return;
      call.size = static_cast<size_t>(call.prefix[1]) << 24 | static_cast<size_t>(call.prefix[2]) << 16 |
                  static_cast<size_t>(call.prefix[3]) << 8 | call.prefix[4];
      call.filled = call.capacity = 0;
      call.compressed = call.prefix[0] == 1;
      if (call.prefix[0] > 1) {
        return refuse(call, kInternal,
                      "a message begins with a flag of " + std::to_string(call.prefix[0]) + ", expected 0 or 1");
      }
      if (call.size > limits_.message_bytes) {
        return refuse(call, kResourceExhausted,
                      "the message has " + std::to_string(call.size) + " bytes, the limit is " +
                          std::to_string(limits_.message_bytes));
      }
    }
    if (!make_room(call)) return refuse(call, kResourceExhausted, "there is no memory for the message");
    const size_t part = std::min(size, call.capacity - call.filled);
    if (!hold(call, part)) {
      return refuse(call, kResourceExhausted, kNoRoom);
    }
    std::memcpy(call.memory.data + call.filled, data, part);
    call.filled += part;
    data += part;
    size -= part;
    if (call.filled == call.size) message_complete(call);
  }
}

// A client that says that its message is large gets memory for all of it when it has sent a part of it.
bool Connection::make_room(Call& call) {
  if (call.memory.handle == nullptr) {
    call.capacity = std::min(call.size, kFirstPart);
    call.memory = owner_.allocate(call.capacity);
    return call.memory.handle != nullptr;
  }
  if (call.filled < call.capacity || call.capacity == call.size) return true;
  const size_t capacity = call.capacity < kLastPart ? std::min(call.size, call.capacity * kGrowth) : call.size;
  const bool whole = capacity == call.size && call.size > kSmallCall;
  if (!(whole ? owner_.grow_to_message(call.memory, call.filled, capacity)
              : owner_.grow(call.memory, call.filled, capacity))) {
    return false;
  }
  call.capacity = capacity;
  return true;
}

void Connection::message_complete(Call& call) {
  call.prefix_filled = 0;
  if (!call.client_streams) {
    call.complete = true;
    return;
  }
  call.untaken += call.size + kMessageCost;
  if (!hold(call, kMessageCost)) {
    return refuse(call, kResourceExhausted, kNoRoom);
  }
  Event event{Event::kMessage, call.id};
  event.message = std::exchange(call.memory, {});
  event.compressed = call.compressed;
  events_.push_back(std::move(event));
}

void Connection::client_ended(Call& call) {
  call.ended = true;
  if (call.ignored) return;
  if (call.prefix_filled != 0) return refuse(call, kInternal, "the call ended in the middle of a message");
  if (call.client_streams) {
    events_.push_back(Event{Event::kEnd, call.id});
    return;
  }
  if (!call.complete) return refuse(call, kInternal, "a unary call has no message");
  announce(Event::kCall, call);
}

// Tells the owner, if it knows of the call, that nobody waits for the answer.
void Connection::gone(Call& call) {
  if (!std::exchange(call.opened, false)) return;
  if (call.client_streams || call.announced_in != batch_) {
    events_.push_back(Event{Event::kGone, call.id});
    earn(kFramesForGone);
    return;
  }
  // Who cancels calls as fast as it makes them gets no work done for them.
  drop(events_[call.announced_at].message);
  events_[call.announced_at] = Event{Event::kNothing, call.id};
}

void Connection::refuse(Call& call, int status, std::string_view text) {
  drop(call.memory);
  gone(call);
  Event event{Event::kRefused, call.id};
  event.status = status;
  event.text = text;
  event.path = call.path.substr(0, 200);
  events_.push_back(std::move(event));
  end(call.id, status, text, {}, {});
}

void Connection::refuse_http(Call& call, const char* status, std::string_view text) {
  call.ignored = call.begun = call.finished = call.plain = true;
  Event event{Event::kRefused, call.id};
  event.status = kInternal;
  event.text = text.substr(0, text.size() - 1);  // without the end of the line
  event.path = call.path.substr(0, 200);
  events_.push_back(std::move(event));
  std::vector<nghttp2_nv> headers = {pair_of(":status", status), pair_of("content-type", "text/plain")};
  const Memory memory = owner_.allocate(text.size());
  if (memory.handle == nullptr) {
    nghttp2_submit_response(session_.get(), call.id, headers.data(), headers.size(), nullptr);
    return;
  }
  std::memcpy(memory.data, text.data(), text.size());
  call.parts.push_back(Part{memory, text.size()});
  call.waiting = text.size();
  unsent_ += text.size();
  owner_.hold(static_cast<ptrdiff_t>(text.size()));
  nghttp2_data_provider provider{{0}, size_of_data};
  nghttp2_submit_response(session_.get(), call.id, headers.data(), headers.size(), &provider);
}

int Connection::on_close(nghttp2_session*, int32_t stream, uint32_t, void* user) {
  Connection& me = self(user);
  const auto found = me.calls_.find(stream);
  if (found == me.calls_.end()) return 0;
  Call& call = *found->second;
  if (!call.finished) me.gone(call);
  me.drop_all(call);
  me.calls_.erase(found);
  return 0;
}

void Connection::consume(int32_t stream, size_t size) {
  Call* call = find(stream);
  if (call == nullptr) return;
  call->untaken -= std::min(call->untaken, size + kMessageCost);
  let_go(*call, size + kMessageCost);
  open_window(*call);
}

// ---- What goes ----

void Connection::begin(int32_t stream, const Metadata& metadata, std::string_view encoding) {
  Call* call = find(stream);
  if (call == nullptr || call->begun) return;
  call->begun = true;
  std::vector<nghttp2_nv> headers = {pair_of(":status", "200"), pair_of("content-type", "application/grpc")};
  if (!encoding.empty()) headers.push_back(pair_of("grpc-encoding", encoding));
  append(headers, metadata);
  nghttp2_data_provider provider{{0}, size_of_data};
  nghttp2_submit_response(session_.get(), stream, headers.data(), headers.size(), &provider);
}

void Connection::send(int32_t stream, const std::vector<std::pair<Memory, size_t>>& pieces, bool compressed) {
  Call* call = find(stream);
  size_t size = 0;
  for (const auto& [memory, bytes] : pieces) size += bytes;
  if (call == nullptr || call->finished || size > UINT32_MAX) {
    for (auto [memory, bytes] : pieces) drop(memory);
    return;
  }
  earn(kFramesForAnswer);
  Part first{{}, 0};
  first.prefix_size = kFraming;
  first.prefix[0] = compressed ? 1 : 0;
  for (int i = 0; i < 4; ++i) first.prefix[1 + i] = static_cast<char>(size >> (24 - 8 * i));
  call->parts.push_back(first);
  for (const auto& [memory, bytes] : pieces) call->parts.push_back(Part{memory, bytes});
  call->waiting += kFraming + size;
  unsent_ += kFraming + size;
  owner_.hold(static_cast<ptrdiff_t>(kFraming + size));
  if (std::exchange(call->deferred, false)) nghttp2_session_resume_data(session_.get(), stream);
}

void Connection::end(int32_t stream, int status, std::string_view text, const Metadata& trailers,
                     const Metadata& initial) {
  Call* call = find(stream);
  if (call == nullptr || call->finished) return;
  earn(kFramesForAnswer);
  call->finished = call->ignored = true;
  drop(call->memory);
  let_go(*call, call->held);
  if (call->begun) {
    call->status = status;
    call->text = percent_encoded(text);
    call->trailers = trailers;
    if (std::exchange(call->deferred, false)) nghttp2_session_resume_data(session_.get(), stream);
    return;
  }
  call->begun = true;
  const std::string code = std::to_string(status), message = percent_encoded(text);
  std::vector<nghttp2_nv> headers = {pair_of(":status", "200"), pair_of("content-type", "application/grpc"),
                                     pair_of("grpc-status", code)};
  if (!message.empty()) headers.push_back(pair_of("grpc-message", message));
  append(headers, initial);
  append(headers, trailers);
  nghttp2_submit_response(session_.get(), stream, headers.data(), headers.size(), nullptr);
}

int Connection::on_sent(nghttp2_session* session, const nghttp2_frame* frame, void* user) {
  Connection& me = self(user);
  if (frame->hd.type == NGHTTP2_GOAWAY && frame->goaway.error_code != NGHTTP2_NO_ERROR && me.failure_.empty()) {
    me.failure_ = nghttp2_http2_strerror(frame->goaway.error_code);
  }
  // When the answer is sent, the client need not send the rest of its messages.
  const bool last = frame->hd.type == NGHTTP2_HEADERS || frame->hd.type == NGHTTP2_DATA;
  if (!last || (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) == 0) return 0;
  const Call* call = me.find(frame->hd.stream_id);
  if (call != nullptr && !call->ended) {
    nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, frame->hd.stream_id, NGHTTP2_NO_ERROR);
  }
  return 0;
}

// An answer whose metadata is too long can't be sent. Its client must not wait for it.
int Connection::on_not_sent(nghttp2_session* session, const nghttp2_frame* frame, int, void* user) {
  if (frame->hd.type != NGHTTP2_HEADERS || self(user).find(frame->hd.stream_id) == nullptr) return 0;
  nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, frame->hd.stream_id, NGHTTP2_INTERNAL_ERROR);
  return 0;
}

// Says how much the next frame takes. `send_data` gives it to the output.
ssize_t Connection::size_of_data(nghttp2_session* session, int32_t stream, uint8_t*, size_t room, uint32_t* flags,
                                 nghttp2_data_source*, void* user) {
  Call* call = self(user).find(stream);
  if (call == nullptr) return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
  const size_t size = std::min(room, call->waiting);
  *flags |= NGHTTP2_DATA_FLAG_NO_COPY;
  if (size < call->waiting) return static_cast<ssize_t>(size);
  if (!call->finished) {
    if (size != 0) return static_cast<ssize_t>(size);
    call->deferred = true;
    return NGHTTP2_ERR_DEFERRED;
  }
  *flags |= NGHTTP2_DATA_FLAG_EOF;
  if (call->plain) return static_cast<ssize_t>(size);
  *flags |= NGHTTP2_DATA_FLAG_NO_END_STREAM;
  const std::string code = std::to_string(call->status);
  std::vector<nghttp2_nv> trailers = {pair_of("grpc-status", code)};
  if (!call->text.empty()) trailers.push_back(pair_of("grpc-message", call->text));
  append(trailers, call->trailers);
  nghttp2_submit_trailer(session, stream, trailers.data(), trailers.size());
  return static_cast<ssize_t>(size);
}

int Connection::send_data(nghttp2_session*, nghttp2_frame* frame, const uint8_t* header, size_t size,
                          nghttp2_data_source*, void* user) {
  Connection& me = self(user);
  constexpr size_t kFrameHeader = 9;
  me.out_->append(header, kFrameHeader);
  me.written_ += kFrameHeader + size;
  Call* call = me.find(frame->hd.stream_id);
  if (call == nullptr) return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
  call->went = true;
  call->waiting -= size;
  me.unsent_ -= size;
  me.owner_.hold(-static_cast<ptrdiff_t>(size));
  me.earned_bytes_ += size;
  me.earn(me.earned_bytes_ / kBytesForFrame);
  me.earned_bytes_ %= kBytesForFrame;
  while (size != 0) {
    Part& part = call->parts.front();
    if (part.at < part.prefix_size) {
      const size_t piece = std::min(size, part.prefix_size - part.at);
      me.out_->append(part.prefix + part.at, piece);
      part.at += piece;
      size -= piece;
    }
    const size_t at = part.at - part.prefix_size, piece = std::min(size, part.size - at);
    if (part.at >= part.prefix_size && piece != 0) {
      me.out_->refer(part.memory, part.memory.data + at, piece);
      part.at += piece;
      size -= piece;
    }
    if (part.at < part.prefix_size + part.size) break;
    me.drop(part.memory);
    call->parts.pop_front();
  }
  // Not before a frame: it would be sent later, when what it is about may have gone.
  return me.written_ > me.most_ ? NGHTTP2_ERR_PAUSE : 0;
}

ssize_t Connection::frame_size(nghttp2_session*, uint8_t, int32_t, int32_t session_window, int32_t stream_window,
                               uint32_t remote_limit, void*) {
  const int32_t most = std::min({session_window, stream_window, static_cast<int32_t>(kFrameSize)});
  return static_cast<int32_t>(std::min<uint32_t>(static_cast<uint32_t>(most), remote_limit));
}

bool Connection::output(Output& out, size_t most) {
  out_ = &out;
  most_ = most;
  written_ = 0;
  bool valid = true;
  while (written_ <= most) {
    const uint8_t* data = nullptr;
    const ssize_t size = nghttp2_session_mem_send(session_.get(), &data);
    valid = size >= 0;
    if (size <= 0) break;
    out.append(data, static_cast<size_t>(size));
    written_ += static_cast<size_t>(size);
  }
  out_ = nullptr;
  return valid;
}

void Connection::go_away(bool last) {
  if (refuses_) return;
  if (!last) {
    if (std::exchange(draining_, true)) return;
    nghttp2_submit_shutdown_notice(session_.get());
    nghttp2_submit_ping(session_.get(), NGHTTP2_FLAG_NONE, kDrainPing);
    return;
  }
  draining_ = refuses_ = true;
  nghttp2_submit_goaway(session_.get(), NGHTTP2_FLAG_NONE, last_, NGHTTP2_NO_ERROR, nullptr, 0);
}

void Connection::ping() { nghttp2_submit_ping(session_.get(), NGHTTP2_FLAG_NONE, nullptr); }

}  // namespace opgate::rpc
