#include "passes/budget/offload_level_search.h"

// The budget bounds the arena, and only placement knows its height. So each function's plans are tried from the fastest
// on until one fits: its live bytes are a bound that skips most, greedy orders place most others, and only a plan whose
// live bytes fit and whose greedy height does not is placed with all the work that the final plan gets.

#include "ir/support/parallel.h"
#include "passes/analysis/transfer_waits.h"
#include "passes/budget/least_layout.h"
#include "passes/offload/offload_rewrite.h"
#include "passes/place/place_buffers.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace plimsoll {
namespace {

constexpr double brief_share = 0.25;  // of the work for a layout that is only compared with others
// For layouts in pages, and for those that a plan may have and that waste much or are too high with these.
constexpr int tries_in_pages = 10, hard_tries = 40;

}  // namespace

OffloadLevelSearch::TriedFunction OffloadLevelSearch::apply(const Trial& trial) {
  TriedFunction tried{trial.order->graph, {}};
  tried.draft.writers = trial.order->writers;
  tried.draft.added = rematerialise(tried.graph, trial.candidate->plan, trial.order->sequence.values);
  tried.draft.copies = issue_copies(tried.graph, trial.overlap ? llvm::ArrayRef<CopyInterval>(trial.overlap->intervals)
                                                               : llvm::ArrayRef<CopyInterval>());
  llvm::append_range(tried.draft.copies, transfers_in_flight(tried.graph, tried.draft.writers));
  return tried;
}

// Collectives that run again, such as gathers of parameters that were dropped in between.
int64_t OffloadLevelSearch::repeated_collectives(const TriedFunction& tried) {
  return llvm::count_if(tried.draft.added, [&](NodeId id) { return tried.graph.node(id).op->engine == Engine::Ranks; });
}

// Windows are those of one function, since what they take outside the arena is taken from all of them.
bool OffloadLevelSearch::lies_in_pages(const Trial& trial) const {
  return in_.draft.device.page_bytes > 0 && !trial.packed &&
         llvm::any_of(functions_.front().orders, [&](const OrderVariant& order) { return &order == trial.order; });
}

// The layout in pages that a trial has within the allowance, whatever other budgets looked for: that of little work
// where it is low enough. False where more work may find a lower one.
bool OffloadLevelSearch::choose_pages(TrialLayout& layout, int64_t allowance, LayoutSearch search) const {
  if (!layout.quick) return false;
  const auto choose = [&](const BufferPlacement& placement) {
    layout.windows_bytes = placement.windows_bytes(in_.draft.device);
    layout.height_bytes = placement.height_bytes + layout.repeated_bytes + layout.windows_bytes;
    layout.placement = placement;
    layout.is_searched = true;
  };
  choose(*layout.quick);
  const auto wastes_much = [&] {
    return static_cast<double>(layout.height_bytes - layout.windows_bytes) >
           max_waste * static_cast<double>(layout.live_bytes);
  };
  if (search != LayoutSearch::Whole || is_low(*layout.quick) || (layout.height_bytes <= allowance && !wastes_much()))
    return true;
  if (!layout.hard) return false;
  if (layout.hard->height_bytes + layout.hard->windows_bytes(in_.draft.device) <
      layout.quick->height_bytes + layout.windows_bytes)
    choose(*layout.hard);
  return true;
}

// Measures what decides whether the trial is within the allowance, and nothing where its live bytes already say no.
void OffloadLevelSearch::measure(const Trial& trial, int64_t allowance, LayoutSearch search) const {
  TrialLayout& layout = trial.layout();
  const bool in_pages = lies_in_pages(trial);
  if (layout.live_bytes > allowance) return;
  if (in_pages ? choose_pages(layout, allowance, search) : layout.is_searched) return;
  // Where copies may give way, the brief search compares the layouts for which they do with the greedy ones: what it
  // finds beside all that copies hold is 7 to 22 % above what is alive, in as much time as the search for all others.
  const auto is_searched_on = [&] {
    if (layout.height_bytes <= allowance || search == LayoutSearch::Greedy) return false;
    return search == LayoutSearch::Whole ? !is_well_packed(trial, PackedLayouts::Tight) : !may_give_way(trial);
  };
  if (!in_pages && layout.height_bytes >= 0 && !is_searched_on()) return;
  const TriedFunction tried = apply(trial);
  const int64_t repeated_bytes = repeated_collectives(tried) * in_.draft.device.collective_graph_bytes;
  const BufferAssignment assigned =
      assign_buffers(tried.graph, tried.draft.writers, tried.draft.copies, *in_.draft.catalog);
  PlacementOptions options;
  options.alignment = in_.draft.device.alignment_bytes;
  options.seconds = in_.placement_seconds;
  const auto place = [&](MemorySpace space) {
    return place_buffers(assigned.buffers, space, assigned.instructions, options);
  };
  layout.live_bytes =
      peak_bytes(assigned.buffers, MemorySpace::Device, assigned.instructions, options.alignment) + repeated_bytes;
  if (layout.live_bytes > allowance) return;
  if (layout.host_bytes < 0 && in_.host_budget_bytes > 0) layout.host_bytes = place(MemorySpace::Host).height_bytes;
  if (trial.packed) {
    layout.height_bytes =
        placement_of(trial.packed->copies, tried.graph, assigned, options.alignment).height_bytes + repeated_bytes;
    layout.is_searched = true;
    return;
  }
  const auto keep = [&](BufferPlacement placement) {
    layout.height_bytes = placement.height_bytes + repeated_bytes;
    layout.placement = std::move(placement);
    layout.is_searched = true;
  };
  if (in_pages) {
    const auto place_in_pages = [&](int tries, const BufferPlacement* known) {
      return place_buffers_in_pages(assigned.buffers, MemorySpace::Device, assigned.instructions, in_.draft.device,
                                    tries, known);
    };
    layout.repeated_bytes = repeated_bytes;
    if (!layout.quick) layout.quick = place_in_pages(tries_in_pages, nullptr);
    if (choose_pages(layout, allowance, search)) return;
    layout.hard = place_in_pages(hard_tries, &*layout.quick);
    if (layout.hard->windows.empty() && !is_low(*layout.hard))  // pages bring nothing
      if (BufferPlacement searched = place(MemorySpace::Device); searched.height_bytes < layout.hard->height_bytes)
        layout.hard = std::move(searched);
    choose_pages(layout, allowance, search);
    return;
  }
  if (layout.height_bytes < 0) {
    bool goes_on = false;
    const auto ask = [&](int64_t height_bytes) {
      layout.height_bytes = height_bytes + repeated_bytes;
      return goes_on = search == LayoutSearch::Whole && is_searched_on();
    };
    options.goes_on = ask;
    BufferPlacement placement = place(MemorySpace::Device);
    if (goes_on) return keep(std::move(placement));
  }
  if (!is_searched_on()) return;
  options.goes_on = nullptr;
  if (search == LayoutSearch::Brief) {
    options.seconds *= brief_share;
    layout.brief_bytes = place(MemorySpace::Device).height_bytes + repeated_bytes;
    return;
  }
  keep(place(MemorySpace::Device));
}

// A trial's function as its copies are packed, before any is issued elsewhere.
struct OffloadLevelSearch::Packing {
  Packing(const OffloadLevelSearch& search, const Trial& trial)
      : in_place(apply({trial.order, trial.candidate, trial.us})),
        problem(apply_to_problem(trial.order->sequence.problem, trial.candidate->plan)),
        function{in_place.graph, in_place.draft.writers, *search.in_.draft.catalog, problem} {
    options.alignment = search.in_.draft.device.alignment_bytes;
    options.seconds = search.in_.placement_seconds;
  }
  Packing(const Packing&) = delete;
  Packing& operator=(const Packing&) = delete;

  const TriedFunction in_place;
  const RematProblem problem;
  const FunctionWithCopies function;
  PlacementOptions options;
};

// Where windows show pages side by side, nothing has to unless these and what they take waste much.
bool OffloadLevelSearch::may_give_way(const Trial& trial) const {
  if (!trial.overlap || trial.packed || meets_stages(trial.order->graph)) return false;
  if (!lies_in_pages(trial)) return true;
  const TrialLayout& layout = trial.layout();
  if (!layout.quick) return false;
  const int64_t bytes =
      layout.quick->height_bytes + layout.repeated_bytes + layout.quick->windows_bytes(in_.draft.device);
  return static_cast<double>(bytes) > max_waste * static_cast<double>(layout.live_bytes);
}

// The layouts of a trial's copies, whatever the budget; null where they need none.
PackedTry* OffloadLevelSearch::pack(const Trial& trial, PackedLayouts wanted) const {
  if (!may_give_way(trial)) return nullptr;
  RematCandidate& candidate = *trial.candidate;
  PackedTry& made = candidate.packed[static_cast<size_t>(trial.overlap - candidate.overlaps.data())];
  const bool wants_steps = wanted == PackedLayouts::Steps && !made.has_steps;
  const bool wants_starts = wanted != PackedLayouts::TightOfOneStart && !made.has_starts;
  if (made.was_made && !wants_starts && !wants_steps) return &made;
  const Packing packing(*this, trial);
  if (!std::exchange(made.was_made, true))
    if (std::optional<PackedCopies> tight = pack_tightly(packing.function, *trial.overlap, packing.options, made.known))
      made.tight.emplace(PackedOverlap{std::move(*tight), {}});
  if (wants_starts) {
    made.has_starts = true;
    if (made.tight)
      made.tight = {
          pack_more_tightly(packing.function, *trial.overlap, made.tight->copies, packing.options, made.known), {}};
  }
  if (wants_steps) {
    made.has_steps = true;
    if (made.tight)
      for (PackedCopies& copies :
           pack_step_by_step(packing.function, *trial.overlap, made.tight->copies, packing.options, made.known))
        made.steps.push_back({std::move(copies), {}});
    made.known = {};
  }
  return &made;
}

Trial OffloadLevelSearch::packed_trial(const Trial& trial, PackedOverlap& packed) {
  const Overlap& overlap = packed.copies.overlap;
  return {trial.order, trial.candidate, std::max(trial.us, overlap.total_us), &overlap, false, &packed};
}

// The trial with intervals that its layout has room for: lower layouts with shorter ones. Empty where they need not or
// cannot be found.
std::vector<Trial> OffloadLevelSearch::packed(const Trial& trial) const {
  std::vector<Trial> trials;
  if (PackedTry* made = pack(trial, PackedLayouts::Steps))
    for (PackedOverlap& packed : made->steps) trials.push_back(packed_trial(trial, packed));
  return trials;
}

// The one of these that is looked for alone.
std::optional<Trial> OffloadLevelSearch::tightly_packed(const Trial& trial, PackedLayouts wanted) const {
  PackedTry* made = pack(trial, wanted);
  return made && made->tight ? std::optional(packed_trial(trial, *made->tight)) : std::nullopt;
}

// Whether its copies gave way to a layout that wastes so little that no other is looked for.
bool OffloadLevelSearch::is_well_packed(const Trial& trial, PackedLayouts wanted) const {
  const std::optional<Trial> tight = tightly_packed(trial, wanted);
  return tight && static_cast<double>(tight->packed->copies.height_bytes) <=
                      max_waste * static_cast<double>(trial.layout().live_bytes);
}

bool OffloadLevelSearch::is_wasteful(const TrialLayout& layout) {
  return static_cast<double>(layout.height_bytes) > max_waste * static_cast<double>(layout.live_bytes);
}

bool OffloadLevelSearch::is_above_host(const TrialLayout& layout) const {
  return in_.host_budget_bytes > 0 && host_bytes_ + layout.host_bytes > in_.host_budget_bytes;
}

bool OffloadLevelSearch::fits(const Trial& trial) const {
  measure(trial, allowance_);
  const TrialLayout& layout = trial.layout();
  if (layout.live_bytes > allowance_ || layout.height_bytes > allowance_ || is_above_host(layout)) return false;
  return !gives_way(trial);
}

// The trial with a lower layout; none where its own does not waste much, or none is found. Whatever the budget, the
// layout is what becomes of the trial's, but the trial is one of a budget that its own layout is within.
std::optional<Trial> OffloadLevelSearch::pressed_hard(const Trial& trial) const {
  if (!trial.packed || !is_wasteful(trial.layout())) return std::nullopt;
  PackedOverlap& high = *trial.packed;
  if (!std::exchange(high.was_pressed, true)) {
    const Packing packing(*this, trial);
    if (std::optional<PackedCopies> low = press_hard(packing.function, high.copies, packing.options)) {
      high.pressed = std::make_shared<PackedOverlap>(PackedOverlap{std::move(*low), {}});
      high.pressed->was_pressed = true;
    }
  }
  return high.pressed ? std::optional(packed_trial(trial, *high.pressed)) : std::nullopt;
}

// Whether the same copies take fewer bytes and hardly more time where their intervals give way to the layout.
bool OffloadLevelSearch::gives_way(const Trial& trial) const {
  if (!is_wasteful(trial.layout())) return false;
  return llvm::any_of(packed(trial), [&](const Trial& packed) {
    return packed.us <= trial.us * max_slowdown && packed.packed->copies.height_bytes < trial.layout().height_bytes;
  });
}

// No layout of the trial is lower than the tight one, so where that is above the allowance, no others are looked for.
OffloadLevelSearch::TriedLayout OffloadLevelSearch::try_layout(const Trial& trial) const {
  if (fits(trial)) return {.fits = true};
  if (!is_only_too_high(trial)) return {};
  const std::optional<Trial> tight = tightly_packed(trial);
  if (!tight || tight->packed->copies.height_bytes > allowance_) return {.is_too_high = true};
  std::vector<Trial> lower = packed(trial);
  llvm::erase_if(lower, [&](const Trial& layout) { return layout.packed->copies.height_bytes > allowance_; });
  return {.is_too_high = true, .lower = std::move(lower)};
}

// Whether the bytes that are alive are within the allowance, once `fits` has said no.
bool OffloadLevelSearch::is_only_too_high(const Trial& trial) const {
  const TrialLayout& layout = trial.layout();
  return layout.live_bytes <= allowance_ && !is_above_host(layout);
}

// The trial that needs least, whatever the budget; none where all need `enough_bytes` or more.
std::optional<Trial> OffloadLevelSearch::least_of(FunctionSearch& function, int64_t enough_bytes) {
  search_all_groups(function);
  std::vector<Trial> candidates, trials;
  for (OrderVariant& order : function.orders)
    for (std::vector<RematCandidate>& levels : order.levels)
      for (RematCandidate& candidate : levels)
        if (host_bytes_of(order.sequence.problem, candidate.plan) <= order.host_room)
          candidates.push_back({&order, &candidate, candidate.min_us});
  parallel_for(candidates.size(), [&](size_t i) {
    const Trial& trial = candidates[i];
    if (copies_or_collectives(*trial.order, *trial.candidate))
      static_cast<void>(overlaps_of(*trial.order, *trial.candidate, std::numeric_limits<double>::infinity()));
  });
  for (const Trial& trial : candidates) {
    if (!copies_or_collectives(*trial.order, *trial.candidate)) trials.push_back(trial);
    for (const Overlap& overlap : trial.candidate->overlaps)
      trials.push_back({trial.order, trial.candidate, overlap.total_us, &overlap});
  }
  std::vector<int64_t> reckoned_bytes;
  for (const Trial& trial : trials)
    reckoned_bytes.push_back(trial.overlap ? trial.overlap->peak_bytes : trial.candidate->plan.peak_bytes);
  if (const auto lowest = std::min_element(reckoned_bytes.begin(), reckoned_bytes.end());
      lowest != reckoned_bytes.end())
    lowest_transient_bytes_ = std::max(lowest_transient_bytes_.value_or(0), *lowest);
  const auto need = [&](const Trial& trial) {
    return LayoutNeed{is_above_host(trial.layout()), trial.layout().compared_bytes()};
  };
  const auto live_bytes = [&](size_t i) {
    measure(trials[i], 0, LayoutSearch::Greedy);  // no layout is within nothing, so none is looked for yet
    return trials[i].layout().live_bytes;
  };
  const std::vector<Trial> as_wanted = trials;  // before their copies give way
  const auto give_way = [&](size_t i, PackedLayouts wanted) {
    const Trial& wide = as_wanted[i];
    if (!is_wasteful(wide.layout())) return;
    const std::optional<Trial> tight = tightly_packed(wide, wanted);
    if (!tight) return;
    measure(*tight, std::numeric_limits<int64_t>::max());
    trials[i] = is_well_packed(wide, wanted) || need(*tight) < need(wide) ? *tight : wide;
  };
  const auto place = [&](size_t i) {
    measure(trials[i], trials[i].layout().live_bytes, options_.is_short ? LayoutSearch::Greedy : LayoutSearch::Brief);
    give_way(i, PackedLayouts::TightOfOneStart);
    return need(trials[i]);
  };
  const auto finish = [&](size_t i) {
    if (!options_.is_short) measure(trials[i], trials[i].layout().live_bytes);
    return need(trials[i]);
  };
  const std::optional<size_t> least = least_layout(reckoned_bytes, enough_bytes, live_bytes, place, finish);
  if (!least) return std::nullopt;
  give_way(*least, PackedLayouts::Tight);
  return trials[*least];
}

}  // namespace plimsoll
