// The threads and the memory of the emulation. This file is compiled without the sanitizers, which watch the kernels.
#include "emulation.h"

#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>

#include <cstdio>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <vector>

// The linker defines these two symbols: where the shared memory begins and ends.
extern "C" char __start_emulated_shared[] __attribute__((weak));
extern "C" char __stop_emulated_shared[] __attribute__((weak));

namespace emulation {

void fail(const std::string& message) {
  std::fprintf(stderr, "emulation: %s\n", message.c_str());
  std::abort();
}

namespace {

/// Stores the stack pointer in *from and continues on the stack `to`. swapcontext does this too, but with system calls.
__attribute__((naked, noinline)) void switch_stacks(void** /*from*/, void* /*to*/) {
  __asm__(
      "pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15;"
      "movq %rsp, (%rdi); movq %rsi, %rsp;"
      "popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp; ret");
}

/// Runs the threads of a block.
class Block {
 public:
  static Block& instance() {
    static Block block;
    return block;
  }

  void run(dim3 size, unsigned seed, const std::function<void()>& body) {
    body_ = &body;
    if (seed != seed_) random_.seed(seed_ = seed);
    fill_shared();
    count_ = size.x * size.y * size.z;
    for (auto& meetings : meetings_) meetings.clear();
    running_ = ended_ = 0;
    for (unsigned i = 0; i < count_; ++i) {
      threads_[i].index = dim3(i % size.x, i / size.x % size.y, i / (size.x * size.y));
      runnable_.push_back(i);
    }
    switch_from(scheduler_);  // returns when no thread can run
    if (ended_ < count_) deadlock();
  }

  /// Waits until the lanes of the calling thread's warp that `mask` names have called it too, or with mask 0 all
  /// threads of the block. Returns the values that the lanes have brought.
  const Values& meet(unsigned mask, std::uint64_t value, const char* function, const Location& location) {
    const unsigned lane = running_ % warpSize;
    if (mask && !(mask >> lane & 1)) fail(at(function, location) + ": the calling lane is not in the mask");
    Meeting& meeting = meeting_of(mask ? running_ / warpSize : kWholeBlock, mask);
    if (meeting.arrived.empty()) {
      meeting.function = function;
      meeting.location = location;
    } else if (meeting.location.line() != location.line()) {
      fail(at(function, location) + ": other threads wait at " + at(meeting.function, meeting.location));
    }
    // Two buffers are enough: a thread can't bring a value of round n + 2 before all have read the values of round n.
    Values& values = meeting.values[meeting.round % 2];
    values[lane] = value;
    meeting.arrived.push_back(running_);
    if (meeting.arrived.size() == (mask ? static_cast<std::size_t>(std::popcount(mask)) : count_)) {
      runnable_.insert(runnable_.end(), meeting.arrived.begin(), meeting.arrived.end());
      meeting.arrived.clear();
      ++meeting.round;
    }
    switch_from(threads_[running_].fiber);
    return values;
  }

 private:
  static constexpr std::size_t kStack = 32 << 10;
  static constexpr unsigned kWholeBlock = kMostThreads / warpSize;

  struct Fiber {
    void* pointer = nullptr;  ///< the stack pointer when the fiber was left
    const void* stack = nullptr;
    std::size_t stack_size = 0;
  };

  struct Thread {
    Fiber fiber;
    std::unique_ptr<char[]> stack;
    dim3 index;
  };

  struct Meeting {
    unsigned mask;
    std::vector<unsigned> arrived;
    unsigned round = 0;
    std::array<Values, 2> values;
    const char* function;
    Location location;
  };

  Meeting& meeting_of(unsigned warp, unsigned mask) {
    for (Meeting& meeting : meetings_[warp]) {
      if (meeting.mask == mask) return meeting;
    }
    Meeting& meeting = meetings_[warp].emplace_back();
    meeting.mask = mask;
    return meeting;
  }

  static std::string at(const char* function, const Location& location) {
    return std::string(function) + " (" + location.file_name() + ":" + std::to_string(location.line()) + ")";
  }

  /// Fills the shared memory, because a block must not rely on its contents. This also overwrites the zones between
  /// variables, in which the sanitizer keeps no data.
  static void fill_shared() {
    for (char* byte = __start_emulated_shared; byte < __stop_emulated_shared; ++byte) *byte = '\xfb';
  }

  /// Returns the thread to run next. Random picks come only now and then: with random picks alone the warps would stay
  /// in step.
  unsigned next() {
    if (seed_ > 1 && random_() % 8 == 0) std::swap(runnable_[random_() % runnable_.size()], runnable_.back());
    const unsigned thread = seed_ == 0 ? runnable_.front() : runnable_.back();
    seed_ == 0 ? runnable_.pop_front() : runnable_.pop_back();
    return thread;
  }

  /// Runs the next thread, or the scheduler if no thread can run. Returns when `self` is resumed.
  void switch_from(Fiber& self) {
    Fiber* to = &scheduler_;
    if (!runnable_.empty()) {
      running_ = next();
      threadIdx = threads_[running_].index;
      to = fiber_of(threads_[running_]);
      if (to == &self) return;
    }
    previous_ = &self;
    void* fake_stack = nullptr;
    __sanitizer_start_switch_fiber(&fake_stack, to->stack, to->stack_size);
    switch_stacks(&self.pointer, to->pointer);
    arrive(fake_stack);
  }

  /// Finishes a switch. The sanitizer says which stack was left: the scheduler's stack is known only from this.
  void arrive(void* fake_stack) {
    __sanitizer_finish_switch_fiber(fake_stack, &previous_->stack, &previous_->stack_size);
  }

  static Fiber* fiber_of(Thread& thread) {
    if (!thread.stack) {
      thread.stack = std::make_unique<char[]>(kStack);
      thread.fiber.stack = thread.stack.get();
      thread.fiber.stack_size = kStack;
      // The stack looks as switch_stacks leaves it: six registers, the address to return to (enter), and the address to
      // which enter would return.
      auto* const top = reinterpret_cast<void**>(thread.stack.get() + kStack) - 8;
      std::fill_n(top, 8, nullptr);
      top[6] = reinterpret_cast<void*>(&Block::enter);
      thread.fiber.pointer = top;
    }
    return &thread.fiber;
  }

  /// The body of a fiber. It runs the thread with the fiber's index, of one block after the other.
  static void enter() {
    Block& block = instance();
    block.arrive(nullptr);
    Thread& self = block.threads_[block.running_];
    for (;;) {
      (*block.body_)();
      ++block.ended_;
      block.switch_from(self.fiber);
    }
  }

  [[noreturn]] void deadlock() const {
    std::string text = "a deadlock:";
    for (const auto& meetings : meetings_) {
      for (const Meeting& meeting : meetings) {
        if (meeting.arrived.empty()) continue;
        text +=
            " " + std::to_string(meeting.arrived.size()) + " threads wait at " + at(meeting.function, meeting.location);
      }
    }
    fail(text + "; " + std::to_string(ended_) + " of " + std::to_string(count_) + " threads have ended");
  }

  const std::function<void()>* body_ = nullptr;
  std::vector<Thread> threads_ = std::vector<Thread>(kMostThreads);
  std::deque<unsigned> runnable_;
  std::array<std::deque<Meeting>, kWholeBlock + 1> meetings_;  // by warp; the last one is for the whole block
  Fiber scheduler_;
  Fiber* previous_ = nullptr;
  unsigned count_ = 0, running_ = 0, ended_ = 0, seed_ = 0;
  std::mt19937 random_;
};

/// Maps every piece of device memory to its size.
std::map<const char*, std::size_t>& pieces() {
  static std::map<const char*, std::size_t> all;
  return all;
}

}  // namespace

void run_block(dim3 size, unsigned seed, const std::function<void()>& thread) {
  Block::instance().run(size, seed, thread);
}

const Values& meet(unsigned mask, std::uint64_t value, const char* function, const Location& location) {
  return Block::instance().meet(mask, value, function, location);
}

void* allocate(std::size_t bytes) {
  void* memory = nullptr;
  if (posix_memalign(&memory, 256, bytes) != 0) return nullptr;
  __asan_poison_memory_region(memory, bytes);
  pieces()[static_cast<char*>(memory)] = bytes;
  return memory;
}

void free(void* memory) {
  const auto piece = pieces().find(static_cast<char*>(memory));
  if (piece == pieces().end()) fail("memory is freed that was not allocated");
  __asan_unpoison_memory_region(memory, piece->second);
  pieces().erase(piece);
  std::free(memory);
}

bool on_device(const void* memory, std::size_t bytes) {
  const auto* const first = static_cast<const char*>(memory);
  auto piece = pieces().upper_bound(first);
  if (piece == pieces().begin()) return false;
  --piece;
  return first + bytes <= piece->first + piece->second;
}

void with_device_memory(const std::function<void()>& body) {
  for (const auto& [memory, bytes] : pieces()) __asan_unpoison_memory_region(memory, bytes);
  body();
  for (const auto& [memory, bytes] : pieces()) __asan_poison_memory_region(memory, bytes);
}

}  // namespace emulation
