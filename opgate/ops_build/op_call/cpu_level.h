// The instruction sets of the CPU that the kernels are compiled for.
//
// Unless it was compiled for one instruction set, a library has every CPU kernel several times: compiled for each
// processor, and for the levels x86-64-v3 (AVX2, FMA, F16C) and x86-64-v4 (AVX-512), or on 64-bit ARM, where NEON is
// the baseline, for armv8.2-a (with arithmetic of 16-bit floats and dot products). SVE is no level: the kernels'
// vectors have a fixed size, and GCC makes NEON's instructions of those. When the library is loaded, the kernels of the
// highest level that the processor has replace the others in the table. OPGATE_CPU_LEVEL in the environment names a
// lower one: "baseline", "x86-64-v3".
#pragma once

#include <string_view>

namespace opgate {

/// The level whose kernels the table has: "baseline" or the name of a level. A library that was compiled for one
/// instruction set has the level of its own.
std::string_view cpu_level();

}  // namespace opgate
