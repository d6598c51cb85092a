#include "passes/place/flexible_placement.h"

#include "passes/place/hole_tree.h"

#include "llvm/ADT/STLExtras.h"

#include <cmath>
#include <numeric>

// Ejection search: what finds no hole takes the place of what is cheapest to move, and that looks for a hole in turn.
// What finds none again and again becomes dearer to move, as weights do in guided local search, and gives up part of
// the life that it wants, down to its core. In the end each life takes back what is free before and behind it.

namespace plimsoll {
namespace {

using namespace placement;

constexpr int32_t stretch_steps = 16;
constexpr int patience = 3;    // failures before an interval gives up something
constexpr int life_steps = 8;  // until nothing but its core is left

// The most from 0 to `most` for which `holds`, which does for all below one for which it does.
template <typename Holds>
int32_t most_that(int32_t most, Holds holds) {
  int32_t least = 0;
  while (least < most) {
    const int32_t middle = least + (most - least + 1) / 2;
    if (holds(middle))
      least = middle;
    else
      most = middle - 1;
  }
  return least;
}

// Lengthens a life up to `longest` where the bytes are free.
Life lengthened(Life life, const Life& longest, int64_t low, int64_t high, HoleTree& tree) {
  const int32_t before = most_that(life.first - longest.first, [&](int32_t steps) {
    return tree.is_free(life.first - steps, life.first - 1, low, high);
  });
  const int32_t behind = most_that(longest.last - life.last, [&](int32_t steps) {
    return tree.is_free(life.last + 1, life.last + steps, low, high);
  });
  if (before > 0) tree.occupy(life.first - before, life.first - 1, low, high);
  if (behind > 0) tree.occupy(life.last + 1, life.last + behind, low, high);
  return {life.first - before, life.last + behind};
}

}  // namespace

FlexiblePlacer::FlexiblePlacer(std::vector<FlexibleInterval> intervals, int64_t capacity_bytes, int64_t steps)
    : intervals_(std::move(intervals)),
      capacity_(capacity_bytes),
      steps_left_(steps),
      states_(intervals_.size()),
      seen_at_(intervals_.size(), 0) {
  int32_t last = 0;
  for (size_t i = 0; i < intervals_.size(); ++i) {
    const auto& [bytes, core, wanted, allowed] = intervals_[i];
    states_[i].extent = std::sqrt(static_cast<double>(bytes) * (core.last - core.first + 1));
    last = std::max(last, allowed.last);
  }
  placed_in_.resize(static_cast<size_t>(last / stretch_steps) + 1);
  waiting_.resize(intervals_.size());
  std::iota(waiting_.begin(), waiting_.end(), 0);
}

// What an interval takes of space and time; more after each failure.
double FlexiblePlacer::hardness(size_t interval) const {
  return states_[interval].extent * (1 + states_[interval].failures);
}

Life FlexiblePlacer::life_of(size_t interval) const {
  const FlexibleInterval& i = intervals_[interval];
  const State& state = states_[interval];
  const int given_up = state.insists ? 0 : std::clamp(state.failures - patience + 1, 0, life_steps);
  const auto part = [&](int32_t whole) { return whole * (life_steps - given_up) / life_steps; };
  return {i.core.first - part(i.core.first - i.wanted.first), i.core.last + part(i.wanted.last - i.core.last)};
}

// Those that are placed and alive with the interval, by rising offset.
void FlexiblePlacer::find_meetings(size_t interval) {
  const Life& life = states_[interval].life;
  by_offset_.clear();
  ++visit_;
  for (int32_t s = life.first / stretch_steps; s <= life.last / stretch_steps; ++s)
    for (int32_t other : placed_in_[s]) {
      --steps_left_;
      if (seen_at_[other] == visit_) continue;
      seen_at_[other] = visit_;
      const State& state = states_[other];
      if (state.life.first <= life.last && life.first <= state.life.last) by_offset_.push_back({state.offset, other});
    }
  llvm::sort(by_offset_);
  meetings_.clear();
  for (const auto& [offset, other] : by_offset_) meetings_.push_back(other);
  steps_left_ -= 16 + 16 * static_cast<int64_t>(meetings_.size());
}

// The lowest hole where there is one; else the place where what is in the way is easiest to move. It is at 0 or the
// capacity, or touches another interval.
FlexiblePlacer::Spot FlexiblePlacer::cheapest_spot(size_t interval) {
  const int64_t bytes = intervals_[interval].bytes;
  int64_t hole = 0;
  for (int32_t m : meetings_) {
    if (states_[m].offset - hole >= bytes) break;
    hole = std::max(hole, top(m));
  }
  if (hole + bytes <= capacity_) return {hole, 0};
  steps_left_ -= 32 * static_cast<int64_t>(meetings_.size());
  return cheapest_in_the_way(bytes);
}

// In the way of a place is what begins below its top, without what ends at or below it.
FlexiblePlacer::Spot FlexiblePlacer::cheapest_in_the_way(int64_t bytes) {
  begins_.clear();
  ends_.clear();
  for (size_t k = 0; k < meetings_.size(); ++k) {
    const auto m = static_cast<size_t>(meetings_[k]);
    begins_.push_back({states_[m].offset, hardness(m), k});
    ends_.push_back({top(m), hardness(m), k});
  }
  llvm::sort(ends_, [](const Border& a, const Border& b) {
    return a.offset != b.offset ? a.offset < b.offset : a.hardness < b.hardness;
  });
  for (std::vector<Border>* borders : {&begins_, &ends_})
    for (size_t k = 1; k < borders->size(); ++k) (*borders)[k].hardness += (*borders)[k - 1].hardness;
  // The sum below an offset, where `end` is no higher than for that.
  const auto sum_below = [](const std::vector<Border>& borders, size_t& end, int64_t offset) {
    while (end < borders.size() && borders[end].offset < offset) ++end;
    return end == 0 ? 0 : borders[end - 1].hardness;
  };
  size_t begun = 0, ended = 0;
  const auto cost_at = [&](int64_t offset) {
    const double begins = sum_below(begins_, begun, offset + bytes);
    return begins - sum_below(ends_, ended, offset + 1);
  };
  cost_on_top_.resize(meetings_.size());
  for (const Border& end : ends_) cost_on_top_[end.meeting] = cost_at(end.offset);
  Spot best{-1, std::numeric_limits<double>::infinity()};
  const auto offer = [&](int64_t offset, double cost) {
    if (offset >= 0 && offset + bytes <= capacity_ && cost < best.cost) best = {offset, cost};
  };
  begun = ended = 0;
  offer(0, cost_at(0));
  begun = ended = 0;
  offer(capacity_ - bytes, cost_at(capacity_ - bytes));
  begun = ended = 0;
  for (size_t k = 0; k < meetings_.size(); ++k) {
    const auto m = static_cast<size_t>(meetings_[k]);
    offer(top(m), cost_on_top_[k]);
    offer(states_[m].offset - bytes, cost_at(states_[m].offset - bytes));
  }
  return best;
}

void FlexiblePlacer::put(size_t interval, int64_t offset) {
  State& state = states_[interval];
  state.offset = offset;
  for (int32_t s = state.life.first / stretch_steps; s <= state.life.last / stretch_steps; ++s)
    placed_in_[s].push_back(static_cast<int32_t>(interval));
  steps_left_ -= (state.life.last - state.life.first) / stretch_steps;
}

void FlexiblePlacer::take_out(size_t interval) {
  State& state = states_[interval];
  state.offset = -1;
  for (int32_t s = state.life.first / stretch_steps; s <= state.life.last / stretch_steps; ++s) {
    std::vector<int32_t>& placed = placed_in_[s];
    *llvm::find(placed, static_cast<int32_t>(interval)) = placed.back();
    placed.pop_back();
    steps_left_ -= static_cast<int64_t>(placed.size()) / 8;
  }
  waiting_.push_back(static_cast<int32_t>(interval));
}

bool FlexiblePlacer::is_easier(int32_t a, int32_t b) const {
  const double x = hardness(a), y = hardness(b);
  return x != y ? x < y : a > b;
}

bool FlexiblePlacer::place() {
  const auto easier = [&](int32_t a, int32_t b) { return is_easier(a, b); };
  std::make_heap(waiting_.begin(), waiting_.end(), easier);
  while (!waiting_.empty()) {
    if (steps_left_ <= 0) return false;
    std::pop_heap(waiting_.begin(), waiting_.end(), easier);
    const auto interval = static_cast<size_t>(waiting_.back());
    waiting_.pop_back();
    states_[interval].life = life_of(interval);
    find_meetings(interval);
    const Spot spot = cheapest_spot(interval);
    if (spot.offset < 0) return false;
    const bool is_hole = spot.cost == 0;
    if (!is_hole) ++states_[interval].failures;
    for (int32_t m : is_hole ? llvm::ArrayRef<int32_t>() : llvm::ArrayRef(meetings_)) {
      if (states_[m].offset >= spot.offset + intervals_[interval].bytes || top(m) <= spot.offset) continue;
      take_out(m);
      std::push_heap(waiting_.begin(), waiting_.end(), easier);
    }
    put(interval, spot.offset);
  }
  return true;
}

FlexiblePlacement FlexiblePlacer::placement() const {
  HoleTree tree(static_cast<int32_t>(placed_in_.size()) * stretch_steps);
  FlexiblePlacement placed;
  for (size_t i = 0; i < intervals_.size(); ++i) {
    const State& state = states_[i];
    tree.occupy(state.life.first, state.life.last, state.offset, top(i));
    placed.offsets.push_back(state.offset);
    placed.lives.push_back(state.life);
  }
  const auto lengthen = [&](std::vector<Life>& lives, Life FlexibleInterval::*longest) {
    for (size_t i = 0; i < intervals_.size(); ++i)
      lives[i] = lengthened(lives[i], intervals_[i].*longest, states_[i].offset, top(i), tree);
  };
  lengthen(placed.lives, &FlexibleInterval::wanted);
  placed.free_lives = placed.lives;
  lengthen(placed.free_lives, &FlexibleInterval::allowed);
  return placed;
}

void FlexiblePlacer::insist_on(size_t interval) {
  State& state = states_[interval];
  state.insists = true;
  state.failures = 0;
  if (state.offset >= 0) take_out(interval);
}

}  // namespace plimsoll
