#pragma once

// Holds the precision that a job asks for against the model before anything runs.

#include "ir/graph.h"
#include "passes/job.h"

namespace plimsoll {

// 16-bit compute over f32 parameters: "bf16" or "fp16".
bool is_mixed(llvm::StringRef precision);

// Errors: Fault::Usage for an unknown precision and for rules nobody reads, Fault::Model where the model was
// exported in a dtype that is not the one asked for.
Status check_precision(const Graph& graph, const TrainingRequest& request);

}  // namespace plimsoll
