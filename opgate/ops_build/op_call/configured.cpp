// The one source of the core that depends on the options of a build. A compiler cache can share the objects of the
// others between builds.
#include "configured.h"

namespace opgate {

const char* const library_domain = OPGATE_DOMAIN;
#if defined __AVX512BW__
const char* const compiled_level = "x86-64-v4";
#elif defined __AVX2__
const char* const compiled_level = "x86-64-v3";
#elif defined __ARM_FEATURE_DOTPROD && defined __ARM_FEATURE_FP16_VECTOR_ARITHMETIC
const char* const compiled_level = "armv8.2-a";
#else
const char* const compiled_level = "baseline";
#endif

}  // namespace opgate
