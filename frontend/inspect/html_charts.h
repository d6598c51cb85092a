#pragma once

// Draws the charts of the HTML report as inline SVG. The page's style sheet defines the classes: `c0` to `c10` for the
// categories, `line`, `point` and `mark`.

#include "frontend/inspect/print.h"
#include "ir/plan/summary.h"

namespace plimsoll {

// Draws the predicted time per step against the bytes needed and marks `plan`.
void draw_frontier_svg(llvm::raw_ostream& out, llvm::ArrayRef<FrontierRow> frontier, const Plan& plan);

// Draws when the first function computes, communicates and copies, a lane for each of these that it does. The stages of
// a pipeline have their lanes below each other, and backward is pale in them.
void draw_timeline_svg(llvm::raw_ostream& out, const Plan& plan);

}  // namespace plimsoll
