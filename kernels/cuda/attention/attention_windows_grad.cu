#include "kernels/cuda/attention/attention_mma_grad.cuh"
#include "kernels/cuda/attention/attention_windows.cuh"
#include "kernels/cuda/common/packed.cuh"

// Serves attention_grad, attention_mask_grad and attention_grad_with_mask ("mma") in small windows, each in one launch
// that reads each operand once and writes each result once. A warp's scores are transposed, sixteen columns by all
// rows, so that they are left operands of dk and dv as they stand. For dq the warps hand dS to one another through
// shared memory; its sums over windows, the gradient of the mask, stay in registers.

namespace plimsoll::cuda {
namespace {

enum { Q, Dy, K, V, Tensors };

// What a launch makes: dq, dk and dv, the gradient of the mask, or all of them.
enum class Makes : uint8_t { OperandGrads, MaskGrad, Both };
constexpr bool makes_operand_grads(Makes makes) { return makes != Makes::MaskGrad; }
constexpr bool makes_mask_grad(Makes makes) { return makes != Makes::OperandGrads; }

constexpr int stages = 2, blocks_per_multiprocessor = 3;

template <int groups, Makes makes>
struct WindowGradMemory {
  static constexpr bool writes = makes_operand_grads(makes);
  unsigned char tiles[stages][Tensors][window_bytes];
  float4 added[window_tiles][groups][32];  // what the mask adds, by warp and thread
  float2 constants[max_window];            // lse and delta of rows
  // dS by column, of which 16-byte word w of the rows stands at place w ^ (column % 8).
  unsigned char ds[writes ? max_window : 0][2 * max_window];
  unsigned char staged[writes ? window_tiles : 0][sixteen_rows_bytes];
};

// y . dy of a row, of which each of four threads has 16 bytes.
template <typename T>
__device__ float dot(const uint4& y, const uint4& dy) {
  Packed<T, 8> a, b;
  memcpy(a.word, &y, sizeof(y));
  memcpy(b.word, &dy, sizeof(dy));
  float sum = 0.0f;
#pragma unroll
  for (int d = 0; d < 8; ++d) sum += a[d] * b[d];
  sum += __shfl_xor_sync(whole_warp, sum, 1);
  return sum + __shfl_xor_sync(whole_warp, sum, 2);
}

// Where word `rows / 8` of a column of dS lies.
__device__ inline int place_in_ds(int column, int word) { return column * 2 * max_window + ((word ^ column % 8) << 4); }

// Windows of up to 8 * groups rows.
template <typename T, int groups, Makes makes>
__global__ void __launch_bounds__(window_threads, blocks_per_multiprocessor)
    attention_grad_windows_kernel(AttentionShape n, AttentionGradCall grads, float* partials, int step) {
  using Memory = WindowGradMemory<groups, makes>;
  extern __shared__ uint4 shared[];
  Memory& memory = *reinterpret_cast<Memory*>(shared);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
  const int heads = static_cast<int>(n.heads), first = static_cast<int>(blockIdx.x) / heads;
  const int rows = static_cast<int>(n.rows), columns = static_cast<int>(n.columns);
  const int batch = static_cast<int>(n.batch), depth = static_cast<int>(n.depth);
  const int column = 16 * warp + g;  // and 8 more
  const Head head{0, static_cast<int>(blockIdx.x) % heads};
  const WindowPlaces places;
  const float to_log2 = n.scale * log2_e;
  const int64_t y_step = n.heads * n.depth;
  const auto copies_of = [&](const void* tensor, int64_t start, int64_t row_step, int64_t all_rows) {
    return WindowCopies<T>(static_cast<const T*>(tensor) + start, row_step, all_rows, depth, first, step);
  };
  WindowCopies<T> q = copies_of(grads.q, head.q(n), n.q_step, n.rows),
                  y = copies_of(grads.y, head.y(n), y_step, n.rows),
                  dy = copies_of(grads.dy, head.y(n), y_step, n.rows),
                  k = copies_of(grads.k, head.k(n), n.k_step, n.columns),
                  v = copies_of(grads.v, head.v(n), n.v_step, n.columns);
  for (auto& tiles : memory.tiles) {
    q.clear_rest(tiles[Q]);
    dy.clear_rest(tiles[Dy]);
    k.clear_rest(tiles[K]);
    v.clear_rest(tiles[V]);
  }
  int copied = first;
  const auto copy = [&](int stage) {
    if (copied < batch) {
      q.copy(memory.tiles[stage][Q]);
      dy.copy(memory.tiles[stage][Dy]);
      k.copy(memory.tiles[stage][K]);
      v.copy(memory.tiles[stage][V]);
    }
    commit_copies();
    copied += step;
    for (WindowCopies<T>* tensor : {&q, &dy, &k, &v}) tensor->advance();
  };
  for (int stage = 0; stage + 1 < stages; ++stage) copy(stage);
  uint4 next_y[2] = {};
  float next_lse[2] = {-INFINITY, -INFINITY};
  const float* lse = grads.lse + Head{first, head.h}.lse(n, thread / 4);
  const auto read_y = [&](int b) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (b < batch && y.has(i)) next_y[i] = __ldg(reinterpret_cast<const uint4*>(y.at(i)));
      if (b < batch && thread / 4 + max_window / 2 * i < rows) next_lse[i] = lse[max_window / 2 * i];
    }
    y.advance();
    lse += step * n.heads * n.rows;
  };
  read_y(first);
  fill_additions<T>(memory.added[warp], n, head, [&](int i, int e) {
    return int2{8 * i + 2 * t + e % 2, column + e / 2 * 8};
  });

  const auto results_of = [&](void* tensor, int64_t start, int64_t row_step, int64_t all_rows) {
    return WindowResults<T>(static_cast<T*>(tensor) + start, row_step, all_rows, depth, first, step);
  };
  WindowResults<T> dq = results_of(grads.dq, head.q(n), n.q_step, n.rows),
                   dk = results_of(grads.dk, head.k(n), n.k_step, n.columns),
                   dv = results_of(grads.dv, head.v(n), n.v_step, n.columns);
  const float scales[2] = {n.scale, n.scale}, ones[2] = {1.0f, 1.0f};
  float mask_sums[makes_mask_grad(makes) ? groups : 1][4] = {};
  int stage = 0;
  for (int b = first; b < batch; b += step) {
    wait_for_copies<stages - 2>();
    const auto& tiles = memory.tiles[stage];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4& own_dy = *reinterpret_cast<const uint4*>(tiles[Dy] + copied_place() + i * (window_bytes / 2));
      const float delta = dot<T>(next_y[i], own_dy);
      // Rows outside have an lse of -inf here, and so do not count.
      if (t == 0) memory.constants[thread / 4 + max_window / 2 * i] = {in_log2(next_lse[i]), delta};
    }
    __syncthreads();  // the window has come, and none still reads the one before
    copy(stage == 0 ? stages - 1 : stage - 1);
    read_y(b + step);
    EightRows keys[2], values[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      keys[half] = places.rows(tiles[K], 2 * warp + half);
      values[half] = places.rows(tiles[V], 2 * warp + half);
    }
    RowSums dk_sums = {}, dv_sums = {};
#pragma unroll
    for (int tile = 0; tile < window_tiles; ++tile) {
      float p[2][4] = {}, ds[2][4] = {};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int group = 2 * tile + half;
        if (group >= groups) break;
        add_products<T>(p[half], keys, places.rows(tiles[Q], group));
        add_products<T>(ds[half], values, places.rows(tiles[Dy], group));
        const float4 two_rows = *reinterpret_cast<const float4*>(memory.constants + 8 * group + 2 * t);
        const float lse_of[2] = {two_rows.x, two_rows.z}, delta_of[2] = {two_rows.y, two_rows.w};
        const float4 added = memory.added[warp][group][lane];
        const float additions[4] = {added.x, added.y, added.z, added.w};
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          p[half][e] = probability(p[half][e] * to_log2 + additions[e], lse_of[e % 2]);
          ds[half][e] = p[half][e] * (ds[half][e] - delta_of[e % 2]);
          if constexpr (makes_mask_grad(makes)) mask_sums[group][e] += ds[half][e];
        }
      }
      if constexpr (makes_operand_grads(makes)) {
        const LeftFragment gradients = rounded<T>(ds, 0);
        places.add_rows<T>(dv_sums, rounded<T>(p, 0), tiles[Dy], tile);
        places.add_rows<T>(dk_sums, gradients, tiles[Q], tile);
        // Eight rows of eight columns each, a thread's two rows of one column.
#pragma unroll
        for (int i = 0; i < 4; ++i)
          *reinterpret_cast<uint32_t*>(memory.ds[0] + place_in_ds(column + i % 2 * 8, 2 * tile + i / 2) + 4 * t) =
              gradients.at[i];
      }
    }
    if constexpr (makes_operand_grads(makes)) {
      dv.write(dv_sums, ones, memory.staged[warp], places);
      dk.write(dk_sums, scales, memory.staged[warp], places);
      __syncthreads();  // dS has come together
      RowSums dq_sums = {};
#pragma unroll
      for (int tile = 0; tile < window_tiles; ++tile) {
        LeftFragment gradients;
        load_matrices_transposed(
            gradients.at,
            memory.ds[0] + place_in_ds(lane / 16 * 8 + lane % 8, 2 * warp + lane / 8 % 2) + tile * 16 * 2 * max_window);
        places.add_rows<T>(dq_sums, gradients, tiles[K], tile);
      }
      dq.write(dq_sums, scales, memory.staged[warp], places);
      for (WindowResults<T>* tensor : {&dq, &dk, &dv}) tensor->advance();
    }
    stage = stage + 1 == stages ? 0 : stage + 1;
  }
  if constexpr (makes_mask_grad(makes)) {
    float* const out = partials + static_cast<int64_t>(blockIdx.x) * rows * columns;  // [parts, heads, rows, columns]
#pragma unroll
    for (int i = 0; i < groups; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = 8 * i + 2 * t + e % 2, of_column = column + e / 2 * 8;
        if (row < rows && of_column < columns) out[row * columns + of_column] = mask_sums[i][e];
      }
  }
}

template <Makes makes>
cudaError_t launch(const AttentionShape& shape, const AttentionGradCall& grads, float* partials,
                   int64_t blocks_per_head, cudaStream_t stream) {
  return with_16_bit_float(shape.type, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    const auto launch_groups = [&]<int groups>(std::integral_constant<int, groups>) {
      return launch_mma(attention_grad_windows_kernel<T, groups, makes>, shape.heads * blocks_per_head, window_threads,
                        static_cast<int>(sizeof(WindowGradMemory<groups, makes>)), stream, shape, grads, partials,
                        static_cast<int>(blocks_per_head));
    };
    // Windows of seven by seven are the usual ones.
    if (shape.rows <= 56) return launch_groups(std::integral_constant<int, 7>());
    return launch_groups(std::integral_constant<int, 8>());
  });
}

}  // namespace

cudaError_t attention_grad_windows(const AttentionShape& shape, const AttentionGradCall& grads, cudaStream_t stream) {
  const WindowGrid grid(shape, blocks_per_multiprocessor);
  return launch<Makes::OperandGrads>(shape, grads, nullptr, grid.blocks_per_head, stream);
}

cudaError_t mask_grad_windows(const AttentionShape& shape, const AttentionGradCall& grads, float* partials,
                              int64_t parts, cudaStream_t stream) {
  return launch<Makes::MaskGrad>(shape, grads, partials, parts, stream);
}

cudaError_t attention_grads_windows(const AttentionShape& shape, const AttentionGradCall& grads, float* partials,
                                    int64_t& parts, cudaStream_t stream) {
  parts = std::min(parts, WindowGrid(shape, blocks_per_multiprocessor).blocks_per_head);
  return launch<Makes::Both>(shape, grads, partials, parts, stream);
}

}  // namespace plimsoll::cuda
