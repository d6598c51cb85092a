#include "passes/budget/fit.h"

// The states on the host form levels that do not depend on the budget. A few of them have their own search for what to
// rematerialise and which values wait on the host; those between take what the next one found.

#include "ir/plan/summary.h"
#include "ir/plan/timeline.h"
#include "ir/support/units.h"
#include "passes/budget/budget_report.h"
#include "passes/budget/program_size.h"

#include <cmath>
#include <utility>

namespace plimsoll {
namespace {

// Fills in what is the same for every plan of a job.
Plan complete(Plan plan, const TrainingSummary& training) {
  plan.training = training;
  plan.predicted_step_us = predict_step_us(plan);
  return plan;
}

// Minimum gap between two levels that are searched, as a share of the plain plan's bytes; closer ones rarely have other
// remats.
constexpr double min_step = 0.06;

// Where they are so far apart, others come between them, this far apart at least, as a share of the plain plan's bytes
// or of what is on the host: with little there, little more takes noticeably longer.
constexpr double min_gap = 0.1, min_fine_step = 0.0025, fine_growth = 0.06;
// Longer programs, whose levels take longer to look at, have steps that are as many times longer.
constexpr double nodes_of_fine_steps = 2000;

// A level with states on the host searches for an eighth of the time: six of them together take less than the first.
constexpr double level_effort_divisor = 8;

struct Share {
  StateRole role;
  double share;  // of the role's bytes, with all of the roles before
};
constexpr Share shares[] = {{StateRole::Optimizer, 1 / 3.}, {StateRole::Optimizer, 2 / 3.}, {StateRole::Optimizer, 1},
                            {StateRole::Gradient, 1},       {StateRole::Parameter, 0.5},    {StateRole::Parameter, 1}};

struct RoleName {
  StateRole role;
  const char* name;
};
constexpr RoleName role_names[] = {{StateRole::Optimizer, "the optimizer state"},
                                   {StateRole::Gradient, "the accumulated gradients"},
                                   {StateRole::Parameter, "the parameters"}};

int64_t bytes_of(llvm::ArrayRef<HostChoice> choices, StateRole role) {
  int64_t bytes = 0;
  for (const HostChoice& choice : choices) bytes += choice.role == role ? choice.bytes : 0;
  return bytes;
}

// Ranks have their own order, in which collectives run beside computing.
PlanDraft in_joined_order(PlanDraft draft) {
  for (size_t f = 0; f < draft.functions.size(); ++f) {
    Graph& graph = draft.program.functions[f];
    const std::vector<NodeId>& order = draft.functions[f].joined_order;
    if (order.empty() || !draft.functions[f].copies.empty()) continue;
    assert(order.size() == graph.order().size() && "what adds nodes drops their orders");
    graph.reorder(order);
    draft.drop_layout(f);
  }
  return draft;
}

LoweringInput with_draft(const LoweringInput& input, const PlanDraft& draft) {
  return {draft,       input.budget_bytes,     input.host_budget_bytes, input.placement_seconds,
          input.parts, input.quick_above_bytes};
}

}  // namespace

Result<Plan> plain_plan(const LoweringInput& input, const FitOptions& options) {
  const PlanDraft draft = in_joined_order(input.draft);
  Result<Plan> plan = lower_to_plan(with_draft(input, draft));
  if (!plan) return plan;
  return complete(std::move(*plan), options.training);
}

Result<QuickPlan> quick_plain_plan(const LoweringInput& input, const FitOptions& options) {
  const PlanDraft draft = in_joined_order(input.draft);
  Result<QuickPlan> quick = lower_quickly(with_draft(input, draft));
  if (quick) quick->plan = complete(std::move(quick->plan), options.training);
  return quick;
}

bool may_fit(const FitOptions& options, const PlainPlan& plain, int64_t budget_bytes) {
  if (options.min_share == 0) return true;
  const Arena& arena = plain.first().arenas.front();
  const int64_t fixed_bytes = plain.first().promised_bytes() - arena.bytes + arena.persistent_bytes;
  return plain.decide([&](int64_t bytes) {
    const auto live = static_cast<double>(bytes - fixed_bytes);
    return bytes - static_cast<int64_t>((1 - options.min_share) * live) <= budget_bytes;
  });
}

BudgetFitter::BudgetFitter(const LoweringInput& input, const FitOptions& options, const PlainPlan& plain,
                           int64_t highest_budget)
    : in_(input), options_(options), plain_(plain), highest_budget_(highest_budget), levels_(1) {
  const bool way_to_host = input.draft.device.to_host_gb_per_s > 0 && input.draft.device.from_host_gb_per_s > 0;
  if (options.offload && way_to_host) {
    choices_ = states_for_host(input.draft);
    levels_ = offload_levels(Levels::Searched);
  }
  searches_.resize(levels_.size());
}

// From no state to all that the host has room for. Of the shares, the first and the last level stay, and between them
// those that are far enough from the one before; remats are searched for at these. Between them come levels that take
// their remats from the next of these, but for plans that need least.
std::vector<BudgetFitter::OffloadLevel> BudgetFitter::offload_levels(Levels wanted, int64_t plain_bytes) const {
  const llvm::ArrayRef<HostChoice> choices = choices_;
  const auto most = static_cast<double>(plain_bytes);
  std::vector<int64_t> bytes(1, 0);  // by number of states
  for (const HostChoice& choice : choices) bytes.push_back(bytes.back() + choice.bytes);
  std::vector<size_t> searched(1, 0);
  for (const Share& share : shares) {
    const double wanted = share.share * static_cast<double>(bytes_of(choices, share.role));
    size_t states = searched.back();
    auto moved = static_cast<double>(bytes_of(choices.take_front(states), share.role));
    for (; states < choices.size() && choices[states].role == share.role && moved < wanted; ++states)
      moved += static_cast<double>(choices[states].bytes);
    if (in_.host_budget_bytes > 0 && bytes[states] > in_.host_budget_bytes) break;
    if (states > searched.back()) searched.push_back(states);
  }
  const double length = std::max(1.0, static_cast<double>(nodes_of(in_.draft.program)) / nodes_of_fine_steps);
  std::vector<OffloadLevel> levels(1);
  for (size_t i = 1; i < searched.size(); ++i) {
    const int64_t gap = bytes[searched[i]] - levels.back().bytes;
    if (i + 1 < searched.size() && static_cast<double>(gap) < min_step * most) continue;
    const size_t first = levels.size();
    const bool has_between = wanted == Levels::All && static_cast<double>(gap) >= min_gap * most;
    for (size_t states = levels.back().states + 1; has_between && states < searched[i]; ++states) {
      const auto before = static_cast<double>(levels.back().bytes), now = static_cast<double>(bytes[states]);
      if (now - before >= length * std::max(min_fine_step * most, fine_growth * before))
        levels.push_back({states, bytes[states]});
    }
    levels.push_back({searched[i], bytes[searched[i]]});
    for (size_t l = first; l < levels.size(); ++l) levels[l].source = levels.size() - 1;
  }
  return levels;
}

std::vector<BudgetFitter::OffloadLevel> BudgetFitter::offload_levels(Levels wanted) const {
  return plain_.decide([&](int64_t bytes) { return offload_levels(wanted, bytes); });
}

void BudgetFitter::add_levels_between() {
  if (std::exchange(has_levels_between_, true) || levels_.size() == 1) return;
  const std::vector<OffloadLevel> searched = std::exchange(levels_, offload_levels(Levels::All));
  std::vector<std::unique_ptr<OffloadLevelSearch>> searches(levels_.size());
  for (size_t i = 0, at = 0; i < searched.size(); ++i, ++at) {
    while (levels_[at].states != searched[i].states) ++at;
    searches[at] = std::move(searches_[i]);
  }
  searches_ = std::move(searches);
}

size_t BudgetFitter::searched_before(size_t level) const {
  do --level;
  while (levels_[level].source != level);
  return level;
}

// What is on the device between steps, with the reserves. A level's plans need more, which is known without looking at
// the level.
int64_t BudgetFitter::persistent_bytes(size_t level) const {
  return in_.draft.device.reserve_bytes() + plain_.first().arenas.front().persistent_bytes - levels_[level].bytes;
}

// No plan of the level, nor of one between it and the searched level before, needs fewer bytes. With more on the host a
// step needs more for copies, or less where updates come in pieces, but not less than after both.
int64_t BudgetFitter::min_bytes_up_to(size_t level) {
  const size_t after = levels_[level].source;
  const auto with_its_states = [&](size_t searched) {
    return search_of(searched).min_bytes() + levels_[searched].bytes - levels_[level].bytes;
  };
  if (level == 0) return with_its_states(0);
  return std::min(with_its_states(searched_before(level)), with_its_states(after));
}

// Whether the searched levels around it show that this one has no plan within the budget, or none fast enough.
bool BudgetFitter::is_out_of_question(size_t level, int64_t budget_bytes, double enough_us) {
  return (later_levels_take_longer() && search_of(searched_before(level)).min_us() >= enough_us) ||
         min_bytes_up_to(level) > budget_bytes;
}

// Later levels have the copies of earlier ones too, and more. What an update of accumulated gradients computes beside
// them may be less, however, where more of these are on the host.
bool BudgetFitter::later_levels_take_longer() const { return in_.draft.program.functions.size() == 1; }

// On the device an update copies zeros into accumulated gradients; to those on the host its copy engine brings them
// beside what computes, if the states that go there first leave it time.
bool BudgetFitter::may_beat_plain() const {
  if (later_levels_take_longer() || !searches() || options_.us_of_step) return false;
  const auto gradient =
      llvm::find_if(choices_, [](const HostChoice& choice) { return choice.role == StateRole::Gradient; });
  if (gradient == choices_.end() || levels_.back().states <= static_cast<size_t>(gradient - choices_.begin()))
    return false;
  int64_t bytes_before = 0;
  for (const HostChoice& choice : llvm::make_range(choices_.begin(), gradient)) bytes_before += choice.bytes;
  const DeviceDescription& device = in_.draft.device;
  const double gb_per_s = std::min(device.to_host_gb_per_s, device.from_host_gb_per_s);
  return static_cast<double>(bytes_before) / (gb_per_s * 1e3) <
         predict_timeline(plain_.first().functions.back(), plain_.first().device).total_us;
}

Result<std::optional<Plan>> BudgetFitter::within(int64_t budget_bytes, double enough_us) {
  Result<std::optional<Plan>> plan = fastest(budget_bytes, enough_us);
  if (!plan || *plan || enough_us < std::numeric_limits<double>::infinity()) return plan;
  return smallest(budget_bytes);
}

Result<std::optional<Plan>> BudgetFitter::fastest(int64_t budget_bytes, double enough_us) {
  std::optional<Plan> best;
  std::optional<size_t> level_of_best;  // none: it is the plain plan
  double best_us = std::numeric_limits<double>::infinity(), hidden_us = options_.hidden_us;
  if (plain_.is_within(budget_bytes)) {
    best = with_budget(plain_.plan(), budget_bytes);
    if (!may_beat_plain()) return best;
    best_us = best->predicted_step_us;
    enough_us = std::min(enough_us, best_us);
  }
  if (!searches() || persistent_bytes(levels_.size() - 1) > budget_bytes) return best;
  add_levels_between();
  for (size_t i = 0; i < levels_.size(); ++i) {
    if (options_.is_given_up && options_.is_given_up()) return std::nullopt;
    if (persistent_bytes(i) > budget_bytes) continue;
    if (levels_[i].source != i && is_out_of_question(i, budget_bytes, enough_us)) continue;
    OffloadLevelSearch& search = search_of(i);
    if (search.min_us() >= enough_us) {
      if (later_levels_take_longer()) break;
      continue;
    }
    if (search.min_bytes() > budget_bytes || search.min_us_within(budget_bytes) >= enough_us) continue;
    Result<std::optional<Plan>> plan = search.fastest(budget_bytes, enough_us, hidden_us);
    if (!plan) return plan.takeError();
    if (!*plan) continue;
    Plan faster = complete(std::move(**plan), options_.training);
    const double faster_us = faster.predicted_step_us,
                 us = options_.us_of_step ? options_.us_of_step(faster) : faster_us;
    enough_us = std::min(enough_us, faster_us);
    if (us < best_us) best = std::move(faster), level_of_best = i, best_us = us;
    if (best_us <= options_.fast_enough_us) break;
    // One that was taken as hidden and is not may not be the fastest of its level.
    if (std::exchange(hidden_us, 0) >= faster_us) --i;
  }
  if (level_of_best) best = explained(std::move(*best), *level_of_best);
  return best;
}

// Those with most on the host first.
std::vector<size_t> BudgetFitter::searched_levels() const {
  std::vector<size_t> searched;
  for (size_t i = levels_.size(); i-- > 0;)
    if (levels_[i].source == i) searched.push_back(i);
  return searched;
}

// Takes the level that may need least out of them, and of several the first. Levels whose persistent bytes alone are
// more are not looked at.
size_t BudgetFitter::take_least(std::vector<size_t>& levels) {
  size_t least = 0;
  for (size_t i = 1; i < levels.size(); ++i) {
    const int64_t bytes = search_of(levels[least]).min_bytes();
    if (persistent_bytes(levels[i]) < bytes && search_of(levels[i]).min_bytes() < bytes) least = i;
  }
  const size_t level = levels[least];
  levels.erase(levels.begin() + static_cast<ptrdiff_t>(least));
  return level;
}

void BudgetFitter::prepare_smallest(int64_t budget_bytes) {
  std::vector<size_t> searched = searched_levels();
  if (searches()) search_of(take_least(searched)).prepare_smallest(budget_bytes);
}

std::optional<int64_t> BudgetFitter::lowest_live_bytes() const {
  std::optional<int64_t> lowest;
  for (const std::unique_ptr<OffloadLevelSearch>& search : searches_)
    if (const std::optional<int64_t> bytes = search ? search->lowest_live_bytes() : std::nullopt)
      lowest = std::min(lowest.value_or(*bytes), *bytes);
  return lowest;
}

// Of the levels that are searched. Bounds show which is likely to need least, and which cannot. With fewer states on
// the host a step does not need less: what stays on the device takes its bytes at every peak.
Result<std::optional<Plan>> BudgetFitter::smallest(int64_t budget_bytes, int64_t enough_bytes) {
  if (!searches()) return with_budget(plain_.plan(), budget_bytes);
  std::optional<Plan> best;
  size_t level_of_best = 0;
  std::vector<size_t> left = searched_levels();
  while (!left.empty()) {
    const size_t i = take_least(left);
    if (search_of(i).min_bytes() >= enough_bytes) break;
    Result<std::optional<Plan>> plan = search_of(i).smallest(budget_bytes, enough_bytes);
    if (!plan) return plan.takeError();
    if (!*plan) continue;
    Plan smaller = complete(std::move(**plan), options_.training);
    if (!best || is_better(smaller, *best)) best = std::move(smaller), level_of_best = i;
    if (!is_within_host_budget(*best)) continue;
    enough_bytes = std::min(enough_bytes, best->promised_bytes());
    llvm::erase_if(left, [&](size_t other) { return other < level_of_best; });
  }
  if (best) best = explained(std::move(*best), level_of_best);
  return best;
}

// Only for the plan that is returned, where anyone reads its reasons: the bound among them takes as long as some
// searches.
Plan BudgetFitter::explained(Plan plan, size_t level) {
  if (!options_.explains) return plan;
  plan = search_of(level).explained(std::move(plan));
  if (levels_[level].states > 0)
    plan.decisions.push_back(
        {"offload", "plan", what_is_on_host(levels_[level]) + " on the host",
         format_bytes(search_of(level).host_bytes()) + " there, reloaded before use; what is updated is copied back"});
  return plan;
}

int64_t BudgetFitter::min_bytes() {
  int64_t bytes = std::numeric_limits<int64_t>::max();
  for (size_t i : searched_levels())
    if (persistent_bytes(i) < bytes) bytes = std::min(bytes, min_bytes_up_to(i));
  return bytes <= plain_.min_bytes() ? bytes : std::min(bytes, plain_.plan().promised_bytes());
}

double BudgetFitter::likely_us_within(int64_t budget_bytes) {
  if (plain_.is_within(budget_bytes)) return plain_.first().predicted_step_us;
  double us = std::numeric_limits<double>::infinity();
  for (size_t i = 0; searches() && i < levels_.size(); ++i)
    if (levels_[i].source == i && persistent_bytes(i) <= budget_bytes && search_of(i).min_bytes() <= budget_bytes)
      us = std::min(us, std::max(search_of(i).min_us(), search_of(i).min_us_within(budget_bytes)));
  return us;
}

// "the optimizer state and 37 % of the parameters"
std::string BudgetFitter::what_is_on_host(const OffloadLevel& level) const {
  std::vector<std::string> parts;
  for (const RoleName& role : role_names) {
    const int64_t there = bytes_of(llvm::ArrayRef(choices_).take_front(level.states), role.role);
    const int64_t all = bytes_of(choices_, role.role);
    if (there == 0) continue;
    const int64_t percent = std::clamp<int64_t>(100 * there / all, 1, 99);
    parts.push_back((there == all ? "" : std::to_string(percent) + " % of ") + role.name);
  }
  std::string text = parts.front();
  for (size_t i = 1; i < parts.size(); ++i) text += (i + 1 < parts.size() ? ", " : " and ") + parts[i];
  return text;
}

OffloadLevelSearch& BudgetFitter::search_of(size_t level) {
  if (searches_[level]) return *searches_[level];
  llvm::StringSet<> on_host;
  for (const HostChoice& choice : llvm::ArrayRef(choices_).take_front(levels_[level].states))
    on_host.insert(choice.state);
  OffloadLevelSearch* source = levels_[level].source == level ? nullptr : &search_of(levels_[level].source);
  searches_[level] = std::make_unique<OffloadLevelSearch>(
      in_, options_, on_host, plain_.first().arenas.front().persistent_bytes, highest_budget_,
      level == 0 ? options_.search_seconds : options_.search_seconds / level_effort_divisor,
      level > 0 && level + 1 == levels_.size(), source);
  return *searches_[level];
}

}  // namespace plimsoll
