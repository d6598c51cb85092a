#include "runtime/cuda/backend/process_memory.h"

#include "runtime/cuda/find_symbol.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <unistd.h>
#include <vector>

namespace plimsoll {

// NVML comes with the driver and is opened by name: the backend must load where it is missing. Its header is no part
// of the toolkit everywhere, so the few things asked for are declared here as NVML's manual gives them.
namespace {

constexpr int nvml_success = 0;
constexpr unsigned long long nvml_not_available = ~0ull;
struct NvmlMemory {
  unsigned long long total, free, used;
};
struct NvmlProcess {
  unsigned int pid;
  unsigned long long used_bytes;
  unsigned int gpu_instance, compute_instance;
};
using NvmlDevice = void*;

}  // namespace

struct ProcessMemory::Nvml {
  void* library = nullptr;
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*by_index)(unsigned int, NvmlDevice*) = nullptr;
  int (*by_bus)(const char*, NvmlDevice*) = nullptr;
  int (*memory)(NvmlDevice, NvmlMemory*) = nullptr;
  int (*processes)(NvmlDevice, unsigned int*, NvmlProcess*) = nullptr;

  bool open() {
    library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    return library && find_symbol(library, "nvmlInit_v2", init) && find_symbol(library, "nvmlShutdown", shutdown) &&
           find_symbol(library, "nvmlDeviceGetHandleByIndex_v2", by_index) &&
           find_symbol(library, "nvmlDeviceGetHandleByPciBusId_v2", by_bus) &&
           find_symbol(library, "nvmlDeviceGetMemoryInfo", memory) &&
           find_symbol(library, "nvmlDeviceGetComputeRunningProcesses_v3", processes) && init() == nvml_success;
  }
};

namespace {

template <typename Nvml>
bool card_of_context(const Nvml& nvml, NvmlDevice& card) {
  char bus[32];
  int device = 0;
  return cudaGetDevice(&device) == cudaSuccess && cudaDeviceGetPCIBusId(bus, sizeof bus, device) == cudaSuccess &&
         nvml.by_bus(bus, &card) == nvml_success;
}

}  // namespace

ProcessMemory::ProcessMemory(int index) : nvml_(new Nvml) {
  NvmlDevice card;
  NvmlMemory memory;
  if (!nvml_->open() || nvml_->by_index(static_cast<unsigned int>(index), &card) != nvml_success) {
    delete nvml_;
    nvml_ = nullptr;
  } else if (nvml_->memory(card, &memory) == nvml_success) {
    device_bytes_before_ = static_cast<int64_t>(memory.used);
  }
}

ProcessMemory::~ProcessMemory() {
  if (!nvml_) return;
  nvml_->shutdown();
  delete nvml_;
}

int64_t ProcessMemory::bytes(std::string& source) const {
  NvmlDevice card;
  if (!nvml_ || !card_of_context(*nvml_, card)) return 0;
  unsigned int count = 64;
  std::vector<NvmlProcess> processes(count);
  if (nvml_->processes(card, &count, processes.data()) == nvml_success)
    for (unsigned int i = 0; i < count; ++i)
      if (processes[i].pid == static_cast<unsigned int>(getpid()) && processes[i].used_bytes != nvml_not_available) {
        source = "NVML, this process";
        return static_cast<int64_t>(processes[i].used_bytes);
      }
  NvmlMemory memory;
  if (nvml_->memory(card, &memory) != nvml_success) return 0;
  source = "NVML, the whole card since the start";
  return static_cast<int64_t>(memory.used) - device_bytes_before_;
}

}  // namespace plimsoll
