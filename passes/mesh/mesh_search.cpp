#include "passes/mesh/mesh_search.h"

// All candidates are estimated. Compiled are the fastest few, and of the slower ones those that need noticeably fewer
// bytes than every faster one: one of them is the best for each budget, as far as the estimates go.

#include "ir/support/parallel.h"
#include "ir/support/units.h"
#include "passes/budget/budget_report.h"
#include "passes/budget/guess_pipeline.h"
#include "passes/budget/program_size.h"
#include "passes/budget/stage_search.h"
#include "passes/derive_stages.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <map>
#include <optional>

namespace plimsoll {
namespace {

constexpr size_t fastest_compiled = 4;
constexpr size_t max_compiled = 8;
constexpr double min_saving = 0.1;        // share of its bytes that a slower candidate must save to be compiled
constexpr double min_gain = 0.03;         // share of the step that more cards must save for their own meshes
constexpr double share_for_states = 0.6;  // of a budget, as guesses have it
constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr int64_t any_bytes = int64_t{1} << 50;  // more than a device has, and sums of it fit an integer
constexpr double sure_share = 0.8;               // of an estimate that the plan will surely have,
constexpr double sure_time = 0.9;                // and of its time
constexpr double search_effort = 0.25;           // of each candidate's remats and copies, as a share of the usual

class MeshSearch {
 public:
  explicit MeshSearch(const MeshSearchInput& input) : in_(input) {}
  ~MeshSearch() {
    llvm::consumeError(std::move(first_failure_));
    for (Candidate& candidate : all_)
      if (candidate.ahead && !*candidate.ahead) llvm::consumeError(candidate.ahead->takeError());
  }

  Result<CompileResult> run() {
    if (Status s = estimate()) return s;
    if (all_.empty()) return without_candidates();
    const std::vector<int64_t> numbers = numbers_of_cards();
    for (const bool reaches : {true, false}) {
      for (size_t i = 0; i < numbers.size(); ++i) {
        compile_plain(numbers[i], reaches);
        if (Status s = fit_beside(i + 1 < numbers.size() ? numbers[i + 1] : 0, reaches)) return s;
      }
      if (best_ && best_->fits) break;
    }
    if (!best_) return std::move(first_failure_);
    return explained();
  }

 private:
  // A mesh that is given is compiled even so, or says why it cannot be.
  Result<CompileResult> without_candidates() const {
    if (in_.question.mesh) return in_.compile(in_.request);
    return usage_error("no mesh of up to " + llvm::Twine(in_.question.cards) + " cards can share the job");
  }

  struct Candidate {
    MeshCandidate what;
    MeshEstimate estimate;
    std::optional<CompileResult> plain;          // without remats and copies, and the program of that
    std::optional<Result<CompileResult>> ahead;  // becomes `plain`, where it is compiled before it is wanted
    bool failed_ahead = false;                   // that is an error
    std::optional<double> guess_us;              // of a step within the budget, of a pipeline
    bool failed = false;                         // it cannot be compiled
    bool is_considered = false;
  };

  Status estimate() {
    Result<DeviceDescription> device = in_.device_for({});
    if (!device) return device.takeError();
    budget_bytes_ = in_.request.budget_bytes > 0 ? in_.request.budget_bytes : device->memory_bytes;
    has_host_ = in_.request.offload && device->to_host_gb_per_s > 0 && device->from_host_gb_per_s > 0;
    const std::optional<Mesh>& given = in_.question.mesh;
    const TensorRanks tensor{given ? (*given)[MeshAxis::Tensor] : in_.question.cards, given.has_value()};
    Result<ModelProfile> profile = profile_model(in_.model, in_.request, tensor, *device, in_.catalog);
    if (!profile) return profile.takeError();
    MeshQuestion question = in_.question;
    question.batch = profile->batch;
    question.accumulates = in_.request.accumulate > 1;
    Mesh along_data;
    along_data[MeshAxis::Data] = 2;
    question.gathers_copies = in_.request.zero_as_done(1, along_data) == 3;
    question.max_stages = static_cast<int64_t>(profile->stages.block_share.size());
    if (in_.request.frontier) question.max_stages = 1;  // smaller budgets are not searched for stages
    for (const MeshCandidate& what : mesh_candidates(question, profile->tensor_sizes())) {
      if (!profile->with.count(what.mesh[MeshAxis::Tensor])) continue;
      Result<DeviceDescription> linked = in_.device_for(what.mesh);
      if (!linked) return linked.takeError();
      Candidate candidate{what, estimate_mesh(*profile, what, in_.request, *linked)};
      if (candidate.estimate.nodes <= static_cast<int64_t>(max_pipeline_nodes)) all_.push_back(std::move(candidate));
    }
    std::stable_sort(all_.begin(), all_.end(), [](const Candidate& a, const Candidate& b) {
      return std::pair(a.estimate.us, a.estimate.bytes) < std::pair(b.estimate.us, b.estimate.bytes);
    });
    return Status::success();
  }

  // For how many cards meshes are chosen, the most first: for those that by estimates save time or bytes where there
  // are so many and no more. Smaller numbers alone decide about each, so more cards add numbers and take none away.
  std::vector<int64_t> numbers_of_cards() const {
    std::map<int64_t, std::pair<double, double>> least;  // microseconds and bytes of the meshes of so many ranks
    for (const Candidate& candidate : all_) {
      auto& [us, bytes] = least.try_emplace(candidate.what.mesh.ranks(), infinity, infinity).first->second;
      us = std::min(us, candidate.estimate.us);
      bytes = std::min(bytes, static_cast<double>(candidate.estimate.bytes));
    }
    std::vector<int64_t> numbers;
    double least_us = infinity, least_bytes = infinity;
    for (const auto& [cards, of_cards] : least) {
      const auto [us, bytes] = of_cards;
      if (us > (1 - min_gain) * least_us && bytes > (1 - min_saving) * least_bytes) continue;
      numbers.insert(numbers.begin(), cards);
      least_us = std::min(least_us, us);
      least_bytes = std::min(least_bytes, bytes);
    }
    return numbers;
  }

  // What is compiled where there are so many cards, by estimates: the fastest, each a mesh of its own, and those that
  // save bytes.
  std::vector<Candidate*> worthwhile(int64_t cards, llvm::function_ref<bool(const Candidate&)> is_left_out) {
    std::vector<Candidate*> chosen;
    double least_bytes = infinity;
    for (Candidate& candidate : all_) {
      if (candidate.failed || is_left_out(candidate) || candidate.what.mesh.ranks() > cards) continue;
      const auto bytes = static_cast<double>(candidate.estimate.bytes);
      const bool saves = bytes <= (1 - min_saving) * least_bytes;
      const bool is_new = llvm::none_of(chosen, [&](const Candidate* other) {
        return other->what.mesh == candidate.what.mesh && other->what.zero == candidate.what.zero;
      });
      if (!saves && !(chosen.size() < fastest_compiled && is_new)) continue;
      chosen.push_back(&candidate);
      least_bytes = std::min(least_bytes, bytes);
    }
    // Of many, the fastest and the smallest stay.
    while (chosen.size() > max_compiled) chosen.erase(chosen.end() - 2);
    return chosen;
  }

  TrainingRequest request_of(const Candidate& candidate) const {
    TrainingRequest request = in_.request;
    request.mesh = candidate.what.mesh;
    request.zero = candidate.what.zero;
    if (request.mesh[MeshAxis::Stage] > 1) {
      request.micro_batches = candidate.what.micro_batches;
      request.schedule = candidate.what.schedule;
    }
    request.effort *= search_effort;
    request.is_one_of_many = true;
    request.frontier = false;
    return request;
  }

  // Whether the searches of the candidate's stages can reach the budget, by its estimate and with room for its error.
  bool may_reach(const Candidate& candidate) const {
    const int64_t stages = candidate.what.mesh[MeshAxis::Stage];
    if (stages == 1 || candidate.estimate.bytes <= 0) return true;
    const auto smaller = [](int64_t number) { return static_cast<int64_t>(static_cast<double>(number) * sure_share); };
    return !is_long_for_many(smaller(candidate.estimate.nodes / stages)) ||
           smaller(static_cast<int64_t>(long_min_share * static_cast<double>(candidate.estimate.bytes))) <=
               budget_bytes_;
  }

  // Bounds, or its estimate with room for the error, show that no plan of it is better than the best one.
  bool is_surely_worse(const Candidate& candidate) const {
    if (!best_) return false;
    return is_over_memory(candidate) || (best_->fits && is_surely_slower(candidate, us_of(*best_)));
  }

  bool is_surely_slower(const Candidate& candidate, double us) const {
    return candidate.estimate.least_us_within(budget_bytes_) >= us || sure_time * candidate.estimate.us >= us;
  }

  bool searches() const { return in_.request.recompute || in_.request.offload || in_.request.split != 1; }

  enum class Layouts : uint8_t { Searched, QuickAboveBudget };
  // Pipelines that surely need more than the budget have quick layouts where they are searched further.
  Result<CompileResult> plain_of(const Candidate& candidate, Layouts layouts) const {
    TrainingRequest request = request_of(candidate);
    if (layouts == Layouts::QuickAboveBudget && searches()) request.quick_above_bytes = budget_bytes_;
    request.recompute = request.offload = false;
    if (request.split == 0) request.split = 1;
    request.budget_bytes = any_bytes;  // stages are cut by their times alone
    request.keeps_program = true;
    return in_.compile(request);
  }

  // Fits `compiled_`. A search seldom keeps all cores busy: beside it, what will probably be worthwhile on so many
  // cards is compiled ahead. Which candidates count in the end does not depend on that.
  Status fit_beside(int64_t next_cards, bool reaches) {
    std::vector<bool> may_come(all_.size(), false);  // by candidate
    if (next_cards > 0 && !compiled_.empty() && !compiled_.front()->plain->fits) {
      double us = infinity;
      for (const Candidate* candidate : compiled_) us = std::min(us, guess_us(*candidate));
      for (size_t i = 0; i < all_.size(); ++i)
        may_come[i] = !all_[i].is_considered && !all_[i].plain && !is_surely_worse(all_[i]) &&
                      !is_over_memory(all_[i]) && !is_surely_slower(all_[i], us) && (!reaches || may_reach(all_[i]));
    }
    std::optional<Status> fitted;
    std::atomic<bool> is_fitted = false;
    const auto compile_ahead = [&] {
      while (!is_fitted) {
        const std::vector<Candidate*> all =
            worthwhile(next_cards, [](const Candidate& other) { return other.failed_ahead; });
        const auto next = llvm::find_if(
            all, [&](const Candidate* candidate) { return may_come[candidate - all_.data()] && !candidate->ahead; });
        if (next == all.end()) return;
        (*next)->ahead.emplace(plain_of(**next, Layouts::QuickAboveBudget));
        (*next)->failed_ahead = !*(*next)->ahead;
      }
    };
    parallel_for(llvm::is_contained(may_come, true) ? 2 : 1, [&](size_t task) {
      if (task == 1) return compile_ahead();
      fitted.emplace(fit());
      is_fitted = true;
    });
    return std::move(*fitted);
  }

  // What is worthwhile on so many cards: what may reach the budget, or all. Candidates that cannot be compiled make
  // room for the next.
  void compile_plain(int64_t cards, bool reaches) {
    compiled_.clear();
    for (;;) {
      std::vector<Candidate*> fresh;
      for (Candidate* candidate : worthwhile(cards, [](const Candidate&) { return false; }))
        if (!candidate->is_considered && !candidate->plain && !is_surely_worse(*candidate) &&
            (!reaches || may_reach(*candidate)))
          fresh.push_back(candidate);
      if (fresh.empty()) break;
      std::vector<std::optional<Result<CompileResult>>> results(fresh.size());
      parallel_for(fresh.size(), [&](size_t i) {
        results[i].emplace(fresh[i]->ahead ? std::move(*fresh[i]->ahead)
                                           : plain_of(*fresh[i], Layouts::QuickAboveBudget));
      });
      for (size_t i = 0; i < fresh.size(); ++i) {
        if (*results[i]) {
          fresh[i]->plain = within_budget(std::move(**results[i]));
          compiled_.push_back(fresh[i]);
          continue;
        }
        fresh[i]->failed = true;
        if (first_failure_)
          llvm::consumeError(results[i]->takeError());
        else
          first_failure_ = results[i]->takeError();
      }
    }
    std::stable_sort(compiled_.begin(), compiled_.end(),
                     [](const Candidate* a, const Candidate* b) { return us_of(*a->plain) < us_of(*b->plain); });
  }

  CompileResult within_budget(CompileResult result) const {
    const auto set = [&](Plan& plan) {
      plan.arenas.front().budget_bytes = budget_bytes_;
      result.fits &= is_within_budget(plan);
    };
    set(result.plan);
    for (Plan& stage : result.plan.later_stages) set(stage);
    return result;
  }

  static double us_of(const CompileResult& result) { return result.plan.predicted_step_us; }

  // Can no plan of the candidate be within the budgets?
  bool is_over_memory(const Candidate& candidate) const {
    const MeshEstimate& least = candidate.estimate;
    if (least.least_device_bytes > budget_bytes_) return true;
    if (!has_host_) return least.least_bytes > budget_bytes_;
    TrainingRequest request = in_.request;
    request.mesh = candidate.what.mesh;
    const int64_t host_bytes = request.host_budget_of_rank();
    return host_bytes > 0 && least.least_bytes > budget_bytes_ + host_bytes;
  }

  // The fastest that fits as it is bounds what a search for remats is worth. Of the faster ones those that look best
  // come first: what they come to rules out others, whose searches take long. The order does not change the result.
  Status fit() {
    size_t fits = 0;
    while (fits < compiled_.size() && !compiled_[fits]->plain->fits) ++fits;
    if (fits < compiled_.size()) consider_plain(*compiled_[fits]);
    std::vector<Candidate*> faster(compiled_.begin(), compiled_.begin() + static_cast<std::ptrdiff_t>(fits));
    parallel_for(faster.size() > 1 ? faster.size() : 0, [&](size_t i) {
      if (within_budget_of(*faster[i])) faster[i]->guess_us = guess_pipeline_us(faster[i]->plain->plan, budget_bytes_);
    });
    llvm::stable_sort(faster, [&](const Candidate* a, const Candidate* b) { return guess_us(*a) < guess_us(*b); });
    if (Status s = try_within_budget(faster)) return s;
    for (size_t i = fits + 1; i < compiled_.size(); ++i) consider_plain(*compiled_[i]);
    return Status::success();
  }

  // Of a pipeline, what quickly found remats of its slowest stage come to. Otherwise a forward that is computed again
  // is about a third of a step, and frees most of the bytes. The cheapest come first: half of the bytes take a quarter
  // of that time. About half of the copies hides beside computing, and states share the budget with what forward saves.
  double guess_us(const Candidate& candidate) const {
    if (candidate.guess_us) return *candidate.guess_us;
    double freed = 0;  // the largest share of a stage's transient bytes that is too much
    for (const Plan* stage : candidate.plain->plan.stages()) {
      const Arena& arena = stage->arenas.front();
      freed = std::max(freed, static_cast<double>(stage->promised_bytes() - budget_bytes_) /
                                  std::max(1.0, static_cast<double>(arena.bytes - arena.persistent_bytes)));
    }
    return us_of(*candidate.plain) * (1 + std::min(freed, freed * freed) / 3) +
           candidate.estimate.host_us(static_cast<int64_t>(share_for_states * static_cast<double>(budget_bytes_))) / 2;
  }

  // Whether the searches of a pipeline's stages can reach the budget.
  bool are_searched_far_enough(const CompileResult& plain) const {
    return plain.plan.pipeline.schedule.empty() || llvm::all_of(plain.plan.stages(), [&](const Plan* stage) {
             return may_fit_as_one_of_many(*stage, budget_bytes_);
           });
  }

  // What its search is asked for; none where bounds show that none is worthwhile.
  std::optional<TrainingRequest> within_budget_of(const Candidate& candidate) const {
    const double least_us = std::max(us_of(*candidate.plain), candidate.estimate.least_us_within(budget_bytes_));
    const bool is_too_slow = best_ && best_->fits && least_us >= us_of(*best_);
    const bool is_too_large = best_ && (is_over_memory(candidate) || !are_searched_far_enough(*candidate.plain));
    if (!searches() || is_too_slow || is_too_large) return std::nullopt;
    TrainingRequest request = request_of(candidate);
    if (best_ && best_->fits) request.enough_us = us_of(*best_);
    request.prepared = candidate.plain->prepared;
    return request;
  }

  // Tries them in their order, two beside each other where the first is guessed to be slower than the best: then the
  // second hardly ever has to be tried again because the best has become another.
  Status try_within_budget(std::vector<Candidate*> candidates) {
    while (!candidates.empty()) {
      const bool fits = best_ && best_->fits;
      if (fits) drop_what_is_not_searched(candidates);
      if (candidates.empty()) break;
      const size_t count = candidates.size() > 1 && fits && guess_us(*candidates.front()) >= us_of(*best_) ? 2 : 1;
      std::vector<std::optional<Result<CompileResult>>> results(count);
      parallel_for(count, [&](size_t i) {
        if (const std::optional<TrainingRequest> request = within_budget_of(*candidates[i]))
          results[i].emplace(in_.compile(*request));
      });
      Status failed = Status::success();
      const Candidate* chosen = chosen_;
      size_t tried = 0;
      for (; tried < count && !failed && chosen == chosen_; ++tried)
        failed = take(*candidates[tried], std::move(results[tried]));
      for (std::optional<Result<CompileResult>>& left : llvm::MutableArrayRef(results).drop_front(tried))
        if (left && !*left) llvm::consumeError(left->takeError());
      if (failed) return failed;
      candidates.erase(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(tried));
    }
    return Status::success();
  }

  // Of these only the plain plans count: where they are too slow now, they stay so.
  void drop_what_is_not_searched(std::vector<Candidate*>& candidates) {
    llvm::erase_if(candidates, [&](Candidate* candidate) {
      if (within_budget_of(*candidate)) return false;
      consider_plain(*candidate);
      candidate->plain->prepared.reset();
      return true;
    });
  }

  // Considers what was found within the budget, or the plain plan.
  Status take(Candidate& candidate, std::optional<Result<CompileResult>> found) {
    if (found && !*found) return found->takeError();
    if (found && !(*found)->is_too_slow)
      consider(candidate, std::move(**found));
    else
      consider_plain(candidate);
    candidate.plain->prepared.reset();
    return Status::success();
  }

  // Where nothing fits, bytes decide, and quick layouts may have more than they need.
  void consider_plain(Candidate& candidate) {
    CompileResult& plain = *candidate.plain;
    const bool may_need_least = !best_ || (!best_->fits && (least_bytes(plain.plan) < best_->plan.promised_bytes() ||
                                                            !is_within_host_budget(best_->plan)));
    if (may_need_least && may_be_quick(plain))
      plain = within_budget(llvm::cantFail(plain_of(candidate, Layouts::Searched)));
    consider(candidate, std::move(plain));
  }

  bool may_be_quick(const CompileResult& plain) const {
    const auto is_above = [&](const Plan* stage) { return least_bytes(*stage) > budget_bytes_; };
    return searches() && !plain.plan.pipeline.schedule.empty() && llvm::any_of(plain.plan.stages(), is_above);
  }

  void consider(Candidate& candidate, CompileResult result) {
    candidate.is_considered = true;
    result.prepared.reset();
    const Plan& plan = result.plan;
    tried_.push_back({candidate.what.mesh, candidate.what.zero, plan.pipeline, result.fits, most_bytes(plan),
                      plan.predicted_step_us});
    const bool better = !best_ || (result.fits != best_->fits ? result.fits
                                   : result.fits              ? us_of(result) < us_of(*best_)
                                                              : needs_less(plan, best_->plan));
    if (!better) return;
    std::swap(tried_.front(), tried_.back());
    best_ = std::move(result);
    chosen_ = &candidate;
  }

  static int64_t most_bytes(const Plan& plan) {
    int64_t bytes = 0;
    for (const Plan* stage : plan.stages()) bytes = std::max(bytes, stage->promised_bytes());
    return bytes;
  }

  // The plans of smaller budgets are those of the mesh that was chosen.
  Status add_frontier() {
    TrainingRequest request = request_of(*chosen_);
    request.effort = in_.request.effort;
    request.frontier = true;
    Result<CompileResult> result = in_.compile(request);
    if (result) best_ = std::move(*result);
    return result.takeError();
  }

  Result<CompileResult> explained() {
    if (in_.request.frontier)
      if (Status s = add_frontier()) return s;
    Plan& plan = best_->plan;
    MeshSearchSummary& search = plan.mesh_search;
    search.cards = in_.question.cards;
    search.considered = static_cast<int64_t>(all_.size());
    search.bound_us = plan.predicted_step_us;
    for (const Candidate& candidate : all_) {
      if (candidate.plain || candidate.failed) continue;
      if (is_over_memory(candidate) || !may_reach(candidate))
        ++search.over_memory;
      else if (best_->fits && candidate.estimate.least_us_within(budget_bytes_) >= plan.predicted_step_us)
        ++search.over_time;
      else
        search.bound_us = std::min(search.bound_us, candidate.estimate.least_us_within(budget_bytes_));
    }
    std::stable_sort(tried_.begin() + 1, tried_.end(), [](const TriedMesh& a, const TriedMesh& b) {
      return std::pair(!a.fits, a.step_us) < std::pair(!b.fits, b.step_us);
    });
    search.compiled = std::move(tried_);
    plan.decisions.push_back({"mesh", "plan", describe(search.compiled.front()), reason(search)});
    return std::move(*best_);
  }

  static std::string reason(const MeshSearchSummary& search) {
    std::string text = "of " + std::to_string(search.considered) + " candidates, " +
                       std::to_string(search.over_memory) + " need more memory and " +
                       std::to_string(search.over_time) + " more time at least; compiled: ";
    for (const TriedMesh& tried : search.compiled)
      text += (&tried == &search.compiled.front() ? "" : "; ") + describe(tried) + " takes " +
              format_us(tried.step_us) + " in " + format_bytes(tried.bytes) + (tried.fits ? "" : ", too much");
    return text;
  }

  const MeshSearchInput& in_;
  int64_t budget_bytes_ = 0;          // of a device
  bool has_host_ = false;             // whose memory may be used
  std::vector<Candidate> all_;        // by estimated time
  std::vector<Candidate*> compiled_;  // by the time of their plain plans
  std::vector<TriedMesh> tried_;      // the best first
  std::optional<CompileResult> best_;
  const Candidate* chosen_ = nullptr;  // whose result that is
  Status first_failure_ = Status::success();
};

}  // namespace

Result<CompileResult> search_meshes(const MeshSearchInput& input) { return MeshSearch(input).run(); }

std::string describe(const TriedMesh& tried) {
  std::string text = to_string(tried.mesh);
  if (tried.mesh[MeshAxis::Data] > 1) text += ", ZeRO " + std::to_string(tried.zero);
  if (!tried.pipeline.schedule.empty())
    text += ", " + std::to_string(tried.pipeline.micro_batches) + " micro-batches in " + tried.pipeline.schedule;
  return text;
}

}  // namespace plimsoll
