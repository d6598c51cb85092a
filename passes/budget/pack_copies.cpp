#include "passes/budget/pack_copies.h"

#include "ir/support/align.h"
#include "ir/support/search_effort.h"
#include "passes/offload/copy_intervals.h"
#include "passes/place/flexible_placement.h"
#include "passes/place/place_buffers.h"

#include <algorithm>
#include <cassert>
#include <limits>

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

constexpr double effort = 0.25;  // of what a layout gets otherwise
constexpr int max_rounds = 6;
constexpr int64_t slack_share = 200;  // bytes above the live peak that the layout may take: 1/200 of it

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

  std::optional<PackedCopies> run() {
    FlexiblePlacer placer(flexible_, clock_us_, capacity_above(peak_of(lives_of(wanted_))),
                          steps_for(effort * options_.seconds, placement_steps_per_second));
    std::optional<Found> best = found(std::move(placer), wide_.total_us);
    if (!best) return std::nullopt;
    const double enough_us = best->total_us() * max_slowdown;
    CopyIntervals filled = best->intervals;
    filled.use_bounds();
    while (is_wasteful(best->layout, filled)) {
      std::optional<Found> next = pressed(*best, enough_us);
      if (!next || next->total_us() > enough_us) break;
      best.emplace(std::move(*next));
      filled = best->intervals;
      filled.use_bounds();
    }
    return packed(best->layout, filled.total_us() >= wide_.total_us ? filled : best->intervals);
  }

 private:
  struct Found {
    FlexiblePlacer placer;
    FlexiblePlacement layout;
    CopyIntervals intervals;

    double total_us() const { return intervals.total_us(); }
  };

  int64_t capacity_above(int64_t peak) const {
    const int64_t unit = options_.alignment;
    return std::max(peak, (peak + peak / slack_share) / unit * unit);
  }

  // The fastest of some layouts. After each, copies that an engine waits for insist on their whole intervals.
  std::optional<Found> found(FlexiblePlacer placer, double enough_us) const {
    std::optional<Found> best;
    for (int round = 0; round < max_rounds && placer.place(); ++round) {
      FlexiblePlacement layout = placer.placement();
      CopyIntervals within = intervals_within(layout);
      within.widen(std::numeric_limits<int64_t>::max(), FirstServed::Done, enough_us);
      const std::vector<size_t> late = within.late_copies(wanted_);
      if (within.total_us() >= wide_.total_us && (!best || within.total_us() < best->total_us()))
        best.emplace(Found{placer, std::move(layout), std::move(within)});
      if (late.empty() || (best && best->total_us() <= enough_us)) break;
      for (size_t w : late)
        if (const int32_t i = flexible_of(wanted_[w]); i >= 0) placer.insist_on(static_cast<size_t>(i));
    }
    return best;
  }

  bool is_wasteful(const FlexiblePlacement& layout, const CopyIntervals& intervals) const {
    const int64_t live = peak_of(lives_of(intervals.intervals()));
    return static_cast<double>(height_of(layout)) > max_waste * static_cast<double>(live);
  }

  // The layout pressed together to what is alive with its own intervals, which are shorter than they were wanted.
  std::optional<Found> pressed(const Found& high, double enough_us) {
    wanted_ = high.intervals.intervals().vec();
    const std::vector<Life> lives = lives_of(wanted_);
    FlexiblePlacer placer = high.placer;
    placer.press(capacity_above(peak_of(lives)), lives);
    return found(std::move(placer), enough_us);
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

std::optional<PackedCopies> pack_copies(const FunctionWithCopies& function, const Overlap& wide,
                                        const PlacementOptions& options) {
  return CopyPacking(function, wide, options).run();
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
