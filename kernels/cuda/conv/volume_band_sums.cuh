#pragma once

// Depthwise convolutions over volumes on the matrix units: what a warp multiplies, and the sums that it has meanwhile.

#include "kernels/cuda/conv/unit_tiles.cuh"
#include "kernels/cuda/conv/volume_bands.cuh"

namespace plimsoll::cuda {

// Where a thread reads pixels of a stage and writes results of one: of two strips, 8 rows of a product apart.
struct BandPlaces {
  uint32_t from[2], to[2], writes[2];

  // The strips of the first or the second half of a line.
  __device__ BandPlaces(const VolumeBands& p, int half) {
    const int lane = static_cast<int>(threadIdx.x) % warp_threads;
    const int in_step = VolumeBands::strip / p.stride, line_step = p.stride == 1 ? p.products() : 1;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = lane / 4 + 8 * i, line = (row >> p.log_places) * line_step;
      const int of_line = (row & ((1 << p.log_places) - 1)) + half * VolumeBands::product_strips;
      const int column = of_line * VolumeBands::strip + lane % 4 + p.first_out[1];
      from[i] =
          p.skipped_bytes() + line * p.pitch + (min(of_line, p.strips - 1) * in_step + lane % 4) * p.pixel_bytes();
      to[i] = line * p.stride * p.result_pitch + column * p.pixel_bytes();
      writes[i] = of_line < p.strips && column >= 0 && column < p.width;
    }
  }
};

// Weights of a thread for a pair of channels: one of each row of taps. In a right operand it is of the first or the
// second channel, of the first four pixels or of the four behind them, and zeros are beside it. With strides there are
// four pixels alone, and taps of a plane come as they lie in memory.
class BandWeights {
 public:
  static constexpr int taps = VolumeBands::taps;

  template <int stride, typename T>
  __device__ void load(const T* w, int first_channel, bool gradient, int channels) {
    constexpr int volume = taps * taps * taps;
    const int lane = static_cast<int>(threadIdx.x) % warp_threads, pixel = lane % 4, result = lane / 8;
    const int tap = stride == 1 ? (pixel - result) & 3 : result + 2 - 2 * pixel;
    const int channel = first_channel + lane / 4 % 2;
    const bool is_there = channel < channels && tap >= 0 && tap < taps;
    const auto* weights = reinterpret_cast<const uint16_t*>(w) + int64_t{channel} * volume;
#pragma unroll
    for (uint32_t& word : words_) word = 0;
#pragma unroll
    for (int row = 0; row < rows; ++row) {
      const int at = row * taps + tap,
                turned = stride == 1 ? volume - 1 - at : at + (taps - 1 - 2 * (row / taps)) * rows;
      const uint32_t weight = is_there ? __ldg(weights + (gradient ? turned : at)) : 0;
      words_[row / 2] |= weight << 16 * (row % 2);
    }
  }
  // `places`: of the thread's bytes in a right operand.
  __device__ void row(uint32_t (&operand)[2], int row, const uint32_t (&places)[2][2]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i)
      asm volatile("prmt.b32 %0, %1, 0, %2;" : "=r"(operand[i]) : "r"(words_[row / 2]), "r"(places[row % 2][i]));
  }
  template <int stride>
  static __device__ void find_places(uint32_t (&places)[2][2]) {
    constexpr uint32_t none = 0x4444;
    const int lane = static_cast<int>(threadIdx.x) % warp_threads;
    const bool is_second = lane / 4 % 2 != 0, is_far = stride == 1 && lane % 4 < lane / 8;
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
      const uint32_t bytes = half == 0 ? 0x10 : 0x32, place = is_second ? bytes << 8 | 0x44 : 0x4400 | bytes;
      places[half][0] = is_far ? none : place;
      places[half][1] = is_far ? place : none;
    }
  }

 private:
  static constexpr int rows = taps * taps;
  uint32_t words_[(rows + 1) / 2];
};

template <typename T>
__device__ void multiply_pixels(float (&sum)[4], const uint32_t (&pixels)[4], const uint32_t (&weights)[2]) {
  const LeftFragment left{{pixels[0], pixels[1], pixels[2], pixels[3]}};
  const RightFragments right{{weights[0], weights[1], 0, 0}};
  multiply_add<T>(sum, left, right, 0);
}

template <typename T>
__device__ void multiply_near_pixels(float (&sum)[4], const uint32_t (&pixels)[2], const uint32_t (&weights)[2]) {
  const LeftFragment left{{pixels[0], pixels[1], 0, 0}};
  const RightFragments right{{weights[0], 0, 0, 0}};
  multiply_add_half<T>(sum, left, right, 0);
}

// Results of a warp's pairs of channels, in products that have every so many-th line each.
template <typename T, int pairs, int products>
struct BandSums {
  static constexpr int taps = VolumeBands::taps;
  static constexpr int lines = products + taps - 1;
  using Pixels = uint32_t[4];

  float done[pairs][products][4] = {}, next[pairs][products][4] = {};  // what this plane completes, and what is behind

  // Multiplies lines of a plane by all taps. Pixels of a line are on their way while those of the one before are
  // multiplied. Calls load with a pair and a line, and store with what is complete of a pair.
  template <typename Load, typename Store>
  __device__ void multiply(const BandWeights (&weights)[pairs], const uint32_t (&places)[2][2], uint32_t biases,
                           Load load, Store store) {
    Pixels pixels[2];
    load(pixels[0], 0, 0);
#pragma unroll
    for (int pair = 0; pair < pairs; ++pair) {
      float begun[products][4];
      begin(begun, pair, biases);
#pragma unroll
      for (int line = 0; line < lines; ++line) {
        constexpr int all = pairs * lines;
        const int step = pair * lines + line;
        if (step + 1 < all) load(pixels[(step + 1) % 2], (step + 1) / lines, (step + 1) % lines);
#pragma unroll
        for (int deep = 0; deep < taps; ++deep)
#pragma unroll
          for (int down = 0; down < taps; ++down) {
            const int product = line - down;
            if (product < 0 || product >= products) continue;
            uint32_t of_taps[2];
            weights[pair].row(of_taps, deep * taps + down, places);
            auto& sums = deep == 0 ? begun[product] : deep == 1 ? next[pair][product] : done[pair][product];
            multiply_pixels<T>(sums, pixels[step % 2], of_taps);
          }
      }
      finish(begun, pair, store);
    }
  }
  // The same of a stride of 2: a line of dy is of the line of dx that has the same place and of those beside it. The
  // products of a half are of the even lines and of the odd ones.
  template <int halves, typename Load, typename Store>
  __device__ void multiply_strided(const BandWeights (&weights)[pairs], const uint32_t (&places)[2][2], uint32_t biases,
                                   Load load, Store store) {
    constexpr int of_pair = 2 * halves;
    uint32_t pixels[2][2];
    load(pixels[0], 0, 0, 0);
#pragma unroll
    for (int pair = 0; pair < pairs; ++pair) {
      float begun[products][4];
      begin(begun, pair, biases);
#pragma unroll
      for (int line_of_half = 0; line_of_half < of_pair; ++line_of_half) {
        const int half = line_of_half / 2, line = line_of_half % 2, step = pair * of_pair + line_of_half;
        if (const int after = step + 1; after < pairs * of_pair)
          load(pixels[after % 2], after / of_pair, after % of_pair / 2, after % 2);
#pragma unroll
        for (int deep = 0; deep < taps; ++deep)
#pragma unroll
          for (int down = line == 0 ? 2 : 0; down <= (line == 0 ? 2 : 1); ++down) {
            const int product = 2 * half + down % 2;
            uint32_t of_taps[2];
            weights[pair].row(of_taps, deep * taps + down, places);
            auto& sums = deep == 0 ? begun[product] : deep == 1 ? next[pair][product] : done[pair][product];
            multiply_near_pixels<T>(sums, pixels[step % 2], of_taps);
          }
      }
      finish(begun, pair, store);
    }
  }
  // The same of a plane outside the volume.
  template <typename Store>
  __device__ void pass_zeros(uint32_t biases, Store store) {
#pragma unroll
    for (int pair = 0; pair < pairs; ++pair) {
      float begun[products][4];
      begin(begun, pair, biases);
      finish(begun, pair, store);
    }
  }

 private:
  __device__ void begin(float (&begun)[products][4], int pair, uint32_t biases) {
    float both[2];
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(both[0]), "=f"(both[1]) : "r"(biases + pair * 8) : "memory");
#pragma unroll
    for (auto& sum : begun)
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[i] = both[i % 2];
  }
  template <typename Store>
  __device__ void finish(const float (&begun)[products][4], int pair, Store store) {
    uint32_t made[products][2];
#pragma unroll
    for (int product = 0; product < products; ++product) {
      float(&sum)[4] = done[pair][product];
      made[product][0] = packed_pair<T>(sum[0], sum[1]);
      made[product][1] = packed_pair<T>(sum[2], sum[3]);
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[i] = next[pair][product][i], next[pair][product][i] = begun[product][i];
    }
    store(made, pair);
  }
};

}  // namespace plimsoll::cuda
