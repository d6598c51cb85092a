#pragma once

// The layout of one function's buffers: with parts inside their wholes (passes/place/place_parts.h) where that makes it
// no higher, or alone. A layout is looked for by ever longer searches until it is close to what is alive at once.

#include "passes/place/place_buffers.h"
#include "passes/place/place_parts.h"

#include <optional>

namespace plimsoll {

struct LayoutSearch {
  int64_t alignment;
  double seconds;  // of work, see PlacementOptions
  // Where more is alive than this, whatever lies inside, all parts do and all layouts are quick, and these end sooner;
  // 0: nowhere.
  int64_t quick_above_bytes = 0;
};

struct LayoutWithParts {
  PlacedParts parts;                         // none where the layout would be higher with any
  std::optional<BufferPlacement> placement;  // of the buffers with these parts, in device memory; none: not looked for
  bool is_final = true;                      // false: it is assumed that parts lie inside
};

// Parts lie inside their wholes unless the layout gets higher by it: all of them, or else those whose wholes do not
// live much longer. `state_offset` is that of PartOptions.
LayoutWithParts lay_out_with_parts(const Graph& graph, const BufferAssignment& assigned,
                                   llvm::ArrayRef<int64_t> state_offset, const LayoutSearch& search);

// The layout of a function without parts inside.
BufferPlacement lay_out_alone(llvm::ArrayRef<Buffer> buffers, MemorySpace space, int32_t instructions,
                              const LayoutSearch& search);

// The same by quick orders of the buffers alone. `is_final` says whether no search would begin behind them.
struct QuickLayout {
  BufferPlacement placement;
  bool is_final = true;
};
QuickLayout lay_out_quickly(llvm::ArrayRef<Buffer> buffers, MemorySpace space, int32_t instructions,
                            const LayoutSearch& search);

}  // namespace plimsoll
