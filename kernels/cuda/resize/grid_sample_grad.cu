#include "kernels/cuda/common/nest.cuh"
#include "kernels/cuda/common/packed.cuh"
#include "kernels/cuda/common/rows.cuh"
#include "kernels/cuda/resize/grid_place.cuh"

#include <algorithm>

// The gradient of sampled images. Samples are ordered by the cell between four pixels in which they lie, those of a
// cell as they stand in the grid; then every pixel adds what the samples in its four cells gave it, in that order.
// Reads dy once from memory, the three other times mostly from the L2 cache, and writes dx once.

namespace plimsoll::cuda {
namespace {

constexpr int ahead = 4;  // accesses of a warp that are on their way together

struct OrderedSamples {
  uint32_t *starts, *order;  // [images, cells + 1]; [images, samples]
  int32_t* cells;            // [images, samples], -1 outside
  float2* shares;            // [images, samples] as ordered: of the second column and of the second row

  OrderedSamples(const GridSamples& shape, void* workspace) {
    const GridSampleWorkspace at(shape.images, shape.height, shape.width, shape.samples);
    char* bytes = static_cast<char*>(workspace);
    starts = reinterpret_cast<uint32_t*>(bytes + at.starts);
    cells = reinterpret_cast<int32_t*>(bytes + at.cells);
    order = reinterpret_cast<uint32_t*>(bytes + at.order);
    shares = reinterpret_cast<float2*>(bytes + at.shares);
  }
};

__global__ void __launch_bounds__(block_threads)
    cells_kernel(int32_t* cells, const __grid_constant__ SampledPlaces places, int64_t count) {
  const int64_t sample = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (sample >= count) return;
  const float2 at = places.coordinates(sample);
  const int column = places.columns(at.x).first, row = places.rows(at.y).first;
  cells[sample] = column < -1 || row < -1 ? -1 : (row + 1) * (places.columns.size + 1) + column + 1;
}

// visit(index, cell, whether it is inside the range) for a warp's samples, 32 at a time, with the next ones on their
// way.
template <typename Visit>
__device__ void for_samples(const int32_t* cells, int begin, int end, Visit visit) {
  const int lane = static_cast<int>(threadIdx.x) % warp_threads;
  for (int first = begin; first < end; first += ahead * warp_threads) {
    int32_t found[ahead];
#pragma unroll
    for (int a = 0; a < ahead; ++a) {
      const int i = first + a * warp_threads + lane;
      found[a] = i < end ? cells[i] : -1;
    }
#pragma unroll
    for (int a = 0; a < ahead; ++a) visit(first + a * warp_threads + lane, found[a]);
  }
}

// Block b has band b % bands of an image's cells, and looks through all of its samples: each warp counts those of its
// share in every cell, then puts them behind those of the warps before it.
template <int threads>
__global__ void __launch_bounds__(threads)
    order_kernel(const __grid_constant__ OrderedSamples ordered, const __grid_constant__ SampledPlaces places,
                 int cells, int samples, int bands, int in_band) {
  constexpr int warps = threads / warp_threads, band_cells = SampleBands::band_cells(threads);
  constexpr int cells_per_thread = band_cells / threads;
  __shared__ uint32_t places_of[warps][band_cells];
  __shared__ uint32_t warp_sums[warps];
  const int lane = static_cast<int>(threadIdx.x) % warp_threads, warp = static_cast<int>(threadIdx.x) / warp_threads;
  const int64_t image = blockIdx.x / bands;
  const int first = static_cast<int>(blockIdx.x % bands) * in_band;
  const int own = min(in_band, cells - first);
  const int32_t* of_image = ordered.cells + image * samples;
  for (int w = 0; w < warps; ++w)
    for (int c = static_cast<int>(threadIdx.x); c < band_cells; c += threads) places_of[w][c] = 0;
  __syncthreads();

  const int64_t share = divide_up(divide_up(samples, warps), warp_threads) * warp_threads;
  const int begin = static_cast<int>(min(share * warp, int64_t{samples}));
  const int end = static_cast<int>(min(share * (warp + 1), int64_t{samples}));
  uint32_t earlier = 0;
  for_samples(of_image, begin, end, [&](int, int32_t cell) {
    if (cell >= 0 && cell < first) ++earlier;
    if (cell >= first && cell < first + own) atomicAdd(&places_of[warp][cell - first], 1u);
  });
  earlier = block_reduce(earlier, Add(), 0u);
  __syncthreads();

  // A thread turns the counts of neighbouring cells into places.
  uint32_t of_cells[cells_per_thread], sum = 0;
#pragma unroll
  for (int c = 0; c < cells_per_thread; ++c) {
    of_cells[c] = 0;
    for (int w = 0; w < warps; ++w) of_cells[c] += places_of[w][threadIdx.x * cells_per_thread + c];
    sum += of_cells[c];
  }
  uint32_t up_to_here = sum;
#pragma unroll
  for (int distance = 1; distance < warp_threads; distance *= 2) {
    const uint32_t lower = __shfl_up_sync(whole_warp, up_to_here, distance);
    if (lane >= distance) up_to_here += lower;
  }
  if (lane == warp_threads - 1) warp_sums[warp] = up_to_here;
  __syncthreads();
  uint32_t place = earlier + up_to_here - sum;
  for (int w = 0; w < warp; ++w) place += warp_sums[w];
  uint32_t* starts = ordered.starts + image * (cells + 1) + first;
#pragma unroll
  for (int c = 0; c < cells_per_thread; ++c) {
    const int cell = static_cast<int>(threadIdx.x) * cells_per_thread + c;
    if (cell < own) starts[cell] = place;
    if (cell == own - 1 && first + own == cells) starts[own] = place + of_cells[c];
    for (int w = 0; w < warps; ++w) {
      const uint32_t of_warp = places_of[w][cell];
      places_of[w][cell] = place;
      place += of_warp;
    }
  }
  __syncthreads();

  uint32_t* order = ordered.order + image * samples;
  float2* shares = ordered.shares + image * samples;
  for_samples(of_image, begin, end, [&](int i, int32_t cell) {
    const bool is_own = cell >= first && cell < first + own;
    const unsigned owned = __ballot_sync(whole_warp, is_own);
    if (owned == 0) return;
    const unsigned equal = __match_any_sync(whole_warp, is_own ? cell : -1);
    const int before = __popc(equal & ((1u << lane) - 1));
    const uint32_t to = is_own ? places_of[warp][cell - first] + before : 0;
    __syncwarp();
    if (is_own) {
      if (before == 0) places_of[warp][cell - first] = to + __popc(equal);
      const float2 at = places.coordinates(image * samples + i);
      order[to] = static_cast<uint32_t>(i);
      shares[to] = {places.columns(at.x).share, places.rows(at.y).share};
    }
    __syncwarp();
  });
}

// Each of a pixel's teams adds every splits-th of its samples, a lane of the team for a run of channels.
template <int n, typename T>
__global__ void __launch_bounds__(block_threads)
    sum_samples_kernel(T* dx, const T* __restrict__ dy, const __grid_constant__ OrderedSamples ordered, Divider width,
                       Divider height, int64_t pixels, int columns, int rows, int samples, int channels, bool nearest,
                       PixelTeams teams) {
  const int64_t thread = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  const int64_t pixel = thread / (teams.team * teams.splits);
  const int lane = static_cast<int>(threadIdx.x) % teams.team;
  const int split = static_cast<int>(threadIdx.x) / teams.team % teams.splits;
  int64_t column = pixel < pixels ? pixel : 0;
  int64_t row = width.divide(column);
  const int64_t image = height.divide(row);
  const int64_t cells = int64_t{rows + 1} * (columns + 1);
  // The cells to the upper left, which begin the two runs of samples; below, and to the right.
  const uint32_t* upper = ordered.starts + image * (cells + 1) + row * (columns + 1) + column;
  const uint32_t* lower = upper + columns + 1;
  const uint32_t upper_begin = upper[0], upper_middle = upper[1], upper_end = upper[2];
  uint32_t lower_begin = lower[0];
  const uint32_t lower_middle = lower[1], lower_end = lower[2];
  uint32_t in_upper = upper_end - upper_begin;
  if (nearest) in_upper = 0, lower_begin = lower_middle;  // the cell behind the pixel is its own
  const uint32_t count = pixel < pixels ? in_upper + (lower_end - lower_begin) : 0;
  const uint32_t* order = ordered.order + image * samples;
  const float2* shares = ordered.shares + image * samples;
  const T* of_image = dy + image * samples * channels;
  for (int first = 0; first < channels; first += teams.team * n) {
    const int c = first + lane * n;
    float sums[n] = {};
    if (c < channels) {
#pragma unroll 4
      for (uint32_t i = split; i < count; i += teams.splits) {
        const bool is_upper = i < in_upper;
        const uint32_t at = is_upper ? upper_begin + i : lower_begin + (i - in_upper);
        const float2 share = shares[at];
        const bool is_left = at < (is_upper ? upper_middle : lower_middle);
        const float weight = (is_left ? share.x : 1 - share.x) * (is_upper ? share.y : 1 - share.y);
        const auto gradient = load_packed<n>(of_image + int64_t{order[at]} * channels + c);
#pragma unroll
        for (int e = 0; e < n; ++e) sums[e] += weight * gradient[e];
      }
    }
    for (int distance = teams.team; distance < teams.team * teams.splits; distance *= 2)
#pragma unroll
      for (int e = 0; e < n; ++e) sums[e] += __shfl_xor_sync(whole_warp, sums[e], distance);
    if (split == 0 && c < channels && pixel < pixels) store_packed(dx + pixel * channels + c, pack<T>(sums));
  }
}

}  // namespace

cudaError_t grid_sample_dx(const GridSamples& shape, Scalar type, void* dx, const void* grid, const void* dy,
                           void* workspace, cudaStream_t stream) {
  const int64_t pixels = shape.images * shape.height * shape.width, count = shape.images * shape.samples;
  if (pixels * shape.channels == 0) return cudaSuccess;
  const OrderedSamples ordered(shape, workspace);
  const SampledPlaces places(shape, grid);
  if (count > 0) cells_kernel<<<blocks_for(count), block_threads, 0, stream>>>(ordered.cells, places, count);
  const auto cells = static_cast<int>(grid_cells(shape.height, shape.width));
  const SampleBands split(shape.images, cells);
  const auto blocks = static_cast<unsigned>(shape.images * split.bands);
  const auto bands = static_cast<int>(split.bands), in_band = static_cast<int>(divide_up(cells, split.bands));
  const auto order = split.threads == 512 ? order_kernel<512> : order_kernel<256>;
  order<<<blocks, split.threads, 0, stream>>>(ordered, places, cells, static_cast<int>(shape.samples), bands, in_band);
  return with_channel_runs(type, shape.channels, [&]<typename T, int n>(T*, std::integral_constant<int, n>*) {
    const PixelTeams teams(shape.channels / n, shape.height * shape.width, shape.samples);
    sum_samples_kernel<n><<<blocks_for(pixels * teams.team * teams.splits), block_threads, 0, stream>>>(
        static_cast<T*>(dx), static_cast<const T*>(dy), ordered, Divider(shape.width), Divider(shape.height), pixels,
        static_cast<int>(shape.width), static_cast<int>(shape.height), static_cast<int>(shape.samples),
        static_cast<int>(shape.channels), shape.mode == SampledAs::Nearest, teams);
  });
}

}  // namespace plimsoll::cuda
