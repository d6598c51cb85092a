#include "frontend/driver/refusal.h"

#include "frontend/api/alternatives.h"
#include "frontend/api/choose_plan.h"
#include "frontend/driver/fit_table.h"
#include "ir/support/units.h"

#include <algorithm>

namespace plimsoll {
namespace {

// Formats bytes without spaces, as the command line reads them.
std::string typed(int64_t bytes) {
  std::string text = format_bytes(bytes);
  text.erase(std::remove(text.begin(), text.end(), ' '), text.end());
  return text;
}

// The options to type.
std::string options_of(const Alternative& alternative, const CompileRequest& refused) {
  using Change = Alternative::Change;
  const TrainingRequest& training = alternative.request.training;
  const std::string number = std::to_string(alternative.number);
  switch (alternative.change) {
    case Change::Precision: return "--precision " + training.precision;
    case Change::Batch:
    case Change::Dimension:
      return alternative.dimension.empty() ? "--batch " + number : "--dim " + alternative.dimension + "=" + number;
    case Change::TrainedWeights: return "the last blocks alone (--train '" + training.train.front() + "')";
    case Change::Optimizer: return "--optimizer sgd";
    case Change::HostMemory:
      return (refused.training.offload ? "--host-budget " : "--offload auto --host-budget ") +
             typed(alternative.number);
    case Change::Chunks: return "--split auto (" + chunks_of(alternative.fit) + ")";
    case Change::Cards:
      if (alternative.estimated) return number + " cards that share the states, each with this batch";
      return "--gpus " + number + " --zero " + std::to_string(training.zero) + " --batch " +
             std::to_string(training.batch);
  }
  return "";
}

}  // namespace

std::string refusal_text(const CompileResult& result, const Job& job, const TrainingRequest& training) {
  const TrainingSummary& planned = result.plan.training;
  // The time per sample where the plan knows its batch, else the time per step.
  const auto time_of = [&](double us) { return format_us(us) + (planned.batch > 0 ? " per sample" : " per step"); };
  std::string enough, short_of;
  for (const Alternative& alternative : find_alternatives(result.plan, job, training)) {
    std::string& list = alternative.fits ? enough : short_of;
    list += (list.empty() ? "" : ", ") + options_of(alternative, job.request()) +
            (alternative.estimated ? " about " : " ") + format_bytes(round_up_readable(alternative.needs_bytes)) +
            " (" + time_of(alternative.sample_us) + ")";
  }
  const auto samples = static_cast<double>(std::max<int64_t>(planned.batch, 1) * planned.accumulate);
  std::string text = refusal_of(result, job.request()) + "; takes " + time_of(result.plan.predicted_step_us / samples);
  if (!enough.empty()) text += "; would fit: " + enough;
  if (!short_of.empty()) text += "; would need less: " + short_of;
  return text;
}

}  // namespace plimsoll
