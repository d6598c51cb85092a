#pragma once

// The buffers of a function as its copies leave them: how long each is alive in any case, how long its copies want it
// to be, and how long they may have it; and the intervals of copies that a layout of these buffers has room for.

#include "passes/analysis/plan_draft.h"
#include "passes/offload/copy_intervals.h"
#include "passes/place/flexible_placement.h"

#include <vector>

namespace plimsoll {

// A function with its remats and copies in place, before any copy is issued elsewhere than there. Instruction and op
// mean the same place.
struct FunctionWithCopies {
  const Graph& graph;
  llvm::ArrayRef<NodeId> writers;
  const KernelCatalog& catalog;
  const RematProblem& problem;
};

class CopyLives {
 public:
  // `wide` are the intervals that the live bytes alone allow. What was given outlives this.
  CopyLives(const FunctionWithCopies& function, const Overlap& wide, int64_t alignment);

  // The shortest intervals that hardly take longer than `wide`, and when each op begins with them.
  llvm::ArrayRef<CopyInterval> wanted() const { return wanted_; }
  llvm::ArrayRef<double> clock_us() const { return clock_us_; }
  // By buffer that has to be placed.
  llvm::ArrayRef<FlexibleInterval> buffers() const { return flexible_; }
  // Their lives with these intervals, and the largest sum of bytes that are alive then.
  std::vector<Life> lives_of(llvm::ArrayRef<CopyInterval> intervals) const;
  int64_t peak_of(llvm::ArrayRef<Life> lives) const;
  int64_t height_of(const FlexiblePlacement& layout) const;
  // The buffer that a copy writes or, to the host, reads; -1: its bytes have their place already.
  int32_t moved_by(const CopyInterval& interval) const;
  // The intervals of a layout in which copies were to have `wanted`, with the bounds within which they may be longer.
  remat::CopyIntervals intervals_within(const FlexiblePlacement& layout, llvm::ArrayRef<CopyInterval> wanted) const;

  // Offsets of a layout: by value that opens a buffer, and by node whose workspace it is; -1: none.
  std::vector<int64_t> offset_of_value(const FlexiblePlacement& layout) const;
  std::vector<int64_t> offset_of_workspace(const FlexiblePlacement& layout) const;
  // And back: by buffer that has to be placed.
  std::vector<int64_t> offsets_of(llvm::ArrayRef<int64_t> of_value, llvm::ArrayRef<int64_t> of_workspace) const;

 private:
  void assign();
  void find_readers();
  void choose_wanted();
  void collect_buffers(int64_t alignment);
  void start_at_copy(const CopyInterval& interval);
  void allow_more(const CopyInterval& interval);
  remat::CopyBounds bounds_of(const CopyInterval& interval) const;
  const Node& node_of(const CopyInterval& interval) const { return graph_.node(nodes_[interval.op]); }
  Engine engine_of(const CopyInterval& interval) const { return node_of(interval).op->engine; }
  ValueId result_of(const CopyInterval& interval) const { return node_of(interval).results[0]; }
  ValueId source_of(const CopyInterval& interval) const;
  int32_t buffer_of(ValueId value) const { return assigned_.buffer_of[index_of(value)]; }

  const FunctionWithCopies& function_;
  const Graph& graph_;
  const Overlap& wide_;
  std::vector<NodeId> nodes_;         // by op
  const remat::CopyIntervals tight_;  // of the same copies, as short as can be
  std::vector<CopyInterval> wanted_;
  std::vector<double> clock_us_;  // by op
  BufferAssignment assigned_;
  std::vector<int32_t> last_reader_;  // by root value
  std::vector<bool> taken_over_;      // by value: a result is written over it
  std::vector<size_t> placed_;        // buffers of the assignment, by buffer that has to be placed
  std::vector<int32_t> index_;        // the other way round; -1: it is not placed
  std::vector<FlexibleInterval> flexible_;
};

}  // namespace plimsoll
