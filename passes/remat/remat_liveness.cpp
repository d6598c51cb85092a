#include "passes/remat/remat_liveness.h"

// A value's uses and an op's occurrences are sorted lists of points; where an occurrence ends follows from both. Every
// change moves a few ends, and each moved end is one addition to the profile.

namespace plimsoll::remat {

RematLiveness::RematLiveness(const RematProblem& problem)
    : RematOps(problem),
      memory_(problem.op_count() + 1),
      value_uses_(problem.value_bytes.size()),
      uses_(problem.value_bytes.size()),
      occurrences_(static_cast<size_t>(id_count())) {
  int32_t n = problem.op_count();
  for (int32_t o = 0; o < n; ++o) {
    occurrences_[o].push_back({o, -1});
    for (int32_t v : op(o).writes) value_uses_[v].first_made = {o, o};
    for (int32_t v : op(o).reads) add_use(v, {o, o});
    memory_.add({o, o}, {o, o}, op(o).workspace_bytes);
  }
  for (size_t v = 0; v < uses_.size(); ++v) {
    int32_t value = static_cast<int32_t>(v);
    if (problem.live_out[v]) add_use(value, {n, n});
    ProgramPoint start = made(value, {n, n});
    memory_.add(start, last_use_before(value, start, none()), bytes(value));
  }
  for (int32_t o = 0; o < n; ++o) refresh_reused({o, o});
}

const RematLiveness::Occurrence& RematLiveness::occurrence(ProgramPoint at) const {
  const auto& all = occurrences_[at.op()];
  return *std::lower_bound(all.begin(), all.end(), at.position(),
                           [](const Occurrence& o, int32_t position) { return o.position < position; });
}

ProgramPoint RematLiveness::next_use(int32_t value, ProgramPoint at) const {
  const auto& uses = uses_[value];
  auto use = std::upper_bound(uses.begin(), uses.end(), at);
  return use != uses.end() && *use < next_made(value, at) ? *use : none();
}

bool RematLiveness::is_read(ProgramPoint at) const {
  return llvm::any_of(op(at).writes, [&](int32_t v) { return last_use_before(v, at, next_made(v, at)) > at; });
}

// The bytes that are alive both at `at` and at the point after it.
int64_t RematLiveness::live_across(ProgramPoint at) const {
  int64_t live = memory_.live(at) - op(at).workspace_bytes + occurrence(at).reused;
  for (int32_t v : op(at).reads)
    if (last_use(v, at) == at) live -= bytes(v);
  for (int32_t v : op(at).writes)
    if (last_use(v, at.next()) == at) live -= bytes(v);
  return live;
}

int64_t RematLiveness::reused(ProgramPoint at) const {
  int64_t sum = 0;
  for (const InPlaceReuse& pair : op(at).in_place)
    if (last_use(pair.read, at) == at) sum += bytes(pair.written);
  return sum;
}

// Returns what it adds to the profile.
int64_t RematLiveness::refresh_reused(ProgramPoint at) {
  if (at.op() < 0 || at.op() == problem().op_count() || op(at).in_place.empty()) return 0;
  int64_t now = reused(at), &counted = occurrence(at).reused, added = counted - now;
  memory_.add(at, at, added);
  counted = now;
  return added;
}

void RematLiveness::add(ProgramPoint first, ProgramPoint last, int64_t bytes) {
  if (first > last || bytes == 0) return;
  memory_.add(first, last, bytes);
  additions_.push_back({first, last, bytes, false});
}

// Once a life ends at `at`, or no longer does.
void RematLiveness::move_end(ProgramPoint at) {
  if (const int64_t added = refresh_reused(at); added != 0) additions_.push_back({at, at, added, true});
}

void RematLiveness::take_back_additions(size_t before) {
  while (additions_.size() > before) {
    const Addition& last = additions_.back();
    memory_.add(last.first, last.last, -last.bytes);
    if (last.is_reused) occurrence(last.first).reused += last.bytes;
    additions_.pop_back();
  }
}

void RematLiveness::add_use(int32_t value, ProgramPoint at) {
  auto& uses = uses_[value];
  uses.insert(std::upper_bound(uses.begin(), uses.end(), at), at);
  value_uses_[value].last = uses.back();
}

void RematLiveness::drop_use(int32_t value, ProgramPoint at) {
  auto& uses = uses_[value];
  uses.erase(std::lower_bound(uses.begin(), uses.end(), at));
  value_uses_[value].last = uses.empty() ? from_the_start : uses.back();
}

void RematLiveness::add_occurrence(ProgramPoint at) {
  auto& all = occurrences_[at.op()];
  auto after = std::lower_bound(all.begin(), all.end(), at.position(),
                                [](const Occurrence& o, int32_t position) { return o.position < position; });
  all.insert(after, {at.position(), static_cast<int32_t>(extras_.size())});
  extras_.push_back(at);
  for (int32_t v : op(at).writes) ++value_uses_[v].times_again;
}

void RematLiveness::drop_occurrence(ProgramPoint at) {
  auto& all = occurrences_[at.op()];
  Occurrence& gone = occurrence(at);
  ProgramPoint moved = extras_.back();
  extras_[gone.index] = moved;
  occurrence(moved).index = gone.index;
  extras_.pop_back();
  for (int32_t v : op(at).writes) --value_uses_[v].times_again;
  all.erase(&gone);
}

RematLiveness::Undo RematLiveness::put(ProgramPoint at) {
  const Undo undo{additions_.size()};
  llvm::SmallVector<ProgramPoint, 8> moved_ends;
  memory_.insert(at, live_across(memory_.before(at)) + op(at).workspace_bytes);
  for (int32_t v : op(at).writes) {
    ProgramPoint earlier = made(v, at);
    ProgramPoint end = last_use_before(v, earlier, next_made(v, at)), cut = last_use_before(v, earlier, at);
    if (end > at)
      add(cut.next(), at.previous(), -bytes(v));
    else
      memory_.add(at, at, bytes(v));
    moved_ends.push_back(cut);
  }
  add_occurrence(at);
  for (int32_t v : op(at).reads) {
    ProgramPoint end = last_use(v, at);
    add_use(v, at);
    if (end > at) continue;
    add(end.next(), at, bytes(v));
    moved_ends.push_back(end);
  }
  refresh_reused(at);
  for (ProgramPoint end : moved_ends) move_end(end);
  return undo;
}

RematLiveness::Undo RematLiveness::take(ProgramPoint at) {
  Undo undo{additions_.size()};
  llvm::SmallVector<ProgramPoint, 8> moved_ends;
  for (int32_t v : op(at).reads) {
    const ProgramPoint start = made(v, at), until = next_made(v, start);
    const ProgramPoint end = last_use_before(v, start, until);
    drop_use(v, at);
    if (end > at) continue;
    const ProgramPoint earlier = last_use_before(v, start, until);
    add(earlier.next(), at, -bytes(v));
    moved_ends.push_back(earlier);
  }
  for (int32_t v : op(at).writes) {
    ProgramPoint end = last_use(v, at.next());
    ProgramPoint cut = last_use_before(v, made(v, at), at);
    if (end > at)
      add(cut.next(), at.previous(), bytes(v));
    else if (bytes(v) != 0)
      undo.steps += memory_.steps_of_point();
    moved_ends.push_back(cut);
  }
  undo.live = memory_.live(at);
  undo.reused = occurrence(at).reused;
  if (undo.reused != 0) undo.steps += memory_.steps_of_point();
  drop_occurrence(at);
  memory_.erase(at);
  undo.gone = additions_.size();
  for (ProgramPoint end : moved_ends) move_end(end);
  return undo;
}

void RematLiveness::take_back_put(ProgramPoint at, const Undo& undo) {
  take_back_additions(undo.additions);
  for (int32_t v : op(at).reads) drop_use(v, at);
  drop_occurrence(at);
  memory_.erase(at);
}

void RematLiveness::take_back_take(ProgramPoint at, const Undo& undo) {
  take_back_additions(undo.gone);
  memory_.insert(at, undo.live);
  add_occurrence(at);
  occurrence(at).reused = undo.reused;
  for (int32_t v : op(at).reads) add_use(v, at);
  take_back_additions(undo.additions);
  memory_.count_steps(undo.steps);
}

}  // namespace plimsoll::remat
