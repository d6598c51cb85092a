#pragma once

// Tiles of images with channels last, turned into planes of one channel each in shared memory and back.

#include "kernels/cuda/common/tensor_core.cuh"
#include "kernels/cuda/conv/depthwise_planes.h"
#include "kernels/cuda/conv/image_tile.cuh"

namespace plimsoll::cuda {

// Thread 4 g + t gives rows 2 t and 2 t + 1 of column g of `count` matrices of 8 x 8, and thread 8 m + i the address of
// row i of matrix m: the rows are written as load_matrices reads them.
template <int count>
__device__ void store_matrices_transposed(void* row, const uint32_t (&at)[count]) {
#if __CUDA_ARCH__ >= 900
  if constexpr (count == 4)
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)),
                 "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3])
                 : "memory");
  else
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(shared_address(row)),
                 "r"(at[0]), "r"(at[1])
                 : "memory");
#else
  const int lane = static_cast<int>(threadIdx.x) % warp_threads;
#pragma unroll
  for (int m = 0; m < count; ++m) {
    uint32_t turned;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(at[m]));
    const uint32_t to = __shfl_sync(whole_warp, shared_address(row), 8 * m + lane / 4);
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to + lane % 4 * 4), "r"(turned) : "memory");
  }
#endif
}

// A tile's first image, and its first out pixel there.
struct PlanesPlace {
  int image, row, column;

  __device__ PlanesPlace(const DepthwisePlanes& p, int item) {
    Digits digits{static_cast<unsigned>(item)};
    column = digits.take(p.column_tiles) * p.width;
    row = digits.take(p.row_tiles) * p.rows;
    image = static_cast<int>(digits.rest) * p.images;
  }
};

// A vector of 8 channels, number t of a pixel, has its pairs of channels in 4 words; word u of all vectors of the block
// is a matrix whose rows are slots u * 2 * block_units and on. So channel 8 t + 2 u + e is in slot
// u * 2 * block_units + 2 t + e.
__device__ inline int channel_of_slot(int slot, int block_units) {
  const int word = slot / (2 * block_units), row = slot - word * 2 * block_units;
  return row / 2 * unit_channels + 2 * word + row % 2;
}

// Where this lane's row of the four matrices of 8 columns lies; lanes that have none get `nowhere`.
struct PlaneRow {
  uint4* at;
  int step;  // to the next row of the plane

  __device__ PlaneRow(uint4* planes, int plane_units, int row_units, int block_units, uint4* nowhere) {
    const int lane = static_cast<int>(threadIdx.x) % warp_threads, word = lane / 8, row = lane % 8;
    const bool valid = row < 2 * block_units;
    at = valid ? planes + (word * 2 * block_units + row) * plane_units : nowhere;
    step = valid ? row_units : 0;
  }
};

// A warp has one of up to 8 groups of 8 columns, and rows in turn with the other warps of that group.
struct PlaneColumns {
  int group, first_row, row_step;
  int image, column;  // of the images side by side, and the lane's column there

  __device__ PlaneColumns(int groups, int image_groups) {
    const int warp = static_cast<int>(threadIdx.x) / warp_threads, lane = static_cast<int>(threadIdx.x) % warp_threads;
    row_step = DepthwisePlanes::warps / groups;
    first_row = warp / groups;
    group = warp - first_row * groups;
    image = group / image_groups;
    column = (group - image * image_groups) * unit_channels + lane / 4;
    if (first_row >= row_step) first_row = 1 << 20;  // has none
  }
};

// What planes are filled with: pixels from row `y`, column `x` of the first image on.
struct PlaneSource {
  int image, y, x;
  int size[2];               // of an image
  int images, images_end;    // side by side; of the batch
  int width;                 // columns of an image from here on are zeros
  int first_channel, units;  // of the block
  int64_t channels;          // of a pixel
};

template <typename T>
__device__ void fill_planes(const PlaneRow& to, const T* tensor, const PlaneSource& s, const PlaneColumns& c,
                            int rows) {
  constexpr int ahead = 4;
  const int unit = static_cast<int>(threadIdx.x) % 4, image = s.image + c.image, x = s.x + c.column;
  const bool inside =
      c.image < s.images && image < s.images_end && c.column < s.width && x >= 0 && x < s.size[1] && unit < s.units;
  // Rows in [first, first + count) of the planes are inside.
  const int first = max(-s.y, 0), count = inside ? max(s.size[0] - s.y, 0) - first : 0;
  const int64_t line = s.size[1] * s.channels, step = line * c.row_step;
  const T* from = tensor + (int64_t{image} * s.size[0] * s.size[1] + x) * s.channels + (s.y + c.first_row) * line +
                  s.first_channel + unit * unit_channels;
  uint4* at = to.at + (to.step ? c.first_row * to.step + c.group : 0);
  const int at_step = c.row_step * to.step;
  int row = c.first_row;
  const auto load = [&] {
    const bool here = static_cast<unsigned>(row - first) < static_cast<unsigned>(max(count, 0));
    const uint4 vector = here ? __ldg(reinterpret_cast<const uint4*>(from)) : uint4{0, 0, 0, 0};
    from += step;
    row += c.row_step;
    return vector;
  };
  const auto store = [&](const uint4& vector) {
    store_matrices_transposed<4>(at, {vector.x, vector.y, vector.z, vector.w});
    at += at_step;
  };
  while (row + (ahead - 1) * c.row_step < rows) {
    uint4 vectors[ahead];
#pragma unroll
    for (uint4& vector : vectors) vector = load();
#pragma unroll
    for (const uint4& vector : vectors) store(vector);
  }
  while (row < rows) store(load());
}

// Calls visit with the kernel's size as a constant; fits_depthwise_bands has no others.
template <typename Visit>
cudaError_t with_kernel_size(int kernel, Visit visit) {
  switch (kernel) {
    case 3: return visit(std::integral_constant<int, 3>());
    case 5: return visit(std::integral_constant<int, 5>());
    case 7: return visit(std::integral_constant<int, 7>());
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace plimsoll::cuda
