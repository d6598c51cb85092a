#include "ir/plan/check_ranks.h"

#include "ir/op_def.h"
#include "ir/plan/check_layout.h"

#include <algorithm>

// Follows for every slot how its bytes on one rank relate to those on the others. Storage is not followed: check_plan
// has shown that each slot still holds what its writer wrote.

namespace plimsoll {
namespace {

// In this order what an op makes of several operands is the largest of theirs.
enum class Held : uint8_t {
  Alike,  // the same on all ranks
  Piece,  // the rank's own piece of something of which all ranks together hold the whole
  Own,    // made of the rank's own rows
};

class RanksCheck {
 public:
  explicit RanksCheck(const Plan& plan) : plan_(plan), held_(plan.slots.size(), Held::Alike) {}

  Status run() {
    for (const PlanState& state : plan_.states)
      if (Status s = begin(state)) return s;
    for (const PlanFunction& function : plan_.functions)
      if (Status s = check(function)) return s;
    return Status::success();
  }

 private:
  const Slot& slot(SlotId id) const { return plan_.slots[static_cast<size_t>(id)]; }
  Held& held(SlotId id) { return held_[static_cast<size_t>(id)]; }
  std::string name(SlotId id) const { return describe_slot(plan_, id); }

  Status begin(const PlanState& state) {
    // Accumulated gradients are the ranks' summands, which the update adds up.
    if (state.role == StateRole::Gradient) held(state.slot) = of_own_rows();
    if (state.piece_of.empty()) return Status::success();
    const int64_t whole = element_count(state.piece_of), ranks = plan_.mesh[MeshAxis::Data];
    if (slot(state.slot).type.elements() * ranks < whole)
      return model_error("plan check: " + llvm::Twine(ranks) + " pieces of " + name(state.slot) + " do not make " +
                         to_string(state.piece_of));
    held(state.slot) = Held::Piece;
    return Status::success();
  }

  Status check(const PlanFunction& function) {
    for (const PlanInput& input : function.inputs) held(input.slot) = input.whole ? Held::Alike : of_own_rows();
    for (size_t i = 0; i < function.instructions.size(); ++i)
      if (Status s = follow(function.instructions[i]))
        return in_context("plan check: " + function.name + " instruction " + llvm::Twine(i) + " (" +
                              function.instructions[i].op + ")",
                          std::move(s));
    for (const PlanOutput& output : function.outputs)
      if (held(output.slot) != Held::Alike)
        return model_error("plan check: " + function.name + ": output " + output.name + " differs from rank to rank");
    for (const PlanUpdate& update : function.updates)
      if (held(update.value) > held(update.state))
        return model_error("plan check: " + function.name + ": the next value of " + name(update.state) +
                           " is the rank's own; ranks would drift apart");
    return Status::success();
  }

  Held of_own_rows() const { return plan_.mesh[MeshAxis::Data] == 1 ? Held::Alike : Held::Own; }

  Status follow(const Instruction& instruction) {
    const OpDef* op = find_op(instruction.op);
    Held most = instruction.attrs.get_int("draws_per_rank") == 0 ? Held::Alike : Held::Own;
    for (SlotId operand : instruction.operands)
      if (operand >= 0) most = std::max(most, held(operand));
    if (op && (op->collective || op->engine == Engine::Ranks))
      if (Status s = check_group(instruction)) return s;
    // The ranks of another stage may each have sent something else. What stages add up is as alike as each one's share.
    if (instruction.op == "receive") most = of_own_rows();
    if (op && op->collective && instruction.attrs.get_string("axis") != axis_name(MeshAxis::Stage)) {
      const bool gives_all = instruction.op == "reduce_all" || instruction.op == "gather_pieces";
      if (instruction.op == "take_piece" && most == Held::Own)
        return model_error("takes a piece of " + name(instruction.operands[0]) + ", which differs from rank to rank");
      most = gives_all ? Held::Alike : instruction.op == "place_piece" ? Held::Own : Held::Piece;
    }
    for (SlotId result : instruction.results) held(result) = most;
    return Status::success();
  }

  Status check_group(const Instruction& instruction) const {
    const std::optional<MeshAxis> axis = parse_axis(instruction.attrs.get_string("axis"));
    const int64_t ranks = instruction.attrs.get_int("ranks");
    if (axis && plan_.mesh[*axis] == ranks) return Status::success();
    return model_error("is of " + llvm::Twine(ranks) + " ranks, the mesh is " + to_string(plan_.mesh));
  }

  const Plan& plan_;
  std::vector<Held> held_;  // by slot
};

}  // namespace

Status check_ranks(const Plan& plan) { return RanksCheck(plan).run(); }

}  // namespace plimsoll
