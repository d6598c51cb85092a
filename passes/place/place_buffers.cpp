#include "passes/place/place_buffers.h"

#include "ir/support/align.h"
#include "ir/support/units.h"

#include <algorithm>
#include <numeric>

namespace plimsoll {
namespace {

Interval interval_of(const Buffer& buffer) { return {std::max<int64_t>(buffer.bytes, 1), buffer.first, buffer.last}; }

void find_peak(llvm::ArrayRef<Interval> intervals, int32_t instructions, int64_t alignment, BufferPlacement& placed) {
  // One place past the last instruction, and one instruction at least: a graph that folded away has only inputs.
  std::vector<int64_t> change(static_cast<size_t>(instructions) + 2, 0);
  for (const Interval& interval : intervals) {
    change[interval.first] += align_up(interval.bytes, alignment);
    change[interval.last + 1] -= align_up(interval.bytes, alignment);
  }
  std::partial_sum(change.begin(), change.end(), change.begin());
  auto top = std::max_element(change.begin(), change.end());
  placed.peak_bytes = *top;
  placed.peak_instruction = static_cast<int32_t>(top - change.begin());
}

Result<bool> run_place(PlanDraft& draft, size_t f, PassContext& context) {
  PlacementOptions options;
  options.alignment = context.number("align") > 0 ? context.number("align") : draft.device.alignment_bytes;
  const Graph& graph = draft.program.functions[f];
  const size_t nodes = graph.node_slots();
  FunctionDraft& function = draft.functions[f];
  if (!function.buffers) function.buffers = assign_buffers(graph, draft.writers(f), function.copies, *draft.catalog);
  const BufferPlacement placed =
      place_buffers(function.buffers->buffers, MemorySpace::Device, function.buffers->instructions, options);
  context.report("arena: " + llvm::Twine(placed.height_bytes) + " bytes, peak " + llvm::Twine(placed.peak_bytes) +
                 " at instruction " + llvm::Twine(placed.peak_instruction));
  function.placement = placed;
  return placed.buffers > 0 || graph.node_slots() != nodes;
}

constexpr PassOption place_options[] = {{"align", int64_t{0}, "bytes that offsets are multiples of; 0: the device's"}};

}  // namespace

bool is_placed(const Buffer& buffer, MemorySpace space) {
  return (buffer.kind == Buffer::Kind::Transient || buffer.kind == Buffer::Kind::Input) && buffer.space == space;
}

BufferPlacement placed_at(llvm::ArrayRef<Buffer> buffers, MemorySpace space, int32_t instructions, int64_t alignment,
                          std::vector<int64_t> offsets) {
  BufferPlacement placed;
  std::vector<Interval> intervals;
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (!is_placed(buffers[i], space)) continue;
    intervals.push_back(interval_of(buffers[i]));
    placed.height_bytes = std::max(placed.height_bytes, offsets[i] + align_up(intervals.back().bytes, alignment));
  }
  placed.offset = std::move(offsets);
  placed.buffers = static_cast<int32_t>(intervals.size());
  find_peak(intervals, instructions, alignment, placed);
  placed.lower_bound_bytes = placed.peak_bytes;
  placed.method = "together with the intervals of copies";
  return placed;
}

int64_t peak_bytes(llvm::ArrayRef<Buffer> buffers, MemorySpace space, int32_t instructions, int64_t alignment) {
  std::vector<Interval> intervals;
  for (const Buffer& buffer : buffers)
    if (is_placed(buffer, space)) intervals.push_back(interval_of(buffer));
  BufferPlacement placed;
  find_peak(intervals, instructions, alignment, placed);
  return placed.peak_bytes;
}

BufferPlacement place_buffers(llvm::ArrayRef<Buffer> buffers, MemorySpace space, int32_t instructions,
                              const PlacementOptions& options) {
  std::vector<Interval> intervals;
  std::vector<size_t> placed_buffers;
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (!is_placed(buffers[i], space)) continue;
    placed_buffers.push_back(i);
    intervals.push_back(interval_of(buffers[i]));
  }
  const Placement placement = place_intervals(intervals, options);
  BufferPlacement placed;
  placed.offset.assign(buffers.size(), -1);
  for (size_t i = 0; i < intervals.size(); ++i) placed.offset[placed_buffers[i]] = placement.offsets[i];
  placed.height_bytes = placement.height_bytes;
  placed.lower_bound_bytes = placement.lower_bound_bytes;
  placed.buffers = static_cast<int32_t>(intervals.size());
  placed.method = placement.method;
  find_peak(intervals, instructions, options.alignment, placed);
  return placed;
}

constinit const PassInfo pass_place{
    .name = "place",
    .summary = "gives every transient buffer its offset in the arena",
    .options = place_options,
    .plan = run_place,
};

}  // namespace plimsoll
