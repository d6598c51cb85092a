#pragma once

// The ordering problem with its dependencies worked out, in a form that reads
// the same forwards and backwards in time.

#include "passes/schedule/order.h"

#include <limits>

namespace plimsoll::ordering {

using Lists = std::vector<std::vector<int32_t>>;

struct OrderGraph {
  Lists preds, succs;  // by node: other nodes, each once
  Lists touched;       // by node: counted buffers, each once
  Lists touchers;      // by buffer: nodes
  std::vector<int64_t> bytes;
  std::vector<char> from_start, to_end;  // alive before the first, after the last toucher
  std::vector<int64_t> scratch;

  int32_t node_count() const { return static_cast<int32_t>(scratch.size()); }
  int32_t buffer_count() const { return static_cast<int32_t>(bytes.size()); }
};

OrderGraph build_order_graph(const OrderProblem& problem);

// The same without any lists but `touched`, which is enough to measure orders.
OrderGraph touched_buffers(const OrderProblem& problem);

// Time reversed and nodes renumbered from the other end: a good order of one, reversed, is a good
// order of the other with the same peak.
OrderGraph mirrored(const OrderGraph& graph);

// An order with all that is needed to judge a local change locally.
class Schedule {
 public:
  Schedule(const OrderGraph& graph, std::vector<int32_t> order);

  // Heights compare stretches of an order: by peak, then by how many positions reach it.
  struct Height {
    int64_t peak = 0;
    int32_t positions = 0;
    friend auto operator<=>(const Height&, const Height&) = default;
  };

  const OrderGraph& graph() const { return graph_; }
  llvm::ArrayRef<int32_t> order() const { return order_; }
  int32_t position(int32_t node) const { return position_[node]; }
  int64_t live_before(int32_t position) const { return live_before_[position]; }
  bool alive_before(int32_t buffer, int32_t position) const {
    return graph_.from_start[buffer] || first_[buffer] < position;
  }
  bool alive_after(int32_t buffer, int32_t position) const { return graph_.to_end[buffer] || last_[buffer] > position; }
  int32_t peak_position() const;  // the first
  int64_t peak() const;
  Height height(int32_t begin, int32_t end) const;

  // Puts `nodes`, a rearrangement of what stands at `begin` and on, in that order if that lowers
  // the height of the stretch.
  bool replace_if_lower(int32_t begin, llvm::ArrayRef<int32_t> nodes);
  // Elementary steps since construction.
  int64_t steps() const { return steps_; }
  void spend(int64_t steps) { steps_ += steps; }

 private:
  void measure(int32_t begin, llvm::ArrayRef<int32_t> nodes);
  void write(int32_t begin, llvm::ArrayRef<int32_t> nodes);

  const OrderGraph& graph_;
  std::vector<int32_t> order_, position_;
  std::vector<int32_t> first_, last_;  // positions of a buffer's first and last toucher
  std::vector<int64_t> used_;          // while the node at a position runs
  std::vector<int64_t> live_before_;   // and before it starts
  std::vector<int64_t> trial_used_, trial_live_;
  std::vector<int32_t> left_;  // scratch by buffer: touches to come in the stretch
  std::vector<char> alive_;    // scratch by buffer
  int64_t steps_ = 0;
};

// Which node runs when none at hand would free memory.
enum class Otherwise { Earliest, Latest, SmallestGrowth };

struct ListRule {
  int32_t look_ahead;   // nodes that one node may pull along to prove that it frees memory
  Otherwise otherwise;  // by node number, by newest ready, by bytes
  // A node that frees memory waits its turn among the others while it would have more bytes alive than these.
  int64_t limit_bytes = std::numeric_limits<int64_t>::max();
};

std::vector<int32_t> list_schedule(const OrderGraph& graph, ListRule rule);

inline constexpr int32_t largest_window = 20;

// The best order of the nodes at [begin, end), everything else left in place: exact, over all sets of
// nodes that can have run. False when none is lower or more than `state_limit` sets come up.
bool reorder_window(Schedule& schedule, int32_t begin, int32_t end, int64_t state_limit);

// Takes buffers out of the peak by running their remaining touchers before it, or all of their
// touchers after it, together with the nodes these need. False when no such move helps.
bool move_out_of_peak(Schedule& schedule);

}  // namespace plimsoll::ordering
