#include "kernels/cuda/matmul/few_rows_gradient.h"

#include "kernels/cuda/common/rows.cuh"
#include "kernels/cuda/common/tensor_core.cuh"

// Serves linear_dw ("few_rows"). A block makes a tile of dw: it brings up to 128 rows of the columns of both operands
// to shared memory at once, multiplies them on the matrix units, and the blocks of one side of dw also add dy up, so
// that the gradients of weight and bias are one launch. Sums are f32, in the order of the rows by sixteens.

namespace plimsoll::cuda {
namespace {

constexpr int tile = 64, chunk_rows = 128, pitch = tile + 8;  // columns of dw a side, rows and their elements
constexpr int warps = block_threads / warp_threads, bias_parts = block_threads / tile;
constexpr int warp_rows = 32, warp_columns = 16;  // of dw
static_assert(tile / warp_rows * (tile / warp_columns) == warps);

template <typename T>
struct Operands {
  T left[chunk_rows][pitch], right[chunk_rows][pitch];
};

// Brings `rows` rows of the tile's columns, those outside as zeros. Accesses have 16 bytes, or 4.
template <int access, typename T>
__device__ void copy_columns(T (&to)[chunk_rows][pitch], const T* from, int64_t columns, int64_t first, int rows,
                             int rounded) {
  constexpr int elements = access / static_cast<int>(sizeof(T)), accesses = tile / elements;
  for (int i = static_cast<int>(threadIdx.x); i < rounded * accesses; i += block_threads) {
    const int row = i / accesses, column = i % accesses * elements;
    const bool inside = row < rows && first + column < columns;
    const T* at = inside ? from + row * columns + first + column : from;
    if constexpr (access == 16)
      copy_async(&to[row][column], at, inside);
    else
      copy_word_async(&to[row][column], at, inside);
  }
}

template <typename T>
__device__ void copy_operand(T (&to)[chunk_rows][pitch], const T* from, int64_t columns, int64_t first, int rows,
                             int rounded) {
  if (columns % (16 / sizeof(T)) == 0)
    copy_columns<16>(to, from, columns, first, rows, rounded);
  else
    copy_columns<4>(to, from, columns, first, rows, rounded);
}

// Of 32 x 16 elements of dw, from 16 rows of the operands.
template <typename T>
__device__ void multiply_rows(float (&sums)[2][2][4], const Operands<T>& shared, int row, int left, int right) {
  const int lane = static_cast<int>(threadIdx.x) % warp_threads, matrix = lane / 8, line = lane % 8;
  RightFragments b;
  load_matrices_transposed(b.at, &shared.right[row + matrix % 2 * 8 + line][right + matrix / 2 * 8]);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    LeftFragment a;
    load_matrices_transposed(a.at, &shared.left[row + matrix / 2 * 8 + line][left + i * 16 + matrix % 2 * 8]);
    multiply_add<T>(sums[i][0], a, b, 0);
    multiply_add<T>(sums[i][1], a, b, 1);
  }
}

template <typename D>
__device__ void store_pair(D* dw, const D* addend, int64_t at, float first, float second) {
  if (addend) {
    const Vector<D, 2> added = load_vector<2>(addend + at);
    first += widen(added.at[0]), second += widen(added.at[1]);
  }
  store_vector(dw + at, Vector<D, 2>{narrow<D>(first), narrow<D>(second)});
}

template <typename T, typename D>
__global__ void __launch_bounds__(block_threads)
    few_rows_kernel(int64_t rows, int64_t left_columns, int64_t right_columns, const T* left, const T* right,
                    const D* addend, D* dw, D* dbias, bool left_is_dy) {
  __shared__ __align__(16) Operands<T> shared;
  __shared__ float bias_sums[bias_parts][tile];
  const auto across = (right_columns + tile - 1) / tile;
  const int64_t first_left = blockIdx.x / across * tile, first_right = blockIdx.x % across * tile;
  const int warp = static_cast<int>(threadIdx.x) / warp_threads, lane = static_cast<int>(threadIdx.x) % warp_threads;
  const int own_left = warp / (tile / warp_columns) * warp_rows,
            own_right = warp % (tile / warp_columns) * warp_columns;
  const bool sums_dy = dbias && (left_is_dy ? first_right : first_left) == 0;
  const int bias_column = static_cast<int>(threadIdx.x) % tile, bias_part = static_cast<int>(threadIdx.x) / tile;
  float sums[2][2][4] = {}, bias = 0;
  for (int64_t first = 0; first < rows; first += chunk_rows) {
    const int here = static_cast<int>(min(rows - first, int64_t{chunk_rows})), rounded = (here + 15) / 16 * 16;
    copy_operand(shared.left, left + first * left_columns, left_columns, first_left, here, rounded);
    copy_operand(shared.right, right + first * right_columns, right_columns, first_right, here, rounded);
    commit_copies();
    wait_for_copies<0>();
    __syncthreads();
    for (int row = 0; row < rounded; row += 16) multiply_rows(sums, shared, row, own_left, own_right);
    if (sums_dy)
      for (int row = bias_part; row < here; row += bias_parts)
        bias += widen((left_is_dy ? shared.left : shared.right)[row][bias_column]);
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int64_t column = first_right + own_right + j * 8 + lane % 4 * 2;
      const int64_t row = first_left + own_left + i * 16 + lane / 4;
      if (column >= right_columns) continue;
      if (row < left_columns) store_pair(dw, addend, row * right_columns + column, sums[i][j][0], sums[i][j][1]);
      if (row + 8 < left_columns)
        store_pair(dw, addend, (row + 8) * right_columns + column, sums[i][j][2], sums[i][j][3]);
    }
  if (!sums_dy) return;
  bias_sums[bias_part][bias_column] = bias;
  __syncthreads();
  const int64_t column = (left_is_dy ? first_left : first_right) + bias_column;
  if (bias_part > 0 || column >= (left_is_dy ? left_columns : right_columns)) return;
  float sum = 0;
#pragma unroll
  for (int part = 0; part < bias_parts; ++part) sum += bias_sums[part][bias_column];
  dbias[column] = narrow<D>(sum);
}

template <typename T, typename D>
cudaError_t launch(const FewRowsGradientCall& c, cudaStream_t stream) {
  const int64_t tiles = divide_up(c.left_columns, tile) * divide_up(c.right_columns, tile);
  few_rows_kernel<T, D><<<static_cast<unsigned>(tiles), block_threads, 0, stream>>>(
      c.rows, c.left_columns, c.right_columns, static_cast<const T*>(c.left), static_cast<const T*>(c.right),
      static_cast<const D*>(c.addend), static_cast<D*>(c.dw), static_cast<D*>(c.dbias), c.left_is_dy);
  return cudaGetLastError();
}

template <typename T>
cudaError_t launch_typed(const FewRowsGradientCall& c, cudaStream_t stream) {
  return c.dw_type == Scalar::F32 ? launch<T, float>(c, stream) : launch<T, T>(c, stream);
}

}  // namespace

cudaError_t few_rows_gradient(const FewRowsGradientCall& call, cudaStream_t stream) {
  return call.type == Scalar::BF16 ? launch_typed<bf16>(call, stream) : launch_typed<f16>(call, stream);
}

}  // namespace plimsoll::cuda
