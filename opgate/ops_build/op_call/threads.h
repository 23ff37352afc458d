// Threads for kernels, where the engine gives none: LiteRT gives its delegates none, and NumPy has none.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace opgate {

class Threads {
 public:
  /// `count` threads run the tasks, and the caller is one of them. There are fewer if the process may have no more.
  explicit Threads(std::size_t count);
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;
  ~Threads();

  /// Runs task(user, i) for each i in [0, tasks). Returns when all tasks have ended. If the threads work for another
  /// caller, this one runs all tasks itself.
  void run(std::size_t tasks, void (*task)(void* user, std::size_t i), void* user);

 private:
  void work();
  /// Runs tasks until none is left. Holds the lock before and after.
  void take_tasks(std::unique_lock<std::mutex>& lock);

  std::mutex busy_, mutex_;
  std::condition_variable begun_, ended_;
  void (*task_)(void* user, std::size_t i) = nullptr;
  void* user_ = nullptr;
  std::size_t tasks_ = 0, next_ = 0, running_ = 0;
  bool stops_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace opgate
