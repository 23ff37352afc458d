// Products of matrices on CUDA: a block computes a tile of a product. 16-bit numbers are multiplied on tensor cores and
// added as f32, others in registers, without rounding them to fewer bits.
#pragma once

#include <mma.h>

#include "elementwise.cuh"

namespace opgate::products {

/// A tile has kRows rows and kColumns columns, which kThreads threads compute.
inline constexpr int kRows = 128, kColumns = 64, kThreads = 128, kWarp = 32;

/// So many blocks should be on a multiprocessor at once, so that some compute while others wait.
template <typename T>
inline constexpr int kBlocks = sizeof(T) == 8 ? 2 : 3;

/// Where a sum over the depth may be split: a block reads so many numbers of each row and column at once, or half or a
/// quarter of them.
inline constexpr int kDepth = 32;

/// The numbers of T that a thread loads at once.
template <typename T>
inline constexpr int kVector = elementwise::kBytes / sizeof(T);

template <typename T>
using Vector = elementwise::Lanes<T, kVector<T>>;

/// The rows of the left matrix of a product, or the columns of the right one. The numbers of a row lie side by side if
/// the matrix is `deep`; else those of all rows do that have the same depth. `stride` numbers lie between two rows, or
/// between two depths. The data is aligned to whole vectors, and the stride is a multiple of one. The last vector may
/// go past the depth, or past the rows, where it must have zeros past the depth.
template <typename T, bool is_deep>
struct Matrix {
  static constexpr bool deep = is_deep;

  const T* data;
  std::int64_t stride, rows;
};

/// Takes `rows` rows of a matrix to shared memory, `depth` numbers of each at once. Registers hold them in between, so
/// that the block computes while they come from device memory.
template <typename T, bool deep, int rows, int depth>
class Loader {
 public:
  /// What lies side by side: how many lines of how many numbers.
  static constexpr int kLine = deep ? depth : rows, kLines = deep ? rows : depth;

  __device__ Loader(const Matrix<T, deep>& matrix, std::int64_t first, std::int64_t begin, std::int64_t end)
      : data_(matrix.data + (deep ? first * matrix.stride + begin : begin * matrix.stride + first)),
        stride_(matrix.stride),
        rows_(static_cast<int>(matrix.rows - first < rows ? matrix.rows - first : rows)),
        left_(end - begin) {}

  /// Asks device memory for the next numbers, of which none are behind the end.
  __device__ void load() {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int line = line_of(i), in_line = in_line_of(i);
      const bool exists = (deep ? line : in_line) < rows_ && (deep ? in_line : line) < left_;
      held_[i] = exists ? *reinterpret_cast<const Bits*>(data_ + line * stride_ + in_line) : Bits{};
    }
    left_ -= depth;
    data_ += deep ? depth : depth * stride_;
  }

  /// tile[line][i] = the numbers as they lie side by side.
  template <int stride>
  __device__ void keep_lines(T* tile) const {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      *reinterpret_cast<Bits*>(tile + line_of(i) * stride + in_line_of(i)) = held_[i];
    }
  }

  /// tile[depth][row] = the numbers.
  template <int stride, typename C>
  __device__ void keep_rows(C* tile) const {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      Vector<T> numbers;
      std::memcpy(&numbers, &held_[i], sizeof numbers);
#pragma unroll
      for (int j = 0; j < kVector<T>; ++j) {
        const int along = in_line_of(i) + j;
        tile[deep ? along * stride + line_of(i) : line_of(i) * stride + along] = static_cast<C>(numbers.values[j]);
      }
    }
  }

  /// How many rows of the tile exist.
  __device__ int existing() const { return rows_; }

 private:
  /// A vector in four registers: the compiler would put 16-bit numbers together again.
  using Bits = elementwise::Lanes<std::uint32_t, 4>;

  static constexpr int kVectors = kLine / kVector<T>, kEach = kVectors * kLines / kThreads;
  static_assert(kEach * kThreads == kVectors * kLines);

  static __device__ int line_of(int i) { return (static_cast<int>(threadIdx.x) + i * kThreads) / kVectors; }
  static __device__ int in_line_of(int i) {
    return (static_cast<int>(threadIdx.x) + i * kThreads) % kVectors * kVector<T>;
  }

  const T* data_;
  std::int64_t stride_;
  int rows_;
  std::int64_t left_;
  Bits held_[kEach];
};

/// Sums in registers: a thread has 8 x 8 of them, in groups of rows and columns that are loaded together.
template <typename T, bool left_deep, bool right_deep>
class RegisterTile {
 public:
  using C = ComputeType<T>;
  static constexpr int kDepth = 64 / sizeof(C);

  struct Shared {
    static constexpr int kLeft = kRows + kVector<C>, kRight = kColumns + kVector<C>;
    alignas(elementwise::kBytes) C left[2][kDepth * kLeft];
    alignas(elementwise::kBytes) C right[2][kDepth * kRight];
  };

  static __device__ void keep(Shared& shared, int buffer, const Loader<T, left_deep, kRows, kDepth>& left,
                              const Loader<T, right_deep, kColumns, kDepth>& right) {
    left.template keep_rows<Shared::kLeft>(shared.left[buffer]);
    right.template keep_rows<Shared::kRight>(shared.right[buffer]);
  }

  __device__ void add(const Shared& shared, int buffer) {
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
      Vector<C> rows[kGroups], columns[kGroups];
#pragma unroll
      for (int i = 0; i < kGroups; ++i) {
        rows[i] = *reinterpret_cast<const Vector<C>*>(shared.left[buffer] + k * Shared::kLeft + row_of(i * kVector<C>));
        columns[i] =
            *reinterpret_cast<const Vector<C>*>(shared.right[buffer] + k * Shared::kRight + column_of(i * kVector<C>));
      }
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
#pragma unroll
        for (int j = 0; j < kEach; ++j) {
          sums_[i][j] += rows[i / kVector<C>].values[i % kVector<C>] * columns[j / kVector<C>].values[j % kVector<C>];
        }
      }
    }
  }

  template <bool rows_together, typename Store>
  __device__ void store(Shared&, const Store& store) const {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
#pragma unroll
      for (int j = 0; j < kEach; ++j) store(row_of(i), column_of(j), sums_[i][j]);
    }
  }

 private:
  static constexpr int kEach = 8, kGroups = kEach / kVector<C>, kThreadColumns = kColumns / kEach;

  static __device__ int row_of(int i) {
    const int thread = static_cast<int>(threadIdx.x) / kThreadColumns;
    return (i / kVector<C> * (kRows / kEach) + thread) * kVector<C> + i % kVector<C>;
  }
  static __device__ int column_of(int j) {
    const int thread = static_cast<int>(threadIdx.x) % kThreadColumns;
    return (j / kVector<C> * kThreadColumns + thread) * kVector<C> + j % kVector<C>;
  }

  C sums_[kEach][kEach] = {};
};

/// What tensor cores call the 16-bit types.
template <typename T>
using TensorType = std::conditional_t<std::is_same_v<T, f16>, __half, __nv_bfloat16>;

/// load_matrix_sync() from shared memory.
template <typename Tile, typename T>
__device__ void load_tile(Tile& tile, const T* from, unsigned stride) {
  nvcuda::wmma::load_matrix_sync(tile, from, stride);
}

#ifdef __NVCC__
/// The same for bf16. nvcc 13 doesn't see there that the memory is shared, and loads four bytes at a time.
template <typename Use, typename Layout>
__device__ void load_tile(nvcuda::wmma::fragment<Use, 16, 16, 16, __nv_bfloat16, Layout>& tile,
                          const __nv_bfloat16* from, unsigned stride) {
  static_assert(sizeof tile == 4 * sizeof(unsigned));
  constexpr bool left = std::is_same_v<Use, nvcuda::wmma::matrix_a>;
  constexpr bool by_row = std::is_same_v<Layout, nvcuda::wmma::row_major>;
  const auto at = static_cast<unsigned>(__cvta_generic_to_shared(from));
  auto* const to = reinterpret_cast<unsigned*>(&tile);
#define OPGATE_LOAD_TILE(tile_and_order)                                                        \
  asm volatile("wmma.load." tile_and_order ".m16n16k16.shared.bf16 {%0, %1, %2, %3}, [%4], %5;" \
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])                             \
               : "r"(at), "r"(stride)                                                           \
               : "memory")
  if constexpr (left && by_row) OPGATE_LOAD_TILE("a.sync.aligned.row");
  if constexpr (left && !by_row) OPGATE_LOAD_TILE("a.sync.aligned.col");
  if constexpr (!left && by_row) OPGATE_LOAD_TILE("b.sync.aligned.row");
  if constexpr (!left && !by_row) OPGATE_LOAD_TILE("b.sync.aligned.col");
#undef OPGATE_LOAD_TILE
}
#endif

/// Sums on tensor cores: a warp has 64 x 32 of them, in fragments of 16 x 16.
template <typename T, bool left_deep, bool right_deep>
class TensorTile {
  static constexpr int kSide = 16, kDown = 4, kAcross = 2, kWarps = kThreads / kWarp;

 public:
  static constexpr int kDepth = products::kDepth;

  struct Shared {
    /// The numbers between two lines. With these the lines of a fragment are in different banks.
    static constexpr int kLeft = (left_deep ? kDepth : kRows) + 8, kRight = (right_deep ? kDepth : kColumns) + 8;
    alignas(32) T left[2][(left_deep ? kRows : kDepth) * kLeft];
    alignas(32) T right[2][(right_deep ? kColumns : kDepth) * kRight];
    alignas(32) float sums[kWarps][kSide * kSide];
  };

  __device__ TensorTile() {
#pragma unroll
    for (int i = 0; i < kDown; ++i) {
#pragma unroll
      for (int j = 0; j < kAcross; ++j) nvcuda::wmma::fill_fragment(sums_[i][j], 0.0f);
    }
  }

  static __device__ void keep(Shared& shared, int buffer, const Loader<T, left_deep, kRows, kDepth>& left,
                              const Loader<T, right_deep, kColumns, kDepth>& right) {
    left.template keep_lines<Shared::kLeft>(shared.left[buffer]);
    right.template keep_lines<Shared::kRight>(shared.right[buffer]);
  }

  __device__ void add(const Shared& shared, int buffer) {
    using namespace nvcuda::wmma;
#pragma unroll
    for (int k = 0; k < kDepth; k += kSide) {
      fragment<matrix_b, kSide, kSide, kSide, TensorType<T>, std::conditional_t<right_deep, col_major, row_major>>
          right[kAcross];
#pragma unroll
      for (int j = 0; j < kAcross; ++j) {
        const int column = first_column() + j * kSide;
        const T* const from =
            shared.right[buffer] + (right_deep ? column * Shared::kRight + k : k * Shared::kRight + column);
        load_tile(right[j], reinterpret_cast<const TensorType<T>*>(from), Shared::kRight);
      }
#pragma unroll
      for (int i = 0; i < kDown; ++i) {
        fragment<matrix_a, kSide, kSide, kSide, TensorType<T>, std::conditional_t<left_deep, row_major, col_major>>
            left;
        const int row = first_row() + i * kSide;
        const T* const from = shared.left[buffer] + (left_deep ? row * Shared::kLeft + k : k * Shared::kLeft + row);
        load_tile(left, reinterpret_cast<const TensorType<T>*>(from), Shared::kLeft);
#pragma unroll
        for (int j = 0; j < kAcross; ++j) mma_sync(sums_[i][j], left, right[j], sums_[i][j]);
      }
    }
  }

  template <bool rows_together, typename Store>
  __device__ void store(Shared& shared, const Store& store) const {
    using namespace nvcuda::wmma;
    float* const own = shared.sums[static_cast<int>(threadIdx.x) / kWarp];
#pragma unroll
    for (int i = 0; i < kDown; ++i) {
#pragma unroll
      for (int j = 0; j < kAcross; ++j) {
        store_matrix_sync(own, sums_[i][j], kSide, rows_together ? mem_col_major : mem_row_major);
        __syncwarp();
#pragma unroll 2
        for (int at = static_cast<int>(threadIdx.x) % kWarp; at < kSide * kSide; at += kWarp) {
          const int row = first_row() + i * kSide, column = first_column() + j * kSide;
          const int inner = at % kSide, outer = at / kSide;
          store(row + (rows_together ? inner : outer), column + (rows_together ? outer : inner), own[at]);
        }
        __syncwarp();
      }
    }
  }

 private:
  static __device__ int first_row() { return static_cast<int>(threadIdx.x) / kWarp % 2 * (kDown * kSide); }
  static __device__ int first_column() { return static_cast<int>(threadIdx.x) / kWarp / 2 * (kAcross * kSide); }

  nvcuda::wmma::fragment<nvcuda::wmma::accumulator, kSide, kSide, kSide, float> sums_[kDown][kAcross];
};

/// Calls store(row, column, sum over k in [begin, end) of left(row, k) right(k, column)) for the rows and columns of
/// the tile that begins at `first_row` and `first_column`; `row` and `column` are counted from there. Threads that are
/// neighbours store rows that are neighbours if `rows_together`, else columns. All threads of a block of kThreads must
/// call this, once.
template <bool rows_together, typename T, bool left_deep, bool right_deep, typename Store>
__device__ void multiply_tile(const Matrix<T, left_deep>& left, std::int64_t first_row,
                              const Matrix<T, right_deep>& right, std::int64_t first_column, std::int64_t begin,
                              std::int64_t end, const Store& store) {
#if __CUDA_ARCH__ >= 800
  using Tile =
      std::conditional_t<sizeof(T) == 2, TensorTile<T, left_deep, right_deep>, RegisterTile<T, left_deep, right_deep>>;
#else
  using Tile = RegisterTile<T, left_deep, right_deep>;  // older tensor cores know no bf16
#endif
  __shared__ typename Tile::Shared shared;
  Loader<T, left_deep, kRows, Tile::kDepth> rows(left, first_row, begin, end);
  Loader<T, right_deep, kColumns, Tile::kDepth> columns(right, first_column, begin, end);
  Tile tile;
  rows.load();
  columns.load();
  Tile::keep(shared, 0, rows, columns);
  __syncthreads();
  int buffer = 0;
  for (std::int64_t left_over = end - begin - Tile::kDepth;; left_over -= Tile::kDepth, buffer ^= 1) {
    if (left_over > 0) {
      rows.load();
      columns.load();
    }
    tile.add(shared, buffer);
    if (left_over <= 0) break;
    Tile::keep(shared, buffer ^ 1, rows, columns);
    __syncthreads();
  }
  tile.template store<rows_together>(shared, [&](int row, int column, ComputeType<T> sum) {
    if (row < rows.existing() && column < columns.existing()) store(row, column, sum);
  });
}

/// How a grid computes a product for `groups` pairs of matrices: as tiles, and where these are few, as several sums
/// over parts of the depth. It depends only on the sizes, so a sum is the same on every GPU. A block computes a tile:
/// memory for 2^31 of them doesn't exist.
struct Grid {
  std::uint32_t row_tiles, column_tiles, groups, splits;
  std::int64_t part, depth;

  static Grid of(std::int64_t rows, std::int64_t columns, std::int64_t depth, std::int64_t groups) {
    Grid grid{tiles_of(rows, kRows), tiles_of(columns, kColumns), static_cast<std::uint32_t>(groups), 1, 0, depth};
    const std::int64_t wanted =
        std::clamp<std::int64_t>(kEnough / std::max<std::int64_t>(1, grid.tiles()), 1, most_splits(depth));
    grid.part = std::max<std::int64_t>(1, ((depth + wanted - 1) / wanted + kDepth - 1) / kDepth) * kDepth;
    grid.splits = static_cast<std::uint32_t>(std::max<std::int64_t>(1, (depth + grid.part - 1) / grid.part));
    return grid;
  }

  /// How many sums there may be for `count` elements of a product, if there are parts. They don't become fewer for
  /// larger sizes.
  static std::int64_t most_parts(std::int64_t count, std::int64_t depth) {
    const std::int64_t splits = most_splits(depth);
    return splits == 1 ? 0 : std::min<std::int64_t>(splits * count, kEnough * kRows * kColumns);
  }

  static std::uint32_t tiles_of(std::int64_t count, int tile) {
    return static_cast<std::uint32_t>((count + tile - 1) / tile);
  }

  std::int64_t tiles() const { return std::int64_t{row_tiles} * column_tiles * groups * splits; }

 private:
  /// A few blocks for each multiprocessor of a large GPU.
  static constexpr std::int64_t kEnough = 256;

  static std::int64_t most_splits(std::int64_t depth) { return std::max<std::int64_t>(1, depth / (8 * kDepth)); }
};

/// The tile that a block of such a grid computes.
struct Place {
  std::uint32_t group, split;
  std::int64_t first_row, first_column, begin, end;  ///< from `begin` to `end` of the depth

  static __device__ Place of(const Grid& grid) {
    const std::uint32_t rest = blockIdx.x / grid.column_tiles, column = blockIdx.x - rest * grid.column_tiles;
    const std::uint32_t parts = rest / grid.row_tiles, row = rest - parts * grid.row_tiles;
    const std::uint32_t group = parts / grid.splits, split = parts - group * grid.splits;
    const std::int64_t begin = split * grid.part, end = begin + grid.part;
    return {group,
            split,
            std::int64_t{row} * kRows,
            std::int64_t{column} * kColumns,
            begin,
            end < grid.depth ? end : grid.depth};
  }
};

}  // namespace opgate::products
