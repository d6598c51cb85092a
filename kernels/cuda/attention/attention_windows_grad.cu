#include "kernels/cuda/attention/attention_windows_grad.cuh"

// Serves attention_grad, attention_mask_grad and attention_grad_with_mask ("mma") in small windows, each in one launch
// that reads each operand once and writes each result once. A warp's scores are transposed, sixteen columns by all
// rows, so that they are left operands of dk and dv as they stand. For dq the warps hand dS to one another through
// shared memory; its sums over windows, the gradient of the mask, stay in registers.

namespace plimsoll::cuda {
namespace {

constexpr int stages = 2, blocks_per_multiprocessor = 3;

template <int groups, Makes makes, typename Segments>
struct WindowGradMemory {
  static constexpr bool writes = makes_operand_grads(makes);
  WindowTileSet tiles[stages];
  WindowAdditions<groups> added[window_tiles];  // by warp
  float2 constants[max_window];                 // lse and delta of rows
  typename Segments::Numbers segments;
  unsigned char ds[writes ? max_window : 0][2 * max_window];
  unsigned char staged[writes ? window_tiles : 0][sixteen_rows_bytes];
};

// Windows of up to 8 * groups rows.
template <typename T, int groups, Makes makes, typename Segments>
__global__ void __launch_bounds__(window_threads, blocks_per_multiprocessor)
    attention_grad_windows_kernel(AttentionShape n, AttentionGradCall grads, float* partials, int step) {
  using Memory = WindowGradMemory<groups, makes, Segments>;
  extern __shared__ uint4 shared[];
  Memory& memory = *reinterpret_cast<Memory*>(shared);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int heads = static_cast<int>(n.heads), first = static_cast<int>(blockIdx.x) / heads;
  const int batch = static_cast<int>(n.batch), depth = static_cast<int>(n.depth);
  const Head head{0, static_cast<int>(blockIdx.x) % heads};
  const WindowPlaces places;
  const auto copies_of = [&](const void* tensor, int64_t start, int64_t row_step, int64_t all_rows) {
    return WindowCopies<T>(static_cast<const T*>(tensor) + start, row_step, all_rows, depth, first, step);
  };
  WindowCopies<T> q = copies_of(grads.q, head.q(n), n.q_step, n.rows),
                  dy = copies_of(grads.dy, head.y(n), n.heads * n.depth, n.rows),
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
  WindowRowConstants<T> constants(n, grads, head, first, step);
  constants.read(true);
  Segments segments;
  segments.read(n, first);
  memory.added[warp].template fill<Owner::Columns, T>(n, head, 16 * warp);

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
    constants.write(memory.constants, tiles[Dy]);
    // The window has come, and none still reads the one before.
    const bool is_divided = segments.meet(memory.segments);
    copy(stage == 0 ? stages - 1 : stage - 1);
    constants.read(b + step < batch);
    if (b + step < batch) segments.read(n, b + step);
    RowSums dk_sums = {}, dv_sums = {};
    differentiate_window<T, groups, makes, Segments>(dk_sums, dv_sums, memory.ds[0], mask_sums, tiles,
                                                     memory.added[warp], memory.constants,
                                                     is_divided ? &memory.segments : nullptr, n.scale * log2_e, places);
    if constexpr (makes_operand_grads(makes)) {
      dv.write(dv_sums, ones, memory.staged[warp], places);
      dk.write(dk_sums, scales, memory.staged[warp], places);
      __syncthreads();  // dS has come together
      RowSums dq_sums = {};
      add_window_dq<T>(dq_sums, memory.ds[0], tiles[K], places);
      dq.write(dq_sums, scales, memory.staged[warp], places);
      for (WindowResults<T>* tensor : {&dq, &dk, &dv}) tensor->advance();
    } else {
      __syncthreads();  // constants and segments are read no more
    }
    stage = stage + 1 == stages ? 0 : stage + 1;
  }
  if constexpr (makes_mask_grad(makes))
    write_mask_sums(partials, mask_sums, static_cast<int>(n.rows), static_cast<int>(n.columns));
}

template <Makes makes>
cudaError_t launch(const AttentionShape& shape, const AttentionGradCall& grads, float* partials,
                   int64_t blocks_per_head, cudaStream_t stream) {
  return with_16_bit_float(shape.type, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    const auto launch_groups = [&]<int groups>(std::integral_constant<int, groups>) {
      return with_window_segments(shape, [&]<bool has_segments>(std::bool_constant<has_segments>) {
        using Segments = WindowSegments<has_segments>;
        return launch_mma(attention_grad_windows_kernel<T, groups, makes, Segments>, shape.heads * blocks_per_head,
                          window_threads, static_cast<int>(sizeof(WindowGradMemory<groups, makes, Segments>)), stream,
                          shape, grads, partials, static_cast<int>(blocks_per_head));
      });
    };
    // Windows of seven by seven are the usual ones.
    if (shape.rows <= 56) return launch_groups(std::integral_constant<int, 7>());
    return launch_groups(std::integral_constant<int, 8>());
  });
}

}  // namespace

cudaError_t attention_grad_windows(const AttentionShape& shape, const AttentionGradCall& grads, cudaStream_t stream) {
  if (takes_window_boxes(shape)) return attention_grad_window_boxes(shape, grads, stream);
  const WindowGrid grid(shape, blocks_per_multiprocessor);
  return launch<Makes::OperandGrads>(shape, grads, nullptr, grid.blocks_per_head, stream);
}

cudaError_t mask_grad_windows(const AttentionShape& shape, const AttentionGradCall& grads, float* partials,
                              int64_t parts, cudaStream_t stream) {
  return launch<Makes::MaskGrad>(shape, grads, partials, parts, stream);
}

cudaError_t attention_grads_windows(const AttentionShape& shape, const AttentionGradCall& grads, float* partials,
                                    int64_t& parts, cudaStream_t stream) {
  if (takes_window_boxes(shape)) return attention_grads_window_boxes(shape, grads, partials, parts, stream);
  parts = std::min(parts, WindowGrid(shape, blocks_per_multiprocessor).blocks_per_head);
  return launch<Makes::Both>(shape, grads, partials, parts, stream);
}

}  // namespace plimsoll::cuda
