#pragma once

// The memory curve over a step, drawn in characters.

#include "ir/plan/summary.h"

namespace plimsoll {

// Live bytes of one space: a row a line, the axis in bytes at the left, phases below. Each column is as high
// as its fullest instruction, so no peak is lost however narrow the page. What is persistent is drawn
// lighter.
std::vector<std::string> draw_memory_curve(const Plan& plan, const SpaceSummary& summary, int columns);

}  // namespace plimsoll
