#pragma once

#include "runtime/cuda/backend/generated_kernels.h"
#include "runtime/cuda/backend/launcher.h"

namespace plimsoll {

// The kernel of fused ops, in the form of a row of the table.
Result<std::unique_ptr<CudaPrepared>> prepare_fused(CudaLibraries& libraries, const CudaCall& k);
Status launch_fused(const CudaCall& k);

}  // namespace plimsoll
