#pragma once

// The evaluations of a run: when the next is due, which one was best, and whether the run should end early.

#include "frontend/driver/best_evaluation.h"
#include "frontend/driver/run_data.h"
#include "runtime/evaluator.h"

#include <limits>

namespace plimsoll {

struct EvaluationData {
  std::string path;
  std::string transforms;  // of training with images, a TOML file; empty: none
  double hold_out = 0;     // above 0: the samples that a run with this share and this seed does not train with
  uint64_t seed = 0;       // of that share
  // Of token files, as of training.
  int64_t document_end = -1;
  std::string labels = "auto";
};
// The samples in their order, each once.
Result<std::unique_ptr<BatchSource>> open_evaluation_data(const EvaluationData& from, const Evaluator& evaluator);

// "360 samples: loss 0.2718, accuracy 0.9139"
std::string describe_evaluation(const EvaluationResult& result);

class RunEvaluation {
 public:
  explicit RunEvaluation(const RunOptions& options) : run_(options), options_(options.evaluation) {}

  // Checks the options and opens the data, before the first step: --evaluate-data, else what --hold-out keeps of the
  // training's data. The session must outlive this.
  Status open(Session& session, const RunStart& start);

  bool is_wanted() const { return evaluator_.has_value(); }
  // No step beyond this one may be started until it is evaluated.
  int64_t next_step() const { return next_step_; }
  // After each finished step. Gives the result where an evaluation was due.
  Result<std::optional<EvaluationResult>> after_step(int64_t step);
  // After the last step, unless it was evaluated.
  Result<std::optional<EvaluationResult>> after_last_step(int64_t step);

  // Whether the last evaluation is the best so far.
  bool is_best() const { return best_.step == evaluated_step_; }
  const BestEvaluation& best() const { return best_; }
  // Goes on from what an earlier part of the run came to, if that was by the same metric.
  void resume(const BestEvaluation& best);
  // "; best accuracy 0.9361 at step 400"; empty where the last one is the best.
  std::string describe_best() const;
  // Whether the metric has not become better for as many evaluations as --early-stop says.
  bool stops() const { return options_.early_stop > 0 && best_.since >= options_.early_stop; }

 private:
  Status choose_metric(const EvaluationSummary& plan);
  Result<std::optional<EvaluationResult>> evaluate(int64_t step);

  const RunOptions& run_;
  const EvaluationOptions& options_;
  std::optional<Evaluator> evaluator_;
  std::unique_ptr<BatchSource> data_;
  int64_t next_step_ = std::numeric_limits<int64_t>::max();
  int64_t evaluated_step_ = -1;
  BestEvaluation best_;
};

}  // namespace plimsoll
