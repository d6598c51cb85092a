#include "passes/schedule/order.h"

// Gradients that share a sum of squares all live until it has run, and the statistics of norms until backward has read
// them. Their updates can therefore stand side by side behind that point for free, or behind the earliest of several
// such points. Each kind of update is gathered by itself, because only updates of one kind share a launch.

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <array>
#include <tuple>

namespace plimsoll {
namespace {

// The largest buffer that the node reads; -1 when all of them are pinned.
int32_t largest_input(const OrderProblem& problem, const OrderNode& node) {
  int32_t largest = -1;
  for (int32_t buffer : node.inputs) {
    auto b = static_cast<size_t>(buffer);
    bool pinned = b < problem.pinned.size() && problem.pinned[b];
    if (!pinned && (largest < 0 || problem.buffer_bytes[b] > problem.buffer_bytes[largest])) largest = buffer;
  }
  return largest;
}

// By position: the position behind which an update goes that ends no buffer's life; -1 for all other nodes. Each may go
// behind the last reader of the largest buffer it reads. As few places as possible serve all updates of a kind: the
// earliest of those last readers, then the earliest for the updates that come too late for that, and so on.
std::vector<int32_t> choose_places(const OrderProblem& problem, llvm::ArrayRef<int32_t> order,
                                   llvm::ArrayRef<int32_t> update_kinds) {
  std::vector<int32_t> last_reader(problem.buffer_bytes.size(), -1), places(order.size(), -1);
  for (size_t at = 0; at < order.size(); ++at)
    for (int32_t buffer : problem.nodes[order[at]].inputs) last_reader[buffer] = static_cast<int32_t>(at);
  std::vector<std::array<int32_t, 3>> idle;  // kind, the last position it may wait for, its position
  for (int32_t at = 0; at < static_cast<int32_t>(order.size()); ++at) {
    const auto node = static_cast<size_t>(order[at]);
    const int32_t kind = update_kinds[node], ended = kind >= 0 ? largest_input(problem, problem.nodes[node]) : -1;
    if (ended >= 0 && last_reader[ended] > at) idle.push_back({kind, last_reader[ended], at});
  }
  llvm::sort(idle);
  int32_t place = -1, kind_there = -1;
  for (const auto& [kind, until, at] : idle) {
    if (kind != kind_there || at > place) place = until;
    kind_there = kind;
    places[at] = place;
  }
  return places;
}

}  // namespace

std::vector<int32_t> with_idle_updates_gathered(const OrderProblem& problem, llvm::ArrayRef<int32_t> order,
                                                llvm::ArrayRef<int32_t> update_kinds) {
  const std::vector<int32_t> chosen = choose_places(problem, order, update_kinds);
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
    return std::tie(first.behind, first.depth) < std::tie(second.behind, second.depth);
  });
  return peak_bytes(problem, gathered) <= peak_bytes(problem, order) ? gathered
                                                                     : std::vector<int32_t>(order.begin(), order.end());
}

}  // namespace plimsoll
