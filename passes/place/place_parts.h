#pragma once

// Which buffers may lie inside others, so that ops that take a value apart or join several have nothing to copy.

#include "passes/analysis/buffer_assignment.h"

namespace plimsoll {

struct PlacedParts {
  struct Part {
    int32_t buffer = -1;  // where it lies inside; -1: it has bytes of its own
    // The value of that buffer that it is a part of; none where it is several states, of which the buffer is the first.
    ValueId whole = ValueId::None;
    int64_t begin_bytes = 0;  // in that buffer
  };
  // A value from the first write to one of its parts, or its own, to the last read of any.
  struct WholeLife {
    ValueId whole;
    int32_t first, last;
  };

  std::vector<Part> of;         // by buffer
  std::vector<Buffer> buffers;  // parts are Buffer::Kind::Part, and others live as long as all that lies inside
  std::vector<WholeLife> lives;
  std::vector<int64_t> bytes_in_place;  // by node: of its parts that need no copy
  int32_t count = 0;                    // of parts

  // The buffer that has bytes of its own, and where `buffer` begins in it.
  std::pair<int32_t, int64_t> outermost(int32_t buffer) const;
};

struct PartOptions {
  int64_t alignment = 256;                    // of parts, as of all slots
  int32_t max_more_life;                      // instructions by which the life of a whole may get longer
  llvm::ArrayRef<int64_t> state_offset = {};  // by value: a state's first byte; empty: not known
};

// The states that concatenations of the graph join, each list in order, where they could lie one after the other. No
// state is in two lists.
std::vector<llvm::SmallVector<ValueId, 4>> joined_states(const Graph& graph, int64_t alignment);

// `assigned` is the graph's. The largest sum of live device bytes stays as it is or falls.
PlacedParts place_parts(const Graph& graph, const BufferAssignment& assigned, const PartOptions& options);

}  // namespace plimsoll
