#include "passes/lay_out_function.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>

namespace plimsoll {
namespace {

// A height at which quick orders end where what is alive is too much already.
int64_t low_enough_height(int64_t live_bytes) { return live_bytes + live_bytes / 100; }

// A height from which no further search for a layout begins: the rest takes longest to find.
int64_t close_height(int64_t live_bytes) { return live_bytes + live_bytes / 1000; }

PlacementOptions placement_options(llvm::ArrayRef<Buffer> buffers, MemorySpace space, int32_t instructions,
                                   const LayoutSearch& search) {
  PlacementOptions options;
  options.alignment = search.alignment;
  options.seconds = search.seconds;
  options.close_bytes = close_height(peak_bytes(buffers, space, instructions, search.alignment));
  return options;
}

// Parts inside often lower the peak, which may be far above what is alive then. Greedy orders, which cost little, go
// on until they are close to that, and searches begin above 1/500 more, or above the layout apart if there is one.
BufferPlacement lay_out_inside(llvm::ArrayRef<Buffer> buffers, int32_t instructions, int64_t peak_apart,
                               const std::optional<BufferPlacement>& apart, const LayoutSearch& search) {
  PlacementOptions options = placement_options(buffers, MemorySpace::Device, instructions, search);
  const int64_t live_bytes = peak_bytes(buffers, MemorySpace::Device, instructions, search.alignment);
  const int64_t enough_bytes = apart ? apart->height_bytes : std::min(peak_apart, live_bytes + live_bytes / 500);
  options.capacity_bytes = std::min(enough_bytes, close_height(live_bytes));
  options.close_bytes = std::max(options.close_bytes, enough_bytes);
  options.peak_orders = true;
  return place_buffers(buffers, MemorySpace::Device, instructions, options);
}

}  // namespace

LayoutWithParts lay_out_with_parts(const Graph& graph, const BufferAssignment& assigned,
                                   llvm::ArrayRef<int64_t> state_offset, const LayoutSearch& search) {
  const int32_t instructions = assigned.instructions;
  const auto parts_of = [&](int32_t max_more_life) {
    return place_parts(graph, assigned, {search.alignment, max_more_life, state_offset});
  };
  const auto peak_of = [&](llvm::ArrayRef<Buffer> buffers) {
    return peak_bytes(buffers, MemorySpace::Device, instructions, search.alignment);
  };
  const int32_t max_more_lives[] = {instructions, instructions / 8};
  const int64_t peak = peak_of(assigned.buffers), close = close_height(peak);
  const bool is_quick = search.quick_above_bytes > 0 && peak > search.quick_above_bytes &&
                        llvm::all_of(max_more_lives, [&](int32_t max_more_life) {
                          return peak_of(parts_of(max_more_life).buffers) > search.quick_above_bytes;
                        });
  std::optional<BufferPlacement> apart;
  for (const int32_t max_more_life : max_more_lives) {
    PlacedParts parts = parts_of(max_more_life);
    if (parts.count == 0) break;
    if (is_quick) {
      QuickLayout inside = lay_out_quickly(parts.buffers, MemorySpace::Device, instructions, search);
      return {std::move(parts), std::move(inside.placement), false};
    }
    BufferPlacement inside = lay_out_inside(parts.buffers, instructions, peak, apart, search);
    if (inside.height_bytes > close && !apart)
      apart = place_buffers(assigned.buffers, MemorySpace::Device, instructions,
                            placement_options(assigned.buffers, MemorySpace::Device, instructions, search));
    if (apart && inside.height_bytes > apart->height_bytes) continue;
    return {std::move(parts), std::move(inside)};
  }
  return {{}, std::move(apart)};
}

BufferPlacement lay_out_alone(llvm::ArrayRef<Buffer> buffers, MemorySpace space, int32_t instructions,
                              const LayoutSearch& search) {
  PlacementOptions options = placement_options(buffers, space, instructions, search);
  options.peak_orders = true;
  return place_buffers(buffers, space, instructions, options);
}

QuickLayout lay_out_quickly(llvm::ArrayRef<Buffer> buffers, MemorySpace space, int32_t instructions,
                            const LayoutSearch& search) {
  QuickLayout layout;
  PlacementOptions options = placement_options(buffers, space, instructions, search);
  options.peak_orders = true;
  const int64_t live_bytes = peak_bytes(buffers, space, instructions, search.alignment);
  if (search.quick_above_bytes > 0 && space == MemorySpace::Device && live_bytes > search.quick_above_bytes)
    options.capacity_bytes = low_enough_height(live_bytes);
  const auto goes_on = [&](int64_t height_bytes) {
    layout.is_final &= height_bytes <= options.close_bytes;
    return false;
  };
  options.goes_on = goes_on;
  layout.placement = place_buffers(buffers, space, instructions, options);
  return layout;
}

}  // namespace plimsoll
