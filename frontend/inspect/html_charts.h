#pragma once

// The drawings of the HTML report as inline SVG. Colours are classes that the page's style gives: `c0` to `c10` by
// category, `reserve`, `line`, `limit`, `mark`.

#include "frontend/inspect/print.h"
#include "ir/plan/summary.h"

namespace plimsoll {

// What the job holds over the step, reserves at the bottom and the categories stacked on them, phases below. A budget
// is a line where it is near enough to be drawn.
void draw_curve_svg(llvm::raw_ostream& out, const Plan& plan, const SpaceSummary& summary);

// Predicted time of a step over the bytes it needs; `plan` itself is marked.
void draw_front_svg(llvm::raw_ostream& out, llvm::ArrayRef<FrontierRow> front, const Plan& plan);

}  // namespace plimsoll
