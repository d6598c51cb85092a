#pragma once

// Gives the buffers of a function their offsets in one memory.

#include "passes/analysis/plan_draft.h"
#include "passes/place/placement.h"

namespace plimsoll {

// Whether the buffer gets an offset in `space`: transient buffers and inputs do.
bool is_placed(const Buffer& buffer, MemorySpace space);

// Places those buffers. `instructions` is the function's count.
BufferPlacement place_buffers(llvm::ArrayRef<Buffer> buffers, MemorySpace space, int32_t instructions,
                              const PlacementOptions& options);

// The same by quick orders, and where these waste much in pages that windows of the device show, with the work of
// placing all of them so many times. Pages are left alone where they take more than they bring. With a layout that is
// `known`, that one or a lower one.
BufferPlacement place_buffers_in_pages(llvm::ArrayRef<Buffer> buffers, MemorySpace space, int32_t instructions,
                                       const DeviceDescription& device, int tries,
                                       const BufferPlacement* known = nullptr);

// Whether it wastes so little that none is looked for in pages that is lower.
bool is_low(const BufferPlacement& placed);

// A layout that is known, as the offset of each buffer.
BufferPlacement placed_at(llvm::ArrayRef<Buffer> buffers, MemorySpace space, int32_t instructions, int64_t alignment,
                          std::vector<int64_t> offsets);

// The largest sum of their bytes that are alive at one instruction; no layout is lower.
int64_t peak_bytes(llvm::ArrayRef<Buffer> buffers, MemorySpace space, int32_t instructions, int64_t alignment);

}  // namespace plimsoll
