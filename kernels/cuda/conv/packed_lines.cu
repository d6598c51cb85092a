#include "kernels/cuda/common/warpgroup.cuh"
#include "kernels/cuda/conv/grouped.h"
#include "kernels/cuda/conv/packed_results.cuh"
#include "kernels/cuda/conv/unit_tiles.cuh"

// 3 x 3 convolutions whose pixels are no whole units of 8 channels, and their input gradients, on Hopper. The pixels
// under a line of taps lie one behind the other, so that products run over them as they lie in memory, without a step
// for each tap. Reads a line once a block and the weights once a block, and writes whole runs of results.

namespace plimsoll::cuda {
namespace {

struct BlockPixels {
  int first, end;         // results
  int last_start;         // the last result that may begin 2 ^ spread neighbours
  int first_line, lines;  // that they read, of all images

  __device__ explicit BlockPixels(const PackedLines& p) {
    first = static_cast<int>(blockIdx.x) * p.block_pixels;
    end = min(first + p.block_pixels, p.batch * p.out[0] * p.out[1]);
    last_start = end - (1 << p.spread);
    first_line = lines_under(p, first).x;
    lines = lines_under(p, end - 1).y + 1 - first_line;
  }
  // The first and the last line inside the image that a result reads.
  __device__ static int2 lines_under(const PackedLines& p, int pixel) {
    const int line = p.of_width.quotient(pixel), image = p.of_height.quotient(line);
    const int row = (line - image * p.out[0]) * p.stride;
    return {image * p.in[0] + max(row - 1, 0), image * p.in[0] + min(row + 1, p.in[0] - 1)};
  }
};

// Computing threads wait until all of them, and the one that sets barriers up, are ready.
__device__ inline void arrive_for_start() { asm volatile("bar.arrive 0, %0;" ::"n"(PackedLines::threads) : "memory"); }
__device__ inline void wait_for_start() { asm volatile("bar.sync 0, %0;" ::"n"(PackedLines::threads) : "memory"); }

// Zeros around lines, and where pixels outside images are read.
__device__ void write_zeros(const PackedPlaces& at, const PackedLines& p, int thread) {
  const int units = p.gap_bytes / 16, gaps = (p.lines + 1) * units, zeros = p.zero_bytes() / 16;
  for (int i = thread; i < gaps + zeros; i += PackedLines::computing_threads) {
    const int gap = i / units;
    store_zero(i < gaps ? at.ring + static_cast<uint32_t>(gap * p.slot_bytes() + (i - gap * units) * 16)
                        : at.zeros + static_cast<uint32_t>(i - gaps) * 16);
  }
}

// Where a thread finds its pairs of numbers of the pixels of a team's tiles: rows `i` and `i + 8` of a product are
// 2 ^ spread pixels apart, so that no banks conflict.
template <int known, int tiles, int rows>
struct PixelRows {
  static constexpr int near = known > 0 ? 1 << PackedLines::spread_of(known / 2) : 1, count = 2 * tiles / near;
  uint32_t at[rows][count];

  // own_row: of the taps, where that is the only one.
  __device__ PixelRows(const PackedPlaces& places, const PackedForm<known>& form, const BlockPixels& mine, int first,
                       int own_row) {
    const PackedLines& p = form.p;
    const int lane = static_cast<int>(threadIdx.x) % warp_threads;
    const uint32_t outside = places.zeros + static_cast<uint32_t>(lane % 4 * 4);
#pragma unroll
    for (int i = 0; i < count; ++i) {
      // Neighbours have a line in common.
      if (known == 0 && i > 0 && (i & form.near_mask()) != 0) {
#pragma unroll
        for (int k = 0; k < rows; ++k) at[k][i] = at[k][i - 1] + form.pixel_step();
        continue;
      }
      const int pixel = min(first + form.pixel_in_team(i * near), mine.last_start);
      const int line = p.of_width.quotient(pixel), image = p.of_height.quotient(line);
      const int row = (line - image * p.out[0]) * form.stride() - 1,
                column = (pixel - line * p.out[1]) * form.stride() - 1;
      const int wanted = (known > 0 ? line - 1 : image * p.in[0] + row) - mine.first_line,
                first_row = rows == 1 ? own_row : 0;
      const auto in_line = static_cast<uint32_t>(column * form.in_channels() * 2 + lane % 4 * 4);
      int place = p.place_in_ring(max(wanted + first_row, 0));
#pragma unroll
      for (int k = 0; k < rows; ++k) {
        const bool inside = static_cast<unsigned>(row + first_row + k) < static_cast<unsigned>(p.in[0]);
        at[k][i] = inside ? places.line(p, place) + in_line : outside;
        if (wanted + k >= 0 && ++place == p.lines) place = 0;
      }
    }
  }
  __device__ uint32_t address(const PackedForm<known>& form, int row, int i) const {
    return at[row][i / near] + static_cast<uint32_t>(i % near) * form.pixel_step();
  }
  // Left operands of 16 numbers, or of 8.
  __device__ void load(uint32_t (&to)[tiles][4], const PackedForm<known>& form, int row, int step, bool half) const {
#pragma unroll
    for (int i = 0; i < tiles; ++i)
#pragma unroll
      for (int k = 0; k < 4; ++k)
        if (k < 2 || !half)
          to[i][k] = shared_word(address(form, row, 2 * i + k % 2) + static_cast<uint32_t>(step * 32 + k / 2 * 16));
  }
};

template <typename T, int units, int tiles>
__device__ void multiply_tiles(float (&sums)[tiles][units][4], const uint32_t (&left)[tiles][4],
                               const uint32_t (&right)[units][2], bool half) {
#pragma unroll
  for (int i = 0; i < tiles; ++i)
#pragma unroll
    for (int n = 0; n < units; ++n) {
      const LeftFragment a{{left[i][0], left[i][1], left[i][2], left[i][3]}};
      const RightFragments b{{right[n][0], right[n][1], 0, 0}};
      if (half)
        multiply_add_half<T>(sums[i][n], a, b, 0);
      else
        multiply_add<T>(sums[i][n], a, b, 0);
    }
}

template <typename T, int known, int units, int tiles, int rows, int parts, bool gradient>
__device__ void multiply_lines(T* out, const T* bias, const PackedPlaces& at, PackedBarriers& barriers,
                               const PackedLines& p, const BlockPixels& mine) {
  constexpr int team_pixels = 16 * tiles;
  constexpr bool keeps_weights = known > 0 && known <= 18;
  const PackedForm<known> form{p};
  const int warp = __shfl_sync(whole_warp, static_cast<int>(threadIdx.x) / warp_threads, 0);
  const int team = warp / p.team_warps, member = warp - team * p.team_warps, part = member % parts,
            own_row = member / parts;
  const WeightRows<known, units, units * parts, gradient> weights(at, form, part);
  const TeamResults<T, known, units, tiles> results(at, form, team, member, part);
  PackedReader reader(barriers, p);
  const bool gives_back = mine.lines > p.lines;
  constexpr int kept_steps = keeps_weights ? PackedForm<known>::known_steps : 1;
  uint32_t kept[keeps_weights ? rows : 1][kept_steps][units][2];
  if constexpr (keeps_weights)
#pragma unroll
    for (int row = 0; row < rows; ++row)
#pragma unroll
      for (int step = 0; step < kept_steps; ++step) weights.load(kept[row][step], row, step);
  const bool adds_bias = !gradient && bias != nullptr && own_row == 0;
  for (int first = mine.first + team * team_pixels; first < mine.end; first += p.teams * team_pixels) {
    const int count = min(team_pixels, mine.end - first);
    if (gives_back) reader.give_back_before(BlockPixels::lines_under(p, first).x - mine.first_line);
    reader.wait_for(BlockPixels::lines_under(p, first + count - 1).y - mine.first_line);
    const PixelRows<known, tiles, rows> pixels(at, form, mine, first, own_row);
    float sums[tiles][units][4] = {};
#pragma unroll
    for (int down = 0; down < rows; ++down) {
      const int row = rows == 1 ? own_row : down;
      const auto multiply = [&](int step, bool half) {
        uint32_t left[tiles][4] = {}, loaded[units][2];
        pixels.load(left, form, down, step, half);
        if constexpr (keeps_weights) {
          multiply_tiles<T, units, tiles>(sums, left, kept[down][step], half);
        } else {
          weights.load(loaded, row, step);
          multiply_tiles<T, units, tiles>(sums, left, loaded, half);
        }
      };
      if constexpr (known > 0) {
#pragma unroll
        for (int step = 0; step < PackedForm<known>::known_steps; ++step)
          multiply(step, 2 * step + 1 == PackedForm<known>::row_units);
      } else {
        const int whole = p.steps - p.ends_half;
#pragma unroll 2
        for (int step = 0; step < whole; ++step) multiply(step, false);
        if (p.ends_half) multiply(whole, true);
      }
    }
    if (adds_bias) results.add_bias(sums, bias);
    results.wait_for_store();
    if constexpr (rows == 1) {
      results.exchange(sums, own_row);
      results.stage(sums, [&](int tile) { return tile == own_row; });
    } else {
      results.meet();
      results.stage(sums, [](int) { return true; });
    }
    results.store(out, first, count);
  }
  // Others may need lines for which there is no room yet.
  if (gives_back) reader.give_back_before(mine.lines);
  results.wait_for_store();
}

template <typename T, int known, int units, int tiles, int rows, int parts, bool gradient>
__global__ void __launch_bounds__(PackedLines::threads, 1)
    packed_lines_kernel(T* __restrict__ out, const T* __restrict__ in, const T* __restrict__ w,
                        const T* __restrict__ bias, const __grid_constant__ PackedLines p) {
  if constexpr (has_warpgroups) {
    extern __shared__ uint4 shared[];
    __shared__ PackedBarriers barriers;
    const PackedPlaces at(shared, p);
    const BlockPixels mine(p);
    constexpr int computing = PackedLines::computing_threads;
    const int thread = static_cast<int>(threadIdx.x);
    // The first lines are on their way while the others see to the weights.
    if (thread >= computing) {
      give_registers<PackedLines::copying_registers>();
      if (thread == computing) barriers.set_up(p.stages, PackedLines::computing_warps);
      __syncwarp();
      arrive_for_start();
      if (thread > computing) return;
      const int bytes = p.line_bytes;
      const auto* from = reinterpret_cast<const uint8_t*>(in) + int64_t{mine.first_line} * bytes;
      copy_lines(barriers, p, mine.lines, bytes, [&](int line, int place, Barrier* full) {
        copy_bytes_at(at.line(p, place), from + int64_t{line} * bytes, bytes, full);
      });
    } else {
      take_registers<PackedLines::computing_registers>();
      load_weights(at, w, p, thread);
      write_zeros(at, p, thread);
      commit_copies();
      wait_for_copies<0>();
      wait_for_start();
      multiply_lines<T, known, units, tiles, rows, parts, gradient>(out, bias, at, barriers, p, mine);
    }
  } else {
    __trap();
  }
}

template <typename T, bool gradient>
cudaError_t launch(T* out, const T* in, const T* w, const T* bias, const PackedLines& p, cudaStream_t stream) {
  const auto bytes = static_cast<size_t>(p.shared_bytes());
  const auto run = [&](auto kernel) {
    if (const cudaError_t error = allow_shared(kernel, bytes)) return error;
    kernel<<<static_cast<unsigned>(p.blocks), PackedLines::threads, bytes, stream>>>(out, in, w, bias, p);
    return cudaGetLastError();
  };
  const bool by_rows = p.rows_of_warp == 1;
  switch (p.known) {
    case 18: return run(packed_lines_kernel<T, 18, 3, 2, 3, 1, gradient>);
    case 36: return run(packed_lines_kernel<T, 36, 5, 3, 3, 1, gradient>);
    case 72:
      return by_rows ? run(packed_lines_kernel<T, 72, 5, 3, 1, 2, gradient>)
                     : run(packed_lines_kernel<T, 72, 5, 3, 3, 2, gradient>);
    default: break;
  }
  if (p.parts > 1) {
    switch (p.units) {
      case 3:
        return by_rows ? run(packed_lines_kernel<T, 0, 3, 3, 1, 2, gradient>)
                       : run(packed_lines_kernel<T, 0, 3, 3, 3, 2, gradient>);
      case 4:
        return by_rows ? run(packed_lines_kernel<T, 0, 4, 3, 1, 2, gradient>)
                       : run(packed_lines_kernel<T, 0, 4, 3, 3, 2, gradient>);
      case 5:
        return by_rows ? run(packed_lines_kernel<T, 0, 5, 3, 1, 2, gradient>)
                       : run(packed_lines_kernel<T, 0, 5, 3, 3, 2, gradient>);
      default: return cudaErrorInvalidValue;
    }
  }
  switch (p.units) {
    case 1: return run(packed_lines_kernel<T, 0, 1, 2, 3, 1, gradient>);
    case 2: return run(packed_lines_kernel<T, 0, 2, 2, 3, 1, gradient>);
    case 3: return run(packed_lines_kernel<T, 0, 3, 2, 3, 1, gradient>);
    case 4: return run(packed_lines_kernel<T, 0, 4, 2, 3, 1, gradient>);
    case 5: return run(packed_lines_kernel<T, 0, 5, 2, 3, 1, gradient>);
    default: return cudaErrorInvalidValue;
  }
}

template <bool gradient>
cudaError_t launch_packed(Scalar type, void* out, const void* in, const void* w, const void* bias,
                          const ConvolutionSizes& c, cudaStream_t stream) {
  const PackedLines p(c, gradient);
  return with_16_bits(type, [&]<typename T>(T*) {
    return launch<T, gradient>(static_cast<T*>(out), static_cast<const T*>(in), static_cast<const T*>(w),
                               static_cast<const T*>(bias), p, stream);
  });
}

}  // namespace

cudaError_t packed_lines(Scalar type, void* y, const void* x, const void* w, const void* bias,
                         const ConvolutionSizes& sizes, cudaStream_t stream) {
  return launch_packed<false>(type, y, x, w, bias, sizes, stream);
}

cudaError_t packed_lines_dx(Scalar type, void* dx, const void* dy, const void* w, const ConvolutionSizes& sizes,
                            cudaStream_t stream) {
  return launch_packed<true>(type, dx, dy, w, nullptr, sizes, stream);
}

}  // namespace plimsoll::cuda
