#pragma once

// Elementwise functions of one f32 operand, as ranges: y[i] = f(x[i]). y may be x. `a` and `b` are
// the op's parameters in the order of its attributes; most ignore them.

#include <cstdint>

namespace plimsoll::cpu {

using UnaryRange = void(float* y, const float* x, int64_t n, float a, float b);

UnaryRange neg_range, abs_range, sign_range, exp_range, log_range, sqrt_range, rsqrt_range, reciprocal_range;
UnaryRange sin_range, cos_range, tan_range, asin_range, acos_range, atan_range;
UnaryRange sinh_range, cosh_range, tanh_range, asinh_range, acosh_range, atanh_range;
UnaryRange erf_range, floor_range, ceil_range, round_range;
UnaryRange relu_range, sigmoid_range, silu_range, softplus_range, softsign_range, mish_range;
UnaryRange gelu_range, gelu_tanh_range, elu_range, celu_range, selu_range, leaky_relu_range;
UnaryRange hard_sigmoid_range, hard_swish_range, thresholded_relu_range, shrink_range, clip_range;

// Gradients: dx[i] from what the forward kept (x or y) and dy[i]. dx may be either operand.
using UnaryGradRange = void(float* dx, const float* kept, const float* dy, int64_t n);

UnaryGradRange relu_grad_range, sigmoid_grad_range, tanh_grad_range, silu_grad_range;
UnaryGradRange gelu_grad_range, gelu_tanh_grad_range;

// The range over all elements, in parallel.
void map_unary(UnaryRange* range, float* y, const float* x, int64_t n, float a, float b);
void map_unary_grad(UnaryGradRange* range, float* dx, const float* kept, const float* dy, int64_t n);

}  // namespace plimsoll::cpu
