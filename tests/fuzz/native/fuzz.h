// What the fuzz targets in this folder have in common. libFuzzer calls LLVMFuzzerTestOneInput. With -DFUZZ_MAIN, a main
// runs files and changes of them, always the same, and prints how many files there were and what the target has
// counted.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <span>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace opgate::fuzz {

// Ends the process if a rule is broken. The sanitizer then prints the stack.
inline void check(bool truth, const char* rule) {
  if (truth) return;
  std::fprintf(stderr, "broken rule: %s\n", rule);
  std::abort();
}

// How often something was seen. A test looks whether the corpus reaches all of it.
inline std::map<std::string, size_t>& counts() {
  static std::map<std::string, size_t> counts;
  return counts;
}

// Takes one byte, which decides something, from the front of an input.
inline uint8_t take_byte(std::span<const uint8_t>& input) {
  if (input.empty()) return 0;
  const uint8_t byte = input[0];
  input = input.subspan(1);
  return byte;
}

}  // namespace opgate::fuzz

#ifdef FUZZ_MAIN
#include <random>

// Changes some bytes of an input. `other` is an input of which a part may come in.
inline void change(std::vector<uint8_t>& input, const std::vector<uint8_t>& other, std::mt19937& random) {
  for (unsigned n = 1 + random() % 3; n > 0; --n) {
    const auto at = static_cast<std::ptrdiff_t>(random() % (input.size() + 1));
    const auto to = std::min(at + static_cast<std::ptrdiff_t>(random() % 9), std::ssize(input));
    const auto from = static_cast<std::ptrdiff_t>(random() % (other.size() + 1));
    switch (random() % 4) {
      case 0: input.erase(input.begin() + at, input.begin() + to); break;
      case 1: input.insert(input.begin() + at, static_cast<uint8_t>(random())); break;
      case 2:
        if (at < to) input[static_cast<size_t>(at)] = static_cast<uint8_t>(random());
        break;
      default:
        input.insert(input.begin() + at, other.begin() + from,
                     other.begin() + std::min(from + static_cast<std::ptrdiff_t>(random() % 30), std::ssize(other)));
    }
  }
}

int main(int count, char** paths) {
  constexpr int kChanges = 300;  // of each input
  std::vector<std::vector<uint8_t>> inputs;
  for (int i = 1; i < count; ++i) {
    std::ifstream file(paths[i], std::ios::binary);
    opgate::fuzz::check(file.is_open(), "each file can be read");
    inputs.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  std::mt19937 random(1);
  for (size_t i = 0; i < inputs.size(); ++i) {
    std::fprintf(stderr, "%s\n", paths[i + 1]);
    LLVMFuzzerTestOneInput(inputs[i].data(), inputs[i].size());
    for (int n = 0; n < kChanges; ++n) {
      std::vector<uint8_t> input = inputs[i];
      change(input, inputs[random() % inputs.size()], random);
      LLVMFuzzerTestOneInput(input.data(), input.size());
    }
  }
  std::printf("ran %d", count - 1);
  for (const auto& [name, number] : opgate::fuzz::counts()) std::printf(" %s %zu", name.c_str(), number);
  std::printf("\n");
}
#endif
