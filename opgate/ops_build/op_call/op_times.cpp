#include "op_times.h"

#include <cstring>
#include <map>
#include <mutex>

#include "table_json.h"

namespace opgate {
namespace {

constexpr std::size_t kMostNodes = 2048;
constexpr std::size_t kLongestName = 256;

using Nodes = std::map<std::pair<std::string, std::string>, std::shared_ptr<NodeTimes>>;

struct Owners {
  std::mutex mutex;
  std::map<std::string, Nodes, std::less<>> nodes;
};

/// Kernels may outlive every static object, so it is never destroyed.
Owners& owners() {
  static auto* const all = new Owners;
  return *all;
}

std::string& own_owner() {
  static thread_local std::string owner;
  return owner;
}

std::shared_ptr<NodeTimes>& entry(Nodes& nodes, std::string op, std::string node) {
  std::shared_ptr<NodeTimes>& found = nodes[{op, node}];
  if (!found) found = std::make_shared<NodeTimes>(std::move(op), std::move(node));
  return found;
}

/// Adds the times of nodes that are gone to those of their ops.
void fold(Nodes& nodes) {
  for (auto each = nodes.begin(); each != nodes.end();) {
    const auto current = each++;
    const std::shared_ptr<NodeTimes> times = current->second;
    if (times->node().empty() || times.use_count() > 2) continue;  // the map and this function have it
    entry(nodes, times->op(), "")->add(*times);
    nodes.erase(current);
  }
}

template <typename T>
char* put(char* at, const T& value) {
  std::memcpy(at, &value, sizeof(value));
  return at + sizeof(value);
}

char* put_text(char* at, const std::string& text) {
  std::memcpy(at, text.data(), text.size());
  return at + text.size();
}

std::size_t row_bytes(const NodeTimes& times) {
  return 2 * sizeof(std::uint32_t) + (1 + NodeTimes::kBuckets) * sizeof(std::int64_t) + times.op().size() +
         times.node().size();
}

char* put_row(char* at, const NodeTimes& times) {
  at = put(at, static_cast<std::uint32_t>(times.op().size()));
  at = put(at, static_cast<std::uint32_t>(times.node().size()));
  at = put(at, times.total_ns());
  for (std::size_t i = 0; i < NodeTimes::kBuckets; ++i) at = put(at, times.count(i));
  return put_text(put_text(at, times.op()), times.node());
}

std::string json_list(const std::vector<std::string>& texts) {
  std::string out = "[";
  for (const std::string& text : texts) out += (out.size() > 1 ? ", " : "") + json_text(text);
  return out + "]";
}

}  // namespace

void state_owner(std::string_view owner) { own_owner() = owner; }

std::shared_ptr<NodeTimes> times_of(std::string_view op, std::string_view node) {
  Owners& all = owners();
  const std::lock_guard lock(all.mutex);
  Nodes& nodes = all.nodes[own_owner()];
  std::string name(node.substr(0, kLongestName));
  const std::string op_name(op.substr(0, kLongestName));
  if (nodes.size() >= kMostNodes && !nodes.contains({op_name, name})) {
    fold(nodes);
    if (nodes.size() >= kMostNodes) name.clear();
  }
  return entry(nodes, op_name, std::move(name));
}

void forget_owner(std::string_view owner) {
  Owners& all = owners();
  const std::lock_guard lock(all.mutex);
  if (const auto found = all.nodes.find(owner); found != all.nodes.end()) all.nodes.erase(found);
}

std::size_t write_times(std::string_view owner, std::span<char> memory) {
  Owners& all = owners();
  const std::lock_guard lock(all.mutex);
  const auto found = all.nodes.find(owner);
  std::size_t bytes = sizeof(std::uint64_t);
  std::uint64_t rows = 0;
  char* at = memory.data() + bytes;
  bool room = memory.size() >= bytes;
  if (found != all.nodes.end()) {
    for (const auto& [key, times] : found->second) {
      bytes += row_bytes(*times);
      room = room && bytes <= memory.size();
      if (!room) continue;
      at = put_row(at, *times);
      ++rows;
    }
  }
  if (memory.size() >= sizeof(rows)) put(memory.data(), rows);
  return bytes;
}

void Recording::end(const NodeTimes& node, std::int64_t begin_ns, std::int64_t end_ns) {
  pending_ = false;
  if (calls_.size() >= kMost) return;
  calls_.push_back({node.op(), node.node(), begin_ns, end_ns, std::exchange(inputs_, {}), std::exchange(outputs_, {})});
}

namespace {

Recording& own_recording() {
  static thread_local Recording own;
  return own;
}

}  // namespace

void record_calls(bool on) { recording = on ? &own_recording() : nullptr; }

std::string recorded_calls() {
  std::string out = "[";
  for (const RecordedCall& call : own_recording().take()) {
    out += (out.size() > 1 ? ", [" : "[") + json_text(call.op) + ", " + json_text(call.node) + ", " +
           std::to_string(call.begin_ns) + ", " + std::to_string(call.end_ns) + ", " + json_list(call.inputs) + ", " +
           json_list(call.outputs) + "]";
  }
  return out + "]";
}

std::string type_text(DType dtype, std::span<const std::int64_t> dims) {
  std::string text(name_of(dtype));
  for (std::size_t i = 0; i < dims.size(); ++i) text += (i ? "," : "[") + std::to_string(dims[i]);
  return text + (dims.empty() ? "[]" : "]");
}

}  // namespace opgate
