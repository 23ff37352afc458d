// Conversions between arrays of 16-bit numbers and of floats, eight or sixteen at a time.
#pragma once

#include <cstdint>

#include "signature/dtype.h"

#if defined(__F16C__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace opgate {

#ifdef __AVX512F__
/// All lanes. GCC 12 warns about the intrinsics without a mask (bug 105593).
inline constexpr __mmask16 kAll = 0xffff;
#endif

/// to[i] = from[i] for `count` elements.
inline void widen(const f16* from, float* to, std::int64_t count) {
  std::int64_t i = 0;
#if defined(__AVX512F__)
  for (; i + 16 <= count; i += 16) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
    _mm512_storeu_ps(to + i, _mm512_maskz_cvtph_ps(kAll, halves));
  }
#elif defined(__F16C__)
  for (; i + 8 <= count; i += 8) {
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
  }
#elif defined(__aarch64__)
  for (; i + 4 <= count; i += 4) {
    vst1q_f32(to + i, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&from[i].bits))));
  }
#endif
  for (; i < count; ++i) to[i] = static_cast<float>(from[i]);
}

/// to[i] = from[i], rounded to nearest even, for `count` elements.
inline void narrow(const float* from, f16* to, std::int64_t count) {
  std::int64_t i = 0;
#if defined(__AVX512F__)
  for (; i + 16 <= count; i += 16) {
    const __m256i halves = _mm512_maskz_cvtps_ph(kAll, _mm512_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), halves);
  }
#elif defined(__F16C__)
  for (; i + 8 <= count; i += 8) {
    const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), halves);
  }
#elif defined(__aarch64__)
  for (; i + 4 <= count; i += 4) {
    vst1_u16(&to[i].bits, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(from + i))));
  }
#endif
  for (; i < count; ++i) to[i] = static_cast<f16>(from[i]);
}

// The compiler vectorizes these loops.

inline void widen(const bf16* from, float* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(from[i]);
}

inline void narrow(const float* from, bf16* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<bf16>(from[i]);
}

}  // namespace opgate
