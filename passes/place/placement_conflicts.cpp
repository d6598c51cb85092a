#include "passes/place/placement_problem.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/MathExtras.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

// Guided local search (Voudouris & Tsang 1999), as it packs shapes into a strip of fixed width (Umetani et al. 2009):
// buffers stand below a capacity whatever they collide with, and one after another of those that collide moves to where
// it shares the fewest bytes with others. Where none can move to its advantage, pairs that still collide weigh more.
// Buffers of less than 1/2000 of the capacity are left out and go into what holes there are in the end.

namespace plimsoll::placement {
namespace {

constexpr int64_t small_share = 2000;
constexpr int64_t max_pairs = 4'000'000;  // of buffers that are alive together: 64 MiB
constexpr double rounding = 1e-3;
constexpr int attempts = 6;     // capacities, each with as much of the effort
constexpr int index_bits = 24;  // of a bend's place in its list, below where it is

class ConflictSearch {
 public:
  // Starts from a packing. The buffers that are not small for the capacity, and the pairs of them that are alive
  // together.
  ConflictSearch(const Piece& piece, const Packing& start, int64_t capacity) : piece_(piece) {
    for (const Buffer& b : piece.buffers) unit_ = std::gcd(unit_, b.bytes);
    for (const Buffer& b : piece.buffers) size_.push_back(b.bytes / unit_);
    for (int64_t offset : start.offsets) offsets_.push_back(offset / unit_);
    for (size_t i = 0; i < piece.buffers.size(); ++i)
      if (piece.buffers[i].bytes > capacity / small_share) members_.push_back(static_cast<int32_t>(i));
    std::stable_sort(members_.begin(), members_.end(),
                     [&](int32_t a, int32_t b) { return piece.buffers[a].first < piece.buffers[b].first; });
    meets_.resize(piece.buffers.size());
    for (size_t i = 0; i < members_.size(); ++i)
      for (size_t j = i + 1; j < members_.size() && piece.buffers[members_[j]].first <= buffer(i).last; ++j) {
        meets_[members_[i]].push_back({members_[j], pairs_});
        meets_[members_[j]].push_back({members_[i], pairs_});
        if (++pairs_ > max_pairs) return;
      }
  }

  bool is_too_large(int64_t capacity) const {
    return pairs_ > max_pairs || capacity / unit_ >= int64_t{1} << (63 - index_bits);
  }

  // Looks for offsets within the capacity, from where the last run ended. False where two buffers still collide when
  // the steps are used up.
  bool run(int64_t capacity, int64_t steps, Effort& effort) {
    capacity_ = capacity / unit_;
    weights_.assign(static_cast<size_t>(pairs_), 1.0F);
    for (int32_t m : members_) offsets_[m] = std::min(offsets_[m], capacity_ - size_[m]);
    find_colliding();
    const int64_t least_left = effort.left() - std::min(steps, effort.left());
    while (!colliding_.empty() && effort.left() > least_left)
      if (!move_all(effort, least_left)) weigh_collisions();
    return colliding_.empty();
  }

  // -1 for buffers that are left out.
  std::vector<int64_t> offsets() const {
    std::vector<int64_t> result(offsets_.size(), -1);
    for (int32_t m : members_) result[m] = offsets_[m] * unit_;
    return result;
  }

 private:
  struct Meeting {
    int32_t other;
    int64_t pair;
  };
  const Buffer& buffer(size_t member) const { return piece_.buffers[members_[member]]; }

  int64_t shared(int32_t a, int64_t at, int32_t b) const {
    const int64_t low = std::max(at, offsets_[b]), high = std::min(at + size_[a], offsets_[b] + size_[b]);
    return std::max<int64_t>(high - low, 0);
  }

  bool collides(int32_t a) const {
    return std::any_of(meets_[a].begin(), meets_[a].end(),
                       [&](const Meeting& m) { return shared(a, offsets_[a], m.other) > 0; });
  }

  void find_colliding() {
    colliding_.clear();
    is_colliding_.assign(offsets_.size(), 0);
    for (int32_t m : members_) note(m);
  }

  void note(int32_t a) {
    const bool now = collides(a);
    if (now && !is_colliding_[a]) colliding_.push_back(a);
    is_colliding_[a] = now;
  }

  // Moves every buffer that collides now; false if none had a better place.
  bool move_all(Effort& effort, int64_t least_left) {
    std::vector<int32_t> turn;
    for (int32_t a : colliding_)
      if (is_colliding_[a]) turn.push_back(a);
    colliding_ = turn;
    std::shuffle(turn.begin(), turn.end(), random_);
    bool moved = false;
    for (int32_t a : turn) {
      if (!is_colliding_[a]) continue;
      moved |= move(a, effort);
      if (effort.left() <= least_left) break;
    }
    llvm::erase_if(colliding_, [&](int32_t a) { return !is_colliding_[a]; });
    return moved;
  }

  bool move(int32_t a, Effort& effort) {
    double cost = 0;
    std::vector<int32_t> freed;
    for (const Meeting& m : meets_[a])
      if (const int64_t bytes = shared(a, offsets_[a], m.other); bytes > 0) {
        cost += weights_[m.pair] * static_cast<double>(bytes);
        freed.push_back(m.other);
      }
    const auto [best, at] = cheapest_place(a, effort);
    if (best > cost - rounding) return false;
    offsets_[a] = at;
    note(a);
    for (int32_t other : freed) note(other);
    for (const Meeting& m : meets_[a])
      if (!is_colliding_[m.other] && shared(a, at, m.other) > 0) note(m.other);
    return true;
  }

  // What a buffer shares with another rises while it comes nearer, stays while one is within the other, and falls
  // again; so the weighted sum bends at four places for each other, and is least at one of them.
  std::pair<double, int64_t> cheapest_place(int32_t a, Effort& effort) {
    const int64_t size = size_[a], top = capacity_ - size;
    double cost = 0, slope = 0;
    bends_.clear();
    changes_.clear();
    for (const Meeting& m : meets_[a]) {
      const int64_t low = offsets_[m.other], other = size_[m.other];
      const float weight = weights_[m.pair];
      const int64_t inside = std::min(low, low + other - size), outside = std::max(low, low + other - size);
      cost += weight * static_cast<double>(shared(a, 0, m.other));
      const auto bend = [&](int64_t at, float change) {
        if (at <= 0) {
          slope += change;
        } else if (at < top) {
          bends_.push_back(static_cast<uint64_t>(at) << index_bits | changes_.size());
          changes_.push_back(change);
        }
      };
      bend(low - size, weight);
      bend(inside, -weight);
      bend(outside, -weight);
      bend(low + other, weight);
    }
    llvm::sort(bends_);
    // About its time against an elementary step of the hole tree, measured.
    effort.spend(2 * static_cast<int64_t>(bends_.size() + 1) *
                 static_cast<int64_t>(llvm::Log2_64_Ceil(bends_.size() + 2)));
    std::pair<double, int64_t> best{cost, 0};
    int64_t at = 0;
    unsigned equal = 1;
    const auto offer = [&](int64_t place) {
      cost += slope * static_cast<double>(place - at);
      at = place;
      if (cost < best.first - rounding)
        equal = 1, best = {cost, place};
      else if (cost < best.first + rounding && random_() % ++equal == 0)  // of equal places one is drawn
        best.second = place;
    };
    for (uint64_t bend : bends_) {
      if (const auto place = static_cast<int64_t>(bend >> index_bits); place != at) offer(place);
      slope += changes_[bend & ((uint64_t{1} << index_bits) - 1)];
    }
    offer(top);
    return best;
  }

  void weigh_collisions() {
    for (int32_t a : colliding_)
      for (const Meeting& m : meets_[a])
        if (m.other > a && shared(a, offsets_[a], m.other) > 0) weights_[m.pair] += 1;
  }

  const Piece& piece_;
  std::vector<int32_t> members_;             // by first section
  std::vector<std::vector<Meeting>> meets_;  // by buffer
  int64_t pairs_ = 0;
  // In units, the largest that divides all sizes.
  int64_t unit_ = 0, capacity_ = 0;
  std::vector<int64_t> size_, offsets_;
  std::vector<float> weights_;      // by pair
  std::vector<int32_t> colliding_;  // those of `is_colliding_`, and some that no longer are
  std::vector<char> is_colliding_;
  std::vector<uint64_t> bends_;  // of one cheapest_place: where, and which of changes_
  std::vector<float> changes_;   // of the slope
  std::mt19937 random_{1};
};

}  // namespace

void search_by_conflicts(const Piece& piece, int64_t target, Effort& effort, Packing& best) {
  ConflictSearch search(piece, best, target);
  if (search.is_too_large(best.height)) return;
  const int64_t steps = effort.left() / attempts;
  int64_t missed = target - 1;
  for (int attempt = 0; attempt < attempts && best.height > target && best.height - missed > 1; ++attempt) {
    const int64_t capacity = missed + (best.height - missed) / 2;
    Packing trial;
    if (!search.run(capacity, steps, effort) || !fill_holes(piece, search.offsets(), capacity, effort, trial)) {
      missed = capacity;
      continue;
    }
    trial.method = "guided local search";
    best = std::move(trial);
  }
}

}  // namespace plimsoll::placement
