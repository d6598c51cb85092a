#include "passes/place/flexible_placement.h"

#include "ir/support/random.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

// Ejection search: what finds no hole takes the place of what is cheapest to move, and that looks for a hole in turn.
// What finds none again and again becomes dearer to move, as weights do in guided local search. Now and then all that
// is placed falls as low as it can, since what is taken out leaves holes below others that are too small for anything.
// Where only parts of lives meet that are not their cores, these are given up instead where that is cheaper: the price
// is for time, since a copy that is issued later is late by as much. In the end each life takes back what is free
// before and behind it.

namespace plimsoll {
namespace {

// Elementary steps of work for each buffer that is alive with the one that is placed: to find it, and to weigh whether
// it gives way.
constexpr int64_t steps_per_meeting = 16, steps_per_removal = 32;
// Small buffers with long lives lie at the bottom and stay there: in the middle of the arena each would part the holes
// of large ones for as long as it lives, and every search for a place would meet it. They are small where so many of
// them fill the capacity, and lie there until they take a share of it.
constexpr int64_t small_share = 2000, max_bottom_share = 16;
constexpr int32_t min_steps_at_bottom = 64;
// What a step of mean length is worth that a life gives up, where a buffer that is alive for one step is worth 1 to
// move. At a low price more is given up, and more layouts are found. With its tries a buffer gets harder to move by
// their square, and its life, which costs time, dearer by their number: most layouts are found so. At the highest
// price, with which no search begins, those that are found give up half as much time or less, and fewer are.
constexpr std::array life_prices = {30.0, 3.0, 0.5, 0.1};

// Number of failures of an interval after each of which it goes to the bottom or the capacity. Two large ones otherwise
// drive each other out of the middle for ever, where each leaves too little for the other on either side, while nothing
// asks what lies at the ends to move. Of 42 layouts of GPT-2, ViT-L and ConvNeXt near their floors, 30 million steps
// found 10 within 0.5 % of what is alive, and find 26.
constexpr int failures_per_end = 5;

// Minimum number of failures, of any intervals, before all fall; and as many as there were to fall the last time, since
// a fall of thousands takes as long as some thousand failures. Of 57 layouts of Swin, GPT-2 and ConvNeXt near their
// floors, 36 are found within 0.5 % of what is alive, and 16 without falls.
constexpr size_t failures_per_fall = 500;

// Minimum number of keys that are counted, by so many bits more than their number has: with an introsort alone,
// searches that find no layout take 1.4 times as long. Each key then moves this far on average at most, or an introsort
// goes on.
constexpr size_t min_keys_to_count = 24, max_moves = 8;
constexpr int more_bits_to_count = 1;

constexpr double variation = 0.15;  // of what an interval takes, where the search shall go another way

// What an interval takes of space and time. Space counts for a little more, as what is large finds fewer holes. Square
// roots are the same on every machine.
double extent_of(const FlexibleInterval& interval, int64_t capacity_bytes) {
  const auto bytes = static_cast<double>(interval.bytes);
  const double share = bytes / static_cast<double>(capacity_bytes);
  return std::sqrt(bytes * (interval.core.last - interval.core.first + 1)) * std::sqrt(std::sqrt(std::sqrt(share)));
}

}  // namespace

FlexiblePlacer::FlexiblePlacer(std::vector<FlexibleInterval> intervals, std::vector<double> clock_us,
                               int64_t capacity_bytes)
    : intervals_(std::move(intervals)),
      clock_(std::move(clock_us)),
      capacity_(capacity_bytes),
      states_(intervals_.size()),
      lives_(intervals_.size()),
      number_bits_(std::bit_width(intervals_.size())) {
  assert(capacity_ >> (63 - number_bits_) == 0 && "no key has room for an offset and a number");
  int32_t last = 0;
  for (size_t i = 0; i < intervals_.size(); ++i) {
    const auto& [bytes, core, wanted, allowed] = intervals_[i];
    states_[i].extent = extent_of(intervals_[i], capacity_);
    states_[i].bytes = bytes;
    states_[i].root_bytes = std::sqrt(static_cast<double>(bytes));
    states_[i].least = core;
    last = std::max(last, allowed.last);
  }
  placed_in_.resize(static_cast<size_t>(last / stretch_steps) + 1);
  begun_in_.resize(placed_in_.size());
  if (clock_.empty())
    for (int32_t step = 0; step <= last + 1; ++step) clock_.push_back(step);
  clock_.resize(std::max(clock_.size(), static_cast<size_t>(last) + 2), clock_.back());
  for (double per_step = static_cast<double>(clock_.size()) / std::max(clock_.back(), 1e-9); double& time : clock_)
    time *= per_step;
  const bool is_flexible = llvm::any_of(intervals_, [](const FlexibleInterval& i) {
    return i.wanted.first < i.core.first || i.core.last < i.wanted.last;
  });
  if (!is_flexible) price_ = life_prices.size() - 1;
  bottom_.assign(placed_in_.size(), 0);
  lay_at_bottom();
  for (size_t i = 0; i < intervals_.size(); ++i)
    if (!states_[i].is_at_bottom) waiting_.push_back(waiting(i));
}

// The longest lives first, each as low as it may lie. One that would leave much free below it does not lie there.
void FlexiblePlacer::lay_at_bottom() {
  std::vector<size_t> order;
  const auto steps = [&](size_t i) { return intervals_[i].core.last - intervals_[i].core.first + 1; };
  for (size_t i = 0; i < intervals_.size(); ++i) {
    const auto& [bytes, core, wanted, allowed] = intervals_[i];
    const bool gives_way = allowed.first < core.first || core.last < allowed.last;
    if (bytes <= capacity_ / small_share && steps(i) >= min_steps_at_bottom && !gives_way) order.push_back(i);
  }
  llvm::stable_sort(order, [&](size_t a, size_t b) { return steps(a) > steps(b); });
  std::vector<int64_t> live(placed_in_.size(), 0);  // by stretch, of what lies there
  for (size_t i : order) {
    const Life life = lives_[i] = intervals_[i].core;
    const int32_t first = life.first / stretch_steps, end = life.last / stretch_steps + 1;
    find_meetings(i);
    const int64_t offset = lowest_hole(i), gaps = offset - *std::min_element(live.begin() + first, live.begin() + end);
    if (offset + states_[i].bytes > capacity_ / max_bottom_share || gaps > capacity_ / small_share) continue;
    put(i, offset);
    states_[i].is_at_bottom = true;
    for (int32_t s = first; s < end; ++s) live[s] += states_[i].bytes;
  }
  for (std::vector<std::vector<Key>>* lists : {&placed_in_, &begun_in_})
    for (std::vector<Key>& keys : *lists) keys.clear();
  raise_bottom(order);
}

// Of what lies at the bottom, that is let go which leaves too little above it for the cores of all others.
void FlexiblePlacer::raise_bottom(llvm::ArrayRef<size_t> order) {
  std::vector<int64_t> others(placed_in_.size() * stretch_steps + 1, 0);  // live bytes by step
  for (size_t i = 0; i < intervals_.size(); ++i) {
    if (states_[i].is_at_bottom) continue;
    others[intervals_[i].core.first] += intervals_[i].bytes;
    others[intervals_[i].core.last + 1] -= intervals_[i].bytes;
  }
  std::partial_sum(others.begin(), others.end(), others.begin());
  std::vector<int64_t> most(placed_in_.size());  // by stretch
  const auto measure = [&](size_t first, size_t end) {
    for (size_t s = first; s < end; ++s)
      most[s] = *std::max_element(others.begin() + s * stretch_steps, others.begin() + (s + 1) * stretch_steps);
  };
  measure(0, most.size());
  bool let_go = true;
  while (std::exchange(let_go, false))
    for (size_t i : order) {
      State& state = states_[i];
      if (!state.is_at_bottom) continue;
      const Life& life = lives_[i];
      const int32_t first = life.first / stretch_steps, end = life.last / stretch_steps + 1;
      if (top(i) + *std::max_element(most.begin() + first, most.begin() + end) <= capacity_) continue;
      state.is_at_bottom = false;
      state.offset = -1;
      for (int32_t step = life.first; step <= life.last; ++step) others[step] += state.bytes;
      measure(first, end);
      let_go = true;
    }
  for (size_t i : order)
    if (states_[i].is_at_bottom)
      for (int32_t s = lives_[i].first / stretch_steps; s <= lives_[i].last / stretch_steps; ++s)
        bottom_[s] = std::max(bottom_[s], top(i));
}

// The top of what lies at the bottom during a life.
int64_t FlexiblePlacer::bottom(const Life& life) const {
  return *std::max_element(bottom_.begin() + life.first / stretch_steps,
                           bottom_.begin() + life.last / stretch_steps + 1);
}

int64_t FlexiblePlacer::steps_to_place_each() const {
  std::vector<int32_t> firsts, lasts;
  for (size_t i = 0; i < intervals_.size(); ++i) {
    if (states_[i].is_at_bottom) continue;
    firsts.push_back(intervals_[i].wanted.first);
    lasts.push_back(intervals_[i].wanted.last);
  }
  llvm::sort(firsts);
  llvm::sort(lasts);
  int64_t pairs = 0;  // that are alive together
  size_t ended = 0;
  for (size_t begun = 0; begun < firsts.size(); ++begun) {
    while (lasts[ended] < firsts[begun]) ++ended;
    pairs += static_cast<int64_t>(begun - ended);
  }
  return (steps_per_meeting + steps_per_removal) * pairs;
}

// How often an interval looked for a place and took out others, and the next time.
inline double FlexiblePlacer::tries(size_t interval) const { return 1 + states_[interval].failures; }

inline double FlexiblePlacer::hardness(size_t interval) const {
  return states_[interval].extent * tries(interval) * tries(interval);
}

// For how long two lives meet that need not, as far as they are no cores; none where the cores are in the way.
inline std::optional<double> FlexiblePlacer::shared_time(size_t a, size_t b) const {
  if (states_[b].least.last < states_[a].least.first) std::swap(a, b);
  if (states_[a].least.last >= states_[b].least.first) return std::nullopt;
  const int32_t first = lives_[b].first, last = lives_[a].last;
  return clock_[std::max(first, last + 1)] - clock_[first];
}

inline FlexiblePlacer::Removal FlexiblePlacer::removal(size_t placed, size_t interval) const {
  const double hard = hardness(placed);
  const std::optional<double> time = shared_time(placed, interval);
  if (!time) return {hard, true};
  const double root_bytes = std::min(states_[interval].root_bytes, states_[placed].root_bytes);
  const double cost = life_prices[price_] * root_bytes * *time * tries(placed);
  return cost < hard ? Removal{cost, false} : Removal{hard, true};
}

// Shortens two lives so that they no longer meet. The placed one gives up what it can, the other one the rest.
void FlexiblePlacer::bring_apart(size_t placed, size_t interval) {
  Life &life = lives_[placed], &other = lives_[interval];
  const Life& least = states_[placed].least;
  if (least.last < states_[interval].least.first) {
    life.last = std::min(life.last, std::max(least.last, other.first - 1));
    other.first = std::max(other.first, life.last + 1);
  } else {
    life.first = std::max(life.first, std::min(least.first, other.last + 1));
    other.last = std::min(other.last, life.first - 1);
  }
}

// Those that are placed and alive with the interval, by rising offset: what is alive in its first stretch is listed in
// order, and the others begin later. The work counts as if every stretch was searched.
void FlexiblePlacer::find_meetings(size_t interval) {
  const Life life = lives_[interval];
  const int32_t first = life.first / stretch_steps, last = life.last / stretch_steps;
  const Life* const lives = lives_.data();
  // Each key is written, and the next one over it where it does not count: a branch would be foreseen too seldom.
  const auto meet = [&](const std::vector<Key>& keys, std::vector<Key>& met, size_t count) {
    if (met.size() < count + keys.size()) met.resize(2 * (count + keys.size()));
    Key* end = met.data() + count;
    for (const Key key : keys) {
      const Life other = lives[number_of(key)];
      *end = key;
      end += static_cast<size_t>(other.first <= life.last) & static_cast<size_t>(life.first <= other.last);
    }
    return static_cast<size_t>(end - met.data());
  };
  const size_t firsts = meet(placed_in_[first], met_first_, 0);
  size_t laters = 0;
  for (int32_t s = first + 1; s <= last; ++s) laters = meet(begun_in_[s], met_later_, laters);
  for (int32_t s = first; s <= last; ++s) steps_left_ -= static_cast<int64_t>(placed_in_[s].size());
  const llvm::ArrayRef<Key> later = sorted(llvm::MutableArrayRef(met_later_).take_front(laters));
  meetings_.resize(firsts + laters);
  int32_t* meeting = meetings_.data();
  const auto add = [&](Key key) { *meeting++ = static_cast<int32_t>(number_of(key)); };
  const Key *f = met_first_.data(), *l = later.data();
  const Key *const f_end = f + firsts, *const l_end = l + laters;
  while (f != f_end && l != l_end) {
    const bool is_later = *l < *f;
    add(is_later ? *l : *f);
    l += is_later ? 1 : 0;
    f += is_later ? 0 : 1;
  }
  while (f != f_end) add(*f++);
  while (l != l_end) add(*l++);
  steps_left_ -= steps_per_meeting * static_cast<int64_t>(firsts + laters + 1);
}

// Counts numbers by their highest bits, which few share, so that hardly any is moved after that. The result may be in
// other memory.
llvm::ArrayRef<FlexiblePlacer::Key> FlexiblePlacer::sorted(llvm::MutableArrayRef<Key> keys) {
  const size_t count = keys.size();
  if (count < min_keys_to_count) {
    std::sort(keys.begin(), keys.end());  // llvm::sort of memory is a qsort
    return keys;
  }
  const int bits = static_cast<int>(std::bit_width(count)) + more_bits_to_count;
  const int shift = std::max(0, static_cast<int>(std::bit_width(key(capacity_, 0))) - bits);
  begins_of_.assign((size_t{1} << bits) + 1, 0);
  uint32_t* const begins = begins_of_.data();
  for (const Key each : keys) ++begins[(each >> shift) + 1];
  for (size_t i = 1; i < begins_of_.size(); ++i) begins[i] += begins[i - 1];
  counted_.resize(std::max(counted_.size(), count));
  Key* const counted = counted_.data();
  for (const Key each : keys) counted[begins[each >> shift]++] = each;
  size_t moves_left = max_moves * count;
  for (size_t end = 1; end < count; ++end) {
    const Key each = counted[end];
    if (counted[end - 1] < each) continue;
    size_t at = end;
    for (; at > 0 && each < counted[at - 1]; --at) counted[at] = counted[at - 1];
    counted[at] = each;
    if (end - at > moves_left) {
      std::sort(counted, counted + count);
      break;
    }
    moves_left -= end - at;
  }
  return {counted, count};
}

// Below all that is alive with the interval, between two of them, or above all.
int64_t FlexiblePlacer::lowest_hole(size_t interval) const {
  int64_t hole = bottom(lives_[interval]);
  for (int32_t m : meetings_) {
    if (states_[m].offset - hole >= states_[interval].bytes) break;
    hole = std::max(hole, top(m));
  }
  return hole;
}

// The lowest hole where there is one; else the place where what is in the way is easiest to move. It is at the bottom
// or the capacity, or touches another interval. After some failures it is one of the two ends, whatever lies there.
FlexiblePlacer::Spot FlexiblePlacer::cheapest_spot(size_t interval) {
  const int failures = states_[interval].failures;
  const bool takes_an_end = failures > 0 && failures % failures_per_end == 0;
  const int64_t hole = lowest_hole(interval);
  if (!takes_an_end && hole + states_[interval].bytes <= capacity_) return {hole, 0};
  steps_left_ -= steps_per_removal * static_cast<int64_t>(meetings_.size());
  return takes_an_end ? cheaper_end(interval) : cheapest_in_the_way(interval);
}

// The bottom or the capacity; none where no place between them is large enough.
FlexiblePlacer::Spot FlexiblePlacer::cheaper_end(size_t interval) const {
  const int64_t bytes = states_[interval].bytes;
  Spot low{bottom(lives_[interval]), 0}, high{capacity_ - bytes, 0};
  for (int32_t m : meetings_)
    for (Spot* spot : {&low, &high})
      if (states_[m].offset < spot->offset + bytes && spot->offset < top(m)) spot->cost += removal(m, interval).cost;
  if (high.offset < low.offset) return {-1, std::numeric_limits<double>::infinity()};
  return low.cost <= high.cost ? low : high;
}

// Sums of costs by rising offset.
class FlexiblePlacer::CostsBelow {
 public:
  explicit CostsBelow(llvm::ArrayRef<Border> borders) : borders_(borders) {}

  // Of the borders below an offset, which is no lower than the one asked for before.
  double at(int64_t offset) {
    for (; next_ < borders_.size() && borders_[next_].offset < offset; ++next_) sum_ = borders_[next_].cost;
    return sum_;
  }

 private:
  llvm::ArrayRef<Border> borders_;
  size_t next_ = 0;
  double sum_ = 0;
};

// In the way of a place is what begins below its top, without what ends at or below it. A place that touches nothing
// below it has no less in its way than the one that is reached by lowering it until it does.
FlexiblePlacer::Spot FlexiblePlacer::cheapest_in_the_way(size_t interval) {
  const int64_t bytes = states_[interval].bytes, lowest = bottom(lives_[interval]);
  const size_t count = meetings_.size();
  begins_.resize(count);
  ends_.resize(count);
  tops_.resize(count);
  for (size_t k = 0; k < count; ++k) {
    const auto m = static_cast<size_t>(meetings_[k]);
    begins_[k] = {states_[m].offset, removal(m, interval).cost};
    tops_[k] = key(top(m), k);
  }
  const llvm::ArrayRef<Key> tops = sorted(tops_);
  for (size_t e = 0; e < count; ++e) ends_[e] = {offset_of(tops[e]), begins_[number_of(tops[e])].cost};
  for (std::vector<Border>* borders : {&begins_, &ends_})
    for (size_t k = 1; k < count; ++k) (*borders)[k].cost += (*borders)[k - 1].cost;
  CostsBelow begun(begins_), ended(ends_);
  Spot best{-1, std::numeric_limits<double>::infinity()};
  const auto offer = [&](int64_t offset) {
    if (offset < lowest || offset + bytes > capacity_) return;
    const double cost = begun.at(offset + bytes) - ended.at(offset + 1);
    if (cost < best.cost) best = {offset, cost};
  };
  offer(lowest);
  for (const Border& end : ends_) offer(end.offset);
  return best;
}

// Notes the place, but for the lists of stretches, whose key it returns.
FlexiblePlacer::Key FlexiblePlacer::take_place(size_t interval, int64_t offset) {
  State& state = states_[interval];
  state.offset = offset;
  state.listed = lives_[interval];
  const Key own = key(offset, interval);
  begun_in_[state.listed.first / stretch_steps].push_back(own);
  return own;
}

void FlexiblePlacer::put(size_t interval, int64_t offset) {
  const Key own = take_place(interval, offset);
  const Life& life = lives_[interval];
  for (int32_t s = life.first / stretch_steps; s <= life.last / stretch_steps; ++s)
    placed_in_[s].insert(llvm::lower_bound(placed_in_[s], own), own);
  steps_left_ -= (life.last - life.first) / stretch_steps;
}

// The same where nothing is placed that lies higher.
void FlexiblePlacer::put_above_all(size_t interval, int64_t offset) {
  const Key own = take_place(interval, offset);
  const Life& life = lives_[interval];
  for (int32_t s = life.first / stretch_steps; s <= life.last / stretch_steps; ++s) placed_in_[s].push_back(own);
}

void FlexiblePlacer::lift(size_t interval) {
  State& state = states_[interval];
  const Key own = key(std::exchange(state.offset, -1), interval);
  for (int32_t s = state.listed.first / stretch_steps; s <= state.listed.last / stretch_steps; ++s) {
    std::vector<Key>& placed = placed_in_[s];
    placed.erase(llvm::lower_bound(placed, own));
    steps_left_ -= static_cast<int64_t>(placed.size()) / 8;
  }
  std::vector<Key>& begun = begun_in_[state.listed.first / stretch_steps];
  begun.erase(llvm::find(begun, own));
}

void FlexiblePlacer::take_out(size_t interval) {
  lift(interval);
  waiting_.push_back(waiting(interval));
}

// The lowest first, each to the lowest hole that is no higher than it is.
void FlexiblePlacer::let_all_fall() {
  std::vector<Key> rising;
  for (size_t i = 0; i < states_.size(); ++i)
    if (states_[i].offset >= 0 && !states_[i].is_at_bottom) rising.push_back(key(states_[i].offset, i));
  llvm::sort(rising);
  for (const Key each : rising) {
    const size_t interval = number_of(each);
    lift(interval);
    find_meetings(interval);
    put(interval, std::min(lowest_hole(interval), offset_of(each)));
  }
}

bool FlexiblePlacer::is_easier(const Waiting& a, const Waiting& b) {
  return a.hardness != b.hardness ? a.hardness < b.hardness : a.interval > b.interval;
}

// Takes out or shortens what is in the way of the interval at the offset. Returns whether it took anything out.
bool FlexiblePlacer::clear(size_t interval, int64_t offset) {
  const Life& life = lives_[interval];
  bool took_out = false;
  for (int32_t m : meetings_) {
    if (states_[m].offset >= offset + states_[interval].bytes) break;
    if (top(m) <= offset) continue;
    if (lives_[m].last < life.first || life.last < lives_[m].first) continue;
    if (!removal(m, interval).takes_out) {
      bring_apart(m, interval);
      continue;
    }
    take_out(m);
    std::push_heap(waiting_.begin(), waiting_.end(), is_easier);
    took_out = true;
  }
  return took_out;
}

void FlexiblePlacer::raise_price() { price_ = 0; }

bool FlexiblePlacer::lower_price() {
  if (price_ + 1 == life_prices.size()) return false;
  ++price_;
  return true;
}

void FlexiblePlacer::vary(uint64_t seed) {
  Random random(seed);
  for (State& state : states_) state.extent *= 1 + variation * (2 * random.unit() - 1);
}

bool FlexiblePlacer::place(int64_t steps, llvm::function_ref<bool()> is_given_up) {
  steps_left_ = steps;
  for (Waiting& each : waiting_) each = waiting(static_cast<size_t>(each.interval));
  std::make_heap(waiting_.begin(), waiting_.end(), is_easier);
  size_t failures = 0, failures_to_fall = failures_per_fall;
  while (!waiting_.empty()) {
    if (steps_left_ <= 0 || (is_given_up && is_given_up())) return false;
    const auto interval = static_cast<size_t>(waiting_.front().interval);
    lives_[interval] = intervals_[interval].wanted;
    find_meetings(interval);
    const Spot spot = cheapest_spot(interval);
    if (spot.offset < 0) return false;
    std::pop_heap(waiting_.begin(), waiting_.end(), is_easier);
    waiting_.pop_back();
    const bool has_failed = clear(interval, spot.offset);
    put(interval, spot.offset);
    if (!has_failed) continue;
    ++states_[interval].failures;
    if (++failures < failures_to_fall) continue;
    failures_to_fall = std::max(failures_per_fall, intervals_.size() - waiting_.size());
    failures = 0;
    let_all_fall();
  }
  return true;
}

void FlexiblePlacer::insist_on(size_t interval) {
  State& state = states_[interval];
  if (state.is_at_bottom) return;
  state.least = intervals_[interval].wanted;
  state.failures = 0;
  if (state.offset >= 0) take_out(interval);
}

void FlexiblePlacer::forget_failures() {
  for (State& state : states_) state.failures = 0;
}

void FlexiblePlacer::start_from(llvm::ArrayRef<int64_t> offsets) {
  for (std::vector<std::vector<Key>>* lists : {&placed_in_, &begun_in_})
    for (std::vector<Key>& keys : *lists) keys.clear();
  std::fill(bottom_.begin(), bottom_.end(), 0);
  waiting_.clear();
  std::vector<Key> rising;
  for (size_t i = 0; i < intervals_.size(); ++i) {
    State& state = states_[i];
    state.is_at_bottom = false;
    state.offset = -1;
    lives_[i] = intervals_[i].wanted;
    if (offsets[i] + state.bytes <= capacity_)
      rising.push_back(key(offsets[i], i));
    else
      waiting_.push_back(waiting(i));
  }
  llvm::sort(rising);
  for (const Key each : rising) put_above_all(number_of(each), offset_of(each));
}

void FlexiblePlacer::press(int64_t capacity_bytes, llvm::ArrayRef<Life> wanted) {
  capacity_ = capacity_bytes;
  for (size_t i = 0; i < intervals_.size(); ++i) {
    State& state = states_[i];
    intervals_[i].wanted = wanted[i];
    state.least = intervals_[i].core;
    if (state.offset < 0 || state.is_at_bottom) continue;
    lives_[i] = {std::max(lives_[i].first, wanted[i].first), std::min(lives_[i].last, wanted[i].last)};
    if (top(i) > capacity_) take_out(i);
  }
}

}  // namespace plimsoll
