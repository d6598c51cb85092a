#include "frontend/api/verify.h"

#include "llvm/Support/FormatVariadic.h"

#include <cmath>
#include <cstring>

// The instructions of a plan, each computed by its op's reference on what the instructions before it gave, beside the
// program that they were scheduled from. No byte is shared, so layouts and kernels play no part: what differs is a
// remat, a copy, a chunk or a place in the order that reads something else than it should.

namespace plimsoll {
namespace {

// A remat, a reload and a copy on the host have the name of their value with one of these behind it.
llvm::StringRef original_name(llvm::StringRef name) {
  for (llvm::StringRef mark : {".recompute", ".reload", ".host"})
    if (const size_t at = name.rfind(mark); at != llvm::StringRef::npos && at > 0) name = name.take_front(at);
  return name;
}

class ScheduleCheck {
 public:
  ScheduleCheck(const Plan& plan, const PlanFunction& function, NamedTensors expected, NamedTensors given, double limit)
      : plan_(plan), function_(function), expected_(std::move(expected)), given_(std::move(given)), limit_(limit) {}

  Result<std::optional<Culprit>> run() {
    for (const PlanConstant& constant : plan_.constants) values_.emplace(constant.slot, *constant.value);
    for (size_t at = 0; at < function_.instructions.size() && !culprit_; ++at)
      if (Status s = check(at)) return s;
    return std::move(culprit_);
  }

 private:
  const Slot& slot(SlotId id) const { return plan_.slots[static_cast<size_t>(id)]; }

  // What an instruction wrote, a constant, the first value of a state, an input of the batch, or the bytes of one of
  // them under another shape.
  Result<const Tensor*> value_of(SlotId id) {
    if (const auto known = values_.find(id); known != values_.end()) return &known->second;
    if (slot(id).view_of < 0) {
      const auto given = given_.find(slot(id).name);
      if (given == given_.end()) return model_error("nothing writes %" + slot(id).name + " before it is read");
      return &values_.emplace(id, given->second).first->second;
    }
    const SlotId seen = slot(id).view_of;
    Result<const Tensor*> whole = value_of(seen);
    if (!whole) return whole;
    const int64_t first = slot(id).offset - slot(seen).offset;
    return &values_.emplace(id, Tensor(slot(id).type, static_cast<const char*>((*whole)->data()) + first))
                .first->second;
  }

  Status check(size_t at) {
    const Instruction& instruction = function_.instructions[at];
    const OpDef& op = get_op(instruction.op);
    llvm::SmallVector<const Tensor*, 6> operands;
    for (SlotId operand : instruction.operands) {
      Result<const Tensor*> value = operand < 0 ? nullptr : value_of(operand);
      if (!value) return value.takeError();
      operands.push_back(*value);
    }
    Result<std::vector<Tensor>> results = evaluate_node(op, instruction.attrs, operands);
    if (!results) return in_context("instruction " + llvm::Twine(at), results.takeError());
    for (size_t r = 0; r < results->size(); ++r) {
      const SlotId id = instruction.results[r];
      const auto wanted = expected_.find(original_name(slot(id).name).str());
      const bool is_comparable = wanted != expected_.end() && wanted->second.type() == (*results)[r].type();
      const double error = is_comparable ? largest_error((*results)[r], wanted->second) : 0;
      if (!(error <= limit_)) return blame(at, id, error, operands, (*results)[r], wanted->second), Status::success();
      values_.insert_or_assign(id, std::move((*results)[r]));
    }
    return Status::success();
  }

  void blame(size_t at, SlotId result, double error, llvm::ArrayRef<const Tensor*> operands, const Tensor& got,
             const Tensor& wanted) {
    const Instruction& instruction = function_.instructions[at];
    Culprit& culprit = culprit_.emplace();
    const std::string& name = slot(result).name;
    culprit.what = "instruction " + std::to_string(at) + " of " + function_.name + ", " + instruction.op;
    culprit.detail = "%" + name + " differs by " + llvm::formatv("{0:e2}", error).str() +
                     " of its largest element from %" + original_name(name).str() +
                     " of the program before remats, copies and their order; its operands are";
    for (size_t i = 0; i < operands.size(); ++i) {
      if (!operands[i]) continue;
      const std::string& operand = slot(instruction.operands[i]).name;
      culprit.detail += " %" + operand;
      culprit.tensors.emplace(operand, *operands[i]);
    }
    culprit.tensors.emplace(name + ".planned", got);
    culprit.tensors.emplace(name + ".reference", wanted);
  }

  const Plan& plan_;
  const PlanFunction& function_;
  const NamedTensors expected_, given_;
  const double limit_;
  std::map<SlotId, Tensor> values_;
  std::optional<Culprit> culprit_;
};

}  // namespace

Result<std::optional<Culprit>> find_wrong_schedule(const Plan& plan, const Program& scheduled, const StepStart& start,
                                                   double limit) {
  for (size_t f = 0; f < scheduled.functions.size(); ++f) {
    const Graph& graph = scheduled.functions[f];
    const std::optional<size_t> planned = plan.find_function(graph.name);
    if (!planned) return model_error("the plan has no function " + graph.name);
    Result<NamedTensors> given = start_values(scheduled, f, start);
    if (!given) return given.takeError();
    Result<NamedTensors> expected = run_reference_values(graph, *given);
    if (!expected) return expected.takeError();
    Result<std::optional<Culprit>> wrong =
        ScheduleCheck(plan, plan.functions[*planned], std::move(*expected), std::move(*given), limit).run();
    if (!wrong || *wrong) return wrong;
  }
  return std::nullopt;
}

}  // namespace plimsoll
