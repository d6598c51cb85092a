#include "runtime/cpu/pack_weight.h"

#include "ir/quantized_numbers.h"
#include "kernels/cpu/elementwise/dequantize.h"

#include <algorithm>
#include <cmath>

namespace plimsoll {
namespace {

Tensor turned(const Tensor& from) {
  const int64_t rows = from.type().shape[0], columns = from.type().shape[1];
  Tensor to(Type(DType::F32, {columns, rows}));
  const float* source = from.view().as<float>();
  float* target = to.view().as<float>();
  constexpr int64_t tile = 32;
#pragma omp parallel for
  for (int64_t first = 0; first < columns; first += tile)
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = first; c < std::min(columns, first + tile); ++c) target[c * rows + r] = source[r * columns + c];
  return to;
}

void pack_scales(const PackedWeight& weight, const Tensor& scales, Packed& packed) {
  const int64_t blocks = scales.type().elements();
  double sum = 0;
  for (int64_t i = 0; i < blocks; ++i) sum += scales.view().as<float>()[i];
  const auto mean = static_cast<float>(sum / static_cast<double>(blocks));
  Tensor centred(scales.type());
  for (int64_t i = 0; i < blocks; ++i) centred.view().as<float>()[i] = scales.view().as<float>()[i] - mean;
  packed.scales = Tensor(weight.scales_type);
  packed.scale_scales = Tensor(weight.scale_scales_type);
  packed.offset = Tensor(Type(DType::F32, {1}));
  packed.offset.view().as<float>()[0] = mean;
  cpu::quantize_by_map(centred.view().as<float>(), blocks, scales_per_block, dynamic_map(true).data(),
                       packed.scales.view().as<uint8_t>(), packed.scale_scales.view().as<float>());
}

void pack_fp8(const float* x, int64_t rows, int64_t columns, const TensorView& codes, float* scales) {
#pragma omp parallel for
  for (int64_t r = 0; r < rows; ++r) {
    float largest = 0;
    for (int64_t c = 0; c < columns; ++c) largest = std::max(largest, std::fabs(x[r * columns + c]));
    const float scale = largest / fp8_largest;
    scales[r] = scale;
    for (int64_t c = 0; c < columns; ++c) {
      const float value = scale > 0 ? x[r * columns + c] / scale : 0;
      codes.set(r * columns + c, std::clamp(value, -fp8_largest, fp8_largest));  // beyond it there is no number
    }
  }
}

}  // namespace

Packed pack(const PackedWeight& weight, Tensor numbers) {
  if (weight.transposed) numbers = turned(numbers);
  const float* x = numbers.view().as<float>();
  const int64_t rows = weight.shape[0], columns = weight.shape[1], count = rows * columns;
  Packed packed;
  packed.codes = Tensor(weight.codes_type);
  Tensor scales(Type(DType::F32, {(count + weight.block - 1) / weight.block}));
  if (weight.format == "nf4")
    cpu::quantize_4_bits(x, count, weight.block, nf4_thresholds().data(), packed.codes.view().as<uint8_t>(),
                         scales.view().as<float>());
  else if (weight.format == "int8")
    cpu::quantize_int8(x, rows, columns, packed.codes.view().as<int8_t>(), scales.view().as<float>());
  else
    pack_fp8(x, rows, columns, packed.codes.view(), scales.view().as<float>());
  if (weight.scale_scales.empty())
    packed.scales = std::move(scales);
  else
    pack_scales(weight, scales, packed);
  return packed;
}

}  // namespace plimsoll
