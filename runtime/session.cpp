#include "runtime/session.h"

#include "ir/philox.h"
#include "ir/strings.h"

#include <chrono>
#include <cmath>

namespace plimsoll {

Result<std::unique_ptr<Session>> Session::create(Plan plan, const ExecutorOptions& options) {
  std::unique_ptr<Session> session(new Session(std::move(plan)));
  Result<std::unique_ptr<HostExecutor>> executor = HostExecutor::create(session->plan_, options);
  if (!executor) return executor.takeError();
  session->executor_ = std::move(*executor);
  for (const PlanInput& input : session->plan_.functions.front().inputs)
    session->input_views_.push_back(session->executor_->view(input.slot));
  return session;
}

std::vector<InputSpec> Session::inputs() const {
  std::vector<InputSpec> specs;
  for (const PlanInput& input : plan_.functions.front().inputs)
    specs.push_back({input.name, plan_.slots[static_cast<size_t>(input.slot)].type});
  return specs;
}

const PlanState* Session::find_state(llvm::StringRef name) const {
  for (const PlanState& state : plan_.states)
    if (plan_.slots[static_cast<size_t>(state.slot)].name == name) return &state;
  return nullptr;
}

Result<TensorView> Session::state(llvm::StringRef name) const {
  const PlanState* found = find_state(name);
  if (!found) return model_error("the plan has no state '" + name + "'");
  return executor_->view(found->slot);
}

Status Session::fill_state(const PlanState& state, const WeightLoader& load) {
  TensorView view = executor_->view(state.slot);
  if (state.init.kind == StateInit::Kind::Weights) return load(state.init.source, view);
  if (state.init.kind == StateInit::Kind::Fill)
    for (int64_t i = 0; i < view.elements(); ++i) view.set(i, state.init.fill);
  return Status::success();
}

Status Session::copy_derived_states() {
  for (const PlanState& state : plan_.states) {
    if (state.init.kind != StateInit::Kind::CopyOf) continue;
    Result<TensorView> source = this->state(state.init.source);
    if (!source) return source.takeError();
    TensorView view = executor_->view(state.slot);
    for (int64_t i = 0; i < view.elements(); ++i) view.set(i, source->get(i));
  }
  return Status::success();
}

void Session::seed_random_counter(uint64_t seed) {
  if (const PlanState* rng = find_state("rng")) executor_->view(rng->slot).set_int(0, static_cast<int64_t>(seed));
}

Status Session::initialise(const WeightLoader& load, uint64_t seed) {
  for (const PlanState& state : plan_.states)
    if (Status s = fill_state(state, load)) return s;
  if (Status s = copy_derived_states()) return s;
  seed_random_counter(seed);
  steps_done_ = 0;
  return Status::success();
}

Status Session::initialise_randomly(uint64_t seed) {
  int64_t id = 0;
  return initialise(
      [&](llvm::StringRef name, const TensorView& into) {
        RandomStream stream{static_cast<int64_t>(seed), 0, id++};
        bool scale = into.type.rank() <= 1 && (ends_with(name, "weight") || ends_with(name, "scale") || ends_with(name, "running_var"));
        for (int64_t i = 0; i < into.elements(); ++i)
          into.set(i, into.type.rank() > 1 ? 0.02 * stream.normal(i) : scale ? 1.0 : 0.0);
        return Status::success();
      },
      seed);
}

void Session::set_learning_rate(double learning_rate) {
  if (const PlanState* state = find_state("learning_rate")) executor_->view(state->slot).set(0, learning_rate);
}

Status Session::feed(BatchSource& data) { return data.next(input_views_); }

double Session::read_output(const PlanFunction& function, llvm::StringRef name, double otherwise) const {
  for (const PlanOutput& output : function.outputs)
    if (output.name == name) return executor_->view(output.slot).get(0);
  return otherwise;
}

// Gradients live only until their update; each is handed out right after the instruction that completes it.
Status Session::run_function(size_t index, const GradientSink* gradients, double weight) {
  if (!gradients) return executor_->run(index);
  auto hand_out = [&](const PlanGradient& gradient) -> Status {
    TensorView view = executor_->view(gradient.slot);
    Tensor copy(view.type, view.data);
    if (weight != 1)
      for (int64_t i = 0; i < view.elements(); ++i) copy.view().set(i, view.get(i) / weight);
    return (*gradients)(gradient.parameter, copy);
  };
  auto hand_out_after = [&](int32_t instruction) -> Status {
    for (const PlanGradient& gradient : plan_.gradients)
      if (gradient.function == static_cast<int32_t>(index) && gradient.instruction == instruction)
        if (Status s = hand_out(gradient)) return s;
    return Status::success();
  };
  if (Status s = hand_out_after(-1)) return s;  // gradients that are complete before the function starts
  HostExecutor::Observer observer = hand_out_after;
  return executor_->run(index, &observer);
}

Result<StepMetrics> Session::step(BatchSource& data, const GradientSink* gradients) {
  auto start = std::chrono::steady_clock::now();
  const bool separate_update = plan_.functions.size() > 1;
  double loss_sum = 0, weight_sum = 0;
  for (int64_t micro = 0; micro < plan_.training.accumulate; ++micro) {
    if (Status s = feed(data)) return s;
    if (Status s = run_function(0, separate_update ? nullptr : gradients, 1)) return s;
    double weight = read_output(plan_.functions[0], "weight", 1);
    loss_sum += weight == 0 ? 0 : weight * read_output(plan_.functions[0], "loss", NAN);
    weight_sum += weight;
  }
  if (separate_update)
    if (Status s = run_function(1, gradients, weight_sum)) return s;
  StepMetrics metrics;
  metrics.step = ++steps_done_;
  metrics.loss = loss_sum / weight_sum;
  metrics.grad_norm = read_output(plan_.functions[separate_update ? 1 : 0], "grad_norm", NAN);
  if (const PlanState* rate = find_state("learning_rate")) metrics.learning_rate = executor_->view(rate->slot).get(0);
  metrics.step_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  return metrics;
}

}  // namespace plimsoll
