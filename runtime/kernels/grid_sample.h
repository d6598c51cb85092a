#pragma once

// What planning knows of CUDA kernels that sample images at the places of a grid.

#include "runtime/kernels/cuda_candidate.h"

namespace plimsoll {

bool accepts_grid_samples(const OpCall& call, llvm::ArrayRef<Type> results);
int64_t grid_sample_dx_workspace(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription& device);

// As measured on an H200.
double grid_sample_us(const OpCall& call, const DeviceDescription& device);
double grid_sample_dx_us(const OpCall& call, const DeviceDescription& device);
double grid_sample_dgrid_us(const OpCall& call, const DeviceDescription& device);

}  // namespace plimsoll
