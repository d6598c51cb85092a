#include "runtime/session.h"

#include "ir/evaluate.h"
#include "ir/plan/lengths.h"
#include "ir/plan/serialize.h"
#include "ir/support/build_id.h"
#include "ir/support/philox.h"
#include "ir/support/strings.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/Support/xxhash.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <thread>

namespace plimsoll {
namespace {

// Ranks with different plans would wait for each other for ever, and those of different builds might compute other
// bits.
Status find_difference(const Plan& plan, Communicator* ranks) {
  const int64_t planned = plan.mesh.ranks(), here = ranks ? ranks->ranks() : 1;
  if (planned != here)
    return usage_error("the plan is for " + llvm::Twine(planned) + (planned == 1 ? " rank" : " ranks") + " (" +
                       to_string(plan.mesh) + "), " + llvm::Twine(here) + (here == 1 ? " is" : " are") +
                       " running; start it as mpirun -n " + llvm::Twine(planned));
  if (here == 1) return Status::success();
  Result<std::string> bytes = plan_to_bytes(plan);
  if (!bytes) return bytes.takeError();
  struct Identity {
    uint64_t build, plan;
  };
  const Identity own{build_id(), llvm::xxHash64(*bytes)};
  std::vector<Identity> all(static_cast<size_t>(here));
  if (Status s = ranks->gather_all(&own, all.data(), sizeof own)) return s;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const char* other = all[rank].build != own.build ? "runs another build of this program"
                        : all[rank].plan != own.plan ? "has another plan"
                                                     : nullptr;
    if (other)
      return usage_error("rank " + llvm::Twine(rank) + " " + other + " than rank " + llvm::Twine(ranks->rank()));
  }
  return Status::success();
}

// All ranks find it.
Status check_ranks(const Plan& plan, const ExecutorOptions& options) {
  Status different = find_difference(plan, options.ranks);
  const bool is_told = options.tell && options.ranks && options.ranks->rank() != 0;
  return different && is_told ? without_words(std::move(different)) : std::move(different);
}

// Attributes that depend on the rank get its values.
void specialise(Plan& plan, int64_t rank) {
  for (PlanFunction& function : plan.functions)
    for (Instruction& instruction : function.instructions)
      instruction.attrs = attrs_of_rank(instruction.attrs, plan.mesh, rank);
}

Plan plan_of_stage(Plan plan, int64_t stage) {
  if (stage > 0) return std::move(plan.later_stages[static_cast<size_t>(stage - 1)]);
  plan.later_stages.clear();
  return plan;
}

}  // namespace

std::vector<WholeState> whole_states_of(const Plan& plan) {
  std::vector<WholeState> states;
  llvm::StringSet<> listed;
  for (const Plan* stage : plan.stages())
    for (const PlanState& state : stage->states)
      if (listed.insert(stage->slots[static_cast<size_t>(state.slot)].name).second)
        states.push_back(whole_state_of(*stage, state));
  return states;
}

std::vector<InputSpec> inputs_of(const Plan& plan, size_t function) {
  std::vector<InputSpec> specs;
  for (const PlanInput& input : plan.functions[function].inputs) {
    InputSpec& spec = specs.emplace_back(
        InputSpec{input.name, plan.slots[static_cast<size_t>(input.slot)].type, input.whole, std::nullopt});
    for (const IndexInput& index : plan.training.index_inputs)
      if (index.name == input.name) spec.index = index;
  }
  return specs;
}

Result<std::unique_ptr<Session>> Session::create(Plan plan, const ExecutorOptions& options) {
  if (Status s = check_ranks(plan, options)) return s;
  std::vector<WholeState> states = whole_states_of(plan);
  llvm::StringMap<FirstValue> first_values = first_values_of(plan);
  const int64_t rank = options.ranks ? options.ranks->rank() : 0;
  const std::optional<DeviceDescription> card =
      plan.has_one_device() ? std::nullopt : std::optional(plan.device_of(rank));
  plan = plan_of_stage(std::move(plan), plan.mesh.coordinate(rank, MeshAxis::Stage));
  specialise(plan, rank);
  std::unique_ptr<Session> session(new Session(std::move(plan), std::move(states), options.ranks));
  session->first_values_ = std::move(first_values);
  if (Status s = session->watch_ranks(options)) return s;
  ExecutorOptions own = options;
  own.progress = &session->progress_;
  own.card = card ? &*card : nullptr;
  Result<std::unique_ptr<Executor>> executor = Executor::create(session->plan_, own);
  if (!executor) return session->agreed(executor.takeError());
  session->executor_ = std::move(*executor);
  session->interruptible_ = session->executor_.get();
  return session;
}

Status Session::watch_ranks(const ExecutorOptions& options) {
  if (!ranks_ || ranks_->ranks() == 1 || !ranks_->are_processes()) return Status::success();
  WatchOptions watch;
  watch.patience_s = options.patience_s > 0 ? options.patience_s : default_watch_patience_s(plan_.predicted_step_us);
  watch.describe = [this](int64_t rank, int32_t function, int32_t instruction) {
    return describe_place(rank, function, instruction);
  };
  watch.interrupt = [this] {
    ranks_->interrupt();
    interrupt();
  };
  watch.tell = options.tell;
  watch.give_up = options.give_up;
  Result<std::unique_ptr<RankWatch>> started = RankWatch::start(*ranks_, progress_, std::move(watch));
  if (!started) return started.takeError();
  watch_ = std::move(*started);
  return Status::success();
}

std::string Session::describe_place(int64_t rank, int32_t function, int32_t instruction) const {
  const int64_t stage = plan_.mesh.coordinate(rank, MeshAxis::Stage);
  const bool has_this_plan = stage == plan_.mesh.coordinate(rank_, MeshAxis::Stage);
  const std::string number = instruction < 0 ? "" : "instruction " + std::to_string(instruction) + " of ";
  if (!has_this_plan) return number + "function " + std::to_string(function) + " of stage " + std::to_string(stage);
  const PlanFunction& at = plan_.functions[static_cast<size_t>(function)];
  if (instruction < 0) return at.name;
  const Instruction& found = at.instructions[static_cast<size_t>(instruction)];
  const std::string made =
      found.results.empty() ? "" : " that makes %" + plan_.slots[static_cast<size_t>(found.results.front())].name;
  return number + at.name + ", " + found.op + made;
}

Status Session::agreed(Status status) {
  return watch_ ? watch_->agreed(std::move(status), [this] { interrupt(); }) : std::move(status);
}

Status Session::abandoned(Status failure) { return agreed(std::move(failure)); }

void Session::interrupt() {
  if (Executor* executor = interruptible_) executor->interrupt();
}

Session::Session(Plan plan, std::vector<WholeState> whole_states, Communicator* ranks)
    : plan_(std::move(plan)), whole_states_(std::move(whole_states)), ranks_(ranks), rank_(ranks ? ranks->rank() : 0) {
  if (ranks) collectives_.emplace(*ranks, plan_.mesh);
  for (StepInFlight& step : in_flight_) step.runs.reserve(static_cast<size_t>(plan_.training.accumulate));
  brought_.resize(plan_.functions.size());
}

Result<std::vector<int64_t>> Session::numbers_of_ranks(int64_t number) {
  if (!ranks_ || ranks_->ranks() == 1) return std::vector<int64_t>{number};
  std::vector<int64_t> all(static_cast<size_t>(ranks_->ranks()));
  if (Status s = agreed(ranks_->gather_all(&number, all.data(), sizeof number))) return s;
  return all;
}

Result<int64_t> Session::number_of_first_rank(int64_t number) {
  Result<std::vector<int64_t>> all = numbers_of_ranks(number);
  if (!all) return all.takeError();
  return all->front();
}

Status Session::add_over_ranks(llvm::MutableArrayRef<double> numbers) {
  if (!ranks_ || ranks_->ranks() == 1 || numbers.empty()) return Status::success();
  std::vector<double> all(numbers.size() * static_cast<size_t>(ranks_->ranks()));
  const auto bytes = static_cast<int64_t>(numbers.size() * sizeof(double));
  if (Status s = agreed(ranks_->gather_all(numbers.data(), all.data(), bytes))) return s;
  for (size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = 0;
    for (size_t at = i; at < all.size(); at += numbers.size()) numbers[i] += all[at];
  }
  return Status::success();
}

// Ranks along the axis tensor have the same rows, and so have all stages: the first of them sends.
Status Session::collect_rows(const TensorView& own, llvm::function_ref<int64_t(int64_t data_rank)> count,
                             llvm::function_ref<Status(int64_t data_rank, const TensorView& rows)> use) {
  const Mesh& mesh = plan_.mesh;
  const auto rows_of = [&](int64_t data_rank, void* data) {
    TensorView rows{own.type, data};
    rows.type.shape[0] = count(data_rank);
    return rows;
  };
  if (rank_ != 0) {
    const int64_t data_rank = mesh.coordinate(rank_, MeshAxis::Data);
    const bool sends = mesh.group_of(0, MeshAxis::Data)[static_cast<size_t>(data_rank)] == rank_;
    const TensorView rows = rows_of(data_rank, own.data);
    return sends && count(data_rank) > 0 ? agreed(ranks_->transfer({0, rows.data, rows.type.bytes()}, {}))
                                         : Status::success();
  }
  if (Status s = count(0) > 0 ? use(0, rows_of(0, own.data)) : Status::success()) return s;
  std::vector<char> received(ranks_ ? static_cast<size_t>(own.type.bytes()) : 0);
  for (int64_t data_rank = 1; data_rank < mesh[MeshAxis::Data] && count(data_rank) > 0; ++data_rank) {
    const TensorView rows = rows_of(data_rank, received.data());
    const int64_t from = mesh.group_of(0, MeshAxis::Data)[static_cast<size_t>(data_rank)];
    if (Status s = agreed(ranks_->transfer({}, {from, rows.data, rows.type.bytes()}))) return s;
    if (Status s = use(data_rank, rows)) return s;
  }
  return Status::success();
}

Result<int64_t> Session::bits_of_all_ranks(int64_t bits) {
  Result<std::vector<int64_t>> all = numbers_of_ranks(bits);
  if (!all) return all.takeError();
  for (int64_t of_rank : *all) bits |= of_rank;
  return bits;
}

Status Session::set_learning_rate(double learning_rate) {
  schedule_.reset();
  return write_learning_rate(learning_rate);
}

Status Session::write_learning_rate(double learning_rate) {
  const PlanState* state = find_state("learning_rate");
  if (!state) return Status::success();
  learning_rate_ = learning_rate;
  return executor_->set_scalar(state->slot, learning_rate);
}

bool Session::has_output(size_t function, llvm::StringRef name) const {
  return llvm::any_of(plan_.functions[function].outputs, [&](const PlanOutput& output) { return output.name == name; });
}

Result<double> Session::read_output(size_t function, int64_t run, llvm::StringRef name, double otherwise) {
  llvm::ArrayRef<PlanOutput> outputs = plan_.functions[function].outputs;
  auto found = llvm::find_if(outputs, [&](const PlanOutput& output) { return output.name == name; });
  if (found == outputs.end()) return otherwise;
  Result<llvm::ArrayRef<double>> values = executor_->outputs(function, run);
  if (!values) return values.takeError();
  return (*values)[static_cast<size_t>(found - outputs.begin())];
}

// The next step multiplies its gradients with this; they are handed out without it.
Result<double> Session::loss_scale() {
  const PlanState* state = find_state("loss_scale");
  double scale = 1;
  if (!state) return scale;
  Status failed = executor_->read(state->slot, [&](const TensorView& view) {
    scale = view.get(0);
    return Status::success();
  });
  if (failed) return failed;
  return scale;
}

// Gradients live only until their update; each is handed out right after the instruction that completes it.
Result<int64_t> Session::run_function(size_t index, const GradientSink* gradients, double divisor) {
  progress_.instruction = -1;
  progress_.function = static_cast<int32_t>(index);
  ++progress_.runs;
  if (!gradients) return executor_->run(index);
  auto hand_out = [&](const PlanGradient& gradient) -> Status {
    const PlanState& parameter = *find_state(gradient.parameter);
    return executor_->read(gradient.slot, [&](const TensorView& view) {
      Tensor copy = copy_as_model(parameter, view);
      for (int64_t i = 0; divisor != 1 && i < view.elements(); ++i) copy.view().set(i, copy.get(i) / divisor);
      return (*gradients)(gradient.parameter, copy);
    });
  };
  auto hand_out_after = [&](int32_t instruction) -> Status {
    for (const PlanGradient& gradient : plan_.gradients)
      if (gradient.function == static_cast<int32_t>(index) && gradient.instruction == instruction)
        if (Status s = hand_out(gradient)) return s;
    return Status::success();
  };
  if (Status s = hand_out_after(-1)) return s;  // gradients that are complete before the function starts
  Executor::Observer observer = hand_out_after;
  return executor_->run(index, &observer);
}

std::vector<ShorterInputs> shorter_inputs_of(const Plan& plan) {
  std::vector<ShorterInputs> all;
  for (int64_t length : shorter_lengths(plan))
    all.push_back({length, inputs_of(plan, *plan.find_function(shorter_step_name(length)))});
  return all;
}

size_t Session::step_for(const BatchSource& data) const {
  const std::optional<int64_t> length = data.next_length();
  return length ? *plan_.find_function(shorter_step_name(*length)) : 0;
}

Status Session::add_run(StepInFlight& step) {
  const auto [function, run] = step.runs[step.next_run];
  Result<double> weight = read_output(function, run, "weight", 1);
  if (!weight) return weight.takeError();
  Result<double> loss = read_output(function, run, "loss", NAN);
  if (!loss) return loss.takeError();
  step.loss_sum += *weight == 0 ? 0 : *weight * *loss;
  step.weight_sum += *weight;
  ++step.next_run;
  return Status::success();
}

// A batch that the function's inputs have already is not brought again.
Status Session::take_batch(BatchSource& data, size_t function) {
  const std::optional<int64_t> only = data.only_batch();
  std::optional<int64_t>& brought = brought_[function];
  if (only && only == brought && executor_->keeps_inputs(function)) return data.next({});
  brought.reset();
  Result<llvm::ArrayRef<TensorView>> inputs = executor_->next_inputs(function);
  if (!inputs) return inputs.takeError();
  if (Status s = data.next(*inputs)) return s;
  brought = only;
  return Status::success();
}

Status Session::start(BatchSource& data, const GradientSink* gradients) { return agreed(start_step(data, gradients)); }

Status Session::start_step(BatchSource& data, const GradientSink* gradients) {
  if (steps_started_ == steps_done_) last_finish_ = std::chrono::steady_clock::now();
  const std::optional<size_t> update = plan_.find_function(update_function);
  Result<double> scale = gradients ? loss_scale() : Result<double>(1);
  if (!scale) return scale.takeError();
  StepInFlight& step = in_flight_[static_cast<size_t>(steps_started_ % max_in_flight)];
  step.restart();
  if (schedule_)
    if (Status s = write_learning_rate(schedule_->rate(steps_started_))) return s;
  step.learning_rate = learning_rate_;
  for (int64_t micro = 0; micro < plan_.training.accumulate; ++micro) {
    size_t function = step_for(data);
    // A stage of a pipeline may have no inputs, and then does not know how long the samples are.
    if (plan_.mesh[MeshAxis::Stage] > 1 && !shorter_lengths(plan_).empty()) {
      Result<std::vector<int64_t>> lengths = numbers_of_ranks(data.next_length().value_or(0));
      if (!lengths) return lengths.takeError();
      const int64_t length = *std::max_element(lengths->begin(), lengths->end());
      function = length > 0 ? *plan_.find_function(shorter_step_name(length)) : 0;
    }
    if (Status s = take_batch(data, function)) return s;
    Result<int64_t> run = run_function(function, update ? nullptr : gradients, *scale);
    if (!run) return run.takeError();
    step.runs.push_back({function, *run});
    // Outputs are kept for a while only; half of that leaves room for another step.
    if (step.runs_left() > Executor::runs_kept / 2)
      if (Status s = add_run(step)) return s;
  }
  if (update) {
    while (gradients && step.runs_left() > 0)
      if (Status s = add_run(step)) return s;
    Result<int64_t> run = run_function(*update, gradients, step.weight_sum * *scale);
    if (!run) return run.takeError();
    step.update_run = *run;
  }
  ++steps_started_;
  return Status::success();
}

Result<StepMetrics> Session::finish() {
  Result<StepMetrics> metrics = finish_step();
  if (steps_done_ == steps_started_) progress_.function = -1;
  if (Status s = agreed(metrics.takeError())) return s;
  return metrics;
}

Result<StepMetrics> Session::finish_step() {
  StepInFlight& step = in_flight_[static_cast<size_t>(steps_done_ % max_in_flight)];
  const RunOfStep last = step.runs.back();
  while (step.runs_left() > 0)
    if (Status s = add_run(step)) return s;
  const std::optional<size_t> update = plan_.find_function(update_function);
  auto of_update = [&](llvm::StringRef name) {
    return read_output(update.value_or(last.function), update ? step.update_run : last.run, name, NAN);
  };
  Result<double> norm = of_update("grad_norm"), scale = of_update("loss_scale"), skipped = of_update("skipped_steps");
  if (Status s = llvm::joinErrors(llvm::joinErrors(norm.takeError(), scale.takeError()), skipped.takeError())) return s;
  auto now = std::chrono::steady_clock::now();
  StepMetrics metrics;
  metrics.step = ++steps_done_;
  metrics.loss = step.loss_sum / step.weight_sum;
  metrics.grad_norm = *norm;
  metrics.learning_rate = step.learning_rate;
  if (find_state("loss_scale")) {
    metrics.loss_scale = *scale;
    metrics.skipped_steps = static_cast<int64_t>(*skipped);
  }
  // A stage of a pipeline without an output has nothing to judge.
  metrics.is_bad =
      (has_output(0, "loss") && !std::isfinite(metrics.loss)) ||
      (has_output(update.value_or(0), "grad_norm") && !metrics.loss_scale && !std::isfinite(metrics.grad_norm));
  metrics.step_ms = std::chrono::duration<double, std::milli>(now - last_finish_).count();
  last_finish_ = now;
  return metrics;
}

Result<StepMetrics> Session::step(BatchSource& data, const GradientSink* gradients) {
  if (Status s = start(data, gradients)) return s;
  return finish();
}

}  // namespace plimsoll
