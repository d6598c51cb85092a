#include "passes/schedule/order_graph.h"

#include "llvm/ADT/DenseMap.h"

#include <algorithm>
#include <bit>

// Dynamic programming over the sets of nodes that can have run (Ahn et al.,
// Serenity, MLSys 2020): the live bytes depend on the set alone, so of all ways
// to reach a set only the one with the lowest peak goes on.

namespace plimsoll::ordering {
namespace {

using Set = uint32_t;  // of positions in the window

struct WindowBuffer {
  Set touchers;
  int64_t bytes;
  bool before, after;  // alive outside of the window
};

struct State {
  Set done;
  int64_t peak;
  int64_t live;
  int32_t from;  // state of the level before
  int32_t node;  // that led here
};

class Window {
 public:
  Window(const Schedule& schedule, int32_t begin, int32_t end)
      : size_(end - begin), live_(schedule.live_before(begin)) {
    const OrderGraph& graph = schedule.graph();
    llvm::DenseMap<int32_t, int32_t> local;
    for (int32_t i = 0; i < size_; ++i) {
      int32_t node = schedule.order()[begin + i];
      preds_[i] = 0;
      for (int32_t p : graph.preds[node])
        if (schedule.position(p) >= begin) preds_[i] |= Set{1} << (schedule.position(p) - begin);
      scratch_[i] = graph.scratch[node];
      for (int32_t b : graph.touched[node]) {
        auto [it, is_new] = local.try_emplace(b, static_cast<int32_t>(buffers_.size()));
        if (is_new)
          buffers_.push_back({0, graph.bytes[b], schedule.alive_before(b, begin), schedule.alive_after(b, end - 1)});
        buffers_[it->second].touchers |= Set{1} << i;
        touched_[i].push_back(it->second);
      }
    }
  }

  // Positions in the order of the lowest peak below `limit`; empty if there is none. Counts the sets it tries.
  llvm::SmallVector<int32_t, largest_window> solve(int64_t limit, int64_t state_limit) {
    levels_.assign(1, {{0, 0, live_, -1, -1}});
    for (int32_t done = 0; done < size_; ++done) {
      levels_.emplace_back();
      const std::vector<State>& level = levels_[done];
      std::vector<State>& next = levels_[done + 1];
      llvm::DenseMap<Set, int32_t> index;
      for (size_t s = 0; s < level.size(); ++s) {
        for (int32_t node = 0; node < size_; ++node) {
          Set bit = Set{1} << node;
          if ((level[s].done & bit) != 0 || (preds_[node] & ~level[s].done) != 0) continue;
          if (++tried_ > state_limit) return {};
          State state = after(level[s], static_cast<int32_t>(s), node);
          if (state.peak >= limit) continue;
          auto [it, is_new] = index.try_emplace(state.done, static_cast<int32_t>(next.size()));
          if (is_new)
            next.push_back(state);
          else if (state.peak < next[it->second].peak)
            next[it->second] = state;
        }
      }
      if (next.empty()) return {};
    }
    return trace();
  }

  int64_t tried() const { return tried_; }

 private:
  State after(const State& state, int32_t from, int32_t node) const {
    State next = {state.done | Set{1} << node, state.peak, state.live, from, node};
    for (int32_t b : touched_[node]) {
      const WindowBuffer& buffer = buffers_[b];
      if (!buffer.before && (buffer.touchers & state.done) == 0) next.live += buffer.bytes;
    }
    next.peak = std::max(next.peak, next.live + scratch_[node]);
    for (int32_t b : touched_[node]) {
      const WindowBuffer& buffer = buffers_[b];
      if (!buffer.after && (buffer.touchers & ~next.done) == 0) next.live -= buffer.bytes;
    }
    return next;
  }

  llvm::SmallVector<int32_t, largest_window> trace() const {
    llvm::SmallVector<int32_t, largest_window> order(size_);
    int32_t state = 0;
    for (int32_t level = size_; level > 0; --level) {
      order[level - 1] = levels_[level][state].node;
      state = levels_[level][state].from;
    }
    return order;
  }

  int32_t size_;
  int64_t live_;
  Set preds_[largest_window];
  int64_t scratch_[largest_window];
  llvm::SmallVector<int32_t, 8> touched_[largest_window];
  std::vector<WindowBuffer> buffers_;
  std::vector<std::vector<State>> levels_;
  int64_t tried_ = 0;
};

}  // namespace

bool reorder_window(Schedule& schedule, int32_t begin, int32_t end, int64_t state_limit) {
  Window window(schedule, begin, end);
  auto positions = window.solve(schedule.height(begin, end).peak, state_limit);
  schedule.spend(8 * window.tried() + 16 * (end - begin));
  if (positions.empty()) return false;
  llvm::SmallVector<int32_t, largest_window> nodes;
  for (int32_t i : positions) nodes.push_back(schedule.order()[begin + i]);
  return schedule.replace_if_lower(begin, nodes);
}

}  // namespace plimsoll::ordering
