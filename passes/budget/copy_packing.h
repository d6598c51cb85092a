#pragma once

// Searches for layouts of one function whose copies give way to them: from scratch, from several starts, or by pressing
// a layout together below a lower capacity.

#include "passes/budget/pack_copies.h"

#include <optional>
#include <vector>

namespace plimsoll {

// Shares of the live peak that a layout may take above it: a tight one, one that wastes little, and the next where
// none before it is found.
inline constexpr double tight_share = 0.005, near_share = 0.0095, next_share = 0.025;

class CopyPacking {
 public:
  struct Found {
    FlexiblePlacer placer;
    int64_t height_bytes;
    FlexiblePlacement layout;
    remat::CopyIntervals intervals;
    int64_t steps_left = 0;

    double total_us() const { return intervals.total_us(); }
  };
  // What outlives the function that the layout was found for.
  struct Kept {
    FlexiblePlacer placer;
    int64_t height_bytes;
    FlexiblePlacement layout;
    std::vector<CopyInterval> intervals;
    int64_t steps_left;
  };
  static constexpr size_t any_price = 0, lowest_price = std::numeric_limits<size_t>::max();
  // Elementary steps of each start, and the number of starts where a layout no longer wastes much.
  struct WorkLower {
    int64_t steps;
    int starts;
  };

  // Nothing that is found takes less time than `wide`, and copies want its intervals. What was given outlives this.
  CopyPacking(const FunctionWithCopies& function, const Overlap& wide, const PlacementOptions& options);

  int64_t steps() const { return steps_; }  // elementary steps of work for each way to a low layout
  bool is_long() const;
  int64_t peak_bytes() const { return peak_bytes_; }  // that are alive while copies have what they want
  int64_t bytes_above_peak(double share) const;       // no less than the peak unless the share is below 0

  // Without higher prices of lives than the first, see FlexiblePlacer::price.
  std::optional<Found> from_scratch(int64_t capacity_bytes, size_t first_price) const;
  std::optional<Found> by_some_starts(int64_t capacity_bytes) const;
  std::optional<Found> anew(int64_t capacity_bytes) const;
  std::optional<Found> pressed(const Found& high, int64_t capacity_bytes) const;
  std::optional<Found> lowered(const Found& high, int64_t least_bytes, double enough_us, const WorkLower& work,
                               int64_t& left) const;
  Found reopened(const PackedCopies& layout) const;
  static Kept kept(Found found);
  Found found_again(const Kept& kept) const;  // of the same function, with the same intervals
  PackedCopies packed(const Found& found) const;

 private:
  int64_t bytes_above(int64_t bytes, double share) const;
  int64_t work(double share) const;
  std::optional<Found> found(FlexiblePlacer placer, int64_t steps, int64_t steps_of_more_rounds, double enough_us,
                             llvm::ArrayRef<CopyInterval> wanted, llvm::function_ref<bool()> is_given_up = {}) const;
  std::vector<size_t> keep_if_faster(const FlexiblePlacer& placer, double enough_us,
                                     llvm::ArrayRef<CopyInterval> wanted, std::optional<Found>& best) const;
  std::optional<Found> pressed_together(const Found& high, int64_t capacity_bytes, double enough_us,
                                        const WorkLower& work, int64_t& left) const;
  PackedCopies packed(const FlexiblePlacement& layout, const remat::CopyIntervals& intervals) const;

  const CopyLives lives_;
  const Overlap& wide_;
  const int64_t alignment_;
  const std::vector<CopyInterval> wanted_;
  const std::vector<Life> wanted_lives_;
  const int64_t peak_bytes_;
  int64_t steps_;
};

}  // namespace plimsoll
