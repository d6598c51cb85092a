#include "passes/schedule/order_graph.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <cassert>
#include <limits>

// A node depends on the last writer of what it reads or writes and, if it
// writes, on those who read that writer's value. Memory is counted by touches:
// a buffer comes with its first and goes with its last, which is what makes
// time reversible.

namespace plimsoll::ordering {

namespace {

constexpr int32_t never = std::numeric_limits<int32_t>::max();  // a position after all

void sort_unique(std::vector<int32_t>& list) {
  std::sort(list.begin(), list.end());
  list.erase(std::unique(list.begin(), list.end()), list.end());
}

Lists transposed(const Lists& lists, size_t rows) {
  Lists result(rows);
  for (size_t i = 0; i < lists.size(); ++i)
    for (int32_t j : lists[i]) result[j].push_back(static_cast<int32_t>(i));
  return result;
}

Lists dependencies(const OrderProblem& problem) {
  Lists preds(problem.nodes.size());
  std::vector<int32_t> writer(problem.buffer_bytes.size(), -1);
  Lists readers(problem.buffer_bytes.size());  // since the last write
  for (size_t n = 0; n < problem.nodes.size(); ++n) {
    const OrderNode& node = problem.nodes[n];
    int32_t id = static_cast<int32_t>(n);
    preds[n].assign(node.after.begin(), node.after.end());
    for (int32_t b : node.inputs)
      if (writer[b] >= 0) preds[n].push_back(writer[b]);
    for (int32_t b : node.outputs) {
      if (writer[b] >= 0) preds[n].push_back(writer[b]);
      preds[n].insert(preds[n].end(), readers[b].begin(), readers[b].end());
    }
    for (int32_t b : node.inputs) readers[b].push_back(id);
    for (int32_t b : node.outputs) {
      writer[b] = id;
      readers[b].clear();
    }
    sort_unique(preds[n]);
    assert((preds[n].empty() || preds[n].back() < id) && "the order given is one that works");
  }
  return preds;
}

}  // namespace

OrderGraph build_order_graph(const OrderProblem& problem) {
  OrderGraph graph = touched_buffers(problem);
  graph.preds = dependencies(problem);
  graph.succs = transposed(graph.preds, problem.nodes.size());
  graph.touchers = transposed(graph.touched, problem.buffer_bytes.size());
  return graph;
}

OrderGraph touched_buffers(const OrderProblem& problem) {
  OrderGraph graph;
  size_t nodes = problem.nodes.size(), buffers = problem.buffer_bytes.size();
  graph.bytes = problem.buffer_bytes;
  graph.to_end.assign(buffers, 0);
  graph.from_start.assign(buffers, 0);

  graph.touched.resize(nodes);
  std::vector<char> seen(buffers);
  for (size_t n = 0; n < nodes; ++n) {
    const OrderNode& node = problem.nodes[n];
    graph.scratch.push_back(node.scratch_bytes);
    for (const auto& list : {llvm::ArrayRef<int32_t>(node.inputs), llvm::ArrayRef<int32_t>(node.outputs)})
      for (int32_t b : list) {
        bool pinned = static_cast<size_t>(b) < problem.pinned.size() && problem.pinned[b];
        if (pinned || problem.buffer_bytes[b] == 0) continue;
        graph.touched[n].push_back(b);
        if (!seen[b]) graph.from_start[b] = llvm::is_contained(node.inputs, b);
        graph.to_end[b] = static_cast<size_t>(b) < problem.live_out.size() && problem.live_out[b];
        seen[b] = 1;
      }
    sort_unique(graph.touched[n]);
  }
  return graph;
}

OrderGraph mirrored(const OrderGraph& graph) {
  const int32_t last = graph.node_count() - 1;
  const auto mirrored_lists = [&](const Lists& lists) {
    Lists result(lists.rbegin(), lists.rend());
    for (std::vector<int32_t>& list : result)
      for (int32_t& node : list) node = last - node;
    return result;
  };
  OrderGraph mirror;
  mirror.preds = mirrored_lists(graph.succs);
  mirror.succs = mirrored_lists(graph.preds);
  mirror.touched.assign(graph.touched.rbegin(), graph.touched.rend());
  mirror.touchers = transposed(mirror.touched, graph.bytes.size());
  mirror.bytes = graph.bytes;
  mirror.from_start = graph.to_end;
  mirror.to_end = graph.from_start;
  mirror.scratch.assign(graph.scratch.rbegin(), graph.scratch.rend());
  return mirror;
}

Schedule::Schedule(const OrderGraph& graph, std::vector<int32_t> order)
    : graph_(graph),
      order_(std::move(order)),
      position_(order_.size()),
      first_(graph.bytes.size(), never),
      last_(graph.bytes.size(), -1),
      used_(order_.size()),
      live_before_(order_.size()),
      left_(graph.bytes.size()),
      alive_(graph.bytes.size()) {
  int64_t live = 0;
  for (int32_t b = 0; b < graph_.buffer_count(); ++b)
    if (graph_.from_start[b]) live += graph_.bytes[b];
  if (order_.empty()) return;
  live_before_[0] = live;
  std::vector<int32_t> all = order_;
  measure(0, all);
  write(0, all);
}

int32_t Schedule::peak_position() const {
  return static_cast<int32_t>(std::max_element(used_.begin(), used_.end()) - used_.begin());
}

int64_t Schedule::peak() const { return used_.empty() ? 0 : *std::max_element(used_.begin(), used_.end()); }

static Schedule::Height height_of(llvm::ArrayRef<int64_t> used) {
  const int64_t peak = *std::max_element(used.begin(), used.end());
  return {peak, static_cast<int32_t>(std::count(used.begin(), used.end(), peak))};
}

Schedule::Height Schedule::height(int32_t begin, int32_t end) const {
  return height_of(llvm::ArrayRef<int64_t>(used_).slice(begin, end - begin));
}

// Fills the trial profile for `nodes` standing at `begin` and on.
void Schedule::measure(int32_t begin, llvm::ArrayRef<int32_t> nodes) {
  int32_t final = begin + static_cast<int32_t>(nodes.size()) - 1;
  for (int32_t n : nodes)
    for (int32_t b : graph_.touched[n]) {
      ++left_[b];
      alive_[b] = alive_before(b, begin);
    }
  trial_used_.resize(nodes.size());
  trial_live_.resize(nodes.size());
  int64_t live = live_before_[begin];
  for (size_t i = 0; i < nodes.size(); ++i) {
    llvm::ArrayRef<int32_t> touched = graph_.touched[nodes[i]];
    steps_ += 2 + 2 * static_cast<int64_t>(touched.size());
    trial_live_[i] = live;
    for (int32_t b : touched) {
      if (!alive_[b]) live += graph_.bytes[b];
      alive_[b] = 1;
    }
    trial_used_[i] = live + graph_.scratch[nodes[i]];
    for (int32_t b : touched)
      if (--left_[b] == 0 && !alive_after(b, final)) live -= graph_.bytes[b];
  }
}

void Schedule::write(int32_t begin, llvm::ArrayRef<int32_t> nodes) {
  std::copy(trial_used_.begin(), trial_used_.end(), used_.begin() + begin);
  std::copy(trial_live_.begin(), trial_live_.end(), live_before_.begin() + begin);
  std::copy(nodes.begin(), nodes.end(), order_.begin() + begin);
  int32_t final = begin + static_cast<int32_t>(nodes.size()) - 1;
  for (int32_t n : nodes)
    for (int32_t b : graph_.touched[n]) {
      if (first_[b] >= begin) first_[b] = never;
      if (last_[b] <= final) last_[b] = -1;
    }
  for (int32_t i = begin; i <= final; ++i) {
    position_[order_[i]] = i;
    for (int32_t b : graph_.touched[order_[i]]) {
      first_[b] = std::min(first_[b], i);
      last_[b] = std::max(last_[b], i);
    }
  }
}

bool Schedule::replace_if_lower(int32_t begin, llvm::ArrayRef<int32_t> nodes) {
  measure(begin, nodes);
  if (height_of(trial_used_) >= height(begin, begin + static_cast<int32_t>(nodes.size()))) return false;
  write(begin, nodes);
  return true;
}

}  // namespace plimsoll::ordering
