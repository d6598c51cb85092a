#include "runtime/cuda/backend/driver.h"

#include "runtime/cuda/find_symbol.h"

#include <optional>

namespace plimsoll {

const Driver* driver() {
  static const std::optional<Driver> opened = []() -> std::optional<Driver> {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    Driver d{};
    if (library && find_symbol(library, "cuGetErrorString", d.error_string) &&
        find_symbol(library, "cuModuleLoadData", d.load) && find_symbol(library, "cuModuleUnload", d.unload) &&
        find_symbol(library, "cuModuleGetFunction", d.function) && find_symbol(library, "cuLaunchKernel", d.launch) &&
        find_symbol(library, "cuMemGetAllocationGranularity", d.granularity) &&
        find_symbol(library, "cuMemAddressReserve", d.reserve) && find_symbol(library, "cuMemAddressFree", d.free) &&
        find_symbol(library, "cuMemCreate", d.create) && find_symbol(library, "cuMemRelease", d.release) &&
        find_symbol(library, "cuMemMap", d.map) && find_symbol(library, "cuMemUnmap", d.unmap) &&
        find_symbol(library, "cuMemSetAccess", d.set_access))
      return d;
    return std::nullopt;
  }();
  return opened ? &*opened : nullptr;
}

Status driver_status(CUresult result, const llvm::Twine& what) {
  if (result == CUDA_SUCCESS) return Status::success();
  const char* why = nullptr;
  driver()->error_string(result, &why);
  return system_error(what + ": " + (why ? why : "unknown error"));
}

}  // namespace plimsoll
