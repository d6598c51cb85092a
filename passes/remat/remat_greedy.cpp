#include "passes/remat/remat_descent.h"

#include "llvm/ADT/DenseSet.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

// Each value that only waits at the peak can be dropped and made again right before its next use, together with the
// ancestors that are gone by then, or it can wait on the host. The change that removes most excess per added time is
// made. Candidates are tried in the order of the score that they can have at best, until that is below the best score
// found: by their bounds, and by what share of these they scored when they were last tried.

namespace plimsoll::remat {
namespace {

constexpr int32_t ancestor_limits[] = {1, 3, 8, 20, 60};  // ops that one change may insert, tried in this order,
constexpr int32_t deep_limits[] = {200, 600};             // and these where no change lowers the excess otherwise
constexpr int32_t copy_limits[] = {1, 2};                 // 2: compute waits for the offload
constexpr double min_us = 1e-3;                           // a change counts as adding at least this
constexpr double rounding = 1e-9;
// Maximum factor by which the share of its bound that a candidate scores rises from one try to the next. With 1.5 GPT-2
// (batch 16, bf16, an rtx4090) needs 1018 MiB at least, with 5 and 8 it needs 936, in hardly more time.
constexpr double max_rise = 5;
constexpr int32_t ops_per_joint_change = 60;  // of a long schedule: so many changes are made at once,
constexpr size_t max_tried_alike = 2;         // candidates of one kind in each round, where few are tried
constexpr double close_score = 0.7;           // if they score this share of the best
constexpr int64_t steps_per_producer = 40;    // how long it takes to look at what may be made again
constexpr double noise = 0.4;                 // random factors of scores are up to e to this power

// The points above a limit and their bytes above it.
class Above {
 public:
  Above(const MemoryProfile& memory, int64_t limit) {
    memory.each_above(limit, [&](ProgramPoint at, int64_t live) {
      points_.push_back(at);
      sums_.push_back(sums_.back() + live - limit);
      return true;
    });
  }

  // The maximum by which the excess falls when `bytes` are gone from `first` to `last`.
  double without(int64_t bytes, ProgramPoint first, ProgramPoint last) const {
    auto begin = std::lower_bound(points_.begin(), points_.end(), first),
         end = std::upper_bound(begin, points_.end(), last);
    int64_t sum = sums_[end - points_.begin()] - sums_[begin - points_.begin()];
    return static_cast<double>(std::min(sum, bytes * (end - begin)));
  }

 private:
  std::vector<ProgramPoint> points_;
  std::vector<int64_t> sums_{0};  // bytes above the limit, summed up to each point
};

// Where a remat before base op `use` could stand as well: before earlier ops behind the peak that read one of its
// operands last, so that the operand need not be made again.
void add_earlier(const RematSchedule& schedule, ProgramPoint use, ProgramPoint peak,
                 std::vector<ProgramPoint>& result) {
  const size_t begin = result.size();
  for (int32_t v : schedule.op(use).reads) {
    if (schedule.producer(v) < 0) continue;
    const ProgramPoint earlier{schedule.last_use(v, use).position(), use.op()};
    if (earlier.position() < use.position() && earlier > peak && schedule.may_insert(earlier) &&
        !llvm::is_contained(llvm::ArrayRef(result).drop_front(begin), earlier))
      result.push_back(earlier);
  }
}

// The remats, reloads and waits for offloads that free bytes at `peak`.
std::vector<ProgramPoint> candidates(const RematSchedule& schedule, ProgramPoint peak, bool earlier) {
  std::vector<ProgramPoint> result;
  const int32_t count = schedule.producer_count(peak.position());
  for (int32_t i = 0; i < count; ++i) {
    const int32_t id = schedule.producer_at(i, peak.position());
    const llvm::SmallVector<ProgramPoint, 2> points = reload_points(schedule, id, peak);
    result.insert(result.end(), points.begin(), points.end());
    if (earlier && !points.empty() && !schedule.is_copy(id)) add_earlier(schedule, points.front(), peak, result);
  }
  if (schedule.is_all_compute()) return result;
  for (ProgramPoint at : schedule.extras())
    if (schedule.is_offload(at.op()) && at >= peak) result.push_back(at);
  return result;
}

// The maximum excess that `at` removes.
double max_gain(const RematSchedule& schedule, const Above& above, ProgramPoint at, ProgramPoint peak) {
  const RematOp& op = schedule.op(at.op());
  auto without = [&](int32_t v, ProgramPoint made) {
    return above.without(schedule.problem().value_bytes[v], made, at);
  };
  if (schedule.is_offload(at.op())) {
    int32_t producer = schedule.producer(op.reads[0]);
    return without(op.reads[0], {producer, producer});
  }
  double gain = 0;
  for (int32_t v : op.writes) gain += without(v, schedule.made(v, peak));
  return gain;
}

// A lower bound of the time that is added when the loads grow from `before`, where the schedule added `added_us`.
double min_added_us(const EngineLoads& loads, const EngineLoads& before, double added_us) {
  return std::max(loads.added_us() - added_us, loads.hidden_price_us() - before.hidden_price_us()) + min_us;
}

// The maximum excess removed over the minimum time added.
double max_score(const RematSchedule& schedule, ProgramPoint at, double max_gain) {
  if (schedule.is_offload(at.op())) return max_gain / min_us;
  EngineLoads loads = schedule.loads();
  loads.add(schedule.op(at.op()).engine, schedule.op(at.op()).cost_us);
  return max_gain / min_added_us(loads, schedule.loads(), schedule.added_us());
}

// By id, the same number for ops that take equally long and write as many bytes: mostly one op of the model in other
// layers, or of other chunks of the batch.
std::vector<int32_t> kinds_of_ops(const RematSchedule& schedule) {
  std::map<std::tuple<Engine, double, std::vector<int64_t>>, int32_t> known;
  std::vector<int32_t> kinds(static_cast<size_t>(schedule.id_count()), -1);
  for (int32_t id = 0; id < schedule.id_count(); ++id) {
    if (id == schedule.problem().op_count()) continue;  // no op has this id
    const RematOp& op = schedule.op(id);
    std::vector<int64_t> bytes;
    for (int32_t v : op.writes) bytes.push_back(schedule.problem().value_bytes[v]);
    kinds[id] = known.try_emplace({op.engine, op.cost_us, std::move(bytes)}, known.size()).first->second;
  }
  return kinds;
}

}  // namespace

Descent::Descent(RematSchedule& schedule, Tried tried, Chains chains)
    : schedule_(schedule),
      tried_(tried),
      chains_(chains),
      is_long_(schedule.problem().op_count() >= long_ops),
      kinds_(is_long_ || tried == Tried::FewAlike ? kinds_of_ops(schedule) : std::vector<int32_t>()) {}

bool Descent::is_better(const Candidate& a, const Candidate& b) {
  return a.score != b.score ? a.score > b.score : a.score > 0 && a.index < b.index;
}

// The chain is that of the candidate with fewer ops, if any.
void Descent::apply(RematSchedule& schedule, const Candidate& candidate, RematSchedule::Chain& chain,
                    llvm::function_ref<bool()> is_worth_it) {
  if (schedule.is_offload(candidate.at.op())) return schedule.make_synchronous(candidate.at.op());
  if (!schedule.extend(chain, candidate.max_ops, is_worth_it)) return;
  if (schedule.is_reload(candidate.at.op()) && candidate.max_ops > 1)
    schedule.make_synchronous(schedule.offload_of(candidate.at.op()));
}

bool Descent::lower_to(int64_t limit) {
  limit_ = limit;
  is_deep_ = false;
  schedule_.forget_journal();
  while (schedule_.memory().peak() > limit_) {
    const Candidate best = next_change();
    if (best.score <= 0) return false;
    apply(schedule_, best);
    schedule_.forget_journal();  // so that taking a candidate back restores the known time
    if (is_long_) apply_close(best);
  }
  return true;
}

bool Descent::lower_at_random(int64_t limit, Random& random, double most_us) {
  limit_ = limit;
  random_ = &random;
  while (schedule_.memory().peak() > limit_ && schedule_.added_us() <= most_us) {
    const Candidate best = next_change();
    if (best.score <= 0) break;
    apply(schedule_, best);
  }
  random_ = nullptr;
  return schedule_.memory().peak() <= limit_ && schedule_.added_us() <= most_us;
}

Descent::Candidate Descent::next_change() {
  Candidate best = best_candidate();
  if (best.score <= 0 && !last_shares_.empty()) {
    last_shares_.clear();
    best = best_candidate();
  }
  if (best.score <= 0 && chains_ == Chains::Long && !is_deep_) {
    is_deep_ = true;
    last_shares_.clear();
    best = best_candidate();
  }
  return best;
}

// Candidates by the score that they can have at best, best first.
std::vector<Descent::Candidate> Descent::ranked_candidates() {
  const Above above(schedule_.memory(), limit_);
  const ProgramPoint peak = schedule_.memory().peak_point();
  std::vector<Candidate> result;
  for (ProgramPoint at : candidates(schedule_, peak, random_ != nullptr)) {
    Candidate candidate{at, max_gain(schedule_, above, at, peak)};
    if (random_) candidate.factor = std::exp(noise * random_->unit());
    candidate.bound = max_score(schedule_, at, candidate.max_gain);
    double share = 1;
    if (auto last = last_shares_.find({at.position(), at.op()}); last != last_shares_.end())
      share = std::min(share, max_rise * last->second);
    candidate.max_score = candidate.factor * share * candidate.bound;
    candidate.index = static_cast<int32_t>(result.size());
    result.push_back(candidate);
  }
  if (random_) schedule_.memory().count_steps(steps_per_producer * schedule_.producer_count(peak.position()));
  std::stable_sort(result.begin(), result.end(),
                   [](const Candidate& a, const Candidate& b) { return a.max_score > b.max_score; });
  return result;
}

// The changes of the last round whose scores were close to the best, which was made, and those that are like the
// best: the same op in other layers, or of other chunks of the batch.
void Descent::apply_close(const Candidate& best) {
  llvm::erase_if(scored_, [&](const Candidate& other) {
    return other.score < close_score * best.score || other.index == best.index;
  });
  std::stable_sort(scored_.begin(), scored_.end(), is_better);
  add_alike(best);
  const auto most = static_cast<size_t>(schedule_.problem().op_count() / ops_per_joint_change);
  if (scored_.size() > most) scored_.resize(most);
  for (const Candidate& other : scored_) {
    if (schedule_.memory().peak() <= limit_) return;
    const bool inserts = !schedule_.is_offload(other.at.op());
    if (inserts ? !schedule_.may_insert(other.at) : !schedule_.has(other.at)) continue;
    const double excess = static_cast<double>(schedule_.memory().excess(limit_)), added = schedule_.added_us();
    apply(schedule_, other);
    const double gain = excess - static_cast<double>(schedule_.memory().excess(limit_));
    if (gain < close_score * best.score * (schedule_.added_us() - added + min_us)) schedule_.rewind(0);
    schedule_.forget_journal();
  }
}

void Descent::add_alike(const Candidate& best) {
  llvm::DenseSet<int32_t> known{best.index};
  for (const Candidate& other : scored_) known.insert(other.index);
  for (Candidate other : ranked_) {
    if (kinds_[other.at.op()] != kinds_[best.at.op()] || known.contains(other.index)) continue;
    other.max_ops = best.max_ops;
    scored_.push_back(other);
  }
}

Descent::Candidate Descent::best_candidate() {
  Candidate best;
  scored_.clear();
  excess_ = static_cast<double>(schedule_.memory().excess(limit_));
  ranked_ = ranked_candidates();
  llvm::DenseMap<int32_t, size_t> tried_of_kind;
  for (const Candidate& candidate : ranked_) {
    if (candidate.max_score * (1 + rounding) < best.score) break;
    if (tries_few_alike() && tried_of_kind[kinds_[candidate.at.op()]]++ >= max_tried_alike) continue;
    const double scores = try_candidate(candidate, best);
    if (tried_ != Tried::All && candidate.bound > 0)
      last_shares_[{candidate.at.position(), candidate.at.op()}] = scores / (candidate.factor * candidate.bound);
  }
  return best;
}

llvm::ArrayRef<int32_t> Descent::limits_for(ProgramPoint at) const {
  if (schedule_.is_copy(at.op())) return copy_limits;
  return is_deep_ ? llvm::ArrayRef<int32_t>(deep_limits) : llvm::ArrayRef<int32_t>(ancestor_limits);
}

// Tries the candidate with few and with many of its ancestors. Whatever is better than `best` replaces it. Returns
// the maximum that the candidate can score. Repairs insert each chain anew, since their work is counted in steps of the
// profile.
double Descent::try_candidate(Candidate candidate, Candidate& best) {
  const double added = schedule_.added_us();
  const EngineLoads loads = schedule_.loads();
  // What it can score at best as it is; more ancestors only add time.
  const auto max_score = [&](double gain) {
    return candidate.factor * gain / min_added_us(schedule_.loads(), loads, added);
  };
  const auto may_be_best = [&](double score) { return score * (1 + rounding) >= best.score; };
  double max_seen = 0;
  const size_t mark = schedule_.mark();
  RematSchedule::Chain chain(candidate.at);
  size_t last_count = 0;
  for (int32_t max_ops : limits_for(candidate.at)) {
    candidate.max_ops = max_ops;
    apply(schedule_, candidate, chain, [&] { return may_be_best(max_score(candidate.max_gain)); });
    const size_t count = schedule_.mark() - mark;
    double score = max_score(candidate.max_gain);
    const bool given_up = !may_be_best(score);
    const double gain = given_up ? 0 : excess_ - static_cast<double>(schedule_.memory().excess(limit_));
    if (!given_up && may_be_best(score = max_score(gain))) {
      score = candidate.score = candidate.factor * gain / (schedule_.added_us() - added + min_us);
      if (is_better(candidate, best)) best = candidate;
      scored_.push_back(candidate);
    }
    max_seen = std::max(max_seen, score);
    if (given_up || count == last_count) break;
    last_count = count;
    if (!random_) continue;
    schedule_.rewind(mark);
    chain = RematSchedule::Chain(candidate.at);
  }
  schedule_.rewind(mark);
  return max_seen;
}

llvm::SmallVector<ProgramPoint, 2> reload_points(const RematSchedule& schedule, int32_t id, ProgramPoint peak) {
  ProgramPoint use = schedule.none();
  for (int32_t v : schedule.op(id).writes)
    if (schedule.is_alive(v, peak) && !schedule.touches(peak.op(), v)) use = std::min(use, schedule.next_use(v, peak));
  if (use == schedule.none() || use.position() <= peak.position() || schedule.is_offload(use.op())) return {};
  llvm::SmallVector<ProgramPoint, 2> result;
  auto add = [&](ProgramPoint at) {
    if (at > peak && schedule.may_insert(at) && !llvm::is_contained(result, at)) result.push_back(at);
  };
  add(schedule.point_before(use.position(), id));
  if (schedule.is_reload(id)) add(schedule.unhurried(id, use.position(), peak));
  return result;
}

bool lower_peak(RematSchedule& schedule, int64_t limit, Tried tried, Chains chains) {
  return Descent(schedule, tried, chains).lower_to(limit);
}

void drop_unneeded(RematSchedule& schedule, int64_t limit) {
  std::vector<ProgramPoint> extras = schedule.extras().vec();
  std::sort(extras.begin(), extras.end(), [&](ProgramPoint a, ProgramPoint b) {
    double cost_a = schedule.op(a.op()).cost_us, cost_b = schedule.op(b.op()).cost_us;
    return cost_a != cost_b ? cost_a > cost_b : a < b;
  });
  for (ProgramPoint at : extras) {
    if (!schedule.has(at) || schedule.is_offload(at.op())) continue;
    size_t mark = schedule.mark();
    schedule.erase_with_unread(at);
    if (schedule.memory().peak() > limit) schedule.rewind(mark);
  }
}

void set_extras(RematSchedule& schedule, llvm::ArrayRef<ProgramPoint> extras) {
  std::vector<ProgramPoint> wanted = extras.vec(), present = schedule.extras().vec();
  std::sort(wanted.begin(), wanted.end());
  std::sort(present.begin(), present.end());
  std::vector<ProgramPoint> change;
  std::set_difference(present.begin(), present.end(), wanted.begin(), wanted.end(), std::back_inserter(change));
  for (ProgramPoint at : change) schedule.erase_alone(at);
  change.clear();
  std::set_difference(wanted.begin(), wanted.end(), present.begin(), present.end(), std::back_inserter(change));
  for (ProgramPoint at : change) schedule.insert_alone(at);
  schedule.forget_journal();
}

}  // namespace plimsoll::remat
