// Stands in for NVIDIA's driver (libcuda.so.1) where cuDNN plans for a card that is not here. cuDNN generates the
// kernels of attention as it plans, and loads them at once; this driver takes every module it is given, knows of no
// card, and refuses everything else.

namespace {

constexpr int success = 0, no_device = 100;
int module;

}  // namespace

extern "C" {

int cuLibraryLoadData(void** library) { return *library = &module, success; }
int cuLibraryGetKernel(void** kernel) { return *kernel = &module, success; }
int cuLibraryUnload() { return success; }
int cuGetErrorString(int, const char** text) { return *text = "no card here", success; }
int cuGetErrorName(int, const char** name) { return *name = "CUDA_ERROR_NO_DEVICE", success; }

// What cuDNN 9 looks up and must find.
#define PLIMSOLL_REFUSED(name) \
  int name() { return no_device; }
PLIMSOLL_REFUSED(cuInit)
PLIMSOLL_REFUSED(cuDriverGetVersion)
PLIMSOLL_REFUSED(cuDeviceGet)
PLIMSOLL_REFUSED(cuDeviceGetCount)
PLIMSOLL_REFUSED(cuDeviceGetAttribute)
PLIMSOLL_REFUSED(cuDevicePrimaryCtxRetain)
PLIMSOLL_REFUSED(cuDevicePrimaryCtxRelease)
PLIMSOLL_REFUSED(cuDevicePrimaryCtxReset)
PLIMSOLL_REFUSED(cuCtxGetCurrent)
PLIMSOLL_REFUSED(cuCtxGetDevice)
PLIMSOLL_REFUSED(cuCtxGetLimit)
PLIMSOLL_REFUSED(cuCtxPopCurrent)
PLIMSOLL_REFUSED(cuCtxPushCurrent)
PLIMSOLL_REFUSED(cuFuncGetAttribute)
PLIMSOLL_REFUSED(cuFuncSetAttribute)
PLIMSOLL_REFUSED(cuKernelGetAttribute)
PLIMSOLL_REFUSED(cuKernelSetAttribute)
PLIMSOLL_REFUSED(cuLaunchCooperativeKernel)
PLIMSOLL_REFUSED(cuLaunchKernel)
PLIMSOLL_REFUSED(cuLaunchKernelEx)
PLIMSOLL_REFUSED(cuLibraryLoadFromFile)
PLIMSOLL_REFUSED(cuLinkAddData)
PLIMSOLL_REFUSED(cuLinkAddData_v2)
PLIMSOLL_REFUSED(cuLinkAddFile_v2)
PLIMSOLL_REFUSED(cuLinkComplete)
PLIMSOLL_REFUSED(cuLinkCreate)
PLIMSOLL_REFUSED(cuLinkCreate_v2)
PLIMSOLL_REFUSED(cuLinkDestroy)
PLIMSOLL_REFUSED(cuMemcpyDtoH_v2)
PLIMSOLL_REFUSED(cuModuleGetFunction)
PLIMSOLL_REFUSED(cuModuleGetGlobal_v2)
PLIMSOLL_REFUSED(cuModuleLoadData)
PLIMSOLL_REFUSED(cuModuleLoadDataEx)
PLIMSOLL_REFUSED(cuModuleLoadFatBinary)
PLIMSOLL_REFUSED(cuModuleUnload)
PLIMSOLL_REFUSED(cuOccupancyMaxActiveBlocksPerMultiprocessor)
PLIMSOLL_REFUSED(cuOccupancyMaxPotentialClusterSize)
PLIMSOLL_REFUSED(cuStreamGetCtx)
PLIMSOLL_REFUSED(cuStreamSynchronize)
PLIMSOLL_REFUSED(cuTensorMapEncodeTiled)

}  // extern "C"
