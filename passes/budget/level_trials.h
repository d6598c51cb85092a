#pragma once

// What is known of the plans of one offload level: by function, its orders, the remats and copies that were found for
// each, and the layouts of those that were tried.

#include "passes/budget/pack_copies.h"
#include "passes/budget/searched_groups.h"
#include "passes/budget/translate_remats.h"
#include "passes/offload/overlap.h"
#include "passes/remat/remat_problem.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

namespace plimsoll {

// Transient bytes of one function, with what its repeated collectives take of NCCL, as far as they are known; -1
// where not.
struct TrialLayout {
  int64_t live_bytes = -1;  // at the peak; no layout is lower
  int64_t height_bytes = -1;
  int64_t brief_bytes = -1;    // height of a brief search, which is compared with others alone
  bool is_searched = false;    // the height is that of the final plan, and not of greedy orders alone
  int64_t repeated_bytes = 0;  // that its repeated collectives take
  int64_t windows_bytes = 0;   // of the height: outside the arena
  int64_t host_bytes = -1;     // height on the host
  std::optional<BufferPlacement> placement = std::nullopt;  // of a height that is searched
  // In pages: by little work, and by all that a layout may get, once it is looked for.
  std::optional<BufferPlacement> quick = std::nullopt, hard = std::nullopt;

  int64_t compared_bytes() const {
    return brief_bytes < 0 || is_searched ? height_bytes : std::min(height_bytes, brief_bytes);
  }
};

// An overlap whose intervals gave way to the layout.
struct PackedOverlap {
  PackedCopies copies;
  TrialLayout layout;
  bool was_pressed = false;                          // hard: to another layout, or in vain, or it came of that
  std::shared_ptr<PackedOverlap> pressed = nullptr;  // what becomes of a layout that is a plan's
};

struct PackedTry {
  bool was_made = false, has_starts = false, has_steps = false;
  std::optional<PackedOverlap> tight;  // from one start alone until it has some
  KnownLayouts known = {};
  std::vector<PackedOverlap> steps;  // down to the tight one, each lower and slower than the one before
};

struct RematCandidate {
  RematPlan plan;
  double min_us;                       // whenever its copies are made; without copies, what it takes
  bool is_close = true;                // no simple bound is higher
  std::vector<Overlap> overlaps;       // their levels, once they are wanted,
  double too_long_us = 0;              // as far as these may take less than this
  std::vector<TrialLayout> layouts;    // by overlap; where there are none, one
  std::vector<PackedTry> packed = {};  // by overlap
};

// Plans of one kind for a long order, searched group by group.
struct GroupedPlans {
  std::shared_ptr<SearchedGroups> groups;
  std::vector<bool> is_taken;                           // by group: its plans are among the levels
  std::shared_ptr<const PeakBound> bound_us = nullptr;  // of what its plans add, made when first wanted
};

struct OrderVariant {
  Graph graph;
  std::vector<NodeId> writers;
  GraphRematProblem sequence;
  double min_us;  // of any plan
  // First the order as it is alone; once searched, with copies of values and without.
  std::vector<std::vector<RematCandidate>> levels;
  int64_t host_room;  // for values
  std::vector<GroupedPlans> grouped = {};
  std::shared_ptr<const RematTranslation> from_source = nullptr;  // of plans of the source's order, where it has one
};

// A plan for one function that may be tried.
struct Trial {
  const OrderVariant* order;
  RematCandidate* candidate;
  double us;  // at least; once its copies are placed, or where there are none, what it takes
  const Overlap* overlap = nullptr;
  bool is_close = false;            // of a bound: nothing shows it to be higher
  PackedOverlap* packed = nullptr;  // then `overlap` is its
  size_t kind = 0, group = 0;       // without a candidate: plans that are not searched yet, of `order.grouped`

  TrialLayout& layout() const {
    if (packed) return packed->layout;
    return candidate->layouts[overlap ? overlap - candidate->overlaps.data() : 0];
  }
};

struct FunctionSearch {
  std::vector<OrderVariant> orders;
  std::vector<Trial> options;  // a heap, the next to try on top
  Trial chosen = {};
  bool searched = false, has_all_groups = false;
};

bool has_copies(const RematProblem& problem);
double compute_us(const RematProblem& problem);  // of its ops, without what they lose to copies
// Lower bound of the host bytes that a plan's values take.
int64_t host_bytes_of(const RematProblem& problem, const RematPlan& plan);

}  // namespace plimsoll
