#include "frontend/inspect/memory_curve.h"

#include "frontend/inspect/text_table.h"
#include "ir/support/units.h"

#include "llvm/ADT/SmallVector.h"

#include <algorithm>
#include <cmath>

namespace plimsoll {
namespace {

constexpr int rows = 9, axis_columns = 11;

// Returns one character of the row that spans [low, high): full, filled in eighths, or empty.
llvm::StringRef cell(int64_t live, int64_t persistent, double low, double high) {
  constexpr llvm::StringLiteral eighths[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇"};
  if (static_cast<double>(persistent) >= (low + high) / 2) return "░";
  double share = (static_cast<double>(live) - low) / (high - low);
  if (share >= 1) return "█";
  return eighths[std::clamp(static_cast<int>(std::lround(share * 8)), 0, 7)];
}

struct Region {
  size_t begin;  // index of the first instruction
  std::string label;
};

// Phases overlap, because an update may follow its gradient at once and counters step at the start. The drawing begins
// backward at its first instruction, and update after the last backward instruction.
std::vector<Region> regions_of(const PlanFunction& function, bool name_function) {
  const auto& list = function.instructions;
  auto is_backward = [](const Instruction& instruction) { return instruction.phase == Phase::Backward; };
  auto first = std::find_if(list.begin(), list.end(), is_backward);
  auto last = std::find_if(list.rbegin(), list.rend(), is_backward).base();
  if (first == list.end()) return {{0, name_function ? function.name : "forward"}};
  auto backward = static_cast<size_t>(first - list.begin()), update = static_cast<size_t>(last - list.begin());
  std::vector<Region> regions;
  if (backward > 0) regions.push_back({0, "forward"});
  if (update > backward) regions.push_back({backward, "backward"});
  if (update < list.size()) regions.push_back({update, "update"});
  return regions;
}

// Returns the line under the columns: "├ forward ──────┼ backward ───────┤".
std::string phase_line(const Plan& plan, llvm::ArrayRef<CurveColumn> columns) {
  std::vector<CurvePhase> phases = phases_of_curve(plan, columns);
  std::string line;
  for (size_t p = 0; p < phases.size(); ++p) {
    size_t end = p + 1 < phases.size() ? phases[p + 1].first_column : columns.size();
    auto width = static_cast<int>(end - phases[p].first_column);
    if (width == 0) continue;
    std::string label = width_of(phases[p].label) + 3 <= width ? " " + phases[p].label + " " : "";
    line += "├" + label + repeated("─", width - 1 - width_of(label));
  }
  return line + "┤";
}

}  // namespace

// The columns of a function are in proportion to its instructions, with a minimum of 8.
std::vector<CurveColumn> sample_memory_curve(const SpaceSummary& summary, int columns) {
  size_t all = 0;
  for (const auto& live : summary.live) all += live.size();
  std::vector<CurveColumn> samples;
  for (size_t f = 0; f < summary.live.size(); ++f) {
    const auto& live = summary.live[f];
    if (live.empty()) continue;
    auto wanted = static_cast<size_t>(
        std::lround(static_cast<double>(columns) * static_cast<double>(live.size()) / static_cast<double>(all)));
    size_t count = std::min<size_t>(std::max<size_t>(wanted, 8), static_cast<size_t>(columns));
    for (size_t c = 0; c < count; ++c) {
      size_t first = c * live.size() / count, end = std::max(first + 1, (c + 1) * live.size() / count);
      auto fullest =
          std::max_element(live.begin() + static_cast<ptrdiff_t>(first), live.begin() + static_cast<ptrdiff_t>(end),
                           [](const auto& a, const auto& b) { return a.total() < b.total(); });
      samples.push_back({*fullest, static_cast<int32_t>(f), first});
    }
  }
  if (samples.size() > static_cast<size_t>(columns)) samples.resize(static_cast<size_t>(columns));
  return samples;
}

std::vector<CurvePhase> phases_of_curve(const Plan& plan, llvm::ArrayRef<CurveColumn> columns) {
  std::vector<CurvePhase> phases;
  for (size_t c = 0, f = 0; f < plan.functions.size(); ++f)
    for (const Region& region : regions_of(plan.functions[f], plan.functions.size() > 1)) {
      auto in_region = [&](const CurveColumn& column) {
        return column.function > static_cast<int32_t>(f) ||
               (column.function == static_cast<int32_t>(f) && column.instruction >= region.begin);
      };
      while (c < columns.size() && !in_region(columns[c])) ++c;
      if (c < columns.size()) phases.push_back({c, region.label});
    }
  return phases;
}

std::vector<std::string> draw_memory_curve(const Plan& plan, const SpaceSummary& summary, int columns) {
  std::vector<CurveColumn> samples = sample_memory_curve(summary, std::max(16, columns - axis_columns - 3));
  int64_t top = 1, persistent = 0;
  for (const CurveColumn& column : samples) top = std::max(top, column.live.total());
  for (const Arena& arena : plan.arenas)
    if (arena.space == summary.space) persistent = arena.persistent_bytes;
  std::vector<std::string> lines;
  for (int row = rows - 1; row >= 0; --row) {
    double low = static_cast<double>(top) * row / rows, high = static_cast<double>(top) * (row + 1) / rows;
    bool marked = row == rows - 1 || row == rows / 2;
    std::string line =
        right(marked ? format_bytes(static_cast<int64_t>(high)) : "", axis_columns) + (marked ? " ┤" : " │");
    for (const CurveColumn& column : samples) line += cell(column.live.total(), persistent, low, high);
    lines.push_back(line);
  }
  lines.push_back(right("0 B", axis_columns) + " " + phase_line(plan, samples));
  if (static_cast<double>(persistent) * rows > static_cast<double>(top) / 2)
    lines.push_back(clipped(repeated(" ", axis_columns + 2) + "░ " + format_bytes(persistent) +
                                " of parameters, optimizer state and other persistent bytes",
                            columns));
  return lines;
}

}  // namespace plimsoll
