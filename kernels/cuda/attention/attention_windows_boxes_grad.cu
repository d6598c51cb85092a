#include "kernels/cuda/attention/attention_window_boxes.cuh"
#include "kernels/cuda/attention/attention_windows_grad.cuh"
#include "kernels/cuda/common/card_attributes.h"
#include "kernels/cuda/common/early_launch.cuh"
#include "kernels/cuda/common/short_box_products.cuh"

// Serves attention_grad and attention_grad_with_mask ("mma") in small windows on Hopper, as attention_windows_grad.cu
// does elsewhere. The copy engine brings tiles and takes gradients away: rows of 64 bytes cost the threads more
// accesses to the first-level cache than all of their computing, which bound the kernel. The four warps are a
// warpgroup, whose products read tiles where they lie: by each warp for itself they would be read four times.
//
// Gradients lie over tiles that are read no more, each warp's over its own rows: dv over v, and, once all products of
// the window are through, dk over dy and dq over q. A stage is filled again in the middle of the next window, when
// these have been read.

namespace plimsoll::cuda {
namespace {

struct WindowMaps {
  CUtensorMap q, dy, k, v, dq, dk, dv;

  [[nodiscard]] cudaError_t fill(const AttentionShape& n, const AttentionGradCall& grads) {
    const auto map = [&](CUtensorMap& to, const void* tensor, int64_t rows, int64_t step, int64_t box_rows) {
      return map_short_rows(to, tensor, n.batch, rows, n.heads, step, static_cast<int>(box_rows));
    };
    constexpr int of_warp = 16;
    const int64_t y_step = n.heads * n.depth;
    for (cudaError_t error :
         {map(q, grads.q, n.rows, n.q_step, n.rows), map(dy, grads.dy, n.rows, y_step, n.rows),
          map(k, grads.k, n.columns, n.k_step, n.columns), map(v, grads.v, n.columns, n.v_step, n.columns),
          map(dq, grads.dq, n.rows, n.q_step, of_warp), map(dk, grads.dk, n.columns, n.k_step, of_warp),
          map(dv, grads.dv, n.columns, n.v_step, of_warp)})
      if (error != cudaSuccess) return error;
    return cudaSuccess;
  }
};

template <int groups, int stages, typename Segments>
struct BoxMemory {
  WindowTileSet tiles[stages];
  WindowScoreGrads ds;
  WindowAdditions<groups> added[window_tiles];  // by warp
  float2 constants[max_window];                 // lse and delta of rows
  typename Segments::Numbers segments;
  unsigned char nowhere[8][16];
  Barrier full[stages];
};

// Starts sums = own * others^T over the whole depth: of all columns by 8 * groups rows.
template <typename T, int groups>
__device__ void start_scores(float (*sums)[4], const unsigned char* own, const unsigned char* others) {
#pragma unroll
  for (int k = 0; k < window_depth / 16; ++k)
    start_product_of_rows<T, groups>(sums, short_matrix(own) + 2 * k, short_matrix(others) + 2 * k, k > 0);
}
// Starts sums = weights * others, weights being of all columns by all rows.
template <typename T>
__device__ void start_weighted_rows(RowSums& sums, const LeftFragment (&weights)[window_tiles],
                                    const unsigned char* others) {
#pragma unroll
  for (int k = 0; k < window_tiles; ++k)
    start_narrow_product<T>(sums, weights[k], short_matrix(others) + 64 * k, k > 0);
}
// Starts dq = dS^T * k, dS being by column.
template <typename T>
__device__ void start_window_dq(RowSums& dq, const WindowScoreGrads& ds, const unsigned char* keys) {
  constexpr int sixteen_columns = 16 * 2 * max_window >> 4;
#pragma unroll
  for (int k = 0; k < window_tiles; ++k)
    start_narrow_transposed_product<T>(dq, shared_matrix(ds) + sixteen_columns * k, short_matrix(keys) + 64 * k, k > 0);
}
// A warp's dS in shared memory.
__device__ inline void lay_score_grads(WindowScoreGrads& ds, const LeftFragment (&gradients)[window_tiles]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int column = static_cast<int>(threadIdx.x) / 32 * 16 + lane % 16;
#pragma unroll
  for (int k = 0; k < window_tiles; ++k)
    store_matrices(ds[0] + place_in_ds(column, 2 * k + lane / 16), gradients[k].at);
}

// Windows of up to 8 * groups rows.
template <typename T, int groups, Makes makes, int stages, typename Segments>
__device__ void differentiate_windows(const WindowMaps& maps, const AttentionShape& n, const AttentionGradCall& grads,
                                      float* partials, int step) {
  extern __shared__ __align__(1024) unsigned char shared_tiles[];
  auto& memory = *reinterpret_cast<BoxMemory<groups, stages, Segments>*>(shared_tiles);
  const int warp = static_cast<int>(threadIdx.x) / 32, heads = static_cast<int>(n.heads);
  const int first = static_cast<int>(blockIdx.x) / heads, h = static_cast<int>(blockIdx.x) % heads;
  const int rows = static_cast<int>(n.rows), columns = static_cast<int>(n.columns), batch = static_cast<int>(n.batch);
  const bool leads = threadIdx.x == 0, leads_warp = threadIdx.x % 32 == 0;
  const Head head{0, h};
  if constexpr (makes_mask_grad(makes)) let_next_launch_begin();  // which sums the parts
  // One thread calls it.
  const auto copy = [&](int b, int stage) {
    if (b >= batch) return;
    auto& tiles = memory.tiles[stage];
    Barrier* const full = memory.full + stage;
    arrive_with_copies(full, 2 * (rows + columns) * window_row_bytes);
    copy_box(tiles[Q], maps.q, 0, h, 0, b, full);
    copy_box(tiles[K], maps.k, 0, h, 0, b, full);
    copy_box(tiles[Dy], maps.dy, 0, h, 0, b, full);
    copy_box(tiles[V], maps.v, 0, h, 0, b, full);
  };
  if (leads) {
    for (Barrier& full : memory.full) set_up_barrier(&full, 1);
    show_barriers_to_copies();
    for (int i = 0; i + 1 < stages; ++i) copy(first + i * step, i);
  }
  for (auto& tiles : memory.tiles)
#pragma unroll
    for (int i = 0; i < WindowTensors; ++i) clear_rest(tiles[i], i < K ? rows : columns);
  show_to_matrix_units();
  __syncthreads();
  WindowRowConstants<T> constants(n, grads, head, first, step);
  constants.read(true);
  Segments segments;
  segments.read(n, first);
  memory.added[warp].template fill<Owner::Columns, T>(n, head, 16 * warp);

  const int own_row = 16 * warp, own = warp * sixteen_rows_bytes, lane = static_cast<int>(threadIdx.x) % 32;
  const float to_log2 = n.scale * log2_e;
  float mask_sums[makes_mask_grad(makes) ? groups : 1][4] = {};
  StagePlace<stages> at;
#pragma unroll 1
  for (int b = first; b < batch; b += step, at.advance()) {
    wait_at(memory.full + at.stage, at.parity);
    auto& tiles = memory.tiles[at.stage];
    float p[window_groups][4], ds[window_groups][4];
    begin_products();
    start_scores<T, groups>(p, tiles[K], tiles[Q]);
    start_scores<T, groups>(ds, tiles[V], tiles[Dy]);
    commit_products();
    constants.write(memory.constants, tiles[Dy]);
    const bool is_divided = segments.meet(memory.segments);  // all constants are there
    constants.read(b + step < batch);
    if (b + step < batch) segments.read(n, b + step);
    wait_for_products<0>();
    settle(p);
    settle(ds);
#pragma unroll
    for (int i = 0; i < window_groups; ++i)
      if (i < groups) {
        differentiate_eight_rows<Segments>(p[i], ds[i], i, own_row + lane / 4, memory.added[warp].at(i, lane),
                                           memory.constants, is_divided ? &memory.segments : nullptr, to_log2);
        if constexpr (makes_mask_grad(makes))
#pragma unroll
          for (int e = 0; e < 4; ++e) mask_sums[i][e] += ds[i][e];
      } else {
#pragma unroll
        for (int e = 0; e < 4; ++e) p[i][e] = ds[i][e] = 0.0f;
      }
    LeftFragment weights[window_tiles], gradients[window_tiles];
#pragma unroll
    for (int k = 0; k < window_tiles; ++k) weights[k] = rounded<T>(p, k), gradients[k] = rounded<T>(ds, k);
    lay_score_grads(memory.ds, gradients);
    show_to_matrix_units();
    RowSums dk, dv, dq;
    begin_products();
    start_weighted_rows<T>(dv, weights, tiles[Dy]);
    start_weighted_rows<T>(dk, gradients, tiles[Q]);
    commit_products();
    if (leads_warp) wait_for_box_reads();  // of the window before
    __syncthreads();                       // dS has come together, v is read no more, and the other stage may be filled
    if (leads) copy(b + (stages - 1) * step, at.stage == 0 ? stages - 1 : at.stage - 1);
    begin_products();
    start_window_dq<T>(dq, memory.ds, tiles[K]);
    commit_products();
    wait_for_products<1>();
    settle(dv);
    settle(dk);
    lay_matrices<T>(tiles[V] + own, dv, 1.0f, columns - own_row, memory.nowhere);
    wait_for_products<0>();
    settle(dq);
    __syncthreads();  // no warp's products read q and dy any more
    lay_matrices<T>(tiles[Dy] + own, dk, n.scale, columns - own_row, memory.nowhere);
    lay_matrices<T>(tiles[Q] + own, dq, n.scale, rows - own_row, memory.nowhere);
    show_to_copies();
    __syncwarp();
    if (leads_warp) {
      if (own_row < columns) {
        store_box(tiles[V] + own, maps.dv, 0, h, own_row, b);
        store_box(tiles[Dy] + own, maps.dk, 0, h, own_row, b);
      }
      if (own_row < rows) store_box(tiles[Q] + own, maps.dq, 0, h, own_row, b);
      commit_boxes();
    }
  }
  if (leads_warp) wait_for_box_reads();
  if constexpr (makes_mask_grad(makes)) write_mask_sums(partials, mask_sums, rows, columns);
}

template <typename T, int groups, Makes makes, int stages, int blocks, typename Segments>
__global__ void __launch_bounds__(window_threads, blocks)
    attention_grad_window_boxes_kernel(const __grid_constant__ WindowMaps maps, AttentionShape n,
                                       AttentionGradCall grads, float* partials, int step) {
  if constexpr (has_warpgroups)
    differentiate_windows<T, groups, makes, stages, Segments>(maps, n, grads, partials, step);
  else
    __trap();
}

// Windows of up to 8 * groups rows.
template <Makes makes, int groups, int stages, int blocks>
cudaError_t launch(const AttentionShape& shape, const AttentionGradCall& grads, float* partials, int64_t& parts,
                   cudaStream_t stream) {
  WindowMaps maps;
  if (cudaError_t error = maps.fill(shape, grads); error != cudaSuccess) return error;
  parts = std::min(parts, WindowGrid(shape, blocks).blocks_per_head);
  return with_16_bit_float(shape.type, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    return with_window_segments(shape, [&]<bool has_segments>(std::bool_constant<has_segments>) {
      using Segments = WindowSegments<has_segments>;
      return launch_mma(attention_grad_window_boxes_kernel<T, groups, makes, stages, blocks, Segments>,
                        shape.heads * parts, window_threads,
                        static_cast<int>(sizeof(BoxMemory<groups, stages, Segments>)), stream, maps, shape, grads,
                        partials, static_cast<int>(parts));
    });
  });
}

// Windows of seven by seven are the usual ones.
bool are_usual(const AttentionShape& shape) { return shape.rows <= 56; }

}  // namespace

// Of windows with more rows, a multiprocessor's memory does not hold four blocks.
cudaError_t attention_grad_window_boxes(const AttentionShape& shape, const AttentionGradCall& grads,
                                        cudaStream_t stream) {
  int64_t parts = shape.batch;
  return are_usual(shape) ? launch<Makes::OperandGrads, 7, 2, 4>(shape, grads, nullptr, parts, stream)
                          : launch<Makes::OperandGrads, 8, 3, 3>(shape, grads, nullptr, parts, stream);
}

cudaError_t attention_grads_window_boxes(const AttentionShape& shape, const AttentionGradCall& grads, float* partials,
                                         int64_t& parts, cudaStream_t stream) {
  return are_usual(shape) ? launch<Makes::Both, 7, 3, 3>(shape, grads, partials, parts, stream)
                          : launch<Makes::Both, 8, 3, 3>(shape, grads, partials, parts, stream);
}

}  // namespace plimsoll::cuda
