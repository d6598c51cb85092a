#pragma once

// What would make a refused job fit: the same job with one change, as data.

#include "frontend/api/job.h"

namespace plimsoll {

struct Alternative {
  // MicroBatches: smaller ones, and as many more of them that the samples of an update stay as many.
  enum class Change : uint8_t {
    Precision,
    Batch,
    Dimension,
    TrainedWeights,
    Optimizer,
    HostMemory,
    Chunks,
    Cards,
    MicroBatches,
    Moments,
    Adapters,
    Quantize
  };
  Change change;
  CompileRequest request;  // the job with the change; Cards that were estimated: unchanged
  std::string dimension;   // the symbolic dimension that is changed; empty where training.batch is
  int64_t number = 0;      // the new size of the batch or dimension; bytes of host memory; number of cards
  FitSummary fit;          // Chunks alone: how the plan splits the batch
  int64_t needs_bytes = 0;
  int64_t least_bytes = 0;  // MicroBatches of the fewest samples alone: the smallest budget that is enough
  double sample_us = 0;     // predicted time per sample; per step where the plan does not know its batch
  bool estimated = false;   // computed from the refused plan instead of planned
  bool fits = false;
};

// Alternatives to a job for which `smallest` is the plan that needs least, `split_regions` say where its search found
// chunks, and `training` is the request with all choices made. Each is planned with a short search where that is a
// matter of seconds, else estimated. Compiled within the bytes that a planned one names, it fits. Those that fit come
// first, then those with the least time per sample.
std::vector<Alternative> find_alternatives(const Plan& smallest, llvm::ArrayRef<size_t> split_regions, const Job& job,
                                           const TrainingRequest& training);

}  // namespace plimsoll
