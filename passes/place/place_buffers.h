#pragma once

// Gives the buffers of a function their offsets in one memory.

#include "passes/analysis/plan_draft.h"
#include "passes/place/placement.h"

namespace plimsoll {

// Transient buffers and inputs of `space`. `instructions` is the function's count.
BufferPlacement place_buffers(llvm::ArrayRef<Buffer> buffers, MemorySpace space, int32_t instructions,
                              const PlacementOptions& options);

// The largest sum of their bytes that are alive at one instruction; no layout is lower.
int64_t peak_bytes(llvm::ArrayRef<Buffer> buffers, MemorySpace space, int32_t instructions, int64_t alignment);

}  // namespace plimsoll
