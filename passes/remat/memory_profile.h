#pragma once

// Live bytes along a schedule that grows and shrinks. Adding bytes to a stretch and asking for the maximum take
// logarithmic time each, and so does what stands above a limit for every stretch that is above it as a whole.

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/STLFunctionalExtras.h"
#include "llvm/ADT/SmallVector.h"

#include <cstdint>
#include <limits>
#include <vector>

namespace plimsoll::remat {

// A point of the schedule. Position s has the base op s and the remats right before it, which are ordered by op: a
// remat of op o is {s, o} with o < s, and the base op itself is {s, s}. Copies right behind the base op have larger
// ids.
class ProgramPoint {
 public:
  ProgramPoint() = default;
  constexpr ProgramPoint(int32_t position, int32_t op)
      : key_((int64_t{position} << 32) + int64_t{op} - std::numeric_limits<int32_t>::min()) {}
  constexpr int32_t position() const { return static_cast<int32_t>(key_ >> 32); }
  constexpr int32_t op() const {
    return static_cast<int32_t>((key_ & 0xFFFFFFFF) + std::numeric_limits<int32_t>::min());
  }
  ProgramPoint next() const { return {position(), op() + 1}; }
  ProgramPoint previous() const { return {position(), op() - 1}; }
  friend auto operator<=>(const ProgramPoint&, const ProgramPoint&) = default;

 private:
  // The position above the op, both in one number: two would be joined in memory whenever a point is returned, which
  // took a third of the time to look up where a value is made.
  int64_t key_ = 0;
};

class MemoryProfile {
 public:
  explicit MemoryProfile(int32_t positions);

  bool has(ProgramPoint at) const;
  ProgramPoint before(ProgramPoint at) const;  // the latest point before `at`, which must exist
  void insert(ProgramPoint at, int64_t live);
  void erase(ProgramPoint at);
  int64_t live(ProgramPoint at) const;
  // Adds to every point from first to last; to none when first > last.
  void add(ProgramPoint first, ProgramPoint last, int64_t bytes);

  int64_t peak() const;
  ProgramPoint peak_point() const;  // the first at the peak
  // The sum over all points of their bytes above the limit.
  int64_t excess(int64_t limit) const;
  // Gives the points above the limit in order, until `take` returns false.
  void each_above(int64_t limit, llvm::function_ref<bool(ProgramPoint, int64_t live)> take) const;
  int64_t steps() const { return steps_; }                    // elementary steps so far
  int64_t steps_of_point() const { return depth_; }           // of adding to one point alone
  void count_steps(int64_t steps) const { steps_ += steps; }  // adds the steps of work done outside of the profile

 private:
  struct Event {
    int32_t op;
    int64_t live;  // without what the nodes between the leaf and the root add
  };

  // What is known of a stretch. Its own `add` is counted in, those of the nodes above are not.
  struct Node {
    int64_t max, min, sum, add;
    int64_t points;

    void raise(int64_t bytes) {
      max += bytes, min += bytes, add += bytes;
      sum += points * bytes;
    }
  };

  size_t leaf(int32_t position) const { return size_ + static_cast<size_t>(position); }
  int64_t added_above(size_t node) const;  // the sum over the node and its ancestors
  bool add_within(int32_t position, int32_t first_op, int32_t last_op, int64_t bytes);
  int64_t steps_between(size_t before, size_t after) const;
  void refresh_leaf(int32_t position) const;
  void refresh(size_t node) const;
  void mark_stale(size_t node);
  void settle(size_t node) const;  // `node` and all below it
  int64_t excess_below(size_t node, int64_t limit) const;
  bool each_below(size_t node, int64_t limit, int64_t added,
                  llvm::function_ref<bool(ProgramPoint, int64_t)> take) const;

  size_t size_ = 1;
  int64_t depth_ = 0;                // of the tree
  mutable std::vector<Node> nodes_;  // of one that is stale, only `add` is up to date
  mutable std::vector<char> is_stale_;
  std::vector<llvm::SmallVector<Event, 1>> events_;  // by position, by op
  mutable int64_t steps_ = 0;
};

}  // namespace plimsoll::remat
