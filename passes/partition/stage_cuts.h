#pragma once

// Where a model is cut into the stages of a pipeline: dynamic programming on tables of what each device takes and holds
// for the blocks between two places where the model may be cut.

#include "llvm/ADT/ArrayRef.h"

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace plimsoll {

// A way to hold fewer bytes for more time.
struct StageSaving {
  int64_t bytes = 0;  // kept per micro-batch
  double us = 0;      // of a whole step
};

// A run of a forward graph's nodes between two places where it may be cut, as one device computes it.
struct StageBlock {
  double us = 0;           // forward, backward and updates of a whole step
  int64_t bytes = 0;       // of its states
  double border_us = 0;    // of what goes over, if it is cut behind the block; both stages take it
  int64_t step_bytes = 0;  // held through the whole step besides: inputs, sums of gradients, what parameters decide
  int64_t kept_bytes = 0;  // kept from forward for backward, per micro-batch
  int64_t peak_bytes = 0;  // the largest sum of its live values while it takes a micro-batch, kept ones included
  int64_t host_bytes = 0;  // of its states, those that may wait on the host
  std::vector<StageSaving> remats;  // each value at most once, those with least time per byte first
  // Where the block before is in the same stage, what this one keeps of it is a value that the block before can make
  // again.
  int64_t received_bytes = 0;                                 // of kept_bytes
  double again_us = std::numeric_limits<double>::infinity();  // to make what goes over behind the block again
};

// What a stage may hold, and what holding less costs besides remats.
struct StageLimit {
  int64_t bytes = std::numeric_limits<int64_t>::max();  // of states and values: the budget without its reserves
  int64_t micro_batches = 1;                            // of which values are kept at once, at most
  bool recompute = true;
  int64_t host_bytes = 0;                            // the most that may wait on the host
  double host_us_per_byte = 0;                       // that a copy to the host and back takes beside computing
  std::vector<std::pair<size_t, size_t>> too_large;  // runs of blocks that plans were found not to fit: first and end
  double held_up_us_per_byte = 0;                    // that computing loses to it meanwhile
};

// One stage as it was cut.
struct StageCut {
  size_t first = 0;     // of its blocks
  double us = 0;        // of a step, borders included
  double added_us = 0;  // the share of it for remats and copies, where the stage fits with them alone
  int64_t state_bytes = 0;
  int64_t needs_bytes = 0;  // without remats and copies
  int64_t least_bytes = 0;  // with all of them
  int64_t lacks_bytes = 0;  // of these; below 0: left; `unknown_lack` and more for a run that is too large
};

// A lack above that of any device, small enough that others can be added to it without overflow.
inline constexpr int64_t unknown_lack = int64_t{1} << 60;

// Cuts the blocks into as many runs as there are limits, none of them empty. `blocks[s]` are those of the model as the
// device of stage s has them; all lists are equally long, and no shorter than there are stages. The stage that lacks
// most bytes lacks as few as any cut allows, so every stage fits where there is such a cut; among these the slowest
// stage takes least time, and among such the one with most states has least bytes. O(stages * blocks^2 * remats).
std::vector<StageCut> cut_stages(llvm::ArrayRef<llvm::ArrayRef<StageBlock>> blocks, llvm::ArrayRef<StageLimit> limits);

}  // namespace plimsoll
