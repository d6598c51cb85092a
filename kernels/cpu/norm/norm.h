#pragma once

// Layer and RMS normalisation by rows. A null scale, bias, dscale, dbias or addend is an absent one; dx may lie over
// the addend, which is added to it.

#include <cstdint>

namespace plimsoll::cpu {

// y = (x - mean) * rstd * scale + bias, row by row; x [rows, width], mean and rstd [rows]. An RMS norm has a null mean.
void row_norm(float* y, float* mean, float* rstd, const float* x, const float* scale, const float* bias, int64_t rows,
              int64_t width, float eps);
void row_norm_grad(float* dx, float* dscale, float* dbias, const float* x, const float* dy, const float* mean,
                   const float* rstd, const float* scale, const float* addend, int64_t rows, int64_t width);

}  // namespace plimsoll::cpu
