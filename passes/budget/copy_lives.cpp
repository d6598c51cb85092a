#include "passes/budget/copy_lives.h"

#include "ir/support/align.h"
#include "passes/place/place_buffers.h"

#include <algorithm>
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

using namespace remat;

CopyLives::CopyLives(const FunctionWithCopies& function, const Overlap& wide, int64_t alignment)
    : function_(function),
      graph_(function.graph),
      wide_(wide),
      nodes_(instructions_of(function.graph)),
      tight_(function.problem) {
  assign();
  find_readers();
  choose_wanted();
  collect_buffers(alignment);
}

ValueId CopyLives::source_of(const CopyInterval& interval) const {
  return root_of(graph_, node_of(interval).operands[0]);
}

void CopyLives::assign() {
  std::vector<CopyInFlight> copies;
  for (const CopyInterval& interval : wide_.intervals)
    if (interval.done > interval.op + 1) copies.push_back({nodes_[interval.op], interval.done});
  assigned_ = assign_buffers(graph_, function_.writers, copies, function_.catalog);
}

// The last readers of values and of buffers, but for copies to the host that run on.
void CopyLives::find_readers() {
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
void CopyLives::choose_wanted() {
  std::vector<CopyBounds> bounds;
  for (const CopyInterval& interval : wide_.intervals)
    bounds.push_back(engine_of(interval) == Engine::ToHost ? bounds_of(interval)
                                                           : CopyBounds{interval.issue, interval.done, interval.done});
  CopyIntervals intervals(tight_, wide_.intervals, std::move(bounds));
  intervals.give_back();
  wanted_ = intervals.intervals().vec();
  clock_us_ = intervals.clock_us();
}

void CopyLives::collect_buffers(int64_t alignment) {
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
    flexible_.push_back({align_up(std::max<int64_t>(buffer.bytes, 1), alignment), core, core, core});
  }
  for (size_t w = 0; w < wanted_.size(); ++w) start_at_copy(wide_.intervals[w]);
  const std::vector<Life> wanted = lives_of(wanted_);
  for (size_t i = 0; i < flexible_.size(); ++i) flexible_[i].wanted = flexible_[i].allowed = wanted[i];
  for (const CopyInterval& interval : wide_.intervals) allow_more(interval);
}

// What a copy to the device writes is alive in its place at the latest; what a collective writes, from its issue on.
void CopyLives::start_at_copy(const CopyInterval& interval) {
  if (engine_of(interval) == Engine::ToHost) return;
  const int32_t start = engine_of(interval) == Engine::ToDevice ? interval.op : interval.issue;
  const int32_t result = buffer_of(result_of(interval));
  const int32_t workspace = assigned_.workspace_of[index_of(nodes_[interval.op])];
  if (assigned_.buffers[result].first_value == result_of(interval) && index_[result] >= 0)
    flexible_[index_[result]].core.first = start;
  if (workspace >= 0 && index_[workspace] >= 0) flexible_[index_[workspace]].core.first = start;
}

void CopyLives::allow_more(const CopyInterval& interval) {
  const int32_t i = moved_by(interval);
  if (i < 0) return;
  Life& allowed = flexible_[i].allowed;
  if (engine_of(interval) == Engine::ToDevice)
    allowed.first = std::min(allowed.first, function_.problem.ops[interval.op].not_before);
  if (engine_of(interval) == Engine::ToHost) allowed.last = std::max(allowed.last, bounds_of(interval).latest_done - 1);
}

std::vector<Life> CopyLives::lives_of(llvm::ArrayRef<CopyInterval> intervals) const {
  std::vector<Life> lives;
  for (const FlexibleInterval& flexible : flexible_) lives.push_back(flexible.core);
  for (const CopyInterval& interval : intervals) {
    const int32_t i = moved_by(interval);
    if (i < 0) continue;
    if (engine_of(interval) == Engine::ToDevice) lives[i].first = interval.issue;
    if (engine_of(interval) == Engine::ToHost) lives[i].last = std::max(lives[i].last, interval.done - 1);
  }
  return lives;
}

// Of a copy to the host, whatever the layout.
CopyBounds CopyLives::bounds_of(const CopyInterval& interval) const {
  const size_t source = index_of(source_of(interval));
  const int32_t last = last_reader_[source];
  const bool behind = interval.done > last;
  return {interval.issue, behind ? std::max(interval.op, last) + 1 : interval.op + 1,
          taken_over_[source] ? last : assigned_.instructions};
}

int32_t CopyLives::moved_by(const CopyInterval& interval) const {
  return index_[buffer_of(engine_of(interval) == Engine::ToHost ? source_of(interval) : result_of(interval))];
}

int64_t CopyLives::peak_of(llvm::ArrayRef<Life> lives) const {
  std::vector<int64_t> change(static_cast<size_t>(assigned_.instructions) + 1, 0);
  for (size_t i = 0; i < lives.size(); ++i) {
    change[lives[i].first] += flexible_[i].bytes;
    change[lives[i].last + 1] -= flexible_[i].bytes;
  }
  int64_t live = 0, peak = 0;
  for (int64_t c : change) peak = std::max(peak, live += c);
  return peak;
}

int64_t CopyLives::height_of(const FlexiblePlacement& layout) const {
  int64_t height = 0;
  for (size_t i = 0; i < flexible_.size(); ++i) height = std::max(height, layout.offsets[i] + flexible_[i].bytes);
  return height;
}

CopyIntervals CopyLives::intervals_within(const FlexiblePlacement& placed, llvm::ArrayRef<CopyInterval> wanted) const {
  std::vector<CopyInterval> intervals = wanted.vec();
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
  return {tight_, std::move(intervals), std::move(bounds)};
}

std::vector<int64_t> CopyLives::offset_of_value(const FlexiblePlacement& layout) const {
  std::vector<int64_t> offsets(graph_.value_count(), -1);
  for (size_t i = 0; i < placed_.size(); ++i)
    if (const ValueId value = assigned_.buffers[placed_[i]].first_value; value != ValueId::None)
      offsets[index_of(value)] = layout.offsets[i];
  return offsets;
}

std::vector<int64_t> CopyLives::offset_of_workspace(const FlexiblePlacement& layout) const {
  std::vector<int64_t> offsets(graph_.node_slots(), -1);
  for (NodeId id : nodes_)
    if (const int32_t buffer = assigned_.workspace_of[index_of(id)]; buffer >= 0 && index_[buffer] >= 0)
      offsets[index_of(id)] = layout.offsets[static_cast<size_t>(index_[buffer])];
  return offsets;
}

std::vector<int64_t> CopyLives::offsets_of(llvm::ArrayRef<int64_t> of_value,
                                           llvm::ArrayRef<int64_t> of_workspace) const {
  std::vector<int64_t> offsets(placed_.size(), 0);
  for (size_t i = 0; i < placed_.size(); ++i)
    if (const ValueId value = assigned_.buffers[placed_[i]].first_value; value != ValueId::None)
      offsets[i] = of_value[index_of(value)];
  for (NodeId id : nodes_)
    if (const int32_t buffer = assigned_.workspace_of[index_of(id)]; buffer >= 0 && index_[buffer] >= 0)
      offsets[static_cast<size_t>(index_[buffer])] = of_workspace[index_of(id)];
  return offsets;
}

}  // namespace plimsoll
