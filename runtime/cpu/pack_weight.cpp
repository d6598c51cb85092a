#include "runtime/cpu/pack_weight.h"

#include "ir/quantized_numbers.h"
#include "kernels/cpu/elementwise/quantize.h"

namespace plimsoll {
namespace {

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

}  // namespace

Packed pack(const PackedWeight& weight, const TensorView& numbers, FloatBuffer& turned) {
  const int64_t rows = weight.shape[0], columns = weight.shape[1], count = rows * columns;
  const float* x = numbers.as<float>();
  if (weight.transposed) {
    cpu::turn(turned.at_least(count), x, columns, rows);
    x = turned.at_least(count);
  }
  Packed packed;
  packed.codes = Tensor(weight.codes_type);
  Tensor scales(Type(DType::F32, {(count + weight.block - 1) / weight.block}));
  if (weight.format == "nf4")
    cpu::quantize_4_bits(x, count, weight.block, nf4_thresholds().data(), packed.codes.view().as<uint8_t>(),
                         scales.view().as<float>());
  else if (weight.format == "int4")
    cpu::quantize_4_bits(x, count, weight.block, int4_thresholds().data(), packed.codes.view().as<uint8_t>(),
                         scales.view().as<float>());
  else if (weight.format == "int8")
    cpu::quantize_int8(x, rows, columns, packed.codes.view().as<int8_t>(), scales.view().as<float>());
  else
    cpu::quantize_fp8(x, count / weight.block, weight.block, packed.codes.view().as<uint8_t>(),
                      scales.view().as<float>());
  if (weight.scale_scales.empty())
    packed.scales = std::move(scales);
  else
    pack_scales(weight, scales, packed);
  return packed;
}

}  // namespace plimsoll
