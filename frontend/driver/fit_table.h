#pragma once

// Shows plans of one job side by side: the bytes they need, how they fit and what that costs.

#include "frontend/driver/commands.h"
#include "frontend/inspect/print.h"

namespace plimsoll {

// "8 chunks from h.3"; empty where the batch is whole.
std::string chunks_of(const FitSummary& fit);

// The stage of a pipeline whose ranks hold most; the plan itself where there are no stages.
const Plan& largest_stage(const Plan& plan);

// "plain", or "8 chunks from h.3; recompute 34 values, +5.2 % time".
std::string how_it_fits(const Plan& plan);

// The rows of `compile --pareto`.
std::vector<FrontierRow> frontier_rows(llvm::ArrayRef<Plan> frontier);
void print_frontier(Console& console, llvm::ArrayRef<FrontierRow> rows);  // nothing where there is no row

}  // namespace plimsoll
