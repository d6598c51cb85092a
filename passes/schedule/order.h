#pragma once

// Op order for a low peak: which of the orders a graph allows keeps the fewest
// bytes alive at once.

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/SmallVector.h"

#include <cstdint>
#include <vector>

namespace plimsoll {

// Buffers are alias classes: in-place results and views are the buffer they continue, so several
// nodes may write one.
struct OrderNode {
  llvm::SmallVector<int32_t, 4> inputs;   // buffers read
  llvm::SmallVector<int32_t, 2> outputs;  // buffers written
  llvm::SmallVector<int32_t, 2> after;    // nodes that must run earlier for other reasons
  int64_t scratch_bytes = 0;              // alive while the node runs
};

// A buffer is alive from the first node that touches it to the last, and from the start if the first
// only reads or updates it. In every order, reads stay behind the writes before them in this one, and
// writes behind the reads and writes before them.
struct OrderProblem {
  std::vector<OrderNode> nodes;  // in an order that works
  std::vector<int64_t> buffer_bytes;
  std::vector<bool> pinned;    // alive throughout, so not counted; may be shorter than the buffers
  std::vector<bool> live_out;  // alive to the end once made; may be shorter than the buffers
};

// The same problem with nodes numbered by their places in `order`, which works.
OrderProblem permuted(const OrderProblem& problem, llvm::ArrayRef<int32_t> order);

struct OrderOptions {
  double seconds = 2.0;  // of search, see ir/support/search_effort.h
};

// The largest sum of bytes alive while one node runs.
int64_t peak_bytes(const OrderProblem& problem, llvm::ArrayRef<int32_t> order);

// Node ids in an order whose peak is never above the given order's, and the least possible for
// problems of up to 20 nodes. The same problem gives the same order on every machine.
std::vector<int32_t> order_for_low_peak(const OrderProblem& problem, const OrderOptions& options = {});

// Returns `order` with nodes that free memory, alone or with one that they enable, such as a weight's gradient with its
// update, as early as they may run without a higher peak. Fewer bytes are alive away from the peak then.
std::vector<int32_t> with_frees_early(const OrderProblem& problem, llvm::ArrayRef<int32_t> order);

// Returns `order` with updates gathered, and the nodes after them moved along, so that one launch can do several.
// `kinds` has for each node a number that updates of one kind share, or -1 for a node that is no update. An update
// moves right behind the last reader of the largest buffer it reads (its gradient, say, which lives until then anyway),
// or stays before it. One that ends the life of all it reads waits for the next such updates until these hold
// `most_bytes`. Where the peak would be above the given order's, nothing waits, or nothing moves.
std::vector<int32_t> with_updates_gathered(const OrderProblem& problem, llvm::ArrayRef<int32_t> order,
                                           llvm::ArrayRef<int32_t> kinds, int64_t most_bytes);

// The same for nodes that read pinned buffers alone, such as casts of parameters: those of one kind move ahead to the
// first of them, as long as their results hold `most_bytes`.
std::vector<int32_t> with_casts_gathered(const OrderProblem& problem, llvm::ArrayRef<int32_t> order,
                                         llvm::ArrayRef<int32_t> kinds, int64_t most_bytes);

}  // namespace plimsoll
