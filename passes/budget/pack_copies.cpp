#include "passes/budget/pack_copies.h"

#include "ir/support/parallel.h"
#include "ir/support/search_effort.h"
#include "passes/place/place_buffers.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <limits>
#include <utility>

// A layout is looked for at some capacity, from scratch or by pressing a higher one together. It says how far each copy
// may reach, and the simulation of the engines chooses the copy's interval within that. Of layouts at several heights
// those remain that are lower than every faster one.

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
constexpr int max_layouts_anew = 3;  // where pressing one lower fails or costs time
// A search that goes another way may find what one does not: of 69 layouts of ConvNeXt, GPT-2, Swin and U-Net near
// their floors, one start finds 53 within 1 % of what is alive, and sixteen with as much work each 66. Each gets
// `start_share` of the work for one way; the faster of two that find it counts. Layouts that waste much are brought
// down at five capacities, each from where they are and by starts anew: many at the capacity at which they no longer
// waste much, few at others.
constexpr double start_share = 0.5;
constexpr int starts_at_once = 2, starts_near = 16, enough_found = 2, max_attempts_lower = 5, starts_lower = 8,
              starts_halfway = 2;
constexpr int steps_lower = 2;  // times the work for one way, for the layouts above a tight one
// Shares of the live peak that a layout may take above it: a tight one, and each of the next where none before it is
// found; and the first of those that go down step by step. Each step is a quarter of what is left, and no less than
// `least_step`.
constexpr double tight_share = 0.005, near_share = 0.0095, next_share = 0.025, last_share = 0.05, loose_share = 0.09,
                 step_share = 0.25, least_step = 0.0025;

bool is_wasteful(const PackedCopies& copies) {
  return static_cast<double>(copies.height_bytes) > max_waste * static_cast<double>(copies.live_bytes);
}

class CopyPacking {
 public:
  CopyPacking(const FunctionWithCopies& function, const Overlap& wide, const PlacementOptions& options)
      : lives_(function, wide, options.alignment), wide_(wide), options_(options), wanted_(lives_.wanted().vec()) {
    const FlexiblePlacer placer(lives_.buffers(), lives_.clock_us(), lives_.peak_of(lives_.lives_of(wanted_)));
    steps_ = std::max(steps_for(effort * options.seconds, placement_steps_per_second),
                      least_rounds * placer.steps_to_place_each());
  }

  std::optional<PackedCopies> tight(Starts starts) const {
    const int64_t peak = lives_.peak_of(lives_.lives_of(wanted_));
    const bool has_some = starts == Starts::Some && !is_long();
    std::optional<Found> best = is_long() ? from_scratch(tight_bytes(peak), Prices::Lowest) : anew(tight_bytes(peak));
    if (!best) best = loose_first(peak, has_some);
    if (!best) return std::nullopt;
    int64_t left = has_some ? starts_lower * work(start_share) : is_long() ? best->steps_left : steps_;
    const std::optional<Found> lower = lowered(*best, 0, left);
    return packed(lower ? *lower : *best);
  }

  // Where the tight layout takes hardly longer than any can, it stands for all.
  std::vector<PackedCopies> down_to(const PackedCopies& tight) const {
    if (tight.overlap.total_us <= max_slowdown * wide_.total_us) return {tight};
    const std::vector<Life> wanted = lives_.lives_of(wanted_);
    const int64_t peak = lives_.peak_of(wanted);
    std::vector<PackedCopies> layouts;
    int64_t left = is_long() ? 0 : steps_lower * work(start_share);
    const auto add = [&](const Found& found) {
      layouts.push_back(packed(found));
      const std::optional<Found> low = lowered(found, tight.height_bytes, left);
      if (low && low->height_bytes >= tight.height_bytes) layouts.push_back(packed(*low));
    };
    int layouts_anew = max_layouts_anew;
    for (std::optional<Found> high = from_scratch(bytes_above(peak, loose_share), Prices::All);
         high && high->height_bytes > tight.height_bytes;) {
      add(*high);
      const double share = static_cast<double>(high->height_bytes) / static_cast<double>(peak) - 1;
      const int64_t lower_bytes = bytes_above(peak, share - std::max(step_share * share, least_step));
      std::optional<Found> lower = pressed(*high, lower_bytes, wanted);
      const bool takes_longer = !lower || lower->total_us() > max_slowdown * high->total_us();
      if (takes_longer && lower_bytes > tight.height_bytes && layouts_anew-- > 0)
        if (std::optional<Found> other = anew(lower_bytes); other && (!lower || other->total_us() < lower->total_us()))
          lower.emplace(std::move(*other));
      high = std::move(lower);
    }
    // The way down may end above these, or come to them late, and the tight one alone may take much longer.
    const auto add_if_above = [&](const std::optional<Found>& found) {
      if (found && found->height_bytes > tight.height_bytes) add(*found);
    };
    if (!is_long()) {
      add_if_above(from_scratch(bytes_above(peak, next_share), Prices::All));
      add_if_above(from_scratch(bytes_above(peak, near_share), Prices::All));
      add_if_above(by_some_starts(bytes_above(peak, near_share)));
    }
    layouts.push_back(tight);
    return worth_trying(std::move(layouts));
  }

 private:
  bool is_long() const { return steps_ >= steps_of_long_search; }

  struct Found {
    FlexiblePlacer placer;
    int64_t height_bytes;
    FlexiblePlacement layout;
    CopyIntervals intervals;
    int64_t steps_left = 0;

    double total_us() const { return intervals.total_us(); }
  };

  int64_t bytes_above(int64_t peak, double share) const {
    const int64_t unit = options_.alignment;
    return static_cast<int64_t>((1 + share) * static_cast<double>(peak)) / unit * unit;
  }

  int64_t work(double share) const { return static_cast<int64_t>(share * static_cast<double>(steps_)); }

  int64_t tight_bytes(int64_t peak) const { return std::max(peak, bytes_above(peak, tight_share)); }

  enum class Prices : uint8_t { All, Lowest };

  // Once some of the work was in vain, or is left out, lives are given up more easily.
  std::optional<Found> from_scratch(int64_t capacity_bytes, Prices prices) const {
    int64_t left = steps_;
    FlexiblePlacer empty(lives_.buffers(), lives_.clock_us(), capacity_bytes);
    for (bool falls = true; falls;) {
      FlexiblePlacer placer = empty;
      falls = empty.lower_price();
      const auto aside = falls ? static_cast<int64_t>(share_aside * static_cast<double>(left)) : 0;
      const bool is_left_out = falls && prices == Prices::Lowest;
      if (!is_left_out)
        if (std::optional<Found> next = found(std::move(placer), left - aside, aside, wide_.total_us, wanted_))
          return next;
      left = aside;
    }
    return std::nullopt;
  }

  // From a loose one on: where there is none within 2.5 %, tighter ones are not looked for.
  std::optional<Found> loose_first(int64_t peak, bool has_some_starts) const {
    const Prices prices = is_long() ? Prices::Lowest : Prices::All;
    std::optional<Found> loose = from_scratch(bytes_above(peak, next_share), prices);
    if (is_long()) return loose;
    if (!loose) return anew(bytes_above(peak, last_share));
    std::optional<Found> near = from_scratch(bytes_above(peak, near_share), prices);
    if (!near && has_some_starts) near = by_some_starts(bytes_above(peak, near_share));
    if (!near) return loose;
    std::optional<Found> tight = from_scratch(tight_bytes(peak), prices);
    return tight ? std::move(tight) : std::move(near);
  }

  // The faster of the first that some starts find, every other start while lives are given up most easily.
  std::optional<Found> by_some_starts(int64_t capacity_bytes) const {
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

  static void vary(FlexiblePlacer& placer, int start) {
    placer.vary(static_cast<uint64_t>(start));
    while (start % 2 == 0 && placer.lower_price()) {
    }
  }

  // A layout from scratch while lives are not given up easily. What is in the way of a lower layout is where large
  // buffers are.
  std::optional<Found> anew(int64_t capacity_bytes) const {
    FlexiblePlacer empty(lives_.buffers(), lives_.clock_us(), capacity_bytes);
    return found(std::move(empty), work(1 - share_aside), 0, wide_.total_us, wanted_);
  }

  // The fastest of some layouts. After each, copies that an engine waits for insist on their whole intervals; where not
  // all of them can, half of them do, those that are waited for longest.
  std::optional<Found> found(FlexiblePlacer placer, int64_t steps, int64_t steps_of_more_rounds, double enough_us,
                             llvm::ArrayRef<CopyInterval> wanted) const {
    if (!placer.place(steps)) return std::nullopt;
    const int64_t steps_of_rounds = placer.steps_left() + steps_of_more_rounds;
    std::optional<Found> best;
    std::vector<size_t> late = keep_if_faster(placer, enough_us, wanted, best);
    size_t insisting = late.size();
    steps = steps_of_rounds;
    for (int round = 1; round < max_rounds && steps > 0 && !late.empty(); ++round) {
      if (best && best->total_us() <= enough_us) break;
      FlexiblePlacer next = placer;
      for (size_t w : llvm::ArrayRef(late).take_front(insisting))
        if (const int32_t i = lives_.moved_by(wanted[w]); i >= 0) next.insist_on(static_cast<size_t>(i));
      const auto some = std::min(steps, static_cast<int64_t>(round_share * static_cast<double>(steps_of_rounds)));
      const bool is_placed = next.place(some);
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
  std::vector<size_t> keep_if_faster(const FlexiblePlacer& placer, double enough_us,
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
  // where no lower one is found that takes hardly longer and at least `least_bytes`. `left` is the work for all that
  // are brought down.
  std::optional<Found> lowered(const Found& high, int64_t least_bytes, int64_t& left) const {
    const double enough_us = max_slowdown * high.total_us();
    std::optional<Found> lowest;
    int64_t missed = 0;
    for (int attempt = 0; attempt < max_attempts_lower && left > 0; ++attempt) {
      const Found& from = lowest ? *lowest : high;
      if (!is_wasteful(packed(from))) break;
      const int64_t live = lives_.peak_of(lives_.lives_of(from.intervals.intervals()));
      const int64_t near = std::max(bytes_above(live, near_share), least_bytes);
      const int64_t low = std::max(near, missed);
      const bool is_close = missed < near && from.height_bytes <= bytes_above(live, next_share);
      const int64_t half = low + (from.height_bytes - low) / 2 / options_.alignment * options_.alignment;
      const int64_t capacity = is_close ? near : half;
      if (capacity >= from.height_bytes) break;
      if (std::optional<Found> next =
              pressed_together(from, capacity, enough_us, is_close ? starts_lower : starts_halfway, left))
        lowest.emplace(std::move(*next));
      else
        missed = capacity;
    }
    return lowest;
  }

  // The layout with its own intervals below a lower capacity, or one from scratch there, by some starts.
  std::optional<Found> pressed_together(const Found& high, int64_t capacity_bytes, double enough_us, int starts,
                                        int64_t& left) const {
    const llvm::ArrayRef<CopyInterval> wanted = high.intervals.intervals();
    const std::vector<Life> lives = lives_.lives_of(wanted);
    for (int start = 0; start < starts && left > 0; ++start) {
      FlexiblePlacer placer =
          start > 0 ? FlexiblePlacer(lives_.buffers(), lives_.clock_us(), capacity_bytes) : high.placer;
      placer.press(capacity_bytes, lives);
      placer.forget_failures();
      if (start > 1) vary(placer, start);
      const int64_t some = std::min(left, work(start_share));
      left -= some;
      std::optional<Found> next = found(std::move(placer), some, 0, enough_us, wanted);
      if (!next || next->total_us() > enough_us) continue;
      left += next->steps_left;
      next->steps_left = high.steps_left;
      return next;
    }
    return std::nullopt;
  }

  // The layout pressed below a lower capacity. What was hard to place before is so again, so that it takes less work.
  std::optional<Found> pressed(const Found& high, int64_t capacity_bytes, llvm::ArrayRef<Life> wanted) const {
    int64_t left = high.steps_left;
    for (int lower_prices = 0; lower_prices == 0 || (left > 0 && !is_long()); ++lower_prices) {
      FlexiblePlacer lower = high.placer;
      for (int i = 0; i < lower_prices; ++i)
        if (!lower.lower_price()) return std::nullopt;
      lower.press(capacity_bytes, wanted);
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
  PackedCopies packed(const Found& found) const {
    CopyIntervals filled = found.intervals;
    filled.use_bounds();
    return packed(found.layout, filled.total_us() >= wide_.total_us ? filled : found.intervals);
  }

  PackedCopies packed(const FlexiblePlacement& layout, const CopyIntervals& intervals) const {
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

  const CopyLives lives_;
  const Overlap& wide_;
  const PlacementOptions& options_;
  const std::vector<CopyInterval> wanted_;
  int64_t steps_ = 0;  // of work for each way to a low layout
};

// Whether no one needs `b` beside `a`.
bool is_as_good(const PackedCopies& a, const PackedCopies& b) {
  return a.height_bytes <= b.height_bytes && a.overlap.total_us <= b.overlap.total_us;
}

}  // namespace

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

std::optional<PackedCopies> pack_tightly(const FunctionWithCopies& function, const Overlap& wide, Starts starts,
                                         const PlacementOptions& options) {
  return CopyPacking(function, wide, options).tight(starts);
}

std::vector<PackedCopies> pack_step_by_step(const FunctionWithCopies& function, const Overlap& wide,
                                            const PackedCopies& tight, const PlacementOptions& options) {
  return CopyPacking(function, wide, options).down_to(tight);
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
