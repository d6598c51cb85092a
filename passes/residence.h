#pragma once

// One way of dividing a program's states between device and host memory, and the plans that were searched for it.

#include "passes/fit/overlap.h"
#include "passes/fit_budget.h"
#include "passes/recompute.h"

#include "llvm/ADT/StringSet.h"

namespace plimsoll {

class Residence {
 public:
  // The functions' orders as `input` and `options` have them, the named states on the host. `plain_persistent_bytes` is what persists on
  // the device with every state there. Budgets up to `highest_budget` may be asked for.
  Residence(const LoweringInput& input, const FitOptions& options, const llvm::StringSet<>& on_host, int64_t plain_persistent_bytes,
            int64_t highest_budget, double search_seconds);

  // No plan of this residence takes less time, or needs fewer bytes of the device.
  double least_us() const { return least_us_; }
  int64_t least_bytes() const { return least_bytes_; }
  int64_t host_bytes() const { return host_bytes_; }  // of states

  // The fastest plan found within the budgets; where there is none, the one that needs least.
  Result<Plan> within(int64_t budget_bytes);

 private:
  struct Order {
    Graph graph;
    std::vector<NodeId> writers;
    SequenceProblem sequence;
    std::vector<RecomputePlan> ladder;  // empty before it is searched
  };
  // A plan for one function that may be tried. Where copies run beside computing its time is known only once they are placed.
  struct Option {
    size_t order;
    const RecomputePlan* plan;
    double us;                // at least; what it takes once `placed`
    bool placed = false, tightened = false;
    int64_t limit_bytes = 0;  // that the placed copies keep to; less than the peak of the tightest
    Overlap overlap = {};
  };
  struct Track {
    std::vector<Order> orders;
    std::vector<Option> options;  // a heap, the next to try on top
    std::optional<Option> chosen;
    bool all_collected = false;
  };

  void add_order(Track& track, const Graph& graph, size_t function, const llvm::StringSet<>& on_host) const;
  void measure();
  bool has_copies(const Order& order, const RecomputePlan& plan) const;
  void search(Track& track);
  void start(Track& track);
  void collect(Track& track);
  std::optional<Option> next_option(Track& track);
  void place_copies(const Order& order, Option& option, int64_t limit_bytes) const;
  bool advance(Track& track, int64_t above_bytes);
  bool advance_all(const Plan& plan);
  Result<Plan> lower(int64_t budget_bytes);
  Plan explained(Plan plan) const;
  void explain_copies(Plan& plan, size_t function) const;
  static bool is_later(const Option& a, const Option& b);

  const LoweringInput& in_;
  const FitOptions& options_;
  int64_t highest_budget_;
  double search_seconds_;
  std::vector<Track> tracks_;  // by function
  Program program_;            // of the plan laid out last
  std::vector<std::vector<NodeId>> added_;  // by function, what it repeats and copies
  RecomputePlan plain_;        // no repeats
  int64_t persistent_bytes_ = 0, host_bytes_ = 0, least_bytes_ = 0;
  double least_us_ = 0;
  int64_t allowance_ = 0;      // transient bytes a function may have, of the budget that is being tried
};

}  // namespace plimsoll
