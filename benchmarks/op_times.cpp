// Prints the nanoseconds that measuring a call of an op costs: for each thread, the median over rounds.
#include "op_call/op_times.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <thread>

namespace opgate {
std::string json_text(std::string_view text) { return std::string(text); }
}  // namespace opgate

int main(int, char** arguments) {
  const int threads = std::atoi(arguments[1]);
  constexpr int kRounds = 31, kCalls = 200'000;
  const auto times = opgate::times_of("Op", "node");
  std::vector<double> costs(threads);
  std::vector<std::thread> running;
  for (int t = 0; t < threads; ++t) {
    running.emplace_back([&, t] {
      std::vector<double> rounds;
      for (int round = 0; round < kRounds; ++round) {
        const std::int64_t begin = opgate::now_ns();
        for (int call = 0; call < kCalls; ++call) {
          opgate::CallTimer timer(*times);
          timer.succeeded();
        }
        rounds.push_back(static_cast<double>(opgate::now_ns() - begin) / kCalls);
      }
      std::ranges::nth_element(rounds, rounds.begin() + kRounds / 2);
      costs[t] = rounds[kRounds / 2];
    });
  }
  for (std::thread& thread : running) thread.join();
  std::ranges::sort(costs);
  std::printf("%.1f\n", costs[threads / 2]);
}
