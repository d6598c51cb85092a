#pragma once

// The driver's own functions, for what the runtime library has none for. The backend is not linked with the driver, so
// that it loads where there is none.

#include "ir/support/status.h"

#include <cuda.h>

namespace plimsoll {

struct Driver {
  decltype(&cuGetErrorString) error_string;
  // Generated kernels.
  decltype(&cuModuleLoadData) load;
  decltype(&cuModuleUnload) unload;
  decltype(&cuModuleGetFunction) function;
  decltype(&cuLaunchKernel) launch;
  // Memory that is mapped by pages.
  decltype(&cuMemGetAllocationGranularity) granularity;
  decltype(&cuMemAddressReserve) reserve;
  decltype(&cuMemAddressFree) free;
  decltype(&cuMemCreate) create;
  decltype(&cuMemRelease) release;
  decltype(&cuMemMap) map;
  decltype(&cuMemUnmap) unmap;
  decltype(&cuMemSetAccess) set_access;
};

// Null where the library is missing, or one of the functions.
const Driver* driver();

// In the driver's words; there has to be one.
Status driver_status(CUresult result, const llvm::Twine& what);

}  // namespace plimsoll
