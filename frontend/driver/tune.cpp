#include "frontend/driver/tune.h"

#include "ir/philox.h"
#include "ir/text.h"
#include "runtime/cuda/load.h"
#include "runtime/executor.h"
#include "runtime/one_instruction.h"

#include "llvm/ADT/StringSet.h"

#include <algorithm>

namespace plimsoll {
namespace {

constexpr double refused_us = 1e9;
constexpr int repeats = 5;

// Zeros flatter matrix units, so floats are random: a block of numbers over and over. Indices and flags stay 0.
Status fill_operands(Executor& executor, const Instruction& instruction) {
  constexpr int64_t block = 1 << 16;
  std::vector<double> numbers(block);
  RandomStream stream{1, 0, 0};
  for (int64_t i = 0; i < block; ++i) numbers[static_cast<size_t>(i)] = stream.normal(i);
  for (SlotId operand : instruction.operands) {
    if (operand < 0) continue;
    Status filled = executor.write(operand, [&](const TensorView& view) {
      if (!is_float(view.type.dtype)) return Status::success();
#pragma omp parallel for
      for (int64_t i = 0; i < view.elements(); ++i) view.set(i, numbers[static_cast<size_t>(i % block)]);
      return Status::success();
    });
    if (filled) return filled;
  }
  return Status::success();
}

Result<double> time_kernel(const OneInstruction& what, const DeviceDescription& device) {
  const Plan plan = plan_of(what, device);
  Result<std::unique_ptr<Executor>> executor = Executor::create(plan, {});
  if (!executor) return executor.takeError();
  if (Status s = fill_operands(**executor, plan.functions[0].instructions[0])) return s;
  double best = refused_us;
  for (int i = 0; i < repeats; ++i) {
    if (Result<int64_t> run = (*executor)->run(0); !run) return run.takeError();
    Result<llvm::ArrayRef<double>> times = (*executor)->times(0);
    if (!times) return times.takeError();
    best = std::min(best, (*times)[0]);
  }
  return best;
}

// Kernels worth timing: all but the reference.
std::vector<KernelCandidate> choices_of(const KernelCatalog& catalog, const OpDef& op, const OpCall& call, llvm::ArrayRef<Type> results) {
  std::vector<KernelCandidate> choices = catalog.candidates(op, call, results);
  llvm::erase_if(choices, [](const KernelCandidate& c) { return c.name == "reference"; });
  return choices;
}

}  // namespace

Result<TuneReport> tune(const Plan& plan, const KernelCatalog& catalog, TimingCache& times) {
  if (plan.device.backend == "cuda")
    if (Result<std::unique_ptr<CudaBackend>> backend = load_cuda_backend(); !backend) return in_context("--tune", backend.takeError());
  TuneReport report;
  llvm::StringSet<> seen;
  for (const PlanFunction& function : plan.functions)
    for (const Instruction& instruction : function.instructions) {
      const OpDef* op = find_op(instruction.op);
      llvm::SmallVector<const Type*, 6> types;
      Types results;
      std::string key = instruction.op + to_text(instruction.attrs);
      for (SlotId operand : instruction.operands) {
        types.push_back(operand < 0 ? nullptr : &plan.slots[static_cast<size_t>(operand)].type);
        key += operand < 0 ? "-" : to_string(*types.back());
      }
      for (SlotId result : instruction.results) results.push_back(plan.slots[static_cast<size_t>(result)].type);
      const OpCall call(instruction.attrs, types);
      if (!seen.insert(key).second) continue;
      const std::vector<KernelCandidate> choices = choices_of(catalog, *op, call, results);
      if (choices.size() < 2) continue;
      ++report.calls;
      for (const KernelCandidate& choice : choices) {
        Result<double> time = time_kernel({*op, call, results, choice.name, choice.workspace_bytes}, plan.device);
        if (!time) llvm::consumeError(time.takeError());
        times.add(plan.device.name, op->name, choice.name, call, time ? *time : refused_us);
        ++report.kernels;
      }
    }
  return report;
}

}  // namespace plimsoll
