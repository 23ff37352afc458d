#include "cpu_level.h"

#include <array>
#include <cstdlib>
#include <span>

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
#ifdef __x86_64__
    __builtin_cpu_init();
    // The highest first.
    const std::array levels = {
        Level{"x86-64-v4",
              __builtin_cpu_supports("x86-64-v4") != 0,
              {__start_opgate_constructors_v4, __stop_opgate_constructors_v4}},
        Level{"x86-64-v3",
              __builtin_cpu_supports("x86-64-v3") != 0,
              {__start_opgate_constructors_v3, __stop_opgate_constructors_v3}},
    };
    const char* const wanted = std::getenv("OPGATE_CPU_LEVEL");
    for (const Level& level : levels) {
      if (wanted && *wanted && level.name > wanted) continue;  // "baseline" is less than every name
      if (!level.supported || level.constructors.empty()) continue;
      Table::instance().replace_kernels([&] {
        for (const LevelConstructor construct : level.constructors) construct(0, nullptr, nullptr);
      });
      chosen = level.name;
      return;
    }
#endif
  }
};

const Chooser chooser __attribute__((init_priority(1001)));

}  // namespace

std::string_view cpu_level() { return chosen.empty() ? compiled_level : chosen; }

}  // namespace opgate
