#include "passes/remat/remat_schedule.h"

#include <algorithm>
#include <cassert>

// A value's uses and an op's occurrences are sorted lists of points; where an occurrence ends follows from both.
// Every change moves a few ends, and each moved end is one addition to the profile.

namespace plimsoll::remat {
namespace {

template <typename List>
bool contains(const List& list, int32_t item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

}  // namespace

RematSchedule::RematSchedule(const RematProblem& problem)
    : problem_(&problem),
      memory_(problem.op_count() + 1),
      producer_(problem.value_bytes.size(), -1),
      uses_(problem.value_bytes.size()),
      occurrences_(problem.ops.size()),
      reload_of_(problem.value_bytes.size(), -1),
      all_compute_(problem.offloads.empty() &&
                   llvm::all_of(problem.ops, [](const RematOp& op) { return op.engine == Engine::Compute; })),
      loads_(problem) {
  int32_t n = problem.op_count();
  for (int32_t o = 0; o < n; ++o) {
    occurrences_[static_cast<size_t>(o)].push_back({o, -1});
    const RematOp& op = problem.ops[static_cast<size_t>(o)];
    for (int32_t v : op.writes) producer_[static_cast<size_t>(v)] = o;
    for (int32_t v : op.reads) uses_[static_cast<size_t>(v)].push_back({o, o});
    memory_.add({o, o}, {o, o}, op.workspace_bytes);
  }
  for (size_t v = 0; v < uses_.size(); ++v) {
    if (problem.live_out[v]) uses_[v].push_back({n, n});
    int32_t value = static_cast<int32_t>(v);
    ProgramPoint start = made(value, {n, n});
    memory_.add(start, last_use_before(value, start, none()), bytes(value));
  }
  for (int32_t o = 0; o < n; ++o) refresh_reused({o, o});
  collect_copies();
}

void RematSchedule::collect_copies() {
  std::vector<OffloadOption> options = problem_->offloads;
  std::sort(options.begin(), options.end(), [&](const OffloadOption& a, const OffloadOption& b) {
    return std::pair(producer(a.value), a.value) < std::pair(producer(b.value), b.value);
  });
  RematOp offload, reload;
  offload.engine = Engine::ToHost;
  reload.engine = Engine::ToDevice;
  for (const OffloadOption& option : options) {
    offload.cost_us = option.to_host_us;
    offload.reads.assign(1, option.value);
    copies_.push_back(offload);
  }
  for (const OffloadOption& option : options) {
    reload.cost_us = option.to_device_us;
    reload.writes.assign(1, option.value);
    copies_.push_back(reload);
    reload_of_[static_cast<size_t>(option.value)] = problem_->op_count() + static_cast<int32_t>(copies_.size());
  }
  occurrences_.resize(problem_->ops.size() + 1 + copies_.size());
  places_.resize(copies_.size());
  for (int32_t id = 0; id < static_cast<int32_t>(occurrences_.size()); ++id)
    cost_us_.push_back(id == problem_->op_count() ? 0 : op(id).cost_us);
  clock_us_.assign(1, 0);
  for (const RematOp& op : problem_->ops) clock_us_.push_back(clock_us_.back() + problem_->compute_us(op));
}

int32_t RematSchedule::producer_count(int32_t position) const {
  auto offloads_made = llvm::ArrayRef<RematOp>(copies_).take_front(problem_->offloads.size());
  auto later = std::lower_bound(offloads_made.begin(), offloads_made.end(), position,
                                [&](const RematOp& offload, int32_t s) { return producer(offload.reads[0]) < s; });
  return std::min(position, problem_->op_count()) + static_cast<int32_t>(later - offloads_made.begin());
}

int32_t RematSchedule::producer_at(int32_t index, int32_t position) const {
  int32_t ops = std::min(position, problem_->op_count());
  return index < ops ? index : index - ops + problem_->op_count() + 1 + offload_count();
}

const RematSchedule::Occurrence& RematSchedule::occurrence(ProgramPoint at) const {
  const auto& all = occurrences_[static_cast<size_t>(at.op)];
  return *std::lower_bound(all.begin(), all.end(), at.position,
                           [](const Occurrence& o, int32_t position) { return o.position < position; });
}

ProgramPoint RematSchedule::latest_before(int32_t id, ProgramPoint at) const {
  const auto& all = occurrences_[static_cast<size_t>(id)];
  auto after = std::lower_bound(all.begin(), all.end(), at, [id](const Occurrence& o, ProgramPoint m) {
    return ProgramPoint{o.position, id} < m;
  });
  return after == all.begin() ? from_the_start : ProgramPoint{std::prev(after)->position, id};
}

ProgramPoint RematSchedule::first_after(int32_t id, ProgramPoint at) const {
  const auto& all = occurrences_[static_cast<size_t>(id)];
  auto after = std::upper_bound(all.begin(), all.end(), at, [id](ProgramPoint m, const Occurrence& o) {
    return m < ProgramPoint{o.position, id};
  });
  return after == all.end() ? none() : ProgramPoint{after->position, id};
}

ProgramPoint RematSchedule::made(int32_t value, ProgramPoint at) const {
  int32_t op = producer(value), reload = reload_of(value);
  if (op < 0) return from_the_start;
  ProgramPoint latest = latest_before(op, at);
  assert(latest != from_the_start && "a value is used after it was first made");
  return reload < 0 ? latest : std::max(latest, latest_before(reload, at));
}

// When `value` is made next after `at`.
ProgramPoint RematSchedule::next_made(int32_t value, ProgramPoint at) const {
  int32_t op = producer(value), reload = reload_of(value);
  if (op < 0) return none();
  ProgramPoint first = first_after(op, at);
  return reload < 0 ? first : std::min(first, first_after(reload, at));
}

ProgramPoint RematSchedule::last_use_before(int32_t value, ProgramPoint made, ProgramPoint until) const {
  const auto& uses = uses_[static_cast<size_t>(value)];
  auto after = std::lower_bound(uses.begin(), uses.end(), until);
  return after == uses.begin() ? made : std::max(made, *std::prev(after));
}

ProgramPoint RematSchedule::last_use(int32_t value, ProgramPoint at) const {
  ProgramPoint start = made(value, at);
  return last_use_before(value, start, next_made(value, start));
}

ProgramPoint RematSchedule::next_use(int32_t value, ProgramPoint at) const {
  const auto& uses = uses_[static_cast<size_t>(value)];
  auto use = std::upper_bound(uses.begin(), uses.end(), at);
  return use != uses.end() && *use < next_made(value, at) ? *use : none();
}

bool RematSchedule::touches(int32_t id, int32_t value) const {
  if (id == problem_->op_count()) return false;
  const RematOp& o = op(id);
  return contains(o.reads, value) || contains(o.writes, value);
}

bool RematSchedule::is_read(ProgramPoint at) const {
  return llvm::any_of(op(at).writes, [&](int32_t v) { return last_use_before(v, at, next_made(v, at)) > at; });
}

bool RematSchedule::may_insert(ProgramPoint at) const {
  if (is_copy(at.op)) return may_copy(at);
  if (at.op >= at.position || !op(at).repeatable || at.position > op(at).remat_until || has(at)) return false;
  // What is offloaded was made first.
  return copies_.empty() || llvm::none_of(op(at).writes, [&](int32_t v) {
           int32_t reload = reload_of(v);
           return reload >= 0 && is_offloaded(reload) &&
                  at.position <= occurrences_[static_cast<size_t>(offload_of(reload))].back().position;
         });
}

// A offload ends before its value is made again, and reloads are issued after it.
bool RematSchedule::may_copy(ProgramPoint at) const {
  const int32_t made_by = producer(copied(at.op));
  if (at.position < made_by || at.position >= problem_->op_count() || has(at)) return false;
  if (is_offload(at.op)) return at < next_made(copied(at.op), {made_by, made_by});
  return at.position > made_by &&
         (!is_offloaded(at.op) || at.position >= occurrences_[static_cast<size_t>(offload_of(at.op))].back().position);
}

// Behind which base op a offload is done: the first where it has had the time it takes, at the latest `latest` or the
// one before its value is made again.
int32_t RematSchedule::offload_position(int32_t reload, int32_t latest) const {
  const int32_t made_by = producer(copied(reload));
  ProgramPoint again = next_made(copied(reload), {made_by, made_by});
  if (again != none()) latest = std::min(latest, is_reload(again.op) ? again.position : again.position - 1);
  auto through = std::lower_bound(clock_us_.begin() + made_by + 1, clock_us_.end(),
                                  clock_us_[static_cast<size_t>(made_by) + 1] + to_host_us(reload));
  return std::min(latest, std::max(made_by, static_cast<int32_t>(through - clock_us_.begin()) - 1));
}

ProgramPoint RematSchedule::unhurried(int32_t reload, int32_t position, ProgramPoint after) const {
  double start_us = clock_us_[static_cast<size_t>(position)] - op(reload).cost_us;
  int32_t before =
      static_cast<int32_t>(std::upper_bound(clock_us_.begin(), clock_us_.end(), start_us) - clock_us_.begin()) - 1;
  int32_t earliest = std::max(after < ProgramPoint{after.position, reload} ? after.position : after.position + 1,
                              producer(copied(reload)) + 1);
  if (is_offloaded(reload))
    earliest = std::max(earliest, occurrences_[static_cast<size_t>(offload_of(reload))].back().position);
  return {std::min(std::max(before - 1, earliest), position - 1), reload};
}

// Bytes alive at `at` and at the point after it.
int64_t RematSchedule::live_across(ProgramPoint at) const {
  int64_t live = memory_.live(at) - op(at).workspace_bytes + occurrence(at).reused;
  for (int32_t v : op(at).reads)
    if (last_use(v, at) == at) live -= bytes(v);
  for (int32_t v : op(at).writes)
    if (last_use(v, at.next()) == at) live -= bytes(v);
  return live;
}

int64_t RematSchedule::reused(ProgramPoint at) const {
  int64_t sum = 0;
  for (const InPlaceReuse& pair : op(at).in_place)
    if (last_use(pair.read, at) == at) sum += bytes(pair.written);
  return sum;
}

void RematSchedule::refresh_reused(ProgramPoint at) {
  if (at.op < 0 || at.op == problem_->op_count()) return;
  int64_t now = reused(at), &counted = occurrence(at).reused;
  memory_.add(at, at, counted - now);
  counted = now;
}

void RematSchedule::add_occurrence(ProgramPoint at) {
  auto& all = occurrences_[static_cast<size_t>(at.op)];
  auto after = std::lower_bound(all.begin(), all.end(), at.position,
                                [](const Occurrence& o, int32_t position) { return o.position < position; });
  all.insert(after, {at.position, static_cast<int32_t>(extras_.size())});
  extras_.push_back(at);
}

void RematSchedule::drop_occurrence(ProgramPoint at) {
  auto& all = occurrences_[static_cast<size_t>(at.op)];
  Occurrence& gone = occurrence(at);
  ProgramPoint moved = extras_.back();
  extras_[static_cast<size_t>(gone.index)] = moved;
  occurrence(moved).index = gone.index;
  extras_.pop_back();
  all.erase(&gone);
}

void RematSchedule::charge(ProgramPoint at) {
  loads_.add(op(at).engine, op(at).cost_us);
  added_us_.reset();
}

void RematSchedule::refund(ProgramPoint at) {
  loads_.remove(op(at).engine, op(at).cost_us);
  added_us_.reset();
}

void RematSchedule::put(ProgramPoint at) {
  llvm::SmallVector<ProgramPoint, 8> moved_ends, reloads = reloads_ahead(at);
  for (ProgramPoint reload : reloads) drop_events(reload);
  memory_.insert(at, live_across(memory_.before(at)) + op(at).workspace_bytes);
  for (int32_t v : op(at).writes) {
    ProgramPoint earlier = made(v, at);
    ProgramPoint end = last_use_before(v, earlier, next_made(v, at)), cut = last_use_before(v, earlier, at);
    if (end > at)
      memory_.add(cut.next(), at.previous(), -bytes(v));
    else
      memory_.add(at, at, bytes(v));
    moved_ends.push_back(cut);
  }
  charge(at);
  add_occurrence(at);
  for (int32_t v : op(at).reads) {
    ProgramPoint end = last_use(v, at);
    auto& uses = uses_[static_cast<size_t>(v)];
    uses.insert(std::lower_bound(uses.begin(), uses.end(), at), at);
    if (end > at) continue;
    memory_.add(end.next(), at, bytes(v));
    moved_ends.push_back(end);
  }
  refresh_reused(at);
  for (ProgramPoint end : moved_ends) refresh_reused(end);
  for (ProgramPoint reload : reloads) add_events(reload);
  add_events(at);
}

void RematSchedule::take(ProgramPoint at) {
  llvm::SmallVector<ProgramPoint, 8> moved_ends, reloads = reloads_ahead(at);
  for (ProgramPoint reload : reloads) drop_events(reload);
  drop_events(at);
  for (int32_t v : op(at).reads) {
    ProgramPoint end = last_use(v, at);
    auto& uses = uses_[static_cast<size_t>(v)];
    uses.erase(std::lower_bound(uses.begin(), uses.end(), at));
    if (end > at) continue;
    ProgramPoint earlier = last_use(v, at);
    memory_.add(earlier.next(), at, -bytes(v));
    moved_ends.push_back(earlier);
  }
  for (int32_t v : op(at).writes) {
    ProgramPoint end = last_use(v, at.next());
    ProgramPoint cut = last_use_before(v, made(v, at), at);
    if (end > at) memory_.add(cut.next(), at.previous(), bytes(v));
    moved_ends.push_back(cut);
  }
  drop_occurrence(at);
  memory_.erase(at);
  refund(at);
  for (ProgramPoint end : moved_ends) refresh_reused(end);
  for (ProgramPoint reload : reloads) add_events(reload);
}

void RematSchedule::insert_alone(ProgramPoint at) {
  put(at);
  journal_.push_back({true, at});
}

void RematSchedule::erase_alone(ProgramPoint at) {
  take(at);
  journal_.push_back({false, at});
}

void RematSchedule::insert(ProgramPoint at) {
  if (is_reload(at.op) && !is_offloaded(at.op)) insert_alone({offload_position(at.op, at.position), offload_of(at.op)});
  insert_alone(at);
}

void RematSchedule::erase(ProgramPoint at) {
  erase_alone(at);
  if (is_reload(at.op) && occurrences_[static_cast<size_t>(at.op)].empty())
    erase_alone({occurrences_[static_cast<size_t>(offload_of(at.op))].back().position, offload_of(at.op)});
}

void RematSchedule::make_synchronous(int32_t offload) {
  ProgramPoint now{occurrences_[static_cast<size_t>(offload)].back().position, offload},
      hurried{producer(copied(offload)), offload};
  if (now == hurried) return;
  erase_alone(now);
  insert_alone(hurried);
}

void RematSchedule::rewind(size_t mark) {
  while (journal_.size() > mark) {
    Change change = journal_.back();
    journal_.pop_back();
    if (change.inserted)
      take(change.at);
    else
      put(change.at);
  }
  if (mark == 0) added_us_ = rewound_us_;
}

void RematSchedule::forget_journal() {
  journal_.clear();
  rewound_us_ = added_us_;
}

// What the loads say with a repeat or reload `at` of what base op `position` or a repeat before it reads.
double RematSchedule::added_us_with(ProgramPoint at, int32_t position) const {
  EngineLoads loads = loads_;
  loads.add(op(at).engine, op(at).cost_us);
  if (!is_reload(at.op)) return loads.added_us();
  double stall_us = op(at).cost_us - (clock_us(position) - clock_us(at.position + 1));
  loads.add(Engine::Compute, std::max(0.0, stall_us));
  if (!is_offloaded(at.op)) loads.add(Engine::ToHost, to_host_us(at.op));
  return loads.added_us();
}

// What makes a value that is gone there again before `position`; {0, -1}: nothing can, or does already.
ProgramPoint RematSchedule::cheaper_producer(int32_t value, int32_t position, ProgramPoint last_use) const {
  ProgramPoint repeated{position, producer(value)};
  int32_t reload = reload_of(value);
  bool may_remat = may_insert(repeated);
  if (reload < 0) return may_remat ? repeated : from_the_start;
  ProgramPoint reloaded = unhurried(reload, position, last_use);
  if (has(reloaded)) return from_the_start;
  if (!may_insert(reloaded)) return may_remat ? repeated : from_the_start;
  return may_remat && added_us_with(repeated, position) <= added_us_with(reloaded, position) ? repeated : reloaded;
}

bool RematSchedule::insert_with_ancestors(ProgramPoint at, int32_t most, llvm::function_ref<bool()> is_worth_it) {
  if (is_copy(at.op)) return insert(at), true;
  llvm::SmallVector<int32_t, 16> wanted{at.op};
  while (!wanted.empty()) {
    auto nearest = std::max_element(wanted.begin(), wanted.end());
    ProgramPoint now{at.position, *nearest};
    wanted.erase(nearest);
    --most;
    for (int32_t v : op(now).reads) {
      if (producer(v) < 0 || static_cast<int32_t>(wanted.size()) >= most || is_alive(v, now)) continue;
      ProgramPoint again = cheaper_producer(v, at.position, last_use(v, now));
      if (again == from_the_start || contains(wanted, again.op)) continue;
      if (is_reload(again.op)) {
        insert(again);
        --most;
      } else {
        wanted.push_back(again.op);
      }
    }
    insert(now);
    if (!is_worth_it()) return false;
  }
  return true;
}

void RematSchedule::erase_with_unread(ProgramPoint at) {
  erase(at);
  for (int32_t v : op(at).reads) {
    if (producer(v) < 0) continue;
    ProgramPoint source = made(v, at);
    if (source.position != source.op && !is_read(source)) erase_with_unread(source);
  }
}

}  // namespace plimsoll::remat
