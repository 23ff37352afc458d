// One gRPC connection of a server, without sockets: bytes of HTTP/2 in, events out; answers in, bytes of HTTP/2 out.
// nghttp2 keeps the state of HTTP/2. See README.md of this folder.
#pragma once

#include <nghttp2/nghttp2.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "header_filter.h"

namespace opgate::rpc {

struct Limits {
  uint32_t streams = 10000;         // calls at once
  size_t header_bytes = 16 << 10;   // of one call's metadata, by HTTP/2's measure: 32 more for each entry
  size_t message_bytes = 64 << 20;  // of one message
  size_t held_bytes = 512 << 20;    // of the messages and metadata of all calls
};

// The codes of https://grpc.io/docs/guides/status-codes/ that the connection itself uses.
enum Status : int { kOk = 0, kDeadlineExceeded = 4, kResourceExhausted = 8, kUnimplemented = 12, kInternal = 13 };

// Memory of a message or of a piece of it. The owner of the connection decides what it is.
struct Memory {
  void* handle = nullptr;
  char* data = nullptr;
};

// Gives the connection memory for messages, and tells it which methods there are.
class Owner {
 public:
  virtual ~Owner() = default;
  // Returns memory of this size. A null handle means that there is none.
  virtual Memory allocate(size_t size) = 0;
  // Makes memory of `allocate` larger and keeps its first bytes. Returns false, and releases it, if that fails.
  virtual bool grow(Memory& memory, size_t filled, size_t size) = 0;
  // Makes memory of `allocate` as large as a whole message and keeps its first bytes. The message ends at a multiple of
  // 64, and so the tensor at its end begins at one if it has a multiple of 64 bytes. Returns false, and releases the
  // memory, if that fails.
  virtual bool grow_to_message(Memory& memory, size_t filled, size_t size) = 0;
  virtual void release(const Memory& memory) = 0;
  // Counts bytes of messages that the connection holds, less if negative. Returns whether they are within the limit,
  // which is a little higher for those of a small call.
  virtual bool hold(ptrdiff_t bytes, bool small = false) = 0;
  // Returns the number of the method with this path, or -1. Sets whether the client sends a stream of messages.
  virtual int find(std::string_view path, bool& client_streams) = 0;
};

// Takes the bytes for the client, in their order.
class Output {
 public:
  virtual ~Output() = default;
  virtual void append(const void* data, size_t size) = 0;
  // A part of a message. `memory` is released after the call.
  virtual void refer(const Memory& memory, const char* data, size_t size) = 0;
};

using Metadata = std::vector<std::pair<std::string, std::string>>;

struct Event {
  enum Kind {
    kCall,     // a call whose only message has come
    kOpen,     // a call whose client sends a stream of messages
    kMessage,  // the next message of such a stream
    kEnd,      // the client of such a stream sends no more
    kGone,     // the call was cancelled or its connection ends
    kRefused,  // the connection itself answered, with `status` and `text`
    kNothing,  // what was announced has ended before anybody took the event
  };
  Kind kind = kGone;
  int32_t stream = 0;
  int method = -1;
  int64_t timeout_us = -1;  // -1: none
  Memory message = {};      // what takes the event owns it
  bool compressed = false;
  std::string encoding = {};  // grpc-encoding
  Metadata metadata = {};
  // Of a refused call.
  int status = kOk;
  std::string text = {};
  std::string path = {};
};

class Connection {
 public:
  Connection(Owner& owner, const Limits& limits);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Reads bytes of the client. Returns false, and sets `error`, if the connection can't go on: then what `output` still
  // gives is sent, and the connection closed.
  bool receive(const uint8_t* data, size_t size, std::string& error);

  // It is called at regular times. Ends the calls whose message did not go on since the `in`th last call, and those of
  // whose answer nothing was sent since the `out`th last. 0: none. Lets the client send some more frames without data.
  void sweep(int in, int out);

  // Gives up all calls, after the socket was closed.
  void close();

  // The events since the last call.
  std::vector<Event> events();

  // Starts the answer of a stream of messages. `encoding` is that of compressed messages.
  void begin(int32_t stream, const Metadata& metadata, std::string_view encoding);
  // Sends a message of these pieces, which it releases when they are sent.
  void send(int32_t stream, const std::vector<std::pair<Memory, size_t>>& pieces, bool compressed);
  // Ends the call with a status. Without a `begin` it is the only answer, and `initial` its other metadata.
  void end(int32_t stream, int status, std::string_view text, const Metadata& trailers, const Metadata& initial);
  // Says that a message of a stream was taken, so the client may send as many bytes more.
  void consume(int32_t stream, size_t size);
  // Counts bytes that the owner holds for a call until it ends, less if negative. Returns whether they are within the
  // limit.
  bool hold(int32_t stream, ptrdiff_t size);

  // Tells the client to make no new calls. Those on their way are still taken, until the client has seen it. With
  // `last`, calls that it makes all the same are refused.
  void go_away(bool last);
  // Asks the client for a sign of life.
  void ping();

  // Gives bytes for the client, until nothing is left or `most` bytes are exceeded. Returns false if it can't go on.
  bool output(Output& out, size_t most);

  bool is_done() const {
    return nghttp2_session_want_read(session_.get()) == 0 && nghttp2_session_want_write(session_.get()) == 0;
  }
  bool wants_write() const { return nghttp2_session_want_write(session_.get()) != 0; }
  // Whether the client has shown that it speaks HTTP/2.
  bool is_ready() const { return ready_; }
  size_t calls() const { return calls_.size(); }
  // Bytes of answers that have not been sent: of one call, and of all.
  size_t waiting(int32_t stream) const;
  size_t unsent() const { return unsent_; }
  // Why the connection ended, if the client is to blame.
  const std::string& failure() const { return failure_; }

 private:
  struct Part {
    Memory memory;
    size_t size;
    size_t at = 0;  // of the framing and the bytes
    size_t prefix_size = 0;
    char prefix[5] = {};
  };

  struct Call {
    int32_t id = 0;
    std::string method, path, content_type, encoding;
    Metadata metadata;
    int64_t timeout_us = -1;
    size_t header_bytes = 0;
    int number = -1;
    bool client_streams = false;
    bool opened = false;                        // the owner knows of it
    size_t announced_in = 0, announced_at = 0;  // the batch of events in which it was announced, and the place there
    bool ignored = false;                       // it is answered, and what still comes is dropped
    bool ended = false;                         // the client sends no more
    // The message that comes.
    unsigned char prefix[5] = {};
    size_t prefix_filled = 0;
    Memory memory;
    size_t size = 0, filled = 0, capacity = 0;
    size_t held = 0;        // bytes that the owner counts for this call
    size_t untaken = 0;     // bytes of messages that the owner has not taken
    size_t unopened = 0;    // bytes by which the window of the stream is smaller than it may be
    bool complete = false;  // a unary call's message has come
    bool compressed = false;
    bool came = false;  // something, since the last sweep
    int idle_in = 0;    // sweeps since something came
    // The answer.
    bool begun = false, finished = false, deferred = false, plain = false;
    std::deque<Part> parts;
    size_t waiting = 0;
    int status = kOk;
    std::string text;
    Metadata trailers;
    bool went = false;
    int idle_out = 0;
  };

  struct Delete {
    void operator()(nghttp2_session* session) const { nghttp2_session_del(session); }
  };

  static Connection& self(void* user) { return *static_cast<Connection*>(user); }
  static int on_begin_headers(nghttp2_session*, const nghttp2_frame*, void*);
  static int on_header(nghttp2_session*, const nghttp2_frame*, const uint8_t*, size_t, const uint8_t*, size_t, uint8_t,
                       void*);
  static int on_frame(nghttp2_session*, const nghttp2_frame*, void*);
  static int on_data(nghttp2_session*, uint8_t, int32_t, const uint8_t*, size_t, void*);
  static int on_sent(nghttp2_session*, const nghttp2_frame*, void*);
  static int on_not_sent(nghttp2_session*, const nghttp2_frame*, int, void*);
  static int on_close(nghttp2_session*, int32_t, uint32_t, void*);
  static ssize_t size_of_data(nghttp2_session*, int32_t, uint8_t*, size_t, uint32_t*, nghttp2_data_source*, void*);
  static int send_data(nghttp2_session*, nghttp2_frame*, const uint8_t*, size_t, nghttp2_data_source*, void*);
  static ssize_t frame_size(nghttp2_session*, uint8_t, int32_t, int32_t, int32_t, uint32_t, void*);

  Call* find(int32_t stream);
  void announce(Event::Kind kind, Call& call);
  void head_complete(Call& call);
  void take(Call& call, const uint8_t* data, size_t size);
  bool make_room(Call& call);
  bool hold(Call& call, size_t size);
  void let_go(Call& call, size_t size);
  void open_window(Call& call);
  void message_complete(Call& call);
  void client_ended(Call& call);
  void refuse(Call& call, int status, std::string_view text);
  void refuse_http(Call& call, const char* status, std::string_view text);
  void gone(Call& call);
  void drop(Memory& memory);
  void drop_parts(Call& call);
  void drop_all(Call& call);
  void earn(size_t frames);
  bool pay(const uint8_t* data, size_t size);

  Owner& owner_;
  Limits limits_;
  std::unique_ptr<nghttp2_session, Delete> session_;
  std::unordered_map<int32_t, std::unique_ptr<Call>> calls_;
  std::vector<Event> events_;
  size_t batch_ = 1;
  Output* out_ = nullptr;  // while `output` runs
  size_t most_ = 0, written_ = 0;
  size_t unsent_ = 0;
  size_t held_ = 0;  // by all calls
  // What bounds frames that carry nothing: how many the client may still send, and where in a frame its bytes are.
  size_t frames_left_;
  size_t earned_bytes_ = 0;
  uint8_t frame_header_[9] = {};
  size_t frame_header_filled_ = 0;
  size_t skip_;  // bytes until the next frame begins
  HeaderFilter filter_;
  bool ready_ = false;
  bool draining_ = false;
  bool refuses_ = false;
  int32_t last_ = 0;
  std::string failure_;
};

}  // namespace opgate::rpc
