#pragma once

// In which order the stages of a pipeline take micro-batches through forward and backward.

#include "ir/support/status.h"

#include "llvm/ADT/ArrayRef.h"

#include <vector>

namespace plimsoll {

enum class PipelineSchedule : uint8_t {
  // Each stage is as many forwards ahead as stages follow it (PipeDream-Flush, Narayanan et al. 2021).
  OneForwardOneBackward,
  // The same, but gradients of weights are computed where a stage would wait (ZB-H1, Qi et al. 2023). No stage keeps
  // values of more micro-batches than the first one above.
  ZeroBubble,
};
inline constexpr llvm::StringLiteral schedule_names[] = {"1f1b", "zb1p"};  // by schedule

struct StageAction {
  enum class Kind : uint8_t {
    Start,
    Forward,
    Backward,  // all of it, or with a zero bubble what the stage before waits for
    Weights,   // with a zero bubble the rest of backward
    End,
  };
  Kind kind = Kind::Start;
  int64_t micro_batch = 0;
  friend bool operator==(const StageAction&, const StageAction&) = default;
};

// Predicted times of a stage for one micro-batch, each above 0.
struct StageTimes {
  double forward_us = 1, backward_us = 2, weights_us = 0;
};

// By stage all that it does, in order: the start, forward and backward of each micro-batch, and the end, where it
// updates.
std::vector<std::vector<StageAction>> actions_of_stages(PipelineSchedule schedule, llvm::ArrayRef<StageTimes> stages,
                                                        int64_t micro_batches);

// The most micro-batches of which a stage keeps values at once, from their forward to the end of their backward.
int64_t most_kept(llvm::ArrayRef<StageAction> actions);

// What goes from one stage to another: made in one of its actions, and first read in one of the other's.
struct StageTransfer {
  size_t from = 0, from_action = 0, to = 0, to_action = 0;
};

// An order of all transfers in which every stage can send and receive its own, each waiting for its peer, without a
// cycle of waits: that in which a simulation makes them. `us[stage][action]` are above 0. Errors when the actions wait
// for each other.
Result<std::vector<size_t>> order_of_transfers(llvm::ArrayRef<std::vector<double>> us,
                                               llvm::ArrayRef<StageTransfer> transfers);

}  // namespace plimsoll
