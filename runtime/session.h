#pragma once

// Training with a plan: states get their first values, batches go in, metrics come out.

#include "ir/plan/plan.h"
#include "runtime/comm/host_collectives.h"
#include "runtime/comm/rank_watch.h"
#include "runtime/data/batch_source.h"
#include "runtime/executor.h"
#include "runtime/first_values.h"
#include "runtime/learning_rate.h"

#include <array>
#include <chrono>

namespace plimsoll {

// Gives the bytes of a named weight, of exactly the asked type, or an error that names what differs.
using WeightLoader = std::function<Status(llvm::StringRef name, const TensorView& into)>;
// The same for as many of its elements as `into` has, from `first` on; the weight is of type `whole`. Several threads
// may call it at once.
using WeightRangeLoader =
    std::function<Status(llvm::StringRef name, const Type& whole, int64_t first, const TensorView& into)>;

// The type of a named weight in the file that loaders read; none where it lacks the weight.
using WeightTypes = std::function<std::optional<Type>(llvm::StringRef name)>;

struct StepMetrics {
  int64_t step = 0;      // updates done, this one included
  double loss = 0;       // mean over the batch, all micro-batches
  double grad_norm = 0;  // before clipping
  double learning_rate = 0;
  double step_ms = 0;
  // With a loss scale (fp16): the scale for the next step, and how many steps an overflow has cost so far.
  std::optional<double> loss_scale;
  int64_t skipped_steps = 0;
  // The loss is NaN or infinite, or the gradients are and no loss scale kept them from the weights.
  bool is_bad = false;
};

// A state as the model has it, whichever ranks have which pieces of it.
struct WholeState {
  std::string name;
  StateInit init;
  Type type;
  int64_t stage = 0;  // the first stage of the pipeline that has it
  StateRole role = StateRole::Parameter;
  bool trained = false;
};

WholeState whole_state_of(const Plan& stage, const PlanState& state);
// Those of all stages, each once.
std::vector<WholeState> whole_states_of(const Plan& plan);

// States as an earlier session left them.
struct SavedStates {
  std::function<bool(const WholeState& state)> has;
  // As many elements of a state that it has as `into` holds, from `first` on.
  std::function<Status(const WholeState& state, int64_t first, const TensorView& into)> load_range;
  int64_t step = 0;  // updates done
};

// A gradient of the first step, as the model's author would see it: of the mean loss, before clipping.
using GradientSink = std::function<Status(llvm::StringRef parameter, const Tensor& gradient)>;

// What a plan's steps read. Of a plan for several ranks: the rows of one rank.
std::vector<InputSpec> inputs_of(const Plan& plan, size_t function = 0);
// Of the plan's steps for shorter samples, by length.
std::vector<ShorterInputs> shorter_inputs_of(const Plan& plan);

class Session {
 public:
  // A plan for several ranks needs as many in `options`. They make sure that all have the same plan; then this one's
  // states, random numbers and rows are the rank's own.
  static Result<std::unique_ptr<Session>> create(Plan plan, const ExecutorOptions& options);

  const Plan& plan() const { return plan_; }  // of the rank's own stage
  Executor& executor() { return *executor_; }
  std::vector<InputSpec> inputs() const { return inputs_of(plan_); }  // the rank's rows
  // The function that takes the next batch of the data.
  size_t step_for(const BatchSource& data) const;
  int64_t rank() const { return rank_; }
  int64_t steps_done() const { return steps_done_; }  // updates, with those before a restored checkpoint
  // This rank cannot go on: tells the others, and ends what it still waits for. Where another rank tells why the job
  // ends, the failure keeps its fault and loses its words.
  Status abandoned(Status failure);
  // Which rows of a batch file are the rank's: ranks along the data axis have different ones.
  DataOptions rows_of_rank(uint64_t seed) const {
    return {seed, plan_.mesh.coordinate(rank_, MeshAxis::Data), plan_.mesh[MeshAxis::Data], plan_.training.batch,
            plan_.mesh[MeshAxis::Stage] > 1};
  }

  // First values: weights through `load`, fills and copies by the plan. `seed` goes to the random counter, and draws
  // adapters, which no model's file has.
  // Of divided states a rank asks `load_range` for its own piece alone; without it, the whole is loaded and cut.
  Status initialise(const WeightLoader& load, uint64_t seed, const WeightRangeLoader& load_range = nullptr);
  // The same where weights that the plan has quantised may be codes already: `types` says of which types they are in
  // the file. Otherwise they are asked for in f32, and packed.
  Status initialise(const WeightLoader& load, uint64_t seed, const WeightRangeLoader& load_range,
                    const WeightTypes& types);
  // Gives the states that `saved` has its values, and copies that start as one of them the same. Its step is not used.
  Status overwrite(const SavedStates& saved);
  // Goes on from saved states; those that `saved` lacks get first values, as by initialise().
  Status restore(const SavedStates& saved, const WeightLoader& load, uint64_t seed,
                 const WeightRangeLoader& load_range = nullptr);
  // Weights drawn as a fresh model's, by kind of layer (runtime/first_values.h); an error where one's is not known.
  // With a deviation that is not 0: normal with this one, ones for norm scales, zeros for other vectors.
  Status initialise_randomly(uint64_t seed, double deviation = 0);
  // Of all updates that are started from now on; a schedule that was set no longer holds. Does not wait for the device.
  Status set_learning_rate(double learning_rate);
  // From now on each update has the rate that the schedule gives for its number, counted from 0.
  void set_schedule(const LearningRateSchedule& schedule) { schedule_ = schedule; }

  // One update: as many micro-batches as the plan accumulates. With a sink, hands out this step's gradients.
  Result<StepMetrics> step(BatchSource& data, const GradientSink* gradients = nullptr);

  // The same in two halves, so that reading the next batch and waiting for numbers never idle the device: start up
  // to two steps, then finish the oldest. step() is start() and finish().
  Status start(BatchSource& data, const GradientSink* gradients = nullptr);
  Result<StepMetrics> finish();

  // A state, by its name, as it is after the steps that were started, with dimensions in the model's order. Of a
  // divided state it is the rank's own piece.
  Status read_state(llvm::StringRef name, Executor::Visit use);

  // The states of all stages, the same list on every rank.
  llvm::ArrayRef<WholeState> whole_states() const { return whole_states_; }
  // One of them on the first rank, while the others are in serve_pieces() until it calls end_serving().
  Status read_whole_state(const WholeState& state, Executor::Visit use);
  // The same into memory of the whole's type.
  Status copy_whole_state(const WholeState& state, const TensorView& to);
  Status serve_pieces();
  Status end_serving();
  // The first rank's number, on every rank; all of them call it.
  Result<int64_t> number_of_first_rank(int64_t number);
  // Adds each number up over the ranks, in their order; all of them call it.
  Status add_over_ranks(llvm::MutableArrayRef<double> numbers);
  // Of `own` rows of a batch, hands those of each rank along the axis data to `use` on the first rank, in their order.
  // All ranks call it; those without rows need not.
  Status collect_rows(const TensorView& own, llvm::function_ref<int64_t(int64_t data_rank)> count,
                      llvm::function_ref<Status(int64_t data_rank, const TensorView& rows)> use);
  // The bits that any rank has set; all of them call it.
  Result<int64_t> bits_of_all_ranks(int64_t bits);

 private:
  struct RunOfStep {
    size_t function = 0;  // "train_step", or one for shorter samples
    int64_t run = 0;
  };
  // A step that was started and whose numbers are not all read.
  struct StepInFlight {
    std::vector<RunOfStep> runs;  // of all micro-batches
    size_t next_run = 0;          // the first whose outputs are still to be added
    int64_t update_run = -1;      // of the function "update", when there is one
    double loss_sum = 0, weight_sum = 0;
    double learning_rate = 0;
    size_t runs_left() const { return runs.size() - next_run; }
    // Begins another step in the memory that `runs` has.
    void restart() {
      std::vector<RunOfStep> memory = std::move(runs);
      memory.clear();
      *this = {};
      runs = std::move(memory);
    }
  };

  Session(Plan plan, std::vector<WholeState> whole_states, Communicator* ranks);
  Status check_first_values() const;
  // Numbers of a weight from its `first` on.
  Status draw_weight(llvm::StringRef name, const Type& whole, int64_t first, const TensorView& into, uint64_t seed,
                     double deviation) const;
  Status watch_ranks(const ExecutorOptions& options);
  std::string describe_place(int64_t rank, int32_t function, int32_t instruction) const;
  Status start_step(BatchSource& data, const GradientSink* gradients);
  Status take_batch(BatchSource& data, size_t function);
  Result<StepMetrics> finish_step();
  // Of several ranks: a failure that a lost rank caused is named as that, and one of our own ends the others.
  Status agreed(Status status);
  void interrupt();
  const PlanState* find_state(llvm::StringRef name) const;
  // Reads elements of one state, from `first` on.
  using RangeLoader = llvm::function_ref<Status(int64_t first, const TensorView& into)>;
  Status set_states(const SavedStates* saved, const WeightLoader& load, uint64_t seed,
                    const WeightRangeLoader& load_range, const WeightTypes& types);
  Status fill_state(const PlanState& state, const WeightLoader& load, const WeightRangeLoader& load_range);
  Status load_state(const PlanState& state, RangeLoader load_range);
  Status load_piece(const PlanState& state, RangeLoader load_range, const TensorView& piece) const;
  Status seed_random_counter(const PlanState& rng, uint64_t seed);
  Status copy_derived_state(const PlanState& state);
  Result<std::vector<int64_t>> numbers_of_ranks(int64_t number);
  Result<Tensor> whole_of(const WholeState& state);
  Result<Tensor> copy_of(const PlanState& state);
  // Of the bytes of a state, or of its gradient, with dimensions in the model's order.
  Tensor copy_as_model(const PlanState& state, const TensorView& stored) const;
  // Writes a state that `fill` gives so.
  Status write_state(const PlanState& state, Executor::Visit fill);
  Result<Tensor> gather_pieces_of(const PlanState& state);
  bool has_output(size_t function, llvm::StringRef name) const;
  Result<double> read_output(size_t function, int64_t run, llvm::StringRef name, double otherwise);
  Status add_run(StepInFlight& step);  // the next run's loss and weight
  Status write_learning_rate(double learning_rate);
  Result<int64_t> run_function(size_t index, const GradientSink* gradients, double divisor);
  Result<double> loss_scale();

  Plan plan_;
  std::vector<WholeState> whole_states_;
  llvm::StringMap<FirstValue> first_values_;
  Communicator* ranks_;  // null: one rank
  int64_t rank_ = 0;
  std::optional<MeshCollectives> collectives_;
  std::unique_ptr<Executor> executor_;
  static constexpr int64_t max_in_flight = 2;
  std::array<StepInFlight, max_in_flight> in_flight_;  // step n at n % max_in_flight
  int64_t steps_started_ = 0;
  std::chrono::steady_clock::time_point last_finish_;
  std::vector<std::optional<int64_t>> brought_;  // by function: BatchSource::only_batch() of what its inputs hold
  double learning_rate_ = 0;                     // of the update that is started next, unless a schedule says otherwise
  std::optional<LearningRateSchedule> schedule_;
  int64_t steps_done_ = 0;
  RankProgress progress_;
  std::atomic<Executor*> interruptible_{nullptr};  // executor_ once it exists, for the watch's thread
  std::unique_ptr<RankWatch> watch_;               // the last member: its thread uses the others
};

}  // namespace plimsoll
