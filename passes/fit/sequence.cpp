#include "passes/fit/sequence.h"

#include <algorithm>
#include <cassert>

// A value's uses and an op's occurrences are sorted lists of moments; where an occurrence ends follows from both.
// Every change moves a few ends, and each moved end is one addition to the profile.

namespace plimsoll::fit {
namespace {

constexpr Moment from_the_start{0, -1};

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
      split_(none()),
      loads_(problem, problem.op_count()) {
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
  collect_fetches();
  bool has_copies = llvm::any_of(problem.ops, [](const RecomputeOp& op) { return op.channel != Channel::Compute; });
  if (!has_copies && problem.offloads.empty()) return;
  split_ = memory_.peak_moment();
  loads_ = ChannelLoads(problem, split_.stage);
}

void Sequence::collect_fetches() {
  for (const OffloadOption& option : problem_->offloads) {
    FetchOp fetch{{}, producer(option.value), option.to_host_us};
    fetch.op.channel = Channel::ToDevice;
    fetch.op.cost_us = option.to_device_us;
    fetch.op.writes.push_back(option.value);
    fetches_.push_back(std::move(fetch));
  }
  std::stable_sort(fetches_.begin(), fetches_.end(), [](const FetchOp& a, const FetchOp& b) { return a.producer < b.producer; });
  int32_t id = problem_->op_count();
  for (const FetchOp& fetch : fetches_) fetch_of_[static_cast<size_t>(fetch.op.writes[0])] = ++id;
  occurrences_.resize(static_cast<size_t>(id) + 1);
}

int32_t Sequence::maker_count(int32_t stage) const {
  auto later = std::lower_bound(fetches_.begin(), fetches_.end(), stage, [](const FetchOp& fetch, int32_t s) { return fetch.producer < s; });
  return std::min(stage, problem_->op_count()) + static_cast<int32_t>(later - fetches_.begin());
}

int32_t Sequence::maker(int32_t index, int32_t stage) const {
  int32_t ops = std::min(stage, problem_->op_count());
  return index < ops ? index : index - ops + problem_->op_count() + 1;
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
  if (is_fetch(at.op)) return at.stage > fetches_[fetch_index(at.op)].producer && at.stage < problem_->op_count() && !has(at);
  return at.op < at.stage && op(at).repeatable && at.stage <= op(at).repeat_until && !has(at);
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

// A value's first fetch, while it is not in the sequence, brings the copy to the host with it.
void Sequence::charge(ChannelLoads& loads, Moment at, double sign) const {
  loads.add(op(at).channel, in_second_part(at), sign * op(at).cost_us);
  if (!is_fetch(at.op) || !occurrences_[static_cast<size_t>(at.op)].empty()) return;
  const FetchOp& fetch = fetches_[fetch_index(at.op)];
  loads.add(Channel::ToHost, in_second_part({fetch.producer, fetch.producer}), sign * fetch.to_host_us);
}

double Sequence::added_us_with(Moment at) const {
  ChannelLoads loads = loads_;
  charge(loads, at, 1);
  return loads.added_us();
}

void Sequence::put(Moment at) {
  llvm::SmallVector<Moment, 8> moved_ends;
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
  charge(loads_, at, 1);
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
}

void Sequence::take(Moment at) {
  llvm::SmallVector<Moment, 8> moved_ends;
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
  charge(loads_, at, -1);
  for (Moment end : moved_ends) refresh_taken_over(end);
}

void Sequence::insert(Moment at) {
  put(at);
  journal_.push_back({true, at});
}

void Sequence::erase(Moment at) {
  take(at);
  journal_.push_back({false, at});
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
}

// What makes a value that is gone there again before `stage`; -1: nothing can, or does already.
int32_t Sequence::cheaper_maker(int32_t value, int32_t stage) const {
  int32_t op = producer(value), fetch = fetch_of(value);
  bool may_repeat = may_insert({stage, op});
  if (fetch < 0) return may_repeat ? op : -1;
  Moment fetched = moment_before(stage, fetch);
  if (has(fetched)) return -1;
  if (!may_insert(fetched)) return may_repeat ? op : -1;
  return may_repeat && added_us_with({stage, op}) <= added_us_with(fetched) ? op : fetch;
}

void Sequence::insert_with_ancestors(Moment at, int32_t most) {
  llvm::SmallVector<int32_t, 16> wanted{at.op};
  const int32_t stage = stage_after(at);
  while (!wanted.empty()) {
    auto nearest = std::max_element(wanted.begin(), wanted.end());
    Moment now = moment_before(stage, *nearest);
    wanted.erase(nearest);
    --most;
    for (int32_t v : op(now).reads) {
      int32_t ancestor = producer(v);
      if (ancestor < 0 || static_cast<int32_t>(wanted.size()) >= most || is_alive(v, now)) continue;
      int32_t again = cheaper_maker(v, stage);
      if (again >= 0 && !contains(wanted, again)) wanted.push_back(again);
    }
    insert(now);
  }
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
