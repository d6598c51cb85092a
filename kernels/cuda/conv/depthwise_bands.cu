#include "kernels/cuda/conv/depthwise.h"

#include "kernels/cuda/conv/depthwise_planes.cuh"
#include "kernels/cuda/conv/unit_tiles.cuh"

// Depthwise conv and conv_dx without strides on the matrix units. A product serves one channel: its left operand has 16
// neighbours of up to 8 spots of two rows of pixels, its right one a channel's weights of a row of the kernel as a band
// matrix, which makes of them 8 neighbours of two rows of results. 7 of 16 terms count for 7 x 7 taps. x and y move
// once, but for the rims of tiles.

namespace plimsoll::cuda {
namespace {

// sum = left * right + added
template <typename T>
__device__ void multiply(float (&sum)[4], const LeftFragment& left, const RightFragments& right,
                         const float (&added)[4]) {
  const uint32_t *a = left.at, *b = right.at;
#define PLIMSOLL_PRODUCT(type)                                                                                   \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                                            \
               ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"                        \
               : "=f"(sum[0]), "=f"(sum[1]), "=f"(sum[2]), "=f"(sum[3])                                          \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(added[0]), "f"(added[1]), \
                 "f"(added[2]), "f"(added[3]))
  if constexpr (std::is_same_v<T, bf16>)
    PLIMSOLL_PRODUCT("bf16");
  else
    PLIMSOLL_PRODUCT("f16");
#undef PLIMSOLL_PRODUCT
}

template <typename T>
__device__ uint32_t bits_of(const T* from) {
  uint16_t bits;
  memcpy(&bits, from, sizeof bits);
  return bits;
}

// Words of the weights of taps d and d + 1 of each row of the kernel, d from -1 on; taps beyond the kernel are zeros,
// and so are all words behind the last plane's.
template <typename T, int kernel, bool gradient>
__device__ void fill_bands(uint32_t* bands, const T* w, const DepthwiseBands& p, int first_channel, int channels) {
  for (int i = static_cast<int>(threadIdx.x); i < (p.slots + 1) * kernel * (kernel + 1);
       i += DepthwisePlanes::threads) {
    const int d = i % (kernel + 1) - 1, of_slot = i / (kernel + 1), down = of_slot % kernel, slot = of_slot / kernel;
    const int channel = slot < p.slots ? channel_of_slot(slot, p.block_units) : channels;
    const auto weight = [&](int across) -> uint32_t {
      if (channel >= channels || across < 0 || across >= kernel) return 0;
      const int tap = down * kernel + across;
      return bits_of(w + int64_t{first_channel + channel} * (kernel * kernel) +
                     (gradient ? kernel * kernel - 1 - tap : tap));
    };
    bands[i] = weight(d) | weight(d + 1) << 16;
  }
}

// A warp has a plane at a time. Left operands of rows r and r + 1 stay in registers while pairs of rows of results are
// made of them; a pair is written over its first two rows, which nobody reads again. Rows behind the plane are read in
// vain.
template <typename T, int kernel>
__device__ void convolve_plane(const uint4* from, uint32_t* to, const uint32_t* near, const uint32_t* far, float bias,
                               int row_units, int pairs) {
  constexpr int held = kernel + 1;
  RightFragments weights[kernel];
#pragma unroll
  for (int down = 0; down < kernel; ++down) weights[down] = {{near[down * held], far[down * held], 0, 0}};
  LeftFragment pixels[held];  // of rows r and r + 1 at r % held
  // Between two operands of even rows: the second row of one and the first of the other.
  const auto join = [](const LeftFragment& above, const LeftFragment& below) {
    return LeftFragment{{above.at[1], below.at[0], above.at[3], below.at[2]}};
  };
#pragma unroll
  for (int row = 0; row < kernel; row += 2, from += 2 * row_units) load_matrices(pixels[row].at, from);
#pragma unroll
  for (int row = 1; row < kernel; row += 2) pixels[row] = join(pixels[row - 1], pixels[row + 1]);
  const float biases[4] = {bias, bias, bias, bias}, zeros[4] = {};
  for (int first_pair = 0; first_pair < pairs; first_pair += held / 2) {
#pragma unroll
    for (int i = 0; i < held / 2; ++i) {
      if (first_pair + i >= pairs) break;
      float sums[2][4];
      multiply<T>(sums[0], pixels[2 * i], weights[0], biases);
      multiply<T>(sums[1], pixels[2 * i + 1], weights[1], zeros);
      load_matrices(pixels[2 * i].at, from);
      from += 2 * row_units;
#pragma unroll
      for (int down = 2; down < kernel; ++down)
        multiply_add<T>(sums[down % 2], pixels[(2 * i + down) % held], weights[down], 0);
      pixels[(2 * i + kernel) % held] = join(pixels[(2 * i + kernel - 1) % held], pixels[2 * i]);
      to[0] = packed_pair<T>(sums[0][0] + sums[1][0], sums[0][1] + sums[1][1]);
      to[4 * row_units] = packed_pair<T>(sums[0][2] + sums[1][2], sums[0][3] + sums[1][3]);
      to += 8 * row_units;
    }
  }
}

template <typename T>
__device__ void write_planes(T* out, const PlaneRow& from, const DepthwiseBands& p, const PlanesPlace& place,
                             const PlaneColumns& c, int64_t batch, int first_channel, int units, int64_t channels) {
  const int unit = static_cast<int>(threadIdx.x) % 4, image = place.image + c.image, x = place.column + c.column;
  const bool inside = image < batch && c.column < p.width && x < p.out[1] && unit < units;
  const int rows = min(p.rows, p.out[0] - place.row);
  const int64_t line = p.out[1] * channels, step = line * c.row_step;
  T* to = out + (int64_t{image} * p.out[0] + place.row + c.first_row) * line + x * channels + first_channel +
          unit * unit_channels;
  const uint4* at = from.at + c.first_row * from.step + c.image * (p.period / 8) + c.column / 8;
  const int at_step = c.row_step * from.step;
#pragma unroll 4
  for (int row = c.first_row; row < rows; row += c.row_step) {
    uint32_t words[4];
    load_matrices_transposed(words, at);
    if (inside) __stwb(reinterpret_cast<uint4*>(to), uint4{words[0], words[1], words[2], words[3]});
    at += at_step;
    to += step;
  }
}

template <typename T, int kernel, bool gradient>
__global__ void __launch_bounds__(DepthwisePlanes::threads, 3)
    depthwise_bands_kernel(T* __restrict__ out, const T* __restrict__ in, const T* __restrict__ w,
                           const T* __restrict__ bias, int64_t batch, const __grid_constant__ DepthwiseBands p) {
  extern __shared__ uint4 shared[];
  constexpr int slot_words = kernel * (kernel + 1);
  Digits digits{blockIdx.x};
  const int first_unit = digits.take(p.unit_blocks) * p.block_units, split = static_cast<int>(digits.rest);
  const int units = min(p.block_units, p.units - first_unit), first_channel = first_unit * unit_channels;
  const int64_t channels = int64_t{p.units} * unit_channels;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / warp_threads, lane = thread % warp_threads;
  uint4* nowhere = shared + p.slots * p.plane_units;
  auto* bands = reinterpret_cast<uint32_t*>(nowhere + 1);
  auto* biases = reinterpret_cast<float*>(bands + (p.slots + 1) * slot_words);
  fill_bands<T, kernel, gradient>(bands, w, p, first_channel, units * unit_channels);
  for (int slot = thread; slot < p.slots; slot += DepthwisePlanes::threads) {
    const int channel = channel_of_slot(slot, p.block_units);
    biases[slot] = bias && channel < units * unit_channels ? widen(bias[first_channel + channel]) : 0.0f;
  }
  // What the last spot of a plane's last row reads behind it times zeros must be numbers.
  const int used = p.in_rows * p.row_units;
  for (int i = thread; i < p.slots * 2; i += DepthwisePlanes::threads)
    if (used + i % 2 < p.plane_units) shared[i / 2 * p.plane_units + used + i % 2] = uint4{0, 0, 0, 0};

  const PlaneRow to(shared, p.plane_units, p.row_units, p.block_units, nowhere);
  const PlaneColumns in_columns(p.row_units, p.period / 8), out_columns(p.spots(), p.image_spots);
  // Lane 8 m + i gives the address of spot i's row of matrix m: of row r or r + 1, columns 0 to 7 or 8 to 15. Spots
  // that are not there repeat the first.
  const auto unit_of_spot = [&](int spot) {
    const int part = spot / p.spots(), of_part = spot - part * p.spots(), image = of_part / p.image_spots;
    const int unit = image * (p.period / 8) + of_part - image * p.image_spots;
    return part < p.parts ? part * p.part_rows * p.row_units + unit : 0;
  };
  const int from_at = unit_of_spot(lane % 8) + lane / 16 + lane / 8 % 2 * p.row_units;
  const int to_at = unit_of_spot(lane / 4) * 4 + lane % 4;
  // Rows of a right operand are columns of pixels, its columns those of results: taps of the distance.
  const int near = 2 * (lane % 4) - lane / 4, far = near + 8;
  const bool has_near = near >= -1 && near < kernel, has_far = far < kernel;
  for (int item = split; item < p.items; item += static_cast<int>(p.splits)) {
    const PlanesPlace place(p, item);
    const PlaneSource source{place.image,
                             place.row + p.first[0],
                             place.column + p.first[1],
                             {p.in[0], p.in[1]},
                             p.images,
                             static_cast<int>(batch),
                             p.period,
                             first_channel,
                             units,
                             channels};
    fill_planes(to, in, source, in_columns, p.in_rows);
    __syncthreads();
    for (int slot = warp; slot < p.slots; slot += DepthwisePlanes::warps) {
      uint4* plane = shared + slot * p.plane_units;
      const uint32_t *of_slot = bands + slot * slot_words + 1, *zeros = bands + p.slots * slot_words;
      convolve_plane<T, kernel>(plane + from_at, reinterpret_cast<uint32_t*>(plane) + to_at,
                                has_near ? of_slot + near : zeros, has_far ? of_slot + far : zeros, biases[slot],
                                p.row_units, p.part_rows / 2);
    }
    __syncthreads();
    write_planes(out, to, p, place, out_columns, batch, first_channel, units, channels);
    __syncthreads();
  }
}

template <bool gradient>
cudaError_t launch(Scalar type, void* out, const void* in, const void* w, const void* bias, const ConvolutionSizes& c,
                   const DepthwiseBands& p, cudaStream_t stream) {
  if (p.blocks() == 0) return cudaSuccess;
  const auto bytes = static_cast<size_t>(p.shared_bytes(c));
  return with_16_bits(type, [&]<typename T>(T*) {
    return with_kernel_size(c.kernel[0], [&](auto size) {
      const auto kernel = depthwise_bands_kernel<T, decltype(size)::value, gradient>;
      if (const cudaError_t error = allow_shared(kernel, bytes)) return error;
      kernel<<<static_cast<unsigned>(p.blocks()), DepthwisePlanes::threads, bytes, stream>>>(
          static_cast<T*>(out), static_cast<const T*>(in), static_cast<const T*>(w), static_cast<const T*>(bias),
          c.batch, p);
      return cudaGetLastError();
    });
  });
}

}  // namespace

cudaError_t depthwise_bands(Scalar type, void* y, const void* x, const void* w, const void* bias,
                            const ConvolutionSizes& sizes, cudaStream_t stream) {
  return launch<false>(type, y, x, w, bias, sizes, DepthwiseBands(sizes, false), stream);
}

cudaError_t depthwise_bands_dx(Scalar type, void* dx, const void* dy, const void* w, const ConvolutionSizes& sizes,
                               cudaStream_t stream) {
  return launch<true>(type, dx, dy, w, nullptr, sizes, DepthwiseBands(sizes, true), stream);
}

}  // namespace plimsoll::cuda
