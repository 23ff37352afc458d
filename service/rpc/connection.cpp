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

nghttp2_nv pair_of(std::string_view name, std::string_view value) {
  return {reinterpret_cast<uint8_t*>(const_cast<char*>(name.data())),
          reinterpret_cast<uint8_t*>(const_cast<char*>(value.data())), name.size(), value.size(), NGHTTP2_NV_FLAG_NONE};
}

void append(std::vector<nghttp2_nv>& headers, const Metadata& metadata) {
  for (const auto& [name, value] : metadata) headers.push_back(pair_of(name, value));
}

// Returns the text of a grpc-message: percent signs and what is no printable ASCII as %XX.
std::string percent_encoded(std::string_view text) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  std::string encoded;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= ' ' && byte <= '~' && byte != '%') {
      encoded += c;
    } else {
      encoded += '%';
      encoded += kDigits[byte >> 4];
      encoded += kDigits[byte & 15];
    }
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

Connection::Connection(Owner& owner, const Limits& limits) : owner_(owner), limits_(limits) {
  nghttp2_session_callbacks* callbacks = nullptr;
  if (nghttp2_session_callbacks_new(&callbacks) != 0) throw std::bad_alloc();
  nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks, on_begin_headers);
  nghttp2_session_callbacks_set_on_header_callback(callbacks, on_header);
  nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, on_frame);
  nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data);
  nghttp2_session_callbacks_set_on_frame_send_callback(callbacks, on_sent);
  nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, on_close);
  nghttp2_session_callbacks_set_data_source_read_length_callback(callbacks, frame_size);
  nghttp2_option* options = nullptr;
  if (nghttp2_option_new(&options) != 0) {
    nghttp2_session_callbacks_del(callbacks);
    throw std::bad_alloc();
  }
  nghttp2_option_set_no_auto_window_update(options, 1);
  nghttp2_option_set_no_closed_streams(options, 1);
  nghttp2_option_set_max_settings(options, 32);
  nghttp2_option_set_max_outbound_ack(options, 1000);
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

Connection::~Connection() {
  for (auto& [id, call] : calls_) {
    drop(call->memory);
    drop_parts(*call);
  }
  for (Event& event : events_) drop(event.message);
}

void Connection::drop(Memory& memory) {
  if (memory.handle != nullptr) owner_.release(memory);
  memory = {};
}

void Connection::drop_parts(Call& call) {
  for (Part& part : call.parts) {
    unsent_ -= kFraming + part.size - part.at;
    drop(part.memory);
  }
  call.parts.clear();
}

bool Connection::receive(const uint8_t* data, size_t size, std::string& error) {
  const ssize_t read = nghttp2_session_mem_recv(session_.get(), data, size);
  if (read == static_cast<ssize_t>(size)) return true;
  error = read == NGHTTP2_ERR_BAD_CLIENT_MAGIC ? "not HTTP/2" : nghttp2_strerror(static_cast<int>(read));
  return false;
}

std::vector<Event> Connection::events() { return std::exchange(events_, {}); }

Connection::Call* Connection::find(int32_t stream) {
  const auto found = calls_.find(stream);
  return found == calls_.end() ? nullptr : found->second.get();
}

size_t Connection::waiting(int32_t stream) const {
  const auto found = calls_.find(stream);
  if (found == calls_.end()) return 0;
  size_t bytes = 0;
  for (const Part& part : found->second->parts) bytes += kFraming + part.size - part.at;
  return bytes;
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
  if (call->header_bytes > me.limits_.header_bytes || frame->headers.cat != NGHTTP2_HCAT_REQUEST) return 0;
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
  } else if (name[0] != ':' && name != "te" && name != "grpc-accept-encoding") {
    call->metadata.emplace_back(name, value);
  }
  return 0;
}

int Connection::on_frame(nghttp2_session*, const nghttp2_frame* frame, void* user) {
  Connection& me = self(user);
  Call* call = me.find(frame->hd.stream_id);
  if (call == nullptr || (frame->hd.type != NGHTTP2_HEADERS && frame->hd.type != NGHTTP2_DATA)) return 0;
  if (frame->hd.type == NGHTTP2_HEADERS && frame->headers.cat == NGHTTP2_HCAT_REQUEST) me.head_complete(*call);
  if ((frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0) me.client_ended(*call);
  return 0;
}

void Connection::head_complete(Call& call) {
  if (refuses_) {
    call.ignored = true;
    nghttp2_submit_rst_stream(session_.get(), NGHTTP2_FLAG_NONE, call.id, NGHTTP2_REFUSED_STREAM);
    return;
  }
  if (call.method != "POST") return refuse_http(call, "405", "gRPC calls are POST requests");
  if (!is_grpc(call.content_type))
    return refuse_http(call, "415", "this port speaks gRPC: expected content-type application/grpc");
  if (call.header_bytes > limits_.header_bytes) {
    return refuse(call, kResourceExhausted,
                  "the metadata has " + std::to_string(call.header_bytes) + " bytes, the limit is " +
                      std::to_string(limits_.header_bytes));
  }
  if (call.timeout_us == -2) return refuse(call, kInternal, "grpc-timeout: expected digits and a unit");
  call.number = owner_.find(call.path, call.client_streams);
  if (call.number < 0) return refuse(call, kUnimplemented, "there is no method " + call.path.substr(0, 200));
  if (!call.client_streams) return;
  announce(Event::kOpen, call);
}

// Tells the owner of a new call.
void Connection::announce(Event::Kind kind, Call& call) {
  call.opened = true;
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
    if (call.complete) {
      refuse(call, kInternal, "a unary call has more than one message");
      return;
    }
    if (call.head_filled < kFraming) {
      const size_t part = std::min(size, kFraming - call.head_filled);
      std::memcpy(call.head + call.head_filled, data, part);
      call.head_filled += part;
      data += part;
      size -= part;
      if (call.head_filled < kFraming) return;
      call.size = static_cast<size_t>(call.head[1]) << 24 | static_cast<size_t>(call.head[2]) << 16 |
                  static_cast<size_t>(call.head[3]) << 8 | call.head[4];
      call.filled = 0;
      call.compressed = call.head[0] == 1;
      if (call.head[0] > 1) {
        refuse(call, kInternal,
               "a message begins with a flag of " + std::to_string(call.head[0]) + ", expected 0 or 1");
        return;
      }
      if (call.size > limits_.message_bytes) {
        refuse(call, kResourceExhausted,
               "the message has " + std::to_string(call.size) + " bytes, the limit is " +
                   std::to_string(limits_.message_bytes));
        return;
      }
      call.memory = owner_.allocate(call.size);
      if (call.memory.handle == nullptr) {
        refuse(call, kResourceExhausted, "the messages that are read at this moment take all the memory for them");
        return;
      }
    }
    const size_t part = std::min(size, call.size - call.filled);
    std::memcpy(call.memory.data + call.filled, data, part);
    call.filled += part;
    data += part;
    size -= part;
    if (call.filled == call.size) message_complete(call);
  }
}

void Connection::message_complete(Call& call) {
  call.head_filled = 0;
  if (!call.client_streams) {
    call.complete = true;
    return;
  }
  Event event{Event::kMessage, call.id};
  event.message = std::exchange(call.memory, {});
  call.untaken += call.size;
  event.compressed = call.compressed;
  events_.push_back(std::move(event));
}

void Connection::client_ended(Call& call) {
  call.ended = true;
  if (call.ignored) return;
  if (call.head_filled != 0) return refuse(call, kInternal, "the call ended in the middle of a message");
  if (call.client_streams) {
    events_.push_back(Event{Event::kEnd, call.id});
    return;
  }
  if (!call.complete) return refuse(call, kInternal, "a unary call has no message");
  announce(Event::kCall, call);
}

void Connection::refuse(Call& call, int status, std::string_view text) {
  drop(call.memory);
  if (call.opened) {  // the owner must know
    events_.push_back(Event{Event::kGone, call.id});
    call.opened = false;
  }
  Event event{Event::kRefused, call.id};
  event.status = status;
  event.text = text;
  event.path = call.path.substr(0, 200);
  events_.push_back(std::move(event));
  end(call.id, status, text, {});
}

void Connection::refuse_http(Call& call, const char* status, std::string_view text) {
  call.ignored = call.begun = call.finished = true;
  Memory memory = owner_.allocate(text.size());
  std::vector<nghttp2_nv> headers = {pair_of(":status", status), pair_of("content-type", "text/plain")};
  if (memory.handle == nullptr) {
    nghttp2_submit_response(session_.get(), call.id, headers.data(), headers.size(), nullptr);
    return;
  }
  std::memcpy(memory.data, text.data(), text.size());
  Part part{memory, text.size(), kFraming, {}};  // without the framing of gRPC
  call.parts.push_back(part);
  unsent_ += text.size();
  call.status = -1;
  nghttp2_data_provider provider{{0}, read_parts};
  nghttp2_submit_response(session_.get(), call.id, headers.data(), headers.size(), &provider);
}

int Connection::on_close(nghttp2_session*, int32_t stream, uint32_t, void* user) {
  Connection& me = self(user);
  const auto found = me.calls_.find(stream);
  if (found == me.calls_.end()) return 0;
  Call& call = *found->second;
  if (call.opened && !call.finished) me.events_.push_back(Event{Event::kGone, stream});
  me.drop(call.memory);
  me.drop_parts(call);
  me.calls_.erase(found);
  return 0;
}

void Connection::consume(int32_t stream, size_t size) {
  Call* call = find(stream);
  if (call == nullptr) return;
  call->untaken -= std::min(call->untaken, size);
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
  nghttp2_data_provider provider{{0}, read_parts};
  nghttp2_submit_response(session_.get(), stream, headers.data(), headers.size(), &provider);
}

void Connection::send(int32_t stream, Memory message, size_t size, bool compressed) {
  Call* call = find(stream);
  if (call == nullptr || call->finished || size > UINT32_MAX) {
    drop(message);
    return;
  }
  Part part{message, size, 0, {}};
  part.head[0] = compressed ? 1 : 0;
  for (int i = 0; i < 4; ++i) part.head[1 + i] = static_cast<char>(size >> (24 - 8 * i));
  call->parts.push_back(part);
  unsent_ += kFraming + size;
  if (call->deferred) {
    call->deferred = false;
    nghttp2_session_resume_data(session_.get(), stream);
  }
}

void Connection::end(int32_t stream, int status, std::string_view text, const Metadata& metadata) {
  Call* call = find(stream);
  if (call == nullptr || call->finished) return;
  call->finished = call->ignored = true;
  if (call->begun) {
    call->status = status;
    call->text = percent_encoded(text);
    call->trailers = metadata;
    if (call->deferred) {
      call->deferred = false;
      nghttp2_session_resume_data(session_.get(), stream);
    }
    return;
  }
  call->begun = true;
  const std::string code = std::to_string(status), message = percent_encoded(text);
  std::vector<nghttp2_nv> headers = {pair_of(":status", "200"), pair_of("content-type", "application/grpc"),
                                     pair_of("grpc-status", code)};
  if (!message.empty()) headers.push_back(pair_of("grpc-message", message));
  append(headers, metadata);
  nghttp2_submit_response(session_.get(), stream, headers.data(), headers.size(), nullptr);
}

// When the answer is sent, the client need not send the rest of its messages.
int Connection::on_sent(nghttp2_session* session, const nghttp2_frame* frame, void* user) {
  if (frame->hd.type != NGHTTP2_HEADERS || (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) == 0) return 0;
  const Call* call = self(user).find(frame->hd.stream_id);
  if (call != nullptr && !call->ended) {
    nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, frame->hd.stream_id, NGHTTP2_NO_ERROR);
  }
  return 0;
}

ssize_t Connection::read_parts(nghttp2_session* session, int32_t stream, uint8_t* to, size_t room, uint32_t* flags,
                               nghttp2_data_source*, void* user) {
  Connection& me = self(user);
  Call* call = me.find(stream);
  if (call == nullptr) return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
  size_t written = 0;
  while (!call->parts.empty() && written < room) {
    Part& part = call->parts.front();
    if (part.at < kFraming) {
      const size_t piece = std::min(room - written, kFraming - part.at);
      std::memcpy(to + written, part.head + part.at, piece);
      part.at += piece;
      written += piece;
      if (part.at < kFraming) break;
    }
    const size_t piece = std::min(room - written, kFraming + part.size - part.at);
    std::memcpy(to + written, part.memory.data + part.at - kFraming, piece);
    part.at += piece;
    written += piece;
    if (part.at < kFraming + part.size) break;
    me.drop(part.memory);
    call->parts.pop_front();
  }
  me.unsent_ -= written;
  if (!call->parts.empty()) return static_cast<ssize_t>(written);
  if (!call->finished) {
    if (written != 0) return static_cast<ssize_t>(written);
    call->deferred = true;
    return NGHTTP2_ERR_DEFERRED;
  }
  *flags |= NGHTTP2_DATA_FLAG_EOF;
  if (call->status < 0) return static_cast<ssize_t>(written);  // not an answer of gRPC
  *flags |= NGHTTP2_DATA_FLAG_NO_END_STREAM;
  const std::string code = std::to_string(call->status);
  std::vector<nghttp2_nv> trailers = {pair_of("grpc-status", code)};
  if (!call->text.empty()) trailers.push_back(pair_of("grpc-message", call->text));
  append(trailers, call->trailers);
  nghttp2_submit_trailer(session, stream, trailers.data(), trailers.size());
  return static_cast<ssize_t>(written);
}

ssize_t Connection::frame_size(nghttp2_session*, uint8_t, int32_t, int32_t session_window, int32_t stream_window,
                               uint32_t remote_limit, void*) {
  const int32_t most = std::min({session_window, stream_window, static_cast<int32_t>(kFrameSize)});
  return std::min(most, static_cast<int32_t>(std::min<uint32_t>(remote_limit, kFrameSize)));
}

bool Connection::output(std::string& out, size_t most) {
  while (out.size() <= most) {
    const uint8_t* data = nullptr;
    const ssize_t size = nghttp2_session_mem_send(session_.get(), &data);
    if (size < 0) return false;
    if (size == 0) break;
    out.append(reinterpret_cast<const char*>(data), static_cast<size_t>(size));
  }
  return true;
}

void Connection::go_away(bool last) {
  if (!last) {
    nghttp2_submit_shutdown_notice(session_.get());
    return;
  }
  refuses_ = true;
  nghttp2_submit_goaway(session_.get(), NGHTTP2_FLAG_NONE, last_, NGHTTP2_NO_ERROR, nullptr, 0);
}

}  // namespace opgate::rpc
