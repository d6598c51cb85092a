#include "frontend/driver/fit_table.h"

#include "frontend/inspect/text_table.h"
#include "ir/plan/summary.h"
#include "ir/support/units.h"

namespace plimsoll {
namespace {

std::string frontier_row(llvm::StringRef budget, llvm::StringRef peak, llvm::StringRef step, llvm::StringRef batch,
                         llvm::StringRef with) {
  return right(budget, 10) + right(peak, 12) + right(step, 12) + right(batch, 10) + "  " + with.str();
}

std::string batch_of(const Plan& plan) {
  const TrainingSummary& training = plan.training;
  if (training.batch == 0) return "";
  return (training.accumulate > 1 ? std::to_string(training.accumulate) + " x " : "") + std::to_string(training.batch);
}

}  // namespace

std::string chunks_of(const FitSummary& fit) {
  return fit.chunks > 1 ? std::to_string(fit.chunks) + " chunks from " + fit.chunks_from : "";
}

const Plan& largest_stage(const Plan& plan) {
  const Plan* largest = &plan;
  for (const Plan* stage : plan.stages())
    if (stage->promised_bytes() > largest->promised_bytes()) largest = stage;
  return *largest;
}

std::string how_it_fits(const Plan& plan) {
  const int64_t again = plan.fit.rematerialised;
  std::string text = chunks_of(plan.fit);
  if (again > 0) {
    TimeSummary time = summarize_time(plan);
    text += std::string(text.empty() ? "" : "; ") + "recompute " + format_count(again) +
            (again == 1 ? " value, +" : " values, +") +
            format_share(time.recompute_us / (time.step_us - time.recompute_us)) + " time";
  }
  if (plan.arenas.size() > 1) text += (text.empty() ? "" : "; ") + format_bytes(plan.arenas[1].bytes) + " on the host";
  return text.empty() ? "plain" : text;
}

std::vector<FrontierRow> frontier_rows(llvm::ArrayRef<Plan> frontier) {
  std::vector<FrontierRow> rows;
  for (const Plan& plan : frontier)
    rows.push_back({plan.arenas.front().budget_bytes, plan.promised_bytes(), plan.predicted_step_us, batch_of(plan),
                    how_it_fits(plan)});
  return rows;
}

void print_frontier(Console& console, llvm::ArrayRef<FrontierRow> rows) {
  if (rows.empty()) return;
  console.progress.finish();
  TextTable table(console.out, {console.columns, console.out_is_terminal});
  table.line(table.styled(Style::Strong, frontier_row("budget", "peak", "step", "batch", "with")));
  for (const FrontierRow& row : rows)
    table.line(frontier_row(format_bytes(row.budget_bytes), format_bytes(row.needs_bytes), format_us(row.step_us),
                            row.batch, row.with));
}

}  // namespace plimsoll
