#include "kernels/cuda/common/packed.cuh"
#include "kernels/cuda/norm/dora_scale_mma.h"

// Reads w once and computes b a on the matrix units beside it. Their products are of numbers with 11 bits (tf32), so
// each factor is two of those, and three products make one of f32: errors are some 2^-21 of the change. A sum of
// products begins with the element of w, so what comes out are the adapted weights, whose squares remain to be added.
// The factor along the side that a block stays at, b, lies in shared memory; a passes by.
//
// A block sums half of what 64 outputs need: the first half's sums go to y, the second's to norms, and a second launch
// makes of both what belongs there. Sums are f32 in a fixed order.

namespace plimsoll::cuda {
namespace {

constexpr int threads = 512, warps = threads / warp_threads;
constexpr int outputs_per_block = 64, tile_rows = 16, group = 32, groups = 2, run = 8, rank_chunk = 8;
constexpr int max_chunks = dora_mma_max_rank / rank_chunk;

// Thread 4 g + t of a warp has in a 16 x 8 product rows g (sums 0, 1) and g + 8 (2, 3), columns 2 t and 2 t + 1; of the
// left factor rows g, g + 8, g and g + 8 of ranks t, t, t + 4 and t + 4; of the right one column g of ranks t, t + 4.
// Column n of product j of four stands for column 4 n + j of a group of 32, so that a thread's sums are of eight
// neighbouring columns, and its four numbers of the right factor are neighbours, too.
struct Lane {
  int g = static_cast<int>(threadIdx.x) % warp_threads / 4, t = static_cast<int>(threadIdx.x) % 4;
};

// Four numbers, each as a number of 11 bits and what is left of it.
struct SplitFour {
  uint32_t high[4], low[4];

  __device__ void set(int i, float x) {
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(high[i]) : "f"(x));
    low[i] = __float_as_uint(x - __uint_as_float(high[i]));
  }
};

__device__ void multiply_add_tf32(float (&sum)[4], const uint32_t (&left)[4], uint32_t right0, uint32_t right1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right0), "r"(right1));
}

// The four products of a group: right[0] has ranks t, right[1] ranks t + 4. Small products first.
__device__ void multiply_add(float (&sums)[4][4], const SplitFour& left, const SplitFour (&right)[2]) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    multiply_add_tf32(sums[j], left.low, right[0].high[j], right[1].high[j]);
    multiply_add_tf32(sums[j], left.high, right[0].low[j], right[1].low[j]);
    multiply_add_tf32(sums[j], left.high, right[0].high[j], right[1].high[j]);
  }
}

using Sums = float[groups][4][4];

// How the two products of 16 x 32 that a warp makes at once lie in w: below each other or side by side. The factor of
// their common rows or columns is split into small numbers once for both.
enum class Groups : uint8_t { Down, Across };

// Elements of w: of each group rows g and g + 8, and eight columns. `from` is the first of them that is loaded next.
template <typename T, Groups lie>
struct Weights {
  static constexpr int length = 16 / static_cast<int>(sizeof(T)), accesses = run / length;
  Packed<T, length> at[groups][2][accesses];
  const T* from;
  int rows_left, columns_left;

  __device__ Weights(const T* w, int64_t rows, int64_t columns, int64_t first_row, int64_t first_column) {
    const Lane lane;
    const int64_t row = first_row + lane.g, column = first_column + run * lane.t;
    from = w + row * columns + column;
    rows_left = static_cast<int>(rows - row);
    columns_left = static_cast<int>(columns - column);
  }
  __device__ void load(int64_t columns) {
#pragma unroll
    for (int q = 0; q < groups; ++q)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int down = 8 * half + (lie == Groups::Down ? tile_rows * q : 0),
                  across = lie == Groups::Across ? group * q : 0;
        const bool is_inside = down < rows_left && across < columns_left;
#pragma unroll
        for (int i = 0; i < accesses; ++i) {
          at[q][half][i] = {};
          if (is_inside) at[q][half][i] = load_packed<length>(from + down * columns + across + i * length);
        }
      }
  }
  // Sums begin with these.
  __device__ void start(Sums& sums) const {
#pragma unroll
    for (int q = 0; q < groups; ++q)
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int s = 0; s < 4; ++s) {
          const int i = s % 2 * 4 + j;
          sums[q][j][s] = at[q][s / 2][i / length][i % length];
        }
  }
};

// Numbers of b for 64 outputs, times the scale, as the threads of a warp want them: of each chunk of 8 ranks the left
// factors of four tiles of rows, or right factors of two groups of columns, each for ranks t and t + 4.
struct Factor {
  struct Part {
    Vector<uint32_t, 4> high[warp_threads], low[warp_threads];
  };
  Part parts[max_chunks][4];

  __device__ SplitFour get(int chunk, int part) const {
    const int lane = static_cast<int>(threadIdx.x) % warp_threads;
    SplitFour four;
    memcpy(four.high, parts[chunk][part].high[lane].at, sizeof(four.high));
    memcpy(four.low, parts[chunk][part].low[lane].at, sizeof(four.low));
    return four;
  }
  template <bool by_outputs>
  __device__ void fill(const DoraScale& call, int64_t first_output, int chunks) {
    for (int i = static_cast<int>(threadIdx.x); i < chunks * 4 * warp_threads; i += threads) {
      const int chunk = i / (4 * warp_threads), part = i / warp_threads % 4, lane = i % warp_threads;
      SplitFour four;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int64_t output =
            first_output + (by_outputs ? part * tile_rows + lane / 4 + k % 2 * 8 : part / 2 * group + lane / 4 * 4 + k);
        const int64_t rank = chunk * rank_chunk + lane % 4 + (by_outputs ? k / 2 : part % 2) * 4;
        const bool is_inside = output < call.outputs && rank < call.rank;
        four.set(k, is_inside ? call.scale * call.b[output * call.rank + rank] : 0.0f);
      }
      memcpy(parts[chunk][part].high[lane].at, four.high, sizeof(four.high));
      memcpy(parts[chunk][part].low[lane].at, four.low, sizeof(four.low));
    }
    __syncthreads();
  }
};

// Stores what this half of the inputs makes of each output: of_warps has the sums of `count` warps.
template <int count>
__device__ void store_partials(const DoraScale& call, const float (&of_warps)[count][outputs_per_block],
                               int64_t first_output, int half) {
  __syncthreads();
  const int64_t output = first_output + threadIdx.x;
  if (threadIdx.x >= outputs_per_block || output >= call.outputs) return;
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < count; ++i) sum += of_warps[i][threadIdx.x];
  (half == 0 ? call.y : call.norms)[output] = sum;
}

// Steps of a half: [begin, end) of all.
struct Half {
  int64_t begin, end;

  __device__ Half(int64_t steps, int half)
      : begin(half == 0 ? 0 : steps - steps / 2), end(half == 0 ? steps - steps / 2 : steps) {}
};

// Numbers of a for ranks t and t + 4 of a chunk and `count` inputs from `input` on, `apart` from each other.
template <int count, int apart>
struct NumbersOfA {
  Vector<float, count> at[2];

  __device__ void load(const DoraScale& call, int chunk, int input) {
    const int inputs = static_cast<int>(call.inputs), ranks = static_cast<int>(call.rank);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int rank = chunk * rank_chunk + Lane().t + 4 * k;
      const float* const from = call.a + (rank * inputs + input);
      at[k] = {};
      if constexpr (apart == 1) {
        if (rank < ranks && input < inputs) at[k] = load_vector<count>(from);
      } else {
#pragma unroll
        for (int i = 0; i < count; ++i)
          if (rank < ranks && input + i * apart < inputs) at[k].at[i] = from[i * apart];
      }
    }
  }
};

// Rows of w are outputs. A block's 16 warps are two times 32 rows times eight that share the columns, 32 at a time.
template <typename T>
__global__ void __launch_bounds__(threads) dora_mma_by_outputs(const DoraScale call) {
  constexpr int across = 8, rows_of_warp = tile_rows * groups;
  extern __shared__ uint4 shared[];
  auto& factor = *reinterpret_cast<Factor*>(shared);
  __shared__ float of_warps[across][outputs_per_block];
  const int half = static_cast<int>(blockIdx.x % 2), chunks = static_cast<int>(divide_up(call.rank, rank_chunk));
  const int64_t first_output = int64_t{blockIdx.x / 2} * outputs_per_block;
  factor.fill<true>(call, first_output, chunks);
  const int warp = static_cast<int>(threadIdx.x) / warp_threads, down = warp / across;
  const Lane lane;
  const Half steps(divide_up(call.inputs, group), half);
  float squares[groups][2] = {};
  int64_t step = steps.begin + warp % across;
  Weights<T, Groups::Down> w(static_cast<const T*>(call.w), call.outputs, call.inputs,
                             first_output + down * rows_of_warp, step * group);
  const auto load = [&] {
    w.load(call.inputs);
    w.from += across * group;
    w.columns_left -= across * group;
  };
  if (step < steps.end) load();
  NumbersOfA<4, 1> a;
  int input = static_cast<int>(step) * group + 4 * lane.g;
  a.load(call, 0, input);
  for (; step < steps.end; step += across) {
    Sums sums;
    w.start(sums);
    if (step + across < steps.end) load();  // arrives while this step is computed
    for (int chunk = 0; chunk < chunks; ++chunk) {
      SplitFour right[2];
#pragma unroll
      for (int i = 0; i < 8; ++i) right[i / 4].set(i % 4, a.at[i / 4].at[i % 4]);
      const bool is_last = chunk + 1 == chunks;
      if (is_last) input += across * group;
      a.load(call, is_last ? 0 : chunk + 1, input);  // arrives while these are multiplied
#pragma unroll
      for (int q = 0; q < groups; ++q) multiply_add(sums[q], factor.get(chunk, down * groups + q), right);
    }
#pragma unroll
    for (int i = 0; i < groups * 16; ++i) {
      const float sum = sums[i / 16][i / 4 % 4][i % 4];
      squares[i / 16][i % 4 / 2] += sum * sum;
    }
  }
#pragma unroll
  for (int i = 0; i < groups * 2; ++i) {
    float& sum = squares[i / 2][i % 2];
    sum += __shfl_xor_sync(whole_warp, sum, 1);
    sum += __shfl_xor_sync(whole_warp, sum, 2);
    if (lane.t == 0) of_warps[warp % across][down * rows_of_warp + lane.g + 8 * i] = sum;
  }
  store_partials(call, of_warps, first_output, half);
}

// Rows of w are inputs, of which each warp takes 16 at a time.
template <typename T>
__global__ void __launch_bounds__(threads) dora_mma_by_inputs(const DoraScale call) {
  constexpr bool loads_ahead = sizeof(T) == 2;  // f32 leaves no registers for it
  extern __shared__ uint4 shared[];
  auto& factor = *reinterpret_cast<Factor*>(shared);
  __shared__ float of_warps[warps][outputs_per_block];
  const int half = static_cast<int>(blockIdx.x % 2), chunks = static_cast<int>(divide_up(call.rank, rank_chunk));
  const int64_t first_output = int64_t{blockIdx.x / 2} * outputs_per_block;
  factor.fill<false>(call, first_output, chunks);
  const int warp = static_cast<int>(threadIdx.x) / warp_threads;
  const Lane lane;
  const Half steps(divide_up(call.inputs, tile_rows), half);
  float squares[groups][run] = {};
  int64_t step = steps.begin + warp;
  Weights<T, Groups::Across> w(static_cast<const T*>(call.w), call.inputs, call.outputs, step * tile_rows,
                               first_output);
  const auto load = [&] {
    w.load(call.outputs);
    w.from += warps * tile_rows * call.outputs;
    w.rows_left -= warps * tile_rows;
  };
  if (loads_ahead && step < steps.end) load();
  NumbersOfA<2, 8> a;
  int input = static_cast<int>(step) * tile_rows + lane.g;
  a.load(call, 0, input);
  for (; step < steps.end; step += warps) {
    if (!loads_ahead) load();
    Sums sums;
    w.start(sums);
    if (loads_ahead && step + warps < steps.end) load();  // arrives while this step is computed
    for (int chunk = 0; chunk < chunks; ++chunk) {
      SplitFour left;
#pragma unroll
      for (int k = 0; k < 4; ++k) left.set(k, a.at[k / 2].at[k % 2]);
      const bool is_last = chunk + 1 == chunks;
      if (is_last) input += warps * tile_rows;
      a.load(call, is_last ? 0 : chunk + 1, input);  // arrives while these are multiplied
#pragma unroll
      for (int q = 0; q < groups; ++q) {
        const SplitFour right[] = {factor.get(chunk, 2 * q), factor.get(chunk, 2 * q + 1)};
        multiply_add(sums[q], left, right);
      }
    }
#pragma unroll
    for (int i = 0; i < groups * 16; ++i) {
      const float sum = sums[i / 16][i / 4 % 4][i % 4];
      squares[i / 16][i % 2 * 4 + i / 4 % 4] += sum * sum;
    }
  }
#pragma unroll
  for (int q = 0; q < groups; ++q)
#pragma unroll
    for (int i = 0; i < run; ++i) {
#pragma unroll
      for (int distance = 4; distance < warp_threads; distance *= 2)
        squares[q][i] += __shfl_xor_sync(whole_warp, squares[q][i], distance);
      if (lane.g == 0) of_warps[warp][q * group + lane.t * run + i] = squares[q][i];
    }
  store_partials(call, of_warps, first_output, half);
}

__global__ void __launch_bounds__(block_threads) dora_finish(const DoraScale call) {
  const int64_t output = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (output >= call.outputs) return;
  const float norm = sqrtf(call.y[output] + call.norms[output]);
  call.norms[output] = norm;
  call.y[output] = call.magnitude[output] / norm;
}

template <typename T>
cudaError_t launch(const DoraScale& call, cudaStream_t stream) {
  const unsigned blocks = 2 * blocks_for(call.outputs, outputs_per_block);
  const auto bytes = static_cast<unsigned>(divide_up(call.rank, rank_chunk) * sizeof(Factor::parts[0]));
  if (call.by_outputs)
    dora_mma_by_outputs<T><<<blocks, threads, bytes, stream>>>(call);
  else
    dora_mma_by_inputs<T><<<blocks, threads, bytes, stream>>>(call);
  dora_finish<<<blocks_for(call.outputs), block_threads, 0, stream>>>(call);
  return cudaGetLastError();
}

}  // namespace

bool accepts_dora_mma(const DoraScale& call) {
  const int64_t columns = call.by_outputs ? call.inputs : call.outputs;
  constexpr int64_t most = INT32_MAX / 2;  // of a's numbers and w's rows and columns, in 32 bits
  return call.rank > 0 && call.rank <= dora_mma_max_rank && call.rank * call.inputs <= most && call.outputs <= most &&
         columns % run == 0 && reinterpret_cast<uintptr_t>(call.a) % 16 == 0 &&
         reinterpret_cast<uintptr_t>(call.w) % 16 == 0;
}

cudaError_t dora_scale_mma(const DoraScale& call, cudaStream_t stream) {
  if (call.w_type == Scalar::F32) return launch<float>(call, stream);
  if (call.w_type == Scalar::BF16) return launch<bf16>(call, stream);
  if (call.w_type == Scalar::F16) return launch<f16>(call, stream);
  return cudaErrorInvalidValue;
}

}  // namespace plimsoll::cuda
