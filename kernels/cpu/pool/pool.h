#pragma once

// Pooling over planes: every (sample, channel) pair is one plane of up to three dimensions.

#include "kernels/pool_window.h"

namespace plimsoll::cpu {

struct PoolShape : PoolWindow<int64_t> {
  int64_t planes;
  bool count_include_pad;
};

// The first of the largest elements wins; NaN is larger than anything. With `indices`, its position in the
// whole x.
void max_pool(const PoolShape& shape, float* y, int64_t* indices, const float* x);
void max_pool_grad(const PoolShape& shape, float* dx, const float* x, const float* dy);

// The same by its number in the kernel, 255 where a window meets no input; kernels of up to 254 elements.
void max_pool_with_choices(const PoolShape& shape, float* y, uint8_t* choices, const float* x);
void max_pool_grad_of_choices(const PoolShape& shape, float* dx, const uint8_t* choices, const float* dy);

void average_pool(const PoolShape& shape, float* y, const float* x);
void average_pool_grad(const PoolShape& shape, float* dx, const float* dy);

}  // namespace plimsoll::cpu
