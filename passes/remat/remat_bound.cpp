#include "passes/remat/remat_schedule.h"

#include <algorithm>

// While base op t runs for the first time, at most the limit is alive. Of the values that wait there without being
// touched, those that do not fit must be made again later, and each op that makes some costs at least its own time.
// Shedding the excess from them is a knapsack: its least cost bounds the added time from below, and the largest bound over
// all t holds. The fractional relaxation finds the moments that matter; there the knapsack is solved exactly.
// With copies, part of the excess is repeated and part is stored before t and fetched after it, both hidden at best by the compute there is:
// the least over all splits, each part taken as if it had all values to itself.

namespace plimsoll {
namespace {

using namespace fit;

constexpr double impossible = std::numeric_limits<double>::infinity();
constexpr size_t exact_moments = 8;
constexpr int splits = 32;          // of the excess between repeats and copies

struct Item {
  double cost_us, bytes;
};

struct Knapsack {
  std::vector<Item> items;  // cheapest byte first
  double excess = 0;
};

// Ops, or fetches and base copies, by what a byte of theirs costs, cheapest first.
struct Makers {
  std::vector<int32_t> ids;
  std::vector<double> cost_us;
};

template <typename Cost>
Makers cheapest_first(const Sequence& plain, bool copies, Cost cost) {
  struct Maker {
    double price, cost_us;
    int32_t id;
  };
  std::vector<Maker> makers;
  const int32_t end = plain.problem().op_count() + 1;
  for (int32_t i = 0; i < plain.maker_count(end); ++i) {
    int32_t id = plain.maker(i, end);
    const RecomputeOp& op = plain.op(id);
    int64_t bytes = 0;
    for (int32_t v : op.writes) bytes += plain.problem().value_bytes[static_cast<size_t>(v)];
    if (!op.repeatable || bytes == 0 || (op.channel != Channel::Compute) != copies) continue;
    makers.push_back({cost(id) / static_cast<double>(bytes), cost(id), id});
  }
  std::stable_sort(makers.begin(), makers.end(), [](const Maker& a, const Maker& b) { return a.price < b.price; });
  Makers result;
  for (const Maker& maker : makers) {
    result.ids.push_back(maker.id);
    result.cost_us.push_back(maker.cost_us);
  }
  return result;
}

// `enough` ends the list of items once they hold the excess.
Knapsack knapsack_at(const Sequence& plain, const Makers& makers, int32_t t, int64_t limit, bool enough) {
  const RecomputeProblem& problem = plain.problem();
  auto size = [&](int32_t v) { return static_cast<double>(problem.value_bytes[static_cast<size_t>(v)]); };
  Moment at{t, t};
  Knapsack sack;
  sack.excess = static_cast<double>(plain.memory().live(at) - limit);
  // What is dropped elsewhere may let results move in over their operands here.
  for (const TakeOver& pair : problem.ops[static_cast<size_t>(t)].in_place)
    if (plain.last_use(pair.read, at) != at) sack.excess -= size(pair.written);
  double held = 0;
  for (size_t i = 0; i < makers.ids.size(); ++i) {
    if (held >= sack.excess && enough) break;
    int32_t id = makers.ids[i];
    const RecomputeOp& op = plain.op(id);
    if (plain.producer(op.writes[0]) >= t || op.repeat_until <= t) continue;
    double bytes = 0;
    for (int32_t v : op.writes)
      if (plain.is_alive(v, at) && !plain.touches(t, v)) bytes += size(v);
    if (bytes > 0) sack.items.push_back({makers.cost_us[i], bytes});
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
  ExactKnapsack(const Knapsack& sack, int64_t nodes) : items_(sack.items), nodes_(nodes) { search(0, 0, sack.excess); }
  bool finished() const { return nodes_ > 0; }
  double cost() const { return best_; }

 private:
  void search(size_t next, double cost, double excess) {
    if (excess <= 0) {
      best_ = std::min(best_, cost);
      return;
    }
    if (--nodes_ <= 0 || cost + fractional_cost(items_.drop_front(next), excess) >= best_) return;
    search(next + 1, cost + items_[next].cost_us, excess - items_[next].bytes);
    search(next + 1, cost, excess);
  }

  llvm::ArrayRef<Item> items_;
  double best_ = impossible;
  int64_t nodes_;
};

// With nothing but repeats.
double least_repeated_us(const Sequence& plain, int64_t limit, int64_t nodes) {
  Makers ops = cheapest_first(plain, false, [&](int32_t id) { return plain.op(id).cost_us; });
  std::vector<std::pair<double, int32_t>> bounds;
  for (int32_t t = 0; t < plain.problem().op_count(); ++t) {
    if (plain.memory().live({t, t}) <= limit) continue;
    Knapsack sack = knapsack_at(plain, ops, t, limit, true);
    bounds.push_back({fractional_cost(sack.items, sack.excess), t});
  }
  std::stable_sort(bounds.begin(), bounds.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  if (bounds.empty() || bounds.front().first == impossible) return bounds.empty() ? 0 : impossible;
  double bound = bounds.front().first;
  for (size_t i = 0; i < bounds.size() && i < exact_moments; ++i) {
    Knapsack sack = knapsack_at(plain, ops, bounds[i].second, limit, false);
    ExactKnapsack exact(sack, nodes);
    if (exact.finished()) bound = std::max(bound, exact.cost());
  }
  return bound;
}

// The least cost of any number of bytes, from a knapsack's items and parts of them.
class LeastCost {
 public:
  explicit LeastCost(const Knapsack& sack) {
    for (const Item& item : sack.items) {
      bytes_.push_back(bytes_.back() + item.bytes);
      cost_us_.push_back(cost_us_.back() + item.cost_us);
    }
  }

  double of(double bytes) const {
    if (bytes <= 0) return 0;
    size_t i = static_cast<size_t>(std::lower_bound(bytes_.begin(), bytes_.end(), bytes) - bytes_.begin());
    if (i == bytes_.size()) return impossible;
    return cost_us_[i] - (cost_us_[i] - cost_us_[i - 1]) * (bytes_[i] - bytes) / (bytes_[i] - bytes_[i - 1]);
  }

 private:
  std::vector<double> bytes_{0}, cost_us_{0};
};

// With repeats and copies.
class CopyBound {
 public:
  explicit CopyBound(const Sequence& plain)
      : plain_(plain),
        repeats_(cheapest_first(plain, false, [&](int32_t id) { return plain.op(id).cost_us; })),
        fetches_(cheapest_first(plain, true, [&](int32_t id) { return plain.is_fetch(id) ? plain.op(id).cost_us : 0; })),
        stores_(cheapest_first(plain, true, [&](int32_t id) { return plain.to_host_us(id); })),
        copies_(cheapest_first(plain, true, [&](int32_t id) { return plain.op(id).cost_us + plain.to_host_us(id); })) {}

  double at(int32_t t, int64_t limit) const {
    Knapsack to_repeat = knapsack_at(plain_, repeats_, t, limit, true), to_fetch = knapsack_at(plain_, fetches_, t, limit, true);
    LeastCost repeat(to_repeat), fetch(to_fetch);
    LeastCost store(knapsack_at(plain_, stores_, t, limit, true)), copy(knapsack_at(plain_, copies_, t, limit, true));
    const double before_us = plain_.clock_us(t), after_us = plain_.clock_us(plain_.problem().op_count()) - plain_.clock_us(t + 1);
    double least = impossible, excess = to_repeat.excess;
    for (int i = 0; i < splits; ++i) {  // from this share of the excess to the next is copied
      double copied = excess * i / splits, repeated = excess - excess * (i + 1) / splits;
      double later_us = std::max(0.0, store.of(copied) - before_us) + std::max(repeat.of(repeated), fetch.of(copied) - after_us);
      least = std::min(least, later_us + ChannelLoads::price_of_hidden_copies * copy.of(copied));
    }
    return least;
  }

 private:
  const Sequence& plain_;
  Makers repeats_, fetches_, stores_, copies_;
};

}  // namespace

double least_added_us(const RecomputeProblem& problem, int64_t limit_bytes, int64_t nodes) {
  Sequence plain(problem);
  if (plain.is_all_compute()) return least_repeated_us(plain, limit_bytes, nodes);
  CopyBound bound(plain);
  double most = plain.added_us();
  for (int32_t t = 0; t < problem.op_count(); ++t)
    if (plain.memory().live({t, t}) > limit_bytes) most = std::max(most, bound.at(t, limit_bytes));
  return most;
}

}  // namespace plimsoll
