#include "frontend/api/tune.h"

#include "ir/support/philox.h"
#include "ir/text.h"
#include "runtime/cuda/loader.h"
#include "runtime/executor.h"
#include "runtime/single_op_plan.h"

#include "llvm/ADT/StringSet.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace plimsoll {
namespace {

constexpr double refused_us = 1e9;
constexpr int repeats = 5;

// Matrix units are faster on zeros, so floats repeat a block of random numbers. Indices and flags stay 0.
Status fill_operands(Executor& executor, const Instruction& instruction) {
  constexpr int64_t block = 1 << 16;
  RandomStream stream{1, 0, 0};
  for (SlotId operand : instruction.operands) {
    if (operand < 0) continue;
    Status filled = executor.write(operand, [&](const TensorView& view) {
      if (!is_float(view.type.dtype)) return Status::success();
      for (int64_t i = 0; i < std::min(view.elements(), block); ++i) view.set(i, stream.normal(i));
      std::byte* bytes = view.as<std::byte>();
      const int64_t all = view.type.bytes(), of_block = block * dtype_bytes(view.type.dtype);
      for (int64_t at = of_block; at < all; at += of_block)
        std::memcpy(bytes + at, bytes, static_cast<size_t>(std::min(of_block, all - at)));
      return Status::success();
    });
    if (filled) return filled;
  }
  return Status::success();
}

using Choices = std::vector<KernelCandidate>;

// Makes one function per kernel. All share their operands and results, and their workspaces overlap.
Plan plan_of_choices(const OpDef& op, const OpCall& call, llvm::ArrayRef<Type> results,
                     llvm::ArrayRef<KernelCandidate> choices, const DeviceDescription& device) {
  auto needs_less = [](const KernelCandidate& a, const KernelCandidate& b) {
    return a.workspace_bytes < b.workspace_bytes;
  };
  const int64_t max_workspace_bytes = std::max_element(choices.begin(), choices.end(), needs_less)->workspace_bytes;
  Plan plan = plan_of({op, call, results, choices.front().name, max_workspace_bytes}, device);
  const PlanFunction one = plan.functions.front();
  const SlotId shared = one.instructions.front().workspace;
  plan.functions.clear();
  for (const KernelCandidate& choice : choices) {
    Instruction& instruction = plan.functions.emplace_back(one).instructions.front();
    instruction.kernel = choice.name;
    instruction.workspace = choice.workspace_bytes > 0 ? static_cast<SlotId>(plan.slots.size()) : -1;
    if (choice.workspace_bytes == 0) continue;
    Slot workspace = plan.slots[shared];
    workspace.bytes = choice.workspace_bytes;
    workspace.type = Type(DType::U8, {choice.workspace_bytes});
    plan.slots.push_back(std::move(workspace));
  }
  return plan;
}

struct Timed {
  double us = refused_us;
  std::vector<float> results;  // the first elements of each float result
};

Status read_results(Executor& executor, const Instruction& instruction, std::vector<float>& to) {
  constexpr int64_t max_compared = int64_t{1} << 20;
  for (SlotId result : instruction.results) {
    Status read = executor.read(result, [&](const TensorView& view) {
      if (is_float(view.type.dtype))
        for (int64_t i = 0; i < std::min(view.elements(), max_compared); ++i)
          to.push_back(static_cast<float>(view.get(i)));
      return Status::success();
    });
    if (read) return read;
  }
  return Status::success();
}

Result<Timed> time_function(Executor& executor, size_t function, const Instruction& instruction) {
  Timed timed;
  for (int i = 0; i < repeats; ++i) {
    if (Result<int64_t> run = executor.run(function); !run) return run.takeError();
    Result<llvm::ArrayRef<double>> times = executor.times(function);
    if (!times) return times.takeError();
    timed.us = std::min(timed.us, (*times)[0]);
  }
  if (Status s = read_results(executor, instruction, timed.results)) return s;
  return timed;
}

// Returns one entry per choice. Fails if one of the kernels refuses the call.
Result<std::vector<Timed>> time_together(const Plan& plan) {
  Result<std::unique_ptr<Executor>> executor = Executor::create(plan, {});
  if (!executor) return executor.takeError();
  if (Status s = fill_operands(**executor, plan.functions[0].instructions[0])) return s;
  std::vector<Timed> all;
  for (size_t f = 0; f < plan.functions.size(); ++f) {
    Result<Timed> timed = time_function(**executor, f, plan.functions[f].instructions[0]);
    if (!timed) return timed.takeError();
    all.push_back(std::move(*timed));
  }
  return all;
}

// Making operands takes longer than running the kernels, so all choices share them unless one refuses the call.
std::vector<Timed> time_choices(const OpDef& op, const OpCall& call, llvm::ArrayRef<Type> results,
                                const Choices& choices, const DeviceDescription& device) {
  Result<std::vector<Timed>> together = time_together(plan_of_choices(op, call, results, choices, device));
  if (together) return std::move(*together);
  llvm::consumeError(together.takeError());
  std::vector<Timed> all;
  for (const KernelCandidate& choice : choices) {
    Result<std::vector<Timed>> alone = time_together(plan_of_choices(op, call, results, choice, device));
    if (!alone) llvm::consumeError(alone.takeError());
    all.push_back(alone ? std::move(alone->front()) : Timed());
  }
  return all;
}

void refuse_what_differs(llvm::MutableArrayRef<Timed> all) {
  const auto first = llvm::find_if(all, [](const Timed& timed) { return timed.us < refused_us; });
  for (Timed& timed : all)
    if (timed.us < refused_us && !same_but_for_rounding(first->results, timed.results)) timed.us = refused_us;
}

// Returns the kernels worth timing: all except the reference.
Choices choices_of(const KernelCatalog& catalog, const OpDef& op, const OpCall& call, llvm::ArrayRef<Type> results) {
  Choices choices = catalog.candidates(op, call, results);
  llvm::erase_if(choices, [](const KernelCandidate& c) { return c.name == "reference"; });
  return choices;
}

}  // namespace

bool same_but_for_rounding(llvm::ArrayRef<float> results, llvm::ArrayRef<float> other) {
  constexpr double max_share = 0.05;  // of the norm; bf16 sums in another order differ by less than a fifth of it
  if (results.size() != other.size()) return false;
  double norm = 0, difference = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    if (!std::isfinite(results[i])) continue;
    const double off = static_cast<double>(other[i]) - results[i];
    norm += static_cast<double>(results[i]) * results[i];
    difference += off * off;
  }
  return difference <= max_share * max_share * norm;
}

Result<TuneReport> tune(const Plan& plan, const KernelCatalog& catalog, TimingCache& times) {
  if (plan.device.backend == "cuda")
    if (Result<std::unique_ptr<CudaBackend>> backend = load_cuda_backend(); !backend)
      return in_context("--tune", backend.takeError());
  TuneReport report;
  llvm::StringSet<> seen;
  for (const PlanFunction& function : plan.functions)
    for (const Instruction& instruction : function.instructions) {
      const OpDef* op = find_op(instruction.op);
      llvm::SmallVector<const Type*, 6> types;
      Types results;
      std::string key = instruction.op + to_text(instruction.attrs);
      for (SlotId operand : instruction.operands) {
        types.push_back(operand < 0 ? nullptr : &plan.slots[operand].type);
        key += operand < 0 ? "-" : to_string(*types.back());
      }
      for (SlotId result : instruction.results) results.push_back(plan.slots[result].type);
      const OpCall call(*op, instruction.attrs, types);
      if (!seen.insert(key).second) continue;
      const Choices choices = choices_of(catalog, *op, call, results);
      if (choices.size() < 2) continue;
      ++report.calls;
      report.kernels += static_cast<int64_t>(choices.size());
      std::vector<Timed> timed = time_choices(*op, call, results, choices, plan.device);
      refuse_what_differs(timed);
      for (size_t i = 0; i < choices.size(); ++i)
        times.add(plan.device.name, op->name, choices[i].name, call, timed[i].us);
    }
  return report;
}

}  // namespace plimsoll
