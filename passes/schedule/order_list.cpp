#include "passes/schedule/order_graph.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <tuple>

// In a training step most of what an order can win is simple: whatever frees
// memory runs as soon as it can, above all a weight gradient together with the
// update that consumes it. A node that grows memory counts as freeing if a few
// nodes that it alone enables bring the sum below zero. Run on the mirrored
// graph, the same rule delays the nodes that only grow memory.

namespace plimsoll::ordering {
namespace {

constexpr size_t fan_out_limit = 32;  // look-ahead stops at values that more nodes wait for

class ListScheduler {
 public:
  ListScheduler(const OrderGraph& graph, ListRule rule)
      : graph_(graph),
        rule_(rule),
        done_(graph.node_count()),
        version_(graph.node_count()),
        ready_since_(graph.node_count()),
        preds_left_(graph.node_count()),
        touches_left_(graph.buffer_count()),
        preds_left_xor_(graph.node_count()),
        touchers_left_xor_(graph.buffer_count()) {
    for (int32_t b = 0; b < graph.buffer_count(); ++b)
      if (graph.from_start[b]) live_ += graph.bytes[b];
    for (int32_t n = 0; n < graph.node_count(); ++n) {
      preds_left_[n] = static_cast<int32_t>(graph.preds[n].size());
      for (int32_t p : graph.preds[n]) preds_left_xor_[n] ^= p;
      for (int32_t b : graph.touched[n]) {
        ++touches_left_[b];
        touchers_left_xor_[b] ^= n;
      }
    }
  }

  std::vector<int32_t> run() {
    std::vector<int32_t> order;
    for (int32_t n = 0; n < graph_.node_count(); ++n) rank(n);
    while (static_cast<int32_t>(order.size()) < graph_.node_count()) {
      order.push_back(pop_next());
      execute(order.back());
    }
    return order;
  }

 private:
  // Of live bytes, by the node or with those that it pulls along.
  struct Growth {
    int64_t least;  // after the first of them that brings it to zero or below, or else the minimum
    int64_t most;   // while one of them runs, where bytes are limited
  };
  struct Entry {
    std::tuple<int64_t, int64_t> key;
    int32_t node;
    int32_t version;
    Growth growth;
    bool operator>(const Entry& o) const { return std::tie(key, node) > std::tie(o.key, o.node); }
  };
  using Queue = std::priority_queue<Entry, std::vector<Entry>, std::greater<Entry>>;

  void rank(int32_t node) {
    if (!is_waiting(node)) return;
    int32_t version = ++version_[node];
    const Growth growth = growth_of(node);
    if (growth.least <= 0) {
      freeing_.push({{growth.least, 0}, node, version, growth});
      if (!is_limited()) return;
    }
    if (rule_.otherwise == Otherwise::Earliest)
      others_.push({{0, 0}, node, version, growth});
    else if (rule_.otherwise == Otherwise::Latest)
      others_.push({{-ready_since_[node], growth.least}, node, version, growth});
    else
      others_.push({{growth.least, -ready_since_[node]}, node, version, growth});
  }

  bool is_limited() const { return rule_.limit_bytes != std::numeric_limits<int64_t>::max(); }
  bool fits(const Entry& entry) const { return entry.growth.most <= rule_.limit_bytes - live_; }

  int32_t pop_next() {
    for (; !too_high_.empty() && fits(too_high_.top()); too_high_.pop()) {
      Entry entry = too_high_.top();
      entry.key = {entry.growth.least, 0};
      freeing_.push(entry);
    }
    for (;;) {
      const bool frees = !freeing_.empty();
      Queue& queue = frees ? freeing_ : others_;
      Entry entry = queue.top();
      queue.pop();
      if (done_[entry.node] || entry.version != version_[entry.node]) continue;
      if (!frees || !is_limited() || fits(entry)) return entry.node;
      entry.key = {entry.growth.most, 0};
      too_high_.push(entry);
    }
  }

  void execute(int32_t node) {
    done_[node] = 1;
    ++clock_;
    live_ += touch(node);
    for (int32_t s : graph_.succs[node]) {
      --preds_left_[s];
      preds_left_xor_[s] ^= node;
    }
    for (int32_t b : graph_.touched[node]) touchers_left_xor_[b] ^= node;
    // The growth has changed for nodes that can start, that can pull along one more, or that touch a
    // buffer which is new or which no other node will touch.
    for (int32_t s : graph_.succs[node]) {
      if (preds_left_[s] == 0) ready_since_[s] = clock_;
      if (preds_left_[s] == 0) rank(s);
      if (preds_left_[s] == 1) rank(preds_left_xor_[s]);
    }
    for (int32_t b : graph_.touched[node]) {
      size_t touchers = graph_.touchers[b].size();
      if (touches_left_[b] == 1) rank(touchers_left_xor_[b]);
      bool was_new = !graph_.from_start[b] && static_cast<size_t>(touches_left_[b]) + 1 == touchers;
      if (was_new && touchers <= fan_out_limit)
        for (int32_t t : graph_.touchers[b]) rank(t);
    }
  }

  bool is_new(int32_t buffer) const {
    return !graph_.from_start[buffer] && touches_left_[buffer] == static_cast<int32_t>(graph_.touchers[buffer].size());
  }

  int64_t made_bytes(int32_t node) const {
    int64_t bytes = 0;
    for (int32_t b : graph_.touched[node])
      if (is_new(b)) bytes += graph_.bytes[b];
    return bytes;
  }

  // Takes the node's touches off its buffers; returns by how much that makes the live bytes grow.
  int64_t touch(int32_t node) {
    int64_t growth = 0;
    for (int32_t b : graph_.touched[node]) {
      if (is_new(b)) growth += graph_.bytes[b];
      if (--touches_left_[b] == 0 && !graph_.to_end[b]) growth -= graph_.bytes[b];
    }
    return growth;
  }

  void untouch(int32_t node) {
    for (int32_t b : graph_.touched[node]) ++touches_left_[b];
  }

  Growth growth_of(int32_t node) {
    llvm::SmallVector<int32_t, 16> cluster;
    int64_t growth = 0;
    Growth of{std::numeric_limits<int64_t>::max(), 0};
    for (int32_t n = node; n >= 0;) {
      cluster.push_back(n);
      if (is_limited()) of.most = std::max(of.most, growth + made_bytes(n) + graph_.scratch[n]);
      growth += touch(n);
      of.least = std::min(of.least, growth);
      bool may_go_on = of.least > 0 && static_cast<int32_t>(cluster.size()) <= rule_.look_ahead;
      if (graph_.succs[n].size() <= fan_out_limit)
        for (int32_t s : graph_.succs[n]) --preds_left_[s];
      n = may_go_on ? best_enabled(cluster) : -1;
    }
    for (int32_t n : cluster) {
      untouch(n);
      if (graph_.succs[n].size() <= fan_out_limit)
        for (int32_t s : graph_.succs[n]) ++preds_left_[s];
    }
    return of;
  }

  // The node of minimum growth among those that wait for nothing outside of the cluster; -1 if there is none.
  int32_t best_enabled(llvm::ArrayRef<int32_t> cluster) {
    int32_t best = -1;
    int64_t best_growth = 0;
    for (int32_t c : cluster) {
      if (graph_.succs[c].size() > fan_out_limit) continue;
      for (int32_t s : graph_.succs[c]) {
        if (preds_left_[s] > 0 || llvm::is_contained(cluster, s)) continue;
        int64_t growth = touch(s);
        untouch(s);
        if (best >= 0 && std::tie(growth, s) >= std::tie(best_growth, best)) continue;
        best = s;
        best_growth = growth;
      }
    }
    return best;
  }

  bool is_waiting(int32_t node) const { return preds_left_[node] == 0 && !done_[node]; }

  const OrderGraph& graph_;
  ListRule rule_;
  Queue freeing_, others_;
  Queue too_high_;  // freeing nodes that do not fit within the limit now, the one that needs least on top
  int64_t live_ = 0;
  std::vector<char> done_;
  std::vector<int32_t> version_, ready_since_;
  std::vector<int32_t> preds_left_, touches_left_;
  // The xor of the numbers that are left, which is the number itself once one is left.
  std::vector<int32_t> preds_left_xor_, touchers_left_xor_;
  int32_t clock_ = 0;
};

}  // namespace

std::vector<int32_t> list_schedule(const OrderGraph& graph, ListRule rule) { return ListScheduler(graph, rule).run(); }

}  // namespace plimsoll::ordering
