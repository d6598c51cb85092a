#include "kernels/cuda/conv/space_to_depth.h"

#include "kernels/cuda/common/rows.cuh"

#include <algorithm>

namespace plimsoll::cuda {
namespace {

constexpr int block_threads = 256, piece = 8;  // elements of a 16-byte store
constexpr int64_t max_blocks = 65535;

// A thread a piece of a folded row; blocks go down the rows of all images. A row of a pixel's block is one run of
// elements in memory, at whose ends lie pads. `image` holds bits: nothing is computed.
__global__ void __launch_bounds__(block_threads)
    fold_kernel(uint4* __restrict__ folded, const uint16_t* __restrict__ image, Fold f) {
  const int pieces = static_cast<int>(f.folded_channels) / piece, row_pieces = static_cast<int>(f.folded[1]) * pieces;
  const int channels = static_cast<int>(f.channels), run = static_cast<int>(f.block[1]) * channels;
  const int row_elements = static_cast<int>(f.size[1]) * channels, row_read = static_cast<int>(f.read[1]) * channels;
  const int height = static_cast<int>(f.folded[0]), rows_of_all = static_cast<int>(f.batch) * height;
  for (int folded_row = static_cast<int>(blockIdx.y); folded_row < rows_of_all;
       folded_row += static_cast<int>(gridDim.y)) {
    const int64_t b = folded_row / height;
    const int top = static_cast<int>((folded_row - b * height) * f.block[0] - f.pad[0]);
    const uint16_t* rows = image + b * f.size[0] * row_elements;
    for (int at = static_cast<int>(blockIdx.x) * block_threads + static_cast<int>(threadIdx.x); at < row_pieces;
         at += static_cast<int>(gridDim.x) * block_threads) {
      const int pixel = at / pieces, first = (at - pixel * pieces) * piece;
      const int left = pixel * run - static_cast<int>(f.pad[1]) * channels;
      int down = first / run, across = first - down * run;
      uint32_t words[piece / 2] = {};
#pragma unroll
      for (int i = 0; i < piece; ++i) {
        const int row = top + down, element = left + across;
        if (down < f.block[0] && row >= 0 && row < f.read[0] && element >= 0 && element < row_read)
          words[i / 2] |= uint32_t{rows[int64_t{row} * row_elements + element]} << (i % 2 * 16);
        if (++across == run) across = 0, ++down;
      }
      folded[int64_t{folded_row} * row_pieces + at] = make_uint4(words[0], words[1], words[2], words[3]);
    }
  }
}

template <typename To, typename From>
__global__ void __launch_bounds__(block_threads) unfold_kernel(To* image, const From* folded, int elements, Fold f) {
  const int channels = static_cast<int>(f.channels), width = static_cast<int>(f.size[1]),
            height = static_cast<int>(f.size[0]);
  const int block_height = static_cast<int>(f.block[0]), block_width = static_cast<int>(f.block[1]);
  const int at = static_cast<int>(blockIdx.x) * block_threads + static_cast<int>(threadIdx.x);
  if (at >= elements) return;
  const int pixel = at / channels, c = at - pixel * channels;
  const int row = pixel / width, across = pixel - row * width;
  const int b = row / height, down = row - b * height;
  const int folded_down = down / block_height, folded_across = across / block_width;
  const int in_block = (down - folded_down * block_height) * block_width + across - folded_across * block_width;
  const int64_t folded_pixel = (b * f.folded[0] + folded_down) * f.folded[1] + folded_across;
  image[at] = narrow<To>(widen(folded[folded_pixel * f.folded_channels + in_block * channels + c]));
}

}  // namespace

cudaError_t fold_image(void* folded, const void* image, const Fold& fold, cudaStream_t stream) {
  const int64_t rows = fold.batch * fold.folded[0], row_pieces = fold.folded[1] * (fold.folded_channels / piece);
  if (rows * row_pieces == 0) return cudaSuccess;
  const dim3 blocks(static_cast<unsigned>(std::min(divide_up(row_pieces, block_threads), max_blocks)),
                    static_cast<unsigned>(std::min(rows, max_blocks)));
  fold_kernel<<<blocks, block_threads, 0, stream>>>(static_cast<uint4*>(folded), static_cast<const uint16_t*>(image),
                                                    fold);
  return cudaGetLastError();
}

cudaError_t unfold_image(Scalar to, void* image, Scalar from, const void* folded, const Fold& fold,
                         cudaStream_t stream) {
  const int64_t elements = fold.batch * fold.size[0] * fold.size[1] * fold.channels;
  if (elements == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>(divide_up(elements, block_threads));
  return with_f32_math(from, [&](auto* element) {
    using From = std::remove_pointer_t<decltype(element)>;
    const auto launch = [&](auto* result) {
      unfold_kernel<<<blocks, block_threads, 0, stream>>>(result, static_cast<const From*>(folded),
                                                          static_cast<int>(elements), fold);
      return cudaGetLastError();
    };
    return to == from ? launch(static_cast<From*>(image)) : launch(static_cast<float*>(image));
  });
}

}  // namespace plimsoll::cuda
