#pragma once

// A training step of a plan's model by the reference interpreter: imported again, differentiated, and run without any
// rewrite, layout or kernel of ours. What verify compares a plan's step with.

#include "frontend/api/job.h"
#include "ir/evaluate.h"

#include <map>

namespace plimsoll {

using NamedTensors = std::map<std::string, Tensor>;

struct StepResults {
  double loss = 0;
  NamedTensors gradients;  // of the mean loss, before clipping, by parameter
  NamedTensors states;     // after the step, by name
  double weight = 1;       // of the samples of all batches
};

// What a step starts from: the inputs of each micro-batch by name, and how states get their first values.
struct StepStart {
  std::vector<NamedTensors> batches;
  WeightLoader load;
  uint64_t seed = 0;
};

// The job that a plan records.
TrainingRequest request_of(const Plan& plan);

// The forward graph of the plan's model, in the plan's batch, with its loss and its trained states. Errors: the file is
// not the plan's model.
Result<Graph> import_model_of(const Plan& plan, const std::string& model_path, const TrainingRequest& request);

// Its training step, without a pass.
Result<Program> make_reference_program(Graph forward, const TrainingRequest& request);

// One update by the interpreter: the first function for each batch, then "update" where there is one.
Result<StepResults> run_reference_step(const Program& program, const StepStart& start);

// The states that the program's optimizer makes of given gradients: a plan's own, so that an error of its gradients is
// not counted again, and grown by the optimizer, in each parameter.
Result<NamedTensors> run_reference_update(const Program& program, const StepStart& start, const NamedTensors& gradients,
                                          double weight);

// Inputs of the first batch and first values of states, by name: what a reproducer needs.
Result<NamedTensors> start_values(const Graph& graph, const StepStart& start);

// The same of a function of the program. Before "update" the states are as the first function's calls for all batches
// leave them.
Result<NamedTensors> start_values(const Program& program, size_t function, const StepStart& start);

// Every result of the graph's nodes by name, from the inputs and states in `given`.
Result<NamedTensors> run_reference_values(const Graph& graph, const NamedTensors& given);

}  // namespace plimsoll
