#pragma once

// One way of dividing a program's states between device and host memory, and the plans that were searched for it.

#include "passes/budget/level_trials.h"
#include "passes/lower_to_plan.h"
#include "passes/offload/update_pieces.h"

#include "llvm/ADT/StringSet.h"

#include <functional>
#include <optional>

namespace plimsoll {

// What a budget search may do and how long it may search.
struct FitOptions {
  bool recompute = true;
  bool offload = true;            // where the device has memory of its own
  TrainingSummary training = {};  // recorded in the plan; its batch and accumulation are in the advice of an error
  double min_share = 0;           // lowest peak to search for, as a share of the plain peak without states
  double search_seconds = 4;      // work for each function that does not fit, see RematOptions
  double spacing = 1;             // of the limits that are searched for, see RematOptions
  bool is_short = false;          // looks for roughly what the job needs
  bool explains = true;           // records the reasons for what a plan does
  bool both_orders = true;        // also the one in which updates run early
  bool is_one_of_many = false;    // see RematOptions
  std::function<bool()> is_given_up = nullptr;  // asked now and then: whether nobody wants the plan any more
  // Of a stage: how long a step of the pipeline takes with a plan of it, which is compared instead of the plan's time;
  // how long it may take, so that no faster plan is looked for; and up to which time of a plan it probably does so.
  std::function<double(const Plan&)> us_of_step = nullptr;
  double fast_enough_us = 0, hidden_us = 0;
};

// Relative difference of a sum of times in another order.
inline constexpr double time_rounding = 1e-9;

class OffloadLevelSearch {
 public:
  // The functions' orders as `input` and `options` have them, the named states on the host. `plain_persistent_bytes` is
  // what persists on the device with every state there. Budgets up to `highest_budget` may be asked for. The last of
  // several searches has most on the host, so it decides what a job needs least and goes deeper. With a `source`, which
  // outlives it, remats and copies of values are not searched for: those found there serve here too. It has more states
  // on the host.
  OffloadLevelSearch(const LoweringInput& input, const FitOptions& options, const llvm::StringSet<>& on_host,
                     int64_t plain_persistent_bytes, int64_t highest_budget, double search_seconds, bool is_last,
                     OffloadLevelSearch* source = nullptr);

  // No plan of this search takes less time, none within the budget takes less than `min_us_within`, and none needs
  // fewer bytes of the device.
  double min_us() const { return min_us_; }
  double min_us_within(int64_t budget_bytes) const;
  int64_t min_bytes() const { return min_bytes_; }
  int64_t host_bytes() const { return host_bytes_; }  // of states

  // The fastest plan found within the budgets; none where bounds show that the step takes `enough_us` or longer. Of
  // several that take at most `hidden_us` any is as good.
  Result<std::optional<Plan>> fastest(int64_t budget_bytes, double enough_us, double hidden_us = 0);
  // Where there is no such plan, the one that needs least; none where every plan found needs `enough_bytes` or more.
  Result<std::optional<Plan>> smallest(int64_t budget_bytes, int64_t enough_bytes);
  // Bytes of the device that are alive in the lowest plan that `smallest` looked at; none where it has not yet.
  std::optional<int64_t> lowest_live_bytes() const;
  // Searches what `smallest` starts from, whatever is enough.
  void prepare_smallest(int64_t budget_bytes);
  // The plan that was found last, with what was decided for it.
  Plan explained(Plan plan) const;

 private:
  OrderVariant make_order(Graph graph, size_t function, const llvm::StringSet<>& on_host) const;
  int64_t room_on_host(const Graph& graph) const;
  void measure();
  bool choose(size_t function, double enough_us);
  void drop_bounds();
  Result<Plan> chosen_plan(int64_t budget_bytes, bool fits);
  Result<Plan> lower(int64_t budget_bytes);
  // Transient bytes that a function may have.
  int64_t allowance(int64_t budget_bytes) const {
    return budget_bytes - in_.draft.device.reserve_bytes() - persistent_bytes_;
  }
  int64_t highest_allowance() const { return allowance(highest_budget_); }
  double calls_of(size_t function) const {
    return function == 0 ? static_cast<double>(options_.training.accumulate) : 1;
  }

  // Bounds of time.
  double min_us_of(size_t function) const;
  static double min_added_us_within(const OrderVariant& order, int64_t allowance);
  double min_us_of_group(const OrderVariant& order, GroupedPlans& plans, size_t group) const;

  // What remats and copies of values are searched for.
  static RematCandidate candidate(const RematProblem& problem, RematPlan plan);
  void search(FunctionSearch& function);
  void search(OrderVariant& order, double seconds) const;
  RematOptions work(double seconds) const;
  bool searches_remats_only(bool offload) const;
  static bool is_long(const OrderVariant& order) { return order.sequence.problem.op_count() >= long_ops; }
  void group_levels(OrderVariant& order, double seconds) const;
  static void take_levels(OrderVariant& order, const OrderVariant& source);
  static size_t levels_apart_of(const RematProblem& problem);
  static std::vector<RematCandidate> every_third(const OrderVariant& order, llvm::ArrayRef<RematPlan> plans);
  void search_all_groups(FunctionSearch& function) const;
  std::vector<RematCandidate>& take_group(FunctionSearch& function, const OrderVariant& order, size_t kind,
                                          size_t group, size_t apart) const;
  static void add_missing(OrderVariant& order, llvm::ArrayRef<RematPlan> plans);

  // The queue of trials, fastest first.
  void start(FunctionSearch& function);
  void collect(FunctionSearch& function);
  void push_group(FunctionSearch& function, const OrderVariant& order, size_t kind);
  void search_groups(FunctionSearch& function, double too_long_us);
  void push_candidates(FunctionSearch& function, const OrderVariant& order, std::vector<RematCandidate>& levels);
  static bool is_later(const Trial& a, const Trial& b);
  void push(FunctionSearch& function, Trial option);
  llvm::ArrayRef<Overlap> overlaps_of(const OrderVariant& order, RematCandidate& candidate, double too_long_us) const;
  static bool copies_or_collectives(const OrderVariant& order, const RematCandidate& candidate);
  void push_overlaps(FunctionSearch& function, const Trial& option, double too_long_us);
  static bool is_group(const Trial& option) { return !option.candidate; }
  static bool is_bound(const Trial& option);
  bool bring_close(Trial& bound) const;
  static Trial pop(FunctionSearch& function);
  std::optional<Trial> next(FunctionSearch& function, double too_long_us);
  std::vector<Trial> next_trials(FunctionSearch& function, double too_long_us, size_t count);

  // A function as it is with a trial's remats and copies.
  struct TriedFunction {
    Graph graph;
    FunctionDraft draft;
  };
  static TriedFunction apply(const Trial& trial);
  static int64_t repeated_collectives(const TriedFunction& tried);
  // How far a layout is searched that greedy orders do not bring within the allowance.
  enum class LayoutSearch : uint8_t { Greedy, Brief, Whole };
  bool lies_in_pages(const Trial& trial) const;
  bool choose_pages(TrialLayout& layout, int64_t allowance, LayoutSearch search) const;
  void measure(const Trial& trial, int64_t allowance, LayoutSearch search = LayoutSearch::Whole) const;
  enum class PackedLayouts : uint8_t { TightOfOneStart, Tight, Steps };
  struct Packing;
  bool may_give_way(const Trial& trial) const;
  PackedTry* pack(const Trial& trial, PackedLayouts wanted) const;
  static Trial packed_trial(const Trial& trial, PackedOverlap& packed);
  std::vector<Trial> packed(const Trial& trial) const;
  std::optional<Trial> tightly_packed(const Trial& trial, PackedLayouts wanted = PackedLayouts::Tight) const;
  bool is_well_packed(const Trial& trial, PackedLayouts wanted) const;
  static bool is_wasteful(const TrialLayout& layout);
  std::optional<Trial> pressed_hard(const Trial& trial) const;
  bool gives_way(const Trial& trial) const;
  // Whether a trial fits; where its layout alone is too high, lower layouts of it that are within the allowance.
  struct TriedLayout {
    bool fits = false, is_too_high = false;
    std::vector<Trial> lower = {};
  };
  TriedLayout try_layout(const Trial& trial) const;
  bool is_above_host(const TrialLayout& layout) const;
  bool fits(const Trial& trial) const;
  bool is_only_too_high(const Trial& trial) const;
  std::optional<Trial> least_of(FunctionSearch& function, int64_t enough_bytes);

  void explain_copies(Plan& plan, size_t function) const;

  const LoweringInput& in_;
  const FitOptions& options_;
  int64_t highest_budget_;
  double search_seconds_;
  bool is_last_;
  OffloadLevelSearch* source_;
  Offered offered_;                        // values of backward may wait on the host where most states do
  std::vector<FunctionSearch> functions_;  // by function
  UpdateCut cut_;                          // without whole bytes all updates come whole
  std::optional<PlanDraft> draft_;         // of the plan laid out last
  int64_t persistent_bytes_ = 0, host_bytes_ = 0, min_bytes_ = 0;
  std::optional<int64_t> lowest_transient_bytes_;  // that `smallest` looked at, of the function with most
  double min_us_ = 0;
  // Of the budget that is being tried: transient bytes a function may have, and up to which time plans are tried before
  // groups of levels are searched that may have faster ones.
  int64_t allowance_ = 0;
  double hidden_us_ = 0;
};

}  // namespace plimsoll
