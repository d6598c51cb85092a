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
      occurrences_(problem.ops.size()) {
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
}

const Sequence::Occurrence& Sequence::occurrence(Moment at) const {
  const auto& all = occurrences_[static_cast<size_t>(at.op)];
  return *std::lower_bound(all.begin(), all.end(), at.stage, [](const Occurrence& o, int32_t stage) { return o.stage < stage; });
}

Moment Sequence::made(int32_t value, Moment at) const {
  int32_t op = producer(value);
  if (op < 0) return from_the_start;
  const auto& all = occurrences_[static_cast<size_t>(op)];
  auto after = std::lower_bound(all.begin(), all.end(), at, [op](const Occurrence& o, Moment m) { return Moment{o.stage, op} < m; });
  assert(after != all.begin() && "a value is used after it was first made");
  return {std::prev(after)->stage, op};
}

// The first occurrence of the producer after `at`.
Moment Sequence::next_made(int32_t value, Moment at) const {
  int32_t op = producer(value);
  if (op < 0) return none();
  const auto& all = occurrences_[static_cast<size_t>(op)];
  auto after = std::upper_bound(all.begin(), all.end(), at, [op](Moment m, const Occurrence& o) { return m < Moment{o.stage, op}; });
  return after == all.end() ? none() : Moment{after->stage, op};
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

bool Sequence::touches(int32_t op, int32_t value) const {
  if (op == problem_->op_count()) return false;
  const RecomputeOp& o = problem_->ops[static_cast<size_t>(op)];
  return contains(o.reads, value) || contains(o.writes, value);
}

bool Sequence::is_read(Moment at) const {
  return llvm::any_of(op(at).writes, [&](int32_t v) { return last_use_before(v, at, next_made(v, at)) > at; });
}

bool Sequence::may_repeat(Moment at) const {
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
  all.insert(after, {at.stage, static_cast<int32_t>(repeats_.size())});
  repeats_.push_back(at);
}

void Sequence::drop_occurrence(Moment at) {
  auto& all = occurrences_[static_cast<size_t>(at.op)];
  Occurrence& gone = occurrence(at);
  Moment moved = repeats_.back();
  repeats_[static_cast<size_t>(gone.index)] = moved;
  occurrence(moved).index = gone.index;
  repeats_.pop_back();
  all.erase(&gone);
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
  add_occurrence(at);
  for (int32_t v : op(at).reads) {
    Moment end = last_use(v, at);
    auto& uses = uses_[static_cast<size_t>(v)];
    uses.insert(std::lower_bound(uses.begin(), uses.end(), at), at);
    if (end > at) continue;
    memory_.add(end.next(), at, bytes(v));
    moved_ends.push_back(end);
  }
  added_us_ += op(at).cost_us;
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
  added_us_ -= op(at).cost_us;
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

void Sequence::insert_with_ancestors(Moment at, int32_t most) {
  llvm::SmallVector<int32_t, 16> wanted{at.op};
  while (!wanted.empty()) {
    auto nearest = std::max_element(wanted.begin(), wanted.end());
    Moment now{at.stage, *nearest};
    wanted.erase(nearest);
    --most;
    for (int32_t v : op(now).reads) {
      int32_t ancestor = producer(v);
      if (ancestor < 0 || static_cast<int32_t>(wanted.size()) >= most || is_alive(v, now)) continue;
      if (may_repeat({at.stage, ancestor}) && !contains(wanted, ancestor)) wanted.push_back(ancestor);
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
