#include "kernels/cuda/attention/attention_softmax.cuh"
#include "kernels/cuda/attention/attention_warpgroup.cuh"
#include "kernels/cuda/attention/attention_windows.cuh"

// Serves attention ("mma"): forward as in Dao (2023). Reads q and writes y once; k and v are read once for each tile of
// rows. While scores are computed v is on its way, and the next k while they become probabilities.

namespace plimsoll::cuda {
namespace {

// A thread makes every fourth word of a row, and eight rows share a warp: it ends where causal attention reads no more.
// Philox gives eight 16-bit numbers at a time, and a word may start within such a block.
__global__ void __launch_bounds__(256)
    kept_bits_kernel(AttentionShape n, uint32_t* words, int64_t first_row, int64_t rows, uint32_t threshold) {
  constexpr int row_threads = 4, block_halves = 8;
  const int64_t row = int64_t{blockIdx.x} * (256 / row_threads) + threadIdx.x / row_threads;
  if (row >= rows) return;
  const int pitch = static_cast<int>(kept_words(n.columns)), last = static_cast<int>((first_row + row) % n.rows) / 32;
  const int end = n.causal && last + 1 < pitch ? last + 1 : pitch;
  const int64_t sample = (first_row + row) / (n.heads * n.rows);
  const int64_t drawn_row = first_row + row + sample * (n.drawn_heads - n.heads) * n.rows;
  const int64_t row_half = 4 * n.random.first_block + drawn_row * n.columns;
  const int shift = static_cast<int>(row_half % block_halves);
  const Philox generator(n.random);
  auto kept = [&](int64_t block) {
    const PhiloxBlock drawn = generator(block);
    uint32_t bits = 0;
#pragma unroll
    for (int lane = 0; lane < 4; ++lane) {
      bits |= (drawn.lanes[lane] & 0xffff) >= threshold ? 1u << 2 * lane : 0u;
      bits |= drawn.lanes[lane] >> 16 >= threshold ? 2u << 2 * lane : 0u;
    }
    return bits;
  };
  for (int word = static_cast<int>(threadIdx.x) % row_threads; word < end; word += row_threads) {
    const int64_t block = row_half / block_halves + 4 * word;
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) bits |= kept(block + i) << block_halves * i;
    if (shift != 0) bits = bits >> shift | kept(block + 4) << (32 - shift);
    words[row * pitch + word] = bits;
  }
}

// k and v of two tiles of columns: one is computed with, the other is on its way.
template <typename Tile>
struct ForwardTiles {
  static constexpr int elements = (Tile::own + 4 * Tile::others) * Tile::pitch;
  static constexpr int bytes = elements * 2 + 2 * Tile::others * static_cast<int>(sizeof(float));
};

template <typename Tile, typename T>
__global__ void __launch_bounds__(Tile::threads, Tile::blocks)
    attention_mma_kernel(AttentionShape n, MmaCall call, T* y, float* lse, const T* q, const T* k, const T* v,
                         int row_tiles) {
  extern __shared__ uint4 shared[];
  T *q_tile = reinterpret_cast<T*>(shared), *tiles = q_tile + Tile::own * Tile::pitch;
  float* additions = reinterpret_cast<float*>(q_tile + ForwardTiles<Tile>::elements);
  // The longest rows of causal attention come first.
  const int64_t number = call.first_group * (n.heads / n.kv_heads) + blockIdx.x / row_tiles;
  const int first = (row_tiles - 1 - static_cast<int>(blockIdx.x % row_tiles)) * Tile::own;
  const Head head{number / n.heads, number % n.heads};
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int warp_first = first + warp * Tile::warp_rows, rows = static_cast<int>(n.rows);
  const int depth = static_cast<int>(n.depth), value_depth = static_cast<int>(n.value_depth);
  const int columns = static_cast<int>(n.columns);
  const Range range = range_of_others<Owner::Rows>(n, first, Tile::own, Tile::others);
  T* warp_rows = q_tile + warp * Tile::warp_rows * Tile::pitch;
  const RowLoader<Tile, Tile::others, T> k_rows(k + head.k(n), n.k_step, columns, depth, call.aligned);
  const RowLoader<Tile, Tile::others, T> v_rows(v + head.v(n), n.v_step, columns, value_depth, call.aligned);
  const bool drops = n.dropout > 0;
  const uint32_t* words = drops ? head_bits(n, call, head) : nullptr;
  auto k_tile = [&](int stage) { return tiles + stage * 2 * Tile::others * Tile::pitch; };
  auto v_tile = [&](int stage) { return k_tile(stage) + Tile::others * Tile::pitch; };
  auto load = [&](int stage, int column) {
    k_rows.load(k_tile(stage), column);
    v_rows.load(v_tile(stage), column);
    commit_copies();
    if (is_mask_of_columns(n)) load_additions<Tile, T>(additions + stage * Tile::others, n, head, column);
  };
  RowLoader<Tile, Tile::own, T>(q + head.q(n), n.q_step, rows, depth, call.aligned).load(q_tile, first);
  if (range.first < range.end) load(0, range.first);
  commit_copies();

  Sums<Tile::m_tiles, Tile::d_tiles> out = {};
  RowSoftmax<Tile> softmax(n.scale);
  int stage = 0;
  for (int column = range.first; column < range.end; column += Tile::others, stage ^= 1) {
    const Place<Owner::Rows> place{warp_first + lane / 4, column + lane % 4 * 2};
    wait_for_copies<0>();
    __syncthreads();  // this tile has arrived, and the other stage is no longer read
    if (column + Tile::others < range.end) load(stage ^ 1, column + Tile::others);
    TileBits<Tile, Owner::Rows> bits;
    if (drops) bits.load(n, words, place);
    Sums<Tile::m_tiles, Tile::n_tiles> scores;
    multiply_rows<Tile>(scores, k_tile(stage), [&](int m, int i) { return left_fragment<Tile>(warp_rows, m, 16 * i); });
    apply_masks<Tile, Owner::Rows, T>(scores, n, head, place, first, column, additions + stage * Tile::others);

    if (softmax.add(scores)) softmax.rescale_rows(out);
    if (drops) drop<Tile>(scores, bits);
    add_weighted_rows<Tile>(out, scores, v_tile(stage));
  }
  wait_for_copies<0>();
  __syncthreads();  // q has arrived even where no column is met

  const float kept_factor = n.dropout < 1 ? static_cast<float>(1 / (1 - n.dropout)) : 0.0f;
  softmax.finish(n, head, warp_first, lse);
  store_rows<Tile>(
      y + head.y(n), n.heads * n.value_depth, warp_first, rows, value_depth, call.aligned, q_tile, out,
      [&](int m, int half) { return softmax.sum[m][half] > 0.0f ? kept_factor / softmax.sum[m][half] : 0.0f; });
}

template <typename Tile, typename T>
cudaError_t launch_forward(const AttentionShape& shape, const MmaCall& call, void* y, float* lse, const void* q,
                           const void* k, const void* v, cudaStream_t stream) {
  const int64_t row_tiles = (shape.rows + Tile::own - 1) / Tile::own;
  return launch_mma(attention_mma_kernel<Tile, T>, call.groups * (shape.heads / shape.kv_heads) * row_tiles,
                    Tile::threads, ForwardTiles<Tile>::bytes, stream, shape, call, static_cast<T*>(y), lse,
                    static_cast<const T*>(q), static_cast<const T*>(k), static_cast<const T*>(v),
                    static_cast<int>(row_tiles));
}

}  // namespace

cudaError_t draw_kept_bits(const AttentionShape& shape, const MmaCall& call, cudaStream_t stream) {
  const int64_t group_rows = shape.heads / shape.kv_heads * shape.rows, rows = call.groups * group_rows;
  kept_bits_kernel<<<static_cast<unsigned>((rows + 63) / 64), 256, 0, stream>>>(
      shape, call.kept.words, call.first_group * group_rows, rows,
      static_cast<uint32_t>(std::ceil(shape.dropout * 0x1p16)));
  return cudaGetLastError();
}

cudaError_t attention_mma(const AttentionShape& shape, const KeptBits& kept, void* y, float* lse, const void* q,
                          const void* k, const void* v, cudaStream_t stream) {
  if (shape.batch * shape.heads * shape.rows == 0) return cudaSuccess;
  const int64_t depth = shape.depth > shape.value_depth ? shape.depth : shape.value_depth;
  const bool aligned = shape.depth % 8 == 0 && shape.value_depth % 8 == 0 && is_aligned(q, shape.q_step) &&
                       is_aligned(k, shape.k_step) && is_aligned(v, shape.v_step) && is_aligned(y, 0);
  if (takes_windows(shape, aligned)) return attention_windows(shape, y, lse, q, k, v, stream);
  return with_16_bit_float(shape.type, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    return for_groups(shape, kept, aligned, stream, [&](const MmaCall& call) {
      if (takes_warpgroups(depth)) return attention_warpgroup(shape, call, {y, lse, q, k, v}, stream);
      auto launch = [&](auto tile) { return launch_forward<decltype(tile), T>(shape, call, y, lse, q, k, v, stream); };
      if (depth <= 32) return launch(MmaTile<32, 1, 4, 64, 7>());
      if (depth <= 64) return launch(MmaTile<64, 1, 4, 64, 4>());
      if (depth <= 128) return launch(MmaTile<128, 2, 4, 32, 2>());
      return launch(MmaTile<256, 1, 4, 16, 2>());
    });
  });
}

}  // namespace plimsoll::cuda
