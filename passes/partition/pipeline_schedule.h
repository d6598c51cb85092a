#pragma once

// Which runs of layers the stages of a pipeline have, and in which order they take micro-batches through forward and
// backward.

#include "ir/support/status.h"

#include "llvm/ADT/ArrayRef.h"

#include <string>
#include <vector>

namespace plimsoll {

enum class PipelineSchedule : uint8_t {
  // Each stage is as many forwards ahead as stages follow it (PipeDream-Flush, Narayanan et al. 2021).
  OneForwardOneBackward,
  // The same, but gradients of weights are computed where a stage would wait (ZB-H1, Qi et al. 2023). No stage keeps
  // values of more micro-batches than the first one above.
  ZeroBubble,
  // Each stage has several runs of layers: stage s of S the runs s, s + S, s + 2 S, ... A micro-batch goes round the
  // stages once for each of their runs, so stages wait a shorter time for the first (Narayanan et al. 2021).
  Interleaved,
  // Two runs on each stage, there and back: the first and the last run are on stage 0. Every stage keeps values of as
  // many micro-batches, and no stage waits but at both ends of the step (ZB-V, Qi et al. 2024).
  V,
};
inline constexpr llvm::StringLiteral schedule_names[] = {"1f1b", "zero-bubble", "interleaved", "v"};  // by schedule

// Is backward taken in two actions: what the stage before waits for, and gradients of weights?
inline bool splits_backward(PipelineSchedule schedule) {
  return schedule == PipelineSchedule::ZeroBubble || schedule == PipelineSchedule::V;
}

// The runs of neighbouring layers in which a model is cut, in its order, and their stages.
struct StageRuns {
  PipelineSchedule schedule = PipelineSchedule::OneForwardOneBackward;
  int64_t stages = 1;
  int64_t per_stage = 1;  // 2 for the schedule V

  int64_t count() const { return stages * per_stage; }
  int64_t stage_of(int64_t run) const {
    const int64_t at = run % stages;
    return schedule == PipelineSchedule::V && run >= stages ? stages - 1 - at : at;
  }
  // Which of its stage's runs it is, from 0.
  int64_t place_of(int64_t run) const { return run / stages; }
};
// "1f1b", "interleaved in 2 runs"
std::string name_of(const StageRuns& runs);
// The runs that have this name; the name is one that name_of gave.
StageRuns runs_named(llvm::StringRef name, int64_t stages);
// The runs of a schedule; `per_stage` is for those that leave it open, 0: as few as they may have.
StageRuns runs_of_schedule(PipelineSchedule schedule, int64_t stages, int64_t per_stage = 0);

struct StageAction {
  enum class Kind : uint8_t {
    Start,
    Forward,
    Backward,  // all of it, or where backward is split what the stage before waits for
    Weights,   // where it is split the rest of backward
    End,
  };
  Kind kind = Kind::Start;
  int64_t micro_batch = 0;
  int64_t run = 0;  // of the stage's own, from 0
  friend bool operator==(const StageAction&, const StageAction&) = default;
};

// Predicted times of a stage for one micro-batch, each above 0.
struct StageTimes {
  double forward_us = 1, backward_us = 2, weights_us = 0;
};

// By stage all that it does, in order: the start, forward and backward of each micro-batch in each of its runs, and the
// end, where it updates. Interleaved runs take a number of micro-batches that the stages divide.
std::vector<std::vector<StageAction>> actions_of_stages(const StageRuns& runs, llvm::ArrayRef<StageTimes> stages,
                                                        int64_t micro_batches);

// The most micro-batches of which a stage keeps values of one of its runs at once, from their forward to the end of
// their backward.
int64_t most_kept(llvm::ArrayRef<StageAction> actions, int64_t run = 0);

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
