#pragma once

// Attention without tensors of scores (Dao et al. 2022), for what no library takes: any mask, any head size up to 256.
//   q, dq [batch, rows, heads, depth], k, dk [batch, columns, kv_heads, depth], v, dv [batch, columns, kv_heads,
//   value_depth], y, dy [batch, rows, heads, value_depth], lse [batch, heads, rows]
// Rows of q, k and v, and of their gradients, are so many elements apart: they may stand side by side in one tensor.
// q, k, v and y are of one type, computed in f32; lse is f32 and -inf for a row that may attend to nothing.

#include "kernels/cuda/elementwise/random.h"
#include "kernels/dropout.h"
#include "kernels/scalar.h"

#include <cuda_runtime_api.h>

namespace plimsoll::cuda {

inline constexpr int64_t max_attention_depth = 256;

// The least and the largest segment of 64 neighbouring rows, which let tiles be passed over whose rows share none.
inline constexpr int segment_tile = 64;
struct SegmentTile {
  int64_t low, high;
};

// What a mask that is the same for all rows does to 64 neighbouring columns: nothing, or it closes them all so that
// they change no bit of any result, which lets their tiles be passed over.
inline constexpr int column_tile = 64;
enum class ColumnTile : uint8_t { Open, Mixed, Closed };

struct AttentionShape {
  int64_t batch, rows, columns, heads, kv_heads, depth, value_depth;
  int64_t q_step, k_step, v_step;
  Scalar type;
  float scale;
  bool causal;         // row r sees columns up to r
  int64_t window = 0;  // columns so far from the row, or farther, are closed; 0: none
  // Bool: true may attend; float: added; null: none. Strides over [batch, heads, rows, columns].
  const void* mask = nullptr;
  Scalar mask_type = Scalar::Bool;
  int64_t mask_strides[4] = {};
  Dropout dropout = {};
  RandomStream random = {};
  int64_t drawn_heads = 0;        // a sample draws numbers for so many heads, of which these are some
  float softcap = 0;              // scores s become softcap * tanh(s / softcap) before masks; 0: they stay
  const float* slopes = nullptr;  // [heads] what a score loses per step between its row and column
  // [1 or batch, rows]: a row sees the columns with its own number. segments_step is that of the batch.
  const int64_t* segments = nullptr;
  int64_t segments_step = 0;
  SegmentTile* segment_tiles = nullptr;  // workspace [1 or batch, tiles of rows] for the matrix units
  // Workspace [1 or batch, tiles of columns] for the matrix units, where the mask is the same for all rows and heads.
  ColumnTile* column_tiles = nullptr;
};

// One more score of each row of a head, with a value of 0.
struct Sinks {
  const void* of_heads = nullptr;
  Scalar type = Scalar::F32;
};

struct AttentionCall {
  void* y;
  float* lse;
  const void *q, *k, *v;
  Sinks sinks = {};
  unsigned* next_rows = nullptr;  // workspace for heads of 33 to 64 elements: a number
};

// Workspace of a gradient in one pass over the pairs of tiles, in which blocks of columns add to the rows' gradient one
// after the other; without it two passes make it.
struct OnePass {
  float* sums = nullptr;      // [batch, heads, tiles of rows, 64, 64 to 256]
  float* log2_lse = nullptr;  // [batch, heads, rows]
  int* turns = nullptr;       // [batch, heads, tiles of rows, 1 or 2], and the number of the next block
  // The query heads of a key head are divided among so many blocks; more than one add up dk and dv in f32,
  // [parts, batch, columns, kv_heads, depth], and those of dv behind them.
  int parts = 1;
  float* partials = nullptr;
};

// The gradients of all scores, [batch, heads, rows, pitch], in f32 or the type of q. The pitch is no less than the
// columns, behind which there is 0: a multiple of 8, or of 2 in f32.
struct ScoreGrads {
  void* at = nullptr;
  int64_t pitch = 0;
  bool is_wide = false;      // f32
  bool skips_tiles = false;  // in one pass: tiles that the diagonal or the window closes whole are not written
};

struct AttentionGradCall {
  void *dq, *dk, *dv;
  const void *q, *k, *v, *y, *dy;
  const float* lse;
  float* delta;  // workspace [batch, heads, rows]
  OnePass one_pass = {};
  ScoreGrads scores = {};  // written where it is there, by kernels for warpgroups without a cap
};

// In f32, on the vector units. Any type.
[[nodiscard]] cudaError_t attention(const AttentionShape& shape, const AttentionCall& call, cudaStream_t stream);
[[nodiscard]] cudaError_t attention_grad(const AttentionShape& shape, const AttentionGradCall& call,
                                         cudaStream_t stream);

// The gradient of a mask with a number for each row and column, of dimensions [1 or batch, 1 or heads, rows, columns].
struct MaskGradCall {
  void* dmask;
  Scalar dmask_type;
  int64_t mask_batch, mask_heads;
  float* partials;  // workspace [parts, elements of the mask] on the matrix units; mask_grad_sizes.h has the parts
};
[[nodiscard]] cudaError_t attention_mask_grad(const AttentionShape& shape, const AttentionGradCall& call,
                                              const MaskGradCall& mask, cudaStream_t stream);

// ---- On the matrix units: 16-bit floats; a float mask is of the same type or f32 ----

[[nodiscard]] cudaError_t attention_mma(const AttentionShape& shape, const AttentionCall& call, cudaStream_t stream);
[[nodiscard]] cudaError_t attention_grad_mma(const AttentionShape& shape, const AttentionGradCall& call,
                                             cudaStream_t stream);
[[nodiscard]] cudaError_t attention_mask_grad_mma(const AttentionShape& shape, const AttentionGradCall& call,
                                                  const MaskGradCall& mask, cudaStream_t stream);
// Both. Where call.scores is there, on Hopper, for heads of more than 32 elements and without a cap, the gradient of
// the mask is summed from it, in the type of q, and needs no other workspace; or it is mask.dmask itself, where nothing
// is to be summed.
[[nodiscard]] cudaError_t attention_grad_with_mask_mma(const AttentionShape& shape, const AttentionGradCall& call,
                                                       const MaskGradCall& mask, cudaStream_t stream);

// ---- The gradient of sinks, from any float type ----

// y and dy [batch, rows, heads, depth]; lse as above. sinks_grad_sizes.h has the number of parts.
struct SinksGradCall {
  void* dsinks;
  const void *y, *dy, *sinks;
  const float* lse;
  float* partials;  // workspace [parts, heads]
  Scalar type, sinks_type;
  int64_t batch, rows, heads, depth;
};
[[nodiscard]] cudaError_t attention_sinks_grad(const SinksGradCall& call, cudaStream_t stream);

}  // namespace plimsoll::cuda
