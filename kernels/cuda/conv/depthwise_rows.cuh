#pragma once

// Where rows of a run of images lie in their tensor: images side by side in it, and one below the other.

#include "kernels/cuda/common/tensor_core.cuh"

namespace plimsoll::cuda {

// As many rows of the run as a warp has lanes, each lane knows one.
class StepRows {
 public:
  template <typename Plan>
  __device__ StepRows(const Plan& p, int first_row) {
    const int row = first_row + static_cast<int>(threadIdx.x) % warp_threads;
    group_ = row < 0 ? 0 : static_cast<int>(static_cast<unsigned>(row) / static_cast<unsigned>(p.row_period));
    y_ = row - group_ * p.row_period;
  }
  template <typename Plan>
  __device__ void advance(const Plan& p, int rows) {
    y_ += rows;
    while (y_ >= p.row_period) y_ -= p.row_period, ++group_;
  }
  // The lane's row among all rows of the images that stand first in their row of images, or -1: it has zeros. `first`
  // is the image's row that the first row of the run is.
  template <typename Plan>
  __device__ int number(const Plan& p, int first, int image_rows) const {
    const int row = y_ + first;
    return static_cast<unsigned>(row) < static_cast<unsigned>(image_rows) ? group_ * p.images * image_rows + row : -1;
  }

 private:
  int group_, y_;
};

// A column of a tensor's pixels from some channel on, of the image `side` in a row of images.
template <typename T>
class PixelColumn {
 public:
  __device__ PixelColumn(T* tensor, const int (&image)[2], int side, int x, bool valid, int batch, int64_t pixel,
                         int channel) {
    valid = valid && x >= 0 && x < image[1] && side < batch;
    end_ = valid ? (batch - side) * image[0] : 0;
    first_ = tensor + (int64_t{side} * image[0] * image[1] + x) * pixel + channel;
  }
  __device__ bool has(int row) const { return static_cast<unsigned>(row) < static_cast<unsigned>(end_); }
  __device__ T* at(int row, int line) const { return first_ + int64_t{row} * line; }  // line: elements of a row

 private:
  T* first_;
  int end_;  // of numbers of rows
};

// copy_async of a vector whose neighbours in 128 bytes blocks beside this one will copy: the second-level cache reads
// them together.
__device__ inline void copy_in_line_async(void* to, const void* from, bool inside) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(inside ? 16 : 0)
               : "memory");
}

}  // namespace plimsoll::cuda
