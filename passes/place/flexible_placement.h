#pragma once

// Placement of buffers whose lives may be shorter or longer at their ends, such as those that copies fill or empty
// beside computing: room and lives are found together.

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/STLFunctionalExtras.h"

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace plimsoll {

// Steps, inclusive.
struct Life {
  int32_t first = 0, last = 0;
};

// A buffer that is alive during `core` in any case. Each life contains the one before.
struct FlexibleInterval {
  int64_t bytes = 0;
  Life core;     // it has room for this or there is no layout
  Life wanted;   // it gets room for as much of this as there is
  Life allowed;  // and of this once all have what they want
};

struct FlexiblePlacement {
  std::vector<int64_t> offsets;  // one for each interval, in order
  std::vector<Life> lives;       // no longer than wanted
  std::vector<Life> free_lives;  // no longer than allowed: these do not share a byte either
};

// Offsets below a capacity. The same calls give the same answers on every machine.
class FlexiblePlacer {
 public:
  // Offsets are multiples of what the bytes of all intervals are multiples of. `clock_us` says by step when it begins;
  // where it is empty, all steps take as long.
  FlexiblePlacer(std::vector<FlexibleInterval> intervals, std::vector<double> clock_us, int64_t capacity_bytes);

  // Finds room for all, from where the last call ended; false where so many steps of work are not enough, see
  // ir/support/search_effort.h, or once it is given up.
  bool place(int64_t steps, llvm::function_ref<bool()> is_given_up = {});
  int64_t steps_left() const { return steps_left_; }  // of the last call
  // About the work of finding a place for each of them once, with something in the way of half of them.
  int64_t steps_to_place_each() const;
  int64_t offset(size_t interval) const { return states_[interval].offset; }
  // Parts of lives that are no cores are given up more easily from now on; false where nothing is easier.
  bool lower_price();
  size_t price() const { return price_; }  // rises by 1 where it is lowered
  // Or hardly at all.
  void raise_price();
  // Some intervals are harder to move from now on and others easier, by up to 15 %: the search goes another way.
  void vary(uint64_t seed);
  // Once all have room, what lives may be.
  FlexiblePlacement placement() const;
  // Its core is all that it wants from now on.
  void insist_on(size_t interval);
  // From now on all are below another capacity and want these lives. What was hard to place stays so.
  void press(int64_t capacity_bytes, llvm::ArrayRef<Life> wanted);
  void forget_failures();
  // All get the offsets of a layout in which no two share a byte while they live as wanted; those that it has above the
  // capacity wait to be placed.
  void start_from(llvm::ArrayRef<int64_t> offsets);

 private:
  // Within a cache line, which with its life is all that a search for a place reads of an interval in its way.
  struct alignas(64) State {
    double extent = 0;  // what it takes of space and time
    int64_t bytes = 0;
    double root_bytes = 0;      // the square root of the bytes
    int64_t offset = -1;        // -1: it waits to be placed
    Life least;                 // what it has room for in any case
    Life listed;                // in placed_in_: the life may be shorter since
    int failures = 0;           // how often it took out others
    bool is_at_bottom = false;  // and stays there
  };
  // Nothing that waits gets harder or easier to move before it is placed.
  struct Waiting {
    double hardness;
    int32_t interval;
  };
  struct Spot {
    int64_t offset;
    double cost;  // of what is in the way
  };
  // How something placed gives way: it is taken out, or lives get shorter.
  struct Removal {
    double cost;
    bool takes_out;
  };
  // An offset above the number of an interval, so that intervals by rising offset are numbers in order.
  using Key = uint64_t;
  // Of what is alive with the interval that is placed now, by rising offset, what all up to here cost.
  struct Border {
    int64_t offset;
    double cost;
  };
  class CostsBelow;
  class LongerLives;

  static constexpr int32_t stretch_steps = 16;

  int64_t top(size_t interval) const { return states_[interval].offset + states_[interval].bytes; }
  Key key(int64_t offset, size_t number) const { return (static_cast<Key>(offset) << number_bits_) + number; }
  int64_t offset_of(Key key) const { return static_cast<int64_t>(key >> number_bits_); }
  size_t number_of(Key key) const { return key & ((Key{1} << number_bits_) - 1); }
  void lay_at_bottom();
  void raise_bottom(llvm::ArrayRef<size_t> order);
  int64_t bottom(const Life& life) const;
  std::optional<double> shared_time(size_t a, size_t b) const;
  Removal removal(size_t placed, size_t interval) const;
  void bring_apart(size_t placed, size_t interval);
  llvm::ArrayRef<Key> sorted(llvm::MutableArrayRef<Key> keys);
  void find_meetings(size_t interval);
  int64_t lowest_hole(size_t interval) const;
  Spot cheapest_spot(size_t interval);
  Spot cheaper_end(size_t interval) const;
  Spot cheapest_in_the_way(size_t interval);
  bool clear(size_t interval, int64_t offset);
  Key take_place(size_t interval, int64_t offset);
  void put(size_t interval, int64_t offset);
  void put_above_all(size_t interval, int64_t offset);
  void lift(size_t interval);
  void take_out(size_t interval);
  void let_all_fall();
  double tries(size_t interval) const;
  double hardness(size_t interval) const;
  Waiting waiting(size_t interval) const { return {hardness(interval), static_cast<int32_t>(interval)}; }
  static bool is_easier(const Waiting& a, const Waiting& b);

  std::vector<FlexibleInterval> intervals_;
  std::vector<double> clock_;  // by step, in mean steps
  int64_t capacity_;
  int64_t steps_left_ = 0;
  size_t price_ = 1;
  std::vector<State> states_;
  std::vector<Life> lives_;                  // by interval; side by side, since most are looked at alone
  int number_bits_ = 0;                      // of a key
  std::vector<std::vector<Key>> placed_in_;  // by stretch of time, the intervals whose lives meet it, in order,
  std::vector<std::vector<Key>> begun_in_;   // and those whose lives begin there
  std::vector<int64_t> bottom_;              // by stretch of time, the top of what stays at the bottom
  std::vector<Waiting> waiting_;             // a heap, the hardest on top
  // Of the interval that is placed now.
  std::vector<int32_t> meetings_;
  std::vector<Key> met_first_, met_later_, tops_, counted_;
  std::vector<uint32_t> begins_of_;
  std::vector<Border> begins_, ends_;
};

}  // namespace plimsoll
