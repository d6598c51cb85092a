#pragma once

// Training with a plan: states get their first values, batches go in, metrics come out.

#include "ir/plan/plan.h"
#include "runtime/data/batch_source.h"
#include "runtime/host/executor.h"

namespace plimsoll {

// Gives the bytes of a named weight, of exactly the asked type, or an error that names what differs.
using WeightLoader = std::function<Status(llvm::StringRef name, const TensorView& into)>;

struct StepMetrics {
  int64_t step = 0;          // updates done, this one included
  double loss = 0;           // mean over the batch, all micro-batches
  double grad_norm = 0;      // before clipping
  double learning_rate = 0;
  double step_ms = 0;
};

// A gradient of the first step, as the model's author would see it: of the mean loss, before clipping.
using GradientSink = std::function<Status(llvm::StringRef parameter, const Tensor& gradient)>;

class Session {
 public:
  static Result<std::unique_ptr<Session>> create(Plan plan, const ExecutorOptions& options);

  const Plan& plan() const { return plan_; }
  HostExecutor& executor() { return *executor_; }
  std::vector<InputSpec> inputs() const;

  // First values: weights through `load`, fills and copies by the plan. `seed` goes to the random counter.
  Status initialise(const WeightLoader& load, uint64_t seed);
  // Weights drawn as a fresh model's: normal with deviation 0.02, ones for norm scales, zeros for other vectors.
  Status initialise_randomly(uint64_t seed);
  void set_learning_rate(double learning_rate);

  // One update: as many micro-batches as the plan accumulates. With a sink, hands out this step's gradients.
  Result<StepMetrics> step(BatchSource& data, const GradientSink* gradients = nullptr);

  // A state by its name; the view stays valid, its content changes with each step.
  Result<TensorView> state(llvm::StringRef name) const;

 private:
  explicit Session(Plan plan) : plan_(std::move(plan)) {}
  const PlanState* find_state(llvm::StringRef name) const;
  Status fill_state(const PlanState& state, const WeightLoader& load);
  void seed_random_counter(uint64_t seed);
  Status copy_derived_states();
  Status feed(BatchSource& data);
  double read_output(const PlanFunction& function, llvm::StringRef name, double otherwise) const;
  Status run_function(size_t index, const GradientSink* gradients, double weight);

  Plan plan_;
  std::unique_ptr<HostExecutor> executor_;
  std::vector<TensorView> input_views_;
  int64_t steps_done_ = 0;
};

}  // namespace plimsoll
