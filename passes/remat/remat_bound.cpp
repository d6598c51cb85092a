#include "passes/remat/remat_schedule.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <numeric>

// While base op t runs for the first time, the bytes alive are at most the limit. Some values wait there without being
// touched; those that do not fit must be made again later, and each op that makes some of them costs at least its own
// time. Choosing which to shed is a knapsack. Its minimum cost bounds the added time from below, and the largest bound
// over all t holds. The fractional relaxation finds the points that matter, and there the knapsack is solved exactly.
// With copies, part of the excess is rematerialised and part is offloaded before t and reloaded after it, and compute
// hides the copies at best, but for what it loses to them. The bound is then the minimum over all splits of the excess,
// each part taken as if it had all values to itself.

namespace plimsoll {
namespace {

using namespace remat;

constexpr double impossible = std::numeric_limits<double>::infinity();
constexpr int64_t any_bytes = std::numeric_limits<int64_t>::max();
constexpr size_t exact_points = 8;
constexpr int32_t peaks = 64;  // ops at which a quick bound looks, one of each equal part of the schedule
constexpr int splits = 32;     // steps in which the excess is divided between remats and copies

struct Item {
  double cost_us, bytes;
};

struct Knapsack {
  std::vector<Item> items;  // cheapest byte first
  double excess = 0;
};

// Ops, or reloads and base copies, by their cost per byte, cheapest first.
struct Producers {
  std::vector<int32_t> ids;
  std::vector<double> cost_us;
};

template <typename Cost>
Producers cheapest_first(const RematSchedule& plain, bool copies, Cost cost) {
  struct Producer {
    double price, cost_us;
    int32_t id;
  };
  std::vector<Producer> producers;
  const int32_t end = plain.problem().op_count() + 1;
  for (int32_t i = 0; i < plain.producer_count(end); ++i) {
    int32_t id = plain.producer_at(i, end);
    const RematOp& op = plain.op(id);
    int64_t bytes = 0;
    for (int32_t v : op.writes) bytes += plain.problem().value_bytes[v];
    if (!op.repeatable || bytes == 0 || (op.engine != Engine::Compute) != copies) continue;
    producers.push_back({cost(id) / static_cast<double>(bytes), cost(id), id});
  }
  std::stable_sort(producers.begin(), producers.end(),
                   [](const Producer& a, const Producer& b) { return a.price < b.price; });
  Producers result;
  for (const Producer& producer : producers) {
    result.ids.push_back(producer.id);
    result.cost_us.push_back(producer.cost_us);
  }
  return result;
}

// Items have only those results of an op that wait at `t`, so their order is not that of the producers.
Knapsack knapsack_at(const RematSchedule& plain, const Producers& producers, int32_t t, int64_t limit) {
  const RematProblem& problem = plain.problem();
  auto size = [&](int32_t v) { return static_cast<double>(problem.value_bytes[v]); };
  ProgramPoint at{t, t};
  Knapsack sack;
  sack.excess = static_cast<double>(plain.memory().live(at) - limit);
  // Other remats may make this op the last reader of an operand, whose bytes a result can then reuse.
  for (const InPlaceReuse& pair : problem.ops[t].in_place)
    if (plain.last_use(pair.read, at) != at) sack.excess -= size(pair.written);
  for (size_t i = 0; i < producers.ids.size(); ++i) {
    int32_t id = producers.ids[i];
    const RematOp& op = plain.op(id);
    if (plain.producer(op.writes[0]) >= t || op.remat_until <= t) continue;
    double bytes = 0;
    for (int32_t v : op.writes)
      if (plain.is_alive(v, at) && !plain.touches(t, v)) bytes += size(v);
    if (bytes > 0) sack.items.push_back({producers.cost_us[i], bytes});
  }
  const auto is_cheaper = [](const Item& a, const Item& b) { return a.cost_us * b.bytes < b.cost_us * a.bytes; };
  if (!llvm::is_sorted(sack.items, is_cheaper)) llvm::stable_sort(sack.items, is_cheaper);
  return sack;
}

// The minimum cost of items, the last of them in part, that hold `excess` bytes.
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

// The bound for a problem without copies.
double min_remat_us(const RematSchedule& plain, int64_t limit, int64_t nodes) {
  Producers ops = cheapest_first(plain, false, [&](int32_t id) { return plain.op(id).cost_us; });
  std::vector<std::pair<double, int32_t>> bounds;
  for (int32_t t = 0; t < plain.problem().op_count(); ++t) {
    if (plain.memory().live({t, t}) <= limit) continue;
    Knapsack sack = knapsack_at(plain, ops, t, limit);
    bounds.push_back({fractional_cost(sack.items, sack.excess), t});
  }
  std::stable_sort(bounds.begin(), bounds.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  if (bounds.empty() || bounds.front().first == impossible) return bounds.empty() ? 0 : impossible;
  double bound = bounds.front().first;
  for (size_t i = 0; i < bounds.size() && i < exact_points; ++i) {
    Knapsack sack = knapsack_at(plain, ops, bounds[i].second, limit);
    ExactKnapsack exact(sack, nodes);
    if (exact.finished()) bound = std::max(bound, exact.cost());
  }
  return bound;
}

// The minimum cost of any number of bytes, from a knapsack's items, the last of them in part.
class MinCost {
 public:
  explicit MinCost(const Knapsack& sack) {
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

// The bound for a problem with copies.
class CopyBound {
 public:
  explicit CopyBound(const RematSchedule& plain)
      : plain_(plain),
        remats_(cheapest_first(plain, false, [&](int32_t id) { return plain.op(id).cost_us; })),
        reloads_(
            cheapest_first(plain, true, [&](int32_t id) { return plain.is_reload(id) ? plain.op(id).cost_us : 0; })),
        offloads_(cheapest_first(plain, true, [&](int32_t id) { return plain.to_host_us(id); })) {}

  double at(int32_t t, int64_t limit, int64_t host_bytes) const {
    Knapsack to_remat = knapsack_at(plain_, remats_, t, limit), to_reload = knapsack_at(plain_, reloads_, t, limit);
    MinCost remat(to_remat), reload(to_reload);
    MinCost offload(knapsack_at(plain_, offloads_, t, limit));
    const double before_us = plain_.clock_us(t),
                 after_us = plain_.clock_us(plain_.problem().op_count()) - plain_.clock_us(t + 1);
    const double most_copied = static_cast<double>(host_bytes) + base_copies_alive(t);
    double min_us = impossible, excess = to_remat.excess;
    for (int i = 0; i < splits; ++i) {  // between this share of the excess and the next is copied
      const double copied = excess * i / splits, made_again = excess - excess * (i + 1) / splits;
      const double offload_us = offload.of(copied), reload_us = reload.of(copied);
      if (copied > most_copied || std::max(offload_us, reload_us) == impossible) break;
      min_us = std::min(min_us, std::max(lost_us(offload_us), offload_us - before_us) +
                                    std::max(remat.of(made_again) + lost_us(reload_us), reload_us - after_us));
    }
    return min_us;
  }

 private:
  // What computing loses to copies that take so long together.
  double lost_us(double copies_us) const { return plain_.problem().copy_interference.share * copies_us; }

  // Bytes that wait at `t` for a later reader and came from the host, so that they need not be copied there.
  double base_copies_alive(int32_t t) const {
    const RematProblem& problem = plain_.problem();
    double bytes = 0;
    for (int32_t v = 0; v < static_cast<int32_t>(problem.value_bytes.size()); ++v) {
      const int32_t made_by = plain_.producer(v);
      if (made_by < 0 || made_by >= t || problem.ops[made_by].engine == Engine::Compute) continue;
      if (plain_.is_alive(v, {t, t}) && !plain_.touches(t, v)) bytes += static_cast<double>(problem.value_bytes[v]);
    }
    return bytes;
  }

  const RematSchedule& plain_;
  Producers remats_, reloads_, offloads_;
};

}  // namespace

double min_added_us(const RematProblem& problem, int64_t limit_bytes, int64_t nodes) {
  RematSchedule plain(problem);
  if (plain.is_all_compute()) return min_remat_us(plain, limit_bytes, nodes);
  const CopyBound bound(plain);
  double bound_us = plain.added_us();
  for (int32_t t = 0; t < problem.op_count(); ++t)
    if (plain.memory().live({t, t}) > limit_bytes) bound_us = std::max(bound_us, bound.at(t, limit_bytes, any_bytes));
  return bound_us;
}

struct PeakBound::State {
  explicit State(RematProblem of) : problem(std::move(of)), plain(problem), bound(plain) {
    for (int32_t stretch = 0; stretch < peaks; ++stretch) {
      const auto begin = static_cast<int32_t>(int64_t{problem.op_count()} * stretch / peaks),
                 end = static_cast<int32_t>(int64_t{problem.op_count()} * (stretch + 1) / peaks);
      int32_t highest = begin;
      for (int32_t t = begin; t < end; ++t)
        if (live_bytes(t) > live_bytes(highest)) highest = t;
      if (begin < end) highest_ops.push_back(highest);
    }
  }
  int64_t live_bytes(int32_t op) const { return plain.memory().live({op, op}); }

  RematProblem problem;
  RematSchedule plain;
  CopyBound bound;
  std::vector<int32_t> highest_ops;  // of each part of the schedule
};

PeakBound::PeakBound(RematProblem problem) : state_(std::make_unique<const State>(std::move(problem))) {}
PeakBound::~PeakBound() = default;

double PeakBound::min_added_us(int64_t limit_bytes, int64_t host_bytes) const {
  double bound_us = 0;
  for (int32_t op : state_->highest_ops)
    if (state_->live_bytes(op) > limit_bytes)
      bound_us = std::max(bound_us, state_->bound.at(op, limit_bytes, host_bytes));
  return bound_us;
}

int64_t min_peak_bytes(const RematProblem& problem) {
  const RematSchedule plain(problem);
  const int32_t end = problem.op_count();
  std::vector<int32_t> last_read(problem.value_bytes.size(), -1);
  for (int32_t t = 0; t < end; ++t)
    for (int32_t v : problem.ops[t].reads) last_read[v] = t;
  // Where a value may be gone although it is alive there: ops behind the one that makes it, up to this one.
  const auto gone_until = [&](int32_t v) {
    if (plain.producer(v) < 0) return -1;
    const RematOp& op = problem.ops[plain.producer(v)];
    const int32_t last = problem.live_out[v] ? end - 1 : last_read[v];
    if (plain.reload_of(v) >= 0) return last;
    return op.repeatable ? std::min(last, op.remat_until - 1) : -1;
  };
  std::vector<int64_t> gone(static_cast<size_t>(end) + 1, 0);  // by op, first as changes from op to op
  for (int32_t v = 0; v < static_cast<int32_t>(problem.value_bytes.size()); ++v)
    if (const int32_t until = gone_until(v); until > plain.producer(v)) {
      gone[plain.producer(v) + 1] += problem.value_bytes[v];
      gone[until + 1] -= problem.value_bytes[v];
    }
  std::partial_sum(gone.begin(), gone.end(), gone.begin());
  int64_t peak = 0;
  for (int32_t t = 0; t < end; ++t) {
    int64_t bytes = plain.memory().live({t, t}) - gone[t];
    for (int32_t v : problem.ops[t].reads)
      if (plain.producer(v) >= 0 && plain.producer(v) < t && gone_until(v) >= t) bytes += problem.value_bytes[v];
    for (const InPlaceReuse& pair : problem.ops[t].in_place)
      if (plain.last_use(pair.read, {t, t}) != ProgramPoint{t, t}) bytes -= problem.value_bytes[pair.written];
    peak = std::max(peak, bytes);
  }
  return peak;
}

}  // namespace plimsoll
