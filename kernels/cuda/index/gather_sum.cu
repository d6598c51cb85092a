#include "kernels/cuda/index/index.cuh"
#include "kernels/cuda/index/index_workspace.h"

#include <type_traits>

// Serves gather_sum. Rows of x come from memory, or from L2, once for each entry that picks them; nothing of what was
// gathered is written. A group of lanes shares one head of one row of y, or a part of its columns, and goes
// through the row's entries in their order, several at a time, with f32 sums in registers. A row of more than
// segment_chunk entries is combined in two stages as segment_reduce does it.

namespace plimsoll::cuda {
namespace {

constexpr int chunk = segment_chunk;

// Entries whose loads are in flight together, no more than a group has lanes: 64 bytes of a lane, but for products,
// which are added up for four entries at once.
constexpr int batch_of(int runs, bool has_dots) { return runs == 1 || has_dots ? 4 : 2; }

// Blocks that share a multiprocessor, as many as registers without a stack allow: four blocks of 64 registers a thread
// took 10 to 27 % less than three.
constexpr int blocks_together(int length, int runs, bool has_dots) {
  if (runs == 1) return has_dots && length == 8 ? 3 : 4;
  return has_dots ? 1 : 4;
}

struct Gather {
  Segments segments;
  GatheredRows x;
  GatheredDots dots;
  AnyTensor base;  // data: null, or of y's type and shape
  void* y;
  Scalar type;
  float* partial;
  int64_t chunks;  // of the sorted entries; 0: no row is long
  GatherLanes lanes;
  Divider blocks_of_row, blocks_of_head;
  int of_head;  // columns

  __device__ bool is_long(int64_t row) const { return segments.starts[row + 1] - segments.starts[row] > chunk; }
};

// Entries that one group of lanes adds up: a row's, or those of a long row in one chunk.
struct Span {
  int row, begin, end;
  int slot;       // of the partial sums; -1: the sums go to y
  bool is_empty;  // nothing is written
};

// A chunk holds entries of two long rows at most: slot 0 is for the row of its first entry, slot 1 for that of its
// last when it is another.
__device__ Span span_at(const Gather& g, int i) {
  const Segments& s = g.segments;
  const int rows = static_cast<int>(s.size), count = static_cast<int>(s.count);
  const auto start = [&](int row) { return static_cast<int>(s.starts[row]); };
  if (i < rows) {
    const int begin = start(i), end = start(i + 1);
    return {i, begin, end, -1, end - begin > chunk || (begin == end && g.base.data == g.y)};
  }
  const int slot = i - rows, begin = slot / 2 * chunk, end = min(begin + chunk, count);
  const int first = static_cast<int>(s.rows[begin]), row = slot % 2 == 0 ? first : static_cast<int>(s.rows[end - 1]);
  if (!g.is_long(row) || (slot % 2 == 1 && row == first)) return {row, 0, 0, slot, true};
  return {row, max(start(row), begin), min(start(row + 1), end), slot, false};
}

// `length` elements of any float of 16 or 32 bits.
template <int length>
__device__ Vector<float, length> load_floats(const AnyTensor& from, int64_t at) {
  Vector<float, length> values;
  const auto take = [&]<typename T>(T*) {
    const auto loaded = load_vector<length>(static_cast<const T*>(from.data) + at);
#pragma unroll
    for (int k = 0; k < length; ++k) values.at[k] = widen(loaded.at[k]);
  };
  if (from.type == Scalar::F32)
    take(static_cast<float*>(nullptr));
  else if (from.type == Scalar::BF16)
    take(static_cast<bf16*>(nullptr));
  else
    take(static_cast<f16*>(nullptr));
  return values;
}

template <int length>
__device__ void store_floats(void* to, Scalar type, int64_t at, const Vector<float, length>& values) {
  const auto put = [&]<typename T>(T*) {
    Vector<T, length> rounded;
#pragma unroll
    for (int k = 0; k < length; ++k) rounded.at[k] = narrow<T>(values.at[k]);
    store_vector(static_cast<T*>(to) + at, rounded);
  };
  if (type == Scalar::F32)
    put(static_cast<float*>(nullptr));
  else if (type == Scalar::BF16)
    put(static_cast<bf16*>(nullptr));
  else
    put(static_cast<f16*>(nullptr));
}

// Rounds the total of a row and what it is added to.
template <int length>
__device__ void store_total(const Gather& g, int64_t row, int64_t column, Vector<float, length> total) {
  const int64_t at = row * g.x.inner + column;
  if (g.base.data) {
    const auto base = load_floats<length>(g.base, at);
#pragma unroll
    for (int k = 0; k < length; ++k) total.at[k] += base.at[k];
  }
  store_floats(g.y, g.type, at, total);
}

// Adds up the four values of each of the `lanes` neighbours: lane l gets the total of value l % 4.
__device__ float sum_quads(const float* values, int lanes, int lane) {
  const bool odd = lane % 2, upper = lane / 2 % 2;
  const float low = (odd ? values[1] : values[0]) + __shfl_xor_sync(whole_warp, odd ? values[0] : values[1], 1);
  const float high = (odd ? values[3] : values[2]) + __shfl_xor_sync(whole_warp, odd ? values[2] : values[3], 1);
  float total = (upper ? high : low) + __shfl_xor_sync(whole_warp, upper ? low : high, 2);
  for (int other = 4; other < lanes; other *= 2) total += __shfl_xor_sync(whole_warp, total, other);
  return total;
}

// Lane l of a group has the vectors l, l + lanes of `length` elements of its part of the columns, `runs` in all, and
// looks up the l-th of as many entries as there are lanes, which the group then goes through together. All groups of a
// warp take as many steps as the longest.
template <typename T, int length, int runs, bool has_dots>
__global__ void __launch_bounds__(block_threads, blocks_together(length, runs, has_dots))
    gather_sum_kernel(const __grid_constant__ Gather g, int64_t groups) {
  constexpr int batch = batch_of(runs, has_dots);
  const int64_t thread = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  const int lanes = 1 << g.lanes.log2_lanes, lane = static_cast<int>(thread) & (lanes - 1);
  int64_t block = thread >> g.lanes.log2_lanes;
  const bool is_group = block < groups;
  const int64_t i = g.blocks_of_row.divide(block);
  const Span span = is_group ? span_at(g, static_cast<int>(i)) : Span{0, 0, 0, -1, true};
  const int entries = span.is_empty ? 0 : span.end - span.begin;
  const int heads = static_cast<int>(g.x.heads), head = static_cast<int>(g.blocks_of_head.divide(block));
  const int end_column = span.is_empty ? 0 : (head + 1) * g.of_head;
  const int first_column = head * g.of_head + (static_cast<int>(block) * lanes * runs + lane) * length;
  const auto column = [&](int run) { return first_column + run * lanes * length; };

  Vector<float, length> sums[runs] = {}, factors[runs] = {};
  if (has_dots)
#pragma unroll
    for (int run = 0; run < runs; ++run)
      if (column(run) < end_column)
        factors[run] = load_floats<length>({g.dots.factors, g.dots.type}, span.row * g.x.inner + column(run));

  const T* x = static_cast<const T*>(g.x.data) + first_column;
  const int steps = __reduce_max_sync(whole_warp, entries);
#pragma unroll 1
  for (int first = 0; first < steps; first += lanes) {
    const bool is_entry = first + lane < entries;
    const int entry = span.begin + first + lane;
    const int pick = is_entry ? static_cast<int>(index_at(g.x.picks, entry, g.x.size)) : 0;
    const int place =
        is_entry && (g.x.weights || has_dots) ? static_cast<int>(g.segments.order[entry]) * heads + head : 0;
    float weight = is_entry, own_dot = 0;
    if (is_entry && g.x.weights) weight = load_floats<1>({g.x.weights, g.x.weight_type}, place).at[0];
    const int steps_here = steps - first < lanes ? steps - first : lanes;
#pragma unroll 1
    for (int step = 0; step < steps_here; step += batch) {
      Vector<T, length> loaded[batch][runs];
      float weights[batch], dots[batch] = {};
#pragma unroll
      for (int k = 0; k < batch; ++k) {
        const int64_t row = __shfl_sync(whole_warp, pick, step + k, lanes);
        weights[k] = __shfl_sync(whole_warp, weight, step + k, lanes);
        const bool is_in = first + step + k < entries;
#pragma unroll
        for (int run = 0; run < runs; ++run)
          loaded[k][run] = is_in && column(run) < end_column
                               ? load_vector<length>(x + row * g.x.inner + run * lanes * length)
                               : Vector<T, length>{};
      }
#pragma unroll
      for (int k = 0; k < batch; ++k)
#pragma unroll
        for (int run = 0; run < runs; ++run)
#pragma unroll
          for (int j = 0; j < length; ++j) {
            const float value = widen(loaded[k][run].at[j]);
            sums[run].at[j] += weights[k] * value;
            if (has_dots) dots[k] += value * factors[run].at[j];
          }
      if constexpr (has_dots)
#pragma unroll
        for (int k = 0; k < batch; k += 4) {
          const float total = sum_quads(dots + k, lanes, lane);
          if (lane / 4 * 4 == step + k) own_dot = total;
        }
    }
    if (has_dots && is_entry) g.dots.dots[place] = own_dot;
  }
#pragma unroll
  for (int run = 0; run < runs; ++run) {
    if (column(run) >= end_column) continue;
    if (span.slot >= 0)
      store_vector(g.partial + span.slot * g.x.inner + column(run), sums[run]);
    else
      store_total<length>(g, span.row, column(run), sums[run]);
  }
}

// The chunk in which a long row starts combines the row's partial sums: its own, then those of the chunks that follow.
template <int length>
__global__ void __launch_bounds__(block_threads)
    combine_chunks_kernel(const __grid_constant__ Gather g, int64_t n, Divider columns) {
  int64_t column = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (column >= n) return;
  const int64_t piece = columns.divide(column);
  column *= length;
  const Segments& s = g.segments;
  const int64_t begin = piece * chunk, end = begin + chunk < s.count ? begin + chunk : s.count;
  const int64_t row = s.rows[end - 1];
  if (!g.is_long(row) || s.starts[row] < begin) return;
  const int own_slot = s.rows[begin] == row ? 0 : 1;
  const int64_t last_piece = (int64_t{s.starts[row + 1]} - 1) / chunk;
  auto total = load_vector<length>(g.partial + (2 * piece + own_slot) * g.x.inner + column);
#pragma unroll 4
  for (int64_t next = piece + 1; next <= last_piece; ++next) {
    const auto more = load_vector<length>(g.partial + 2 * next * g.x.inner + column);
#pragma unroll
    for (int k = 0; k < length; ++k) total.at[k] += more.at[k];
  }
  store_total<length>(g, row, column, total);
}

template <typename T, int length, int runs>
void launch_sums(const Gather& g, int64_t groups, cudaStream_t stream) {
  const unsigned blocks = blocks_for(groups << g.lanes.log2_lanes);
  if (g.dots.factors)
    gather_sum_kernel<T, length, runs, true><<<blocks, block_threads, 0, stream>>>(g, groups);
  else if constexpr (runs == 1 || sizeof(T) == 4)
    gather_sum_kernel<T, length, runs, false><<<blocks, block_threads, 0, stream>>>(g, groups);
}

template <typename T, int length>
void launch_vectors(const Gather& g, cudaStream_t stream) {
  const int64_t spans = g.segments.size + 2 * g.chunks;
  const int64_t groups = spans * g.x.heads * g.lanes.blocks;
  if (g.lanes.runs == 1)
    launch_sums<T, length, 1>(g, groups, stream);
  else
    launch_sums<T, length, 2>(g, groups, stream);
  if (g.chunks == 0) return;
  const int64_t columns = g.x.inner / length;
  combine_chunks_kernel<length>
      <<<blocks_for(g.chunks * columns), block_threads, 0, stream>>>(g, g.chunks * columns, Divider(columns));
}

}  // namespace

cudaError_t gather_sum(Scalar type, void* y, const void* base, const GatheredRows& x, const GatheredDots& dots,
                       const Segments& segments, void* workspace, cudaStream_t stream) {
  if (segments.size * x.inner == 0) return cudaSuccess;
  const int64_t chunks = segments.count > chunk ? divide_up(segments.count, chunk) : 0;
  Gather g{segments,
           x,
           dots,
           {base, type},
           y,
           type,
           static_cast<float*>(workspace),
           chunks,
           {},
           {},
           {},
           static_cast<int>(x.inner / x.heads)};
  return with_f32_math(x.type, [&]<typename T>(T*) {
    g.lanes = GatherLanes(x.inner / x.heads, sizeof(T), dots.factors ? GatherBlocks::Heads : GatherBlocks::Any);
    g.blocks_of_row = Divider(x.heads * g.lanes.blocks);
    g.blocks_of_head = Divider(g.lanes.blocks);
    constexpr int whole = 16 / sizeof(T);
    if (g.lanes.length == whole)
      launch_vectors<T, whole>(g, stream);
    else if (g.lanes.length == whole / 2)
      launch_vectors<T, whole / 2>(g, stream);
    else
      launch_vectors<T, 1>(g, stream);
  });
}

}  // namespace plimsoll::cuda
