#pragma once

// The memory curve over a step, as columns and drawn with characters.

#include "ir/plan/summary.h"

namespace plimsoll {

// A column stands for consecutive instructions and has the live bytes of the fullest one, so that no peak is lost.
struct CurveColumn {
  CategoryBytes live;
  int32_t function = 0;
  size_t instruction = 0;  // index of the first instruction of the column
};
std::vector<CurveColumn> sample_memory_curve(const SpaceSummary& summary, int columns);

struct CurvePhase {
  size_t first_column;
  std::string label;  // "backward"
};
std::vector<CurvePhase> phases_of_curve(const Plan& plan, llvm::ArrayRef<CurveColumn> columns);

// Draws the live bytes of one memory space: a byte axis at the left, the phases below, persistent bytes in a lighter
// shade. Returns one string per line.
std::vector<std::string> draw_memory_curve(const Plan& plan, const SpaceSummary& summary, int columns);

}  // namespace plimsoll
