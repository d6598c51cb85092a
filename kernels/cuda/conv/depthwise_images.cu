#include "kernels/cuda/conv/depthwise_images.cuh"

#include "kernels/cuda/conv/depthwise.h"

// Depthwise conv and conv_dx of whole small images on the matrix units: a product serves two channels of 8 images. Its
// right operand has two neighbouring rows of pixels of each, its left one the weights of 8 results of a row with these,
// those of one channel being zeros for the other, which a sparse operand leaves out (depthwise_sparse.cuh). x and y
// move once.

namespace plimsoll::cuda {
namespace {

using Plan = DepthwiseImages;

struct ImageMemory {
  uint8_t *pixels, *weights;
  Barrier *full, *made;

  __device__ ImageMemory(void* shared, const Plan& p) {
    pixels = bordered(shared);
    full = reinterpret_cast<Barrier*>(pixels + p.slots * Plan::slot_bytes);
    made = full + p.slots;
    weights = reinterpret_cast<uint8_t*>(made + p.slots);
  }
};

// By one thread: asks for images, and has results stored in their place.
class ImageCopies {
 public:
  __device__ ImageCopies(const ImageMemory& memory, const CUtensorMap& in, const CUtensorMap& out,
                         const ImageShare& share, const Plan& p)
      : memory_(memory), in_(in), out_(out), share_(share), p_(p) {}

  // Few images, before which weights are asked for: those behind many would come late.
  __device__ void begin() {
    constexpr int few = Plan::slot_images * 3 / 2;
    while (loaded_ < filled() && share_.end_of(loaded_) - share_.first <= few) load(loaded_);
  }
  __device__ void go_on() {
    while (loaded_ < filled()) load(loaded_);
    RingPlace at;
    for (int number = 0; number < share_.slots; ++number) {
      wait_at(memory_.made + at.stage, at.parity);
      for (int i = 0; i < share_.images_of(number); ++i)
        store_box(place(at.stage, i), out_, share_.channel, 0, 0, share_.first_of(number) + i);
      if (loaded_ < share_.slots) {
        wait_for_stored_boxes();
        load(at.stage);
      }
      at.advance(p_.slots);
    }
    wait_for_stored_boxes();
  }

 private:
  __device__ int filled() const { return min(share_.slots, p_.slots); }
  __device__ uint8_t* place(int slot, int i) const {
    return memory_.pixels + slot * Plan::slot_bytes + i * Plan::pitch * Plan::pixel_bytes;
  }
  __device__ void load(int slot) {
    const int images = share_.images_of(loaded_), first = share_.first_of(loaded_);
    arrive_with_copies(memory_.full + slot, images * Plan::image_bytes);
    for (int i = 0; i < images; ++i)
      copy_box(place(slot, i), in_, share_.channel, 0, 0, first + i, memory_.full + slot);
    ++loaded_;
  }

  int loaded_ = 0;  // slots that were asked for
  const ImageMemory& memory_;
  const CUtensorMap &in_, &out_;
  const ImageShare& share_;
  const Plan& p_;
};

// A row of taps as words of two neighbours, of which the first begins 7 columns before the result's own: zeros stand
// where no tap is. A thread has rows of its own, and asks for all weights of one at once.
template <typename T>
__device__ void make_weight_rows(const ImageMemory& memory, const T* w, int first_channel, const Plan& p) {
  constexpr int reach = Plan::side - 1, elements = Plan::row_elements, words = elements / 2;
  const int rows = min(Plan::block_channels, p.channels - first_channel) * p.tap_rows;
  const int rows_above = (p.tap_rows - p.kernel[0]) / 2, first_tap = p.pad[1] - reach;
  const auto* weights = reinterpret_cast<const uint16_t*>(w) + int64_t{first_channel} * p.taps();
  for (int row = static_cast<int>(threadIdx.x); row < rows; row += Plan::computing_threads) {
    const int channel = row / p.tap_rows, down = row - channel * p.tap_rows - rows_above;
    const bool is_there = down >= 0 && down < p.kernel[0];
    const uint16_t* of_channel = weights + channel * p.taps();
    uint32_t weight[elements];
#pragma unroll
    for (int i = 0; i < elements; ++i) {
      const int across = first_tap + i, tap = down * p.kernel[1] + across;
      weight[i] = is_there && across >= 0 && across < p.kernel[1]
                      ? __ldg(of_channel + (p.gradient ? p.taps() - 1 - tap : tap))
                      : 0;
    }
    auto* to = reinterpret_cast<uint4*>(memory.weights + row * Plan::row_bytes);
#pragma unroll
    for (int shift = 0; shift < 2; ++shift) {
      const auto word = [&](int i) {
        const int second = 2 * i + shift + 1;
        return weight[second - 1] | (second < elements ? weight[second] << 16 : 0);
      };
#pragma unroll
      for (int i = 0; i < words; i += 4)
        to[(shift * words + i) / 4] = uint4{word(i), word(i + 1), word(i + 2), word(i + 3)};
    }
  }
}

// A warp's left operands: those of rows v - 1 and v of taps, of which there is none above the first one and below the
// last one; and its channels' biases as a product adds them.
template <int tap_rows>
struct ImageWeights {
  uint32_t of[channel_pairs][tap_rows + 1][4];
  float biases[channel_pairs][4];

  template <typename T>
  __device__ void load(const uint8_t* weights, const T* bias, int first_channel, int channels) {
    const int thread = static_cast<int>(threadIdx.x), lane = thread % warp_threads, warp = thread / warp_threads;
    // Neighbouring columns meet neighbouring taps.
    const int first = lane % 4 * 2 - lane / 4 + Plan::side - 1;
    const uint8_t* of_lane = weights + first % 2 * (Plan::row_bytes / 2) + first / 2 * 4;
#pragma unroll
    for (int pair = 0; pair < channel_pairs; ++pair)
#pragma unroll
      for (int second = 0; second < 2; ++second) {
        const int of_block = warp * Plan::warp_channels + 2 * pair + second, channel = first_channel + of_block;
        biases[pair][2 * second] = biases[pair][2 * second + 1] =
            bias && channel < channels ? widen(bias[channel]) : 0.0f;
        of[pair][0][second] = of[pair][tap_rows][second + 2] = 0;
#pragma unroll
        for (int row = 0; row < tap_rows; ++row)
          of[pair][row][second + 2] = of[pair][row + 1][second] =
              *reinterpret_cast<const uint32_t*>(of_lane + (of_block * tap_rows + row) * Plan::row_bytes);
      }
  }
};

// A warp's pixels of 8 images, right operands of two rows each.
using ImagePixels = uint32_t[channel_pairs][row_pairs][4];

// Makes some rows of results of 8 images, all sums at once. to: where a thread's column of two images is.
template <typename T, int tap_rows, int first_row, int rows>
__device__ void make_rows(const uint32_t (&to)[2], const ImageWeights<tap_rows>& weights, const ImagePixels& pixels) {
  constexpr int pad = tap_rows / 2;
  float sums[rows][channel_pairs][4];
#pragma unroll
  for (int pair_row = 0; pair_row < row_pairs; ++pair_row)
#pragma unroll
    for (int row = 0; row < rows; ++row) {
      const int taps = 2 * pair_row - (first_row + row) + pad + 1;
      if (taps < 0 || taps > tap_rows) continue;
      const bool is_first = pair_row == 0 || taps < 2;
#pragma unroll
      for (int pair = 0; pair < channel_pairs; ++pair) {
        float(&sum)[4] = sums[row][pair];
        if (is_first)
          multiply_add_sparse<T>(sum, weights.of[pair][taps], pixels[pair][pair_row], weights.biases[pair]);
        else
          multiply_add_sparse<T>(sum, weights.of[pair][taps], pixels[pair][pair_row], sum);
      }
    }
#pragma unroll
  for (int row = 0; row < rows; ++row)
#pragma unroll
    for (int i = 0; i < 2; ++i)
      asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(to[i] + (first_row + row) * image_row_bytes),
                   "r"(packed_pair<T>(sums[row][0][i], sums[row][0][2 + i])),
                   "r"(packed_pair<T>(sums[row][1][i], sums[row][1][2 + i]))
                   : "memory");
}

// Makes a warp's results of 8 images in place of their pixels.
template <typename T, int tap_rows>
__device__ void make_results(uint32_t slot, const ImageWeights<tap_rows>& weights, const Plan& p) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % warp_threads, warp = thread / warp_threads;
  ImagePixels pixels;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t from = slot + place_in_slot(lane / 4, 4 * i + lane % 4, warp);
#pragma unroll
    for (int row = 0; row < Plan::side; ++row) {
      const uint2 words = load_channels(from + row * image_row_bytes);
      pixels[0][row / 2][row % 2 * 2 + i] = moved_word(words.x, p.all_bytes);
      pixels[1][row / 2][row % 2 * 2 + i] = moved_word(words.y, p.all_bytes);
    }
  }
  __syncwarp();
  uint32_t to[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) to[i] = slot + place_in_slot(lane % 4 * 2 + i, lane / 4, warp);
  make_rows<T, tap_rows, 0, 2>(to, weights, pixels);
  make_rows<T, tap_rows, 2, 2>(to, weights, pixels);
  make_rows<T, tap_rows, 4, 3>(to, weights, pixels);
  if (p.image[0] == Plan::side) make_rows<T, tap_rows, Plan::side - 1, 1>(to, weights, pixels);
}

template <typename T, int tap_rows>
__global__ void __launch_bounds__(Plan::threads, 1)
    depthwise_images_kernel(const __grid_constant__ CUtensorMap in, const __grid_constant__ CUtensorMap out, const T* w,
                            const T* bias, const __grid_constant__ Plan p) {
  if constexpr (has_warpgroups) {
    extern __shared__ uint8_t shared[];
    const ImageMemory memory(shared, p);
    const ImageShare share(p);
    ImageCopies copies(memory, in, out, share, p);
    const int thread = static_cast<int>(threadIdx.x);
    if (thread == Plan::computing_threads) {
      fetch_map(in), fetch_map(out);
      for (int i = 0; i < p.slots; ++i)
        set_up_barrier(memory.full + i, 1), set_up_barrier(memory.made + i, Plan::warps);
      show_barriers_to_copies();
      copies.begin();
    } else if (thread < Plan::computing_threads) {
      make_weight_rows(memory, w, share.channel, p);
    }
    __syncthreads();
    if (thread >= Plan::computing_threads) {
      give_registers<copying_registers>();
      if (thread == Plan::computing_threads) copies.go_on();
      return;
    }
    take_registers<computing_registers>();
    ImageWeights<tap_rows> weights;
    weights.load(memory.weights, bias, share.channel, p.channels);
    RingPlace at;
    for (int number = 0; number < share.slots; ++number) {
      wait_at(memory.full + at.stage, at.parity);
      make_results<T, tap_rows>(shared_address(memory.pixels) + at.stage * Plan::slot_bytes, weights, p);
      show_to_matrix_units();
      arrive_as_warp_at(memory.made + at.stage);
      at.advance(p.slots);
    }
  } else {
    __trap();
  }
}

cudaError_t launch(Scalar type, void* out, const void* in, const void* w, const void* bias, const ConvolutionSizes& c,
                   bool gradient, cudaStream_t stream) {
  const Plan p(c, gradient);
  CUtensorMap pixels, results;
  const ImageBoxes boxes{
      {c.batch, p.image[0], p.image[1], p.channels}, {1, Plan::side, Plan::side}, {1, 1}, Plan::block_channels};
  if (const cudaError_t error = map_image(pixels, in, boxes)) return error;
  if (const cudaError_t error = map_image(results, out, boxes)) return error;
  const auto bytes = static_cast<size_t>(p.shared_bytes());
  return with_16_bits(type, [&]<typename T>(T*) {
    return with_tap_rows(p.tap_rows, [&](auto rows) {
      const auto kernel = depthwise_images_kernel<T, decltype(rows)::value>;
      if (const cudaError_t error = allow_shared(kernel, bytes)) return error;
      kernel<<<dim3(static_cast<unsigned>(p.channel_blocks), static_cast<unsigned>(p.splits)), Plan::threads, bytes,
               stream>>>(pixels, results, static_cast<const T*>(w), static_cast<const T*>(bias), p);
      return cudaGetLastError();
    });
  });
}

}  // namespace

cudaError_t depthwise_images(Scalar type, void* y, const void* x, const void* w, const void* bias,
                             const ConvolutionSizes& sizes, cudaStream_t stream) {
  return launch(type, y, x, w, bias, sizes, false, stream);
}

cudaError_t depthwise_images_dx(Scalar type, void* dx, const void* dy, const void* w, const ConvolutionSizes& sizes,
                                cudaStream_t stream) {
  return launch(type, dx, dy, w, nullptr, sizes, true, stream);
}

}  // namespace plimsoll::cuda
