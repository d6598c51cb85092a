#include "kernels/cuda/common/box_copy.cuh"

#include "kernels/cuda/common/line_boxes.cuh"
#include "kernels/cuda/common/matrix_boxes.cuh"
#include "kernels/cuda/common/pitched_boxes.cuh"
#include "kernels/cuda/common/short_boxes.cuh"
#include "kernels/cuda/common/volume_boxes.cuh"

#include <cuda_runtime_api.h>

#include <algorithm>

namespace plimsoll::cuda {
namespace {

// The driver's function, which is asked for so that the library loads where there is no driver.
decltype(&cuTensorMapEncodeTiled) map_encoder() {
  static const auto encoder = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    constexpr unsigned cuda_12 = 12000;
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, cuda_12, cudaEnableDefault, &found);
    const bool is_there = error == cudaSuccess && found == cudaDriverEntryPointSuccess;
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(is_there ? function : nullptr);
  }();
  return encoder;
}

cuuint64_t size(int64_t count) { return static_cast<cuuint64_t>(count > 0 ? count : 1); }

// Elements of 16 bits; the type is one whose missing elements are zeros. `steps` are those of all dimensions but the
// first, in bytes; of each dimension a box has every so many-th element.
template <size_t dims>
cudaError_t map_strided_boxes(CUtensorMap& map, const void* tensor, const cuuint64_t (&sizes)[dims],
                              const cuuint64_t (&steps)[dims - 1], const cuuint32_t (&box)[dims],
                              const cuuint32_t (&every)[dims], CUtensorMapSwizzle swizzle,
                              CUtensorMapL2promotion promotion) {
  const auto encode = map_encoder();
  if (!encode) return cudaErrorNotSupported;
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, dims, const_cast<void*>(tensor), sizes, steps, box, every,
             CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

template <size_t dims>
cudaError_t map_boxes(CUtensorMap& map, const void* tensor, const cuuint64_t (&sizes)[dims],
                      const cuuint64_t (&steps)[dims - 1], const cuuint32_t (&box)[dims],
                      CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B,
                      CUtensorMapL2promotion promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_256B) {
  cuuint32_t every[dims];
  std::fill_n(every, dims, 1);
  return map_strided_boxes(map, tensor, sizes, steps, box, every, swizzle, promotion);
}

constexpr int64_t element_bytes = 2;

}  // namespace

cudaError_t map_rows(CUtensorMap& map, const void* tensor, int64_t batch, int64_t rows, int64_t heads, int64_t depth,
                     int64_t step, int box_rows, int box_elements) {
  constexpr int of_64_bytes = 32;
  return map_boxes(map, tensor, {size(depth), size(heads), size(rows), size(batch)},
                   {size(depth * element_bytes), size(step * element_bytes), size(rows * step * element_bytes)},
                   {static_cast<cuuint32_t>(box_elements), 1, static_cast<cuuint32_t>(box_rows), 1},
                   box_elements == box_depth     ? CU_TENSOR_MAP_SWIZZLE_128B
                   : box_elements == of_64_bytes ? CU_TENSOR_MAP_SWIZZLE_64B
                                                 : CU_TENSOR_MAP_SWIZZLE_32B);
}

cudaError_t map_short_rows(CUtensorMap& map, const void* tensor, int64_t batch, int64_t rows, int64_t heads,
                           int64_t step, int box_rows) {
  constexpr int depth = 32;
  return map_boxes(map, tensor, {depth, size(heads), size(rows), size(batch)},
                   {depth * element_bytes, size(step * element_bytes), size(rows * step * element_bytes)},
                   {depth, 1, static_cast<cuuint32_t>(box_rows), 1}, CU_TENSOR_MAP_SWIZZLE_64B,
                   CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
}

cudaError_t map_line_boxes(CUtensorMap& map, const void* image, const int64_t (&sizes)[4], int box_channels,
                           int box_pixels, int box_lines) {
  const auto [batch, down, across, channels] = sizes;
  const int64_t pixel_bytes = channels * element_bytes, line_bytes = across * pixel_bytes;
  return map_boxes(map, image, {size(channels), size(across), size(down), size(batch)},
                   {size(pixel_bytes), size(line_bytes), size(down * line_bytes)},
                   {static_cast<cuuint32_t>(box_channels), static_cast<cuuint32_t>(box_pixels),
                    static_cast<cuuint32_t>(box_lines), 1},
                   CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
}

cudaError_t map_matrix(CUtensorMap& map, const void* matrix, int64_t rows, int64_t width, int box_rows) {
  return map_boxes(map, matrix, {size(width), size(rows)}, {size(width * element_bytes)},
                   {box_depth, static_cast<cuuint32_t>(box_rows)});
}

cudaError_t map_matrices(CUtensorMap& map, const void* first, int64_t batch, int64_t heads, int64_t rows,
                         int64_t columns, int64_t pitch, int64_t bytes, int box_rows) {
  const int64_t row_bytes = pitch * bytes;
  return map_boxes(map, first, {size(columns * bytes / element_bytes), size(heads), size(rows), size(batch)},
                   {size(rows * row_bytes), size(row_bytes), size(heads * rows * row_bytes)},
                   {box_depth, 1, static_cast<cuuint32_t>(box_rows), 1});
}

cudaError_t map_image(CUtensorMap& map, const void* image, const ImageBoxes& boxes) {
  return map_image(map, image, boxes, ImagePitches{});
}

cudaError_t map_image(CUtensorMap& map, const void* image, const ImageBoxes& boxes, const ImagePitches& pitches) {
  const auto [batch, down, across, channels] = boxes.sizes;
  const int64_t pixel = pitches.pixel > 0 ? pitches.pixel : channels,
                line = pitches.line > 0 ? pitches.line : across * pixel,
                whole = pitches.image > 0 ? pitches.image : down * line;
  const auto count = [](int n) { return static_cast<cuuint32_t>(n); };
  const bool has_whole_rows = boxes.channels > box_depth / 2;
  return map_strided_boxes(map, image, {size(channels), size(across), size(down), size(batch)},
                           {size(pixel * element_bytes), size(line * element_bytes), size(whole * element_bytes)},
                           {count(boxes.channels), count(boxes.box[2] * boxes.strides[1]),
                            count(boxes.box[1] * boxes.strides[0]), count(boxes.box[0])},
                           {1, count(boxes.strides[1]), count(boxes.strides[0]), 1},
                           has_whole_rows ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
                           has_whole_rows ? CU_TENSOR_MAP_L2_PROMOTION_L2_256B : CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
}

cudaError_t map_volume(CUtensorMap& map, const void* volume, const VolumeBoxes& v) {
  const int64_t pixel = v.channels * element_bytes, line = v.sizes[2] * pixel, plane = v.sizes[1] * line;
  const bool has_whole_rows = v.box_channels == box_depth;
  const auto count = [](int n) { return static_cast<cuuint32_t>(n); };
  return map_boxes(map, volume, {size(v.channels), size(v.sizes[2]), size(v.sizes[1]), size(v.sizes[0]), size(v.batch)},
                   {size(pixel), size(line), size(plane), size(v.sizes[0] * plane)},
                   {count(v.box_channels), count(v.box[2]), count(v.box[1]), count(v.box[0]), 1},
                   has_whole_rows ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
                   has_whole_rows ? CU_TENSOR_MAP_L2_PROMOTION_L2_256B : CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
}

cudaError_t map_taps(CUtensorMap& map, const void* weights, int64_t outer, int64_t taps, int64_t inner, int box_outer) {
  return map_boxes(map, weights, {size(inner), size(taps), size(outer)},
                   {size(inner * element_bytes), size(taps * inner * element_bytes)},
                   {box_depth, 1, static_cast<cuuint32_t>(box_outer)});
}

}  // namespace plimsoll::cuda
