#pragma once

// Compares a plan's step with the reference interpreter's, and finds what makes them differ.

#include "frontend/api/reference_step.h"

namespace plimsoll {

// One tensor of the step, as the plan and as the interpreter have it.
struct TensorDifference {
  enum class Kind : uint8_t { Loss, Gradient, State, Value } kind = Kind::Loss;
  std::string name;
  Type type;
  double error = 0;  // norm of the difference over the norm of the reference
  double limit = 0;
  bool agrees() const { return error <= limit; }  // false for NaN
};

// Largest errors that rounding explains, by the precision of the plan.
struct VerifyLimits {
  double loss, gradient, state;
};
VerifyLimits limits_of(const Plan& plan);

struct StepComparison {
  double loss = 0, reference_loss = 0;
  std::vector<TensorDifference> tensors;  // largest error against its limit first
  bool agrees() const;
};

// Runs one step of the session, which has its first values, and of the interpreter. `program` is that of the model
// without rewrites, and `data` gives the batches of `start`.
Result<StepComparison> compare_step(Session& session, BatchSource& data, const Program& program,
                                    const StepStart& start);

// What the first wrong thing is, and a folder that shows it: IR text and the tensors it reads.
struct Culprit {
  std::string what;    // "instruction 12 of train_step", "pass simplify"
  std::string detail;  // which value differs, and by how much
  std::string text;    // the IR that shows it, which parses
  NamedTensors tensors;
};
Status write_reproducer(const std::string& folder, const Culprit& culprit);

// The first instruction of a step, "update" included, whose result differs from that of its op's reference on the same
// operands, or whose operands are no longer what their writer left: a kernel, or the layout. None where all agree. The
// session has its first values.
Result<std::optional<Culprit>> find_wrong_instruction(Session& session, BatchSource& data);

// A program after a pass; the first is that before all.
struct ProgramAfter {
  std::string pass;
  Program program;
};
// The first pass after which the program's step differs from that before all, by bisection. Passes that round on
// purpose differ by `limit`. None where the last program agrees.
Result<std::optional<Culprit>> find_wrong_pass(llvm::ArrayRef<ProgramAfter> programs, const StepStart& start,
                                               double limit);

// Runs the graph passes of the plan's compilation again and gives the program after each, first that without any. Where
// the plan takes its batch in chunks, the split is one of them, "split-batch". `forward` is what import_model_of gave.
Result<std::vector<ProgramAfter>> programs_of_passes(Graph forward, const Plan& plan, const TrainingRequest& request);

// The first instruction of the step, "update" included, whose result differs from the value of the same name in the
// program it was scheduled from, the last that programs_of_passes gives: a remat, a reload, a copy or an order that is
// wrong. None where all agree.
Result<std::optional<Culprit>> find_wrong_schedule(const Plan& plan, const Program& scheduled, const StepStart& start,
                                                   double limit);

// The largest difference over the largest element of `wanted`; infinite where only one is finite.
double largest_error(const Tensor& got, const Tensor& wanted);

}  // namespace plimsoll
