#include "passes/budget/copy_packing.h"

#include "ir/support/parallel.h"
#include "ir/support/search_effort.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <limits>
#include <utility>

// What is placed says how far each copy may reach, and the simulation of the engines chooses the copy's interval within
// that.

namespace plimsoll {
namespace {

using namespace remat;

constexpr double effort = 0.25;         // of what a layout gets otherwise, for each way to a low one,
constexpr int64_t least_rounds = 8;     // and at least so many times what it takes to place each buffer once
constexpr double share_aside = 0.6;     // of the work, for lower prices of lives
constexpr double attempt_share = 0.12;  // of the work, for each way to press a layout lower
constexpr int max_rounds = 8;           // of more and more copies that insist on their whole intervals,
constexpr double round_share = 0.5;     // each with so much of the work that is left for all
// From so much work for each way on, a tight layout is looked for at the lowest price of lives alone, others are
// pressed together at one price and not brought down. The plan of Qwen2 72B, of 10,000 instructions, asks for 9 tight
// ones, and none was found at higher prices, which took two thirds of the work; falling prices of what cannot be
// pressed took a fifth of all processor time.
constexpr int64_t steps_of_long_search = 600'000'000;
// A search that goes another way may find what one does not: of 69 layouts of ConvNeXt, GPT-2, Swin and U-Net near
// their floors, one start finds 53 within 1 % of what is alive, and sixteen with as much work each 66. Each gets
// `start_share` of the work for one way; the faster of two that find it counts. Layouts that waste much are brought
// down at five capacities, each from where they are and by starts anew: many at the capacity at which they no longer
// waste much, few at others.
constexpr double start_share = 0.5;
constexpr int starts_at_once = 2, starts_near = 16, enough_found = 2, max_attempts_lower = 5, starts_halfway = 2;

// Every other start gives lives up most easily.
void vary(FlexiblePlacer& placer, int start) {
  placer.vary(static_cast<uint64_t>(start));
  while (start % 2 == 0 && placer.lower_price()) {
  }
}

// Where a layout is brought down, every other start gives lives up hardly at all, and of the others every other one
// most easily.
void set_price(FlexiblePlacer& placer, int start) {
  if (start % 2 == 1) return placer.raise_price();
  while (start % 4 == 2 && placer.lower_price()) {
  }
}

}  // namespace

CopyPacking::CopyPacking(const FunctionWithCopies& function, const Overlap& wide, const PlacementOptions& options)
    : lives_(function, wide, options.alignment),
      wide_(wide),
      alignment_(options.alignment),
      wanted_(lives_.wanted().vec()),
      wanted_lives_(lives_.lives_of(wanted_)),
      peak_bytes_(lives_.peak_of(wanted_lives_)) {
  const FlexiblePlacer placer(lives_.buffers(), lives_.clock_us(), peak_bytes_);
  steps_ = std::max(steps_for(effort * options.seconds, placement_steps_per_second),
                    least_rounds * placer.steps_to_place_each());
}

bool CopyPacking::is_long() const { return steps_ >= steps_of_long_search; }

int64_t CopyPacking::bytes_above(int64_t bytes, double share) const {
  return static_cast<int64_t>((1 + share) * static_cast<double>(bytes)) / alignment_ * alignment_;
}

int64_t CopyPacking::bytes_above_peak(double share) const {
  const int64_t bytes = bytes_above(peak_bytes_, share);
  return share < 0 ? bytes : std::max(peak_bytes_, bytes);
}

int64_t CopyPacking::work(double share) const { return static_cast<int64_t>(share * static_cast<double>(steps_)); }

// Once some of the work was in vain, or is left out, lives are given up more easily.
std::optional<CopyPacking::Found> CopyPacking::from_scratch(int64_t capacity_bytes, size_t first_price) const {
  int64_t left = steps_;
  FlexiblePlacer empty(lives_.buffers(), lives_.clock_us(), capacity_bytes);
  for (bool falls = true; falls;) {
    FlexiblePlacer placer = empty;
    falls = empty.lower_price();
    const auto aside = falls ? static_cast<int64_t>(share_aside * static_cast<double>(left)) : 0;
    const bool is_left_out = falls && placer.price() < first_price;
    if (!is_left_out)
      if (std::optional<Found> next = found(std::move(placer), left - aside, aside, wide_.total_us, wanted_))
        return next;
    left = aside;
  }
  return std::nullopt;
}

// The faster of the first that some starts find.
std::optional<CopyPacking::Found> CopyPacking::by_some_starts(int64_t capacity_bytes) const {
  const FlexiblePlacer empty(lives_.buffers(), lives_.clock_us(), capacity_bytes);
  std::optional<Found> best;
  int found_some = 0;
  for (int start = 1; start <= starts_near && found_some < enough_found; start += starts_at_once) {
    std::array<std::optional<Found>, starts_at_once> some;
    parallel_for(some.size(), [&](size_t i) {
      FlexiblePlacer placer = empty;
      vary(placer, start + static_cast<int>(i));
      some[i] = found(std::move(placer), work(start_share), 0, wide_.total_us, wanted_);
    });
    for (std::optional<Found>& next : some) {
      if (!next) continue;
      ++found_some;
      if (!best || next->total_us() < best->total_us()) best.emplace(std::move(*next));
    }
    if (best && best->total_us() <= max_slowdown * wide_.total_us) break;
  }
  return best;
}

// A layout from scratch while lives are not given up easily. What is in the way of a lower layout is where large
// buffers are.
std::optional<CopyPacking::Found> CopyPacking::anew(int64_t capacity_bytes) const {
  FlexiblePlacer empty(lives_.buffers(), lives_.clock_us(), capacity_bytes);
  return found(std::move(empty), work(1 - share_aside), 0, wide_.total_us, wanted_);
}

// The fastest of some layouts. After each, copies that an engine waits for insist on their whole intervals; where not
// all of them can, half of them do, those that are waited for longest.
std::optional<CopyPacking::Found> CopyPacking::found(FlexiblePlacer placer, int64_t steps, int64_t steps_of_more_rounds,
                                                     double enough_us, llvm::ArrayRef<CopyInterval> wanted,
                                                     llvm::function_ref<bool()> is_given_up) const {
  if (!placer.place(steps, is_given_up)) return std::nullopt;
  const int64_t steps_of_rounds = placer.steps_left() + steps_of_more_rounds;
  std::optional<Found> best;
  std::vector<size_t> late = keep_if_faster(placer, enough_us, wanted, best);
  size_t insisting = late.size();
  steps = steps_of_rounds;
  for (int round = 1; round < max_rounds && steps > 0 && !late.empty(); ++round) {
    if ((best && best->total_us() <= enough_us) || (is_given_up && is_given_up())) break;
    FlexiblePlacer next = placer;
    for (size_t w : llvm::ArrayRef(late).take_front(insisting))
      if (const int32_t i = lives_.moved_by(wanted[w]); i >= 0) next.insist_on(static_cast<size_t>(i));
    const auto some = std::min(steps, static_cast<int64_t>(round_share * static_cast<double>(steps_of_rounds)));
    const bool is_placed = next.place(some, is_given_up);
    steps -= some - next.steps_left();
    if (is_placed) {
      placer = std::move(next);
      late = keep_if_faster(placer, enough_us, wanted, best);
      insisting = late.size();
    } else if (insisting > 1) {
      insisting /= 2;
    } else {
      late.erase(late.begin());
      insisting = late.size();
    }
  }
  if (best) best->steps_left = steps;
  return best;
}

// Replaces `best` where what is placed takes less time. Returns the copies that an engine waits for.
std::vector<size_t> CopyPacking::keep_if_faster(const FlexiblePlacer& placer, double enough_us,
                                                llvm::ArrayRef<CopyInterval> wanted, std::optional<Found>& best) const {
  FlexiblePlacement layout = placer.placement();
  CopyIntervals within = lives_.intervals_within(layout, wanted), widened = within;
  widened.widen(std::numeric_limits<int64_t>::max(), FirstServed::Done, enough_us);
  std::vector<size_t> late = widened.late_copies(wanted);
  if (widened.total_us() >= wide_.total_us) within = std::move(widened);
  const double us = within.total_us();
  if (us < wide_.total_us || (best && us >= best->total_us())) return late;
  const int64_t height_bytes = lives_.height_of(layout);
  best.emplace(Found{placer, height_bytes, std::move(layout), std::move(within)});
  return late;
}

// A layout that wastes much, brought down to what is alive with its own intervals, which are shorter than they were
// wanted; by halves of the way there where it is far, or where this is not found. None where it wastes little, or
// where no lower one is found that takes at most `enough_us` and at least `least_bytes`. `left` is the work for all
// that are brought down.
std::optional<CopyPacking::Found> CopyPacking::lowered(const Found& high, int64_t least_bytes, double enough_us,
                                                       const WorkLower& work, int64_t& left) const {
  std::optional<Found> lowest;
  int64_t missed = 0;
  for (int attempt = 0; attempt < max_attempts_lower && left > 0; ++attempt) {
    const Found& from = lowest ? *lowest : high;
    if (!is_wasteful(packed(from))) break;
    const int64_t live = lives_.peak_of(lives_.lives_of(from.intervals.intervals()));
    const int64_t near = std::max(bytes_above(live, near_share), least_bytes);
    const int64_t low = std::max(near, missed);
    const bool is_close = missed < near && from.height_bytes <= bytes_above(live, next_share);
    const int64_t half = low + (from.height_bytes - low) / 2 / alignment_ * alignment_;
    const int64_t capacity = is_close ? near : half;
    if (capacity >= from.height_bytes) break;
    if (std::optional<Found> next =
            pressed_together(from, capacity, enough_us, {work.steps, is_close ? work.starts : starts_halfway}, left))
      lowest.emplace(std::move(*next));
    else
      missed = capacity;
  }
  return lowest;
}

// The layout with its own intervals below a lower capacity, or one from scratch there, by some starts.
std::optional<CopyPacking::Found> CopyPacking::pressed_together(const Found& high, int64_t capacity_bytes,
                                                                double enough_us, const WorkLower& work,
                                                                int64_t& left) const {
  const llvm::ArrayRef<CopyInterval> wanted = high.intervals.intervals();
  const std::vector<Life> lives = lives_.lives_of(wanted);
  for (int first = 0; first < work.starts && left > 0; first += starts_at_once) {
    const int64_t each = std::min(left / starts_at_once, work.steps);
    left -= starts_at_once * std::max(each, int64_t{1});
    std::array<std::optional<Found>, starts_at_once> some;
    std::atomic<bool> first_counts = false;  // and no other one
    parallel_for(some.size(), [&](size_t i) {
      const int start = first + static_cast<int>(i);
      FlexiblePlacer placer =
          start > 0 ? FlexiblePlacer(lives_.buffers(), lives_.clock_us(), capacity_bytes) : high.placer;
      placer.press(capacity_bytes, lives);
      placer.forget_failures();
      if (start > 1) placer.vary(static_cast<uint64_t>(start));
      set_price(placer, start);
      some[i] = found(std::move(placer), each, 0, enough_us, wanted, [&] { return i > 0 && first_counts; });
      if (i == 0 && some[i] && some[i]->total_us() <= enough_us) first_counts = true;
    });
    for (std::optional<Found>& next : some) {
      if (!next || next->total_us() > enough_us) continue;
      left += next->steps_left;
      next->steps_left = high.steps_left;
      return std::move(*next);
    }
  }
  return std::nullopt;
}

// A layout of these copies as what a search found, with their shortest intervals.
CopyPacking::Found CopyPacking::reopened(const PackedCopies& layout) const {
  FlexiblePlacer placer(lives_.buffers(), lives_.clock_us(), layout.height_bytes);
  placer.press(layout.height_bytes, wanted_lives_);
  placer.start_from(lives_.offsets_of(layout.offset_of_value, layout.offset_of_workspace));
  FlexiblePlacement placed = placer.placement();
  CopyIntervals within = lives_.intervals_within(placed, wanted_);
  return {std::move(placer), layout.height_bytes, std::move(placed), std::move(within)};
}

CopyPacking::Kept CopyPacking::kept(Found found) {
  return {std::move(found.placer), found.height_bytes, std::move(found.layout), found.intervals.intervals().vec(),
          found.steps_left};
}

CopyPacking::Found CopyPacking::found_again(const Kept& kept) const {
  const CopyIntervals within = lives_.intervals_within(kept.layout, wanted_);
  return {kept.placer, kept.height_bytes, kept.layout, CopyIntervals(within, kept.intervals, within.bounds().vec()),
          kept.steps_left};
}

// The layout pressed below a lower capacity. What was hard to place before is so again, so that it takes less work.
std::optional<CopyPacking::Found> CopyPacking::pressed(const Found& high, int64_t capacity_bytes) const {
  int64_t left = high.steps_left;
  for (int lower_prices = 0; lower_prices == 0 || (left > 0 && !is_long()); ++lower_prices) {
    FlexiblePlacer lower = high.placer;
    for (int i = 0; i < lower_prices; ++i)
      if (!lower.lower_price()) return std::nullopt;
    lower.press(capacity_bytes, wanted_lives_);
    const int64_t some = std::min(left, work(attempt_share));
    left -= some;
    if (std::optional<Found> next = found(std::move(lower), some, 0, wide_.total_us, wanted_)) {
      next->steps_left += left;
      return next;
    }
  }
  return std::nullopt;
}

// With the copies using what is free beside them.
PackedCopies CopyPacking::packed(const Found& found) const {
  CopyIntervals filled = found.intervals;
  filled.use_bounds();
  return packed(found.layout, filled.total_us() >= wide_.total_us ? filled : found.intervals);
}

PackedCopies CopyPacking::packed(const FlexiblePlacement& layout, const CopyIntervals& intervals) const {
  PackedCopies packed;
  const double compute_us = wide_.total_us - wide_.stalled_us;
  packed.overlap = {intervals.intervals().vec(), intervals.total_us(), intervals.total_us() - compute_us,
                    intervals.peak_bytes(), wide_.limit_bytes};
  packed.live_bytes = lives_.peak_of(lives_.lives_of(intervals.intervals()));
  packed.height_bytes = lives_.height_of(layout);
  packed.offset_of_value = lives_.offset_of_value(layout);
  packed.offset_of_workspace = lives_.offset_of_workspace(layout);
  return packed;
}

}  // namespace plimsoll
