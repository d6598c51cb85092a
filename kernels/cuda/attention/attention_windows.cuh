#pragma once

// Attention in thousands of small windows, as Swin's of 49 rows: what bounds it is memory. A warp takes a whole window
// of one head at a time, and the warps of a block stay with one head, whose mask lies in shared memory in the order in
// which it is read.
//
// Rows are read and written in words of 16 bytes: thread 4 g + t holds elements 8 t to 8 t + 7 of row g of eight. Word
// w of the four are, for the matrix units, elements 2 t and 2 t + 1 of a left operand's row g or of a right operand's
// column g; that both sides number the depth in this order leaves products as they are, and sums with a transposed
// right operand have the same elements of the same rows.

#include "kernels/cuda/attention/attention_mma.cuh"

namespace plimsoll::cuda {

inline constexpr int max_window = 64, window_depth = 32, window_groups = max_window / 8, window_tiles = max_window / 16;

// Eight rows of a head: 16 bytes of each for every thread.
union EightRows {
  uint4 vector;
  uint32_t words[4];
};

// What this thread has of a head's rows, of every eighth row 16 bytes.
template <typename T>
class WindowRows {
 public:
  __device__ WindowRows(T* head, int64_t step, int rows, int depth) : step_(8 * static_cast<int>(step)) {
    const int lane = static_cast<int>(threadIdx.x) % 32, row = lane / 4, d = lane % 4 * 8;
    at_ = head + row * static_cast<int>(step) + d;
    rows_ = d < depth ? rows - row : 0;
  }

  __device__ bool has(int group) const { return 8 * group < rows_; }
  __device__ T* at(int group) const { return at_ + group * step_; }
  // 0 beyond the last row.
  __device__ EightRows read(int group) const {
    EightRows rows{};
    if (has(group)) rows.vector = __ldg(reinterpret_cast<const uint4*>(at(group)));
    return rows;
  }
  __device__ void write(int group, const EightRows& rows) const {
    if (has(group)) *reinterpret_cast<uint4*>(at(group)) = rows.vector;
  }

 private:
  T* at_;
  int step_, rows_;  // rows from this thread's first on
};

// Each word's 8 x 8 matrix transposed: the rows as a right operand of sums over rows.
__device__ inline EightRows transposed(const EightRows& rows) {
  EightRows made;
#pragma unroll
  for (int w = 0; w < 4; ++w)
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(made.words[w]) : "r"(rows.words[w]));
  return made;
}

// sum += sixteen rows * (eight rows)^T over the whole depth.
template <typename T>
__device__ void add_products(float (&sum)[4], const EightRows (&left)[2], const EightRows& right) {
  const uint32_t *upper = left[0].words, *lower = left[1].words, *r = right.words;
  const RightFragments fragments{{r[0], r[1], r[2], r[3]}};
  multiply_add<T>(sum, {{upper[0], lower[0], upper[1], lower[1]}}, fragments, 0);
  multiply_add<T>(sum, {{upper[2], lower[2], upper[3], lower[3]}}, fragments, 1);
}

// Sums of sixteen rows of a head, word w of a thread's elements each.
using RowSums = float[4][4];

// sums += weights * sixteen rows, of which `first` and `second` are the transposed halves.
template <typename T>
__device__ void add_rows(RowSums& sums, const LeftFragment& weights, const EightRows& first, const EightRows& second) {
#pragma unroll
  for (int w = 0; w < 4; ++w) multiply_add<T>(sums[w], weights, {{first.words[w], second.words[w], 0, 0}}, 0);
}

// Rows 8 half to 8 half + 7 of the sums, times a factor.
template <typename T>
__device__ EightRows rounded_rows(const RowSums& sums, int half, float factor) {
  EightRows made;
#pragma unroll
  for (int w = 0; w < 4; ++w)
    made.words[w] = packed_pair<T>(sums[w][2 * half] * factor, sums[w][2 * half + 1] * factor);
  return made;
}

// The transpose of weights that are a left operand.
__device__ inline LeftFragment transposed(const LeftFragment& weights) {
  const EightRows made = transposed(EightRows{.words = {weights.at[0], weights.at[2], weights.at[1], weights.at[3]}});
  return {{made.words[0], made.words[1], made.words[2], made.words[3]}};
}

// What the mask adds to scores, in units of log 2, and -inf outside: four numbers for each thread of a warp, 16 x 8
// scores after the other. Large finite numbers stay finite.
struct WindowMask {
  float4* of_threads;  // [window_tiles, window_groups, 32]

  static constexpr int bytes = window_tiles * window_groups * 32 * static_cast<int>(sizeof(float4));

  __device__ void fill(const AttentionShape& n, int64_t h) const {
    auto added = [&](int row, int column) {
      const float score = Head{0, h}.score(n, row, column, 0.0f);
      return score == -INFINITY ? score : fmaxf(score, -1e30f) * log2_e;
    };
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < window_tiles * window_groups * 32;
         i += static_cast<int>(blockDim.x)) {
      const int lane = i % 32, column = i / 32 % window_groups * 8 + lane % 4 * 2;
      const int row = i / 32 / window_groups * 16 + lane / 4;
      of_threads[i] = {added(row, column), added(row, column + 1), added(row + 8, column), added(row + 8, column + 1)};
    }
  }
  __device__ float4 of(int tile, int group) const {
    return of_threads[(tile * window_groups + group) * 32 + threadIdx.x % 32];
  }
};

// Windows with the same mask, whose rows are whole words of 16 bytes.
[[nodiscard]] inline bool takes_windows(const AttentionShape& n, bool aligned) {
  return aligned && n.depth <= window_depth && n.value_depth == n.depth && n.rows <= max_window &&
         n.columns <= max_window && n.heads == n.kv_heads && n.dropout.blocks == 0 && n.mask_strides[0] == 0 &&
         n.softcap == 0.0f && !n.segments;
}

// Blocks of `warps` warps, `per_multiprocessor` of which fit, such that each head has the same number.
struct WindowGrid {
  int64_t blocks, blocks_per_head;

  WindowGrid(const AttentionShape& n, int warps, int per_multiprocessor) {
    int device = 0, multiprocessors = 1;
    if (cudaGetDevice(&device) == cudaSuccess)
      (void)cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
    const int64_t wanted = (int64_t{multiprocessors} * per_multiprocessor + n.heads - 1) / n.heads;
    const int64_t needed = (n.batch + warps - 1) / warps;
    blocks_per_head = wanted < needed ? wanted : needed;
    blocks = blocks_per_head * n.heads;
  }
};

[[nodiscard]] cudaError_t attention_windows(const AttentionShape& shape, const AttentionCall& call,
                                            cudaStream_t stream);
// These need no delta. The gradient of a mask [heads, rows, columns] comes in parts.
[[nodiscard]] cudaError_t attention_grad_windows(const AttentionShape& shape, const AttentionGradCall& grads,
                                                 cudaStream_t stream);
[[nodiscard]] cudaError_t mask_grad_windows(const AttentionShape& shape, const AttentionGradCall& grads,
                                            float* partials, int64_t parts, cudaStream_t stream);

}  // namespace plimsoll::cuda
