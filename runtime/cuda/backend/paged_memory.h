#pragma once

// An arena whose windows show some of its pages at further addresses.

#include "ir/plan/windows.h"
#include "runtime/cuda/backend/device_memory.h"

namespace plimsoll {

// The arena's bytes, with its windows behind them where ArenaAddresses says. Fails where the driver cannot map memory,
// or not pages of the arena's size.
Result<CudaMemory> paged_device_memory(const Arena& arena, llvm::StringRef what);

}  // namespace plimsoll
