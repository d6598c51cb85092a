#include "passes/fit/sequence.h"

#include <algorithm>

// While base op t runs for the first time, at most the limit is alive. Of the values that wait there without being
// touched, those that do not fit must be made again later, and each op that makes some costs at least its own time.
// Shedding the excess from them is a knapsack: its least cost bounds the added time from below, and the largest bound over
// all t holds. The fractional relaxation finds the moments that matter; there the knapsack is solved exactly.

namespace plimsoll {
namespace {

using namespace fit;

constexpr double impossible = std::numeric_limits<double>::infinity();
constexpr size_t exact_moments = 8;
constexpr int node_limit = 200000;  // of one exact search

struct Item {
  double cost_us, bytes;
};

struct Knapsack {
  std::vector<Item> items;  // cheapest byte first
  double excess = 0;
};

// Ops by what a byte of theirs costs, cheapest first.
std::vector<int32_t> cheapest_first(const RecomputeProblem& problem) {
  std::vector<int32_t> ops;
  std::vector<double> price(problem.ops.size());
  for (int32_t o = 0; o < problem.op_count(); ++o) {
    const RecomputeOp& op = problem.ops[static_cast<size_t>(o)];
    int64_t bytes = 0;
    for (int32_t v : op.writes) bytes += problem.value_bytes[static_cast<size_t>(v)];
    if (!op.repeatable || bytes == 0) continue;
    price[static_cast<size_t>(o)] = op.cost_us / static_cast<double>(bytes);
    ops.push_back(o);
  }
  std::stable_sort(ops.begin(), ops.end(), [&](int32_t a, int32_t b) { return price[static_cast<size_t>(a)] < price[static_cast<size_t>(b)]; });
  return ops;
}

// `enough` ends the list of items once they hold the excess.
Knapsack knapsack_at(const Sequence& plain, llvm::ArrayRef<int32_t> ops, int32_t t, int64_t limit, bool enough) {
  const RecomputeProblem& problem = plain.problem();
  auto size = [&](int32_t v) { return static_cast<double>(problem.value_bytes[static_cast<size_t>(v)]); };
  Moment at{t, t};
  Knapsack sack;
  sack.excess = static_cast<double>(plain.memory().live(at) - limit);
  // What is dropped elsewhere may let results move in over their operands here.
  for (const TakeOver& pair : problem.ops[static_cast<size_t>(t)].in_place)
    if (plain.last_use(pair.read, at) != at) sack.excess -= size(pair.written);
  double held = 0;
  for (int32_t o : ops) {
    if (held >= sack.excess && enough) break;
    const RecomputeOp& op = problem.ops[static_cast<size_t>(o)];
    if (o >= t || op.repeat_until <= t) continue;
    double bytes = 0;
    for (int32_t v : op.writes)
      if (plain.is_alive(v, at) && !plain.touches(t, v)) bytes += size(v);
    if (bytes > 0) sack.items.push_back({op.cost_us, bytes});
    held += bytes;
  }
  return sack;
}

// The least cost of items, or parts of them, that hold `excess` bytes.
double fractional_cost(llvm::ArrayRef<Item> items, double excess) {
  double cost = 0;
  for (const Item& item : items) {
    if (excess <= 0) return cost;
    cost += item.cost_us * std::min(1.0, excess / item.bytes);
    excess -= item.bytes;
  }
  return excess > 0 ? impossible : cost;
}

// Branch and bound over whole items.
class ExactKnapsack {
 public:
  explicit ExactKnapsack(const Knapsack& sack) : items_(sack.items) { search(0, 0, sack.excess); }
  bool finished() const { return nodes_ < node_limit; }
  double cost() const { return best_; }

 private:
  void search(size_t next, double cost, double excess) {
    if (excess <= 0) {
      best_ = std::min(best_, cost);
      return;
    }
    if (++nodes_ >= node_limit || cost + fractional_cost(items_.drop_front(next), excess) >= best_) return;
    search(next + 1, cost + items_[next].cost_us, excess - items_[next].bytes);
    search(next + 1, cost, excess);
  }

  llvm::ArrayRef<Item> items_;
  double best_ = impossible;
  int nodes_ = 0;
};

}  // namespace

double least_added_us(const RecomputeProblem& problem, int64_t limit_bytes) {
  Sequence plain(problem);
  std::vector<int32_t> ops = cheapest_first(problem);
  std::vector<std::pair<double, int32_t>> bounds;
  for (int32_t t = 0; t < problem.op_count(); ++t) {
    if (plain.memory().live({t, t}) <= limit_bytes) continue;
    Knapsack sack = knapsack_at(plain, ops, t, limit_bytes, true);
    bounds.push_back({fractional_cost(sack.items, sack.excess), t});
  }
  std::stable_sort(bounds.begin(), bounds.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  if (bounds.empty() || bounds.front().first == impossible) return bounds.empty() ? 0 : impossible;
  double bound = bounds.front().first;
  for (size_t i = 0; i < bounds.size() && i < exact_moments; ++i) {
    Knapsack sack = knapsack_at(plain, ops, bounds[i].second, limit_bytes, false);
    ExactKnapsack exact(sack);
    if (exact.finished()) bound = std::max(bound, exact.cost());
  }
  return bound;
}

}  // namespace plimsoll
