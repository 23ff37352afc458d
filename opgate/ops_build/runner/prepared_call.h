// A call of an op without an engine. Its tensors lie in memory of its own, which is checked after the call.
//
// `On` is the device of the kernels: Cpu (cpu_device.h) or Cuda (cuda_device.h). It has the type Stream and
// functions that allocate, release, fill, write and read memory, and wait.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <thread>

#include "case_io.h"

namespace opgate::runner {

inline constexpr int kPattern = 0xfb;       // makes floats of about -2.6e36 and negative integers
inline constexpr int kOtherPattern = 0x3a;  // makes floats of about 7e-4 and positive integers
#ifdef __SANITIZE_ADDRESS__
inline constexpr std::size_t kZone = 0;  // the sanitizer checks reads and writes from the first byte on
#else
inline constexpr std::size_t kZone = 256;
#endif

inline void must(const Status& status) {
  if (!status.ok()) fail(status.message());
}

/// Runs an op once.
using Call = std::function<Status(const Op&, const InputPointers&, const Attributes&, Engine&, KernelCache&)>;

template <typename On>
Status call_kernel(const Op& op, const InputPointers& inputs, const Attributes& attributes, Engine& engine,
                   KernelCache& kernels) {
  return invoke(op, On::kDevice, inputs, attributes, engine, &kernels);
}

/// How tensors lie in memory.
struct Layout {
  bool unaligned = false;  ///< one element behind an aligned address
  bool exact = false;      ///< no pattern, and no zone behind the tensor
};

/// How an op is called.
struct CallOptions {
  Layout layout{};
  bool padded = false;  ///< padded outputs are taken
  Call call;
};

/// Memory of the device that is filled with the pattern, with a zone behind it.
template <typename On>
class Memory {
 public:
  using Stream = typename On::Stream;

  /// `element` is the size of an element in bytes: the offset of unaligned memory. Scratch memory has none.
  Memory(std::size_t bytes, std::size_t element, Layout layout, Stream stream)
      : bytes_(bytes),
        offset_(layout.unaligned ? element : 0),
        zone_(layout.exact ? 0 : kZone),
        exact_(layout.exact),
        stream_(stream),
        start_(On::allocate(std::max<std::size_t>(offset_ + bytes + zone_, 1), element ? alignof(std::max_align_t) : 64,
                            exact_, stream)) {
    if (!exact_) clear();
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { On::release(start_, exact_, stream_); }

  /// Fills the memory and the zone with the pattern.
  void clear() const { On::fill(start_, kPattern, offset_ + bytes_ + zone_, stream_); }

  /// Fills the memory with a value, but not the zone.
  void fill(int value) const { On::fill(data(), value, bytes_, stream_); }

  char* data() const { return static_cast<char*>(start_) + offset_; }
  std::size_t size() const { return bytes_; }

  void write(std::span<const char> bytes) const {
    if (!bytes.empty()) On::write(data(), bytes.data(), bytes.size(), stream_);
  }

  std::vector<char> read(std::size_t count) const {
    std::vector<char> bytes(count);
    if (count) must(On::read(bytes.data(), data(), count, stream_));
    return bytes;
  }

  /// Whether nobody has written to the zone.
  bool intact() const {
    std::vector<unsigned char> zone(zone_);
    if (zone_) must(On::read(zone.data(), data() + bytes_, zone_, stream_));
    return std::ranges::all_of(zone, [](unsigned char byte) { return byte == kPattern; });
  }

 private:
  std::size_t bytes_, offset_, zone_;
  bool exact_;
  Stream stream_;
  void* start_;
};

/// The engine of a case. Later runs of the case get the memory of the first one.
template <typename On>
class CaseEngine final : public Engine {
 public:
  using Stream = typename On::Stream;

  CaseEngine(const Signature& signature, std::uint64_t wanted, Layout layout, bool padded, Stream stream)
      : wanted_(wanted), layout_(layout), padded_(padded), stream_(stream), outputs_(signature.outputs.size()) {}

  void* stream() override { return stream_; }

  bool takes_padded_outputs() const override { return padded_; }

  bool splits_finely() const override { return true; }

  void parallel_for(std::size_t tasks, void (*task)(void* user, std::size_t i), void* user) override {
    // Each thread has its tasks from the beginning. A counter that they share would synchronize them, and the thread
    // sanitizer would find no race.
    constexpr std::size_t kThreads = 4;
    std::vector<std::thread> threads;
    for (std::size_t first = 0; first < std::min(kThreads, tasks); ++first) {
      threads.emplace_back([=] {
        for (std::size_t i = first; i < tasks; i += kThreads) task(user, i);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  Status allocate_output(std::size_t index, DType dtype, std::span<const std::int64_t> dims, void** data) override {
    if (!(wanted_ >> index & 1)) return {};
    CreatedOutput& created = outputs_[index];
    created.dtype = dtype;
    created.dims = Dims(dims);
    if (dtype == DType::str) {
      created.texts.emplace(static_cast<std::size_t>(Tensor(nullptr, dtype, dims).size()));
      created.texts->reserve(created.texts->size() + 1);  // an output without texts has an address too
      *data = created.texts->data();
      return {};
    }
    if (!created.memory) created.memory = allocate(bytes_of(dtype, dims), size_of(dtype), layout_);
    *data = created.memory->data();
    return {};
  }

  void* scratch(std::size_t bytes) override {
    if (next_scratch_ == scratch_.size()) scratch_.push_back(allocate_aligned(bytes));
    return scratch_[next_scratch_++]->data();
  }

  Status allocate_sizes(std::size_t count, std::int64_t** sizes) override {
    if (!sizes_) sizes_ = allocate_aligned(count * sizeof(std::int64_t));
    *sizes = reinterpret_cast<std::int64_t*>(sizes_->data());
    return {};
  }

  Status allocate_bounded(std::size_t index, DType dtype, std::span<const std::int64_t> dims, void** data) override {
    return allocate_output(index, dtype, dims, data);
  }

  /// Reads the sizes after a call with padded outputs, and gives the outputs their exact dims.
  Status unpad(const Op& op, const InputPointers& inputs, const Attributes& attributes) {
    if (!sizes_) return {};
    std::vector<std::int64_t> sizes(sizes_->size() / sizeof(std::int64_t));
    OPGATE_RETURN_IF_ERROR(read_sizes(sizes));
    std::vector<Dims> dims;
    OPGATE_RETURN_IF_ERROR(exact_dims(op, inputs, attributes, sizes, dims));
    for (std::size_t i = 0; i < dims.size(); ++i) outputs_[i].dims = dims[i];
    return {};
  }

  Status read_sizes(std::span<std::int64_t> sizes) override {
    return On::read(sizes.data(), sizes_->data(), sizes.size_bytes(), stream_);
  }

  Status trim(std::size_t index, DType, std::span<const std::int64_t> dims) override {
    outputs_[index].dims = Dims(dims);
    return {};
  }

  /// Lets the next call have the scratch memory of the last one.
  void rewind() { next_scratch_ = 0; }

  /// Fills everything that the kernel writes with the pattern.
  void clear() const {
    for_all([](const Memory<On>& memory) { memory.clear(); });
  }

  /// Fills everything that the kernel writes with another pattern.
  void fill_otherwise() const {
    for_all([](const Memory<On>& memory) { memory.fill(kOtherPattern); });
  }

  /// The bytes of the outputs and of the scratch memory.
  std::size_t bytes() const {
    std::size_t bytes = 0;
    for (const CreatedOutput& created : outputs_) bytes += created.memory ? created.memory->size() : 0;
    for (const Owned& memory : scratch_) bytes += memory->size();
    return bytes;
  }

  /// An output: its dims and its bytes. An output that nobody wants has none.
  using Content = std::pair<std::vector<std::int64_t>, std::vector<char>>;

  std::vector<Content> contents() const {
    std::vector<Content> contents;
    for (const CreatedOutput& created : outputs_) {
      Content& content = contents.emplace_back();
      if (!created.memory) continue;
      content.first.assign(created.dims.begin(), created.dims.end());
      content.second = created.memory->read(bytes_of(created.dtype, created.dims));
    }
    return contents;
  }

  Status check() const {
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      if (outputs_[i].memory && !outputs_[i].memory->intact()) return wrote_past("output " + std::to_string(i));
    }
    if (sizes_ && !sizes_->intact()) return wrote_past("the sizes");
    for (std::size_t i = 0; i < scratch_.size(); ++i) {
      if (!scratch_[i]->intact()) return wrote_past("scratch memory " + std::to_string(i));
    }
    return {};
  }

  /// The bytes of the outputs, without padding.
  std::size_t output_bytes() const {
    std::size_t bytes = 0;
    for (const CreatedOutput& created : outputs_) bytes += created.memory ? bytes_of(created.dtype, created.dims) : 0;
    return bytes;
  }

  /// Writes the outputs, or that there are none.
  void write_outputs(bool none = false) const {
    write(static_cast<std::uint32_t>(outputs_.size()));
    for (const CreatedOutput& created : outputs_) {
      HostTensor tensor{created.dtype, created.dims, {}, created.texts.value_or(std::vector<std::string>())};
      if (created.memory && !none) tensor.bytes = created.memory->read(bytes_of(created.dtype, created.dims));
      write_tensor(none || !(created.memory || created.texts) ? nullptr : &tensor);
    }
  }

 private:
  using Owned = std::unique_ptr<Memory<On>>;

  template <typename Function>
  void for_all(const Function& function) const {
    for (const CreatedOutput& created : outputs_) {
      if (created.memory) function(*created.memory);
    }
    for (const Owned& memory : scratch_) function(*memory);
    if (sizes_) function(*sizes_);
  }

  /// An output that somebody wants has memory, or texts if it is of `str`.
  struct CreatedOutput {
    DType dtype = DType::f32;
    Dims dims;
    Owned memory;
    std::optional<std::vector<std::string>> texts;
  };

  Owned allocate(std::size_t bytes, std::size_t element, Layout layout) const {
    return std::make_unique<Memory<On>>(bytes, element, layout, stream_);
  }

  /// Scratch memory and sizes are aligned, because the kernel asks for them without regard to the tensors.
  Owned allocate_aligned(std::size_t bytes) const { return allocate(bytes, 0, {false, layout_.exact}); }

  static Status wrote_past(const std::string& what) {
    return Status::internal("the kernel wrote past the end of " + what);
  }

  std::uint64_t wanted_;
  Layout layout_;
  bool padded_;
  Stream stream_;
  std::vector<CreatedOutput> outputs_;
  std::vector<Owned> scratch_;
  Owned sizes_;
  std::size_t next_scratch_ = 0;
};

/// The inputs of one call. They are on the device, except for `const` inputs.
template <typename On>
class CaseInputs {
 public:
  CaseInputs(const Signature& signature, const CaseToRun& wanted, Layout layout, typename On::Stream stream)
      : host_(wanted.inputs), memory_(host_.size()), texts_(host_.size()), tensors_(host_.size()) {
    for (std::size_t i = 0; i < host_.size(); ++i) {
      pointers_.push_back(host_[i] ? &tensors_[i] : nullptr);
      if (!host_[i]) continue;
      const HostTensor& tensor = *host_[i];
      const Input& input = signature.inputs[std::min(i, signature.inputs.size() - 1)];
      const Device device = input.host ? Device::cpu : On::kDevice;
      const void* data = tensor.bytes.data();
      if (tensor.dtype == DType::str) {
        texts_[i].assign(tensor.texts.begin(), tensor.texts.end());
        data = texts_[i].data();
      } else if (device == On::kDevice) {
        memory_[i] = std::make_unique<Memory<On>>(tensor.bytes.size(), size_of(tensor.dtype), layout, stream);
        memory_[i]->write(tensor.bytes);
        data = memory_[i]->data();
      }
      tensors_[i] = Tensor(data, tensor.dtype, tensor.dims, device, input.name);
    }
  }

  const InputPointers& pointers() const { return pointers_; }

  /// The bytes of the inputs on the device.
  std::size_t bytes() const {
    std::size_t bytes = 0;
    for (const auto& memory : memory_) bytes += memory ? memory->size() : 0;
    return bytes;
  }

  Status check() const {
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      if (memory_[i] && (!memory_[i]->intact() || memory_[i]->read(memory_[i]->size()) != host_[i]->bytes)) {
        return Status::internal("the kernel wrote to input '" + std::string(tensors_[i].name()) + "'");
      }
    }
    return {};
  }

 private:
  const std::vector<std::unique_ptr<HostTensor>>& host_;
  std::vector<std::unique_ptr<Memory<On>>> memory_;
  std::vector<std::vector<std::string_view>> texts_;
  std::vector<Tensor> tensors_;
  InputPointers pointers_;
};

/// A call of an op with its own memory, on a stream.
template <typename On>
class PreparedCall {
 public:
  using Stream = typename On::Stream;

  PreparedCall(const Op& op, const CaseToRun& wanted, const Attributes& attributes, const CallOptions& options,
               KernelCache& kernels, Stream stream)
      : op_(op),
        attributes_(attributes),
        options_(options),
        kernels_(kernels),
        stream_(stream),
        inputs_(op.signature, wanted, options.layout, stream),
        engine_(op.signature, wanted.wanted, options.layout, options.padded, stream) {}

  /// Launches the kernels. The first call allocates the outputs and the scratch memory, later calls use them again.
  Status run() {
    engine_.rewind();
    return options_.call(op_, inputs_.pointers(), attributes_, engine_, kernels_);
  }

  /// Waits for the kernels. After an error on the device no call works, so the program ends.
  void wait() const {
    const Status status = On::wait(stream_);
    if (!status.ok()) fail(op_.signature.name + ": " + status.message());
  }

  /// Finds the exact dims, and checks that the kernels wrote to nothing but their outputs.
  Status finish() {
    OPGATE_RETURN_IF_ERROR(unpad());
    OPGATE_RETURN_IF_ERROR(engine_.check());
    return inputs_.check();
  }

  /// Finds the exact dims of padded outputs.
  Status unpad() { return options_.padded ? engine_.unpad(op_, inputs_.pointers(), attributes_) : Status(); }

  const CaseEngine<On>& engine() const { return engine_; }
  Stream stream() const { return stream_; }
  /// The bytes of the inputs and the outputs, and these with the scratch memory.
  std::size_t tensor_bytes() const { return inputs_.bytes() + engine_.output_bytes(); }
  std::size_t bytes() const { return inputs_.bytes() + engine_.bytes(); }

 private:
  const Op& op_;
  const Attributes& attributes_;
  const CallOptions& options_;
  KernelCache& kernels_;
  Stream stream_;
  CaseInputs<On> inputs_;
  CaseEngine<On> engine_;
};

}  // namespace opgate::runner
