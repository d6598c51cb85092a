#include "kernels/cuda/matmul/gradient_sums_product.h"

#include "kernels/cuda/matmul/column_product.cuh"
#include "kernels/cuda/norm/channel_tiles.cuh"

// Serves conv_dx_sums ("warpgroup_sums"): dx = dy w, rounded, what of it goes through the ReLU behind a batch norm, and
// the two sums of that which the norm's gradient needs. Reads x, and behind a residual y and perhaps a second dy, once
// and writes dz once; sums are f32. Blocks leave sums of their columns, which a second launch adds in their order.

namespace plimsoll::cuda {
namespace {

// Where what goes through is found: in x by the norm's coefficients, or in y; then perhaps with a second dy.
enum class Gate : uint8_t { Input, Output, OutputOfTwo };

constexpr int tensors_of(Gate gate) {
  return gate == Gate::OutputOfTwo ? 3 : gate == Gate::Output ? 2 : 1;  // x, y, the second dy
}

struct Sums {
  float dz, dz_x;  // dz_x: of dz * (x - mean)
  __device__ Sums operator+(const Sums& other) const { return {dz + other.dz, dz_x + other.dz_x}; }
};

// Parameters of the norm as the kernel reads them.
struct NormParameters {
  const float *mean, *var;
  AnyTensor scale, bias;
  float eps;
};

// A thread has eight columns of every so many rows, the same ones of all tiles. It rewrites what is stored behind a
// residual.
template <typename T, Gate gate, typename Tile>
__device__ void finish_tiles(const ColumnShared<Tile>& shared, const ColumnProduct& t, const NormParameters& norm,
                             Sums* partials) {
  constexpr bool by_output = gate == Gate::Output || gate == Gate::OutputOfTwo;
  constexpr int words = Tile::columns / 8, rows_at_once = Tile::finishing_threads / words;
  constexpr int turns = warpgroup_rows / rows_at_once, in_flight = 2;
  const int thread = static_cast<int>(threadIdx.x) % Tile::finishing_threads;
  const int word = thread % words, first_row = thread / words;
  const ColumnWork work(t);
  const int tile_column = work.column * Tile::columns, column = tile_column + word * 8;
  float mean[8] = {}, factor[8] = {}, offset[8] = {};
  if (column < t.columns)
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      mean[i] = norm.mean[column + i];
      // Without a ReLU everything goes through.
      factor[i] = norm.bias.data
                      ? 1.0f / sqrtf(norm.var[column + i] + norm.eps) * load_any<float>(norm.scale, column + i)
                      : 0.0f;
      offset[i] = norm.bias.data ? load_any<float>(norm.bias, column + i) : 1.0f;
    }
  Sums sums[8] = {};
  RingPlace unit;
  uint32_t parity = 0;
  for (int tile = work.first; tile < t.down; tile += work.step, parity ^= 1) {
#pragma unroll 1
    for (int group = 0; group < Tile::groups; ++group, unit.advance(t.units)) {
      wait_at(shared.unit_full + unit.stage, unit.parity);
      wait_at(shared.there + group, parity);
      uint8_t* staged = shared.staged + group * Tile::staged_group;
      const uint8_t* beside = shared.units + unit.stage * Tile::unit_bytes;
      // Past the last row all tensors and products are zeros.
#pragma unroll 1
      for (int turn = 0; turn < turns; turn += in_flight) {
        Packed<T, 8> dx[in_flight], x[in_flight], y[in_flight], more[in_flight];
        int at[in_flight];
#pragma unroll
        for (int k = 0; k < in_flight; ++k) {
          const int row = first_row + (turn + k) * rows_at_once;
          at[k] = word / 8 * Tile::box_bytes + row * 128 + (word % 8 ^ row % 8) * 16;
          const auto load = [&](const uint8_t* from) {
            return load_packed<8>(reinterpret_cast<const T*>(from + at[k]));
          };
          dx[k] = load(staged);
          x[k] = load(beside);
          if constexpr (by_output) y[k] = load(beside + Tile::staged_group);
          if constexpr (gate == Gate::OutputOfTwo) more[k] = load(beside + 2 * Tile::staged_group);
        }
#pragma unroll
        for (int k = 0; k < in_flight; ++k) {
          float dz[8];
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            const float centered = x[k][i] - mean[i];
            dz[i] = dx[k][i];
            if constexpr (gate == Gate::OutputOfTwo) dz[i] += more[k][i];
            if constexpr (by_output) dz[i] = y[k][i] > 0.0f ? dz[i] : 0.0f;
            const bool passes = gate != Gate::Input || centered * factor[i] + offset[i] > 0.0f;
            const float passed = passes ? dz[i] : 0.0f;
            sums[i] = sums[i] + Sums{passed, passed * centered};
          }
          if constexpr (by_output) {
            const Packed<T, 8> packed = pack<T>(dz);
            *reinterpret_cast<uint4*>(staged + at[k]) =
                make_uint4(packed.word[0], packed.word[1], packed.word[2], packed.word[3]);
          }
        }
      }
      show_to_matrix_units();
      arrive_as_warp_at(shared.rewritten + group);
      arrive_as_warp_at(shared.unit_empty + unit.stage);
    }
  }
  // Threads with the same columns add theirs in the order of rows, in the memory that held the last products.
  for (int group = 0; group < Tile::groups; ++group) wait_at(shared.read + group, parity ^ 1);
  auto* of_threads = reinterpret_cast<Sums*>(shared.staged);
#pragma unroll
  for (int i = 0; i < 8; ++i) of_threads[first_row * Tile::columns + word * 8 + i] = sums[i];
  wait_for_finishing_threads<Tile>();
  for (int c = thread; c < Tile::columns && tile_column + c < t.columns; c += Tile::finishing_threads) {
    Sums total = of_threads[c];
    for (int r = 1; r < rows_at_once; ++r) total = total + of_threads[r * Tile::columns + c];
    partials[int64_t{work.first} * t.columns + tile_column + c] = total;
  }
}

template <typename T, Gate gate, typename Tile>
__global__ void __launch_bounds__(Tile::threads, 1)
    gradient_sums_kernel(const __grid_constant__ ColumnMaps<Tile::beside> maps, ColumnProduct tiles,
                         NormParameters norm, Sums* partials) {
  if constexpr (has_warpgroups)
    make_column_tiles<T, Tile>(
        maps, tiles, [&](const ColumnShared<Tile>& shared) { finish_tiles<T, gate>(shared, tiles, norm, partials); });
  else
    __trap();
}

__global__ void __launch_bounds__(merge_across* merge_down)
    add_blocks_kernel(GradientSumsCall call, const Sums* partials) {
  const int64_t c = int64_t{blockIdx.x} * merge_across + threadIdx.x, columns = call.tiling.sizes.columns;
  const Sums total = combine_parts(partials, call.tiling.row_blocks, columns, c, Add(), Sums{0, 0});
  if (threadIdx.y != 0 || c >= columns) return;
  const float dscale = total.dz_x / sqrtf(call.var[c] + call.eps);
  call.sums[c] = total.dz;
  call.sums[columns + c] = dscale;
  store_any(call.dscale, call.parameter_type, c, static_cast<double>(dscale));
  store_any(call.dbias, call.parameter_type, c, static_cast<double>(total.dz));
}

template <typename T, Gate gate, int columns, bool keeps_right>
cudaError_t launch(const GradientSumsCall& call, cudaStream_t stream) {
  constexpr int beside = tensors_of(gate);
  using Tile = ColumnTile<columns, keeps_right, true, beside>;
  const ColumnTiling& tiling = call.tiling;
  const ColumnSizes& sizes = tiling.sizes;
  ColumnMaps<beside> maps;
  if (cudaError_t error = map_operands<Tile>(maps, sizes, call.dy, call.w, call.dz); error != cudaSuccess) return error;
  const void* tensors[] = {call.x, call.y, call.more_dy};
  for (int i = 0; i < beside; ++i)
    if (cudaError_t error = map_matrix(maps.tensors[i], tensors[i], sizes.rows, sizes.columns, warpgroup_rows);
        error != cudaSuccess)
      return error;
  const NormParameters norm{
      call.mean, call.var, {call.scale, call.parameter_type}, {call.bias, call.parameter_type}, call.eps};
  auto* partials = reinterpret_cast<Sums*>(call.workspace);
  if (cudaError_t error = launch_columns<Tile>(tiling, stream, gradient_sums_kernel<T, gate, Tile>, maps,
                                               column_product(tiling), norm, partials);
      error != cudaSuccess)
    return error;
  const TileGrid merging = merge_grid(sizes.columns);
  add_blocks_kernel<<<merging.grid, merging.block, 0, stream>>>(call, partials);
  return cudaGetLastError();
}

template <typename T, Gate gate>
cudaError_t launch(const GradientSumsCall& call, cudaStream_t stream) {
  if (call.tiling.tile_columns == 64)
    return call.tiling.keeps_right ? launch<T, gate, 64, true>(call, stream) : launch<T, gate, 64, false>(call, stream);
  return call.tiling.keeps_right ? launch<T, gate, 128, true>(call, stream) : launch<T, gate, 128, false>(call, stream);
}

template <typename T>
cudaError_t launch(const GradientSumsCall& call, cudaStream_t stream) {
  if (call.y) return call.more_dy ? launch<T, Gate::OutputOfTwo>(call, stream) : launch<T, Gate::Output>(call, stream);
  return launch<T, Gate::Input>(call, stream);
}

}  // namespace

cudaError_t gradient_sums_product(const GradientSumsCall& call, cudaStream_t stream) {
  return call.type == Scalar::BF16 ? launch<bf16>(call, stream) : launch<f16>(call, stream);
}

}  // namespace plimsoll::cuda
