#include "runtime/cuda/backend/step.h"

#include "runtime/cuda/backend/device_memory.h"
#include "runtime/cuda/backend/host_reference.h"

#include "llvm/ADT/STLExtras.h"

namespace plimsoll {
namespace {

bool overlap(const TensorView& a, const TensorView& b) {
  const char *first = a.as<char>(), *second = b.as<char>();
  return a.data && b.data && first < second + b.type.bytes() && second < first + a.type.bytes();
}

bool writes_what_other_touches(const Step& writer, const Step& other) {
  return llvm::any_of(writer.results, [&](const TensorView& result) {
    auto meets = [&](const TensorView& view) { return overlap(result, view); };
    return llvm::any_of(other.operands, meets) || llvm::any_of(other.results, meets);
  });
}

bool joins(const Step& first, const Step& next) {
  if (!first.launcher || first.launcher != next.launcher || !first.launcher->joins) return false;
  const OpCall first_call = first.op_call(), next_call = next.op_call();
  return first.launcher->joins(first.call_on(nullptr, first_call), next.call_on(nullptr, next_call));
}

}  // namespace

Status find_launcher(const std::string& kernel, Step& step) {
  const std::optional<CudaKernel> found = find_cuda_kernel(*step.op, kernel);
  if (!found)
    return model_error("the plan needs kernel '" + kernel + "' of " + step.op->name +
                       ", which this program does not have; compile it again");
  step.launcher = &launcher_of(*found->candidate);
  step.algorithm = found->algorithm;
  return Status::success();
}

void fold_volumes(Step& step) {
  Types results;
  for (const TensorView& result : step.results) results.push_back(result.type);
  std::optional<FoldedConvolution> folded = FoldedConvolution::of(step.op_call(), results);
  if (!folded) return;
  step.folded = std::make_unique<FoldedConvolution>(std::move(*folded));
  step.attrs = &step.folded->attrs();
  for (size_t i = 0; i < step.operands.size(); ++i) {
    step.operand_types[i] = step.folded->operands()[i];
    if (step.operand_types[i]) step.operands[i].type = *step.operand_types[i];
  }
  for (size_t i = 0; i < step.results.size(); ++i) step.results[i].type = step.folded->results()[i];
}

size_t count_joined(llvm::ArrayRef<Step> steps) {
  size_t count = 1;
  for (; count < steps.size() && joins(steps.front(), steps[count]); ++count) {
    auto depends = [&](const Step& before) {
      return writes_what_other_touches(before, steps[count]) || writes_what_other_touches(steps[count], before);
    };
    if (llvm::any_of(steps.take_front(count), depends)) break;
  }
  return count;
}

Status launch_steps(llvm::ArrayRef<Step> steps, cudaStream_t stream) {
  const Step& first = steps.front();
  std::vector<OpCall> op_calls;
  std::vector<CudaCall> calls;
  op_calls.reserve(steps.size());  // calls refer to them
  for (const Step& step : steps) {
    op_calls.push_back(step.op_call());
    calls.push_back(step.call_on(stream, op_calls.back()));
  }
  Status status = !first.launcher     ? static_cast<HostReference&>(*first.prepared).launch(calls.front())
                  : steps.size() == 1 ? first.launcher->launch(calls.front())
                                      : first.launcher->launch_group(calls);
  if (status) return in_context(first.name, std::move(status));
  return cuda_status(cudaPeekAtLastError(), first.name + " (" + first.op->name + ")");
}

}  // namespace plimsoll
