#pragma once

// Products of one matrix with each of a batch, and their sums over the batch, by our own kernels for Hopper.

#include "runtime/cuda/backend/launcher.h"

namespace plimsoll {

Result<std::unique_ptr<CudaPrepared>> prepare_left_product(CudaLibraries& libraries, const CudaCall& k);
Status launch_left_product(const CudaCall& k);

Result<std::unique_ptr<CudaPrepared>> prepare_left_gradient(CudaLibraries& libraries, const CudaCall& k);
Status launch_left_gradient(const CudaCall& k);

}  // namespace plimsoll
