#include "passes/budget/split_search.h"

// Where the whole batch needs remats or copies, a few cuts and chunk counts are tried as well. The candidates and the
// work of each search do not depend on the budget, so more budget only adds plans to choose from.

#include "ir/plan/summary.h"
#include "ir/support/parallel.h"
#include "ir/support/units.h"
#include "passes/analysis/dependence.h"
#include "passes/analysis/single_value_cuts.h"
#include "passes/budget/budget_frontier.h"
#include "passes/budget/budget_report.h"
#include "passes/budget/fit.h"
#include "passes/budget/lean_workspaces.h"
#include "passes/budget/program_size.h"
#include "passes/budget/turned_codes.h"
#include "passes/train/split_batch.h"

#include <cassert>
#include <limits>
#include <map>

namespace plimsoll {
namespace {

constexpr int regions_tried = 5;
constexpr int turned_tries = 4;  // to find how many transposes there is room for; layouts waste some bytes
constexpr int64_t chunk_counts_tried[] = {2, 4, 8, 16};
constexpr double split_effort = 0.1;           // search work of a candidate, as a share of the whole batch's
constexpr double min_saving = 0.1;             // share of its bytes that a slower candidate must save to be kept
constexpr double max_nodes = 12000;            // deriving a longer program takes seconds,
constexpr double max_slowdown_of_usual = 1.5;  // of a plan that fits, up to which no short searches are tried besides
constexpr double max_nodes_of_many = 6000;     // which meshes that are compared do not have
constexpr size_t smallest_at_once = 2;         // candidates that are searched for the plan that needs least

// For each cut, the bytes that forward makes after it.
std::vector<int64_t> bytes_behind(const Graph& graph, llvm::ArrayRef<ValueId> cuts) {
  const ParameterValues parameters(graph);
  const std::vector<bool> needed = find_needed(graph);
  std::vector<int64_t> behind(cuts.size(), 0);
  int64_t bytes = 0;
  size_t left = cuts.size();
  for (NodeId id = graph.last_node(); id != NodeId::None; id = graph.node(id).previous) {
    const Node& node = graph.node(id);
    while (left > 0 && llvm::is_contained(node.results, cuts[left - 1])) behind[--left] = bytes;
    if (!needed[index_of(id)] || node.op->is_view() || parameters.alone[index_of(node.results[0])]) continue;
    for (ValueId result : node.results) bytes += graph.type(result).bytes();
  }
  return behind;
}

// The first cut, and the last cuts that still have a half, a quarter, ... of its bytes behind them.
std::vector<ValueId> regions_to_try(const Graph& graph) {
  std::vector<ValueId> cuts;
  for (const SingleValueCut& cut : find_single_value_cuts(graph)) cuts.push_back(cut.value);
  const std::vector<int64_t> behind = bytes_behind(graph, cuts);
  std::vector<ValueId> regions;
  for (int i = 0; i < regions_tried && !cuts.empty(); ++i) {
    size_t at = cuts.size() - 1;
    while (at > 0 && behind[at] < behind[0] >> i) --at;
    if (regions.empty() || regions.back() != cuts[at]) regions.push_back(cuts[at]);
  }
  return regions;
}

// Chunk counts that divide the batch: for each of chunk_counts_tried the smallest from there on.
std::vector<int64_t> chunks_to_try(int64_t batch, int64_t asked) {
  if (asked > 1) return {asked};
  std::vector<int64_t> chunks;
  for (int64_t least : chunk_counts_tried) {
    int64_t count = least;
    while (count < batch && batch % count != 0) ++count;
    if (count <= batch && (chunks.empty() || chunks.back() != count)) chunks.push_back(count);
  }
  return chunks;
}

// The share of the graph's nodes that stand behind the value.
double share_behind(const Graph& graph, ValueId value) {
  int64_t behind = 0, all = 0;
  bool passed = false;
  for (NodeId id = graph.last_node(); id != NodeId::None; id = graph.node(id).previous, ++all) {
    passed |= llvm::is_contained(graph.node(id).results, value);
    behind += !passed;
  }
  return static_cast<double>(behind) / static_cast<double>(std::max<int64_t>(all, 1));
}

// A program, as it is or with a region split, and its plans.
struct Candidate {
  std::string from;   // the value behind which it is split; empty: as it is
  size_t region = 0;  // its place among the values that are tried
  int64_t chunks = 1;
  bool is_long = false;                  // too long for states on the host
  std::unique_ptr<LeanCatalog> catalog;  // null: that of the search
  size_t lean_calls = 0;                 // different ones with less workspace
  std::shared_ptr<Derived> derived;      // its device has a reserve for what the program's graphs take
  FitOptions options;
  std::optional<LoweringInput> input;
  std::unique_ptr<BudgetFitter> plans;

  const Plan& plain() const { return plans->plain(); }
};
using Candidates = std::vector<std::unique_ptr<Candidate>>;

// Sorts candidates by time and keeps those worth a search: each needs noticeably fewer bytes than the whole batch and
// than every faster candidate. Short ones are compared with short ones alone, so that which of them are kept does not
// follow from whether the budget leaves room for long ones. Returns the others.
Candidates keep_worthwhile(Candidates& candidates, int64_t whole_bytes) {
  std::stable_sort(candidates.begin(), candidates.end(), [](const auto& a, const auto& b) {
    return std::pair(a->plain().predicted_step_us, a->plain().promised_bytes()) <
           std::pair(b->plain().predicted_step_us, b->plain().promised_bytes());
  });
  auto most = static_cast<double>(whole_bytes), most_of_short = most;
  Candidates kept, others;
  for (std::unique_ptr<Candidate>& candidate : candidates) {
    const auto bytes = static_cast<double>(candidate->plain().promised_bytes());
    const double enough = candidate->is_long ? most : most_of_short;
    if (bytes > enough * (1 - min_saving)) {
      others.push_back(std::move(candidate));
      continue;
    }
    most = std::min(most, bytes);
    if (!candidate->is_long) most_of_short = bytes;
    kept.push_back(std::move(candidate));
  }
  candidates = std::move(kept);
  return others;
}

class SplitSearch {
 public:
  SplitSearch(const ForwardModel& forward, const TrainingRequest& request, const DeviceDescription& device,
              const KernelCatalog& catalog, const CompileHooks& hooks)
      : forward_(forward), request_(request), device_(device), catalog_(catalog), hooks_(hooks) {}

  Result<CompileResult> run() {
    Result<std::unique_ptr<Candidate>> whole = candidate({}, forward_.passes, 1, {});
    if (!whole) return whole.takeError();
    whole_ = std::move(*whole);
    if (may_store_transposes()) made_transposes_ = bytes_of_made_transposes(whole_->derived->draft.program);
    if (hooks_.on_phase) hooks_.on_phase("lay out");
    CompileResult result;
    if (request_.frontier) {
      assert(request_.enough_us == std::numeric_limits<double>::infinity() && "a frontier has slow plans as well");
      Result<Plan> fastest =
          made_transposes_ > 0 ? whole_with_stored(std::numeric_limits<int64_t>::max()) : Result<Plan>(whole_->plain());
      if (!fastest) return fastest.takeError();
      Result<std::vector<Plan>> frontier = budget_frontier(*fastest, [&](int64_t smaller) -> Result<Plan> {
        Result<std::optional<Plan>> plan = within(smaller);
        if (!plan) return plan.takeError();
        return std::move(**plan);
      });
      if (!frontier) return frontier.takeError();
      result.frontier = std::move(*frontier);
    }
    Result<std::optional<Plan>> plan = within(whole_->plain().arenas.front().budget_bytes);
    if (!plan) return plan.takeError();
    if (!*plan) return none_is_faster();
    if (request_.keeps_program)
      result.prepared = std::make_shared<PreparedProgram>(PreparedProgram{forward_, std::move(*whole_->derived)});
    result.fits = is_within_budget(**plan);
    result.plan = std::move(**plan);
    result.host_budget_bytes = request_.host_budget_of_rank();
    if (!result.fits) result.split_regions = regions_for_others(result.plan.fit);
    return result;
  }

 private:
  // The regions in which a search for a job like this one looks for chunks: that of the plan that needs least, or where
  // it has no chunks all that are worth a search, or might be in a job whose program is shorter.
  std::vector<size_t> regions_for_others(const FitSummary& smallest) const {
    std::vector<size_t> regions = long_regions_;
    for (const Candidates* splits : {&splits_, &other_splits_})
      for (const std::unique_ptr<Candidate>& split : *splits) {
        if (smallest.chunks > 1 && split->from == smallest.chunks_from) return {split->region};
        if (splits == &splits_ && !llvm::is_contained(regions, split->region)) regions.push_back(split->region);
      }
    return regions;
  }

  // The fastest plan within the budget; where there is none, the one that needs least. None where nothing is faster
  // than is asked for. Transposes of stored codes become states where there is room for them beside a step without
  // remats and copies; these would cost what transposes as states save.
  Result<std::optional<Plan>> within(int64_t budget_bytes) {
    if (made_transposes_ == 0) return within_as_made(budget_bytes);
    if (whole_->plain().promised_bytes() <= budget_bytes) return whole_with_stored(budget_bytes);
    Result<std::optional<Plan>> plan = within_as_made(budget_bytes);
    if (plan && *plan) (*plan)->decisions.push_back(decide_transposes(**plan, made_transposes_, whole_->plain()));
    return plan;
  }

  // Short searches and those for one of many meshes do without. Ranks may have pieces of the codes.
  bool may_store_transposes() const {
    return request_.quantize.turned_bytes == 0 && request_.mesh.ranks() == 1 && request_.split <= 1 &&
           !request_.is_short && !request_.is_one_of_many;
  }

  // The whole batch without remats and copies, with as many transposes of stored codes as states as there is room for.
  // Those of a smaller budget are among those of a larger one, so more budget gives no slower plan. As states they may
  // need less room than their bytes: a step that makes them holds one of them at its peak.
  Result<Plan> whole_with_stored(int64_t budget_bytes) const {
    const Plan& made = whole_->plain();
    Plan best = plain_of(*whole_, budget_bytes);
    int64_t stored = 0, room = budget_bytes - made.promised_bytes();
    for (int tries = 0; tries < turned_tries && room > stored; ++tries) {
      Result<std::unique_ptr<Candidate>> more = candidate({}, forward_.passes.quiet(), 1, {}, room);
      if (!more) return more.takeError();
      const Plan& plain = (*more)->plain();
      const int64_t bytes = bytes_of_stored_transposes(plain), needs = plain.promised_bytes();
      if (bytes <= stored) break;
      if (needs > budget_bytes) {
        room = bytes - 1;  // without the last one
        continue;
      }
      if (plain.predicted_step_us >= best.predicted_step_us) break;
      best = plain_of(**more, budget_bytes);
      if (bytes_of_made_transposes((*more)->derived->draft.program) == 0) break;
      stored = bytes, room = bytes + budget_bytes - needs;
    }
    best.decisions.push_back(decide_transposes(best, made_transposes_, made));
    return best;
  }

  Result<std::optional<Plan>> within_as_made(int64_t budget_bytes) {
    Result<const Candidate*> found = whole_for(budget_bytes);
    if (!found) return found.takeError();
    const Candidate& whole = **found;
    std::vector<const Candidate*> candidates;
    if (request_.split <= 1) candidates.push_back(&whole);
    if (request_.split <= 1 && is_slower(whole)) candidates.push_back(whole_.get());
    std::optional<Plan> best;
    const bool splits = request_.split > 1 || (request_.split < 1 && whole.plain().promised_bytes() > budget_bytes);
    if (splits) {
      if (Status s = derive_splits(may_be_long(budget_bytes))) return s;
      // The fastest split that fits without remats bounds what a search is worth. Then comes the whole batch, and of
      // the splits those that need a little more bytes first, which are the likeliest to be faster still.
      size_t fits = 0;
      while (fits < splits_.size() && splits_[fits]->plain().promised_bytes() > budget_bytes) ++fits;
      if (fits < splits_.size()) best = plain_of(*splits_[fits], budget_bytes);
      for (size_t i = fits; i-- > 0;) candidates.push_back(splits_[i].get());
      if (!best && candidates.empty())
        return usage_error("no value of the model allows " + llvm::Twine(request_.split) +
                           " equal chunks of the batch");
    }
    if (Status s = consider_all(std::move(candidates), budget_bytes, best)) return s;
    if (!splits || !best || derived_ == Splits::All || !may_be_long(best->promised_bytes())) return best;
    // Nothing fits, and long programs may need less. The short ones that are kept are those that were looked at.
    if (Status s = derive_splits(true)) return s;
    candidates.clear();
    for (const std::unique_ptr<Candidate>& split : splits_)
      if (split->is_long) candidates.push_back(split.get());
    if (Status s = consider_smallest(std::move(candidates), budget_bytes, best)) return s;
    return best;
  }

  // A refusal of another job may name this one with what a short search found for it. Where the usual search found a
  // plan that takes little more than the plain one, it hardly missed what a short one finds.
  bool is_short_search_worth_it(const std::optional<Plan>& best, int64_t budget_bytes) const {
    if (request_.is_short || request_.effort != 1 || request_.is_one_of_many) return false;
    const Plan& plain = whole_->plain();
    if (plain.promised_bytes() <= budget_bytes) return false;
    return !best || best->predicted_step_us > max_slowdown_of_usual * plain.predicted_step_us;
  }

  // `best`, if any a plan within the budget, becomes what short searches of the programs that were looked at find where
  // that is better. Where nothing is within the budget, it becomes the plan of these that needs least.
  Status consider_short(int64_t budget_bytes, std::optional<Plan>& best) {
    Result<const Candidate*> lean = whole_for(budget_bytes);
    if (!lean) return lean.takeError();
    std::vector<const Candidate*> usual, candidates;
    if (request_.split <= 1) usual.push_back(*lean);
    if (request_.split <= 1 && *lean != whole_.get()) usual.push_back(whole_.get());
    for (const Candidates* splits : {&splits_, &other_splits_})
      for (const std::unique_ptr<Candidate>& split : *splits) usual.push_back(split.get());
    llvm::erase_if(usual, [&](const Candidate* candidate) {
      return (candidate->is_long && tries_many_programs()) || !may_be_better(*candidate, best);
    });
    if (Status s = make_short(usual)) return s;
    for (const Candidate* candidate : usual) candidates.push_back(short_.at(candidate).get());
    for (const Candidate* candidate : candidates)
      if (Status s = consider(*candidate, budget_bytes, best)) return s;
    if (best || !wants_smallest()) return Status::success();
    return consider_smallest(std::move(candidates), budget_bytes, best);
  }

  // Makes those that are not there yet.
  Status make_short(llvm::ArrayRef<const Candidate*> usual) {
    std::vector<const Candidate*> missing;
    for (const Candidate* candidate : usual)
      if (!short_.count(candidate)) missing.push_back(candidate);
    std::vector<std::optional<Result<std::unique_ptr<Candidate>>>> made(missing.size());
    parallel_for(made.size(), [&](size_t i) { made[i].emplace(short_candidate(*missing[i])); });
    Status failed = Status::success();
    for (size_t i = 0; i < made.size(); ++i) {
      if (*made[i])
        short_[missing[i]] = std::move(**made[i]);
      else
        failed = llvm::joinErrors(std::move(failed), made[i]->takeError());
    }
    return failed;
  }

  bool wants_smallest() const { return request_.enough_us == std::numeric_limits<double>::infinity(); }

  // The same program with the work of a short search.
  Result<std::unique_ptr<Candidate>> short_candidate(const Candidate& usual) const {
    auto made = std::make_unique<Candidate>();
    made->from = usual.from;
    made->chunks = usual.chunks;
    made->lean_calls = usual.lean_calls;
    made->derived = usual.derived;
    made->options = usual.options;
    made->options.search_seconds *= short_effort;
    made->options.is_short = tries_many_programs();
    made->input.emplace(*usual.input);
    made->input->placement_seconds *= short_effort;
    if (Status s = make_plans(*made)) return s;
    return made;
  }

  // Then a short search tries less of each.
  bool tries_many_programs() const { return request_.split < 1; }

  // Whether any plan of the program may be. None takes less time than without remats and copies, unless ranks wait for
  // each other.
  bool may_be_better(const Candidate& candidate, const std::optional<Plan>& best) const {
    return !best || request_.mesh.ranks() > 1 || candidate.plain().predicted_step_us < best->predicted_step_us;
  }

  // Whether a program that is too long for states on the host may be within the bytes. Short searches do without.
  bool may_be_long(int64_t bytes) const {
    if (request_.split > 1 || request_.frontier || !request_.offload) return true;
    if (request_.is_short) return false;
    const Plan& plain = whole_->plain();
    int64_t states = 0;
    for (const PlanState& state : plain.states)
      if (plain.slots[state.slot].space == MemorySpace::Device) states += plain.slots[state.slot].bytes;
    return device_.reserve_bytes() + states <= bytes;
  }

  // The whole batch as it is planned without a budget, or with less workspace for the calls that do not fit beside what
  // is live then.
  Result<const Candidate*> whole_for(int64_t budget_bytes) {
    if (whole_->plain().promised_bytes() <= budget_bytes) return whole_.get();
    CallKeys calls = lean_calls_for(whole_->plain(), budget_bytes, catalog_);
    if (calls.empty()) return whole_.get();
    std::unique_ptr<Candidate>& lean = lean_[calls];
    if (!lean) {
      Result<std::unique_ptr<Candidate>> made = candidate({}, forward_.passes.quiet(), 1, std::move(calls));
      if (!made) return made.takeError();
      lean = std::move(*made);
    }
    return lean.get();
  }

  // By measured times: then remats may be faster than less workspace.
  bool is_slower(const Candidate& lean) const {
    return lean.plain().predicted_step_us > whole_->plain().predicted_step_us;
  }

  // `best` becomes the plan of a candidate that is better. Where none is within the budget, the plan that needs least
  // is looked for where bounds, and what short searches found, show that it may be.
  Status consider_all(std::vector<const Candidate*> candidates, int64_t budget_bytes, std::optional<Plan>& best) {
    for (const Candidate* candidate : candidates)
      if (Status s = consider(*candidate, budget_bytes, best)) return s;
    if (is_short_search_worth_it(best, budget_bytes))
      if (Status s = consider_short(budget_bytes, best)) return s;
    if ((best && is_within_budget(*best)) || !wants_smallest()) return Status::success();
    return consider_smallest(std::move(candidates), budget_bytes, best);
  }

  // `best` becomes the plan of one of them that needs less. Two are searched at once, however many cores there are, so
  // that what is searched does not depend on the machine.
  Status consider_smallest(llvm::ArrayRef<const Candidate*> candidates, int64_t budget_bytes,
                           std::optional<Plan>& best) const {
    struct Bounded {
      const Candidate* candidate;
      int64_t min_bytes;
    };
    std::vector<Bounded> order(candidates.size());
    parallel_for(order.size(), [&](size_t i) { order[i] = {candidates[i], min_bytes(*candidates[i], budget_bytes)}; });
    llvm::stable_sort(order, [](const Bounded& a, const Bounded& b) { return a.min_bytes < b.min_bytes; });
    for (size_t next = 0; next < order.size();) {
      const bool is_met = best && is_within_host_budget(*best);
      const int64_t enough_bytes = is_met ? best->promised_bytes() : std::numeric_limits<int64_t>::max();
      llvm::SmallVector<const Candidate*, smallest_at_once> some;
      for (; next < order.size() && order[next].min_bytes < enough_bytes && some.size() < smallest_at_once; ++next)
        some.push_back(order[next].candidate);
      if (some.empty()) break;
      if (Status s = consider_smallest_at_once(some, budget_bytes, enough_bytes, best)) return s;
    }
    return Status::success();
  }

  // `best` becomes the candidate's fastest plan within the budget where that is faster.
  Status consider(const Candidate& candidate, int64_t budget_bytes, std::optional<Plan>& best) const {
    if (!may_fit(candidate.options, candidate.plain(), budget_bytes)) return Status::success();
    const double enough_us = best ? std::min(request_.enough_us, best->predicted_step_us) : request_.enough_us;
    Result<std::optional<Plan>> plan = candidate.plans->fastest(budget_bytes, enough_us);
    if (!plan) return plan.takeError();
    if (*plan && (!best || is_better(**plan, *best))) best = explained(std::move(**plan), candidate);
    return Status::success();
  }

  Status consider_smallest_at_once(llvm::ArrayRef<const Candidate*> candidates, int64_t budget_bytes,
                                   int64_t enough_bytes, std::optional<Plan>& best) const {
    std::vector<std::optional<Result<std::optional<Plan>>>> found(candidates.size());
    parallel_for(found.size(),
                 [&](size_t i) { found[i].emplace(smallest_of(*candidates[i], budget_bytes, enough_bytes)); });
    Status failed = Status::success();
    for (size_t i = 0; i < found.size(); ++i) {
      Result<std::optional<Plan>>& plan = *found[i];
      if (!plan)
        failed = llvm::joinErrors(std::move(failed), plan.takeError());
      else if (*plan && (!best || is_better(**plan, *best)))
        best = explained(std::move(**plan), *candidates[i]);
    }
    return failed;
  }

  // The candidate's plan that needs least; none where that is `enough_bytes` or more.
  static Result<std::optional<Plan>> smallest_of(const Candidate& candidate, int64_t budget_bytes,
                                                 int64_t enough_bytes) {
    if (may_fit(candidate.options, candidate.plain(), budget_bytes))
      return candidate.plans->smallest(budget_bytes, enough_bytes);
    return std::optional(with_budget(candidate.plain(), budget_bytes));
  }

  static int64_t min_bytes(const Candidate& candidate, int64_t budget_bytes) {
    return may_fit(candidate.options, candidate.plain(), budget_bytes) ? candidate.plans->min_bytes()
                                                                       : candidate.plain().promised_bytes();
  }

  Status derive_splits(bool with_long) {
    if (derived_ == Splits::All || (derived_ == Splits::Short && !with_long)) return Status::success();
    derived_ = with_long ? Splits::All : Splits::Short;
    short_.clear();
    splits_.clear();
    other_splits_.clear();
    long_regions_.clear();
    if (request_.split > 1 && !request_.split_from.empty()) {
      const ValueId from = forward_.graph.find_value(request_.split_from);
      if (from == ValueId::None)
        return usage_error("the model has no value '" + request_.split_from + "' once it is clean");
      Result<std::unique_ptr<Candidate>> named = split_candidate({from, request_.split});
      if (!named) return in_context("cannot split the batch", named.takeError());
      splits_.push_back(std::move(*named));
      return Status::success();
    }
    const std::vector<ValueId> regions =
        request_.split == 0 && request_.split_regions ? chosen_regions() : regions_to_try(forward_.graph);
    std::vector<Candidates> of_region(regions.size());
    parallel_for(regions.size(), [&](size_t i) { of_region[i] = split_behind(regions[i], with_long); });
    for (size_t i = 0; i < regions.size(); ++i) {
      Candidates& some = of_region[i];
      for (const std::unique_ptr<Candidate>& split : some) split->region = i;
      if (!with_long && !some.empty() && some.front()->is_long) long_regions_.push_back(i);
      llvm::erase_if(some, [&](const auto& candidate) { return candidate->is_long && !with_long; });
      std::move(some.begin(), some.end(), std::back_inserter(splits_));
    }
    // Chunks that the caller asked for are kept whatever they need.
    other_splits_ = keep_worthwhile(
        splits_, request_.split > 1 ? std::numeric_limits<int64_t>::max() : whole_->plain().promised_bytes());
    return Status::success();
  }

  std::vector<ValueId> chosen_regions() const {
    const std::vector<ValueId> all = regions_to_try(forward_.graph);
    std::vector<ValueId> chosen;
    for (size_t place : *request_.split_regions) {
      if (all.empty()) break;
      const ValueId from = all[std::min(place, all.size() - 1)];
      if (!llvm::is_contained(chosen, from)) chosen.push_back(from);
    }
    return chosen;
  }

  // One candidate per chunk count that is not too long; none where an op behind the value wants the whole batch. More
  // chunks make longer programs.
  Candidates split_behind(ValueId from, bool with_long) const {
    const auto whole = static_cast<double>(nodes_of(whole_->derived->draft.program));
    const double repeated =
        static_cast<double>(nodes_of_rows(whole_->derived->draft.program)) * share_behind(forward_.graph, from);
    const double most = most_nodes();
    Candidates splits;
    for (int64_t chunks : chunks_to_try(forward_.graph.type(from).shape[0], request_.split)) {
      if (request_.split == 0 && whole + static_cast<double>(chunks - 1) * repeated > most) break;
      Result<std::unique_ptr<Candidate>> split = split_candidate({from, chunks});
      if (!split) {
        llvm::consumeError(split.takeError());
        continue;
      }
      splits.push_back(std::move(*split));
      if (splits.back()->is_long && !with_long) break;
      if (request_.split == 0 && !may_be_worthwhile_with_more(*splits.back())) break;
    }
    return splits;
  }

  // Whether more chunks of the same region may save enough. Each of k chunks needs a k-th of what the region needs
  // whole, so any number of chunks saves at most k / (k - 1) times what k chunks save.
  bool may_be_worthwhile_with_more(const Candidate& split) const {
    const auto whole = static_cast<double>(whole_->plain().promised_bytes()),
               saved = whole - static_cast<double>(split.plain().promised_bytes());
    const auto chunks = static_cast<double>(split.chunks);
    return saved * chunks / (chunks - 1) >= min_saving * whole;
  }

  // Programs that are too long to put states on the host seldom need less than the whole batch does with states there.
  double most_nodes() const {
    if (request_.is_one_of_many) return max_nodes_of_many;
    return request_.is_short && request_.offload ? max_nodes_searched_whole : max_nodes;
  }

  Result<std::unique_ptr<Candidate>> split_candidate(const SplitChoice& choice) const {
    return candidate(choice, forward_.passes.quiet(), split_effort, {});
  }

  // Up to `stored_bytes` of transposes of codes are states, where that is not 0.
  Result<std::unique_ptr<Candidate>> candidate(const SplitChoice& choice, PassManager passes, double effort,
                                               CallKeys lean, int64_t stored_bytes = 0) const {
    auto made = std::make_unique<Candidate>();
    TrainingRequest request = request_;
    if (stored_bytes > 0) request.quantize.turned_bytes = stored_bytes;
    made->lean_calls = lean.size();
    if (!lean.empty()) made->catalog = std::make_unique<LeanCatalog>(catalog_, std::move(lean));
    const KernelCatalog& catalog = made->catalog ? static_cast<const KernelCatalog&>(*made->catalog) : catalog_;
    const bool is_known = request_.prepared && choice.chunks == 1 && !made->catalog && stored_bytes == 0;
    Result<Derived> derived = is_known ? Result<Derived>(request_.prepared->whole)
                                       : derive_program(forward_, choice, request, device_, catalog, std::move(passes));
    if (!derived) return derived.takeError();
    derived->draft.catalog = &catalog;  // that of what is known may be gone
    if (choice.chunks > 1) made->from = forward_.graph.value(choice.from).name;
    made->chunks = choice.chunks;
    made->derived = std::make_shared<Derived>(std::move(*derived));
    PlanDraft& draft = made->derived->draft;
    draft.device = with_reserves(device_, draft.program, request_.mesh);
    made->options.recompute = request_.recompute;
    made->options.offload = request_.offload;
    made->options.search_seconds *= request_.effort * effort;
    made->options.is_one_of_many = request_.is_one_of_many;
    made->options.is_short = request_.is_short && tries_many_programs();
    made->options.explains = !request_.is_short;
    made->is_long = choice.chunks > 1 && nodes_of(draft.program) > max_nodes_searched_whole;
    if (made->is_long) {
      made->options.min_share = long_min_share;
      made->options.offload = false;
    }
    made->options.training = forward_.summary;
    made->input.emplace(LoweringInput{
        draft, request_.budget_bytes,
        budget_of_host_arena(request_, draft.program, draft.device, held_for_snapshot(request_, &draft.program))});
    made->input->placement_seconds *= request_.effort * effort;
    if (Status s = make_plans(*made)) return s;
    return made;
  }

  Status make_plans(Candidate& candidate) const {
    Result<Plan> plain = plain_plan(*candidate.input, candidate.options);
    if (!plain) return plain.takeError();
    const int64_t budget = plain->arenas.front().budget_bytes,
                  highest = request_.frontier ? std::max(budget, plain->promised_bytes()) : budget;
    candidate.plans = std::make_unique<BudgetFitter>(*candidate.input, candidate.options, std::move(*plain), highest);
    return Status::success();
  }

  Plan plain_of(const Candidate& candidate, int64_t budget_bytes) const {
    return explained(with_budget(candidate.plain(), budget_bytes), candidate);
  }

  Plan explained(Plan plan, const Candidate& candidate) const {
    std::vector<Decision> decisions = candidate.derived->passes.decisions();
    plan.mesh = request_.mesh;
    plan.fit.chunks = candidate.chunks;
    plan.fit.chunks_from = candidate.from;
    if (candidate.chunks > 1)
      decisions.push_back(
          {"split-batch", candidate.from, std::to_string(candidate.chunks) + " chunks",
           "what follows is made for one chunk of the batch after the other: without remats and copies needs " +
               format_bytes(candidate.plain().promised_bytes()) + " and takes " +
               format_us(candidate.plain().predicted_step_us) + ", whole " +
               format_bytes(whole_->plain().promised_bytes()) + " and " +
               format_us(whole_->plain().predicted_step_us)});
    if (candidate.lean_calls > 0)
      decisions.push_back({"workspace", "plan", std::to_string(candidate.lean_calls) + " kernels with less workspace",
                           "calls that do not fit beside what is live: without remats and copies the plan needs " +
                               format_bytes(candidate.plain().promised_bytes()) + ", with the usual kernels " +
                               format_bytes(whole_->plain().promised_bytes())});
    plan.decisions.insert(plan.decisions.begin(), decisions.begin(), decisions.end());
    return plan;
  }

  const ForwardModel& forward_;
  const TrainingRequest& request_;
  const DeviceDescription& device_;
  const KernelCatalog& catalog_;
  const CompileHooks& hooks_;
  std::unique_ptr<Candidate> whole_;
  int64_t made_transposes_ = 0;  // bytes of transposes of stored codes, where these may be states
  std::map<CallKeys, std::unique_ptr<Candidate>> lean_;           // the whole batch with less workspace for some calls
  Candidates splits_, other_splits_;                              // by the time they take; not worth a search
  std::map<const Candidate*, std::unique_ptr<Candidate>> short_;  // with a short search, by the usual one
  enum class Splits : uint8_t { None, Short, All };
  Splits derived_ = Splits::None;     // which were made for splits_
  std::vector<size_t> long_regions_;  // where even the fewest chunks are too long for states on the host
};

}  // namespace

Result<CompileResult> search_splits(const ForwardModel& forward, const TrainingRequest& request,
                                    const DeviceDescription& device, const KernelCatalog& catalog,
                                    const CompileHooks& hooks) {
  return SplitSearch(forward, request, device, catalog, hooks).run();
}

}  // namespace plimsoll
