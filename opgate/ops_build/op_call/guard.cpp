#include "guard.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>

namespace opgate {
namespace {

constexpr int kPattern = 0xfb;  // makes floats of about -2.6e36 and negative integers

/// How much memory without access lies on each side of a tensor. It takes addresses and no memory.
constexpr std::size_t kZone = std::size_t{64} << 20;

}  // namespace

/// Memory of some bytes between two zones without access. The second zone begins where the memory ends, or up to
/// `alignment` bytes later.
class GuardedMemory {
 public:
  /// `op` and `what` are for messages.
  GuardedMemory(const std::string& op, std::string what, std::size_t bytes, std::size_t alignment = 1)
      : op_(op), what_(std::move(what)), bytes_(bytes), padded_((bytes + alignment - 1) / alignment * alignment) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    pages_ = (padded_ + page - 1) / page * page;
    if (pages_ < bytes || __builtin_add_overflow(pages_, 2 * kZone, &all_)) throw std::bad_alloc();
    void* const start = mmap(nullptr, all_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) throw std::bad_alloc();
    start_ = static_cast<char*>(start);
    if (pages_ && mprotect(start_ + kZone, pages_, PROT_READ | PROT_WRITE) != 0) {
      munmap(start_, all_);
      throw std::bad_alloc();
    }
    std::memset(start_ + kZone, kPattern, pages_);
    enter();
  }
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;
  ~GuardedMemory() {
    leave();
    munmap(start_, all_);
  }

  char* data() const { return start_ + kZone + pages_ - padded_; }
  std::size_t bytes() const { return bytes_; }

  /// From now on a write ends the process.
  void make_read_only() {
    read_only_ = true;
    if (pages_) mprotect(start_ + kZone, pages_, PROT_READ);
  }

  /// Fails if the pattern on the pages of the memory has changed.
  Status check() const {
    const auto changed = [](char byte) { return static_cast<unsigned char>(byte) != kPattern; };
    const char *const first = start_ + kZone, *const end = data() + bytes_, *const last = first + pages_;
    if (const char* byte = std::find_if(first, static_cast<const char*>(data()), changed); byte != data())
      return wrote(data() - byte, "before the beginning of");
    if (const char* byte = std::find_if(end, last, changed); byte != last) return wrote(byte - end, "past the end of");
    return {};
  }

 private:
  static constexpr std::size_t kMostLive = 1024;

  // The handler of the signal reads this list, so it has a fixed size and no lock.
  static inline std::array<std::atomic<const GuardedMemory*>, kMostLive> live_{};
  static inline struct sigaction before_{};

  void enter() {
    static std::once_flag once;
    std::call_once(once, [] {
      struct sigaction action{};
      action.sa_sigaction = &report;
      action.sa_flags = SA_SIGINFO | SA_ONSTACK;
      sigaction(SIGSEGV, &action, &before_);
    });
    for (auto& slot : live_) {
      const GuardedMemory* none = nullptr;
      if (slot.compare_exchange_strong(none, this)) return;
    }
  }

  void leave() {
    for (auto& slot : live_) {
      const GuardedMemory* self = this;
      if (slot.compare_exchange_strong(self, nullptr)) return;
    }
  }

  /// Says which tensor the access was near, and lets the signal do what it did before. Calls only what a signal handler
  /// may call.
  static void report(int, siginfo_t* info, void* context) {
    const auto* const address = static_cast<const char*>(info->si_addr);
    for (const auto& slot : live_) {
      const GuardedMemory* const memory = slot.load();
      if (!memory || address < memory->start_ || address >= memory->start_ + memory->all_) continue;
      memory->say(address, writes(context));
      break;
    }
    sigaction(SIGSEGV, &before_, nullptr);  // the access is tried again, and fails as it would have failed before
  }

  static bool writes([[maybe_unused]] void* context) {
#ifdef __x86_64__
    return static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & 2;
#else
    return false;
#endif
  }

  void say(const char* address, bool written) const {
    std::array<char, 512> line;
    std::size_t length = 0;
    const auto put = [&](const char* text) {
      while (*text && length < line.size()) line[length++] = *text++;
    };
    const auto put_number = [&](std::size_t number) {
      std::array<char, 24> digits{};
      char* first = digits.data() + digits.size() - 1;
      do {
        *--first = static_cast<char>('0' + number % 10);
      } while (number /= 10);
      put(first);
    };
    put(op_.c_str());
    put(": the kernel ");
    if (address < data() || address >= data() + bytes_) {
      const bool after = address >= data() + bytes_;
      put(written ? "wrote " : "read ");
      put_number(static_cast<std::size_t>(after ? address - (data() + bytes_) : data() - address));
      put(after ? " bytes past the end of " : " bytes before the beginning of ");
    } else {
      put(read_only_ ? "wrote to " : "could not access ");
    }
    put(what_.c_str());
    put("\n");
    [[maybe_unused]] const auto written_bytes = write(STDERR_FILENO, line.data(), length);
  }

  Status wrote(std::ptrdiff_t distance, const char* where) const {
    return Status::internal("the kernel wrote " + std::to_string(distance) + " bytes " + where + " " + what_);
  }

  std::string op_, what_;
  std::size_t bytes_, padded_, pages_ = 0, all_ = 0;
  char* start_ = nullptr;
  bool read_only_ = false;
};

bool guards_tensors() {
  static const bool guards = [] {
    const char* const value = std::getenv("OPGATE_GUARD");
    return value && std::string_view(value) == "1";
  }();
  return guards;
}

namespace {

std::string described(std::string_view kind, std::string_view name, DType dtype, std::span<const std::int64_t> dims) {
  return std::string(kind) + " '" + std::string(name) + "' (" + std::string(name_of(dtype)) + dims_text(dims) + ", " +
         std::to_string(bytes_of(dtype, dims)) + " bytes)";
}

}  // namespace

GuardedInputs::GuardedInputs(const std::string& op, const InputPointers& inputs)
    : tensors_(inputs.size()), pointers_(inputs) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i] || inputs[i]->dtype() == DType::str) continue;
    const Tensor& input = *inputs[i];
    memory_.push_back(std::make_unique<GuardedMemory>(op, described("input", input.name(), input.dtype(), input.dims()),
                                                      bytes_of(input.dtype(), input.dims())));
    GuardedMemory& copy = *memory_.back();
    if (copy.bytes()) std::memcpy(copy.data(), input.raw(), copy.bytes());
    copy.make_read_only();
    tensors_[i] = Tensor(copy.data(), input.dtype(), input.dims(), input.device(), input.name());
    pointers_[i] = &tensors_[i];
  }
}

GuardedInputs::~GuardedInputs() = default;

GuardedEngine::GuardedEngine(const Signature& signature, std::string op, Engine& engine)
    : signature_(signature), op_(std::move(op)), engine_(engine) {}

GuardedEngine::~GuardedEngine() = default;

Status GuardedEngine::allocate_output(std::size_t index, DType dtype, std::span<const std::int64_t> dims, void** data) {
  OPGATE_RETURN_IF_ERROR(engine_.allocate_output(index, dtype, dims, data));
  if (!*data || dtype == DType::str) return {};
  memory_.push_back(std::make_unique<GuardedMemory>(
      op_, described("output", signature_.outputs[index].name, dtype, dims), bytes_of(dtype, dims)));
  outputs_.push_back({memory_.back().get(), *data});
  *data = memory_.back()->data();
  return {};
}

void* GuardedEngine::scratch(std::size_t bytes) {
  constexpr std::size_t kAlignment = 64;  // kernels rely on it (engine.h)
  const std::string what = "scratch memory of " + std::to_string(bytes) + " bytes";
  memory_.push_back(std::make_unique<GuardedMemory>(op_, what, bytes, kAlignment));
  return memory_.back()->data();
}

Status GuardedEngine::finish() {
  for (const auto& memory : memory_) OPGATE_RETURN_IF_ERROR(memory->check());
  for (const Written& output : outputs_) {
    if (output.memory->bytes()) std::memcpy(output.target, output.memory->data(), output.memory->bytes());
  }
  return {};
}

}  // namespace opgate
