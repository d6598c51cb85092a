#include "passes/memory/order_updates.h"

// Gradients that share a sum of squares all live until it has run. Their updates, wherever they stood before, then stand side
// by side behind it.

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <tuple>

namespace plimsoll {
namespace {

// -1 when everything that the node reads is pinned.
int32_t largest_input(const OrderProblem& problem, const OrderNode& node) {
  int32_t largest = -1;
  for (int32_t buffer : node.inputs) {
    auto b = static_cast<size_t>(buffer);
    bool pinned = b < problem.pinned.size() && problem.pinned[b];
    if (!pinned && (largest < 0 || problem.buffer_bytes[b] > problem.buffer_bytes[static_cast<size_t>(largest)])) largest = buffer;
  }
  return largest;
}

}  // namespace

std::vector<int32_t> with_idle_updates_gathered(const OrderProblem& problem, llvm::ArrayRef<int32_t> order,
                                                const std::vector<bool>& is_update) {
  std::vector<int32_t> last_reader(problem.buffer_bytes.size(), -1);
  for (size_t at = 0; at < order.size(); ++at)
    for (int32_t buffer : problem.nodes[static_cast<size_t>(order[at])].inputs)
      last_reader[static_cast<size_t>(buffer)] = static_cast<int32_t>(at);
  // Behind which position a node goes, and how many moved nodes it has to wait for there; what stays waits for none.
  struct Place {
    int32_t behind, depth;
  };
  std::vector<Place> places(order.size());
  for (size_t at = 0; at < order.size(); ++at) {
    const OrderNode& node = problem.nodes[static_cast<size_t>(order[at])];
    Place place{static_cast<int32_t>(at), 0};
    int32_t ended = is_update[static_cast<size_t>(order[at])] ? largest_input(problem, node) : -1;
    if (ended >= 0 && last_reader[static_cast<size_t>(ended)] > place.behind) place = {last_reader[static_cast<size_t>(ended)], 1};
    for (int32_t before : node.after) {
      const Place& other = places[static_cast<size_t>(before)];
      if (other.depth > 0 && std::tie(other.behind, other.depth) >= std::tie(place.behind, place.depth))
        place = {other.behind, other.depth + 1};
    }
    places[static_cast<size_t>(order[at])] = place;
  }
  std::vector<int32_t> gathered(order.begin(), order.end());
  llvm::stable_sort(gathered, [&](int32_t a, int32_t b) {
    const Place &first = places[static_cast<size_t>(a)], &second = places[static_cast<size_t>(b)];
    return std::tie(first.behind, first.depth) < std::tie(second.behind, second.depth);
  });
  return peak_bytes(problem, gathered) <= peak_bytes(problem, order) ? gathered : std::vector<int32_t>(order.begin(), order.end());
}

}  // namespace plimsoll
