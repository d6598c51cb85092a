#pragma once

// linear_dw with dbias by our own kernel for Hopper.

#include "runtime/cuda/backend/launcher.h"

namespace plimsoll {

Result<std::unique_ptr<CudaPrepared>> prepare_weight_gradient(CudaLibraries& libraries, const CudaCall& k);
Status launch_weight_gradient(const CudaCall& k);

}  // namespace plimsoll
