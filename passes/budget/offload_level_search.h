#pragma once

// One way of dividing a program's states between device and host memory, and the plans that were searched for it.

#include "passes/offload/overlap.h"
#include "passes/budget/fit.h"
#include "passes/remat/remat_graph.h"

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
  struct Candidate {
    RecomputePlan plan;
    double least_us;                 // whenever its copies are made; without copies, what it takes
    std::vector<Overlap> overlaps;   // a ladder, once it is wanted
  };
  struct Order {
    Graph graph;
    std::vector<NodeId> writers;
    SequenceProblem sequence;
    std::vector<std::vector<Candidate>> ladders;  // first the order as it is alone; once searched, with copies of values and without
    int64_t host_room;                            // for values
  };
  // A plan for one function that may be tried.
  struct Option {
    const Order* order;
    Candidate* candidate;
    double us;                        // at least; once its copies are placed, or where there are none, what it takes
    const Overlap* overlap = nullptr;
  };
  struct Track {
    std::vector<Order> orders;
    std::vector<Option> options;  // a heap, the next to try on top
    Option chosen = {};
    bool searched = false;
    bool plain_tried = false;     // within the present budget, before the search
  };

  void add_order(Track& track, const Graph& graph, size_t function, const llvm::StringSet<>& on_host) const;
  int64_t room_on_host(const Graph& graph) const;
  static Candidate candidate(const RecomputeProblem& problem, RecomputePlan plan);
  void measure();
  void search(Track& track);
  void search(Order& order, double seconds) const;
  void start(Track& track);
  void collect(Track& track);
  static bool is_later(const Option& a, const Option& b);
  void push(Track& track, Option option);
  void push_overlaps(Track& track, const Option& option);
  int64_t highest_allowance() const { return highest_budget_ - in_.device.reserve_bytes() - persistent_bytes_; }
  bool advance(Track& track);
  bool advance_all(const Plan& plan);
  Result<Plan> lower(int64_t budget_bytes);
  Plan explained(Plan plan) const;
  void explain_copies(Plan& plan, size_t function) const;

  const LoweringInput& in_;
  const FitOptions& options_;
  int64_t highest_budget_;
  double search_seconds_;
  std::vector<Track> tracks_;  // by function
  Program program_;            // of the plan laid out last
  std::vector<std::vector<NodeId>> added_;  // by function, what it repeats and copies
  int64_t persistent_bytes_ = 0, host_bytes_ = 0, least_bytes_ = 0;
  double least_us_ = 0;
  int64_t allowance_ = 0;      // transient bytes a function may have, of the budget that is being tried
};

}  // namespace plimsoll
