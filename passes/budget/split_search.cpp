#include "passes/budget/split_search.h"

// Where the whole batch needs remats or copies, a few cuts and chunk counts are tried as well. The candidates and the
// work of each search do not depend on the budget, so more budget only adds plans to choose from.

#include "ir/plan/summary.h"
#include "ir/support/parallel.h"
#include "ir/support/units.h"
#include "passes/budget/budget_frontier.h"
#include "passes/budget/budget_report.h"
#include "passes/budget/plain_forms.h"
#include "passes/budget/program_size.h"
#include "passes/budget/split_programs.h"
#include "passes/budget/turned_codes.h"

#include <cassert>
#include <limits>
#include <map>
#include <utility>

namespace plimsoll {
namespace {

constexpr int turned_tries = 4;  // to find how many transposes there is room for; layouts waste some bytes
constexpr double max_slowdown_of_usual = 1.5;  // of a plan that fits; above it a short search runs beside the usual one
constexpr size_t at_once = 2;                  // candidates that are searched beside each other
// Of what is alive in the lowest plan of a short search, what the usual search of the same program may come down to. Of
// 10 programs in refusals of BERT, ViT-L and ResNet-50 one came down to 0.911 of it and the others to 0.98 or more.
constexpr double min_share_of_short = 0.9;
constexpr double max_slowdown_of_lean = 1.001;  // of a form with less workspace for more calls, to stand for another
// From so many nodes on, layouts take a short search about as long as a whole one, see pack_copies.cpp. With the whole
// one first, the refusal of Llama 2 7B (batch 2) takes 17 processor seconds and not 20; that of GPT-2 would take 8,
// not 6.
constexpr int64_t nodes_of_whole_first = 1200;

class SplitSearch {
 public:
  SplitSearch(const ForwardModel& forward, const TrainingRequest& request, const DeviceDescription& device,
              const KernelCatalog& catalog, const CompileHooks& hooks)
      : forward_(forward),
        request_(request),
        device_(device),
        catalog_(catalog),
        hooks_(hooks),
        programs_(forward, request, device, catalog) {}

  Result<CompileResult> run() {
    Result<std::unique_ptr<JobProgram>> whole =
        programs_.program({}, request_.is_short ? forward_.passes.sparing() : forward_.passes, 1, {});
    if (!whole) return whole.takeError();
    whole_ = std::move(*whole);
    splits_.emplace(forward_, request_, programs_, *whole_);
    forms_.emplace(request_, programs_, *whole_);
    if (may_store_transposes()) made_transposes_ = bytes_of_made_transposes(whole_->derived->draft.program);
    if (hooks_.on_phase) hooks_.on_phase("lay out");
    CompileResult result;
    if (request_.frontier) {
      assert(wants_smallest() && "a frontier has slow plans as well");
      assert(request_.enough_bytes == std::numeric_limits<int64_t>::max() && "a frontier ends with a plan");
      Result<Plan> fastest =
          made_transposes_ > 0 ? whole_with_stored(std::numeric_limits<int64_t>::max()) : Result<Plan>(whole_->plain());
      if (!fastest) return fastest.takeError();
      std::optional<Plan> plain = std::move(*fastest);
      if (Status s = consider_joined(std::numeric_limits<int64_t>::max(), plain)) return s;
      if (Status s = consider_copies(*plain, std::numeric_limits<int64_t>::max())) return s;
      Result<std::vector<Plan>> frontier = budget_frontier(*plain, [&](int64_t smaller) -> Result<Plan> {
        Result<std::optional<Plan>> plan = within(smaller);
        if (!plan) return plan.takeError();
        return std::move(**plan);
      });
      if (!frontier) return frontier.takeError();
      result.frontier = std::move(*frontier);
    }
    Result<std::optional<Plan>> plan = within(whole_->first_plan().arenas.front().budget_bytes);
    if (!plan) return plan.takeError();
    if (!*plan) return wants_smallest() ? none_needs_less() : none_is_faster();
    if (request_.keeps_program)
      result.prepared = std::make_shared<PreparedProgram>(PreparedProgram{forward_, std::move(*whole_->derived)});
    result.fits = is_within_budget(**plan);
    result.plan = std::move(**plan);
    result.host_budget_bytes = request_.host_budget_of_rank();
    if (!result.fits) result.split_regions = splits_->regions_for_others(result.plan.fit);
    return result;
  }

 private:
  // The fastest plan within the budget; where there is none, the one that needs least. None where nothing is faster, or
  // needs less, than is asked for. Transposes of stored codes become states where there is room for them beside a step
  // without remats and copies; these would cost what transposes as states save.
  Result<std::optional<Plan>> within(int64_t budget_bytes) {
    if (made_transposes_ == 0) {
      Result<const JobProgram*> fastest = forms_->fastest_of_all(budget_bytes);
      if (!fastest) return fastest.takeError();
      if (*fastest) {
        std::optional<Plan> plan = plain_of(**fastest, budget_bytes);
        if (may_beat_plain(*whole_))
          if (Status s = consider(*whole_, budget_bytes, plan)) return s;
        return plan;
      }
    }
    if (made_transposes_ > 0 && whole_->laid_out->is_within(budget_bytes)) return whole_with_stored(budget_bytes);
    std::optional<Plan> joined;  // bounds what other searches are worth
    if (Status s = consider_joined(budget_bytes, joined)) return s;
    Result<std::optional<Plan>> plan = within_as_made(budget_bytes, std::move(joined));
    if (!plan || !*plan) return plan;
    if (made_transposes_ > 0)
      (*plan)->decisions.push_back(decide_transposes(**plan, made_transposes_, whole_->plain()));
    if (Status s = consider_copies(**plan, budget_bytes)) return s;
    return plan;
  }

  // The plan becomes that of the whole batch with copies of parameters alone where that is faster.
  Status consider_copies(Plan& plan, int64_t budget_bytes) {
    Result<std::vector<const JobProgram*>> forms = forms_->with_copies_within(budget_bytes);
    if (!forms) return forms.takeError();
    for (const JobProgram* form : *forms)
      if (!is_within_budget(plan) || form->plain_us() < plan.predicted_step_us) plan = plain_of(*form, budget_bytes);
    return Status::success();
  }

  // `best` becomes the fastest plan of the forms with joined launches that fits, if any. A remat makes a gelu again
  // with its product, but most gelus are not made again.
  Status consider_joined(int64_t budget_bytes, std::optional<Plan>& best) {
    Result<PlainForms::Forms> forms = forms_->joined_within(budget_bytes);
    if (!forms) return forms.takeError();
    std::vector<const JobProgram*> candidates;
    for (const std::unique_ptr<JobProgram>& form : *forms) candidates.push_back(joined_for(*form, budget_bytes));
    return consider_at_once(candidates, budget_bytes, best);
  }

  const JobProgram* joined_for(const JobProgram& form, int64_t budget_bytes) {
    if (form.laid_out->is_within(budget_bytes) || !request_.recompute) return &form;
    std::unique_ptr<JobProgram>& with_remats = with_remats_[&form];
    if (!with_remats) with_remats = programs_.short_program(form, JobPrograms::MayOffload::No);
    return with_remats.get();
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
      Result<std::unique_ptr<JobProgram>> more = programs_.program({}, forward_.passes.sparing(), 1, {}, room);
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

  // `best`, if any, is a plan within the budget.
  Result<std::optional<Plan>> within_as_made(int64_t budget_bytes, std::optional<Plan> best) {
    std::vector<const JobProgram*> candidates;
    if (Status s = add_whole_forms(budget_bytes, candidates)) return s;
    const bool fits_whole = !candidates.empty() && candidates.front()->laid_out->is_within(budget_bytes);
    const bool is_split = request_.split > 1 || (request_.split < 1 && !fits_whole);
    if (is_split) {
      if (Status s = derive_splits(may_be_long(budget_bytes))) return s;
      // The fastest split that fits without remats bounds what a search is worth. Then comes the whole batch, and of
      // the splits those that need a little more bytes first, which are the likeliest to be faster still.
      const llvm::ArrayRef<std::unique_ptr<JobProgram>> splits = splits_->worthwhile();
      size_t fits = 0;
      while (fits < splits.size() && !splits[fits]->laid_out->is_within(budget_bytes)) ++fits;
      if (fits < splits.size() && may_be_better(*splits[fits], best)) best = plain_of(*splits[fits], budget_bytes);
      for (size_t i = fits; i-- > 0;) candidates.push_back(splits[i].get());
      if (!best && candidates.empty())
        return usage_error("no value of the model allows " + llvm::Twine(request_.split) +
                           " equal chunks of the batch");
    }
    if (Status s = consider_all(candidates, budget_bytes, best)) return s;
    if (!is_split || (!best && !wants_smallest()) || splits_->derived() == SplitPrograms::Derived::All) return best;
    const int64_t enough_bytes = best && is_within_host_budget(*best) ? best->promised_bytes() : request_.enough_bytes;
    if (!may_be_long(best ? best->promised_bytes() : request_.enough_bytes)) return best;
    if (!splits_->may_long_need_less(enough_bytes)) return best;
    // Nothing fits, and long programs may need less. The short ones that are kept are those that were looked at.
    if (Status s = derive_splits(true, enough_bytes)) return s;
    candidates.clear();
    for (const std::unique_ptr<JobProgram>& split : splits_->worthwhile())
      if (split->is_long) candidates.push_back(split.get());
    if (Status s = consider_smallest(candidates, budget_bytes, best)) return s;
    return best;
  }

  // A refusal of another job may name this one with what a short search found for it. Whether there are short searches
  // must not follow from what the usual ones find, or a smaller budget, for which these find less, might have the
  // faster plan.
  bool has_short_searches(int64_t budget_bytes) const {
    if (request_.is_short || request_.effort != 1 || request_.is_one_of_many) return false;
    return !whole_->laid_out->is_within(budget_bytes);
  }

  double slow_us() const { return max_slowdown_of_usual * whole_->plain_us(); }

  // Whether it will be, beside the usual searches of the candidates. Of a single one, bounds of what its search may
  // find say so. Several are searched one after the other, which leaves a core idle for a third of the time.
  bool will_short_search_be_worth_it(llvm::ArrayRef<const JobProgram*> candidates, const std::optional<Plan>& best,
                                     int64_t budget_bytes) const {
    if (candidates.empty() || !has_short_searches(budget_bytes)) return false;
    if (candidates.size() > 1) return true;
    if (best && best->predicted_step_us <= slow_us()) return false;
    const JobProgram& only = *candidates.front();
    return may_fit(only.options, *only.laid_out, budget_bytes) &&
           only.plans().likely_us_within(budget_bytes) > slow_us();
  }

  // `best`, if any a plan within the budget, becomes what short searches of the programs that were looked at find
  // within the budget where that is better; of the whole batch, the form with less workspace for most calls. These
  // searches are added to `candidates`.
  Status consider_short(int64_t budget_bytes, std::optional<Plan>& best, std::vector<const JobProgram*>& candidates) {
    add_short(best, candidates);
    for (llvm::ArrayRef<const JobProgram*> left = candidates; !left.empty();) {
      const llvm::ArrayRef<const JobProgram*> some = left.take_front(std::min(left.size(), at_once));
      left = left.drop_front(some.size());
      if (Status s = consider_at_once(some, budget_bytes, best)) return s;
    }
    return Status::success();
  }

  // The same beside the usual searches of `usual`. Neither chain is bounded by what the other finds.
  Status consider_with_short(llvm::ArrayRef<const JobProgram*> usual, int64_t budget_bytes, std::optional<Plan>& best,
                             std::vector<const JobProgram*>& candidates) {
    add_short(best, candidates);
    std::optional<Plan> of_short = best;
    std::optional<Status> done[2];
    parallel_for(2, [&](size_t i) {
      done[i].emplace(i == 0 ? consider_in_turn(usual, budget_bytes, best)
                             : consider_in_turn(candidates, budget_bytes, of_short));
    });
    if (of_short && (!best || is_better(*of_short, *best))) best = std::move(of_short);
    return llvm::joinErrors(std::move(*done[0]), std::move(*done[1]));
  }

  // Adds what short searches are made of, where their plans may be better than `best`.
  void add_short(const std::optional<Plan>& best, std::vector<const JobProgram*>& candidates) {
    std::vector<const JobProgram*> usual;
    if (lean_ && request_.split <= 1) usual.push_back(lean_->back());
    for (llvm::ArrayRef<std::unique_ptr<JobProgram>> splits : {splits_->worthwhile(), splits_->others()})
      for (const std::unique_ptr<JobProgram>& split : splits) usual.push_back(split.get());
    llvm::erase_if(usual, [&](const JobProgram* candidate) {
      return (candidate->is_long && programs_.tries_many()) || !may_be_better(*candidate, best);
    });
    for (const JobProgram* candidate : usual) {
      std::unique_ptr<JobProgram>& made = short_[candidate];
      if (!made) made = programs_.short_program(*candidate);
      candidates.push_back(made.get());
    }
  }

  // Short searches go with the programs that they are of.
  Status derive_splits(bool with_long, int64_t enough_bytes = std::numeric_limits<int64_t>::max()) {
    const SplitPrograms::Derived before = splits_->derived();
    Status s = splits_->derive(with_long, enough_bytes);
    if (splits_->derived() != before) short_.clear();
    return s;
  }

  bool wants_smallest() const { return request_.enough_us == std::numeric_limits<double>::infinity(); }

  bool may_beat_plain(const JobProgram& candidate) const {
    return request_.accumulate > 1 && candidate.plans().may_beat_plain();
  }

  // Whether any plan of the program may be. None takes less time than without remats and copies, unless ranks wait for
  // each other or accumulated gradients are on the host.
  bool may_be_better(const JobProgram& candidate, const std::optional<Plan>& best) const {
    return !best || request_.mesh.ranks() > 1 || candidate.plain_us() < best->predicted_step_us ||
           may_beat_plain(candidate);
  }

  // Whether a program that is too long for states on the host may be within the bytes. Short searches do without.
  bool may_be_long(int64_t bytes) const {
    if (request_.split > 1 || request_.frontier || !request_.offload) return true;
    if (request_.is_short) return false;
    const Plan& plain = whole_->laid_out->first();
    int64_t states = 0;
    for (const PlanState& state : plain.states)
      if (plain.slots[state.slot].space == MemorySpace::Device) states += plain.slots[state.slot].bytes;
    return device_.reserve_bytes() + states <= bytes;
  }

  // Adds the whole batch where it may be a candidate: as it is planned without a budget where that fits, otherwise with
  // less workspace, in all forms. So a larger budget has every form that a smaller one has.
  Status add_whole_forms(int64_t budget_bytes, std::vector<const JobProgram*>& candidates) {
    if (request_.split > 1) return Status::success();
    if (whole_->laid_out->is_within(budget_bytes)) {
      candidates.push_back(whole_.get());
      return Status::success();
    }
    if (!lean_)
      if (Status s = make_lean()) return s;
    candidates.insert(candidates.end(), lean_->begin(), lean_->end());
    return Status::success();
  }

  // Forms with less workspace for more and more calls. One that hardly takes longer stands for the one before, which
  // needs no less.
  Status make_lean() {
    lean_.emplace();
    const std::vector<CallKeys> sets = lean_call_sets(whole_->plain(), catalog_);
    lean_->push_back(whole_.get());
    std::vector<std::optional<Result<std::unique_ptr<JobProgram>>>> made(sets.size());
    parallel_for(made.size(),
                 [&](size_t i) { made[i].emplace(programs_.program({}, forward_.passes.sparing(), 1, sets[i])); });
    Status failed = Status::success();
    for (std::optional<Result<std::unique_ptr<JobProgram>>>& form : made) {
      if (!*form) {
        failed = llvm::joinErrors(std::move(failed), form->takeError());
        continue;
      }
      JobProgram& lean = *lean_programs_.emplace_back(std::move(**form));
      if (lean.plain_us() <= max_slowdown_of_lean * lean_->back()->plain_us()) lean_->pop_back();
      lean_->push_back(&lean);
    }
    return failed;
  }

  // `best` becomes the plan of a candidate that is better. Where none is within the budget, the plan that needs least
  // is looked for where bounds, and what others need, show that it may be.
  Status consider_all(llvm::ArrayRef<const JobProgram*> candidates, int64_t budget_bytes, std::optional<Plan>& best) {
    std::vector<const JobProgram*> short_candidates;
    if (will_short_search_be_worth_it(candidates, best, budget_bytes)) {
      if (Status s = consider_with_short(candidates, budget_bytes, best, short_candidates)) return s;
    } else {
      if (Status s = consider_in_turn(candidates, budget_bytes, best)) return s;
      if (has_short_searches(budget_bytes))
        if (Status s = consider_short(budget_bytes, best, short_candidates)) return s;
    }
    if ((best && is_within_budget(*best)) || !wants_smallest()) return Status::success();
    const std::vector<const JobProgram*> leanest = without_larger_forms(candidates);
    if (nodes_of(whole_->derived->draft.program) < nodes_of_whole_first) {
      if (Status s = consider_smallest(short_candidates, budget_bytes, best)) return s;
      return consider_smallest(without_hopeless(leanest, best), budget_bytes, best);
    }
    // What short searches start from does not depend on what is found before.
    std::optional<Status> searched;
    parallel_for(2, [&](size_t i) {
      if (i == 0)
        searched.emplace(consider_smallest(leanest, budget_bytes, best));
      else
        prepare_smallest(short_candidates, budget_bytes);
    });
    if (*searched) return std::move(*searched);
    return consider_smallest(short_candidates, budget_bytes, best);
  }

  // Of the forms of the whole batch, that with less workspace for most calls needs least, but for what searches miss.
  // The short searches of a usual job have that one as well.
  std::vector<const JobProgram*> without_larger_forms(llvm::ArrayRef<const JobProgram*> candidates) const {
    std::vector<const JobProgram*> kept = candidates.vec();
    llvm::erase_if(kept, [&](const JobProgram* candidate) {
      return lean_ && candidate != lean_->back() && llvm::is_contained(*lean_, candidate);
    });
    return kept;
  }

  // Those of which short searches show that the usual ones may need less than `best`.
  std::vector<const JobProgram*> without_hopeless(std::vector<const JobProgram*> candidates,
                                                  const std::optional<Plan>& best) const {
    if (!best || !is_within_host_budget(*best)) return candidates;
    llvm::erase_if(candidates, [&](const JobProgram* candidate) {
      const auto made = short_.find(candidate);
      if (made == short_.end()) return false;
      const std::optional<int64_t> lowest = made->second->plans().lowest_live_bytes();
      return lowest && min_share_of_short * static_cast<double>(*lowest) >= static_cast<double>(best->promised_bytes());
    });
    return candidates;
  }

  // `best` becomes the plan of one of them that needs less. Two are searched at once, however many cores there are, so
  // that what is searched does not depend on the machine.
  Status consider_smallest(llvm::ArrayRef<const JobProgram*> candidates, int64_t budget_bytes,
                           std::optional<Plan>& best) const {
    struct Bounded {
      const JobProgram* candidate;
      int64_t min_bytes;
    };
    const auto enough = [&] {
      const bool is_met = best && is_within_host_budget(*best);
      return is_met ? std::min(best->promised_bytes(), request_.enough_bytes) : request_.enough_bytes;
    };
    std::vector<Bounded> order(candidates.size());
    parallel_for(order.size(), [&](size_t i) {
      order[i] = {candidates[i], min_bytes(*candidates[i], budget_bytes, enough())};
    });
    llvm::stable_sort(order, [](const Bounded& a, const Bounded& b) { return a.min_bytes < b.min_bytes; });
    for (size_t next = 0; next < order.size();) {
      const int64_t enough_bytes = enough();
      llvm::SmallVector<const JobProgram*, at_once> some;
      for (; next < order.size() && order[next].min_bytes < enough_bytes && some.size() < at_once; ++next)
        some.push_back(order[next].candidate);
      if (some.empty()) break;
      if (Status s = consider_smallest_at_once(some, budget_bytes, enough_bytes, best)) return s;
    }
    return Status::success();
  }

  static void prepare_smallest(llvm::ArrayRef<const JobProgram*> candidates, int64_t budget_bytes) {
    for (const JobProgram* candidate : candidates)
      if (may_fit(candidate->options, *candidate->laid_out, budget_bytes))
        candidate->plans().prepare_smallest(budget_bytes);
  }

  // `best` becomes the candidate's fastest plan within the budget where that is faster.
  Status consider(const JobProgram& candidate, int64_t budget_bytes, std::optional<Plan>& best) const {
    if (!may_be_better(candidate, best) || !may_fit(candidate.options, *candidate.laid_out, budget_bytes))
      return Status::success();
    const double enough_us = best ? std::min(request_.enough_us, best->predicted_step_us) : request_.enough_us;
    Result<std::optional<Plan>> plan = candidate.plans().fastest(budget_bytes, enough_us);
    if (!plan) return plan.takeError();
    if (*plan && (!best || is_better(**plan, *best))) best = explained(std::move(**plan), candidate);
    return Status::success();
  }

  // The same for one after the other.
  Status consider_in_turn(llvm::ArrayRef<const JobProgram*> candidates, int64_t budget_bytes,
                          std::optional<Plan>& best) const {
    for (const JobProgram* candidate : candidates)
      if (Status s = consider(*candidate, budget_bytes, best)) return s;
    return Status::success();
  }

  // The same for several, none of which is bounded by what another finds.
  Status consider_at_once(llvm::ArrayRef<const JobProgram*> candidates, int64_t budget_bytes,
                          std::optional<Plan>& best) const {
    std::vector<std::optional<Plan>> found(candidates.size(), best);
    std::vector<std::optional<Status>> done(candidates.size());
    parallel_for(found.size(), [&](size_t i) { done[i].emplace(consider(*candidates[i], budget_bytes, found[i])); });
    Status failed = Status::success();
    for (size_t i = 0; i < found.size(); ++i) {
      failed = llvm::joinErrors(std::move(failed), std::move(*done[i]));
      if (found[i] && (!best || is_better(*found[i], *best))) best = std::move(found[i]);
    }
    return failed;
  }

  Status consider_smallest_at_once(llvm::ArrayRef<const JobProgram*> candidates, int64_t budget_bytes,
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
  static Result<std::optional<Plan>> smallest_of(const JobProgram& candidate, int64_t budget_bytes,
                                                 int64_t enough_bytes) {
    if (may_fit(candidate.options, *candidate.laid_out, budget_bytes))
      return candidate.plans().smallest(budget_bytes, enough_bytes);
    return std::optional(with_budget(candidate.plain(), budget_bytes));
  }

  // What the candidate's plans need at least. Where it is `enough_bytes` or more, it may be less than that.
  static int64_t min_bytes(const JobProgram& candidate, int64_t budget_bytes, int64_t enough_bytes) {
    if (may_fit(candidate.options, *candidate.laid_out, budget_bytes)) return candidate.plans().min_bytes();
    const int64_t bytes = candidate.laid_out->min_bytes();
    return bytes < enough_bytes ? candidate.plain().promised_bytes() : bytes;
  }

  Plan plain_of(const JobProgram& candidate, int64_t budget_bytes) const {
    return explained(with_budget(candidate.plain(), budget_bytes), candidate);
  }

  Plan explained(Plan plan, const JobProgram& candidate) const {
    std::vector<Decision> decisions = candidate.derived->passes.decisions();
    plan.mesh = request_.mesh;
    plan.fit.chunks = candidate.chunks;
    plan.fit.chunks_from = candidate.from;
    if (candidate.chunks > 1)
      decisions.push_back(
          {"split-batch", candidate.from, std::to_string(candidate.chunks) + " chunks",
           "what follows is made for one chunk of the batch after the other: without remats and copies needs " +
               format_bytes(candidate.plain().promised_bytes()) + " and takes " + format_us(candidate.plain_us()) +
               ", whole " + format_bytes(whole_->plain().promised_bytes()) + " and " + format_us(whole_->plain_us())});
    const int64_t lean = candidate.lean_calls > 0 ? give_workspaces_back(plan, catalog_) : 0;
    if (lean > 0)
      decisions.push_back({"workspace", "plan", std::to_string(lean) + " kernels with less workspace",
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
  JobPrograms programs_;
  std::unique_ptr<JobProgram> whole_;
  std::optional<PlainForms> forms_;
  std::map<const JobProgram*, std::unique_ptr<JobProgram>> with_remats_;  // by form with joined launches
  int64_t made_transposes_ = 0;  // bytes of transposes of stored codes, where these may be states
  // The whole batch with less workspace for some calls. `lean_` is in the order of their number; none: not made yet.
  std::vector<std::unique_ptr<JobProgram>> lean_programs_;
  std::optional<std::vector<const JobProgram*>> lean_;
  std::optional<SplitPrograms> splits_;
  std::map<const JobProgram*, std::unique_ptr<JobProgram>> short_;  // with a short search, by the usual one
};

}  // namespace

Result<CompileResult> search_splits(const ForwardModel& forward, const TrainingRequest& request,
                                    const DeviceDescription& device, const KernelCatalog& catalog,
                                    const CompileHooks& hooks) {
  return SplitSearch(forward, request, device, catalog, hooks).run();
}

}  // namespace plimsoll
