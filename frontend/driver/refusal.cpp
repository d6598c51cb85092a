#include "frontend/driver/refusal.h"

#include "frontend/api/alternatives.h"
#include "frontend/api/choose_plan.h"
#include "frontend/driver/fit_table.h"
#include "frontend/inspect/text_table.h"
#include "ir/support/units.h"
#include "passes/budget/budget_report.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>

namespace plimsoll {
namespace {

// Formats bytes without spaces, as the command line reads them.
std::string typed(int64_t bytes) {
  std::string text = format_bytes(bytes);
  text.erase(std::remove(text.begin(), text.end(), ' '), text.end());
  return text;
}

std::string size_option_of(const Alternative& alternative) {
  const CompileRequest& request = alternative.request;
  if (alternative.dimension.empty()) return "--batch " + std::to_string(request.training.batch);
  return "--dim " + alternative.dimension + "=" + std::to_string(request.import.dims.at(alternative.dimension));
}

// The options to type.
std::string options_of(const Alternative& alternative, const CompileRequest& refused) {
  using Change = Alternative::Change;
  const TrainingRequest& training = alternative.request.training;
  const std::string number = std::to_string(alternative.number);
  switch (alternative.change) {
    case Change::Precision: return "--precision " + training.precision;
    case Change::Batch:
    case Change::Dimension: return size_option_of(alternative);
    case Change::MicroBatches:
      return size_option_of(alternative) + " --accumulate " + std::to_string(training.accumulate);
    case Change::TrainedWeights: return "the last blocks alone (--train '" + training.train.front() + "')";
    case Change::Optimizer: return "--optimizer sgd";
    case Change::Moments: return "--moments 8bit";
    case Change::Adapters: return "--lora-rank " + std::to_string(training.adapters.rank);
    case Change::Quantize:
      return (refused.training.adapters.wanted() ? "" : "--lora-rank " + std::to_string(training.adapters.rank) + " ") +
             "--quantize " + format_name(training.quantize.format).str() +
             (training.precision == refused.training.precision ? "" : " --precision " + training.precision);
    case Change::HostMemory:
      return (refused.training.offload ? "--host-budget " : "--offload auto --host-budget ") +
             typed(alternative.number);
    case Change::Chunks: return "--split auto (" + chunks_of(alternative.fit) + ")";
    case Change::Cards:
      if (alternative.estimated) return number + " cards that share the states, each with this batch";
      return "--mesh " + to_string(training.mesh) + " --zero " + std::to_string(training.zero) + " " +
             size_option_of(alternative);
  }
  return "";
}

// The way to the same update that needs least; null: none needs less than the job as it was asked for.
const Alternative* least_of_same_update(const CompileResult& result, llvm::ArrayRef<Alternative> alternatives) {
  const auto* least = llvm::find_if(alternatives, [&](const Alternative& each) {
    return each.least_bytes > 0 && each.least_bytes < result.plan.promised_bytes();
  });
  return least == alternatives.end() ? nullptr : least;
}

// The time per sample where the plan knows its batch, else the time per step.
llvm::StringRef unit_of_time(const TrainingSummary& planned) { return planned.batch > 0 ? "per sample" : "per step"; }

double time_as_asked(const Plan& plan) {
  const auto samples = std::max<int64_t>(plan.training.batch, 1) * plan.training.accumulate;
  return plan.predicted_step_us / static_cast<double>(samples);
}

std::string needs_of(const Alternative& alternative) {
  return (alternative.estimated ? "about " : "") + format_bytes(round_up_readable(alternative.needs_bytes));
}

std::string one_line(const CompileResult& result, const Job& job, llvm::ArrayRef<Alternative> alternatives) {
  const std::string unit = " " + unit_of_time(result.plan.training).str();
  std::string enough, short_of;
  for (const Alternative& alternative : alternatives) {
    std::string& list = alternative.fits ? enough : short_of;
    list += (list.empty() ? "" : ", ") + options_of(alternative, job.request()) + " " + needs_of(alternative) + " (" +
            format_us(alternative.sample_us) + unit + ")";
  }
  std::string text = refusal_of(result, job.request()) + "; takes " + format_us(time_as_asked(result.plan)) + unit;
  if (const Alternative* least = least_of_same_update(result, alternatives))
    text += "; an update of as many samples needs least with " + options_of(*least, job.request()) + ", " +
            format_bytes(round_up_readable(least->least_bytes));
  if (!enough.empty()) text += "; would fit: " + enough;
  if (!short_of.empty()) text += "; would need less: " + short_of;
  return text;
}

// Columns of a table: what to type is never cut off.
class Rows {
 public:
  explicit Rows(int columns) : name_columns_(std::max(columns - bytes_columns - time_columns, 20)) {}

  void add(const std::string& name, llvm::StringRef bytes, llvm::StringRef time = "") {
    const bool is_long = width_of(name) > name_columns_;
    text_ += "\n" + (is_long ? name : left(name, name_columns_)) + right(bytes, bytes_columns) +
             (time.empty() ? "" : right(time, time_columns));
  }
  void add_heading(llvm::StringRef text) { text_ += ("\n" + text).str(); }
  const std::string& text() const { return text_; }

 private:
  static constexpr int bytes_columns = 13, time_columns = 16;
  int name_columns_;
  std::string text_;
};

std::string table(const CompileResult& result, const Job& job, llvm::ArrayRef<Alternative> alternatives, int columns) {
  const Shortfall parts = shortfall_of(result);
  Rows rows(columns);
  if (!parts.enough.empty()) rows.add_heading(parts.enough);
  rows.add_heading("");
  rows.add(alternatives.empty() ? "" : "ways out", "needs", "time " + unit_of_time(result.plan.training).str());
  const auto add_all = [&](bool fit) {
    for (const Alternative& each : alternatives)
      if (each.fits == fit) rows.add("  " + options_of(each, job.request()), needs_of(each), format_us(each.sample_us));
  };
  add_all(true);
  if (llvm::any_of(alternatives, [](const Alternative& each) { return !each.fits; })) {
    rows.add_heading("not enough alone");
    add_all(false);
  }
  rows.add("as asked", format_bytes(round_up_readable(result.plan.promised_bytes())),
           format_us(time_as_asked(result.plan)));
  if (const Alternative* least = least_of_same_update(result, alternatives))
    rows.add("  least, " + options_of(*least, job.request()), format_bytes(round_up_readable(least->least_bytes)));
  rows.add_heading("\nalive at the peak, " + parts.peak);
  for (const auto& [name, bytes] : parts.alive_bytes) rows.add("  " + name, format_bytes(bytes));
  rows.add_heading("\nthe largest op with what persists and the reserves");
  rows.add("  " + parts.largest, format_bytes(parts.least_bytes));
  return tried_batch(job.request()).str() + parts.needs + rows.text();
}

}  // namespace

Status refuse(const CompileResult& result, const Job& job, const TrainingRequest& training, const Console& console,
              const std::string& subject) {
  const std::vector<Alternative> alternatives = find_alternatives(result.plan, result.split_regions, job, training);
  return budget_error(subject + (console.error_columns > 0 ? table(result, job, alternatives, console.error_columns)
                                                           : one_line(result, job, alternatives)));
}

}  // namespace plimsoll
