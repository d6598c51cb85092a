#include "passes/remat/remat_schedule.h"

#include <algorithm>
#include <cassert>

// A value's uses and an op's occurrences are sorted lists of moments; where an occurrence ends follows from both.
// Every change moves a few ends, and each moved end is one addition to the profile.

namespace plimsoll::fit {
namespace {

template <typename List>
bool contains(const List& list, int32_t item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

}  // namespace

Sequence::Sequence(const RecomputeProblem& problem)
    : problem_(&problem),
      memory_(problem.op_count() + 1),
      producer_(problem.value_bytes.size(), -1),
      uses_(problem.value_bytes.size()),
      occurrences_(problem.ops.size()),
      fetch_of_(problem.value_bytes.size(), -1),
      all_compute_(problem.offloads.empty() && llvm::all_of(problem.ops, [](const RecomputeOp& op) { return op.channel == Channel::Compute; })),
      loads_(problem) {
  int32_t n = problem.op_count();
  for (int32_t o = 0; o < n; ++o) {
    occurrences_[static_cast<size_t>(o)].push_back({o, -1});
    const RecomputeOp& op = problem.ops[static_cast<size_t>(o)];
    for (int32_t v : op.writes) producer_[static_cast<size_t>(v)] = o;
    for (int32_t v : op.reads) uses_[static_cast<size_t>(v)].push_back({o, o});
    memory_.add({o, o}, {o, o}, op.workspace_bytes);
  }
  for (size_t v = 0; v < uses_.size(); ++v) {
    if (problem.live_out[v]) uses_[v].push_back({n, n});
    int32_t value = static_cast<int32_t>(v);
    Moment start = made(value, {n, n});
    memory_.add(start, last_use_before(value, start, none()), bytes(value));
  }
  for (int32_t o = 0; o < n; ++o) refresh_taken_over({o, o});
  collect_copies();
}

void Sequence::collect_copies() {
  std::vector<OffloadOption> options = problem_->offloads;
  std::sort(options.begin(), options.end(), [&](const OffloadOption& a, const OffloadOption& b) { return std::pair(producer(a.value), a.value) < std::pair(producer(b.value), b.value); });
  RecomputeOp store, fetch;
  store.channel = Channel::ToHost;
  fetch.channel = Channel::ToDevice;
  for (const OffloadOption& option : options) {
    store.cost_us = option.to_host_us;
    store.reads.assign(1, option.value);
    copies_.push_back(store);
  }
  for (const OffloadOption& option : options) {
    fetch.cost_us = option.to_device_us;
    fetch.writes.assign(1, option.value);
    copies_.push_back(fetch);
    fetch_of_[static_cast<size_t>(option.value)] = problem_->op_count() + static_cast<int32_t>(copies_.size());
  }
  occurrences_.resize(problem_->ops.size() + 1 + copies_.size());
  places_.resize(copies_.size());
  for (int32_t id = 0; id < static_cast<int32_t>(occurrences_.size()); ++id) cost_us_.push_back(id == problem_->op_count() ? 0 : op(id).cost_us);
  clock_us_.assign(1, 0);
  for (const RecomputeOp& op : problem_->ops) clock_us_.push_back(clock_us_.back() + problem_->compute_us(op));
}

int32_t Sequence::maker_count(int32_t stage) const {
  auto stores = llvm::ArrayRef<RecomputeOp>(copies_).take_front(problem_->offloads.size());
  auto later = std::lower_bound(stores.begin(), stores.end(), stage, [&](const RecomputeOp& store, int32_t s) { return producer(store.reads[0]) < s; });
  return std::min(stage, problem_->op_count()) + static_cast<int32_t>(later - stores.begin());
}

int32_t Sequence::maker(int32_t index, int32_t stage) const {
  int32_t ops = std::min(stage, problem_->op_count());
  return index < ops ? index : index - ops + problem_->op_count() + 1 + offload_count();
}

const Sequence::Occurrence& Sequence::occurrence(Moment at) const {
  const auto& all = occurrences_[static_cast<size_t>(at.op)];
  return *std::lower_bound(all.begin(), all.end(), at.stage, [](const Occurrence& o, int32_t stage) { return o.stage < stage; });
}

Moment Sequence::latest_before(int32_t id, Moment at) const {
  const auto& all = occurrences_[static_cast<size_t>(id)];
  auto after = std::lower_bound(all.begin(), all.end(), at, [id](const Occurrence& o, Moment m) { return Moment{o.stage, id} < m; });
  return after == all.begin() ? from_the_start : Moment{std::prev(after)->stage, id};
}

Moment Sequence::first_after(int32_t id, Moment at) const {
  const auto& all = occurrences_[static_cast<size_t>(id)];
  auto after = std::upper_bound(all.begin(), all.end(), at, [id](Moment m, const Occurrence& o) { return m < Moment{o.stage, id}; });
  return after == all.end() ? none() : Moment{after->stage, id};
}

Moment Sequence::made(int32_t value, Moment at) const {
  int32_t op = producer(value), fetch = fetch_of(value);
  if (op < 0) return from_the_start;
  Moment latest = latest_before(op, at);
  assert(latest != from_the_start && "a value is used after it was first made");
  return fetch < 0 ? latest : std::max(latest, latest_before(fetch, at));
}

// When `value` is made next after `at`.
Moment Sequence::next_made(int32_t value, Moment at) const {
  int32_t op = producer(value), fetch = fetch_of(value);
  if (op < 0) return none();
  Moment first = first_after(op, at);
  return fetch < 0 ? first : std::min(first, first_after(fetch, at));
}

Moment Sequence::last_use_before(int32_t value, Moment made, Moment until) const {
  const auto& uses = uses_[static_cast<size_t>(value)];
  auto after = std::lower_bound(uses.begin(), uses.end(), until);
  return after == uses.begin() ? made : std::max(made, *std::prev(after));
}

Moment Sequence::last_use(int32_t value, Moment at) const {
  Moment start = made(value, at);
  return last_use_before(value, start, next_made(value, start));
}

Moment Sequence::next_use(int32_t value, Moment at) const {
  const auto& uses = uses_[static_cast<size_t>(value)];
  auto use = std::upper_bound(uses.begin(), uses.end(), at);
  return use != uses.end() && *use < next_made(value, at) ? *use : none();
}

bool Sequence::touches(int32_t id, int32_t value) const {
  if (id == problem_->op_count()) return false;
  const RecomputeOp& o = op(id);
  return contains(o.reads, value) || contains(o.writes, value);
}

bool Sequence::is_read(Moment at) const {
  return llvm::any_of(op(at).writes, [&](int32_t v) { return last_use_before(v, at, next_made(v, at)) > at; });
}

bool Sequence::may_insert(Moment at) const {
  if (is_copy(at.op)) return may_copy(at);
  if (at.op >= at.stage || !op(at).repeatable || at.stage > op(at).repeat_until || has(at)) return false;
  // What is stored was made first.
  return copies_.empty() || llvm::none_of(op(at).writes, [&](int32_t v) {
    int32_t fetch = fetch_of(v);
    return fetch >= 0 && is_stored(fetch) && at.stage <= occurrences_[static_cast<size_t>(store_of(fetch))].back().stage;
  });
}

// A store ends before its value is made again, and fetches are issued after it.
bool Sequence::may_copy(Moment at) const {
  int32_t maker = producer(copied(at.op));
  if (at.stage < maker || at.stage >= problem_->op_count() || has(at)) return false;
  if (is_store(at.op)) return at < next_made(copied(at.op), {maker, maker});
  return at.stage > maker && (!is_stored(at.op) || at.stage >= occurrences_[static_cast<size_t>(store_of(at.op))].back().stage);
}

// Behind which base op a store is done: the first where it has had the time it takes, at the latest `latest` or the one before its
// value is made again.
int32_t Sequence::store_stage(int32_t fetch, int32_t latest) const {
  int32_t maker = producer(copied(fetch));
  Moment again = next_made(copied(fetch), {maker, maker});
  if (again != none()) latest = std::min(latest, is_fetch(again.op) ? again.stage : again.stage - 1);
  auto through = std::lower_bound(clock_us_.begin() + maker + 1, clock_us_.end(), clock_us_[static_cast<size_t>(maker) + 1] + to_host_us(fetch));
  return std::min(latest, std::max(maker, static_cast<int32_t>(through - clock_us_.begin()) - 1));
}

Moment Sequence::unhurried(int32_t fetch, int32_t stage, Moment after) const {
  double start_us = clock_us_[static_cast<size_t>(stage)] - op(fetch).cost_us;
  int32_t before = static_cast<int32_t>(std::upper_bound(clock_us_.begin(), clock_us_.end(), start_us) - clock_us_.begin()) - 1;
  int32_t earliest = std::max(after < Moment{after.stage, fetch} ? after.stage : after.stage + 1, producer(copied(fetch)) + 1);
  if (is_stored(fetch)) earliest = std::max(earliest, occurrences_[static_cast<size_t>(store_of(fetch))].back().stage);
  return {std::min(std::max(before - 1, earliest), stage - 1), fetch};
}

// Bytes alive at `at` and at the moment after it.
int64_t Sequence::live_across(Moment at) const {
  int64_t live = memory_.live(at) - op(at).workspace_bytes + occurrence(at).taken_over;
  for (int32_t v : op(at).reads)
    if (last_use(v, at) == at) live -= bytes(v);
  for (int32_t v : op(at).writes)
    if (last_use(v, at.next()) == at) live -= bytes(v);
  return live;
}

int64_t Sequence::taken_over(Moment at) const {
  int64_t sum = 0;
  for (const TakeOver& pair : op(at).in_place)
    if (last_use(pair.read, at) == at) sum += bytes(pair.written);
  return sum;
}

void Sequence::refresh_taken_over(Moment at) {
  if (at.op < 0 || at.op == problem_->op_count()) return;
  int64_t now = taken_over(at), &counted = occurrence(at).taken_over;
  memory_.add(at, at, counted - now);
  counted = now;
}

void Sequence::add_occurrence(Moment at) {
  auto& all = occurrences_[static_cast<size_t>(at.op)];
  auto after = std::lower_bound(all.begin(), all.end(), at.stage, [](const Occurrence& o, int32_t stage) { return o.stage < stage; });
  all.insert(after, {at.stage, static_cast<int32_t>(extras_.size())});
  extras_.push_back(at);
}

void Sequence::drop_occurrence(Moment at) {
  auto& all = occurrences_[static_cast<size_t>(at.op)];
  Occurrence& gone = occurrence(at);
  Moment moved = extras_.back();
  extras_[static_cast<size_t>(gone.index)] = moved;
  occurrence(moved).index = gone.index;
  extras_.pop_back();
  all.erase(&gone);
}

void Sequence::charge(Moment at) {
  loads_.add(op(at).channel, op(at).cost_us);
  added_us_.reset();
}

void Sequence::refund(Moment at) {
  loads_.remove(op(at).channel, op(at).cost_us);
  added_us_.reset();
}

void Sequence::put(Moment at) {
  llvm::SmallVector<Moment, 8> moved_ends, fetches = fetches_ahead(at);
  for (Moment fetch : fetches) drop_events(fetch);
  memory_.insert(at, live_across(memory_.before(at)) + op(at).workspace_bytes);
  for (int32_t v : op(at).writes) {
    Moment earlier = made(v, at);
    Moment end = last_use_before(v, earlier, next_made(v, at)), cut = last_use_before(v, earlier, at);
    if (end > at)
      memory_.add(cut.next(), at.previous(), -bytes(v));
    else
      memory_.add(at, at, bytes(v));
    moved_ends.push_back(cut);
  }
  charge(at);
  add_occurrence(at);
  for (int32_t v : op(at).reads) {
    Moment end = last_use(v, at);
    auto& uses = uses_[static_cast<size_t>(v)];
    uses.insert(std::lower_bound(uses.begin(), uses.end(), at), at);
    if (end > at) continue;
    memory_.add(end.next(), at, bytes(v));
    moved_ends.push_back(end);
  }
  refresh_taken_over(at);
  for (Moment end : moved_ends) refresh_taken_over(end);
  for (Moment fetch : fetches) add_events(fetch);
  add_events(at);
}

void Sequence::take(Moment at) {
  llvm::SmallVector<Moment, 8> moved_ends, fetches = fetches_ahead(at);
  for (Moment fetch : fetches) drop_events(fetch);
  drop_events(at);
  for (int32_t v : op(at).reads) {
    Moment end = last_use(v, at);
    auto& uses = uses_[static_cast<size_t>(v)];
    uses.erase(std::lower_bound(uses.begin(), uses.end(), at));
    if (end > at) continue;
    Moment earlier = last_use(v, at);
    memory_.add(earlier.next(), at, -bytes(v));
    moved_ends.push_back(earlier);
  }
  for (int32_t v : op(at).writes) {
    Moment end = last_use(v, at.next());
    Moment cut = last_use_before(v, made(v, at), at);
    if (end > at) memory_.add(cut.next(), at.previous(), bytes(v));
    moved_ends.push_back(cut);
  }
  drop_occurrence(at);
  memory_.erase(at);
  refund(at);
  for (Moment end : moved_ends) refresh_taken_over(end);
  for (Moment fetch : fetches) add_events(fetch);
}

void Sequence::insert_alone(Moment at) {
  put(at);
  journal_.push_back({true, at});
}

void Sequence::erase_alone(Moment at) {
  take(at);
  journal_.push_back({false, at});
}

void Sequence::insert(Moment at) {
  if (is_fetch(at.op) && !is_stored(at.op)) insert_alone({store_stage(at.op, at.stage), store_of(at.op)});
  insert_alone(at);
}

void Sequence::erase(Moment at) {
  erase_alone(at);
  if (is_fetch(at.op) && occurrences_[static_cast<size_t>(at.op)].empty())
    erase_alone({occurrences_[static_cast<size_t>(store_of(at.op))].back().stage, store_of(at.op)});
}

void Sequence::hurry(int32_t store) {
  Moment now{occurrences_[static_cast<size_t>(store)].back().stage, store}, hurried{producer(copied(store)), store};
  if (now == hurried) return;
  erase_alone(now);
  insert_alone(hurried);
}

void Sequence::rewind(size_t mark) {
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

void Sequence::forget_journal() {
  journal_.clear();
  rewound_us_ = added_us_;
}

// What the loads say with a repeat or fetch `at` of what base op `stage` or a repeat before it reads.
double Sequence::added_us_with(Moment at, int32_t stage) const {
  ChannelLoads loads = loads_;
  loads.add(op(at).channel, op(at).cost_us);
  if (!is_fetch(at.op)) return loads.added_us();
  double stall_us = op(at).cost_us - (clock_us(stage) - clock_us(at.stage + 1));
  loads.add(Channel::Compute, std::max(0.0, stall_us));
  if (!is_stored(at.op)) loads.add(Channel::ToHost, to_host_us(at.op));
  return loads.added_us();
}

// What makes a value that is gone there again before `stage`; {0, -1}: nothing can, or does already.
Moment Sequence::cheaper_maker(int32_t value, int32_t stage, Moment last_use) const {
  Moment repeated{stage, producer(value)};
  int32_t fetch = fetch_of(value);
  bool may_repeat = may_insert(repeated);
  if (fetch < 0) return may_repeat ? repeated : from_the_start;
  Moment fetched = unhurried(fetch, stage, last_use);
  if (has(fetched)) return from_the_start;
  if (!may_insert(fetched)) return may_repeat ? repeated : from_the_start;
  return may_repeat && added_us_with(repeated, stage) <= added_us_with(fetched, stage) ? repeated : fetched;
}

bool Sequence::insert_with_ancestors(Moment at, int32_t most, llvm::function_ref<bool()> is_worth_it) {
  if (is_copy(at.op)) return insert(at), true;
  llvm::SmallVector<int32_t, 16> wanted{at.op};
  while (!wanted.empty()) {
    auto nearest = std::max_element(wanted.begin(), wanted.end());
    Moment now{at.stage, *nearest};
    wanted.erase(nearest);
    --most;
    for (int32_t v : op(now).reads) {
      if (producer(v) < 0 || static_cast<int32_t>(wanted.size()) >= most || is_alive(v, now)) continue;
      Moment again = cheaper_maker(v, at.stage, last_use(v, now));
      if (again == from_the_start || contains(wanted, again.op)) continue;
      if (is_fetch(again.op)) {
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

void Sequence::erase_with_unread(Moment at) {
  erase(at);
  for (int32_t v : op(at).reads) {
    if (producer(v) < 0) continue;
    Moment source = made(v, at);
    if (source.stage != source.op && !is_read(source)) erase_with_unread(source);
  }
}

}  // namespace plimsoll::fit
