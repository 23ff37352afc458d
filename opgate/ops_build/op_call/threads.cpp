#include "threads.h"

#include <system_error>

namespace opgate {

Threads::Threads(std::size_t count) {
  try {
    for (std::size_t i = 1; i < count; ++i) threads_.emplace_back([this] { work(); });
  } catch (const std::system_error&) {
    // The process may have no more threads. It works with those that it has.
  }
}

Threads::~Threads() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  begun_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Threads::run(std::size_t tasks, void (*task)(void* user, std::size_t i), void* user) {
  const std::unique_lock owner(busy_, std::try_to_lock);
  if (!owner || threads_.empty()) {
    for (std::size_t i = 0; i < tasks; ++i) task(user, i);
    return;
  }
  std::unique_lock lock(mutex_);
  task_ = task;
  user_ = user;
  tasks_ = tasks;
  next_ = 0;
  begun_.notify_all();
  take_tasks(lock);
  ended_.wait(lock, [this] { return running_ == 0; });
}

void Threads::take_tasks(std::unique_lock<std::mutex>& lock) {
  ++running_;
  while (next_ < tasks_) {
    const std::size_t i = next_++;
    lock.unlock();
    task_(user_, i);
    lock.lock();
  }
  if (--running_ == 0) ended_.notify_all();
}

void Threads::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    begun_.wait(lock, [this] { return stops_ || next_ < tasks_; });
    if (stops_) return;
    take_tasks(lock);
  }
}

}  // namespace opgate
