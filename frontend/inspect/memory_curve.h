#pragma once

// The memory curve over a step: as columns, and drawn in characters.

#include "ir/plan/summary.h"

namespace plimsoll {

// Stands for some instructions that follow each other, with what is alive at the fullest of them: no peak is lost
// however few the columns.
struct CurveColumn {
  CategoryBytes live;
  int32_t function = 0;
  size_t instruction = 0;  // the first it stands for
};
std::vector<CurveColumn> sample_memory_curve(const SpaceSummary& summary, int columns);

struct CurvePhase {
  size_t first_column;
  std::string label;  // "backward"
};
std::vector<CurvePhase> phases_of_curve(const Plan& plan, llvm::ArrayRef<CurveColumn> columns);

// Live bytes of one space: a row a line, the axis in bytes at the left, phases below. What is persistent is
// drawn lighter.
std::vector<std::string> draw_memory_curve(const Plan& plan, const SpaceSummary& summary, int columns);

}  // namespace plimsoll
