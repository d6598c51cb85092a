#pragma once

// Moments of an optimizer in 8 bits: codes of the dynamic maps with an f32 scale for each block, as torchao's
// optimizers keep them (Dettmers et al. 2022).

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/StringRef.h"

#include <cstdint>

namespace plimsoll {

inline constexpr int64_t moment_block = 256;  // elements in memory order, which share a scale
// Moments of a smaller parameter stay in f32.
inline constexpr int64_t min_eight_bit_elements = 4096;
inline constexpr float min_moment_scale = 1e-12F;

// Moments are states of the parameter's name and these; scales of both are pairs in one state.
inline constexpr llvm::StringLiteral mean_suffix = ".exp_avg", square_suffix = ".exp_avg_sq",
                                     scales_suffix = ".moment_scales";

inline constexpr int64_t moment_blocks(int64_t elements) { return (elements + moment_block - 1) / moment_block; }

// The largest size of a block's numbers, at least min_moment_scale.
float moment_scale(llvm::ArrayRef<float> block);
// The code whose number is nearest to x over the scale.
uint8_t moment_code(float x, float scale, bool is_signed);
float moment_of(uint8_t code, float scale, bool is_signed);

}  // namespace plimsoll
