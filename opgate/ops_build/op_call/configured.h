// What the options of a build decide.
#pragma once

namespace opgate {

/// The domain of the ops in this library.
extern const char* const library_domain;

/// The instruction set that the CPU kernels of the baseline are compiled for: "baseline", or the name of a level
/// (cpu_level.h).
extern const char* const compiled_level;

}  // namespace opgate
