#include "passes/budget/pack_copies.h"

#include "ir/support/align.h"
#include "ir/support/search_effort.h"
#include "passes/offload/copy_intervals.h"
#include "passes/place/flexible_placement.h"
#include "passes/place/place_buffers.h"

#include <algorithm>
#include <cassert>
#include <limits>
#include <utility>

// A buffer that a copy fills may live from a later issue on, and one that a copy empties may end at an earlier wait. So
// these buffers have flexible lives, and the layout decides how long they are. The layout leaves each copy bounds that
// no other buffer reaches into; within them its interval is chosen as without a layout, by the simulation of the
// engines.
//
// Which buffers there are must not follow from the intervals: a result takes over the bytes of an operand only where no
// copy reads that any more. So a copy that is waited for behind the last reader of its source stays behind it, and one
// that is waited for before stays before.

namespace plimsoll {
namespace {

using namespace remat;

constexpr double effort = 0.25;         // of what a layout gets otherwise, for each way to a low one
constexpr double share_aside = 0.6;     // of the work, for lower prices of lives
constexpr double attempt_share = 0.12;  // of the work, for each step down
constexpr int max_rounds = 6;
constexpr int max_layouts_anew = 3;  // where pressing one lower fails or costs time
// Shares of the live peak that a layout may take above it: a tight one, one where that is not found, and the first of
// those that go down step by step. Each step is a quarter of what is left, and no less than `least_step`.
constexpr double tight_share = 0.005, next_share = 0.025, loose_share = 0.16, step_share = 0.25, least_step = 0.0025;

class CopyPacking {
 public:
  CopyPacking(const FunctionWithCopies& function, const Overlap& wide, const PlacementOptions& options)
      : function_(function), graph_(function.graph), wide_(wide), options_(options) {
    nodes_ = instructions_of(graph_);
    assign();
    find_readers();
    choose_wanted();
    collect_buffers();
  }

  std::optional<PackedCopies> tight() {
    const int64_t peak = peak_of(lives_of(wanted_));
    std::optional<Found> best = from_scratch(tight_bytes(peak));
    if (!best) best = from_scratch(bytes_above(peak, next_share));
    if (!best) return std::nullopt;
    const double enough_us = best->total_us() * max_slowdown;
    PackedCopies copies = packed(*best);
    while (is_wasteful(copies)) {
      std::optional<Found> next = pressed_together(*best, enough_us);
      if (!next || next->total_us() > enough_us) break;
      best.emplace(std::move(*next));
      copies = packed(*best);
    }
    return copies;
  }

  std::vector<PackedCopies> down_to(const PackedCopies& tight) {
    const std::vector<Life> wanted = lives_of(wanted_);
    const int64_t peak = peak_of(wanted);
    std::vector<PackedCopies> layouts;
    int layouts_anew = max_layouts_anew;
    for (std::optional<Found> high = from_scratch(bytes_above(peak, loose_share));
         high && high->height_bytes > tight.height_bytes;) {
      add(layouts, packed(*high));
      const double share = static_cast<double>(high->height_bytes) / static_cast<double>(peak) - 1;
      const int64_t lower_bytes = bytes_above(peak, share - std::max(step_share * share, least_step));
      std::optional<Found> lower = pressed(*high, lower_bytes, wanted);
      const bool takes_longer = !lower || lower->total_us() > max_slowdown * high->total_us();
      if (takes_longer && lower_bytes > tight.height_bytes && layouts_anew-- > 0)
        if (std::optional<Found> other = anew(lower_bytes); other && (!lower || other->total_us() < lower->total_us()))
          lower.emplace(std::move(*other));
      high = std::move(lower);
    }
    add(layouts, tight);
    return without_wasteful(std::move(layouts));
  }

 private:
  struct Found {
    FlexiblePlacer placer;
    int64_t height_bytes;
    FlexiblePlacement layout;
    CopyIntervals intervals;
    int64_t steps_left = 0;

    double total_us() const { return intervals.total_us(); }
  };

  int64_t steps() const { return steps_for(effort * options_.seconds, placement_steps_per_second); }

  int64_t bytes_above(int64_t peak, double share) const {
    const int64_t unit = options_.alignment;
    return static_cast<int64_t>((1 + share) * static_cast<double>(peak)) / unit * unit;
  }

  int64_t tight_bytes(int64_t peak) const { return std::max(peak, bytes_above(peak, tight_share)); }

  // Once some of the work was in vain, lives are given up more easily.
  std::optional<Found> from_scratch(int64_t capacity_bytes) const {
    int64_t left = steps();
    FlexiblePlacer empty(flexible_, clock_us_, capacity_bytes);
    for (bool falls = true; falls;) {
      const FlexiblePlacer placer = empty;
      falls = empty.lower_price();
      const auto aside = falls ? static_cast<int64_t>(share_aside * static_cast<double>(left)) : 0;
      if (std::optional<Found> next = found(placer, left - aside, aside, wide_.total_us)) return next;
      left = aside;
    }
    return std::nullopt;
  }

  // The same while lives are not given up easily. What is in the way of a lower layout is where large buffers are.
  std::optional<Found> anew(int64_t capacity_bytes) const {
    const auto some = static_cast<int64_t>((1 - share_aside) * static_cast<double>(steps()));
    return found(FlexiblePlacer(flexible_, clock_us_, capacity_bytes), some, 0, wide_.total_us);
  }

  // The fastest of some layouts. After each, copies that an engine waits for insist on their whole intervals.
  std::optional<Found> found(FlexiblePlacer placer, int64_t steps, int64_t steps_of_more_rounds,
                             double enough_us) const {
    std::optional<Found> best;
    for (int round = 0; round < max_rounds && placer.place(steps); ++round) {
      steps = placer.steps_left() + std::exchange(steps_of_more_rounds, 0);
      FlexiblePlacement layout = placer.placement();
      CopyIntervals within = intervals_within(layout), widened = within;
      widened.widen(std::numeric_limits<int64_t>::max(), FirstServed::Done, enough_us);
      const std::vector<size_t> late = widened.late_copies(wanted_);
      if (widened.total_us() >= wide_.total_us) within = std::move(widened);
      if (within.total_us() >= wide_.total_us && (!best || within.total_us() < best->total_us())) {
        const int64_t height_bytes = height_of(layout);
        best.emplace(Found{placer, height_bytes, std::move(layout), std::move(within)});
      }
      if (late.empty() || (best && best->total_us() <= enough_us)) break;
      for (size_t w : late)
        if (const int32_t i = flexible_of(wanted_[w]); i >= 0) placer.insist_on(static_cast<size_t>(i));
    }
    if (best) best->steps_left = steps;
    return best;
  }

  // The layout pressed together to what is alive with its own intervals, which are shorter than they were wanted.
  std::optional<Found> pressed_together(const Found& high, double enough_us) {
    wanted_ = high.intervals.intervals().vec();
    const std::vector<Life> lives = lives_of(wanted_);
    FlexiblePlacer placer = high.placer;
    placer.press(tight_bytes(peak_of(lives)), lives);
    placer.forget_failures();
    return found(std::move(placer), high.steps_left, 0, enough_us);
  }

  // The layout pressed below a lower capacity. What was hard to place before is so again, so that it takes less work.
  std::optional<Found> pressed(const Found& high, int64_t capacity_bytes, llvm::ArrayRef<Life> wanted) const {
    const auto most = static_cast<int64_t>(attempt_share * static_cast<double>(steps()));
    int64_t left = high.steps_left;
    FlexiblePlacer placer = high.placer;
    do {
      FlexiblePlacer lower = placer;
      lower.press(capacity_bytes, wanted);
      const int64_t some = std::min(left, most);
      left -= some;
      if (std::optional<Found> next = found(std::move(lower), some, 0, wide_.total_us)) {
        next->steps_left += left;
        return next;
      }
    } while (left > 0 && placer.lower_price());
    return std::nullopt;
  }

  // Adds a layout unless one that is no higher takes no longer, in place of those for which this one does.
  static void add(std::vector<PackedCopies>& layouts, PackedCopies next) {
    const auto is_as_good = [](const PackedCopies& a, const PackedCopies& b) {
      return a.height_bytes <= b.height_bytes && a.overlap.total_us <= b.overlap.total_us;
    };
    if (llvm::any_of(layouts, [&](const PackedCopies& other) { return is_as_good(other, next); })) return;
    llvm::erase_if(layouts, [&](const PackedCopies& other) { return is_as_good(next, other); });
    const auto lower =
        llvm::find_if(layouts, [&](const PackedCopies& other) { return other.height_bytes < next.height_bytes; });
    layouts.insert(lower, std::move(next));
  }

  static std::vector<PackedCopies> without_wasteful(std::vector<PackedCopies> layouts) {
    std::vector<PackedCopies> kept;
    for (size_t i = 0; i < layouts.size(); ++i) {
      const double enough_us = (is_wasteful(layouts[i]) ? max_slowdown : 1) * layouts[i].overlap.total_us;
      while (i + 1 < layouts.size() && layouts[i + 1].overlap.total_us <= enough_us) ++i;
      kept.push_back(std::move(layouts[i]));
    }
    return kept;
  }

  static bool is_wasteful(const PackedCopies& copies) {
    return static_cast<double>(copies.height_bytes) > max_waste * static_cast<double>(copies.live_bytes);
  }

  int64_t height_of(const FlexiblePlacement& layout) const {
    int64_t height = 0;
    for (size_t i = 0; i < flexible_.size(); ++i) height = std::max(height, layout.offsets[i] + flexible_[i].bytes);
    return height;
  }

  const Node& node_of(const CopyInterval& interval) const { return graph_.node(nodes_[interval.op]); }
  Engine engine_of(const CopyInterval& interval) const { return node_of(interval).op->engine; }
  ValueId result_of(const CopyInterval& interval) const { return node_of(interval).results[0]; }
  ValueId source_of(const CopyInterval& interval) const { return root_of(graph_, node_of(interval).operands[0]); }
  int32_t buffer_of(ValueId value) const { return assigned_.buffer_of[index_of(value)]; }

  void assign() {
    std::vector<CopyInFlight> copies;
    for (const CopyInterval& interval : wide_.intervals)
      if (interval.done > interval.op + 1) copies.push_back({nodes_[interval.op], interval.done});
    assigned_ = assign_buffers(graph_, function_.writers, copies, function_.catalog);
    workspace_owner_.assign(assigned_.buffers.size(), NodeId::None);
    for (NodeId id : nodes_)
      if (const int32_t buffer = assigned_.workspace_of[index_of(id)]; buffer >= 0) workspace_owner_[buffer] = id;
  }

  // The last readers of values and of buffers, but for copies to the host that run on.
  void find_readers() {
    last_reader_.assign(graph_.value_count(), -1);
    taken_over_.assign(graph_.value_count(), false);
    const auto read = [&](ValueId value, int32_t at) {
      int32_t& last = last_reader_[index_of(root_of(graph_, value))];
      last = std::max(last, at);
    };
    for (size_t at = 0; at < nodes_.size(); ++at) {
      for (ValueId operand : graph_.node(nodes_[at]).operands)
        if (operand != ValueId::None) read(operand, static_cast<int32_t>(at));
      for (ValueId result : graph_.node(nodes_[at]).results) read(result, static_cast<int32_t>(at));
    }
    for (const Output& output : graph_.outputs) read(output.value, assigned_.instructions - 1);
    for (const Update& update : graph_.updates) read(update.value, assigned_.instructions - 1);
    for (const CopyInterval& interval : wide_.intervals) {
      if (engine_of(interval) == Engine::ToHost) continue;
      read(result_of(interval), interval.done - 1);
      if (engine_of(interval) == Engine::Ranks) read(source_of(interval), interval.done - 1);
    }
    for (size_t v = 0; v < graph_.value_count(); ++v)
      if (const ValueId root = assigned_.in_place_of[v]; root != ValueId::None) taken_over_[index_of(root)] = true;
  }

  // Much shorter intervals take hardly more time.
  void choose_wanted() {
    std::vector<CopyBounds> bounds;
    for (const CopyInterval& interval : wide_.intervals)
      bounds.push_back(engine_of(interval) == Engine::ToHost
                           ? bounds_of(interval)
                           : CopyBounds{interval.issue, interval.done, interval.done});
    CopyIntervals intervals(function_.problem, wide_.intervals, std::move(bounds));
    intervals.give_back();
    wanted_ = intervals.intervals().vec();
    clock_us_ = intervals.clock_us();
  }

  void collect_buffers() {
    std::vector<int32_t> read_until(assigned_.buffers.size(), -1);
    for (size_t v = 0; v < graph_.value_count(); ++v)
      if (const int32_t b = assigned_.buffer_of[v]; b >= 0) read_until[b] = std::max(read_until[b], last_reader_[v]);
    index_.assign(assigned_.buffers.size(), -1);
    for (size_t b = 0; b < assigned_.buffers.size(); ++b) {
      const Buffer& buffer = assigned_.buffers[b];
      if (!is_placed(buffer, MemorySpace::Device)) continue;
      index_[b] = static_cast<int32_t>(placed_.size());
      placed_.push_back(b);
      const bool of_value = buffer.first_value != ValueId::None;
      const int32_t core_last = of_value ? std::max(buffer.first, std::min(read_until[b], buffer.last)) : buffer.last;
      const Life core{buffer.first, core_last};
      flexible_.push_back({align_up(std::max<int64_t>(buffer.bytes, 1), options_.alignment), core, core, core});
    }
    for (size_t w = 0; w < wanted_.size(); ++w) start_at_copy(wide_.intervals[w]);
    const std::vector<Life> wanted = lives_of(wanted_);
    for (size_t i = 0; i < flexible_.size(); ++i) flexible_[i].wanted = flexible_[i].allowed = wanted[i];
    for (const CopyInterval& interval : wide_.intervals) allow_more(interval);
  }

  // What a copy to the device writes is alive in its place at the latest; what a collective writes, from its issue on.
  void start_at_copy(const CopyInterval& interval) {
    if (engine_of(interval) == Engine::ToHost) return;
    const int32_t start = engine_of(interval) == Engine::ToDevice ? interval.op : interval.issue;
    const int32_t result = buffer_of(result_of(interval));
    const int32_t workspace = assigned_.workspace_of[index_of(nodes_[interval.op])];
    if (assigned_.buffers[result].first_value == result_of(interval) && index_[result] >= 0)
      flexible_[index_[result]].core.first = start;
    if (workspace >= 0 && index_[workspace] >= 0) flexible_[index_[workspace]].core.first = start;
  }

  void allow_more(const CopyInterval& interval) {
    const int32_t i = flexible_of(interval);
    if (i < 0) return;
    Life& allowed = flexible_[i].allowed;
    if (engine_of(interval) == Engine::ToDevice)
      allowed.first = std::min(allowed.first, function_.problem.ops[interval.op].not_before);
    if (engine_of(interval) == Engine::ToHost)
      allowed.last = std::max(allowed.last, bounds_of(interval).latest_done - 1);
  }

  // The lives of the buffers with these intervals.
  std::vector<Life> lives_of(llvm::ArrayRef<CopyInterval> intervals) const {
    std::vector<Life> lives;
    for (const FlexibleInterval& flexible : flexible_) lives.push_back(flexible.core);
    for (const CopyInterval& interval : intervals) {
      const int32_t i = flexible_of(interval);
      if (i < 0) continue;
      if (engine_of(interval) == Engine::ToDevice) lives[i].first = interval.issue;
      if (engine_of(interval) == Engine::ToHost) lives[i].last = std::max(lives[i].last, interval.done - 1);
    }
    return lives;
  }

  // Of a copy to the host, whatever the layout.
  CopyBounds bounds_of(const CopyInterval& interval) const {
    const size_t source = index_of(source_of(interval));
    const int32_t last = last_reader_[source];
    const bool behind = interval.done > last;
    return {interval.issue, behind ? std::max(interval.op, last) + 1 : interval.op + 1,
            taken_over_[source] ? last : assigned_.instructions};
  }

  // Of the bytes that the copy writes or, to the host, reads; -1: they have their place already.
  int32_t flexible_of(const CopyInterval& interval) const {
    return index_[buffer_of(engine_of(interval) == Engine::ToHost ? source_of(interval) : result_of(interval))];
  }

  int64_t peak_of(llvm::ArrayRef<Life> lives) const {
    std::vector<int64_t> change(static_cast<size_t>(assigned_.instructions) + 1, 0);
    for (size_t i = 0; i < lives.size(); ++i) {
      change[lives[i].first] += flexible_[i].bytes;
      change[lives[i].last + 1] -= flexible_[i].bytes;
    }
    int64_t live = 0, peak = 0;
    for (int64_t c : change) peak = std::max(peak, live += c);
    return peak;
  }

  CopyIntervals intervals_within(const FlexiblePlacement& placed) const {
    std::vector<CopyInterval> intervals = wanted_;
    std::vector<CopyBounds> bounds;
    for (size_t w = 0; w < intervals.size(); ++w) {
      CopyInterval& interval = intervals[w];
      bounds.push_back({interval.issue, interval.done, interval.done});
      if (engine_of(interval) == Engine::ToDevice) {
        const int32_t b = index_[buffer_of(result_of(interval))];
        if (b < 0) continue;
        interval.issue = placed.lives[b].first;
        bounds.back().earliest_issue = placed.free_lives[b].first;
      } else if (engine_of(interval) == Engine::ToHost) {
        const int32_t b = index_[buffer_of(source_of(interval))];
        if (b < 0) continue;
        bounds.back() = bounds_of(wide_.intervals[w]);
        bounds.back().latest_done = std::min(bounds.back().latest_done, placed.free_lives[b].last + 1);
        interval.done = std::clamp(interval.done, bounds.back().earliest_done, placed.lives[b].last + 1);
      }
    }
    return {function_.problem, std::move(intervals), std::move(bounds)};
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
    packed.live_bytes = peak_of(lives_of(intervals.intervals()));
    packed.height_bytes = height_of(layout);
    packed.offset_of_value.assign(graph_.value_count(), -1);
    packed.offset_of_workspace.assign(graph_.node_slots(), -1);
    for (size_t i = 0; i < placed_.size(); ++i) {
      const ValueId value = assigned_.buffers[placed_[i]].first_value;
      if (value != ValueId::None)
        packed.offset_of_value[index_of(value)] = layout.offsets[i];
      else
        packed.offset_of_workspace[index_of(workspace_owner_[placed_[i]])] = layout.offsets[i];
    }
    return packed;
  }

  const FunctionWithCopies& function_;
  const Graph& graph_;
  const Overlap& wide_;
  const PlacementOptions& options_;
  std::vector<NodeId> nodes_;  // by op
  std::vector<CopyInterval> wanted_;
  std::vector<double> clock_us_;  // by op, when it begins with these intervals
  BufferAssignment assigned_;
  std::vector<NodeId> workspace_owner_;  // by buffer
  std::vector<int32_t> last_reader_;     // by root value
  std::vector<bool> taken_over_;         // by value: a result is written over it
  std::vector<size_t> placed_;           // buffers, by flexible interval
  std::vector<int32_t> index_;           // of the flexible interval, by buffer; -1: none
  std::vector<FlexibleInterval> flexible_;
};

}  // namespace

std::optional<PackedCopies> pack_tightly(const FunctionWithCopies& function, const Overlap& wide,
                                         const PlacementOptions& options) {
  return CopyPacking(function, wide, options).tight();
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
