#include "kernels/cuda/common/nest.cuh"
#include "kernels/cuda/elementwise/code_runs.cuh"
#include "kernels/cuda/elementwise/dequantize.h"

#include <algorithm>
#include <cmath>

// Traffic is that of the result, which is written once in words of 16 bytes, and of the codes, a quarter or half of it.
// A thread has a run of columns of several rows: scales and zero points that rows share stay in registers, and nothing
// is divided from row to row. It loads what four rows need before it uses the first. Integers are numbers by
// arithmetic; 8-bit floats are looked up in shared memory.

namespace plimsoll::cuda {
namespace {

constexpr int rows_at_once = 4;

// Scales of a thread's run of columns: one for each row, one for several rows, or one for each column and several rows.
enum class Scales : uint8_t { OfRow, OfRows, OfColumns };

// Threads of a block stand side by side along columns, `across` of them, and in rows.
struct Tiles {
  int across, down, rows_per_thread;
  unsigned column_blocks;
  int64_t block_columns;  // of the grid of blocks
  Divider32 of_block;     // divides runs of columns by those of a block
  Divider32 of_rows;      // divides rows by those of a block
};

__device__ float linear_number(float code, float zero, float scale) { return __fmul_rn(__fsub_rn(code, zero), scale); }

// Of two codes in a byte the first is the low half.
template <int bits>
__device__ uint8_t byte_of_code(const uint8_t* codes, int64_t i) {
  return codes[bits == 8 ? i : i >> 1];
}
template <int bits>
__device__ uint32_t code_in_byte(uint8_t byte, int64_t i) {
  return bits == 8 ? byte : byte >> (i & 1) * 4 & 15;
}

// How codes become numbers less their zero points: `zero` is that of all, where there are no others.
template <CodeKind kind>
struct Numbers {
  IntegerCodes integers;
  const float* values;
  float zero;

  __device__ float zero_of(uint32_t code) const {
    return kind == CodeKind::Integer ? integers.counted(code) : values[code];
  }
  // Zero points and scales are those of all codes of the run, or own ones.
  template <typename T, int bits, int own>
  __device__ Vector<T, run_length<T>> of(const CodeRun<bits, run_length<T>>& run, const float (&zeros)[own],
                                         const float (&scales)[own]) const {
    float codes[run_length<T>];
    if constexpr (kind == CodeKind::Integer) {
      integers.counted(run, codes);
    } else {
#pragma unroll
      for (int k = 0; k < run_length<T>; ++k) codes[k] = values[run.template at</*high_first=*/false>(k)];
    }
    Vector<T, run_length<T>> results;
#pragma unroll
    for (int k = 0; k < run_length<T>; ++k)
      results.at[k] = narrow<T>(linear_number(codes[k], zeros[k % own], scales[k % own]));
    return results;
  }
};

// Where a thread is: the number of its run, and of its first scale and zero point.
struct Place {
  int64_t run, scale, zero;

  __device__ Place operator+(const Place& more) const { return {run + more.run, scale + more.scale, zero + more.zero}; }
};

// Rows that have a scale each, `step` apart. At most rows_at_once of them, and `count` unless is_whole.
template <typename T, int bits, CodeKind kind, bool is_whole>
__device__ void make_rows(const DequantizeLinear& call, const Numbers<kind>& numbers, Place& place, const Place& step,
                          int count, T* __restrict__ y) {
  using Run = CodeRun<bits, run_length<T>>;
  Run runs[rows_at_once];
  uint32_t scales[rows_at_once];
  uint8_t zeros[rows_at_once] = {};
  Place at = place;
#pragma unroll
  for (int r = 0; r < rows_at_once; ++r, at = at + step) {
    if (!is_whole && r >= count) continue;
    runs[r] = Run::load(call.codes + at.run * Run::bytes);
    scales[r] = load_bits(call.scales, call.scale_type, at.scale);
    if (call.zeros) zeros[r] = byte_of_code<bits>(call.zeros, at.zero);
  }
#pragma unroll
  for (int r = 0; r < rows_at_once; ++r, place = place + step) {
    if (!is_whole && r >= count) continue;
    const float scale[] = {float_of(scales[r], call.scale_type)};
    const float zero[] = {call.zeros ? numbers.zero_of(code_in_byte<bits>(zeros[r], place.zero)) : numbers.zero};
    store_vector(y + place.run * run_length<T>, numbers.template of<T>(runs[r], zero, scale));
  }
}

// Scales and zero points in registers, and the rows they are of.
template <int own_>
struct SharedScales {
  static constexpr int own = own_;
  float zeros[own], scales[own];
  int end = 0;  // the first row behind these

  // `place` is in the first row of blocks.
  template <int bits, CodeKind kind>
  __device__ void load(const DequantizeLinear& call, const Tiles& tiles, const Numbers<kind>& numbers,
                       const Place& place, int row) {
    const int of_row = tiles.of_rows.quotient(row);
    end = static_cast<int>((of_row + 1) * call.block_rows);
#pragma unroll
    for (int k = 0; k < own; ++k) {
      const int64_t zero = place.zero + of_row * call.zeros_per_row + k;
      scales[k] = float_at(call.scales, call.scale_type, place.scale + of_row * tiles.block_columns + k);
      zeros[k] =
          call.zeros ? numbers.zero_of(code_in_byte<bits>(byte_of_code<bits>(call.zeros, zero), zero)) : numbers.zero;
    }
  }
};

// Rows that share their scales with the rows beside them, from `row` on.
template <typename T, int bits, CodeKind kind, int own, bool is_whole>
__device__ void make_rows(const DequantizeLinear& call, const Tiles& tiles, const Numbers<kind>& numbers, Place& place,
                          int64_t step, int row, int count, SharedScales<own>& shared, T* __restrict__ y) {
  using Run = CodeRun<bits, run_length<T>>;
  Run runs[rows_at_once];
#pragma unroll
  for (int r = 0; r < rows_at_once; ++r)
    if (is_whole || r < count) runs[r] = Run::load(call.codes + (place.run + r * step) * Run::bytes);
#pragma unroll
  for (int r = 0; r < rows_at_once; ++r, row += tiles.down, place.run += step) {
    if (!is_whole && r >= count) continue;
    if (row >= shared.end) shared.template load<bits>(call, tiles, numbers, place, row);
    store_vector(y + place.run * run_length<T>, numbers.template of<T>(runs[r], shared.zeros, shared.scales));
  }
}

// Rows are whole runs, and blocks of columns too, or 1.
template <typename T, int bits, CodeKind kind, Scales scales>
__global__ void __launch_bounds__(block_threads, 4)
    dequantize_linear_rows_kernel(const __grid_constant__ DequantizeLinear call, const __grid_constant__ Tiles tiles,
                                  IntegerCodes integers, T* __restrict__ y) {
  constexpr int codes = kind == CodeKind::Table ? 1 << bits : 1;
  __shared__ float values[codes];
  if constexpr (kind == CodeKind::Table) {
    for (int i = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x); i < codes; i += block_threads)
      values[i] = call.values[i];
    __syncthreads();
  }
  const unsigned column_block = blockIdx.x % tiles.column_blocks, row_block = blockIdx.x / tiles.column_blocks;
  const int column = static_cast<int>(column_block) * tiles.across + static_cast<int>(threadIdx.x);  // of runs
  const int64_t runs_of_row = call.columns / run_length<T>;
  const int first = static_cast<int>(row_block) * tiles.down * tiles.rows_per_thread + static_cast<int>(threadIdx.y);
  if (column >= runs_of_row || first >= call.rows) return;
  int left = min(static_cast<int>(divide_up(call.rows - first, tiles.down)), tiles.rows_per_thread);
  const Numbers<kind> numbers{integers, values, kind == CodeKind::Integer ? integers.zero_of(call.zero) : call.zero};
  const int block = scales == Scales::OfColumns ? column * run_length<T> : tiles.of_block.quotient(column);
  Place place{first * runs_of_row + column, block, block};
  const Place step{tiles.down * runs_of_row, tiles.down * tiles.block_columns, tiles.down * call.zeros_per_row};
  if constexpr (scales == Scales::OfRow) {
    place.scale += first * tiles.block_columns;
    place.zero += first * call.zeros_per_row;
    for (; left >= rows_at_once; left -= rows_at_once)
      make_rows<T, bits, kind, true>(call, numbers, place, step, left, y);
    if (left > 0) make_rows<T, bits, kind, false>(call, numbers, place, step, left, y);
  } else {
    SharedScales<scales == Scales::OfColumns ? run_length<T> : 1> shared;
    int row = first;
    for (; left >= rows_at_once; left -= rows_at_once, row += rows_at_once * tiles.down)
      make_rows<T, bits, kind, shared.own, true>(call, tiles, numbers, place, step.run, row, left, shared, y);
    if (left > 0)
      make_rows<T, bits, kind, shared.own, false>(call, tiles, numbers, place, step.run, row, left, shared, y);
  }
}

// Any blocks; a thread makes a run of numbers.
template <typename T, int bits>
__global__ void __launch_bounds__(block_threads)
    dequantize_linear_any_kernel(const __grid_constant__ DequantizeLinear call, const __grid_constant__ Divider columns,
                                 const __grid_constant__ Divider block_rows, const __grid_constant__ Divider block,
                                 T* __restrict__ y) {
  __shared__ float values[1 << bits];
  for (int i = threadIdx.x; i < 1 << bits; i += block_threads) values[i] = call.values[i];
  __syncthreads();
  const int64_t n = call.rows * call.columns, block_columns = divide_up(call.columns, call.block);
  const int64_t first = (int64_t{blockIdx.x} * block_threads + threadIdx.x) * run_length<T>;
  for (int64_t at = first; at < first + run_length<T> && at < n; ++at) {
    int64_t column = at, row = columns.divide(column);
    row = block_rows.divide(row);
    column = block.divide(column);
    const auto code = [&](const uint8_t* codes, int64_t i) {
      return code_in_byte<bits>(byte_of_code<bits>(codes, i), i);
    };
    const float zero = call.zeros ? values[code(call.zeros, row * call.zeros_per_row + column)] : call.zero;
    y[at] = narrow<T>(linear_number(values[code(call.codes, at)], zero,
                                    float_at(call.scales, call.scale_type, row * block_columns + column)));
  }
}

// Wide enough for whole sectors of memory, and such that few threads lie behind the last column. A thread has as many
// rows as leave work for all multiprocessors.
template <typename T>
Tiles tiles_for(const DequantizeLinear& call, int most_rows) {
  constexpr int least_across = 8;
  constexpr int64_t wanted_blocks = 1056;  // eight for each of 132 multiprocessors
  const int64_t runs = call.columns / run_length<T>;
  int across = block_threads;
  while (across > least_across && round_up(runs, across) * 16 > runs * 17) across /= 2;
  Tiles tiles{.across = across,
              .down = block_threads / across,
              .rows_per_thread = most_rows,
              .column_blocks = static_cast<unsigned>(divide_up(runs, across)),
              .block_columns = divide_up(call.columns, call.block),
              .of_block = Divider32(static_cast<int32_t>(std::max<int64_t>(call.block / run_length<T>, 1))),
              .of_rows = Divider32(static_cast<int32_t>(call.block_rows))};
  while (tiles.rows_per_thread > rows_at_once &&
         divide_up(call.rows, int64_t{tiles.down} * tiles.rows_per_thread) * tiles.column_blocks < wanted_blocks)
    tiles.rows_per_thread /= 2;
  return tiles;
}

template <typename T, int bits, CodeKind kind, Scales scales>
cudaError_t launch_rows(const DequantizeLinear& call, IntegerCodes integers, T* y, cudaStream_t stream) {
  const Tiles tiles = tiles_for<T>(call, scales == Scales::OfRow ? 4 * rows_at_once : 8 * rows_at_once);
  const unsigned row_blocks = blocks_for(call.rows, int64_t{tiles.down} * tiles.rows_per_thread);
  const dim3 threads(static_cast<unsigned>(tiles.across), static_cast<unsigned>(tiles.down));
  dequantize_linear_rows_kernel<T, bits, kind, scales>
      <<<row_blocks * tiles.column_blocks, threads, 0, stream>>>(call, tiles, integers, y);
  return cudaGetLastError();
}

template <typename T, int bits, CodeKind kind>
cudaError_t launch_rows(const DequantizeLinear& call, IntegerCodes integers, T* y, cudaStream_t stream) {
  if (call.block == 1) return launch_rows<T, bits, kind, Scales::OfColumns>(call, integers, y, stream);
  if (call.block_rows == 1) return launch_rows<T, bits, kind, Scales::OfRow>(call, integers, y, stream);
  return launch_rows<T, bits, kind, Scales::OfRows>(call, integers, y, stream);
}

template <typename T, int bits>
cudaError_t launch(const DequantizeLinear& call, T* y, cudaStream_t stream) {
  constexpr float largest_zero = 1 << 22;  // with it integers are still exact
  constexpr int64_t most = INT32_MAX / 2;  // of rows and columns in 32 bits
  const bool has_rows = call.columns % run_length<T> == 0 && std::max(call.columns, call.block) <= most &&
                        std::max(call.rows, call.block_rows) <= most &&
                        (call.block % run_length<T> == 0 || (call.block == 1 && call.block_rows > 1));
  std::optional<IntegerCodes> integers = integer_codes(call.values, bits);
  if (call.zero != std::trunc(call.zero) || std::abs(call.zero) > largest_zero) integers.reset();
  if (has_rows && integers) return launch_rows<T, bits, CodeKind::Integer>(call, *integers, y, stream);
  if constexpr (bits == 8)
    if (has_rows) return launch_rows<T, bits, CodeKind::Table>(call, {}, y, stream);
  dequantize_linear_any_kernel<T, bits>
      <<<blocks_for(call.rows * call.columns, block_threads * run_length<T>), block_threads, 0, stream>>>(
          call, Divider(call.columns), Divider(call.block_rows), Divider(call.block), y);
  return cudaGetLastError();
}

template <typename T>
cudaError_t dequantize_linear_as(const DequantizeLinear& call, int bits, void* y, cudaStream_t stream) {
  T* const out = static_cast<T*>(y);
  return bits == 4 ? launch<T, 4>(call, out, stream) : launch<T, 8>(call, out, stream);
}

}  // namespace

cudaError_t dequantize_linear(const DequantizeLinear& call, int bits, Scalar type, void* y, cudaStream_t stream) {
  if (call.rows * call.columns == 0) return cudaSuccess;
  if (type == Scalar::F32) return dequantize_linear_as<float>(call, bits, y, stream);
  if (type == Scalar::BF16) return dequantize_linear_as<bf16>(call, bits, y, stream);
  if (type == Scalar::F16) return dequantize_linear_as<f16>(call, bits, y, stream);
  return cudaErrorInvalidValue;
}

}  // namespace plimsoll::cuda
