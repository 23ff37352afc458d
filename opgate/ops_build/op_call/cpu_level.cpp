#include "cpu_level.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <span>

#ifdef __aarch64__
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include "configured.h"
#include "table.h"

// The linker defines these symbols: the constructors of the objects that were compiled for a level. The build has moved
// them out of the section whose constructors every processor runs.
#define OPGATE_LEVEL_CONSTRUCTORS(level)                                                           \
  extern "C" opgate::LevelConstructor __start_opgate_constructors_##level[] __attribute__((weak)); \
  extern "C" opgate::LevelConstructor __stop_opgate_constructors_##level[] __attribute__((weak));

namespace opgate {
using LevelConstructor = void (*)(int, char**, char**);
}  // namespace opgate

OPGATE_LEVEL_CONSTRUCTORS(v3)
OPGATE_LEVEL_CONSTRUCTORS(v4)
OPGATE_LEVEL_CONSTRUCTORS(v8_2)

namespace opgate {
namespace {

struct Level {
  std::string_view name;
  bool supported;
  std::span<LevelConstructor> constructors;  ///< empty if the library has no kernels of this level
};

std::string_view chosen;  ///< empty if the library has the kernels of one level

/// Chooses the level when the library is loaded, after the kernels of the baseline have registered.
struct Chooser {
  Chooser() {
    // The highest first.
#if defined(__x86_64__)
    __builtin_cpu_init();
    const std::array levels = {
        Level{"x86-64-v4",
              __builtin_cpu_supports("x86-64-v4") != 0,
              {__start_opgate_constructors_v4, __stop_opgate_constructors_v4}},
        Level{"x86-64-v3",
              __builtin_cpu_supports("x86-64-v3") != 0,
              {__start_opgate_constructors_v3, __stop_opgate_constructors_v3}},
    };
#elif defined(__aarch64__)
    constexpr unsigned long kNeeded = HWCAP_ATOMICS | HWCAP_ASIMDRDM | HWCAP_FPHP | HWCAP_ASIMDHP | HWCAP_ASIMDDP;
    const std::array levels = {Level{"armv8.2-a",
                                     (getauxval(AT_HWCAP) & kNeeded) == kNeeded,
                                     {__start_opgate_constructors_v8_2, __stop_opgate_constructors_v8_2}}};
#else
    const std::array<Level, 0> levels;
#endif
    const char* const variable = std::getenv("OPGATE_CPU_LEVEL");
    const std::string_view most = variable ? variable : "";
    if (most == "baseline") return;
    std::size_t first = 0;
    while (!most.empty() && first < levels.size() && levels[first].name != most) ++first;
    if (first == levels.size() && first > 0) {
      std::fprintf(stderr, "opgate: expected OPGATE_CPU_LEVEL to be baseline");
      for (const Level& level : levels) std::fprintf(stderr, " or %s", level.name.data());
      std::fprintf(stderr, ", got %s: it is ignored\n", variable);
      first = 0;
    }
    for (; first < levels.size(); ++first) {
      const Level& level = levels[first];
      if (!level.supported || level.constructors.empty()) continue;
      Table::instance().replace_kernels([&] {
        for (const LevelConstructor construct : level.constructors) construct(0, nullptr, nullptr);
      });
      chosen = level.name;
      return;
    }
  }
};

const Chooser chooser __attribute__((init_priority(1001)));

}  // namespace

std::string_view cpu_level() { return chosen.empty() ? compiled_level : chosen; }

}  // namespace opgate
