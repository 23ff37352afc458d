// CUDA on the CPU, as much of it as the ops' kernels use, so that a machine without a GPU can run them under the
// address and undefined-behaviour sanitizers. `<<<...>>>` is rewritten into a call of emulation::launch (build.py).
//
// Blocks run one after the other. A block's threads are fibers: each runs until it has to wait for others, at a barrier
// or a warp's shuffle, and then another one runs, in an order that EMULATION_SEED chooses: 0 the one that has waited
// the longest, 1 the shortest, more: at random. That shows
//   - what the kernels compute, and that they stay within their memory: device memory is the heap's, shared memory a
//     global's, both with the sanitizer's zones around, and neither initialized;
//   - barriers that are missing, for somebody reads too early or too late in one of the orders; ones that not all
//   threads
//     reach; shuffles whose lanes don't meet, or that read from a lane that isn't there;
//   - that the host doesn't touch device memory: it is poisoned but while a kernel runs.
// It doesn't show speed, the order in which a real device's memory is seen by other blocks, what nvcc's arithmetic
// makes of the last bit (here as there a product and a sum may be fused), or that blocks running at once get in one
// another's way.
#pragma once

#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <source_location>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#define __host__
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static __attribute__((section("emulated_shared")))

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

inline dim3 gridDim, blockDim, blockIdx, threadIdx;
inline constexpr int warpSize = 32;

// All bytes of shared memory, from the linker.
extern "C" char __start_emulated_shared[] __attribute__((weak));
extern "C" char __stop_emulated_shared[] __attribute__((weak));

namespace emulation {

using Place = std::source_location;

[[noreturn]] inline void fail(const std::string& message) {
  std::fprintf(stderr, "emulation: %s\n", message.c_str());
  std::abort();
}

/// Runs the threads of a block.
class Block {
 public:
  static constexpr unsigned kMostThreads = 1024;
  using Values = std::array<std::uint64_t, warpSize>;

  static Block& instance() {
    static Block block;
    return block;
  }

  void run(dim3 size, const std::function<void()>& body) {
    body_ = &body;
    fill_shared();
    count_ = size.x * size.y * size.z;
    meetings_.clear();
    running_ = ended_ = 0;
    for (unsigned i = 0; i < count_; ++i) {
      threads_[i].index = dim3(i % size.x, i / size.x % size.y, i / (size.x * size.y));
      runnable_.push_back(i);
    }
    switch_from(scheduler_);  // and back when no thread can run
    if (ended_ < count_) deadlock();
  }

  /// Waits until the lanes that `mask` names, of the calling one's warp, or (mask 0) all threads of the block have come
  /// here too. Returns the values that the lanes have brought.
  const Values& meet(unsigned mask, std::uint64_t value, const char* what, const Place& place) {
    const unsigned lane = running_ % warpSize, warp = running_ / warpSize;
    if (mask && !(mask >> lane & 1)) fail(at(what, place) + ": the calling lane is not in the mask");
    Meeting& meeting = meetings_[{mask ? warp : 0, mask}];
    if (meeting.arrived.empty()) {
      meeting.what = what;
      meeting.place = place;
    } else if (std::strcmp(meeting.what, what) != 0 || meeting.place.line() != place.line()) {
      fail(at(what, place) + ": other threads wait at " + at(meeting.what, meeting.place));
    }
    meeting.arrived.push_back(running_);
    meeting.values[lane] = value;
    const std::size_t expected = mask ? static_cast<std::size_t>(std::popcount(mask)) : count_;
    Thread& self = threads_[running_];
    if (meeting.arrived.size() == expected) {
      for (const unsigned thread : meeting.arrived) {
        threads_[thread].received = meeting.values;
        runnable_.push_back(thread);
      }
      meeting.arrived.clear();
    }
    switch_from(self.fiber);
    return self.received;
  }

  void seed(unsigned seed) {
    seed_ = seed;
    random_.seed(seed);
  }

 private:
  static constexpr std::size_t kStack = 32 << 10;

  struct Fiber {
    ucontext_t context;
    const void* stack = nullptr;
    std::size_t stack_size = 0;
  };

  struct Thread {
    Fiber fiber;
    std::unique_ptr<char[]> stack;
    dim3 index;
    Values received;
  };

  struct Meeting {
    std::vector<unsigned> arrived;
    Values values;
    const char* what;
    Place place;
  };

  static std::string at(const char* what, const Place& place) {
    return std::string(what) + " (" + place.file_name() + ":" + std::to_string(place.line()) + ")";
  }

  /// What is in shared memory when a block begins is anything. The zones between variables are written over: the
  /// sanitizer keeps no data there.
  __attribute__((no_sanitize("address"))) static void fill_shared() {
    for (volatile char* byte = __start_emulated_shared; byte < __stop_emulated_shared; ++byte) *byte = '\xfb';
  }

  unsigned next() {
    if (seed_ > 1) std::swap(runnable_[random_() % runnable_.size()], runnable_.back());
    const unsigned thread = seed_ == 0 ? runnable_.front() : runnable_.back();
    seed_ == 0 ? runnable_.pop_front() : runnable_.pop_back();
    return thread;
  }

  /// Lets the next thread run, or the scheduler if none can; returns when `self` is resumed.
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
    swapcontext(&self.context, &to->context);
    arrive(fake_stack);
  }

  /// The sanitizer says which stack it was that has been left: the scheduler's is known no other way.
  void arrive(void* fake_stack) {
    __sanitizer_finish_switch_fiber(fake_stack, &previous_->stack, &previous_->stack_size);
  }

  static Fiber* fiber_of(Thread& thread) {
    if (!thread.stack) {
      thread.stack = std::make_unique<char[]>(kStack);
      thread.fiber.stack = thread.stack.get();
      thread.fiber.stack_size = kStack;
      getcontext(&thread.fiber.context);
      thread.fiber.context.uc_stack = {thread.stack.get(), 0, kStack};
      makecontext(&thread.fiber.context, &Block::enter, 0);
    }
    return &thread.fiber;
  }

  /// A fiber runs its thread of one block after the other.
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
    for (const auto& [key, meeting] : meetings_) {
      if (meeting.arrived.empty()) continue;
      text +=
          " " + std::to_string(meeting.arrived.size()) + " threads wait at " + at(meeting.what, meeting.place) + ";";
    }
    fail(text + " " + std::to_string(ended_) + " of " + std::to_string(count_) + " threads have ended");
  }

  const std::function<void()>* body_ = nullptr;
  std::vector<Thread> threads_ = std::vector<Thread>(kMostThreads);  // never moved: contexts point into themselves
  std::deque<unsigned> runnable_;
  std::map<std::pair<unsigned, unsigned>, Meeting> meetings_;  // by warp and mask
  Fiber scheduler_;
  Fiber* previous_ = nullptr;
  unsigned count_ = 0, running_ = 0, ended_ = 0, seed_ = 0;
  std::mt19937 random_;
};

/// Device memory, poisoned but while a kernel runs or a copy is made.
class DeviceHeap {
 public:
  static DeviceHeap& instance() {
    static DeviceHeap heap;
    return heap;
  }

  void* allocate(std::size_t bytes) {
    void* memory = nullptr;
    if (posix_memalign(&memory, 256, bytes) != 0) return nullptr;
    __asan_poison_memory_region(memory, bytes);
    sizes_[static_cast<char*>(memory)] = bytes;
    return memory;
  }

  void free(void* memory) {
    const auto place = sizes_.find(static_cast<char*>(memory));
    if (place == sizes_.end()) fail("memory is freed that was not allocated");
    __asan_unpoison_memory_region(memory, place->second);
    sizes_.erase(place);
    std::free(memory);
  }

  bool holds(const void* memory, std::size_t bytes) const {
    const auto* const first = static_cast<const char*>(memory);
    auto place = sizes_.upper_bound(const_cast<char*>(first));
    if (place == sizes_.begin()) return false;
    --place;
    return first + bytes <= place->first + place->second;
  }

  template <typename Body>
  void open(Body&& body) {
    for (const auto& [memory, bytes] : sizes_) __asan_unpoison_memory_region(memory, bytes);
    body();
    for (const auto& [memory, bytes] : sizes_) __asan_poison_memory_region(memory, bytes);
  }

 private:
  std::map<char*, std::size_t> sizes_;
};

}  // namespace emulation
