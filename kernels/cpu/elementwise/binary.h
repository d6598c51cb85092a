#pragma once

// Elementwise functions of two or three operands with numpy broadcasting. The loop nest names the strides:
// tensor 0 is the result (dense), then the operands. The result may be any operand of its own size.

#include "kernels/strides.h"

#include <cstdint>

namespace plimsoll::cpu {

// One run of n results; an operand advances by its step, 0 or 1.
template <typename Out, typename In>
using BinaryRange = void(Out* y, const In* a, const In* b, int64_t a_step, int64_t b_step, int64_t n);

using FloatBinaryRange = BinaryRange<float, float>;
using FloatCompareRange = BinaryRange<uint8_t, float>;
using IndexCompareRange = BinaryRange<uint8_t, int64_t>;
using LogicRange = BinaryRange<uint8_t, uint8_t>;

#define PLIMSOLL_BINARY(op, Name, formula) FloatBinaryRange op##_range;
#define PLIMSOLL_BINARY_FORM(form, Name, formula) FloatBinaryRange form##_range;
#define PLIMSOLL_COMPARE(op, Name, formula) \
  FloatCompareRange op##_range;             \
  IndexCompareRange op##_i64_range;
#define PLIMSOLL_LOGIC(op, Name, formula) LogicRange op##_range;
#define PLIMSOLL_BITWISE(op, Name, formula)
#include "kernels/elementwise.def"

// The whole broadcast function. One of the types below.
void map_binary(FloatBinaryRange* range, const LoopNest<3>& nest, float* y, const float* a, const float* b);
void map_binary(FloatCompareRange* range, const LoopNest<3>& nest, uint8_t* y, const float* a, const float* b);
void map_binary(IndexCompareRange* range, const LoopNest<3>& nest, uint8_t* y, const int64_t* a, const int64_t* b);
void map_binary(LogicRange* range, const LoopNest<3>& nest, uint8_t* y, const uint8_t* a, const uint8_t* b);

// y = condition ? a : b on elements of 4 bytes; tensors of the nest: y, condition, a, b.
void where_32(const LoopNest<4>& nest, uint32_t* y, const uint8_t* condition, const uint32_t* a, const uint32_t* b);

// y = not x.
void logical_not(uint8_t* y, const uint8_t* x, int64_t n);

// The sum of n tensors of one shape, in their order. y may be any of them.
void add_many(float* y, const float* const* operands, int64_t operand_count, int64_t n);

}  // namespace plimsoll::cpu
