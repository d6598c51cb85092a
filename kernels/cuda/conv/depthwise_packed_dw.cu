#include "kernels/cuda/common/block_cluster.cuh"
#include "kernels/cuda/common/early_launch.cuh"
#include "kernels/cuda/common/warpgroup.cuh"
#include "kernels/cuda/conv/depthwise.h"
#include "kernels/cuda/conv/depthwise_packed.h"
#include "kernels/cuda/conv/image_tile.cuh"
#include "kernels/cuda/conv/sum_parts.h"
#include "kernels/cuda/conv/unit_tiles.cuh"

// 3 x 3 depthwise conv_dw without strides in 32-bit arithmetic, by lines as they lie in memory: a thread has two
// channels of a strip of two lines of dy. Reads dy once; x once from memory, but the lines above and below those of a
// stage once more from the second-level cache.

namespace plimsoll::cuda {
namespace {

using Plan = DepthwisePacked;
constexpr int kernel = Plan::kernel, taps = Plan::taps, line_pairs = 2;

// A block's share of the pairs of lines, and those of its stages.
struct PackedShare {
  int first, end;

  __device__ PackedShare(const Plan& p)
      : first(static_cast<int>(p.pairs * blockIdx.x / p.splits)),
        end(static_cast<int>(p.pairs * (blockIdx.x + 1) / p.splits)) {}
};

// The first line of a pair, among those of all images.
__device__ inline int first_line(const Plan& p, int pair) {
  Digits digits{static_cast<unsigned>(pair)};
  const int of_image = digits.take(p.image_pairs);
  return static_cast<int>(digits.rest) * p.height + line_pairs * of_image;
}

struct PackedMemory {
  uint8_t* stages;
  Barrier *full, *empty;
  int x_bytes, stage_bytes;

  __device__ PackedMemory(void* shared, const Plan& p)
      : stages(static_cast<uint8_t*>(shared) +
               (Plan::border_bytes - shared_address(shared) % Plan::border_bytes) % Plan::border_bytes),
        x_bytes(static_cast<int>(p.x_bytes())),
        stage_bytes(static_cast<int>(p.stage_bytes())) {
    full = reinterpret_cast<Barrier*>(stages + p.stages * stage_bytes);
    empty = full + p.stages;
  }
};

// By one thread. The line above the first one lies first in a stage, if there is one.
__device__ inline void copy_lines(const PackedMemory& memory, const uint8_t* x, const uint8_t* dy, const Plan& p) {
  RingPlace load;
  for (PackedShare at(p); at.first < at.end; at.first += p.stage_pairs) {
    const int first = first_line(p, at.first), end_pair = min(at.first + p.stage_pairs, at.end);
    const int end = end_pair == p.pairs ? static_cast<int>(p.lines) : first_line(p, end_pair);
    const int first_x = max(first - 1, 0), end_x = min(end + 1, static_cast<int>(p.lines));
    uint8_t* const stage = memory.stages + load.stage * memory.stage_bytes;
    Barrier* const full = memory.full + load.stage;
    wait_at(memory.empty + load.stage, load.parity ^ 1);
    arrive_with_copies(full, (end_x - first_x + end - first) * p.line_bytes);
    copy_bytes(stage + (first_x - (first - 1)) * p.line_bytes, x + int64_t{first_x} * p.line_bytes,
               (end_x - first_x) * p.line_bytes, full);
    copy_bytes(stage + memory.x_bytes, dy + int64_t{first} * p.line_bytes, (end - first) * p.line_bytes, full);
    load.advance(p.stages);
  }
}

// Two channels each of neighbouring pixels; those from `columns` on, or of no line, are zeros.
template <typename T, bool whole, int count>
__device__ void load_strip(float (&pixels)[count][2], const uint32_t* from, int step, int columns, bool is_there) {
#pragma unroll
  for (int i = 0; i < count; ++i) {
    uint32_t word = 0;
    if (is_there && (whole || i < columns)) word = from[i * step];
    T pair[2];
    memcpy(pair, &word, sizeof pair);
    pixels[i][0] = widen(pair[0]), pixels[i][1] = widen(pair[1]);
  }
}

// A thread's place: two channels of the strip from a column on, of the `number`-th pair of lines of each stage.
struct PackedPlace {
  int pair, number, column;

  __device__ PackedPlace(const Plan& p, int strip) {
    Digits digits{threadIdx.x};
    pair = digits.take(p.channel_pairs);
    column = digits.take(p.strips) * strip;
    number = static_cast<int>(digits.rest);
  }
};

using PackedSums = float[taps][2];

// Adds the products of a strip of two lines of dy. lines: the place of the first one's channels in the line of x above;
// row: of that line of dy in its image.
template <typename T, int strip, bool whole>
__device__ void add_lines(PackedSums& sums, const uint32_t* lines, int row, const PackedPlace& place,
                          const PackedMemory& memory, const Plan& p) {
  const int line_words = p.line_bytes / 4, columns = p.width - place.column;
  const bool has_left = place.column > 0, has_right = columns > strip;
  const uint32_t* const of_dy = lines + memory.x_bytes / 4;
  float given[line_pairs][strip][2];
  load_strip<T, whole>(given[0], of_dy, p.channel_pairs, columns, true);
  load_strip<T, whole>(given[1], of_dy + line_words, p.channel_pairs, columns, row + 1 < p.height);
#pragma unroll
  for (int i = 0; i < kernel + line_pairs - 1; ++i) {
    const bool has_line = i == 0 ? row > 0 : i == 1 ? true : row + i - 1 < p.height;
    const uint32_t* const of_x = lines + i * line_words;
    float inner[strip][2], left[1][2], right[1][2];
    load_strip<T, true>(left, of_x - p.channel_pairs, 0, 1, has_line && has_left);
    load_strip<T, whole>(inner, of_x, p.channel_pairs, columns, has_line);
    load_strip<T, true>(right, of_x + strip * p.channel_pairs, 0, 1, has_line && has_right);
#pragma unroll
    for (int of_pair = 0; of_pair < line_pairs; ++of_pair) {
      const int down = i - of_pair;
      if (down < 0 || down >= kernel) continue;
#pragma unroll
      for (int j = 0; j < strip; ++j)
#pragma unroll
        for (int across = 0; across < kernel; ++across) {
          const int at = j + across - 1;
          const float(&pixel)[2] = at < 0 ? left[0] : at < strip ? inner[at] : right[0];
#pragma unroll
          for (int k = 0; k < 2; ++k) sums[down * kernel + across][k] += given[of_pair][j][k] * pixel[k];
        }
    }
  }
}

// A thread's sums of all stages of the share; by whole warps.
template <typename T, int strip, bool whole>
__device__ void add_stages(PackedSums& sums, const PackedMemory& memory, const Plan& p) {
  const PackedPlace place(p, strip);
  RingPlace at;
  for (PackedShare share(p); share.first < share.end; share.first += p.stage_pairs) {
    const int mine = share.first + place.number, line = first_line(p, mine);
    wait_at(memory.full + at.stage, at.parity);
    if (static_cast<int>(threadIdx.x) < p.threads() && mine < share.end) {
      const auto* stage = reinterpret_cast<const uint32_t*>(memory.stages + at.stage * memory.stage_bytes);
      const int of_stage = line - first_line(p, share.first);
      // Eight columns of f16, and what tells where they end, do not fit into registers together.
      constexpr int columns = !whole && strip == 8 && std::is_same_v<T, f16> ? strip / 2 : strip;
#pragma unroll
      for (int done = 0; done < strip; done += columns) {
        PackedPlace part = place;
        part.column += done;
        if (done > 0 && part.column >= p.width) break;
        add_lines<T, columns, whole>(sums,
                                     stage + of_stage * (p.line_bytes / 4) + part.column * p.channel_pairs + part.pair,
                                     line % p.height, part, memory, p);
      }
    }
    arrive_as_warp_at(memory.empty + at.stage);
    at.advance(p.stages);
  }
}

// Writes a block's sums [channels, taps], of those that its threads have; by all threads.
__device__ inline void write_sums(float* to, const PackedSums& sums, const PackedMemory& memory, const Plan& p) {
  auto* all = reinterpret_cast<float*>(memory.stages);  // [taps, 2, pitch]
  const int thread = static_cast<int>(threadIdx.x), threads = p.threads(), pitch = threads | 1;
  if (thread < threads)
#pragma unroll
    for (int tap = 0; tap < taps; ++tap)
#pragma unroll
      for (int k = 0; k < 2; ++k) all[(tap * 2 + k) * pitch + thread] = sums[tap][k];
  __syncthreads();
  const int places = threads / p.channel_pairs;
  for (int i = thread; i < p.channels * taps; i += static_cast<int>(blockDim.x)) {
    const int channel = i / taps, tap = i - channel * taps;
    const float* const of = all + (tap * 2 + channel % 2) * pitch + channel / 2;
    float total = 0;
    for (int place = 0; place < places; ++place) total += of[place * p.channel_pairs];
    to[i] = total;
  }
}

template <typename T, int strip, bool whole>
__global__ void __launch_bounds__(Plan::max_threads + Plan::copying_threads, 1)
    depthwise_packed_dw_kernel(float* __restrict__ partial, const uint8_t* __restrict__ x,
                               const uint8_t* __restrict__ dy, const __grid_constant__ Plan p) {
  if constexpr (has_warpgroups) {
    let_next_launch_begin();
    extern __shared__ uint8_t shared[];
    const PackedMemory memory(shared, p);
    const int thread = static_cast<int>(threadIdx.x);
    const int warps = (p.threads() + warp_threads - 1) / warp_threads, first_copying = warps * warp_threads;
    if (thread == 0) {
      for (int i = 0; i < p.stages; ++i) set_up_barrier(memory.full + i, 1), set_up_barrier(memory.empty + i, warps);
      show_barriers_to_copies();
    }
    __syncthreads();
    PackedSums sums = {};
    if (thread < first_copying)
      add_stages<T, strip, whole>(sums, memory, p);
    else if (thread == first_copying)
      copy_lines(memory, x, dy, p);
    __syncthreads();
    write_sums(partial + int64_t{blockIdx.x} * p.channels * taps, sums, memory, p);
  } else {
    __trap();
  }
}

}  // namespace

cudaError_t depthwise_packed_dw(Scalar type, Scalar to, void* dw, const void* x, const void* dy,
                                const ConvolutionSizes& sizes, void* workspace, cudaStream_t stream) {
  const Plan p(sizes);
  auto* partial = static_cast<float*>(workspace);
  const auto bytes = static_cast<size_t>(p.shared_bytes());
  const auto threads =
      static_cast<unsigned>(divide_up(p.threads(), warp_threads) * warp_threads + Plan::copying_threads);
  return with_16_bits(type, [&]<typename T>(T*) {
    const bool whole = p.width % p.strip == 0;
    const auto kernel =
        p.strip == 7 ? (whole ? depthwise_packed_dw_kernel<T, 7, true> : depthwise_packed_dw_kernel<T, 7, false>)
                     : (whole ? depthwise_packed_dw_kernel<T, 8, true> : depthwise_packed_dw_kernel<T, 8, false>);
    if (const cudaError_t refused = allow_shared(kernel, bytes)) return refused;
    kernel<<<static_cast<unsigned>(p.blocks()), threads, bytes, stream>>>(partial, static_cast<const uint8_t*>(x),
                                                                          static_cast<const uint8_t*>(dy), p);
    if (const cudaError_t error = cudaGetLastError()) return error;
    return sum_parts(to, dw, partial, p.splits, sizes.weights(), stream);
  });
}

}  // namespace plimsoll::cuda
