#include "kernels/cuda/attention/attention_mma_grad.cuh"
#include "kernels/cuda/attention/attention_windows.cuh"
#include "kernels/cuda/attention/mask_grad_sizes.h"
#include "kernels/cuda/common/early_launch.cuh"

// Serves attention_mask_grad ("mma"): dS of attention_grad, summed over the samples and heads that share a mask. A
// block owns a tile of rows and columns of the mask and walks over them in order. Parts of the batch meet in a second
// launch, which rounds to 16 bits too.

namespace plimsoll::cuda {
namespace {

// Two stages of q, dy, k and v, of lse and delta of the rows and of what the mask adds to columns.
template <typename Tile>
struct MaskTiles {
  static constexpr int own = Tile::own * Tile::pitch, other = Tile::others * Tile::pitch,
                       floats = 2 * Tile::own + Tile::others;
  static constexpr int bytes = 2 * (2 * (own + other) * 2 + floats * static_cast<int>(sizeof(float)));
};

template <typename Tile, typename T>
__global__ void __launch_bounds__(Tile::threads, Tile::blocks)
    mask_grad_kernel(AttentionShape n, bool aligned, AttentionGradCall grads, MaskGradCall mask, int row_tiles,
                     int column_tiles, int64_t parts) {
  using Sizes = MaskTiles<Tile>;
  extern __shared__ uint4 shared[];
  T* const tiles = reinterpret_cast<T*>(shared);
  float* const all_floats = reinterpret_cast<float*>(tiles + 4 * (Sizes::own + Sizes::other));
  int64_t number = blockIdx.x;
  const int first_column = static_cast<int>(number % column_tiles) * Tile::others;
  number /= column_tiles;
  const int first_row = static_cast<int>(number % row_tiles) * Tile::own;
  number /= row_tiles;
  const int64_t part = number % parts, of_mask = number / parts;  // of_mask: [mask_batch, mask_heads]
  const int64_t mask_b = of_mask / mask.mask_heads, mask_h = of_mask % mask.mask_heads;
  // The samples [b, end_b) and heads [h, end_h) that share the tile.
  const int64_t first_b = mask.mask_batch == 1 ? n.batch * part / parts : mask_b;
  const int64_t end_b = mask.mask_batch == 1 ? n.batch * (part + 1) / parts : mask_b + 1;
  const int64_t first_h = mask.mask_heads == 1 ? 0 : mask_h, end_h = mask.mask_heads == 1 ? n.heads : mask_h + 1;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int rows = static_cast<int>(n.rows), columns = static_cast<int>(n.columns);
  const int depth = static_cast<int>(n.depth), value_depth = static_cast<int>(n.value_depth);
  const int64_t shared_by = n.heads / n.kv_heads, y_step = n.heads * n.value_depth;
  const RowLoader<Tile, Tile::own, T> q_rows(static_cast<const T*>(grads.q), n.q_step, rows, depth, aligned);
  const RowLoader<Tile, Tile::own, T> dy_rows(static_cast<const T*>(grads.dy), y_step, rows, value_depth, aligned);
  const RowLoader<Tile, Tile::others, T> k_rows(static_cast<const T*>(grads.k), n.k_step, columns, depth, aligned);
  const RowLoader<Tile, Tile::others, T> v_rows(static_cast<const T*>(grads.v), n.v_step, columns, value_depth,
                                                aligned);
  auto tile = [&](int stage) { return tiles + stage * 2 * (Sizes::own + Sizes::other); };
  auto floats = [&](int stage) { return all_floats + stage * Sizes::floats; };
  auto load = [&](int stage, const Head& head) {
    T *q = tile(stage), *dy = q + Sizes::own, *k = dy + Sizes::own, *v = k + Sizes::other;
    const int64_t kv_head = head.h / shared_by;
    q_rows.load(q, first_row, head.b * n.rows * n.q_step + head.h * n.depth);
    dy_rows.load(dy, first_row, head.b * n.rows * y_step + head.h * n.value_depth);
    k_rows.load(k, first_column, head.b * n.columns * n.k_step + kv_head * n.depth);
    v_rows.load(v, first_column, head.b * n.columns * n.v_step + kv_head * n.value_depth);
    commit_copies();
    for (int i = static_cast<int>(threadIdx.x); i < Tile::own; i += Tile::threads) {
      const RowConstants constants(n, head, first_row + i, grads);
      floats(stage)[2 * i] = constants.lse;
      floats(stage)[2 * i + 1] = constants.delta;
    }
    if (is_mask_of_columns(n)) load_additions<Tile, T>(floats(stage) + 2 * Tile::own, n, head, first_column);
  };

  const float to_log2 = n.scale * log2_e;
  const bool drops = n.dropout.blocks > 0;
  const int warp_first = first_row + warp * Tile::warp_rows;
  const Place<Owner::Rows> place{warp_first + lane / 4, first_column + lane % 4 * 2};
  const Range range = range_of_others<Owner::Rows>(n, first_row, Tile::own, Tile::others);
  const bool meets = first_column >= range.first && first_column < range.end;
  Sums<Tile::m_tiles, Tile::n_tiles> sums = {};
  Head head{first_b, first_h};
  if (meets && first_b < end_b) load(0, head);
  for (int stage = 0; meets && head.b < end_b; stage ^= 1) {
    const bool is_last_head = head.h + 1 == end_h;
    const Head next{head.b + is_last_head, is_last_head ? first_h : head.h + 1};
    wait_for_copies<0>();
    __syncthreads();  // this tile has arrived, and the other stage is no longer read
    if (next.b < end_b) load(stage ^ 1, next);
    TileBits<Tile, Owner::Rows> bits;
    if (drops) bits.draw(KeptDraws(n, head), warp_first, first_column);
    const T *q = tile(stage) + warp * Tile::warp_rows * Tile::pitch, *dy = q + Sizes::own;
    const T *k = tile(stage) + 2 * Sizes::own, *v = k + Sizes::other;
    Sums<Tile::m_tiles, Tile::n_tiles> scores, dp;
    multiply_rows<Tile>(scores, k, [&](int m, int i) { return left_fragment<Tile>(q, m, 16 * i); });
    multiply_rows<Tile>(dp, v, [&](int m, int i) { return left_fragment<Tile>(dy, m, 16 * i); });
    if (n.softcap > 0.0f) cap_sums<Tile>(scores, n);  // dS of a mask, which is added behind, has no slope
    apply_masks<Tile, Owner::Rows, T>(scores, n, head, place, first_row, first_column, floats(stage) + 2 * Tile::own);
    RowConstants constants[Tile::m_tiles][2];
#pragma unroll
    for (int m = 0; m < Tile::m_tiles; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float* pair = floats(stage) + 2 * (place.own_row(m, 2 * half) - first_row);
        constants[m][half].lse = pair[0];
        constants[m][half].delta = pair[1];
      }
    auto of_row = [&](int m, int, int e) -> const RowConstants& { return constants[m][e / 2]; };
    if (drops)
      differentiate<Tile>(scores, dp, to_log2, &bits, of_row);
    else
      differentiate<Tile>(scores, dp, to_log2, static_cast<decltype(&bits)>(nullptr), of_row);
#pragma unroll
    for (int m = 0; m < Tile::m_tiles; ++m)
#pragma unroll
      for (int t = 0; t < Tile::n_tiles; ++t)
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[m][t][e] += dp[m][t][e];
    head = next;
  }

  float* const out = mask.partials + (part * mask.mask_batch * mask.mask_heads + of_mask) * n.rows * n.columns;
#pragma unroll
  for (int m = 0; m < Tile::m_tiles; ++m)
#pragma unroll
    for (int t = 0; t < Tile::n_tiles; ++t)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = place.own_row(m, e), column = place.other_row(t, e);
        if (row < rows && column < columns) out[int64_t{row} * n.columns + column] = sums[m][t][e] * n.dropout.factor;
      }
}

// Eight threads per element, a warp's of neighbouring elements: each sums every eighth part, and the sums of the eight
// come in order. Its blocks wait for the launch that makes the parts, beside whose end they come.
__global__ void __launch_bounds__(256)
    sum_mask_parts_kernel(void* dmask, Scalar type, const float* partials, int64_t elements, int64_t parts) {
  __shared__ float sums[8][32];
  const int lane = static_cast<int>(threadIdx.x) % 32, share = static_cast<int>(threadIdx.x) / 32;
  const int64_t i = int64_t{blockIdx.x} * 32 + lane;
  float sum = 0.0f;
  wait_for_launch_before();
  if (i < elements)
    for (int64_t part = share; part < parts; part += 8) sum += partials[part * elements + i];
  sums[share][lane] = sum;
  __syncthreads();
  if (share != 0 || i >= elements) return;
  for (int other = 1; other < 8; ++other) sum += sums[other][lane];
  store_any(dmask, type, i, static_cast<double>(sum));
}

template <typename Tile, typename T>
cudaError_t launch_mask_grad(const AttentionShape& shape, bool aligned, const AttentionGradCall& grads,
                             const MaskGradCall& mask, int64_t parts, cudaStream_t stream) {
  static_assert(Tile::own == mask_grad_tile(Tile::depth).rows && Tile::others == mask_grad_tile(Tile::depth).columns);
  const int64_t row_tiles = (shape.rows + Tile::own - 1) / Tile::own;
  const int64_t column_tiles = (shape.columns + Tile::others - 1) / Tile::others;
  return launch_mma(mask_grad_kernel<Tile, T>, mask.mask_batch * mask.mask_heads * parts * row_tiles * column_tiles,
                    Tile::threads, MaskTiles<Tile>::bytes, stream, shape, aligned, grads, mask,
                    static_cast<int>(row_tiles), static_cast<int>(column_tiles), parts);
}

cudaError_t sum_parts(const MaskGradCall& mask, int64_t elements, int64_t parts, cudaStream_t stream) {
  return launch_early(sum_mask_parts_kernel, dim3(static_cast<unsigned>((elements + 31) / 32)), 256, stream, mask.dmask,
                      mask.dmask_type, mask.partials, elements, parts);
}

int64_t elements_of(const AttentionShape& shape, const MaskGradCall& mask) {
  return mask.mask_batch * mask.mask_heads * shape.rows * shape.columns;
}

int64_t widest(const AttentionShape& shape) {
  return shape.depth > shape.value_depth ? shape.depth : shape.value_depth;
}

int64_t parts_of(const AttentionShape& shape, const MaskGradCall& mask) {
  return mask_grad_parts(mask.mask_batch, mask.mask_heads, shape.rows, shape.columns, widest(shape), shape.batch);
}

bool sums_windows(const AttentionShape& shape, const MaskGradCall& mask, bool aligned) {
  return takes_windows(shape, aligned) && mask.mask_batch == 1 && mask.mask_heads == shape.heads;
}

// Reads delta of each row, and what notes say of segments.
cudaError_t mask_grad(const AttentionShape& shape, const AttentionGradCall& grads, const MaskGradCall& mask,
                      cudaStream_t stream) {
  const int64_t depth = widest(shape), parts = parts_of(shape, mask);
  const bool aligned = are_aligned(shape, grads);
  const bool is_sum = parts == 1 && mask.dmask_type == Scalar::F32;  // of all there is: it needs no second launch
  MaskGradCall call = mask;
  if (is_sum) call.partials = static_cast<float*>(mask.dmask);
  const cudaError_t error = with_16_bit_float(shape.type, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    auto launch = [&](auto tile) {
      return launch_mask_grad<decltype(tile), T>(shape, aligned, grads, call, parts, stream);
    };
    if (depth <= 32) return launch(MmaTile<32, 1, 4, 32, 4>());
    if (depth <= 64) return launch(MmaTile<64, 1, 4, 32, 3>());
    if (depth <= 128) return launch(MmaTile<128, 1, 2, 32, 3>());
    return launch(MmaTile<256, 1, 1, 16, 2>());
  });
  if (error != cudaSuccess || is_sum) return error;
  return sum_parts(mask, elements_of(shape, mask), parts, stream);
}

}  // namespace

cudaError_t attention_mask_grad_mma(const AttentionShape& shape, const AttentionGradCall& grads,
                                    const MaskGradCall& mask, cudaStream_t stream) {
  const int64_t elements = elements_of(shape, mask);
  if (elements == 0) return cudaSuccess;
  if (sums_windows(shape, mask, are_aligned(shape, grads) && is_aligned(grads.y, 0))) {
    const int64_t parts = parts_of(shape, mask);
    if (cudaError_t error = mask_grad_windows(shape, grads, mask.partials, parts, stream); error != cudaSuccess)
      return error;
    return sum_parts(mask, elements, parts, stream);
  }
  if (cudaError_t error = launch_deltas(shape, grads, stream); error != cudaSuccess) return error;
  if (cudaError_t error = launch_segment_tiles(shape, stream); error != cudaSuccess) return error;
  return mask_grad(shape, grads, mask, stream);
}

cudaError_t attention_grad_with_mask_mma(const AttentionShape& shape, const AttentionGradCall& grads,
                                         const MaskGradCall& mask, cudaStream_t stream) {
  const int64_t elements = elements_of(shape, mask);
  const bool has_windows = takes_windows(shape, are_aligned_with_results(shape, grads)) && !grads.scores.at;
  if (has_windows && sums_windows(shape, mask, true) && elements > 0) {
    int64_t parts = parts_of(shape, mask);
    if (cudaError_t error = attention_grads_windows(shape, grads, mask.partials, parts, stream); error != cudaSuccess)
      return error;
    return sum_parts(mask, elements, parts, stream);
  }
  if (cudaError_t error = attention_grad_mma(shape, grads, stream); error != cudaSuccess || elements == 0) return error;
  if (has_windows) return attention_mask_grad_mma(shape, grads, mask, stream);
  if (!grads.scores.at) return mask_grad(shape, grads, mask, stream);
  return grads.scores.at == mask.dmask ? cudaSuccess : sum_score_grads(shape, grads.scores, mask, stream);
}

}  // namespace plimsoll::cuda
