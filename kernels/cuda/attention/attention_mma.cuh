#pragma once

// Attention on the matrix units. A block owns some rows of one head (or some columns of one key head) and walks over
// the other side in tiles; a warp owns 16 * m_tiles of them and needs nothing from other warps. Scores, their
// probabilities and their gradients stay in registers, as sums of 16 x 8 products.

#include "kernels/cuda/attention/attention_head.cuh"
#include "kernels/cuda/common/rows.cuh"
#include "kernels/cuda/common/tensor_core.cuh"

namespace plimsoll::cuda {

// Heads of up to `depth` elements. The tail of a row in shared memory puts eight neighbouring rows in different banks.
// Registers are dealt out such that `blocks` fit on a multiprocessor: tensor cores wait less where more warps are
// there.
template <int depth_, int m_tiles_, int warps_, int others_, int blocks_>
struct MmaTile {
  static constexpr int depth = depth_, m_tiles = m_tiles_, warps = warps_, others = others_, blocks = blocks_;
  static constexpr int warp_rows = 16 * m_tiles, own = warp_rows * warps, threads = 32 * warps;
  static constexpr int pitch = depth + 8, row_step = pitch;
  static constexpr int n_tiles = others / 8, d_tiles = depth / 8;
  static_assert(32 % warp_rows == 0, "a warp's rows share one word of kept bits");
  __device__ static int thread() { return static_cast<int>(threadIdx.x); }  // of those that fill a tile

  // Where an element of a tile of `count` rows stands; eight rows further on, it stands 8 * row_step further on.
  template <int count>
  __device__ static int place(int row, int d) {
    return row * pitch + d;
  }
};

// Sums of a warp: [m_tiles] rows of 16 by [tiles] columns of 8.
template <int m_tiles, int tiles>
using Sums = float[m_tiles][tiles][4];

// A thread's share of tiles of `count` rows of a head. What lies outside the head becomes 0.
template <typename Tile, int count, typename T>
class RowLoader {
 public:
  __device__ RowLoader(const T* head, int64_t step, int rows, int depth, bool aligned)
      : head_(head), step_(static_cast<int>(step)), rows_(rows), all_rows_(rows), depth_(depth), aligned_(aligned) {
    row_ = Tile::thread() / vectors;
    d_ = Tile::thread() % vectors * length;
    from_ = head + row_ * step + d_;
    place_ = Tile::template place<count>(row_, d_);
    if (d_ >= depth) rows_ = 0;
  }

  // Rows [first, first + count), `offset` elements further on. Aligned rows are copied beside computing.
  __device__ void load(T* tile, int first, int64_t offset = 0) const {
    if (!aligned_) return load_elements(tile, first, offset);
    const T* from = from_ + int64_t{first} * step_ + offset;
    const int left = rows_ - first - row_;
#pragma unroll
    for (int pass = 0; pass < passes; ++pass) {
      const int row = row_ + pass * rows_per_pass;
      const int place = rows_per_pass % 8 == 0 ? place_ + pass * rows_per_pass * Tile::row_step
                                               : Tile::template place<count>(row, d_);
      if (count % rows_per_pass == 0 || row < count) copy_async(tile + place, from, pass * rows_per_pass < left);
      from += rows_per_pass * step_;
    }
  }

 private:
  static constexpr int length = 8, vectors = Tile::depth / length, rows_per_pass = Tile::threads / vectors;
  static constexpr int passes = (count + rows_per_pass - 1) / rows_per_pass;

  __device__ void load_elements(T* tile, int first, int64_t offset) const {
#pragma unroll 1
    for (int i = Tile::thread(); i < count * Tile::depth; i += Tile::threads) {
      const int row = i / Tile::depth, d = i % Tile::depth;
      const bool inside = first + row < all_rows_ && d < depth_;
      tile[Tile::template place<count>(row, d)] =
          inside ? head_[int64_t{first + row} * step_ + offset + d] : narrow<T>(0.0f);
    }
  }

  const T *head_, *from_;
  int step_, row_, d_, place_;
  int rows_;  // 0 where the thread's elements lie beyond the depth
  int all_rows_, depth_;
  bool aligned_;
};

// The left operand at column `at` of a warp's rows.
template <typename Tile, typename T>
__device__ LeftFragment left_fragment(const T* warp_rows, int m, int at) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  LeftFragment left;
  load_matrices(left.at, warp_rows + (16 * m + lane % 16) * Tile::pitch + at + lane / 16 * 8);
  return left;
}

// sums = own rows * (rows of the other tile)^T over the whole depth. left(m, k) is the own rows' fragment at depth 16
// k.
template <typename Tile, typename T, typename Left>
__device__ void multiply_rows(Sums<Tile::m_tiles, Tile::n_tiles>& sums, const T* other, Left left_at) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const T* row = other + (lane % 8 + lane / 16 * 8) * Tile::pitch + lane / 8 % 2 * 8;
#pragma unroll
  for (int m = 0; m < Tile::m_tiles; ++m)
#pragma unroll
    for (int n = 0; n < Tile::n_tiles; ++n)
#pragma unroll
      for (float& sum : sums[m][n]) sum = 0.0f;
#pragma unroll
  for (int k = 0; k < Tile::depth / 16; ++k) {
    LeftFragment left[Tile::m_tiles];
#pragma unroll
    for (int m = 0; m < Tile::m_tiles; ++m) left[m] = left_at(m, k);
#pragma unroll
    for (int n = 0; n < Tile::n_tiles; n += 2) {
      RightFragments right;
      load_matrices(right.at, row + 8 * n * Tile::pitch + 16 * k);
#pragma unroll
      for (int m = 0; m < Tile::m_tiles; ++m) {
        multiply_add<T>(sums[m][n], left[m], right, 0);
        multiply_add<T>(sums[m][n + 1], left[m], right, 1);
      }
    }
  }
}

// Columns 16 k to 16 k + 15 of weights, rounded to T, as a left operand.
template <typename T, int tiles>
__device__ LeftFragment rounded(const float (&weights)[tiles][4], int k) {
  const float(&first)[4] = weights[2 * k], (&second)[4] = weights[2 * k + 1];
  return {{packed_pair<T>(first[0], first[1]), packed_pair<T>(first[2], first[3]), packed_pair<T>(second[0], second[1]),
           packed_pair<T>(second[2], second[3])}};
}

// sums += weights * rows of the other tile, weights being rounded to T.
template <typename Tile, typename T>
__device__ void add_weighted_rows(Sums<Tile::m_tiles, Tile::d_tiles>& sums,
                                  const Sums<Tile::m_tiles, Tile::n_tiles>& weights, const T* other) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const T* row = other + lane % 16 * Tile::pitch + lane / 16 * 8;
#pragma unroll
  for (int k = 0; k < Tile::others / 16; ++k) {
    LeftFragment left[Tile::m_tiles];
#pragma unroll
    for (int m = 0; m < Tile::m_tiles; ++m) left[m] = rounded<T>(weights[m], k);
#pragma unroll
    for (int d = 0; d < Tile::d_tiles; d += 2) {
      RightFragments right;
      load_matrices_transposed(right.at, row + 16 * k * Tile::pitch + 8 * d);
#pragma unroll
      for (int m = 0; m < Tile::m_tiles; ++m) {
        multiply_add<T>(sums[m][d], left[m], right, 0);
        multiply_add<T>(sums[m][d + 1], left[m], right, 1);
      }
    }
  }
}

// Writes a warp's sums as rows [first, first + 16 m_tiles) of a head, by way of its rows of the block's own tile.
template <typename Tile, typename T, typename Factor>
__device__ void store_rows(T* head, int64_t step, int first, int rows, int depth, bool aligned, T* own_tile,
                           const Sums<Tile::m_tiles, Tile::d_tiles>& sums, Factor factor) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp_row = static_cast<int>(threadIdx.x) / 32 * Tile::warp_rows;
  auto place = [&](int row, int d) { return own_tile + Tile::template place<Tile::own>(warp_row + row, d); };
  __syncwarp();
#pragma unroll
  for (int m = 0; m < Tile::m_tiles; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float by = factor(m, half);
      const int row = 16 * m + 8 * half + lane / 4;
#pragma unroll
      for (int d = 0; d < Tile::d_tiles; ++d) {
        const float* pair = sums[m][d] + 2 * half;
        *reinterpret_cast<uint32_t*>(place(row, 8 * d + lane % 4 * 2)) = packed_pair<T>(pair[0] * by, pair[1] * by);
      }
    }
  __syncwarp();
  const int length = aligned ? 8 : 1, vectors = Tile::depth / length;
  for (int i = lane; i < Tile::warp_rows * vectors; i += 32) {
    const int row = i / vectors, d = i % vectors * length;
    if (first + row >= rows || d >= depth) continue;
    const T* from = place(row, d);
    T* to = head + (first + row) * step + d;
    if (aligned)
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
    else
      *to = *from;
  }
}

inline constexpr float log2_e = 1.4426950408889634f, ln_2 = 0.6931471805599453f;

enum class Owner { Rows, Columns };

// Where a thread's elements of a tile lie: element e of 16 x 8 product (m, n) at own row own + 16 m + 8 (e / 2) and at
// the other side's row other + 8 n + e % 2.
template <Owner owner>
struct Place {
  int own, other;

  __device__ int own_row(int m, int e) const { return own + 16 * m + e / 2 * 8; }
  __device__ int other_row(int n, int e) const { return other + 8 * n + e % 2; }
  __device__ int row(int m, int n, int e) const { return owner == Owner::Rows ? own_row(m, e) : other_row(n, e); }
  __device__ int column(int m, int n, int e) const { return owner == Owner::Rows ? other_row(n, e) : own_row(m, e); }
};

inline bool is_aligned(const void* pointer, int64_t step) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0 && step % 8 == 0;
}

// Calls visit with a null pointer of the 16-bit float type.
template <typename Visit>
cudaError_t with_16_bit_float(Scalar type, Visit visit) {
  switch (type) {
    case Scalar::BF16: return visit(static_cast<bf16*>(nullptr));
    case Scalar::F16: return visit(static_cast<f16*>(nullptr));
    default: return cudaErrorInvalidValue;
  }
}

template <typename Kernel, typename... Args>
cudaError_t launch_mma(Kernel kernel, int64_t blocks, int threads, int bytes, cudaStream_t stream, Args... args) {
  const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  kernel<<<static_cast<unsigned>(blocks), threads, static_cast<size_t>(bytes), stream>>>(args...);
  return cudaGetLastError();
}

}  // namespace plimsoll::cuda
