#include "passes/place/place_buffers.h"

#include "ir/support/align.h"
#include "ir/support/units.h"
#include "passes/place/paged_placement.h"

#include <algorithm>
#include <numeric>

namespace plimsoll {
namespace {

constexpr double enough_share = 0.004;  // above the peak

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

namespace {

// The buffers that are placed, as intervals.
struct PlacedBuffers {
  PlacedBuffers(llvm::ArrayRef<Buffer> buffers, MemorySpace space) : count(buffers.size()) {
    for (size_t i = 0; i < buffers.size(); ++i) {
      if (!is_placed(buffers[i], space)) continue;
      index.push_back(i);
      intervals.push_back(interval_of(buffers[i]));
    }
  }
  std::vector<int64_t> by_buffer(llvm::ArrayRef<int64_t> offsets) const {
    std::vector<int64_t> all(count, -1);
    for (size_t i = 0; i < index.size(); ++i) all[index[i]] = offsets[i];
    return all;
  }

  size_t count;
  std::vector<size_t> index;
  std::vector<Interval> intervals;
};

BufferPlacement placed_as(const PlacedBuffers& buffers, const Placement& placement, int32_t instructions,
                          int64_t alignment) {
  BufferPlacement placed;
  placed.offset = buffers.by_buffer(placement.offsets);
  placed.height_bytes = placement.height_bytes;
  placed.lower_bound_bytes = placement.lower_bound_bytes;
  placed.buffers = static_cast<int32_t>(buffers.intervals.size());
  placed.method = placement.method;
  find_peak(buffers.intervals, instructions, alignment, placed);
  return placed;
}

}  // namespace

BufferPlacement place_buffers(llvm::ArrayRef<Buffer> buffers, MemorySpace space, int32_t instructions,
                              const PlacementOptions& options) {
  const PlacedBuffers those(buffers, space);
  return placed_as(those, place_intervals(those.intervals, options), instructions, options.alignment);
}

bool is_low(const BufferPlacement& placed) {
  return static_cast<double>(placed.height_bytes) <= (1 + enough_share) * static_cast<double>(placed.peak_bytes);
}

BufferPlacement place_buffers_in_pages(llvm::ArrayRef<Buffer> buffers, MemorySpace space, int32_t instructions,
                                       const DeviceDescription& device, int tries, const BufferPlacement* known) {
  const PlacedBuffers those(buffers, space);
  BufferPlacement placed;
  if (known) {
    placed = *known;
  } else {
    PlacementOptions options;
    options.alignment = device.alignment_bytes;
    const auto no_search = [](int64_t) { return false; };
    options.goes_on = no_search;
    placed = placed_as(those, place_intervals(those.intervals, options), instructions, device.alignment_bytes);
  }
  if (is_low(placed)) return placed;
  std::optional<PagedPlacement> paged =
      place_in_pages(those.intervals, device.alignment_bytes, device.page_bytes, tries, enough_share,
                     known ? placed.height_bytes : std::numeric_limits<int64_t>::max());
  if (!paged) return placed;
  BufferPlacement in_pages = placed;
  in_pages.offset = those.by_buffer(paged->offsets);
  in_pages.height_bytes = paged->height_bytes;
  in_pages.method = "in pages";
  in_pages.page_bytes = device.page_bytes;
  in_pages.windows = std::move(paged->windows);
  const auto bytes = [&](const BufferPlacement& each) { return each.height_bytes + each.windows_bytes(device); };
  return bytes(in_pages) < bytes(placed) ? in_pages : placed;
}

constinit const PassInfo pass_place{
    .name = "place",
    .summary = "gives every transient buffer its offset in the arena",
    .options = place_options,
    .plan = run_place,
};

}  // namespace plimsoll
