#include "direct.h"

#include <unistd.h>

#include <map>
#include <mutex>

#include "op_call/threads.h"

namespace opgate {
namespace {

/// The threads of all calls in this process. A fork has none of them: it gets its own.
std::shared_ptr<Threads> threads_for(std::size_t count) {
  // They are never freed, because threads of Python may call ops until the process ends.
  static auto& mutex = *new std::mutex;
  static auto& threads = *new std::shared_ptr<Threads>;
  static std::size_t size = 0;
  static pid_t owner = 0;
  const std::lock_guard lock(mutex);
  if (owner != getpid()) {
    if (threads) static_cast<void>(new std::shared_ptr<Threads>(threads));  // a fork can't join what it doesn't have
    threads.reset();
    owner = getpid();
  }
  if (!threads || size != count) threads = std::make_shared<Threads>(count);
  size = count;
  return threads;
}

/// The number of prepared kernels that are kept for an op.
constexpr std::size_t kPreparedKernels = 16;

}  // namespace

void DirectEngine::parallel_for(std::size_t tasks, void (*task)(void* user, std::size_t i), void* user) {
  if (threads_ > 1) return threads_for(threads_)->run(tasks, task, user);
  for (std::size_t i = 0; i < tasks; ++i) task(user, i);
}

void* DirectEngine::scratch(std::size_t bytes) {
  void* const memory = aligned_memory(bytes);
  scratch_.emplace_back(memory);
  return memory;
}

void* aligned_memory(std::size_t bytes) {
  constexpr std::size_t kAlignment = 64;
  void* memory = nullptr;
  if (posix_memalign(&memory, kAlignment, bytes) != 0) throw std::bad_alloc();
  return memory;
}

KernelCache* kernels_of(const Op& op, Device device) {
  if (!op.kernel(device).prepare) return nullptr;
  static auto& caches = []() -> std::map<std::pair<const Op*, Device>, KernelCache>& {
    auto& caches = *new std::map<std::pair<const Op*, Device>, KernelCache>;  // never freed, as the threads
    for (const Op& known : Table::instance().ops()) {
      for (const Device each : {Device::cpu, Device::cuda}) caches.try_emplace({&known, each}, kPreparedKernels);
    }
    return caches;
  }();
  return &caches.at({&op, device});
}

}  // namespace opgate
