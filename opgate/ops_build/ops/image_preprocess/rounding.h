// Arithmetic of floats with the roundings of other libraries.
#pragma once

// Between these two lines the compiler doesn't turn a product and a sum into one step, which would round once and not
// twice.
#ifdef __clang__
#define OPGATE_ROUND_EVERY_STEP _Pragma("STDC FP_CONTRACT OFF")
#define OPGATE_ROUND_AS_BEFORE _Pragma("STDC FP_CONTRACT DEFAULT")
#else
#define OPGATE_ROUND_EVERY_STEP _Pragma("GCC push_options") _Pragma("GCC optimize(\"fp-contract=off\")")
#define OPGATE_ROUND_AS_BEFORE _Pragma("GCC pop_options")
#endif
