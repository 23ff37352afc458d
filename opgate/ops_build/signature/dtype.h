// Element types: their names in a signature, their sizes and their C++ types.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define OPGATE_HOST_DEVICE __host__ __device__
#else
#define OPGATE_HOST_DEVICE
#endif

namespace opgate {

enum class DType : std::uint8_t { f16, bf16, f32, f64, i8, u8, i32, i64, boolean, str };

inline constexpr int kDTypeCount = 10;
inline constexpr std::array<std::string_view, kDTypeCount> kDTypeNames = {"f16", "bf16", "f32", "f64",  "i8",
                                                                          "u8",  "i32",  "i64", "bool", "str"};

constexpr std::string_view name_of(DType dtype) { return kDTypeNames[static_cast<int>(dtype)]; }

constexpr std::optional<DType> dtype_named(std::string_view name) {
  for (int i = 0; i < kDTypeCount; ++i) {
    if (kDTypeNames[i] == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

#ifdef __aarch64__
using CompilersHalf = __fp16;  // GCC before 13 has no _Float16 in C++ for ARM
#else
using CompilersHalf = _Float16;
#endif

/// IEEE 754 binary16. Arithmetic is done in float.
struct f16 {
  std::uint16_t bits;

  f16() = default;
  OPGATE_HOST_DEVICE explicit f16(float value) {
#ifdef __CUDA_ARCH__
    bits = __half_as_ushort(__float2half_rn(value));
#else
    bits = std::bit_cast<std::uint16_t>(static_cast<CompilersHalf>(value));
#endif
  }
  OPGATE_HOST_DEVICE explicit operator float() const {
#ifdef __CUDA_ARCH__
    return __half2float(__ushort_as_half(bits));
#else
    return static_cast<float>(std::bit_cast<CompilersHalf>(bits));
#endif
  }
};

/// The upper half of a binary32, rounded to nearest even. Arithmetic is done in float.
struct bf16 {
  std::uint16_t bits;

  bf16() = default;
  OPGATE_HOST_DEVICE explicit bf16(float value) {
#ifdef __CUDA_ARCH__
    bits = __bfloat16_as_ushort(__float2bfloat16_rn(value));
#else
    const auto wide = std::bit_cast<std::uint32_t>(value);
    const bool nan = (wide & 0x7fffffffu) > 0x7f800000u;
    const std::uint32_t rounded = wide + 0x7fffu + ((wide >> 16) & 1u);
    bits = nan ? static_cast<std::uint16_t>((wide >> 16) | 0x40u) : static_cast<std::uint16_t>(rounded >> 16);
#endif
  }
  OPGATE_HOST_DEVICE explicit operator float() const {
#ifdef __CUDA_ARCH__
    return __uint_as_float(static_cast<unsigned>(bits) << 16);
#else
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
#endif
  }
};

/// The C++ type of a dtype's elements. A kernel reads `str` as std::string_view and writes it as std::string.
template <DType>
struct CppType;
template <>
struct CppType<DType::f16> {
  using type = f16;
};
template <>
struct CppType<DType::bf16> {
  using type = bf16;
};
template <>
struct CppType<DType::f32> {
  using type = float;
};
template <>
struct CppType<DType::f64> {
  using type = double;
};
template <>
struct CppType<DType::i8> {
  using type = std::int8_t;
};
template <>
struct CppType<DType::u8> {
  using type = std::uint8_t;
};
template <>
struct CppType<DType::i32> {
  using type = std::int32_t;
};
template <>
struct CppType<DType::i64> {
  using type = std::int64_t;
};
template <>
struct CppType<DType::boolean> {
  using type = bool;
};
template <>
struct CppType<DType::str> {
  using type = std::string;
};

/// The dtype whose elements have the C++ type T. nullopt if there is none.
template <typename T>
constexpr std::optional<DType> dtype_of_type() {
  if constexpr (std::is_same_v<T, f16>) return DType::f16;
  if constexpr (std::is_same_v<T, bf16>) return DType::bf16;
  if constexpr (std::is_same_v<T, float>) return DType::f32;
  if constexpr (std::is_same_v<T, double>) return DType::f64;
  if constexpr (std::is_same_v<T, std::int8_t>) return DType::i8;
  if constexpr (std::is_same_v<T, std::uint8_t>) return DType::u8;
  if constexpr (std::is_same_v<T, std::int32_t>) return DType::i32;
  if constexpr (std::is_same_v<T, std::int64_t>) return DType::i64;
  if constexpr (std::is_same_v<T, bool>) return DType::boolean;
#ifdef __CUDACC__
  if constexpr (std::is_same_v<T, __half>) return DType::f16;
  if constexpr (std::is_same_v<T, __nv_bfloat16>) return DType::bf16;
#endif
  return std::nullopt;
}

/// The number of bytes of one numeric element; 0 for `str`.
constexpr std::size_t size_of(DType dtype) {
  constexpr std::array<std::size_t, kDTypeCount> sizes = {2, 2, 4, 8, 1, 1, 4, 8, 1, 0};
  return sizes[static_cast<int>(dtype)];
}

}  // namespace opgate
