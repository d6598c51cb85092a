#include "passes/target/min_cut.h"

#include <algorithm>

// The maximum flow by shortest paths, all paths of one length at a time (Dinic 1970); what the source still reaches
// behind it is the source's side.

namespace plimsoll {

void MinCut::add_edge(size_t from, size_t to, int64_t capacity) {
  edges_.push_back({to, capacity, first_[from]});
  first_[from] = static_cast<int32_t>(edges_.size()) - 1;
  edges_.push_back({from, 0, first_[to]});
  first_[to] = static_cast<int32_t>(edges_.size()) - 1;
}

// Distances from the source over edges with capacity left. Is the sink reached?
bool MinCut::find_levels(size_t source, size_t sink) {
  level_.assign(first_.size(), none);
  level_[source] = 0;
  std::vector<size_t> queue{source};
  for (size_t at = 0; at < queue.size(); ++at)
    for (int32_t e = first_[queue[at]]; e != none; e = edges_[e].next) {
      const Edge& edge = edges_[e];
      if (edge.capacity == 0 || level_[edge.to] != none) continue;
      level_[edge.to] = level_[queue[at]] + 1;
      queue.push_back(edge.to);
    }
  return level_[sink] != none;
}

// An edge that leads to no path is not tried again at this length of paths.
bool MinCut::push_along_path(size_t source, size_t sink) {
  std::vector<int32_t> path;
  for (size_t at = source; at != sink;) {
    int32_t& e = open_[at];
    while (e != none && (edges_[e].capacity == 0 || level_[edges_[e].to] != level_[at] + 1)) e = edges_[e].next;
    if (e != none) {
      path.push_back(e);
      at = edges_[e].to;
      continue;
    }
    if (path.empty()) return false;
    at = edges_[path.back() ^ 1].to;
    open_[at] = edges_[open_[at]].next;
    path.pop_back();
  }
  int64_t flow = unbounded;
  for (int32_t e : path) flow = std::min(flow, edges_[e].capacity);
  for (int32_t e : path) {
    edges_[e].capacity -= flow;
    edges_[e ^ 1].capacity += flow;
  }
  return true;
}

std::vector<bool> MinCut::source_side(size_t source, size_t sink) {
  while (find_levels(source, sink)) {
    open_ = first_;
    while (push_along_path(source, sink)) {
    }
  }
  std::vector<bool> reached(first_.size());
  for (size_t v = 0; v < reached.size(); ++v) reached[v] = level_[v] != none;
  return reached;
}

}  // namespace plimsoll
