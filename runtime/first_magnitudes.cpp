#include "runtime/first_magnitudes.h"

#include "ir/evaluate.h"

#include <cmath>

namespace plimsoll {
namespace {

// Follows a weight from the instruction that reads it back to states, and does to their numbers what is done on the
// way: casts, transposes, dequantisation.
class WeightFollower {
 public:
  WeightFollower(const Plan& plan, const PlanFunction& function, const LoadWhole& load)
      : plan_(plan), function_(function), load_(load) {}

  Result<Tensor> value_of(SlotId slot) const {
    if (const PlanState* state = state_at(slot)) {
      const Type& own = plan_.slots[static_cast<size_t>(state->slot)].type;
      Tensor whole(Type(own.dtype, whole_shape(state->divisions, own.shape)));
      if (Status s = load_(state->init.source, whole.view())) return s;
      return whole;
    }
    for (const PlanConstant& constant : plan_.constants)
      if (constant.slot == slot) return *constant.value;
    const Instruction* maker = maker_of(slot);
    if (!maker) return view_of(slot);
    const OpDef& op = get_op(maker->op);
    const bool carries = op.engine != Engine::Compute || maker->op == "identity" || maker->op == "copy";
    if (carries) return value_of(maker->operands[0]);
    std::vector<Tensor> operands(maker->operands.size());
    std::vector<const Tensor*> read(maker->operands.size());
    for (size_t i = 0; i < operands.size(); ++i) {
      if (maker->operands[i] < 0) continue;  // absent
      Result<Tensor> value = value_of(maker->operands[i]);
      if (!value) return value;
      operands[i] = std::move(*value);
      read[i] = &operands[i];
    }
    Result<std::vector<Tensor>> made = evaluate_node(op, maker->attrs, read);
    if (!made) return made.takeError();
    for (size_t i = 0; i < maker->results.size(); ++i)
      if (maker->results[i] == slot) return std::move((*made)[i]);
    return std::move(made->front());
  }

  const PlanState* state_at(SlotId slot) const {
    for (const PlanState& state : plan_.states)
      if (state.slot == slot || state.slot == plan_.storage_of(slot))
        if (plan_.slots[static_cast<size_t>(slot)].type.shape ==
            plan_.slots[static_cast<size_t>(state.slot)].type.shape)
          return &state;
    return nullptr;
  }

 private:
  // No instruction makes a view of all elements in another shape.
  Result<Tensor> view_of(SlotId slot) const {
    const Slot& view = plan_.slots[static_cast<size_t>(slot)];
    const SlotId stored = plan_.storage_of(slot);
    if (stored == slot || plan_.slots[static_cast<size_t>(stored)].type.elements() != view.type.elements())
      return model_error("nothing makes %" + view.name);
    Result<Tensor> whole = value_of(stored);
    if (!whole) return whole;
    return whole->reshaped(view.type.shape);
  }

  const Instruction* maker_of(SlotId slot) const {
    for (const Instruction& instruction : function_.instructions)
      for (SlotId result : instruction.results)
        if (result == slot) return &instruction;
    return nullptr;
  }

  const Plan& plan_;
  const PlanFunction& function_;
  const LoadWhole& load_;
};

}  // namespace

Status fill_first_magnitude(const Plan& plan, llvm::StringRef name, const LoadWhole& load, const TensorView& into) {
  for (const PlanFunction& function : plan.functions) {
    const WeightFollower follower(plan, function, load);
    for (const Instruction& instruction : function.instructions) {
      if (instruction.op != "dora_scale") continue;
      const PlanState* magnitude = follower.state_at(instruction.operands[3]);
      if (!magnitude || magnitude->init.source != name) continue;
      Result<Tensor> weight = follower.value_of(instruction.operands[0]);
      if (!weight) return in_context(name, weight.takeError());
      const bool by_outputs = instruction.attrs.get_int("transpose_w", 0) != 0;
      const int64_t rows = weight->type().shape[0], columns = weight->type().shape[1];
      std::vector<double> squares(static_cast<size_t>(by_outputs ? rows : columns));
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < columns; ++c) {
          const double number = weight->get(r * columns + c);
          squares[static_cast<size_t>(by_outputs ? r : c)] += number * number;
        }
      for (size_t i = 0; i < squares.size(); ++i) into.set(static_cast<int64_t>(i), std::sqrt(squares[i]));
      return Status::success();
    }
  }
  return model_error("no layer of the plan reads the magnitudes " + name);
}

}  // namespace plimsoll
