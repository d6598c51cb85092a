#pragma once

#include "ir/machine/device.h"
#include "ir/op_def.h"

// What attention's kernels take, in us; 0 where a description does not say enough. Constants were measured on an
// H200 and are scaled by the speeds that a device's description has.

namespace plimsoll {

double cudnn_us(const OpCall& call, const DeviceDescription& device);
double few_rows_us(const OpCall& call, const DeviceDescription& device);
double attention_us(const OpCall& call, const DeviceDescription& device);  // on the matrix units
double flash_us(const OpCall& call, const DeviceDescription& device);      // on the vector units

double whole_heads_us(const OpCall& grad, const DeviceDescription& device);
double one_pass_us(const OpCall& grad, const DeviceDescription& device);
double few_rows_grad_us(const OpCall& grad, const DeviceDescription& device);
double mma_grad_us(const OpCall& grad, const DeviceDescription& device);
double flash_grad_us(const OpCall& grad, const DeviceDescription& device);

// The gradient of a mask alone, and with those of q, k and v.
double mask_grad_us(const OpCall& grad, const DeviceDescription& device);
double one_pass_with_mask_us(const OpCall& grad, const DeviceDescription& device);
double stored_scores_us(const OpCall& grad, const DeviceDescription& device);
double grad_with_mask_us(const OpCall& grad, const DeviceDescription& device);
double flash_with_mask_us(const OpCall& grad, const DeviceDescription& device);

double sinks_grad_us(const OpCall& call, const DeviceDescription& device);
double rotary_us(const OpCall& call, const DeviceDescription& device);

}  // namespace plimsoll
