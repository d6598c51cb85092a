#include "kernels/cuda/resize/resize_taps.cuh"

#include <algorithm>
#include <cmath>

// Serves resize. y is written once; what neighbouring elements share of x comes from the cache. A warp makes the same
// few elements of many lines of y, so that what they read along the line, and weigh it by, stays in registers. Where
// the last axis grows, the lines of x that a line of y reads are first weighed and summed in shared memory, and the
// elements picked from that; elsewhere each element reads x itself.

namespace plimsoll::cuda {
namespace {

constexpr int summed_words = 1056;  // of a warp's shared memory
constexpr int64_t wanted_warps = 132 * resize_warps * 16, max_steps = 64;

// Results a lane keeps of a line: what one access stores, or four where four taps each fill the registers.
template <typename T, int taps>
constexpr int results_per_lane = taps == 4 ? 4 : vector_length<T>;

// How the lines of y are dealt out. A step is as many lines as the lanes of a warp can describe together, a read each.
struct LineTiles {
  int across, abreast;      // lanes of a warp along a line, and lines beside each other
  int reads, second_reads;  // lines of x that a line reads, along both outer axes and along the second
  int step;                 // lines
  int64_t tiles, lines, lines_per_warp;
  int room = 0, pass = 0;  // where lines are summed: words a line, and lines at once
};

// A lane's part of the work.
struct LaneTile {
  int lane, along, beside;  // in the warp, along the line, and which of the warp's lines it has
  int64_t tile, first_line, end_line;

  __device__ explicit LaneTile(const LineTiles& tiles) : lane(static_cast<int>(threadIdx.x) % warp_threads) {
    int64_t chunk = int64_t{blockIdx.x} * resize_warps + threadIdx.x / warp_threads;
    along = lane % tiles.across;
    beside = lane / tiles.across;
    tile = take_index(chunk, tiles.tiles);
    first_line = chunk * tiles.lines_per_warp;
    end_line = min(first_line + tiles.lines_per_warp, tiles.lines);
  }
};

// ---- What is read ----

// Accesses of `width` elements at first, first + stride... of a line: what they read of a line of x, by its places.
// Those past the line's end read what its last access does.
template <int count, int taps>
struct ElementReads {
  int32_t from[count][taps];
  float weight[count][taps];

  __device__ ElementReads(const ResizeShape& shape, const AxisTaps* along, int64_t first, int stride, int width) {
    const auto inner = static_cast<uint32_t>(shape.inner[2]);
    const int64_t last = shape.axes[2].out * inner - width;
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const auto j = static_cast<uint32_t>(min(first + int64_t{i} * stride, last));
      const uint32_t k = j / inner, c = j - k * inner;
#pragma unroll
      for (int t = 0; t < taps; ++t) {
        from[i][t] = static_cast<int32_t>(static_cast<uint32_t>(along[k].index[t]) * inner + c);
        weight[i][t] = along[k].weight[t];
      }
    }
  }
};

// One of the lines of x that a line of y reads.
struct LineRead {
  int64_t start;
  float weight;

  __device__ LineRead(const ResizeShape& shape, const TapTables& tables, int64_t line, int first_tap, int second_tap) {
    const int64_t inner1 = take_index(line, shape.inner[1]);
    const AxisTaps& b = tables.taps[1][take_index(line, shape.axes[1].out)];
    const int64_t inner0 = take_index(line, shape.inner[0]);
    const AxisTaps& a = tables.taps[0][take_index(line, shape.axes[0].out)];
    int64_t number = (line * shape.axes[0].in + a.index[first_tap]) * shape.inner[0] + inner0;
    number = (number * shape.axes[1].in + b.index[second_tap]) * shape.inner[1] + inner1;
    start = number * shape.axes[2].in * shape.inner[2];
    weight = a.weight[first_tap] * b.weight[second_tap];
  }
};

// The reads of a step's lines, one a lane.
__device__ LineRead read_of_lane(const ResizeShape& shape, const TapTables& tables, const LineTiles& tiles,
                                 int64_t step, int lane) {
  const int of_line = lane % tiles.reads;
  const int64_t line = min(step + lane / tiles.reads, tiles.lines - 1);
  return {shape, tables, line, of_line / tiles.second_reads, of_line % tiles.second_reads};
}

// ---- Reading x itself ----

// Accesses of `width` elements, all of which stand in one element of the axis.
template <typename T, int taps, int width>
__global__ void __launch_bounds__(resize_threads, width == 1 ? 2 : 3)
    resize_reading_kernel(ResizeShape shape, LineTiles tiles, TapTables tables, T* y, const T* __restrict__ x) {
  constexpr int count = results_per_lane<T, taps> / width;
  const LaneTile mine(tiles);
  const int stride = tiles.across * width;
  const int64_t length = shape.axes[2].out * shape.inner[2], first = mine.tile * stride * count + mine.along * width;
  const ElementReads<count, taps> element(shape, tables.taps[2], first, stride, width);
  for (int64_t step = mine.first_line; step < mine.end_line; step += tiles.step) {
    const LineRead of_lane = read_of_lane(shape, tables, tiles, step, mine.lane);
    for (int base = 0; base < tiles.step; base += tiles.abreast) {
      const int in_step = min(base + mine.beside, tiles.step - 1);
      float sum[count][width] = {};
#pragma unroll 1
      for (int r = 0; r < tiles.reads; ++r) {
        const T* line = x + __shfl_sync(whole_warp, of_lane.start, in_step * tiles.reads + r);
        const float weight = __shfl_sync(whole_warp, of_lane.weight, in_step * tiles.reads + r);
#pragma unroll
        for (int i = 0; i < count; ++i)
#pragma unroll
          for (int t = 0; t < taps; ++t) {
            const Packed<T, width> read = load_packed<width>(line + element.from[i][t]);
#pragma unroll
            for (int e = 0; e < width; ++e) sum[i][e] += weight * element.weight[i][t] * read[e];
          }
      }
      if (base + mine.beside >= tiles.step || step + in_step >= mine.end_line) continue;
#pragma unroll
      for (int i = 0; i < count; ++i)
        if (first + int64_t{i} * stride < length)
          store_packed(y + (step + in_step) * length + first + int64_t{i} * stride, pack<T>(sum[i]));
    }
  }
}

// ---- Summing lines, then picking ----

// Sums what each of `count` lines of y reads of x, elements [low, low + span): element low + i of a line goes to place
// spaced(i) of its room.
template <int width, typename T>
__device__ void sum_lines(float* summed, const LineTiles& tiles, const T* x, const LineRead& of_lane, int first,
                          int count, int span) {
  const int lane = static_cast<int>(threadIdx.x) % warp_threads;
  const auto accesses = static_cast<unsigned>((span + width - 1) / width), all = count * accesses;
#pragma unroll 1
  for (unsigned base = 0; base < all; base += warp_threads) {
    const unsigned item = min(base + lane, all - 1), line = item / accesses;
    const int at = static_cast<int>(item - line * accesses) * width;
    float sum[width] = {};
#pragma unroll 2
    for (int r = 0; r < tiles.reads; ++r) {
      const int reader = (first + static_cast<int>(line)) * tiles.reads + r;
      const int64_t start = __shfl_sync(whole_warp, of_lane.start, reader);
      const float weight = __shfl_sync(whole_warp, of_lane.weight, reader);
      const Packed<T, width> read = load_packed<width>(x + start + at);
#pragma unroll
      for (int e = 0; e < width; ++e) sum[e] += weight * read[e];
    }
    if (base + lane >= all) continue;
#pragma unroll
    for (int e = 0; e < width; ++e) summed[static_cast<int>(line) * tiles.room + spaced(at) + e] = sum[e];
  }
}

struct Smaller {
  __device__ int32_t operator()(int32_t a, int32_t b) const { return min(a, b); }
};

// The elements of a line of x that the warp's results read, from `low` on; their places become those in a room.
template <int count, int taps>
struct Span {
  int32_t low, length;

  __device__ Span(ElementReads<count, taps>& element, int low_multiple) {
    int32_t first = element.from[0][0], behind = first;
#pragma unroll
    for (int i = 0; i < count; ++i) {
      first = min(first, element.from[i][0]);  // taps go up the axis
      behind = max(behind, element.from[i][taps - 1]);
    }
    low = warp_reduce(first, Smaller());
    low -= low % low_multiple;
    length = 1 - warp_reduce(-behind, Smaller()) - low;
#pragma unroll
    for (int i = 0; i < count; ++i)
#pragma unroll
      for (int t = 0; t < taps; ++t) element.from[i][t] = spaced(element.from[i][t] - low);
  }
};

// Where the elements of a line of y fill accesses, a lane's are one; elsewhere the lanes store single ones side by
// side.
template <typename T, int taps, bool packed>
__global__ void __launch_bounds__(resize_threads, 2)
    resize_picking_kernel(ResizeShape shape, LineTiles tiles, TapTables tables, T* y, const T* __restrict__ x) {
  constexpr int count = results_per_lane<T, taps>, width = vector_length<T>;
  extern __shared__ float shared[];
  float* summed = shared + threadIdx.x / warp_threads * (tiles.pass * tiles.room);
  const LaneTile mine(tiles);
  const int64_t length = shape.axes[2].out * shape.inner[2];
  const bool wide = shape.axes[2].in * shape.inner[2] % width == 0;
  const int stride = packed ? 1 : tiles.across;
  const int64_t first = mine.tile * tiles.across * count + mine.along * (packed ? count : 1);
  ElementReads<count, taps> element(shape, tables.taps[2], first, stride, 1);
  const Span<count, taps> span(element, wide ? width : 1);
  for (int64_t step = mine.first_line; step < mine.end_line; step += tiles.step) {
    const LineRead of_lane = read_of_lane(shape, tables, tiles, step, mine.lane);
    for (int pass = 0; pass < tiles.step; pass += tiles.pass) {
      if (wide)
        sum_lines<width>(summed, tiles, x + span.low, of_lane, pass, tiles.pass, span.length);
      else
        sum_lines<1>(summed, tiles, x + span.low, of_lane, pass, tiles.pass, span.length);
      __syncwarp();
      const int64_t end = min(step + pass + tiles.pass, mine.end_line) - step;
      for (int in_step = pass + mine.beside; in_step < end; in_step += tiles.abreast) {
        const float* line = summed + (in_step - pass) * tiles.room;
        float sum[count] = {};
#pragma unroll
        for (int i = 0; i < count; ++i)
#pragma unroll
          for (int t = 0; t < taps; ++t) sum[i] += element.weight[i][t] * line[element.from[i][t]];
        T* to = y + (step + in_step) * length + first;
        if constexpr (packed) {
          if (first < length) store_packed(to, pack<T>(sum));
        } else {
#pragma unroll
          for (int i = 0; i < count; ++i)
            if (first + int64_t{i} * stride < length) to[i * stride] = narrow<T>(sum[i]);
        }
      }
      __syncwarp();
    }
  }
}

// ---- Launches ----

// Lines of `results` a lane.
LineTiles tiles_of(const ResizeShape& shape, int taps, int results) {
  LineTiles tiles{.across = 1};
  const int64_t length = shape.axes[2].out * shape.inner[2];
  while (tiles.across < warp_threads && tiles.across * results < length) tiles.across *= 2;
  tiles.abreast = warp_threads / tiles.across;
  tiles.second_reads = shape.axes[1].in == 1 ? 1 : taps;
  tiles.reads = tiles.second_reads * (shape.axes[0].in == 1 ? 1 : taps);
  tiles.step = warp_threads / tiles.reads;
  tiles.tiles = divide_up(length, tiles.across * results);
  tiles.lines = shape.outer * shape.inner[0] * shape.inner[1] * shape.axes[0].out * shape.axes[1].out;
  const int64_t steps = divide_up(tiles.lines, tiles.step);
  tiles.lines_per_warp = std::clamp<int64_t>(steps * tiles.tiles / wanted_warps, 1, max_steps) * tiles.step;
  return tiles;
}

// Words that hold, of a line of x, what `results` results in a row read; more than there are where it is far.
int64_t room_of(const ResizeShape& shape, int taps, int64_t results, int access) {
  const ResizedAxis& axis = shape.axes[2];
  const int64_t inner = shape.inner[2], indices = inner == 1 ? results : (results - 1) / inner + 2;
  const double apart = std::ceil(static_cast<double>(indices - 1) * axis.factor / axis.divisor);
  const double read = std::min(apart + taps + 1, static_cast<double>(axis.in));
  const double words = read * static_cast<double>(inner) + 2 * access;
  return words > summed_words ? int64_t{summed_words} + 1 : spaced(static_cast<int>(words)) + 1;
}

template <typename T, int taps>
void launch_resize(const ResizeShape& shape, const TapTables& tables, T* y, const T* x, cudaStream_t stream) {
  constexpr int results = results_per_lane<T, taps>;
  LineTiles tiles = tiles_of(shape, taps, results);
  const int64_t room = room_of(shape, taps, int64_t{tiles.across} * results, vector_length<T>);
  const int64_t warps = tiles.tiles * divide_up(tiles.lines, tiles.lines_per_warp);
  const auto blocks = static_cast<unsigned>(divide_up(warps, resize_warps));
  if (shape.inner[2] % results == 0) {
    resize_reading_kernel<T, taps, results><<<blocks, resize_threads, 0, stream>>>(shape, tiles, tables, y, x);
  } else if (room <= summed_words) {
    tiles.room = static_cast<int>(room);
    tiles.pass = tiles.step;
    while (tiles.pass * room > summed_words) tiles.pass /= 2;
    const size_t bytes = size_t{resize_warps} * tiles.pass * tiles.room * sizeof(float);
    if (shape.axes[2].out * shape.inner[2] % results == 0)
      resize_picking_kernel<T, taps, true><<<blocks, resize_threads, bytes, stream>>>(shape, tiles, tables, y, x);
    else
      resize_picking_kernel<T, taps, false><<<blocks, resize_threads, bytes, stream>>>(shape, tiles, tables, y, x);
  } else {
    resize_reading_kernel<T, taps, 1><<<blocks, resize_threads, 0, stream>>>(shape, tiles, tables, y, x);
  }
}

}  // namespace

cudaError_t resize(const ResizeShape& shape, Scalar type, void* y, const void* x, void* workspace,
                   cudaStream_t stream) {
  return with_f32_math(type, [&]<typename T>(T*) {
    const auto* from = static_cast<const T*>(x);
    auto* to = static_cast<T*>(y);
    if (is_copy(shape)) return copy_elements(shape, to, from, stream);
    if (elements_around(shape) * shape.axes[0].out * shape.axes[1].out * shape.axes[2].out == 0) return cudaSuccess;
    const TapTables tables(shape, workspace);
    if (const cudaError_t error = fill_taps(shape, tables, stream)) return error;
    with_taps(shape.interpolation, [&](auto taps) { launch_resize<T, taps()>(shape, tables, to, from, stream); });
    return cudaGetLastError();
  });
}

}  // namespace plimsoll::cuda
