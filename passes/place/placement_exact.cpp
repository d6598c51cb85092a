#include "passes/place/placement_problem.h"

#include "llvm/ADT/BitVector.h"
#include "llvm/Support/MathExtras.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <map>
#include <numeric>
#include <tuple>

// Canonical depth-first search after MiniMalloc (Moffitt, ASPLOS 2023). In a
// packing pushed down as far as it goes, every buffer stands at 0 or on another
// one, so buffers can be placed in order of rising offset, each directly on its
// highest placed neighbour; ties go by a rank. That visits each packing once.
// Where placed buffers split the rest in groups, each group is ranked anew. A branch dies when, in some section, the
// unplaced buffers cannot be stacked below the capacity even with everything else out of the way.

namespace plimsoll::placement {
namespace {

constexpr int64_t first_step_limit = 1 << 22;
constexpr int64_t effort_per_step = 3;  // a step here against one of the hole tree, measured

// A double has whole bytes up to 2^53, and two of them a maximum in one instruction.
typedef double Lanes __attribute__((vector_size(16)));
constexpr int32_t lanes = 2;

Lanes larger(Lanes a, Lanes b) { return a > b ? a : b; }

// Every height becomes what it was, or `floor` if that is more, and `bytes` more. Returns the largest.
double stack(llvm::MutableArrayRef<double> heights, double floor, double bytes) {
  const Lanes floors{floor, floor}, added{bytes, bytes};
  Lanes highest[2] = {};
  size_t s = 0;
  for (; s + 2 * lanes <= heights.size(); s += 2 * lanes) {
    Lanes some[2];
    std::memcpy(some, &heights[s], sizeof(some));
    for (int i = 0; i < 2; ++i) {
      some[i] = larger(some[i], floors) + added;
      highest[i] = larger(highest[i], some[i]);
    }
    std::memcpy(&heights[s], some, sizeof(some));
  }
  highest[0] = larger(highest[0], highest[1]);
  double top = std::max(highest[0][0], highest[0][1]);
  for (; s < heights.size(); ++s) top = std::max(top, heights[s] = std::max(heights[s], floor) + bytes);
  return top;
}

enum class Verdict { Found, Impossible, OutOfSteps };

struct RankRule {
  bool by_steps;      // width counted in schedule steps or in sections
  int precedence[3];  // among width, area, and the largest load of a section met; all falling
};

// The rule that solves most of MiniMalloc's suite for the least work comes first.
constexpr RankRule rank_rules[] = {
    {true, {2, 0, 1}}, {true, {1, 0, 2}}, {false, {2, 0, 1}}, {false, {1, 0, 2}}, {true, {0, 1, 2}}, {false, {0, 1, 2}},
};

class CanonicalSearch {
 public:
  explicit CanonicalSearch(const Piece& piece)
      : piece_(piece), rank_(piece.buffers.size()), stacked_(piece.sections), load_(piece.sections) {
    int32_t n = static_cast<int32_t>(piece.buffers.size());
    int64_t bytes = 0;
    for (const Buffer& b : piece.buffers) unit_ = std::gcd(unit_, b.bytes), bytes += b.bytes;
    rank_bits_ = llvm::Log2_64_Ceil(piece.buffers.size() + 1);
    assert((bytes / std::max<int64_t>(unit_, 1)) >> (64 - 2 * rank_bits_) == 0 && "offsets fit beside ranks");
    neighbours_.resize(n);
    for (int32_t a = 0; a < n; ++a)
      for (int32_t b = 0; b < n; ++b)
        if (a != b && piece.buffers[a].first <= piece.buffers[b].last &&
            piece.buffers[b].first <= piece.buffers[a].last)
          neighbours_[a].push_back(b);
  }

  // `rule` ranks the buffers: which of two at one offset goes first.
  Verdict run(int64_t capacity, const RankRule& rule, int64_t step_limit) {
    capacity_ = capacity;
    rule_ = &rule;
    step_limit_ = steps_ + step_limit;
    offset_.assign(piece_.buffers.size(), 0);
    placed_.assign(piece_.buffers.size(), 0);
    trail_.clear();
    conflict_.clear();
    conflict_.resize(piece_.buffers.size());
    Members all(piece_.buffers.size());
    std::iota(all.begin(), all.end(), 0);
    rank_anew(all);
    find_twins();
    std::sort(all.begin(), all.end(),
              [&](int32_t a, int32_t b) { return piece_.buffers[a].first < piece_.buffers[b].first; });
    if (solve(all, {0, -1})) return Verdict::Found;
    return steps_ >= step_limit_ ? Verdict::OutOfSteps : Verdict::Impossible;
  }

  llvm::ArrayRef<int64_t> offsets() const { return offset_; }
  int64_t steps() const { return steps_; }
  int64_t unit() const { return unit_; }  // every height of a pushed-down packing is a multiple

 private:
  using Members = std::vector<int32_t>;
  struct Raise {
    int32_t buffer;
    int64_t before;
  };
  // The buffer placed last; those placed later come after it in canonical order.
  struct Last {
    int64_t offset;
    int32_t rank;
  };

  // Members come sorted by first section. Groups that share no section are solved apart.
  bool solve(llvm::ArrayRef<int32_t> members, Last last) {
    size_t begin = 0;
    int32_t reach = -1;
    for (size_t i = 0; i < members.size(); ++i) {
      const Buffer& b = piece_.buffers[members[i]];
      if (b.first > reach && i > begin) {
        if (!solve_group(members.slice(begin, i - begin), last)) return false;
        begin = i;
      }
      reach = std::max(reach, b.last);
    }
    if (begin == 0) return members.empty() || solve_connected(members, last);
    return solve_group(members.drop_front(begin), last);
  }

  // One of several groups. Its ranks follow from its own loads, so the order of buffers at one offset starts afresh.
  bool solve_group(llvm::ArrayRef<int32_t> members, Last last) {
    std::vector<int32_t> before;
    for (int32_t m : members) before.push_back(rank_[m]);
    rank_anew(members);
    if (solve_connected(members, {last.offset, -1})) return true;
    for (size_t i = 0; i < members.size(); ++i) rank_[members[i]] = before[i];
    return false;
  }

  void rank_anew(llvm::ArrayRef<int32_t> members) {
    for (int32_t m : members)
      std::fill(load_.begin() + piece_.buffers[m].first, load_.begin() + piece_.buffers[m].last + 1, 0);
    for (int32_t m : members)
      for (int32_t s = piece_.buffers[m].first; s <= piece_.buffers[m].last; ++s) load_[s] += piece_.buffers[m].bytes;
    std::vector<std::pair<std::array<int64_t, 3>, int32_t>> order;
    for (int32_t m : members) {
      const Buffer& b = piece_.buffers[m];
      const int64_t sections = b.last - b.first + 1, width = rule_->by_steps ? b.steps : sections;
      const int64_t load = *std::max_element(load_.begin() + b.first, load_.begin() + b.last + 1);
      const int64_t features[] = {-width, -width * b.bytes, -load};
      const int* p = rule_->precedence;
      order.push_back({{features[p[0]], features[p[1]], features[p[2]]}, m});
      steps_ += 2 + sections / 4;
    }
    std::sort(order.begin(), order.end());
    for (size_t i = 0; i < order.size(); ++i) rank_[order[i].second] = static_cast<int32_t>(i);
  }

  bool solve_connected(llvm::ArrayRef<int32_t> members, Last last) {
    steps_ += 4 + 2 * static_cast<int64_t>(members.size());
    if (steps_ >= step_limit_) return false;
    const Members by_floor = sorted_by_floor(members);
    if (!fits_every_section(by_floor, last.offset)) return false;

    // A buffer that fits wholly below an offset comes before anything placed there.
    auto top = [&](int32_t b) { return offset_[b] + piece_.buffers[b].bytes; };
    int32_t lowest =
        *std::min_element(members.begin(), members.end(), [&](int32_t a, int32_t b) { return top(a) < top(b); });
    int64_t lowest_top = top(lowest);
    llvm::BitVector conflict(conflict_.size());
    conflict.set(lowest);

    Members rest(members.size() - 1);
    for (int32_t b : by_floor) {
      if (offset_[b] >= lowest_top) break;
      if (offset_[b] < last.offset || (offset_[b] == last.offset && rank_[b] < last.rank)) continue;
      if (waits_for_twin(b)) continue;
      std::copy_if(members.begin(), members.end(), rest.begin(), [&](int32_t m) { return m != b; });
      size_t mark = trail_.size();
      bool solved = place(b);
      size_t raised_end = trail_.size();
      solved = solved && solve(rest, {offset_[b], rank_[b]});
      if (solved) return true;
      if (steps_ >= step_limit_) return false;
      bool involved = false;
      for (size_t i = mark; i < raised_end && !involved; ++i) involved = conflict_.test(trail_[i].buffer);
      placed_[b] = 0;
      for (int32_t m : rest) placed_[m] = 0;
      undo(mark);
      conflict |= conflict_;
      // Without a part in the conflict, the conflict was there before `b` and outlives its alternatives.
      if (!involved) break;
      conflict.set(b);
    }
    conflict_ = conflict;
    return false;
  }

  Members sorted_by_floor(llvm::ArrayRef<int32_t> members) {
    floors_.clear();
    for (int32_t m : members)
      floors_.push_back((static_cast<uint64_t>(offset_[m] / unit_) << rank_bits_ | static_cast<uint64_t>(rank_[m]))
                            << rank_bits_ |
                        static_cast<uint64_t>(m));
    std::sort(floors_.begin(), floors_.end());
    Members sorted;
    sorted.reserve(members.size());
    const uint64_t buffers = (uint64_t{1} << rank_bits_) - 1;
    for (uint64_t floor : floors_) sorted.push_back(static_cast<int32_t>(floor & buffers));
    return sorted;
  }

  // Stacks the members of every section in order of their lowest offsets, which gives the least height they
  // need there: one machine with release times.
  bool fits_every_section(llvm::ArrayRef<int32_t> by_floor, int64_t lowest) {
    int32_t first = piece_.sections, last = -1;
    for (int32_t b : by_floor) {
      first = std::min(first, piece_.buffers[b].first);
      last = std::max(last, piece_.buffers[b].last);
    }
    const auto capacity = static_cast<double>(capacity_);
    std::fill(stacked_.begin() + first, stacked_.begin() + last + 1, static_cast<double>(lowest));
    for (int32_t b : by_floor) {
      const Buffer& buffer = piece_.buffers[b];
      const double highest =
          stack(llvm::MutableArrayRef<double>(stacked_).slice(buffer.first, buffer.last - buffer.first + 1),
                static_cast<double>(offset_[b]), static_cast<double>(buffer.bytes));
      steps_ += 2 + (buffer.last - buffer.first) / 4;
      if (highest <= capacity) continue;
      int32_t section = buffer.first;
      while (stacked_[section] <= capacity) ++section;
      explain_full_section(by_floor, section, lowest);
      return false;
    }
    return true;
  }

  // The conflict is what stands in the section without a hole below the capacity.
  void explain_full_section(llvm::ArrayRef<int32_t> by_floor, int32_t section, int64_t lowest) {
    int64_t top = lowest;
    conflict_.reset();
    for (int32_t b : by_floor) {
      const Buffer& buffer = piece_.buffers[b];
      if (section < buffer.first || section > buffer.last) continue;
      if (offset_[b] > top) conflict_.reset();
      conflict_.set(b);
      top = std::max(top, offset_[b]) + buffer.bytes;
      if (top > capacity_) return;
    }
  }

  // Puts the buffer at its lowest offset; false when a neighbour has no room left.
  bool place(int32_t buffer) {
    int64_t top = offset_[buffer] + piece_.buffers[buffer].bytes;
    placed_[buffer] = 1;
    steps_ += static_cast<int64_t>(neighbours_[buffer].size()) / 2;
    for (int32_t other : neighbours_[buffer]) {
      if (placed_[other] || offset_[other] >= top) continue;
      trail_.push_back({other, offset_[other]});
      offset_[other] = top;
      if (top + piece_.buffers[other].bytes <= capacity_) continue;
      conflict_.reset();
      conflict_.set(other);
      return false;
    }
    return true;
  }

  void undo(size_t mark) {
    for (; trail_.size() > mark; trail_.pop_back()) offset_[trail_.back().buffer] = trail_.back().before;
  }

  bool waits_for_twin(int32_t buffer) const { return twin_[buffer] >= 0 && !placed_[twin_[buffer]]; }

  void find_twins() {
    std::vector<int32_t> order(piece_.buffers.size());
    std::iota(order.begin(), order.end(), 0);
    auto key = [&](int32_t b) {
      const Buffer& buffer = piece_.buffers[b];
      return std::array<int64_t, 3>{buffer.bytes, buffer.first, buffer.last};
    };
    std::sort(order.begin(), order.end(),
              [&](int32_t a, int32_t b) { return key(a) != key(b) ? key(a) < key(b) : rank_[a] < rank_[b]; });
    twin_.assign(order.size(), -1);
    for (size_t i = 1; i < order.size(); ++i)
      if (key(order[i - 1]) == key(order[i])) twin_[order[i]] = order[i - 1];
  }

  const Piece& piece_;
  std::vector<std::vector<int32_t>> neighbours_;
  const RankRule* rule_ = nullptr;
  std::vector<int32_t> rank_;    // within a group that is solved apart
  std::vector<int32_t> twin_;    // the buffer of equal size and lifetime ranked just before, or -1
  std::vector<int64_t> offset_;  // lowest feasible while unplaced, chosen once placed
  std::vector<char> placed_;
  std::vector<Raise> trail_;
  llvm::BitVector conflict_;      // after a failure: buffers that cannot all be packed above their offsets
  std::vector<double> stacked_;   // scratch, by section
  std::vector<int64_t> load_;     // scratch, by section
  std::vector<uint64_t> floors_;  // scratch: offset in units, rank and buffer, from the highest bits down
  int64_t unit_ = 0;              // divides all sizes
  unsigned rank_bits_;            // of a rank, or a buffer
  int64_t capacity_ = 0;
  int64_t steps_ = 0;
  int64_t step_limit_ = 0;
};

}  // namespace

class ExactSearch::Trials {
 public:
  explicit Trials(const Piece& piece) : search_(piece) {}

  // Tries one capacity with every rule in turn.
  Verdict try_capacity(int64_t capacity, int64_t step_limit, Effort& effort) {
    for (const RankRule& rule : rank_rules) {
      const Outcome outcome = run(capacity, rule, std::min(step_limit, effort.left() / effort_per_step));
      effort.spend(effort_per_step * outcome.steps);
      if (outcome.verdict != Verdict::OutOfSteps) return outcome.verdict;
      if (effort.spent()) break;
    }
    return Verdict::OutOfSteps;
  }

  const CanonicalSearch& search() const { return search_; }

 private:
  struct Outcome {
    Verdict verdict;
    int64_t steps;
  };

  // The same again has the same outcome and costs the same effort, but for what was found, no time.
  Outcome run(int64_t capacity, const RankRule& rule, int64_t step_limit) {
    const std::tuple key(capacity, &rule - rank_rules, step_limit);
    if (const auto known = in_vain_.find(key); known != in_vain_.end()) return known->second;
    const int64_t before = search_.steps();
    const Verdict verdict = search_.run(capacity, rule, step_limit);
    const Outcome outcome{verdict, search_.steps() - before};
    if (verdict != Verdict::Found) in_vain_.emplace(key, outcome);
    return outcome;
  }

  CanonicalSearch search_;
  std::map<std::tuple<int64_t, ptrdiff_t, int64_t>, Outcome> in_vain_;  // by capacity, rule and limit of steps
};

ExactSearch::ExactSearch(const Piece& piece) : piece_(piece) {}
ExactSearch::~ExactSearch() = default;

void ExactSearch::lower(int64_t target, Effort& effort, Packing& best) {
  if (!trials_) trials_ = std::make_unique<Trials>(piece_);
  const CanonicalSearch& search = trials_->search();
  const int64_t unit = search.unit();
  int64_t proven = piece_.lower_bound;
  for (int64_t step_limit = first_step_limit; best.height > target && !effort.spent(); step_limit *= 4) {
    // Straight for the target first, then by halves between what was missed and what is held.
    int64_t missed = std::max(target, proven) - unit;
    int64_t close = step_limit == first_step_limit ? best.height / 512 : 0;
    for (int64_t capacity = missed + unit; capacity < best.height - close && !effort.spent();) {
      Verdict verdict = trials_->try_capacity(capacity, step_limit, effort);
      if (verdict == Verdict::Found) {
        best.offsets.assign(search.offsets().begin(), search.offsets().end());
        best.height = 0;
        for (size_t i = 0; i < piece_.buffers.size(); ++i)
          best.height = std::max(best.height, best.offsets[i] + piece_.buffers[i].bytes);
        best.method = "exact search";
      } else {
        missed = capacity;
        if (verdict == Verdict::Impossible) proven = std::max(proven, capacity + unit);
      }
      int64_t half = (best.height - missed) / 2 / unit * unit;
      capacity = missed + std::max(half, unit);
    }
    if (proven >= best.height) break;
  }
}

}  // namespace plimsoll::placement
