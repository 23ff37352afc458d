// Feeds any bytes to a connection, does with its events what an owner may do, and looks at what a client would see.
// make_corpus.py describes an input. libFuzzer calls LLVMFuzzerTestOneInput. With -DFUZZ_MAIN, a main runs files.
#include <nghttp2/nghttp2.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "connection.h"

namespace {

using namespace opgate::rpc;

constexpr std::string_view kPreface = NGHTTP2_CLIENT_MAGIC;
constexpr std::string_view kWrongMethod = "gRPC calls are POST requests\n";
constexpr std::string_view kWrongType = "this port speaks gRPC: expected content-type application/grpc\n";
constexpr Limits kLimits = {.streams = 24, .header_bytes = 2048, .message_bytes = 1400 << 10};
constexpr ptrdiff_t kBudget = 4 << 20, kSmallBudget = 4 << 10;
constexpr size_t kFrameHead = 9, kFraming = 5, kWindow = 65535, kMostText = 5000;
// Memory larger than the first part is for a message of which an eighth of it has come, or the last part.
constexpr size_t kFirstPart = 16 << 10, kLastPart = 1 << 20, kGrowth = 8;
constexpr uint8_t kRepeat = 0xee;          // the type of a frame that stands for many others
constexpr size_t kMostBytes = 1400 << 10;  // of an input with its repetitions
constexpr size_t kMostPieces = 2000;       // that an input is cut into
constexpr size_t kMostMade = 4 << 20;      // bytes of answers, so that no input takes long
constexpr size_t kLookedAt = 64;           // calls that are over
constexpr size_t kAnswers[] = {3, 0, 100, 5000, 16379, 20000, 65530, 70000};

enum Flag : uint8_t {
  kRaw = 1,         // the input has a preface of its own, or none
  kPoor = 2,        // the budget is small
  kScarce = 4,      // every fourth allocation fails
  kHalf = 8,        // the connection ends when half of the bytes have come
  kTakesNone = 16,  // the client takes nothing before the end
  kLate = 32,       // what has not been answered is answered at the end
};

// What was seen in all inputs. A test looks whether the corpus reaches all of it.
struct Counts {
  size_t events[7] = {};
  size_t failures = 0, ends = 0, resets = 0, grown = 0, denied = 0, over = 0;
} counts;

void check(bool truth, const char* rule) {
  if (truth) return;
  std::fprintf(stderr, "broken rule: %s\n", rule);
  std::abort();
}

size_t number_at(std::string_view bytes, size_t at, size_t size) {
  size_t number = 0;
  for (size_t i = 0; i < size; ++i) number = number << 8 | static_cast<uint8_t>(bytes[at + i]);
  return number;
}

// ---- The owner ----

class Messages final : public Owner {
 public:
  Messages(ptrdiff_t limit, bool scarce) : limit_(limit), scarce_(scarce) {}
  ~Messages() override {
    check(sizes_.empty(), "every message is released");
    check(used_ == 0, "the budget is empty when the connection has ended");
  }

  Memory allocate(size_t size) override {
    check(size <= kLimits.message_bytes, "no message is larger than the limit");
    if (size == kWrongMethod.size() || size == kWrongType.size()) texts_ += size;
    const Memory memory = denies() ? Memory{} : make(size);
    if (memory.handle != nullptr) coming_[memory.handle] = size;
    return memory;
  }

  bool grow(Memory& memory, size_t filled, size_t size) override {
    check(filled <= size_of(memory), "a message keeps bytes that it has");
    check(size > size_of(memory) && size <= kLimits.message_bytes, "a message grows to its size");
    ++counts.grown;
    Memory larger = denies() ? Memory{} : make(size);
    if (larger.handle != nullptr) std::memcpy(larger.data, memory.data, filled);
    release(memory);
    if (larger.handle != nullptr) coming_[larger.handle] = size;
    memory = larger;
    return larger.handle != nullptr;
  }

  bool grow_to_message(Memory& memory, size_t filled, size_t size) override { return grow(memory, filled, size); }

  void release(const Memory& memory) override {
    check(sizes_.erase(memory.handle) == 1, "a message is released once");
    coming_.erase(memory.handle);
    std::free(memory.handle);
  }

  bool hold(ptrdiff_t bytes, bool) override {
    used_ += bytes;
    check(used_ >= 0, "the budget is never negative");
    if (used_ > limit_) ++counts.over;
    return used_ <= limit_;
  }

  int find(std::string_view path, bool& client_streams) override {
    client_streams = path == "/t/S";
    return path == "/t/U" ? 0 : client_streams ? 1 : -1;
  }

  Memory make(size_t size) {
    // A handle is never null. Memory of exactly this size lets the sanitizer see the byte behind it.
    void* memory = std::malloc(std::max<size_t>(size, 1));
    sizes_[memory] = size;
    return {memory, static_cast<char*>(memory)};
  }

  size_t size_of(const Memory& memory) const {
    const auto found = sizes_.find(memory.handle);
    check(found != sizes_.end() && memory.data == memory.handle, "a message is one that is there");
    return found->second;
  }

  // The owner has got a message, and it is no longer the connection's.
  void hand_over(const Memory& memory) { coming_.erase(memory.handle); }

  // The bytes that have come at least of messages that the connection has.
  size_t coming() const {
    size_t bytes = 0;
    for (const auto& [handle, size] : coming_) {
      if (size > kFirstPart) bytes += size > kLastPart ? kLastPart : size / kGrowth;
    }
    return bytes;
  }

  size_t used() const { return static_cast<size_t>(used_); }
  // The bytes that the connection may have asked for to answer what is no gRPC.
  size_t texts() const { return texts_; }

 private:
  bool denies() {
    const bool denied = scarce_ && ++asked_ % 4 == 0;
    counts.denied += denied;
    return denied;
  }

  std::unordered_map<void*, size_t> sizes_, coming_;
  ptrdiff_t used_ = 0, limit_;
  size_t texts_ = 0, asked_ = 0;
  bool scarce_;
};

// ---- The client ----

// Takes what the connection sends apart, and compares it with what the owner has sent.
class Client final : public Output {
 public:
  struct Stream {
    std::string expected;  // framing and messages
    size_t seen = 0;
    bool headers = false, ended = false, reset = false;
  };

  explicit Client(const Messages& messages) : messages_(messages) {
    nghttp2_hd_inflater* inflater = nullptr;
    check(nghttp2_hd_inflate_new(&inflater) == 0, "there is memory for an inflater");
    inflater_.reset(inflater);
  }

  void append(const void* data, size_t size) override {
    bytes_.append(static_cast<const char*>(data), size);
    taken += size;
    size_t at = 0;
    while (bytes_.size() - at >= kFrameHead) {
      const size_t length = number_at(bytes_, at, 3);
      if (bytes_.size() - at < kFrameHead + length) break;
      frame(static_cast<uint8_t>(bytes_[at + 3]), static_cast<uint8_t>(bytes_[at + 4]),
            static_cast<int32_t>(number_at(bytes_, at + 5, 4)),
            std::string_view(bytes_).substr(at + kFrameHead, length));
      largest = std::max(largest, kFrameHead + length);
      at += kFrameHead + length;
    }
    bytes_.erase(0, at);
  }

  void refer(const Memory& memory, const char* data, size_t size) override {
    const size_t whole = messages_.size_of(memory);
    check(data >= memory.data && data + size <= memory.data + whole, "a part of a message is inside it");
    append(data, size);
  }

  bool is_between_frames() const { return bytes_.empty(); }

  std::map<int32_t, Stream> streams;
  size_t payload = 0;  // bytes of DATA
  size_t taken = 0, largest = 0;
  bool failed = false;  // the connection told the client that it ends

 private:
  struct Delete {
    void operator()(nghttp2_hd_inflater* inflater) const { nghttp2_hd_inflate_del(inflater); }
  };

  void frame(uint8_t type, uint8_t flags, int32_t id, std::string_view bytes) {
    check((type == NGHTTP2_CONTINUATION) == (block_of_ != 0), "a block of headers is not interrupted");
    switch (type) {
      case NGHTTP2_DATA: return data(flags, id, bytes);
      case NGHTTP2_HEADERS:
        check(flags == (flags & (NGHTTP2_FLAG_END_STREAM | NGHTTP2_FLAG_END_HEADERS)), "headers are plain");
        block_of_ = id;
        block_ends_ = (flags & NGHTTP2_FLAG_END_STREAM) != 0;
        [[fallthrough]];
      case NGHTTP2_CONTINUATION:
        check(block_of_ == id, "a block of headers is of one stream");
        block_ += bytes;
        if ((flags & NGHTTP2_FLAG_END_HEADERS) != 0) headers();
        return;
      case NGHTTP2_RST_STREAM:
        streams[id].reset = true;
        ++counts.resets;
        return;
      case NGHTTP2_GOAWAY: failed = failed || number_at(bytes, 4, 4) != 0; return;
      case NGHTTP2_SETTINGS:
      case NGHTTP2_PING: check(id == 0, "settings and pings are of the connection"); return;
      case NGHTTP2_WINDOW_UPDATE: check(number_at(bytes, 0, 4) != 0, "a window grows"); return;
      default: check(false, "a server sends no other frames");
    }
  }

  void data(uint8_t flags, int32_t id, std::string_view bytes) {
    Stream& stream = streams[id];
    check(stream.headers && !stream.ended && !stream.reset, "data come between headers and the end");
    payload += bytes.size();
    const size_t from = stream.seen;
    stream.seen += bytes.size();
    const bool ends = (flags & NGHTTP2_FLAG_END_STREAM) != 0;
    stream.ended = ends;
    counts.ends += ends;
    if (stream.expected.empty()) {  // it was no gRPC
      const auto is = [&](std::string_view text) {
        return text.substr(std::min(from, text.size()), bytes.size()) == bytes && ends == (stream.seen == text.size());
      };
      check(is(kWrongMethod) || is(kWrongType), "what is no gRPC gets a text");
      return;
    }
    check(!ends, "a call ends with trailers");
    check(stream.seen <= stream.expected.size() && stream.expected.compare(from, bytes.size(), bytes) == 0,
          "the client gets the bytes that were sent");
  }

  void headers() {
    Stream& stream = streams[std::exchange(block_of_, 0)];
    check(!stream.ended && !stream.reset, "no headers come after the end");
    const bool first = !std::exchange(stream.headers, true);
    stream.ended = block_ends_;
    size_t statuses = 0, number = 0;
    bool is_grpc = true;
    const auto* at = reinterpret_cast<const uint8_t*>(block_.data());
    size_t left = block_.size();
    for (int flags = 0; (flags & NGHTTP2_HD_INFLATE_FINAL) == 0;) {
      nghttp2_nv pair;
      const ssize_t read = nghttp2_hd_inflate_hd2(inflater_.get(), &pair, &flags, at, left, 1);
      check(read >= 0, "headers can be read");
      at += read;
      left -= static_cast<size_t>(read);
      if ((flags & NGHTTP2_HD_INFLATE_EMIT) == 0) continue;
      const std::string_view name(reinterpret_cast<const char*>(pair.name), pair.namelen);
      const std::string_view value(reinterpret_cast<const char*>(pair.value), pair.valuelen);
      check((name == ":status") == (first && number++ == 0), "an answer begins with its only :status");
      if (name == ":status") is_grpc = value == "200";
      statuses += name == "grpc-status";
      check(name != "grpc-message" || value.size() < kMostText, "a text is short enough for clients");
      for (const char c : value) check(c >= ' ' && c <= '~', "values are printable");
    }
    nghttp2_hd_inflate_end_headers(inflater_.get());
    block_.clear();
    check(statuses == (block_ends_ && is_grpc ? 1 : 0), "the last headers of a call have its status");
    if (!first) check(stream.seen == stream.expected.size(), "trailers come after all messages");
    counts.ends += block_ends_;
  }

  const Messages& messages_;
  std::unique_ptr<nghttp2_hd_inflater, Delete> inflater_;
  std::string bytes_, block_;
  int32_t block_of_ = 0;
  bool block_ends_ = false;
};

// ---- What happens between the bytes ----

// Bytes that decide. They are used in their order, again and again.
class Script {
 public:
  explicit Script(std::string_view bytes) : bytes_(bytes) {}
  uint8_t next() { return bytes_.empty() ? 0 : static_cast<uint8_t>(bytes_[at_++ % bytes_.size()]); }

 private:
  std::string_view bytes_;
  size_t at_ = 0;
};

class Run {
 public:
  Run(uint8_t flags, Script script)
      : flags_(flags),
        script_(script),
        messages_((flags & kPoor) != 0 ? kSmallBudget : kBudget, (flags & kScarce) != 0),
        client_(messages_),
        connection_(std::make_unique<Connection>(messages_, kLimits)) {}

  ~Run() {
    connection_->close();
    check(messages_.used() == 0 && connection_->calls() == 0 && connection_->unsent() == 0,
          "nothing is left at the end");
    connection_.reset();
    for (const auto& [id, memory] : kept_) messages_.release(memory);
  }

  // Returns whether the connection goes on.
  bool receive(std::string_view piece) {
    // A copy, so that no byte behind the piece can be read unseen.
    const std::unique_ptr<uint8_t[]> exact(new uint8_t[piece.size()]);
    std::memcpy(exact.get(), piece.data(), piece.size());
    std::string error;
    goes_on_ = connection_->receive(exact.get(), piece.size(), error);
    check(goes_on_ == error.empty(), "a connection that can't go on says why");
    counts.failures += !goes_on_;
    take_events();
    act(script_.next());
    look();
    return goes_on_ && !connection_->is_done();
  }

  // `is_plain`: the client has reset nothing and set nothing.
  void finish(bool is_plain) {
    if ((flags_ & kLate) != 0) {
      while (!pending_.empty()) answer_one();
    }
    if ((flags_ & kHalf) == 0) {
      flags_ &= static_cast<uint8_t>(~kTakesNone);
      take_output(SIZE_MAX);
      look();
      if (!valid_) return;
      check(connection_->failure().empty() == !client_.failed, "a client that is to blame is told");
      if (is_plain && goes_on_ && !client_.failed && sent_ + messages_.texts() < kWindow) look_at_ends();
      if (goes_on_ && !client_.failed) sweep_all();
    }
  }

 private:
  struct Call {
    Event::Kind kind = Event::kCall;
    bool ended = false;  // by the client
    bool gone = false, begun = false, finished = false;
    size_t sent = 0;
    ptrdiff_t held = 0;
  };

  void take_events() {
    std::vector<Event> events = connection_->events();
    // The connection has ended these calls already, and drops what is sent in them while older events are handled.
    for (const Event& event : events) {
      if (event.kind == Event::kGone || event.kind == Event::kRefused) over_.insert(event.stream);
    }
    for (Event& event : events) {
      ++counts.events[event.kind];
      messages_.hand_over(event.message);
      switch (event.kind) {
        case Event::kCall:
        case Event::kOpen: opened(event); break;
        case Event::kMessage: message(event); break;
        case Event::kEnd: client_ended(event.stream); break;
        case Event::kGone: {
          Call& call = known(event.stream);
          check(!call.gone, "a call goes once");
          call.gone = call.finished = true;
          break;
        }
        case Event::kRefused:
          check(event.status != kOk && !event.text.empty(), "a refused call has a reason");
          check(refused_.insert(event.stream).second, "a call is refused once");
          if (const auto found = calls_.find(event.stream); found != calls_.end()) {
            check(found->second.gone, "a call that is known goes before it is refused");
          }
          break;
        case Event::kNothing: break;
      }
      check(event.kind == Event::kCall || event.message.handle == nullptr, "no other event has a message");
    }
  }

  Call& known(int32_t stream) {
    const auto found = calls_.find(stream);
    check(found != calls_.end(), "what happens in a call comes after the call");
    return found->second;
  }

  void opened(Event& event) {
    check(event.stream > 0 && event.stream % 2 == 1, "a client opens streams with odd numbers");
    check(refused_.count(event.stream) == 0, "a refused call is not announced");
    const auto [at, is_new] = calls_.try_emplace(event.stream);
    check(is_new, "a call is announced once");
    at->second.kind = event.kind;
    check(event.method == (event.kind == Event::kCall ? 0 : 1), "a method is called as it is");
    check(event.timeout_us >= -1, "a timeout is a number or none");
    size_t size = 0;
    for (const auto& [name, value] : event.metadata) size += name.size() + value.size() + 32;
    check(size <= kLimits.header_bytes, "metadata are within the limit");
    streams_.push_back(event.stream);
    if (event.kind == Event::kOpen) {
      if (script_.next() % 2 == 0) begin(event.stream);
      return;
    }
    at->second.ended = true;
    read(event.message);
    const uint8_t choice = script_.next();
    if (choice % 8 == 7) {  // the answer is the message
      begin(event.stream);
      send(event.stream, {{event.message, messages_.size_of(event.message)}}, event.compressed);
      event.message = {};
      end(event.stream, kOk);
      return;
    }
    messages_.release(std::exchange(event.message, {}));
    if (choice % 8 < 3) {
      answer(event.stream, choice);
    } else if (choice % 8 < 6) {
      pending_.push_back(event.stream);
    }
  }

  void message(Event& event) {
    const Call& call = known(event.stream);
    check(call.kind == Event::kOpen && !call.ended && !call.gone, "messages come while a call is open");
    read(event.message);
    const size_t size = messages_.size_of(event.message);
    switch (script_.next() % 4) {
      case 0:
        messages_.release(event.message);
        connection_->consume(event.stream, size);
        break;
      case 1: kept_.emplace_back(event.stream, event.message); break;
      case 2:
        messages_.release(event.message);
        send_some(event.stream, script_.next());
        break;
      case 3:  // an echo
        send(event.stream, {{event.message, size}}, event.compressed);
        connection_->consume(event.stream, size);
        break;
    }
    event.message = {};
  }

  void client_ended(int32_t stream) {
    Call& call = known(stream);
    check(call.kind == Event::kOpen && !call.ended && !call.gone, "the client of a call ends it once");
    call.ended = true;
    const uint8_t choice = script_.next();
    if (choice % 4 == 0) {
      answer(stream, choice);
    } else if (choice % 4 < 3) {
      pending_.push_back(stream);
    }
  }

  void read(const Memory& memory) {
    for (size_t i = 0; i < messages_.size_of(memory); ++i) sum_ += static_cast<uint8_t>(memory.data[i]);
  }

  // ---- What the owner does ----

  void begin(int32_t stream) {
    Call& call = known(stream);
    connection_->begin(stream, {{"x-first", "1"}, {"x-second-bin", "AAAA"}}, call.sent % 2 == 0 ? "" : "gzip");
    call.begun = true;
  }

  void send(int32_t stream, const std::vector<std::pair<Memory, size_t>>& pieces, bool compressed) {
    Call& call = known(stream);
    if (!call.finished && over_.count(stream) == 0) {
      std::string bytes(kFraming, compressed ? '\1' : '\0');
      for (const auto& [memory, size] : pieces) bytes.append(memory.data, size);
      for (size_t i = 1; i < kFraming; ++i) {
        bytes[i] = static_cast<char>((bytes.size() - kFraming) >> (8 * (kFraming - 1 - i)));
      }
      client_.streams[stream].expected += bytes;
      call.sent += bytes.size();
      sent_ += bytes.size();
    }
    connection_->send(stream, pieces, compressed);
  }

  void send_some(int32_t stream, uint8_t choice) {
    const size_t size = made_ < kMostMade ? kAnswers[choice % std::size(kAnswers)] : kAnswers[0];
    made_ += size;
    std::vector<std::pair<Memory, size_t>> pieces;
    for (size_t i = 0, at = 0, count = 1 + choice % 3; i < count; ++i) {
      const size_t part = i + 1 == count ? size - at : size / 5 * i;  // the first of several is empty
      const Memory memory = messages_.make(part);
      for (size_t j = 0; j < part; ++j)
        memory.data[j] = static_cast<char>(static_cast<size_t>(stream) * 7 + at++ * 131);
      pieces.emplace_back(memory, part);
    }
    send(stream, pieces, choice % 5 == 0);
  }

  // `length` of 14 or 15 is of a text or of metadata that is longer than anybody takes.
  void end(int32_t stream, int status, int length = 0) {
    Call& call = known(stream);
    std::string text;
    if (status != kOk) text = "100% wrong\n\xff" + std::string(length == 14 ? 9000 : length, 'e');
    const std::string value(length != 15 ? 1 : sum_ % 2 == 0 ? 30'000 : 70'000, 'v');
    connection_->end(stream, status, text, {{"x-last", value}}, {{"x-first", "1"}});
    call.finished = true;
  }

  void answer(int32_t stream, uint8_t choice) {
    if (choice % 16 < 10) {
      begin(stream);
      send_some(stream, choice / 16);
    }
    end(stream, choice % 3 == 2 ? choice % 17 : kOk, choice / 16);
  }

  void answer_one() {
    const int32_t stream = pending_.front();
    pending_.pop_front();
    answer(stream, script_.next());
  }

  void act(uint8_t choice) {
    const uint8_t more = choice / 16;
    size_t most = SIZE_MAX;
    switch (choice % 16) {
      case 1: most = more * 64; break;
      case 2: return;
      case 3:
        connection_->sweep(more % 4, more / 4);
        take_events();
        break;
      case 4: connection_->ping(); break;
      case 5: connection_->go_away(more >= 8); break;
      case 6:
        if (!streams_.empty()) hold(streams_[more % streams_.size()], more);
        break;
      case 7:
        if (!pending_.empty()) answer_one();
        break;
      case 8:
        while (!pending_.empty()) answer_one();
        break;
      case 9:
        if (!kept_.empty()) {
          const auto [stream, memory] = kept_.front();
          kept_.pop_front();
          const size_t size = messages_.size_of(memory);
          messages_.release(memory);
          connection_->consume(stream, size);
        }
        break;
      case 10:
        if (!streams_.empty()) send_some(streams_[more % streams_.size()], script_.next());
        break;
      case 11:
        if (!streams_.empty()) begin(streams_[more % streams_.size()]);
        break;
      case 12:
        if (!streams_.empty()) end(streams_[more % streams_.size()], more, more);
        break;
      case 13: wrong(more); break;
      case 14:
        connection_->sweep(more % 4, more / 4);
        take_events();
        return;
      default: break;
    }
    take_output(most);
  }

  // Holds some bytes more, or gives back all that it has held.
  void hold(int32_t stream, uint8_t more) {
    Call& call = known(stream);
    const ptrdiff_t size = more < 12 ? more * 500 : -std::exchange(call.held, 0);
    if (!call.finished && size > 0) call.held += size;
    // An owner ends a call that would hold too much.
    if (!connection_->hold(stream, size)) end(stream, kResourceExhausted);
  }

  // Calls that the connection must bear: of streams that there are not.
  void wrong(uint8_t more) {
    constexpr int32_t kStreams[] = {0, 2, -1, INT32_MAX - 1};
    const int32_t stream = kStreams[more % std::size(kStreams)];
    const Memory memory = messages_.make(more);
    connection_->begin(stream, {}, "gzip");
    connection_->send(stream, {{memory, more}}, true);
    connection_->end(stream, kInternal, "nothing", {}, {});
    connection_->consume(stream, 1 << 20);
    check(connection_->hold(stream, 1 << 30), "a call that there is not holds nothing");
    check(connection_->waiting(stream) == 0, "nothing waits in a call that there is not");
  }

  void take_output(size_t most) {
    if ((flags_ & kTakesNone) != 0 || !valid_) return;
    client_.taken = client_.largest = 0;
    valid_ = connection_->output(client_, most);
    check(client_.is_between_frames(), "the output ends with a frame");
    check(most == SIZE_MAX || client_.taken <= most + client_.largest + kPreface.size(),
          "the output ends soon after as many bytes as were asked for");
  }

  // ---- What must be true after each step ----

  void look() {
    size_t waiting = 0;
    for (const int32_t stream : streams_) {
      const size_t waits = connection_->waiting(stream);
      waiting += waits;
      const Client::Stream& seen = client_.streams[stream];
      check(waits <= seen.expected.size() - seen.seen, "a call waits for what was sent at most");
    }
    const size_t unsent = connection_->unsent();
    check(unsent >= waiting, "all calls wait for what each waits for");
    check(unsent - waiting <= messages_.texts(), "only what is no gRPC waits besides");
    check(unsent + client_.payload <= sent_ + messages_.texts(), "no more waits than was sent");
    check(messages_.used() >= unsent + messages_.coming(), "the budget counts what waits and what comes");
    check(connection_->calls() <= kLimits.streams, "there are no more calls than allowed");
    // Calls that are over are looked at no more when there are many.
    if (streams_.size() > kLookedAt) {
      std::erase_if(streams_, [&](int32_t id) { return calls_[id].finished && connection_->waiting(id) == 0; });
    }
  }

  // A client that can take everything has got the end of each call that was ended.
  void look_at_ends() {
    for (const auto& [id, call] : calls_) {
      const Client::Stream& stream = client_.streams[id];
      if (call.finished || refused_.count(id) != 0) check(stream.ended || stream.reset, "a call that ends is answered");
    }
    for (const int32_t id : refused_) {
      const Client::Stream& stream = client_.streams[id];
      check(stream.ended || stream.reset, "a refused call is answered");
    }
  }

  // When the owner has ended its calls, and the client does nothing, none is left.
  void sweep_all() {
    for (int i = 0; i < 4; ++i) {
      for (const auto& [id, call] : calls_) {
        if (!call.finished) end(id, kOk);
      }
      connection_->sweep(1, 1);
      take_events();
      take_output(SIZE_MAX);
    }
    check(!valid_ || client_.failed || connection_->calls() == 0, "no call is left for ever");
  }

  uint8_t flags_;
  Script script_;
  Messages messages_;
  Client client_;
  std::unique_ptr<Connection> connection_;
  std::map<int32_t, Call> calls_;
  std::vector<int32_t> streams_;  // those of the calls, in their order
  std::set<int32_t> refused_, over_;
  std::deque<int32_t> pending_;
  std::deque<std::pair<int32_t, Memory>> kept_;
  size_t sent_ = 0, sum_ = 0, made_ = 0;
  bool goes_on_ = true, valid_ = true;
};

// ---- The input ----

// The bytes for the connection: frames, of which some stand for many.
class Bytes {
 public:
  explicit Bytes(std::string_view input, bool raw) : plain_(!raw) {
    if (!raw) {
      bytes_ = kPreface;
    } else if (input.substr(0, kPreface.size()) == kPreface) {
      bytes_ = kPreface;
      input.remove_prefix(kPreface.size());
    }
    add(input, 0, true);
  }

  const std::string& bytes() const { return bytes_; }
  // Whether the client leaves all streams and settings as they are.
  bool is_plain() const { return plain_; }

 private:
  void add(std::string_view input, uint32_t streams_later, bool repeats) {
    while (!input.empty() && bytes_.size() < kMostBytes) {
      const size_t size = input.size() < kFrameHead ? input.size() : kFrameHead + number_at(input, 0, 3);
      std::string frame(input.substr(0, size));
      input.remove_prefix(frame.size());
      const uint8_t type = frame.size() < kFrameHead ? 0 : static_cast<uint8_t>(frame[3]);
      if (repeats && type == kRepeat && frame.size() >= kFrameHead + 2) {
        const bool moves_on = (frame[4] & 1) != 0;
        const auto count = static_cast<uint32_t>(number_at(frame, kFrameHead, 2));
        for (uint32_t i = 0; i < count; ++i)
          add(std::string_view(frame).substr(kFrameHead + 2), moves_on ? 2 * i : 0, false);
        continue;
      }
      if (type == NGHTTP2_RST_STREAM || (type == NGHTTP2_SETTINGS && frame.size() > kFrameHead)) plain_ = false;
      if (streams_later != 0 && frame.size() >= kFrameHead && number_at(frame, 5, 4) != 0) {
        const size_t stream = number_at(frame, 5, 4) + streams_later;
        for (size_t i = 0; i < 4; ++i) frame[5 + i] = static_cast<char>(stream >> (24 - 8 * i));
      }
      bytes_ += frame;
    }
  }

  std::string bytes_;
  bool plain_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  if (input.size() < 3) return 0;
  const uint8_t flags = data[0], cut = data[1], script_size = data[2];
  input.remove_prefix(3);
  const std::string_view script = input.substr(0, script_size);
  input.remove_prefix(script.size());
  const Bytes bytes(input, (flags & kRaw) != 0);
  std::string_view rest = bytes.bytes();
  if ((flags & kHalf) != 0) rest = rest.substr(0, rest.size() / 2);
  const size_t step = cut == 0 ? SIZE_MAX : std::max<size_t>(cut, rest.size() / kMostPieces + 1);
  Run run(flags, Script(script));
  while (!rest.empty()) {
    const std::string_view piece = rest.substr(0, step);
    rest.remove_prefix(piece.size());
    if (!run.receive(piece)) break;
  }
  run.finish(bytes.is_plain());
  return 0;
}

#ifdef FUZZ_MAIN
// Runs each file, and prints how many there were and what was seen in them.
int main(int count, char** paths) {
  for (int i = 1; i < count; ++i) {
    std::ifstream file(paths[i], std::ios::binary);
    check(file.is_open(), "each file can be read");
    const std::string input{std::istreambuf_iterator<char>(file), {}};
    std::cerr << paths[i] << '\n';
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
  }
  std::cout << "ran " << count - 1;
  const char* const kNames[] = {"call", "open", "message", "end", "gone", "refused", "nothing"};
  for (size_t i = 0; i < std::size(kNames); ++i) std::cout << ' ' << kNames[i] << ' ' << counts.events[i];
  std::cout << " failure " << counts.failures << " answered " << counts.ends << " reset " << counts.resets << " grown "
            << counts.grown << " denied " << counts.denied << " over " << counts.over << '\n';
}
#endif
