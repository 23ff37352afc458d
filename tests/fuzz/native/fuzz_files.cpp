// Gives any bytes to the ops that read files: pictures, sounds and point clouds.
//
// The first byte of an input chooses whether the file comes alone or between two others, and the filter of
// ImagePreprocess. The rest is the file. Every op
// runs twice, on memory that begins with two patterns, so that an element that it doesn't write is found.
#include <cstring>

#include "fuzz.h"
#include "op_call/invoke.h"
#include "op_call/table.h"

namespace {

using namespace opgate;
using fuzz::check;
using fuzz::counts;

constexpr std::int64_t kMaxPixels = 1 << 16, kMaxPoints = 1000, kSamples = 64, kSide = 12;

// An engine whose outputs and scratch memory have exactly the size that they need.
class OneThread final : public Engine {
 public:
  explicit OneThread(char pattern) : pattern_(pattern) {}

  Status allocate_output(std::size_t index, DType dtype, std::span<const std::int64_t> dims, void** data) override {
    if (outputs.size() <= index) outputs.resize(index + 1);
    *data = fresh(outputs[index], static_cast<std::size_t>(Tensor(nullptr, dtype, dims).size()) * size_of(dtype));
    return {};
  }
  void parallel_for(std::size_t tasks, void (*task)(void* user, std::size_t i), void* user) override {
    for (std::size_t i = 0; i < tasks; ++i) task(user, i);
  }
  void* scratch(std::size_t bytes) override { return fresh(scratches_.emplace_back(), bytes); }

  std::vector<std::vector<char>> outputs;

 private:
  void* fresh(std::vector<char>& memory, std::size_t bytes) {
    memory = std::vector<char>(bytes, pattern_);
    return memory.data();
  }

  char pattern_;
  std::vector<std::vector<char>> scratches_;
};

constexpr const char* kFilters[] = {"fast", "pil_bicubic", "cv_area", "cv_lanczos4"};

Attributes attributes_of(const Op& op, const char* filter) {
  std::vector<std::optional<AttributeValue>> values;
  for (const Attribute& attribute : op.signature.attributes) {
    auto& value = values.emplace_back();
    if (attribute.name == "max_pixels") value = kMaxPixels;
    if (attribute.name == "max_points") value = kMaxPoints;
    if (attribute.name == "samples") value = kSamples;
    if (attribute.name == "max_samples") value = kSamples;
    if (attribute.name == "sample_rate" && op.signature.name == "DecodeAudio") value = std::int64_t{0};  // any
    if (attribute.name == "filter") value = std::string(filter);
    if (attribute.name == "height" || attribute.name == "width") value = kSide;
  }
  Attributes made;
  check(Attributes::make(op.signature, std::move(values), made).ok(), "the attributes are good");
  return made;
}

// Runs an op on these rows, and returns its outputs. Fails only for a mistake of the client.
void run(std::string_view name, std::span<const uint8_t> bytes, const std::vector<std::int32_t>& ends,
         const char* filter) {
  const Op* const op = Table::instance().find(name);
  check(op != nullptr, "the op is in the table");
  const Attributes attributes = attributes_of(*op, filter);
  const std::vector<std::int64_t> sizes = {static_cast<std::int64_t>(bytes.size())};
  const std::vector<std::int64_t> rows = {static_cast<std::int64_t>(ends.size())};
  const Tensor data(bytes.data(), DType::u8, sizes), places(ends.data(), DType::i32, rows);
  InputPointers inputs;
  inputs.push_back(&data);
  if (op->signature.inputs.size() == 2) inputs.push_back(&places);
  OneThread first('\x5a'), second('\xa5');
  const Status status = invoke(*op, Device::cpu, inputs, attributes, first);
  const Status again = invoke(*op, Device::cpu, inputs, attributes, second);
  check(status.code() != StatusCode::internal, ("no file makes an op fail inside: " + status.message()).c_str());
  check(status.message() == again.message(), "both runs say the same");
  if (!status.ok()) {
    ++counts()["refused"];
    return;
  }
  check(first.outputs == second.outputs, "an op writes every element, and the same each time");
  if (op->signature.inputs.size() != 2) {
    ++counts()[std::string(name)];
    return;
  }
  const std::vector<char>& last = first.outputs.back();  // the status of each row
  check(last.size() == 4 * ends.size(), "each row has a status");
  for (std::size_t i = 0; i < ends.size(); ++i) {
    std::int32_t row = 0;
    std::memcpy(&row, last.data() + 4 * i, 4);
    check(row >= 0 && row <= 6, "a status is one of the documented ones");
    ++counts()[row == 0 ? std::string(name) : "bad_rows"];
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::span<const uint8_t> input(data, size);
  const unsigned choice = fuzz::take_byte(input);
  const bool among_others = choice % 2 != 0;
  const char* const filter = kFilters[choice / 2 % 4];
  const std::vector<uint8_t> file(input.begin(), input.end());
  const auto end = static_cast<std::int32_t>(file.size());
  run("DecodeImage", file, {}, filter);
  std::vector<std::int32_t> ends = {end};
  if (among_others) ends = {0, end, end};
  for (const char* op : {"ImagePreprocess", "DecodeAudio", "AudioPreprocess", "DecodePoints"})
    run(op, file, ends, filter);
  return 0;
}
