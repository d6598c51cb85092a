#include "passes/budget/pack_copies.h"

#include "passes/budget/copy_packing.h"
#include "passes/place/place_buffers.h"

#include <algorithm>
#include <utility>

// Of layouts at several heights those remain that are lower than every faster one.

namespace plimsoll {

// Within 2.5 % and within 0.95 % of the live peak, as searches from scratch and by some starts end there.
struct LooserLayouts {
  using Layout = std::optional<std::optional<CopyPacking::Kept>>;  // none: not looked for; of these none: not found
  Layout next, near, near_by_starts;
};

KnownLayouts::KnownLayouts() : looser_(std::make_shared<LooserLayouts>()) {}

namespace {

using Found = CopyPacking::Found;

// Where none is found near the live peak, and the first of those that go down step by step. Each step is a quarter of
// what is left, and no less than `least_step`.
constexpr double last_share = 0.05, loose_share = 0.09, step_share = 0.25, least_step = 0.0025;
constexpr int max_layouts_anew = 3;  // where pressing one lower fails or costs time
// Layouts that waste much are brought down from where they are and from so many starts. For all of a function that are,
// there is so many times the work for one way: for tight ones, and for those above.
constexpr int starts_lower = 8, times_lower_tight = 4, times_lower = 2;
// For a layout that a plan is to have, starts, the least work of each, and the work of all.
constexpr int starts_hard = 32, times_hard = 2;
constexpr int64_t least_steps_hard = 200'000'000, steps_hard = 3'000'000'000;

std::optional<PackedCopies> lowered(const CopyPacking& packing, const PackedCopies& high, double slowdown,
                                    const CopyPacking::WorkLower& work, int64_t steps) {
  const std::optional<Found> lower =
      packing.lowered(packing.reopened(high), 0, slowdown * high.overlap.total_us, work, steps);
  return lower ? std::optional(packing.packed(*lower)) : std::nullopt;
}

std::optional<Found> known_or(const CopyPacking& packing, LooserLayouts::Layout& known,
                              llvm::function_ref<std::optional<Found>()> search) {
  if (known) return *known ? std::optional(packing.found_again(**known)) : std::nullopt;
  std::optional<Found> found = search();
  known.emplace(found ? std::optional(CopyPacking::kept(*found)) : std::nullopt);
  return found;
}

std::optional<Found> next_from_scratch(const CopyPacking& packing, KnownLayouts& known) {
  return known_or(packing, known.looser().next,
                  [&] { return packing.from_scratch(packing.bytes_above_peak(next_share), CopyPacking::any_price); });
}

// Where lives had to be given up more easily for `next`, a lower layout is not found otherwise.
std::optional<Found> near_from_scratch(const CopyPacking& packing, const Found& next, KnownLayouts& known) {
  return known_or(packing, known.looser().near,
                  [&] { return packing.from_scratch(packing.bytes_above_peak(near_share), next.placer.price()); });
}

std::optional<Found> near_by_some_starts(const CopyPacking& packing, KnownLayouts& known) {
  return known_or(packing, known.looser().near_by_starts,
                  [&] { return packing.by_some_starts(packing.bytes_above_peak(near_share)); });
}

// From a loose one on: where there is none within 2.5 %, tighter ones are not looked for.
std::optional<Found> loose_first(const CopyPacking& packing, KnownLayouts& known) {
  std::optional<Found> loose = next_from_scratch(packing, known);
  if (!loose) return packing.anew(packing.bytes_above_peak(last_share));
  std::optional<Found> near = near_from_scratch(packing, *loose, known);
  if (!near) return loose;
  std::optional<Found> tight = packing.from_scratch(packing.bytes_above_peak(tight_share), near->placer.price());
  return tight ? std::move(tight) : std::move(near);
}

// Whether no one needs `b` beside `a`.
bool is_as_good(const PackedCopies& a, const PackedCopies& b) {
  return a.height_bytes <= b.height_bytes && a.overlap.total_us <= b.overlap.total_us;
}

}  // namespace

bool is_wasteful(const PackedCopies& copies) {
  return static_cast<double>(copies.height_bytes) > max_waste * static_cast<double>(copies.live_bytes);
}

std::vector<PackedCopies> worth_trying(std::vector<PackedCopies> layouts) {
  std::vector<PackedCopies> sorted, kept;  // by falling height
  for (PackedCopies& next : layouts) {
    if (llvm::any_of(sorted, [&](const PackedCopies& other) { return is_as_good(other, next); })) continue;
    llvm::erase_if(sorted, [&](const PackedCopies& other) { return is_as_good(next, other); });
    const auto lower =
        llvm::find_if(sorted, [&](const PackedCopies& other) { return other.height_bytes < next.height_bytes; });
    sorted.insert(lower, std::move(next));
  }
  for (size_t i = 0; i < sorted.size(); ++i) {
    const double enough_us = (is_wasteful(sorted[i]) ? max_slowdown : 1) * sorted[i].overlap.total_us;
    while (i + 1 < sorted.size() && sorted[i + 1].overlap.total_us <= enough_us) ++i;
    kept.push_back(std::move(sorted[i]));
  }
  return kept;
}

std::optional<PackedCopies> pack_tightly(const FunctionWithCopies& function, const Overlap& wide,
                                         const PlacementOptions& options, KnownLayouts& known) {
  const CopyPacking packing(function, wide, options);
  const int64_t tight_bytes = packing.bytes_above_peak(tight_share);
  std::optional<Found> best;
  if (packing.is_long()) {
    best = packing.from_scratch(tight_bytes, CopyPacking::lowest_price);
    if (!best) best = packing.from_scratch(packing.bytes_above_peak(next_share), CopyPacking::lowest_price);
  } else if (best = packing.anew(tight_bytes); !best) {
    best = loose_first(packing, known);
  }
  if (!best) return std::nullopt;
  int64_t left = packing.is_long() ? best->steps_left : packing.steps();
  const std::optional<Found> lower =
      packing.lowered(*best, 0, max_slowdown * best->total_us(), {packing.steps(), starts_lower}, left);
  return packing.packed(lower ? *lower : *best);
}

PackedCopies pack_more_tightly(const FunctionWithCopies& function, const Overlap& wide, const PackedCopies& tight,
                               const PlacementOptions& options, KnownLayouts& known) {
  if (!is_wasteful(tight)) return tight;
  const CopyPacking packing(function, wide, options);
  if (packing.is_long()) return tight;
  PackedCopies best = tight;
  for (double share : {near_share, tight_share}) {
    if (!is_wasteful(best) || best.height_bytes <= packing.bytes_above_peak(share)) continue;
    const std::optional<Found> found = share == near_share ? near_by_some_starts(packing, known)
                                                           : packing.by_some_starts(packing.bytes_above_peak(share));
    if (found) best = packing.packed(*found);
  }
  if (!is_wasteful(best)) return best;
  const CopyPacking shorter(function, best.overlap, options);
  return lowered(shorter, best, max_slowdown, {shorter.steps(), starts_lower}, times_lower_tight * shorter.steps())
      .value_or(best);
}

std::vector<PackedCopies> pack_step_by_step(const FunctionWithCopies& function, const Overlap& wide,
                                            const PackedCopies& tight, const PlacementOptions& options,
                                            KnownLayouts& known) {
  // Where the tight layout takes hardly longer than any can, it stands for all.
  if (tight.overlap.total_us <= max_slowdown * wide.total_us) return {tight};
  const CopyPacking packing(function, wide, options);
  std::vector<PackedCopies> layouts;
  int64_t left = packing.is_long() ? 0 : times_lower * packing.steps();
  const auto add = [&](const Found& found) {
    layouts.push_back(packing.packed(found));
    const std::optional<Found> low = packing.lowered(found, tight.height_bytes, max_slowdown * found.total_us(),
                                                     {packing.steps(), starts_lower}, left);
    if (low && low->height_bytes >= tight.height_bytes) layouts.push_back(packing.packed(*low));
  };
  int layouts_anew = max_layouts_anew;
  for (std::optional<Found> high = packing.from_scratch(packing.bytes_above_peak(loose_share), CopyPacking::any_price);
       high && high->height_bytes > tight.height_bytes;) {
    add(*high);
    const double share = static_cast<double>(high->height_bytes) / static_cast<double>(packing.peak_bytes()) - 1;
    const int64_t lower_bytes = packing.bytes_above_peak(share - std::max(step_share * share, least_step));
    std::optional<Found> lower = packing.pressed(*high, lower_bytes);
    const bool takes_longer = !lower || lower->total_us() > max_slowdown * high->total_us();
    if (takes_longer && lower_bytes > tight.height_bytes && layouts_anew-- > 0)
      if (std::optional<Found> other = packing.anew(lower_bytes);
          other && (!lower || other->total_us() < lower->total_us()))
        lower.emplace(std::move(*other));
    high = std::move(lower);
  }
  // The way down may end above these, or come to them late, and the tight one alone may take much longer.
  const auto add_if_above = [&](const std::optional<Found>& found) {
    if (found && found->height_bytes > tight.height_bytes) add(*found);
  };
  if (!packing.is_long()) {
    if (const std::optional<Found> next = next_from_scratch(packing, known)) {
      add_if_above(next);
      add_if_above(near_from_scratch(packing, *next, known));
    }
    add_if_above(near_by_some_starts(packing, known));
  }
  layouts.push_back(tight);
  return worth_trying(std::move(layouts));
}

std::optional<PackedCopies> press_hard(const FunctionWithCopies& function, const PackedCopies& high,
                                       const PlacementOptions& options) {
  const CopyPacking packing(function, high.overlap, options);
  return lowered(packing, high, max_hard_slowdown,
                 {std::max(least_steps_hard, times_hard * packing.steps()), starts_hard}, steps_hard);
}

BufferPlacement placement_of(const PackedCopies& packed, const Graph& graph, const BufferAssignment& assigned,
                             int64_t alignment) {
  std::vector<int64_t> offsets(assigned.buffers.size(), -1);
  for (size_t b = 0; b < offsets.size(); ++b)
    if (const ValueId value = assigned.buffers[b].first_value; value != ValueId::None)
      offsets[b] = packed.offset_of_value[index_of(value)];
  for (NodeId id : instructions_of(graph))
    if (const int32_t b = assigned.workspace_of[index_of(id)]; b >= 0)
      offsets[b] = packed.offset_of_workspace[index_of(id)];
  return placed_at(assigned.buffers, MemorySpace::Device, assigned.instructions, alignment, std::move(offsets));
}

}  // namespace plimsoll
