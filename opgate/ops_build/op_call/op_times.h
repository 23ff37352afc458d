// How long the calls of each node take, always. And while a thread asks for it, what each of its calls was given.
//
// A call costs two looks at the clock and two relaxed additions. On CUDA a call launches kernels, so its time is that
// of the launch.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor.h"

namespace opgate {

/// Nanoseconds of CLOCK_MONOTONIC.
inline std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// The times of the calls of one node that succeeded, in a histogram. Any thread may add to it.
class alignas(64) NodeTimes {
 public:
  /// The first bucket has the calls of at most 1 us, each next one those of twice that, and the last one those beyond.
  static constexpr std::size_t kBuckets = 23;

  static constexpr std::size_t bucket_of(std::int64_t ns) {
    const auto microseconds = static_cast<std::uint64_t>(ns > 1 ? ns - 1 : 0) / 1000;
    return std::min<std::size_t>(static_cast<std::size_t>(std::bit_width(microseconds)), kBuckets - 1);
  }

  NodeTimes(std::string op, std::string node) : op_(std::move(op)), node_(std::move(node)) {}

  void add(std::int64_t ns) {
    counts_[bucket_of(ns)].fetch_add(1, std::memory_order_relaxed);
    total_ns_.fetch_add(ns, std::memory_order_relaxed);
  }

  void add(const NodeTimes& other) {
    for (std::size_t i = 0; i < kBuckets; ++i) counts_[i].fetch_add(other.count(i), std::memory_order_relaxed);
    total_ns_.fetch_add(other.total_ns(), std::memory_order_relaxed);
  }

  const std::string& op() const { return op_; }
  const std::string& node() const { return node_; }
  std::int64_t total_ns() const { return total_ns_.load(std::memory_order_relaxed); }
  std::int64_t count(std::size_t bucket) const { return counts_[bucket].load(std::memory_order_relaxed); }

 private:
  std::atomic<std::int64_t> total_ns_ = 0;
  std::array<std::atomic<std::int64_t>, kBuckets> counts_ = {};
  std::string op_;
  std::string node_;
};

/// Says to whom the nodes belong that this thread makes from now on. It is any text, empty at first.
void state_owner(std::string_view owner);

/// The times of a node of this thread's owner. Nodes of an owner with the same op and name share them, also one after
/// the other. An owner has at most 2048 of them and one for each op: for more nodes, those that are gone and then new
/// ones have a share in the times of their op, whose node has no name. A long name is cut.
std::shared_ptr<NodeTimes> times_of(std::string_view op, std::string_view node);

/// Forgets the times of an owner. Nodes that still are there keep theirs, and nobody reads these.
void forget_owner(std::string_view owner);

/// Writes the times of an owner: the number of rows as std::uint64_t, and rows without gaps. A row has the bytes of the
/// op's and of the node's name as two std::uint32_t, the nanoseconds and the count of each bucket as std::int64_t, and
/// both names. Rows that have no room are left out. Returns the bytes of all.
std::size_t write_times(std::string_view owner, std::span<char> memory);

/// One call of a node, in nanoseconds of CLOCK_MONOTONIC. A tensor is "f32[2,3]", an absent one "none".
struct RecordedCall {
  std::string op;
  std::string node;
  std::int64_t begin_ns;
  std::int64_t end_ns;
  std::vector<std::string> inputs;
  std::vector<std::string> outputs;
};

/// The calls of a thread while it records them, the first 1000.
class Recording {
 public:
  static constexpr std::size_t kMost = 1000;

  /// Begins a call.
  void begin() { pending_ = true; }

  /// Whether a call has begun whose tensors nobody has noted. An op that runs inside another one finds none.
  bool takes_tensors() { return std::exchange(pending_, false) && calls_.size() < kMost; }

  void note(std::vector<std::string> inputs, std::vector<std::string> outputs) {
    inputs_ = std::move(inputs);
    outputs_ = std::move(outputs);
  }

  void end(const NodeTimes& node, std::int64_t begin_ns, std::int64_t end_ns);

  /// The calls, which are forgotten then.
  std::vector<RecordedCall> take() { return std::exchange(calls_, {}); }

 private:
  bool pending_ = false;
  std::vector<std::string> inputs_;
  std::vector<std::string> outputs_;
  std::vector<RecordedCall> calls_;
};

/// What this thread records to, null if it doesn't.
inline thread_local Recording* recording = nullptr;

/// Switches the recording of this thread on or off.
void record_calls(bool on);

/// What this thread has recorded since it was asked last, as JSON: [op, node, begin, end, inputs, outputs] of each
/// call.
std::string recorded_calls();

/// "f32[2,3]"
std::string type_text(DType dtype, std::span<const std::int64_t> dims);

/// Measures a call from its construction on.
class CallTimer {
 public:
  explicit CallTimer(NodeTimes& times) : times_(times) {
    if (recording) recording->begin();
    begin_ns_ = now_ns();
  }

  /// Counts the call. One that fails is not counted.
  void succeeded() {
    const std::int64_t end_ns = now_ns();
    times_.add(end_ns - begin_ns_);
    if (recording) recording->end(times_, begin_ns_, end_ns);
  }

 private:
  NodeTimes& times_;
  std::int64_t begin_ns_;
};

}  // namespace opgate
