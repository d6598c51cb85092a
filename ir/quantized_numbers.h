#pragma once

// The numbers behind quantised weights, to the bit those of bitsandbytes, whose files hold the same codes.

#include "ir/type.h"

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace plimsoll {

// NF4 (Dettmers et al. 2023): the numbers that 4-bit codes stand for. Two codes share a byte, the first in its high
// half.
inline constexpr std::array<uint32_t, 16> nf4_bits{
    0xbf800000, 0xbf3239b1, 0xbf066b30, 0xbeca32a0, 0xbe91a24d, 0xbe3d353f, 0xbdba7871, 0x00000000,
    0x3da2faff, 0x3e24cae3, 0x3e7c04dd, 0x3ead033a, 0x3ee1a4b8, 0x3f1007ab, 0x3f3913b3, 0x3f800000};
// A number has as its code how many of these it is above; they lie in the middle between neighbours.
inline constexpr std::array<uint32_t, 15> nf4_threshold_bits{
    0xbf591cd8, 0xbf1c5270, 0xbeeb8480, 0xbeadea76, 0xbe703cec, 0xbe0d38bc, 0xbd3a7871, 0x3d22faff,
    0x3df64862, 0x3e5067e0, 0x3e9582d4, 0x3ec753f9, 0x3f006d04, 0x3f248daf, 0x3f5c89da};

// FP4: 4-bit floats with a sign, as bitsandbytes and ONNX Runtime divide them by the largest one, 12.
inline constexpr std::array<uint32_t, 16> fp4_bits{
    0x00000000, 0x3baaaaab, 0x3f2aaaab, 0x3f800000, 0x3eaaaaab, 0x3f000000, 0x3e2aaaab, 0x3e800000,
    0x00000000, 0xbbaaaaab, 0xbf2aaaab, 0xbf800000, 0xbeaaaaab, 0xbf000000, 0xbe2aaaab, 0xbe800000};

// Whole numbers from -7 to 7, of which the largest size of a block is 7. Code 0 would be -8, which no number becomes.
inline std::array<float, 16> int4_values() {
  std::array<float, 16> values{};
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = (static_cast<float>(i) - 8) / 7;
  return values;
}
// In the middle between neighbours.
inline std::array<float, 15> int4_thresholds() {
  std::array<float, 15> values{};
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = (static_cast<float>(i) - 7.5F) / 7;
  return values;
}

inline std::array<float, 16> floats_of(const std::array<uint32_t, 16>& bits) {
  std::array<float, 16> values{};
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::bit_cast<float>(bits[i]);
  return values;
}
inline std::array<float, 16> nf4_values() { return floats_of(nf4_bits); }
// Of a format whose 4-bit codes have a book: nf4, fp4 or int4.
inline std::array<float, 16> code_book(llvm::StringRef format) {
  return format == "int4" ? int4_values() : floats_of(format == "fp4" ? fp4_bits : nf4_bits);
}
inline std::array<float, 15> nf4_thresholds() {
  std::array<float, 15> values{};
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::bit_cast<float>(nf4_threshold_bits[i]);
  return values;
}

// The dynamic map of 8-bit codes (Dettmers et al. 2022): in each decade from 1e-7 to 1 twice as many numbers as in the
// one below, with 0 and 1; ascending. Signed it has both signs.
const std::array<float, 256>& dynamic_map(bool is_signed);
// The first number of each code but code 0, at [code - 1]; the last entry is infinity. A number in the middle between
// two of the map has the upper one, as torchao's optimizers round.
const std::array<float, 256>& dynamic_thresholds(bool is_signed);

// Codes that a model's file has, each standing for its distance from a zero point times a scale.
inline constexpr std::array<llvm::StringLiteral, 6> linear_formats{"i4", "u4", "i8", "u8", "f8e4m3", "f8e5m2"};
inline int linear_code_bits(llvm::StringRef format) { return format == "i4" || format == "u4" ? 4 : 8; }
inline DType linear_code_dtype(llvm::StringRef format) {
  return linear_code_bits(format) == 4 ? DType::U8 : *parse_dtype(format);
}
// How many scales a matrix of codes has: each is that of `block_rows` rows of `block` columns.
struct LinearGrid {
  int64_t rows = 0, columns = 0;
};
inline LinearGrid linear_grid(llvm::ArrayRef<int64_t> shape, int64_t block_rows, int64_t block) {
  return {(shape[0] + block_rows - 1) / block_rows, (shape[1] + block - 1) / block};
}
// How far zero points of one row of the grid lie from those of the next. Where `zeros` are 4-bit codes and have rows,
// each row begins in a byte of its own.
inline int64_t zeros_per_row(llvm::StringRef format, LinearGrid grid, const Type* zeros) {
  const int64_t bytes = (grid.columns + 1) / 2;
  const bool by_rows = zeros && linear_code_bits(format) == 4 && zeros->shape == Shape{grid.rows, bytes};
  return by_rows ? 2 * bytes : grid.columns;
}

// Numbers of one scale of a quantised scale.
inline constexpr int64_t scales_per_block = 256;
// Of 8-bit integers: a row's largest size is 127.
inline constexpr float int8_step = 7.874015718698502e-3F;
// The largest number of f8e4m3, which a row's largest size becomes.
inline constexpr float fp8_largest = 448;

}  // namespace plimsoll
