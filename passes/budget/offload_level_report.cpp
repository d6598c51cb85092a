#include "passes/budget/offload_level_search.h"

// What was decided for the plan of an offload level, in words.

#include "ir/plan/timeline.h"

#include <algorithm>
#include <cstdio>

namespace plimsoll {
namespace {

std::string milliseconds(double us) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3f ms", us / 1e3);
  return text;
}

}  // namespace

Plan OffloadLevelSearch::explained(Plan plan) const {
  for (size_t f = 0; f < functions_.size(); ++f) {
    const Trial& chosen = functions_[f].chosen;
    const RematPlan& extra = chosen.candidate->plan;
    const RematProblem& problem = chosen.order->sequence.problem;
    const Graph& graph = draft_->program.functions[f];
    plan.fit.rematerialised += static_cast<int64_t>(extra.remats.size());
    if (!extra.remats.empty() || !extra.reloads.empty()) {
      const double added = chosen.us - compute_us(problem);
      char share[32];
      std::snprintf(share, sizeof(share), "%.2f %%", 100 * added / std::max(compute_us(problem), 1e-9));
      plan.decisions.push_back({"recompute", graph.name,
                                "rematerialise " + std::to_string(extra.remats.size()) + " instructions",
                                "adds " + milliseconds(added) + ", " + share +
                                    " of the function; nothing of this order within the budget adds less than " +
                                    milliseconds(min_added_us_within(*chosen.order, allowance_))});
    }
    explain_copies(plan, f);
    for (NodeId id : draft_->functions[f].added)
      plan.decisions.push_back({is_copy(graph.node(id).op->engine) ? "offload" : "recompute",
                                graph.value(graph.node(id).results[0]).name,
                                is_copy(graph.node(id).op->engine) ? graph.node(id).op->name.str() : "rematerialise",
                                graph.node(id).reason});
  }
  return plan;
}

void OffloadLevelSearch::explain_copies(Plan& plan, size_t function) const {
  const Overlap* overlap = functions_[function].chosen.overlap;
  if (!overlap) return;
  const Timeline time = predict_timeline(plan.functions[function], plan.device);
  const Graph& graph = draft_->program.functions[function];
  const int64_t collectives =
      llvm::count_if(graph.order(), [&](NodeId id) { return graph.node(id).op->engine == Engine::Ranks; });
  const int64_t copies = static_cast<int64_t>(overlap->intervals.size()) - collectives;
  const std::string beside = " beside " + milliseconds(time.total_us - time.stalled_us) +
                             " of computing, which waits " + milliseconds(time.stalled_us);
  if (copies > 0)
    plan.decisions.push_back(
        {"offload", graph.name, std::to_string(copies) + " copies",
         milliseconds(time.to_host_us) + " to the host and " + milliseconds(time.to_device_us) + " back" + beside});
  if (collectives > 0)
    plan.decisions.push_back(
        {"partition", graph.name, std::to_string(collectives) + " collectives", milliseconds(time.ranks_us) + beside});
}

}  // namespace plimsoll
