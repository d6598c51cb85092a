#include "kernels/cuda/conv/depthwise.h"

#include "kernels/cuda/common/packed.cuh"
#include "kernels/cuda/conv/image_tile.cuh"
#include "kernels/cuda/conv/sum_parts.h"
#include "kernels/cuda/conv/unit_tiles.cuh"

// Depthwise conv, conv_dx and conv_dw with a stride of 2, whose taps cost less than their bytes do. Neighbouring
// threads have neighbouring channels, and the columns beside them; x is read once, but for columns that two threads'
// windows share, and the rows between two bands.

namespace plimsoll::cuda {
namespace {

constexpr int stride = DepthwiseWindows::stride, block_channels = DepthwiseWindows::block_channels;
constexpr int windows = DepthwiseWindows::across;

struct Windows {
  ConvolutionSizes sizes;
  DepthwiseWindows plan;
};

// What a thread has of an item: a column of windows of an image.
struct WindowColumn {
  bool works;
  int64_t image;
  int u, first_row, end_row;

  __device__ WindowColumn(const DepthwiseWindows& p, int64_t item, bool has_channels) {
    const auto block = static_cast<unsigned>(item) / static_cast<unsigned>(p.bands);
    const int band = static_cast<int>(static_cast<unsigned>(item) - block * static_cast<unsigned>(p.bands));
    const int64_t column = int64_t{block} * p.column_threads + static_cast<int>(threadIdx.x) / p.channel_threads;
    works = has_channels && column < p.columns;
    image = column / p.image_columns;
    u = p.first[1] + windows * static_cast<int>(column - image * p.image_columns);
    first_row = p.first[0] + band * p.rows;
    end_row = min(first_row + p.rows, p.first[0] + p.count[0]);
  }
};

// Weights of a thread's channels in f32, through shared memory.
template <typename T, int kernel, int length>
__device__ void load_weights(float (&held)[kernel][kernel][length], float* shared, const T* w, int first_channel,
                             int channels) {
  constexpr int taps = kernel * kernel;
  for (int i = static_cast<int>(threadIdx.x); i < taps * block_channels; i += DepthwiseWindows::threads) {
    const int channel = i / taps, tap = i - channel * taps;
    shared[tap * block_channels + channel] =
        first_channel + channel < channels ? widen(w[int64_t{first_channel} * taps + i]) : 0.0f;
  }
  __syncthreads();
  const float* mine = shared + static_cast<int>(threadIdx.x) % (block_channels / length) * length;
#pragma unroll
  for (int y = 0; y < kernel; ++y)
#pragma unroll
    for (int x = 0; x < kernel; ++x)
#pragma unroll
      for (int k = 0; k < length; ++k) held[y][x][k] = mine[(y * kernel + x) * block_channels + k];
}

// Neighbouring pixels of a line, `step` elements apart. Those outside, and all if the line is, are zeros.
template <typename T, int length, int count>
struct Line {
  bool inside[count];

  __device__ Line(int first, int pixels) {
#pragma unroll
    for (int i = 0; i < count; ++i) inside[i] = static_cast<unsigned>(first + i) < static_cast<unsigned>(pixels);
  }
  __device__ void load(Packed<T, length> (&to)[count], const T* from, int step, bool line_inside) const {
#pragma unroll
    for (int i = 0; i < count; ++i)
      to[i] = line_inside && inside[i] ? load_packed<length>(from + i * step) : Packed<T, length>{};
  }
};

// Step y meets the rows of the input that are new for window y. They belong to the windows before, too.
template <typename T, int kernel, int length>
__global__ void __launch_bounds__(DepthwiseWindows::threads, 2)
    windows_kernel(T* __restrict__ out, const T* __restrict__ in, const T* __restrict__ w, const T* __restrict__ bias,
                   const __grid_constant__ Windows g) {
  constexpr int alive = (kernel + stride - 1) / stride, pixels_across = kernel + stride * (windows - 1);
  __shared__ float shared[kernel * kernel * block_channels];
  const ConvolutionSizes& c = g.sizes;
  const DepthwiseWindows& p = g.plan;
  Digits digits{blockIdx.x};
  const int across_thread = static_cast<int>(threadIdx.x) % p.channel_threads;
  const int vector = digits.take(p.vector_blocks) * p.channel_threads + across_thread, channel = vector * length;
  float weights[kernel][kernel][length];
  load_weights<T, kernel, length>(weights, shared, w, channel - across_thread * length, c.groups);
  float added[length] = {};
  if (bias && vector < p.vectors)
#pragma unroll
    for (int k = 0; k < length; ++k) added[k] = widen(bias[channel + k]);
  const int64_t in_line = int64_t{c.x[1]} * c.groups, out_line = int64_t{c.y[1]} * c.groups;
  for (int64_t item = digits.rest; item < p.items; item += p.splits) {
    const WindowColumn at(p, item, vector < p.vectors);
    if (!at.works) continue;
    const int first_x = at.u * stride - c.pad[1];
    int row = at.first_row * stride - c.pad[0];
    const Line<T, length, pixels_across> line(first_x, c.x[1]);
    const T* from = in + (at.image * c.x[0] + row) * in_line + int64_t{first_x} * c.groups + channel;
    T* to = out + (at.image * c.y[0] + at.first_row) * out_line + int64_t{at.u} * c.groups + channel;
    float sums[alive][windows][length];  // of windows y - i
#pragma unroll
    for (auto& of_row : sums)
#pragma unroll
      for (auto& of_window : of_row)
#pragma unroll
        for (int k = 0; k < length; ++k) of_window[k] = added[k];
    // The next rows are loaded while these are multiplied.
    Packed<T, length> pixels[stride][pixels_across], next[stride][pixels_across];
    const auto load_rows = [&](bool wanted) {
#pragma unroll
      for (auto& of_row : next) {
        line.load(of_row, from, c.groups, wanted && static_cast<unsigned>(row) < static_cast<unsigned>(c.x[0]));
        from += in_line;
        ++row;
      }
    };
    load_rows(true);
    for (int y = at.first_row; y < at.end_row + alive - 1; ++y) {
#pragma unroll
      for (int down = 0; down < stride; ++down)
#pragma unroll
        for (int x = 0; x < pixels_across; ++x) pixels[down][x] = next[down][x];
      load_rows(y + 1 < at.end_row + alive - 1);
#pragma unroll
      for (int down = 0; down < stride; ++down)
#pragma unroll
        for (int x = 0; x < pixels_across; ++x)
#pragma unroll
          for (int k = 0; k < length; ++k) {
            const float pixel = pixels[down][x][k];
#pragma unroll
            for (int window = 0; window < windows; ++window) {
              const int across = x - window * stride;
              if (across < 0 || across >= kernel) continue;
#pragma unroll
              for (int i = 0; i < alive; ++i)
                if (down + i * stride < kernel)
                  sums[i][window][k] += pixel * weights[(down + i * stride) % kernel][across % kernel][k];
            }
          }
      if (y >= at.first_row + alive - 1) {
#pragma unroll
        for (int window = 0; window < windows; ++window)
          if (at.u + window < c.y[1]) store_packed(to + window * c.groups, pack<T, length>(sums[alive - 1][window]));
        to += out_line;
      }
#pragma unroll
      for (int i = alive - 1; i >= 0; --i)
#pragma unroll
        for (int window = 0; window < windows; ++window)
#pragma unroll
          for (int k = 0; k < length; ++k)
            sums[i][window][k] = i > 0 ? sums[(i + alive - 1) % alive][window][k] : added[k];
    }
  }
}

// Pixels 2 v - pad + f, f 0 and 1, are sums over j of tap f + 2 j times dy's pixel v - j, in both dimensions.
template <typename T, int kernel, int length>
__global__ void __launch_bounds__(DepthwiseWindows::threads, 2)
    windows_dx_kernel(T* __restrict__ dx, const T* __restrict__ dy, const T* __restrict__ w,
                      const __grid_constant__ Windows g) {
  constexpr int reach = (kernel + stride - 1) / stride, pixels_across = reach + windows - 1;
  __shared__ float shared[kernel * kernel * block_channels];
  const ConvolutionSizes& c = g.sizes;
  const DepthwiseWindows& p = g.plan;
  Digits digits{blockIdx.x};
  const int across_thread = static_cast<int>(threadIdx.x) % p.channel_threads;
  const int vector = digits.take(p.vector_blocks) * p.channel_threads + across_thread, channel = vector * length;
  float weights[kernel][kernel][length];
  load_weights<T, kernel, length>(weights, shared, w, channel - across_thread * length, c.groups);
  const int64_t in_line = int64_t{c.y[1]} * c.groups, out_line = int64_t{c.x[1]} * c.groups;
  for (int64_t item = digits.rest; item < p.items; item += p.splits) {
    const WindowColumn at(p, item, vector < p.vectors);
    if (!at.works) continue;
    const int first_in = at.u - (reach - 1), first_x = at.u * stride - c.pad[1];
    const Line<T, length, pixels_across> line(first_in, c.y[1]);
    int v = at.first_row - (reach - 1), y = at.first_row * stride - c.pad[0];
    const T* from = dy + (at.image * c.y[0] + v) * in_line + int64_t{first_in} * c.groups + channel;
    T* to = dx + (at.image * c.x[0] + y) * out_line + int64_t{first_x} * c.groups + channel;
    Packed<T, length> rows[reach][pixels_across];  // v - i
    Packed<T, length> next[pixels_across];         // is loaded while those are multiplied
    const auto load_row = [&](Packed<T, length>(&row)[pixels_across]) {
      line.load(row, from, c.groups, static_cast<unsigned>(v) < static_cast<unsigned>(min(c.y[0], at.end_row)));
      from += in_line;
      ++v;
    };
#pragma unroll
    for (int i = reach - 1; i > 0; --i) load_row(rows[i]);
    load_row(next);
    while (v <= at.end_row) {
#pragma unroll
      for (int x = 0; x < pixels_across; ++x) rows[0][x] = next[x];
      load_row(next);
#pragma unroll
      for (int f = 0; f < stride; ++f) {
        float sums[windows][stride][length] = {};
#pragma unroll
        for (int i = 0; i < reach; ++i) {
          if (f + i * stride >= kernel) continue;
#pragma unroll
          for (int x = 0; x < pixels_across; ++x)
#pragma unroll
            for (int k = 0; k < length; ++k) {
              const float pixel = rows[i][x][k];
#pragma unroll
              for (int window = 0; window < windows; ++window) {
                const int j = reach - 1 + window - x;
                if (j < 0 || j >= reach) continue;
#pragma unroll
                for (int e = 0; e < stride; ++e)
                  if (e + j * stride < kernel)
                    sums[window][e][k] += pixel * weights[(f + i * stride) % kernel][(e + j * stride) % kernel][k];
              }
            }
        }
        if (static_cast<unsigned>(y) < static_cast<unsigned>(c.x[0]))
#pragma unroll
          for (int i = 0; i < windows * stride; ++i)
            if (static_cast<unsigned>(first_x + i) < static_cast<unsigned>(c.x[1]))
              store_packed(to + i * c.groups, pack<T, length>(sums[i / stride][i % stride]));
        to += out_line;
        ++y;
      }
#pragma unroll
      for (int i = reach - 1; i > 0; --i)
#pragma unroll
        for (int x = 0; x < pixels_across; ++x) rows[i][x] = rows[i - 1][x];
    }
  }
}

template <typename T, int kernel, int length>
__global__ void __launch_bounds__(DepthwiseWindows::threads, 2)
    windows_dw_kernel(float* __restrict__ partial, const T* __restrict__ x, const T* __restrict__ dy,
                      const __grid_constant__ Windows g) {
  constexpr int alive = (kernel + stride - 1) / stride, pixels_across = kernel + stride * (windows - 1);
  constexpr int taps = kernel * kernel, warps = DepthwiseWindows::threads / warp_threads;
  __shared__ float shared[warps][taps][block_channels];
  const ConvolutionSizes& c = g.sizes;
  const DepthwiseWindows& p = g.plan;
  Digits digits{blockIdx.x};
  const int across_thread = static_cast<int>(threadIdx.x) % p.channel_threads;
  const int vector = digits.take(p.vector_blocks) * p.channel_threads + across_thread, channel = vector * length;
  const int64_t in_line = int64_t{c.x[1]} * c.groups, out_line = int64_t{c.y[1]} * c.groups;
  float sums[kernel][kernel][length] = {};
  for (int64_t item = digits.rest; item < p.items; item += p.splits) {
    const WindowColumn at(p, item, vector < p.vectors);
    if (!at.works) continue;
    const int first_x = at.u * stride - c.pad[1];
    int row = at.first_row * stride - c.pad[0];
    const Line<T, length, pixels_across> line(first_x, c.x[1]);
    const Line<T, length, windows> dy_line(at.u, c.y[1]);
    const T* from = x + (at.image * c.x[0] + row) * in_line + int64_t{first_x} * c.groups + channel;
    const T* of_dy = dy + (at.image * c.y[0] + at.first_row) * out_line + int64_t{at.u} * c.groups + channel;
    Packed<T, length> given[alive][windows] = {};  // of row y - i
    for (int y = at.first_row; y < at.end_row + alive - 1; ++y) {
      dy_line.load(given[0], of_dy, c.groups, y < at.end_row);
      of_dy += out_line;
      Packed<T, length> pixels[stride][pixels_across];
#pragma unroll
      for (auto& of_row : pixels) {
        line.load(of_row, from, c.groups, static_cast<unsigned>(row) < static_cast<unsigned>(c.x[0]));
        from += in_line;
        ++row;
      }
#pragma unroll
      for (int down = 0; down < stride; ++down)
#pragma unroll
        for (int at_x = 0; at_x < pixels_across; ++at_x)
#pragma unroll
          for (int k = 0; k < length; ++k) {
            const float pixel = pixels[down][at_x][k];
#pragma unroll
            for (int window = 0; window < windows; ++window) {
              const int across = at_x - window * stride;
              if (across < 0 || across >= kernel) continue;
#pragma unroll
              for (int i = 0; i < alive; ++i)
                if (down + i * stride < kernel)
                  sums[(down + i * stride) % kernel][across % kernel][k] += pixel * given[i][window][k];
            }
          }
#pragma unroll
      for (int i = alive - 1; i > 0; --i)
#pragma unroll
        for (int window = 0; window < windows; ++window) given[i][window] = given[i - 1][window];
    }
  }
  // Lanes of the same channels add up, then warps in their order.
  const int warp = static_cast<int>(threadIdx.x) / warp_threads, lane = static_cast<int>(threadIdx.x) % warp_threads;
#pragma unroll
  for (int tap = 0; tap < taps; ++tap)
#pragma unroll
    for (int k = 0; k < length; ++k) {
      float total = sums[tap / kernel][tap % kernel][k];
#pragma unroll
      for (int distance = block_channels / length; distance < warp_threads; distance *= 2)
        total += __shfl_xor_sync(whole_warp, total, distance);
      if (lane < block_channels / length) shared[warp][tap][lane * length + k] = total;
    }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < taps * block_channels; i += DepthwiseWindows::threads) {
    const int of_block = i / taps, tap = i - of_block * taps, to_channel = channel - across_thread * length + of_block;
    if (to_channel >= c.groups) continue;
    float total = 0;
#pragma unroll
    for (int of_warp = 0; of_warp < warps; ++of_warp) total += shared[of_warp][tap][of_block];
    partial[(int64_t{digits.rest} * c.groups + to_channel) * taps + tap] = total;
  }
}

template <typename Visit>
cudaError_t with_windows(int kernel, Visit visit) {
  switch (kernel) {
    case 3:
      return visit(std::integral_constant<int, 3>(), std::integral_constant<int, DepthwiseWindows::vector_of(3)>());
    case 5:
      return visit(std::integral_constant<int, 5>(), std::integral_constant<int, DepthwiseWindows::vector_of(5)>());
    default: return cudaErrorInvalidValue;
  }
}

cudaError_t launch_windows(Scalar type, void* y, const void* x, const void* w, const void* bias, const Windows& g,
                           cudaStream_t stream) {
  return with_16_bits(type, [&]<typename T>(T*) {
    return with_windows(g.sizes.kernel[0], [&](auto size, auto length) {
      const auto kernel = windows_kernel<T, decltype(size)::value, decltype(length)::value>;
      kernel<<<static_cast<unsigned>(g.plan.blocks()), DepthwiseWindows::threads, 0, stream>>>(
          static_cast<T*>(y), static_cast<const T*>(x), static_cast<const T*>(w), static_cast<const T*>(bias), g);
      return cudaGetLastError();
    });
  });
}

cudaError_t launch_windows_dx(Scalar type, void* dx, const void* dy, const void* w, const Windows& g,
                              cudaStream_t stream) {
  return with_16_bits(type, [&]<typename T>(T*) {
    return with_windows(g.sizes.kernel[0], [&](auto size, auto length) {
      const auto kernel = windows_dx_kernel<T, decltype(size)::value, decltype(length)::value>;
      kernel<<<static_cast<unsigned>(g.plan.blocks()), DepthwiseWindows::threads, 0, stream>>>(
          static_cast<T*>(dx), static_cast<const T*>(dy), static_cast<const T*>(w), g);
      return cudaGetLastError();
    });
  });
}

cudaError_t launch_windows_dw(Scalar type, Scalar to, void* dw, const void* x, const void* dy, const Windows& g,
                              void* workspace, cudaStream_t stream) {
  auto* partial = static_cast<float*>(workspace);
  return with_16_bits(type, [&]<typename T>(T*) {
    const cudaError_t error = with_windows(g.sizes.kernel[0], [&](auto size, auto length) {
      const auto kernel = windows_dw_kernel<T, decltype(size)::value, decltype(length)::value>;
      kernel<<<static_cast<unsigned>(g.plan.blocks()), DepthwiseWindows::threads, 0, stream>>>(
          partial, static_cast<const T*>(x), static_cast<const T*>(dy), g);
      return cudaGetLastError();
    });
    if (error != cudaSuccess) return error;
    return sum_parts(to, dw, partial, g.plan.splits, g.sizes.weights(), stream);
  });
}

}  // namespace

cudaError_t depthwise_windows(Scalar type, void* y, const void* x, const void* w, const void* bias,
                              const ConvolutionSizes& sizes, cudaStream_t stream) {
  return launch_windows(type, y, x, w, bias, {sizes, DepthwiseWindows(sizes, false)}, stream);
}

cudaError_t depthwise_windows_dx(Scalar type, void* dx, const void* dy, const void* w, const ConvolutionSizes& sizes,
                                 cudaStream_t stream) {
  return launch_windows_dx(type, dx, dy, w, {sizes, DepthwiseWindows(sizes, true)}, stream);
}

cudaError_t depthwise_windows_dw(Scalar type, Scalar to, void* dw, const void* x, const void* dy,
                                 const ConvolutionSizes& sizes, void* workspace, cudaStream_t stream) {
  return launch_windows_dw(type, to, dw, x, dy, {sizes, DepthwiseWeightWindows(sizes)}, workspace, stream);
}

}  // namespace plimsoll::cuda
