#pragma once

// Bytes that this process holds on its card, as the driver counts them.

#include "ir/support/status.h"

#include <cstdint>
#include <string>

namespace plimsoll {

class ProcessMemory {
 public:
  // Of the machine's card of that index. Before the first CUDA call, so that the device-wide fallback has a start to
  // count from.
  explicit ProcessMemory(int card);
  ~ProcessMemory();
  ProcessMemory(const ProcessMemory&) = delete;

  // NVML's count for this process, else the device-wide difference since the start; 0 where NVML is missing.
  int64_t bytes(std::string& source) const;

 private:
  struct Nvml;
  Nvml* nvml_ = nullptr;
  int64_t device_bytes_before_ = 0;
};

}  // namespace plimsoll
