// Conversions of bfloat16.
#pragma once

struct __nv_bfloat16 {
  unsigned short bits;
};

/// Rounds to nearest even. NaN stays NaN.
inline __nv_bfloat16 __float2bfloat16_rn(float value) {
  const auto bits = __builtin_bit_cast(unsigned, value);
  if (value != value) return {0x7fff};
  return {static_cast<unsigned short>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
}
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 value) { return value.bits; }
