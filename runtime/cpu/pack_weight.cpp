#include "runtime/cpu/pack_weight.h"

#include "ir/quantized_numbers.h"
#include "kernels/cpu/elementwise/quantize.h"
#include "kernels/cpu/move/move.h"

#include <algorithm>
#include <numeric>

namespace plimsoll {

static bool has_4_bits(const PackedWeight& weight) { return weight.format == "nf4" || weight.format == "int4"; }

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

int64_t smallest_piece(const PackedWeight& weight) {
  const int64_t columns = weight.shape[1], all = weight.shape[0] * columns;
  if (has_4_bits(weight) && weight.block % 2 == 1) return all;
  const int64_t block = weight.format == "int8" ? columns : weight.block;
  return std::max<int64_t>(1, std::min(all, weight.transposed ? std::lcm(block, columns) : block));
}

void pack_piece(const PackedWeight& weight, const float* x, int64_t first, int64_t count, uint8_t* codes,
                float* scales) {
  const int64_t columns = weight.shape[1], block = weight.block;
  if (has_4_bits(weight))
    cpu::quantize_4_bits(x, count, block, (weight.format == "nf4" ? nf4_thresholds() : int4_thresholds()).data(),
                         codes + first / 2, scales + first / block);
  else if (weight.format == "int8")
    cpu::quantize_int8(x, count / columns, columns, reinterpret_cast<int8_t*>(codes + first), scales + first / columns);
  else
    cpu::quantize_fp8(x, count / block, block, codes + first, scales + first / block);
}

void turn_rows(float* to, const float* from, int64_t rows, int64_t columns, int64_t all_rows, int64_t first) {
  LoopNest<2> nest;
  nest.add_dimension(rows, {columns, 1});
  nest.add_dimension(columns, {1, all_rows});
  cpu::copy_strided(nest, to, from + first, sizeof(float));
}

}  // namespace plimsoll
