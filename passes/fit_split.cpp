#include "passes/fit_split.h"

// A few regions and numbers of parts are tried where the program as it is needs repeats or copies. Which they are, and how much work the
// search for each may be, does not depend on the budget, so that a plan is the best of the same ones under every budget.

#include "ir/plan/page.h"
#include "ir/units.h"
#include "passes/batch_regions.h"
#include "passes/budget.h"
#include "passes/recompute.h"
#include "passes/storage.h"

#include <limits>

namespace plimsoll {
namespace {

constexpr int regions_tried = 5;
constexpr int64_t parts_tried[] = {2, 4, 8, 16};
constexpr double split_effort = 0.1;   // of a search, beside that for the program as it is
constexpr size_t most_searched = 2000;  // instructions; the search for repeats of more would take minutes
constexpr double least_saving = 0.03;  // of what a candidate needs, that one which takes longer must save

// By narrow value: the bytes of what forward makes of it from there on.
std::vector<int64_t> bytes_behind(const Graph& graph, llvm::ArrayRef<ValueId> narrow) {
  const ParameterValues parameters(graph);
  const std::vector<bool> needed = find_needed(graph);
  std::vector<int64_t> behind(narrow.size(), 0);
  int64_t bytes = 0;
  size_t left = narrow.size();
  for (NodeId id = graph.last_node(); id != NodeId::None; id = graph.node(id).previous) {
    const Node& node = graph.node(id);
    while (left > 0 && llvm::is_contained(node.results, narrow[left - 1])) behind[--left] = bytes;
    if (!needed[index_of(id)] || node.op->view_of >= 0 || parameters.alone[index_of(node.results[0])]) continue;
    for (ValueId result : node.results) bytes += graph.type(result).bytes();
  }
  return behind;
}

// For all of what follows the first narrow value, half of it, a quarter, ...: the last value that is followed by so much.
std::vector<ValueId> regions_to_try(const Graph& graph) {
  const std::vector<ValueId> narrow = find_narrow_values(graph);
  const std::vector<int64_t> behind = bytes_behind(graph, narrow);
  std::vector<ValueId> regions;
  for (int i = 0; i < regions_tried && !narrow.empty(); ++i) {
    size_t at = narrow.size() - 1;
    while (at > 0 && behind[at] < behind[0] >> i) --at;
    if (regions.empty() || regions.back() != narrow[at]) regions.push_back(narrow[at]);
  }
  return regions;
}

// Numbers of parts that divide the batch: the smallest from each of parts_tried on.
std::vector<int64_t> parts_to_try(int64_t batch, int64_t asked) {
  if (asked > 1) return {asked};
  std::vector<int64_t> parts;
  for (int64_t least : parts_tried) {
    int64_t count = least;
    while (count < batch && batch % count != 0) ++count;
    if (count <= batch && (parts.empty() || parts.back() != count)) parts.push_back(count);
  }
  return parts;
}

size_t instructions_of(const Plan& plan) {
  size_t count = 0;
  for (const PlanFunction& function : plan.functions) count += function.instructions.size();
  return count;
}

// Neither repeats nor copies?
bool adds_nothing(const Plan& plan, const Program& program) {
  size_t derived = 0;
  for (const Graph& function : program.functions)
    derived += static_cast<size_t>(llvm::count_if(function.order(), [&](NodeId id) { return is_instruction(function.node(id)); }));
  return instructions_of(plan) == derived;
}

// A program with a region split, and its plan without repeats or copies.
struct Candidate {
  std::string from;
  int64_t parts;
  Derived derived;
  Plan plain;
};

// Of candidates by falling need those worth a search: each takes more time than the one before it, and needs noticeably less.
void keep_worthwhile(std::vector<Candidate>& candidates) {
  std::stable_sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return std::pair(a.plain.predicted_step_us, a.plain.promised_bytes()) < std::pair(b.plain.predicted_step_us, b.plain.promised_bytes());
  });
  double most = std::numeric_limits<double>::infinity();
  llvm::erase_if(candidates, [&](const Candidate& candidate) {
    const auto bytes = static_cast<double>(candidate.plain.promised_bytes());
    if (bytes > most * (1 - least_saving)) return true;
    most = bytes;
    return false;
  });
}

class SplitFitter {
 public:
  SplitFitter(const ForwardModel& forward, const TrainingRequest& request, const DeviceDescription& device, const KernelCatalog& catalog,
              const CompileHooks& hooks)
      : forward_(forward), request_(request), device_(device), catalog_(catalog), hooks_(hooks) {}

  Result<Plan> run() {
    if (request_.split <= 1)
      if (Status s = try_whole()) return s;
    if (request_.split != 1 && !fits_as_it_is_)
      if (Status s = try_splits()) return s;
    if (best_) return std::move(*best_);
    if (!least_) return usage_error("--split " + llvm::Twine(request_.split) + ": nothing of the model comes in so many parts of its batch");
    if (hooks_.on_refused) hooks_.on_refused(*least_);
    return over_budget(*least_, request_.host_budget_bytes);
  }

 private:
  Status try_whole() {
    Result<Derived> derived = derive_program(forward_, {}, request_, catalog_, hooks_);
    if (!derived) return derived.takeError();
    if (hooks_.on_phase) hooks_.on_phase("lay out");
    Result<std::optional<Plan>> plan = fitted(*derived, request_.effort, hooks_.on_front);
    if (!plan) return plan.takeError();
    if (!*plan) {
      whole_ = "needs " + format_bytes(least_->promised_bytes());
      return Status::success();
    }
    whole_ = "takes " + format_us((*plan)->predicted_step_us);
    fits_as_it_is_ = adds_nothing(**plan, derived->program);
    best_ = std::move(*plan);
    return Status::success();
  }

  Status try_splits() {
    std::vector<Candidate> candidates;
    if (Status s = derive_candidates(candidates)) return s;
    keep_worthwhile(candidates);
    // The fastest that fits as it is bounds what a search is worth; those that need a little more are the likeliest to be faster still.
    for (const Candidate& candidate : candidates)
      if (!is_within_budget(candidate.plain)) keep_if_less(explained(candidate.plain, candidate));
    size_t fits = 0;
    while (fits < candidates.size() && !is_within_budget(candidates[fits].plain)) ++fits;
    if (fits < candidates.size()) take_if_faster(explained(candidates[fits].plain, candidates[fits]));
    for (size_t i = fits; i-- > 0;) {
      if (instructions_of(candidates[i].plain) > most_searched || (best_ && least_us(candidates[i]) >= best_->predicted_step_us)) continue;
      Result<std::optional<Plan>> plan = fitted(candidates[i].derived, request_.effort * split_effort, nullptr);
      if (!plan) return plan.takeError();
      if (*plan) take_if_faster(explained(std::move(**plan), candidates[i]));
    }
    return Status::success();
  }

  Status derive_candidates(std::vector<Candidate>& candidates) {
    if (!request_.split_from.empty()) {
      const ValueId from = forward_.graph.find_value(request_.split_from);
      if (from == ValueId::None) return usage_error("--split: the model has no value '" + request_.split_from + "' once it is clean");
      if (Status s = derive_candidate({from, request_.split}, candidates)) return in_context("--split", std::move(s));
      return Status::success();
    }
    for (ValueId from : regions_to_try(forward_.graph))
      for (int64_t parts : parts_to_try(forward_.graph.type(from).shape[0], request_.split))
        llvm::consumeError(derive_candidate({from, parts}, candidates));  // what reads the value may want the whole batch
    return Status::success();
  }

  Status derive_candidate(const SplitChoice& split, std::vector<Candidate>& candidates) {
    CompileHooks quiet;
    quiet.pipeline.skip = hooks_.pipeline.skip;
    Result<Derived> derived = derive_program(forward_, split, request_, catalog_, quiet);
    if (!derived) return derived.takeError();
    Candidate candidate{forward_.graph.value(split.from).name, split.parts, std::move(*derived), {}};
    Result<Plan> plain = plain_plan(lowering_of(candidate.derived, request_.effort * split_effort), fit_options(candidate.derived, request_.effort));
    if (!plain) return plain.takeError();
    candidate.plain = std::move(*plain);
    candidates.push_back(std::move(candidate));
    return Status::success();
  }

  // No plan of the candidate within the budget takes less. Copies to the host may save what a repeat costs.
  double least_us(const Candidate& candidate) const {
    double us = candidate.plain.predicted_step_us;
    if (request_.offload && device_.to_host_gb_per_s > 0) return us;
    const Arena& arena = candidate.plain.arenas.front();
    const int64_t allowance = arena.budget_bytes - device_.reserve_bytes() - arena.persistent_bytes;
    for (size_t f = 0; f < candidate.plain.functions.size(); ++f) {
      double added = std::numeric_limits<double>::infinity();
      for (bool early_updates : {false, true}) {
        Graph graph = candidate.derived.program.functions[f];
        if (early_updates) graph.reorder(candidate.derived.other_orders[f]);
        delay_free_updates(graph, candidate.derived.writers[f]);
        added = std::min(added, least_added_us(recompute_problem(graph, candidate.derived.writers[f], device_, catalog_).problem, allowance));
      }
      us += static_cast<double>(candidate.plain.calls_per_step(f)) * added;
    }
    return us;
  }

  void keep_if_less(Plan plan) {
    if (!least_ || needs_less(plan, *least_)) least_ = std::move(plan);
  }

  void take_if_faster(Plan plan) {
    if (!best_ || plan.predicted_step_us < best_->predicted_step_us) best_ = std::move(plan);
  }

  Plan explained(Plan plan, const Candidate& candidate) const {
    plan.decisions.insert(plan.decisions.begin(), {"split-batch", candidate.from, std::to_string(candidate.parts) + " parts",
                                                   "what follows is made for one part of the batch after the other: without repeats needs " +
                                                       format_bytes(candidate.plain.promised_bytes()) + " and takes " +
                                                       format_us(candidate.plain.predicted_step_us) + (whole_.empty() ? "" : "; whole it " + whole_)});
    return plan;
  }

  FitOptions fit_options(const Derived& derived, double effort) const {
    FitOptions fit;
    fit.recompute = request_.recompute;
    fit.offload = request_.offload;
    fit.search_seconds *= effort;
    fit.training = forward_.summary;
    fit.other_orders = derived.other_orders;
    return fit;
  }

  LoweringInput lowering_of(const Derived& derived, double effort) const {
    LoweringInput input{derived.program, derived.writers, device_, catalog_, request_.budget_bytes, request_.host_budget_bytes};
    input.placement_seconds *= effort;
    return input;
  }

  // None where it does not fit; then the least is kept in mind.
  Result<std::optional<Plan>> fitted(const Derived& derived, double effort, const std::function<void(const Plan&)>& on_front) {
    FitOptions fit = fit_options(derived, effort);
    fit.on_refused = [&](const Plan& least) { keep_if_less(with_decisions(least, derived)); };
    const LoweringInput input = lowering_of(derived, effort);
    if (on_front)
      if (Status s = budget_front(input, fit, on_front)) return s;
    Result<Plan> plan = fit_budget(input, fit);
    if (plan) return std::optional<Plan>(with_decisions(std::move(*plan), derived));
    Diag diag = take_diag(plan.takeError());
    if (diag.fault() != Fault::Budget) return Status(llvm::make_error<Diag>(diag.fault(), diag.text()));
    return std::optional<Plan>();
  }

  static Plan with_decisions(Plan plan, const Derived& derived) {
    plan.decisions.insert(plan.decisions.begin(), derived.decisions.begin(), derived.decisions.end());
    return plan;
  }

  const ForwardModel& forward_;
  const TrainingRequest& request_;
  const DeviceDescription& device_;
  const KernelCatalog& catalog_;
  const CompileHooks& hooks_;
  std::optional<Plan> best_, least_;  // least_: of those that do not fit
  bool fits_as_it_is_ = false;
  std::string whole_;                 // what became of the program as it is
};

}  // namespace

Result<Plan> fit_split(const ForwardModel& forward, const TrainingRequest& request, const DeviceDescription& device, const KernelCatalog& catalog,
                       const CompileHooks& hooks) {
  return SplitFitter(forward, request, device, catalog, hooks).run();
}

}  // namespace plimsoll
