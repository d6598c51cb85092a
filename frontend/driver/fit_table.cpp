#include "frontend/driver/fit_table.h"

#include "frontend/inspect/text_table.h"
#include "ir/plan/summary.h"
#include "ir/support/units.h"

#include "llvm/ADT/STLExtras.h"

namespace plimsoll {
namespace {

std::string front_row(llvm::StringRef budget, llvm::StringRef peak, llvm::StringRef step, llvm::StringRef batch,
                      llvm::StringRef with) {
  return right(budget, 10) + right(peak, 12) + right(step, 12) + right(batch, 10) + "  " + with.str();
}

std::string batch_of(const Plan& plan) {
  const TrainingSummary& training = plan.training;
  if (training.batch == 0) return "";
  return (training.accumulate > 1 ? std::to_string(training.accumulate) + " x " : "") + std::to_string(training.batch);
}

}  // namespace

std::optional<SplitChosen> split_of(const Plan& plan) {
  for (const Decision& decision : plan.decisions) {
    SplitChosen split{0, decision.subject};
    llvm::StringRef choice = decision.choice;
    if (decision.pass == "split-batch" && !choice.consumeInteger(10, split.chunks)) return split;
  }
  return std::nullopt;
}

std::string to_string(const SplitChosen& split) { return std::to_string(split.chunks) + " chunks from " + split.from; }

std::string how_it_fits(const Plan& plan) {
  auto repeats =
      llvm::count_if(plan.decisions, [](const Decision& d) { return d.pass == "recompute" && d.choice == "repeat"; });
  std::string text;
  if (std::optional<SplitChosen> split = split_of(plan)) text = to_string(*split);
  if (repeats > 0) {
    TimeSummary time = summarize_time(plan);
    text += std::string(text.empty() ? "" : "; ") + "recompute " + format_count(repeats) +
            (repeats == 1 ? " value, +" : " values, +") +
            format_share(time.recompute_us / (time.step_us - time.recompute_us)) + " time";
  }
  if (plan.arenas.size() > 1) text += (text.empty() ? "" : "; ") + format_bytes(plan.arenas[1].bytes) + " on the host";
  return text.empty() ? "plain" : text;
}

void FrontTable::add(const Plan& plan) {
  rows_.push_back({plan.arenas.front().budget_bytes, plan.promised_bytes(), plan.predicted_step_us, batch_of(plan),
                   how_it_fits(plan)});
}

void FrontTable::print(Console& console) const {
  if (rows_.empty()) return;
  console.progress.finish();
  TextTable table(console.out, {console.columns, console.out_is_terminal});
  table.line(table.styled(Style::Strong, front_row("budget", "peak", "step", "batch", "with")));
  for (const FrontierRow& row : rows_)
    table.line(front_row(format_bytes(row.budget_bytes), format_bytes(row.needs_bytes), format_us(row.step_us),
                         row.batch, row.with));
}

}  // namespace plimsoll
