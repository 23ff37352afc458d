// Products of tiles of 16 x 16 x 16 on tensor cores. A lane keeps its own eight elements of a fragment, and which ones
// is as unknown as on a GPU.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "cuda_runtime.h"

namespace nvcuda::wmma {

struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
enum layout_t { mem_row_major, mem_col_major };

template <typename Use, int m, int n, int k, typename T, typename Layout = void>
struct fragment {
  static_assert(m == 16 && n == 16 && k == 16, "only tiles of 16 x 16 x 16 are emulated");
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>);
  static_assert(std::is_same_v<T, float> == std::is_same_v<Use, accumulator>, "only sums of float are emulated");

  T emulated[8];
};

}  // namespace nvcuda::wmma

namespace emulation {

/// What a lane brings to a product: where its elements are.
template <typename T>
struct Factors {
  const T *a, *b;
};

/// Where element i of the calling lane is in the tile. The rows are scattered, so that no kernel relies on the place.
inline unsigned tile_row(unsigned lane, unsigned i) { return (lane / 2 * 5 + i) % 16; }
inline unsigned tile_column(unsigned lane, unsigned i) { return lane % 2 * 8 + i; }

/// The place of an element of a tile among all elements of the warp: eight times the lane, and the element's number.
inline unsigned place_in_warp(unsigned row, unsigned column) {
  const unsigned i = column % 8;
  return ((row + 16 * 8 - i) * 13 % 16 * 2 + column / 8) * 8 + i;  // 13 * 5 = 1 modulo 16
}

/// All lanes of a warp must want the same tile, whose pointer and rows fit the hardware.
template <typename T>
void check_tile(const T* pointer, unsigned stride, const char* function, const Location& location) {
  const auto fail_at = [&](const std::string& text) {
    fail(std::string(function) + " (" + location.file_name() + ":" + std::to_string(location.line()) + "): " + text);
  };
  if (reinterpret_cast<std::uintptr_t>(pointer) % 32) fail_at("the pointer is no multiple of 32 bytes");
  if (stride * sizeof(T) % 16) fail_at("rows of " + std::to_string(stride) + " elements are no multiple of 16 bytes");
  const std::uint64_t own = packed(pointer) * 0x9e3779b97f4a7c15u ^ stride;
  for (const std::uint64_t other : meet(kWholeWarp, own, function, location)) {
    if (other != own) fail_at("the lanes of a warp want different tiles");
  }
}

/// The number of elements between the tile's first one and that at a row and a column.
template <typename Layout>
std::size_t offset(unsigned row, unsigned column, unsigned stride) {
  return std::is_same_v<Layout, nvcuda::wmma::row_major> ? std::size_t{row} * stride + column
                                                         : std::size_t{column} * stride + row;
}

inline float wide(__half value) { return __half2float(value); }
inline float wide(__nv_bfloat16 value) { return std::bit_cast<float>(unsigned{value.bits} << 16); }

}  // namespace emulation

namespace nvcuda::wmma {

template <typename Use, typename T, typename Layout>
void fill_fragment(fragment<Use, 16, 16, 16, T, Layout>& tile, std::type_identity_t<T> value) {
  std::fill_n(tile.emulated, 8, value);
}

template <typename Use, typename T, typename Layout>
void load_matrix_sync(fragment<Use, 16, 16, 16, T, Layout>& tile, const T* from, unsigned stride,
                      emulation::Location location = emulation::Location::current()) {
  emulation::check_tile(from, stride, "load_matrix_sync", location);
  for (unsigned i = 0, lane = emulation::lane(); i < 8; ++i) {
    tile.emulated[i] =
        from[emulation::offset<Layout>(emulation::tile_row(lane, i), emulation::tile_column(lane, i), stride)];
  }
}

template <typename T>
void store_matrix_sync(T* to, const fragment<accumulator, 16, 16, 16, T>& tile, unsigned stride, layout_t layout,
                       emulation::Location location = emulation::Location::current()) {
  emulation::check_tile(to, stride, "store_matrix_sync", location);
  for (unsigned i = 0, lane = emulation::lane(); i < 8; ++i) {
    const unsigned row = emulation::tile_row(lane, i), column = emulation::tile_column(lane, i);
    to[layout == mem_row_major ? emulation::offset<row_major>(row, column, stride)
                               : emulation::offset<col_major>(row, column, stride)] = tile.emulated[i];
  }
}

template <typename T, typename LayoutA, typename LayoutB>
void mma_sync(fragment<accumulator, 16, 16, 16, float>& to, const fragment<matrix_a, 16, 16, 16, T, LayoutA>& a,
              const fragment<matrix_b, 16, 16, 16, T, LayoutB>& b, const fragment<accumulator, 16, 16, 16, float>& c,
              emulation::Location location = emulation::Location::current()) {
  const emulation::Factors<T> own{a.emulated, b.emulated};
  emulation::Values lanes = emulation::meet(emulation::kWholeWarp, emulation::packed(&own), "mma_sync", location);
  const auto factors = [&](unsigned place) -> const emulation::Factors<T>& {
    return *reinterpret_cast<const emulation::Factors<T>*>(lanes[place / 8]);
  };
  for (unsigned i = 0, lane = emulation::lane(); i < 8; ++i) {
    float sum = c.emulated[i];
    for (unsigned k = 0; k < 16; ++k) {
      const unsigned left = emulation::place_in_warp(emulation::tile_row(lane, i), k);
      const unsigned right = emulation::place_in_warp(k, emulation::tile_column(lane, i));
      sum += emulation::wide(factors(left).a[left % 8]) * emulation::wide(factors(right).b[right % 8]);
    }
    to.emulated[i] = sum;
  }
  // No lane may go on and change its elements before all have read them.
  emulation::meet(emulation::kWholeWarp, 0, "mma_sync", location);
}

}  // namespace nvcuda::wmma
