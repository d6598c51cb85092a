#pragma once

// Elementwise functions of one f32 operand, as ranges: y[i] = f(x[i]). y may be x. `a` and `b` are
// the op's parameters in the order of its attributes; most ignore them.

#include <cstdint>

namespace plimsoll::cpu {

using UnaryRange = void(float* y, const float* x, int64_t n, float a, float b);

#define PLIMSOLL_UNARY(op, Name, formula) UnaryRange op##_range;
#define PLIMSOLL_UNARY_FORM(form, Name, formula) UnaryRange form##_range;
#include "kernels/elementwise.def"

// Gradients: dx[i] from what the forward kept (x or y) and dy[i]. dx may be either operand.
using UnaryGradRange = void(float* dx, const float* kept, const float* dy, int64_t n);

#define PLIMSOLL_UNARY_GRAD(op, Name, formula) UnaryGradRange op##_range;
#define PLIMSOLL_UNARY_GRAD_FORM(form, Name, formula) UnaryGradRange form##_range;
#include "kernels/elementwise.def"

// The range over all elements, in parallel.
void map_unary(UnaryRange* range, float* y, const float* x, int64_t n, float a, float b);
void map_unary_grad(UnaryGradRange* range, float* dx, const float* kept, const float* dy, int64_t n);

}  // namespace plimsoll::cpu
