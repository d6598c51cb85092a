#include "passes/schedule/order_graph.h"

// Gradients that share a sum of squares all live until it has run, and the statistics of norms until backward has read
// them. Their updates can therefore stand side by side behind that point for free, or behind the earliest of several
// such points. Small gradients may wait for each other: a net has hundreds of them, which together have few bytes. Each
// kind of update is gathered by itself, because only updates of one kind share a launch. Updates that write states
// alone first stand as early as they may, for the order in hand may have them anywhere in the lives of what they read.
// Casts of parameters wait in the other direction: they move ahead to the first of their kind.

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <array>
#include <optional>
#include <tuple>

namespace plimsoll {
namespace {

constexpr int64_t min_shares = 4;  // of the bytes that wait together, the smallest number of equal buffers

bool is_pinned(const OrderProblem& problem, int32_t buffer) {
  const auto b = static_cast<size_t>(buffer);
  return b < problem.pinned.size() && problem.pinned[b];
}

std::vector<int32_t> last_readers(const OrderProblem& problem, llvm::ArrayRef<int32_t> order) {
  std::vector<int32_t> last(problem.buffer_bytes.size(), -1);
  for (size_t at = 0; at < order.size(); ++at)
    for (int32_t buffer : problem.nodes[order[at]].inputs) last[buffer] = static_cast<int32_t>(at);
  return last;
}

// The largest buffer that the node reads; -1 when all of them are pinned.
int32_t largest_input(const OrderProblem& problem, const OrderNode& node) {
  int32_t largest = -1;
  for (int32_t buffer : node.inputs)
    if (!is_pinned(problem, buffer) && (largest < 0 || problem.buffer_bytes[buffer] > problem.buffer_bytes[largest]))
      largest = buffer;
  return largest;
}

// Walks along an order, forwards or backwards, and gathers nodes whose buffers wait for the next such nodes, as long as
// these bytes are few and the peak stays where it is.
class Window {
 public:
  explicit Window(int64_t most_bytes, int64_t peak) : most_bytes_(most_bytes), peak_(peak) {}

  // Every position is passed, with what the order has alive there.
  void pass(int64_t live_bytes) { highest_ = std::max(highest_, live_bytes); }

  bool may_wait(int64_t bytes) const { return bytes * min_shares <= most_bytes_; }

  // Adds the position that was passed last. Where there is no room for it, the window ends before and begins anew:
  // `tell` has each of its positions, and its last one.
  template <typename F>
  void add(int32_t position, int64_t bytes, F tell) {
    if (bytes_ + bytes > most_bytes_ || bytes_ + highest_ > peak_) close(tell);
    positions_.push_back(position);
    bytes_ += bytes;
    highest_ = 0;
  }

  template <typename F>
  void close(F tell) {
    for (int32_t position : positions_) tell(position, positions_.back());
    positions_.clear();
    bytes_ = 0;
  }

 private:
  int64_t most_bytes_, peak_, bytes_ = 0;
  int64_t highest_ = 0;  // behind the last position that was added
  std::vector<int32_t> positions_;
};

// Updates whose results are pinned alone stand right behind what they wait for, which lengthens no life.
std::vector<int32_t> with_updates_early(const OrderProblem& problem, const ordering::OrderGraph& graph,
                                        llvm::ArrayRef<int32_t> order, llvm::ArrayRef<int32_t> kinds) {
  // By node: the position behind which it goes, and how many moved nodes it waits for there.
  std::vector<std::pair<int32_t, int32_t>> places(order.size());
  for (size_t at = 0; at < order.size(); ++at) {
    const int32_t id = order[at];
    std::pair<int32_t, int32_t> place{static_cast<int32_t>(at), 0};
    if (kinds[id] >= 0 && llvm::all_of(problem.nodes[id].outputs, [&](int32_t b) { return is_pinned(problem, b); })) {
      place = {-1, 1};
      for (int32_t before : graph.preds[id]) place = std::max(place, {places[before].first, places[before].second + 1});
    }
    places[id] = place;
  }
  std::vector<int32_t> early = order.vec();
  llvm::stable_sort(early, [&](int32_t a, int32_t b) { return places[a] < places[b]; });
  return peak_bytes(problem, early) <= peak_bytes(problem, order) ? early : order.vec();
}

// By position: the last one behind which an update may go; -1 for all other nodes. That is the last reader of the
// largest buffer it reads, or where its window ends.
std::vector<int32_t> last_places(const OrderProblem& problem, const ordering::Schedule& schedule,
                                 llvm::ArrayRef<int32_t> kinds, int64_t most_bytes) {
  const llvm::ArrayRef<int32_t> order = schedule.order();
  const std::vector<int32_t> last_reader = last_readers(problem, order);
  std::vector<int32_t> until(order.size(), -1);
  Window window(most_bytes, schedule.peak());
  const auto tell = [&](int32_t position, int32_t last) { until[position] = last; };
  for (int32_t at = 0; at < static_cast<int32_t>(order.size()); ++at) {
    window.pass(schedule.height(at, at + 1).peak);
    const OrderNode& node = problem.nodes[order[at]];
    const int32_t largest = kinds[order[at]] >= 0 ? largest_input(problem, node) : -1;
    if (largest < 0) continue;
    // Where another update of its kind reads it last, as two biases may have one gradient, that one waits, too.
    if (last_reader[largest] > at && kinds[order[last_reader[largest]]] != kinds[order[at]]) {
      until[at] = last_reader[largest];
      continue;
    }
    int64_t bytes = 0;  // of what would end with it
    for (int32_t buffer : node.inputs)
      if (!is_pinned(problem, buffer) && last_reader[buffer] == at) bytes += problem.buffer_bytes[buffer];
    if (window.may_wait(bytes)) window.add(at, bytes, tell);
  }
  window.close(tell);
  return until;
}

// By position: the position behind which an update goes; -1 for all other nodes. As few places as possible serve all
// updates of a kind: the earliest of their last places, then the earliest for the updates that come too late for that,
// and so on.
std::vector<int32_t> choose_places(llvm::ArrayRef<int32_t> order, llvm::ArrayRef<int32_t> kinds,
                                   llvm::ArrayRef<int32_t> until) {
  std::vector<std::array<int32_t, 3>> waiting;  // kind, the last position it may wait for, its position
  for (int32_t at = 0; at < static_cast<int32_t>(order.size()); ++at)
    if (until[at] >= 0) waiting.push_back({kinds[order[at]], until[at], at});
  llvm::sort(waiting);
  std::vector<int32_t> places(order.size(), -1);
  int32_t place = -1, kind_there = -1;
  for (const auto& [kind, last, at] : waiting) {
    if (kind != kind_there || at > place) place = last;
    kind_there = kind;
    places[at] = place;
  }
  return places;
}

// At one place kind by kind. Nothing where the peak is above that of the schedule.
std::optional<std::vector<int32_t>> gathered_at(const OrderProblem& problem, const ordering::Schedule& schedule,
                                                llvm::ArrayRef<int32_t> kinds, llvm::ArrayRef<int32_t> chosen) {
  const llvm::ArrayRef<int32_t> order = schedule.order();
  // The position behind which a node goes, and how many moved nodes it waits for there; a node that stays has depth 0.
  struct Place {
    int32_t behind, depth;
  };
  std::vector<Place> places(order.size());
  for (size_t at = 0; at < order.size(); ++at) {
    const OrderNode& node = problem.nodes[order[at]];
    Place place{static_cast<int32_t>(at), 0};
    if (chosen[at] >= 0) place = {chosen[at], 1};
    for (int32_t before : node.after) {
      const Place& other = places[before];
      if (other.depth > 0 && std::tie(other.behind, other.depth) >= std::tie(place.behind, place.depth))
        place = {other.behind, other.depth + 1};
    }
    places[order[at]] = place;
  }
  std::vector<int32_t> gathered(order.begin(), order.end());
  llvm::stable_sort(gathered, [&](int32_t a, int32_t b) {
    const Place &first = places[a], &second = places[b];
    return std::tie(first.behind, first.depth, kinds[a]) < std::tie(second.behind, second.depth, kinds[b]);
  });
  if (peak_bytes(problem, gathered) > schedule.peak()) return std::nullopt;
  return gathered;
}

}  // namespace

std::vector<int32_t> with_updates_gathered(const OrderProblem& problem, llvm::ArrayRef<int32_t> order,
                                           llvm::ArrayRef<int32_t> kinds, int64_t most_bytes) {
  const ordering::OrderGraph graph = ordering::build_order_graph(problem);
  const ordering::Schedule schedule(graph, with_updates_early(problem, graph, order, kinds));
  for (int64_t bytes : {most_bytes, int64_t{0}}) {
    const std::vector<int32_t> until = last_places(problem, schedule, kinds, bytes);
    if (auto gathered = gathered_at(problem, schedule, kinds, choose_places(schedule.order(), kinds, until)))
      return *gathered;
  }
  return order.vec();
}

std::vector<int32_t> with_casts_gathered(const OrderProblem& problem, llvm::ArrayRef<int32_t> order,
                                         llvm::ArrayRef<int32_t> kinds, int64_t most_bytes) {
  const ordering::OrderGraph graph = ordering::build_order_graph(problem);
  const ordering::Schedule schedule(graph, order.vec());
  std::vector<int32_t> places(order.size());  // by node
  for (size_t at = 0; at < order.size(); ++at) places[order[at]] = static_cast<int32_t>(at);
  Window window(most_bytes, schedule.peak());
  const auto tell = [&](int32_t position, int32_t first) { places[order[position]] = first; };
  for (auto at = static_cast<int32_t>(order.size()) - 1; at >= 0; --at) {
    window.pass(schedule.height(at, at + 1).peak);
    const OrderNode& node = problem.nodes[order[at]];
    if (kinds[order[at]] < 0 || !node.after.empty() || largest_input(problem, node) >= 0) continue;
    int64_t bytes = 0;
    for (int32_t buffer : node.outputs) bytes += problem.buffer_bytes[buffer];
    if (window.may_wait(bytes)) window.add(at, bytes, tell);
  }
  window.close(tell);
  // Within a window, kind by kind.
  std::vector<int32_t> gathered = order.vec();
  llvm::stable_sort(
      gathered, [&](int32_t a, int32_t b) { return std::tie(places[a], kinds[a]) < std::tie(places[b], kinds[b]); });
  return peak_bytes(problem, gathered) <= schedule.peak() ? gathered : order.vec();
}

}  // namespace plimsoll
