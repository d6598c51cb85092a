#include "runtime/cuda/backend/nvjpeg.h"

#include "runtime/cuda/find_symbol.h"

#include <dlfcn.h>

namespace plimsoll {

// The program has opened the library, wherever it lies.
Result<const NvjpegFunctions*> open_nvjpeg_functions() {
  static NvjpegFunctions f;
  static const bool opened = [] {
    void* library = nullptr;
    for (const char* name : {"libnvjpeg.so.13", "libnvjpeg.so.12"})
      if (!library) library = dlopen(name, RTLD_NOW | RTLD_GLOBAL);
    return library && find_symbol(library, "nvjpegCreateExV2", f.create) &&
           find_symbol(library, "nvjpegDestroy", f.destroy) &&
           find_symbol(library, "nvjpegJpegStateCreate", f.create_state) &&
           find_symbol(library, "nvjpegJpegStateDestroy", f.destroy_state) &&
           find_symbol(library, "nvjpegJpegStreamCreate", f.create_stream) &&
           find_symbol(library, "nvjpegJpegStreamDestroy", f.destroy_stream) &&
           find_symbol(library, "nvjpegJpegStreamParse", f.parse) &&
           find_symbol(library, "nvjpegDecodeBatchedSupported", f.supports) &&
           find_symbol(library, "nvjpegDecodeBatchedInitialize", f.begin_batches) &&
           find_symbol(library, "nvjpegDecodeBatched", f.decode_batch);
  }();
  if (opened) return &f;
  return system_error(
      "nvJPEG (libnvjpeg.so.13 libnvjpeg.so.12) is not found; install it, or name its folder in "
      "PLIMSOLL_CUDA_PATH");
}

}  // namespace plimsoll
