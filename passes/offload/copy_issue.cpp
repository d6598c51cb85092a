#include "passes/offload/copy_issue.h"

#include "ir/op_def.h"

#include <algorithm>
#include <tuple>

namespace plimsoll {

std::vector<CopyInFlight> issue_copies(Graph& graph, llvm::ArrayRef<CopyInterval> intervals) {
  struct Place {
    int32_t issue;  // it is issued ahead of the instruction that was here; where it was itself, it does not move
    bool computes;  // copies are issued ahead of the instruction that computes
    int32_t was;
    NodeId node;
    auto key() const { return std::tuple(issue, computes, was); }
  };
  std::vector<Place> places;
  for (NodeId id = graph.first_node(); id != NodeId::None; id = graph.next_node(id)) {
    const int32_t at = static_cast<int32_t>(places.size());
    if (is_instruction(graph.node(id))) places.push_back({at, graph.node(id).op->engine == Engine::Compute, at, id});
  }
  for (const CopyInterval& interval : intervals) places[static_cast<size_t>(interval.op)].issue = interval.issue;
  std::vector<NodeId> copy_of;
  for (const CopyInterval& interval : intervals) copy_of.push_back(places[static_cast<size_t>(interval.op)].node);
  std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) { return a.key() < b.key(); });
  std::vector<int32_t> position(graph.node_slots(), 0);
  int32_t first_behind = static_cast<int32_t>(places.size());  // in the old order
  for (size_t i = places.size(); i-- > 0;) {
    position[index_of(places[i].node)] = static_cast<int32_t>(i);
    // A node that is ahead of the same instructions as before keeps its place ahead of its views too.
    if (first_behind < places[i].was) graph.move_before(places[i].node, places[i + 1].node);
    first_behind = std::min(first_behind, places[i].was);
  }
  std::vector<CopyInFlight> copies;
  for (size_t w = 0; w < intervals.size(); ++w) {
    // Where one copy is waited for and another is issued, the wait comes first.
    auto due = std::partition_point(places.begin(), places.end(),
                                    [&](const Place& place) { return place.issue < intervals[w].done; });
    int32_t done = static_cast<int32_t>(due - places.begin());
    for (NodeId reader : readers_of(graph, graph.node(copy_of[w]).results[0]))
      done = std::min(done, position[index_of(reader)]);
    if (done > position[index_of(copy_of[w])] + 1) copies.push_back({copy_of[w], done});
  }
  return copies;
}

}  // namespace plimsoll
