#pragma once

// Runs a plan's function "evaluate" over a data set and adds up what it gives.

#include "runtime/session.h"

namespace plimsoll {

struct Metric {
  std::string name;  // "loss", "accuracy"
  double value = 0;
};

struct EvaluationResult {
  std::vector<Metric> metrics;  // the loss, then those the plan was compiled with, in their order
  int64_t samples = 0;
  double seconds = 0;

  const Metric* find(llvm::StringRef name) const;
};

// Is a larger value of the metric a better one? Losses and perplexities are better when they are smaller.
bool is_better_when_larger(llvm::StringRef metric);

class Evaluator {
 public:
  // Fails where the plan has no such function. The session must outlive it.
  static Result<Evaluator> create(Session& session);

  // Those that the data feed; the others are zeros.
  std::vector<InputSpec> inputs() const;
  DataOptions rows_of_rank(uint64_t seed) const {
    DataOptions rows = session_->rows_of_rank(seed);
    rows.samples = 0;
    return rows;
  }
  int64_t batch() const { return session_->plan().evaluation.batch; }
  // Outputs with one row per sample, such as logits.
  std::vector<const PlanOutput*> rows() const;
  // From now on the data feed only the inputs that outputs with rows depend on, so that data without labels will do.
  // The metrics then say nothing.
  void feed_predictions_only();

  // `rows` are those of an output for samples [first, first + rows.type.shape[0]). Of several ranks the first one gets
  // those of all.
  using RowSink = llvm::function_ref<Status(const PlanOutput& output, int64_t first, const TensorView& rows)>;
  // Of several ranks each evaluates its rows of every batch, all of them call this, and each gets the result for all.
  // Reads one epoch of the data from its start, or `batches` batches where that is not 0 or the data have no epochs.
  // No step may be in flight, and states stay as they are. In the last batch, samples beyond the end of the data count
  // nothing.
  Result<EvaluationResult> run(BatchSource& data, int64_t batches = 0, RowSink rows = nullptr);

  // What is read of data without epochs.
  static constexpr int64_t default_batches = 32;

 private:
  using Sums = std::vector<std::vector<double>>;  // by output

  Evaluator(Session& session, size_t function);
  const PlanFunction& function() const { return session_->plan().functions[function_]; }
  const Type& type_of(const PlanOutput& output) const;
  void repeat_first_sample(llvm::ArrayRef<TensorView> inputs, int64_t from) const;
  // `fill` gets the views of the inputs that the data feed.
  Result<int64_t> run_batch(llvm::function_ref<Status(llvm::ArrayRef<TensorView>)> fill);
  Status add_outputs(int64_t run, double factor, Sums& sums);
  // Batches that are read, and samples in the last one of all ranks; the others are full.
  struct Samples {
    int64_t batches, in_last;
  };
  Result<Samples> samples_in(const BatchSource& data, int64_t batches);
  // Of the samples of a batch of all ranks, how many are those of a rank along the axis data.
  int64_t samples_of(int64_t data_rank, int64_t samples) const;
  Status add_over_ranks(Sums& sums);
  // Do the function's calls wait for those of ranks with other rows, which have pieces of the weights?
  bool waits_for_other_rows() const;
  Status remove_repeats(int64_t repeats, Sums& sums, std::vector<Tensor> first_sample);
  Status hand_out(int64_t first, int64_t samples, RowSink rows);  // of a batch of all ranks
  double sum_of(llvm::StringRef output, const Sums& sums, double otherwise) const;
  Result<std::vector<Metric>> metrics(const Sums& sums, int64_t samples) const;

  Session* session_;
  size_t function_;
  std::vector<bool> is_fed_;  // by input of the function
};

}  // namespace plimsoll
