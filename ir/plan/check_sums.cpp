#include "ir/plan/check_sums.h"

#include "ir/fused_body.h"
#include "ir/plan/check_layout.h"
#include "ir/plan/shares.h"
#include "ir/plan/summary.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

// The gradient of what ranks hold alike is a sum, of which each has a summand: each starts from its share of the loss.
// So a gradient goes through matmuls in one of three forms, and the adjoint of each sum is a sum again. Constants are
// alike, but what backward makes of them and of wholes may be a share, such as half of the loss; that is not known
// here.

namespace plimsoll {
namespace {

// What stages send each other: by function, sender, receiver and number.
using Sent = std::map<std::tuple<size_t, int64_t, int64_t, int64_t>, Share>;

// One stage.
class SumsCheck {
 public:
  SumsCheck(const Plan& plan, MeshAxis axis, Sent& sent)
      : plan_(plan),
        axis_(axis),
        sent_(sent),
        shares_(plan.slots.size(), Share::Unknown),
        begun_(plan.slots.size(), Share::Unknown),
        differs_(plan.slots.size(), false),
        part_dim_(plan.slots.size(), no_dim) {}

  Status run() {
    for (function_ = 0; function_ < plan_.functions.size(); ++function_) {
      const PlanFunction& function = plan_.functions[function_];
      // Ranks along data evaluate batches of their own; what they find is added up when all samples are through.
      if (axis_ == MeshAxis::Data && function.name == evaluate_function) continue;
      if (Status s = check(function)) return s;
    }
    return Status::success();
  }

 private:
  static constexpr int64_t no_dim = -1;
  using Operands = llvm::SmallVector<std::optional<Share>, 8>;

  // Views are what their storage is.
  size_t storage(SlotId slot) const { return static_cast<size_t>(plan_.storage_of(slot)); }
  Share& share(SlotId slot) { return shares_[storage(slot)]; }
  const Type& type(SlotId slot) const { return plan_.slots[static_cast<size_t>(slot)].type; }
  Status summand_is_read(const llvm::Twine& reader) const {
    return model_error(reader + " a summand that has not been added up over the ranks along " + axis_name(axis_));
  }

  // Accumulated gradients may be summands or not.
  Share share_of(const PlanState& state) const {
    if (has_axis(state.divisions, axis_)) return axis_ == MeshAxis::Data ? Share::Rows : Share::Divided;
    return state.role == StateRole::Gradient ? Share::Unknown : Share::Whole;
  }

  void begin(const PlanState& state) {
    share(state.slot) = begun_[static_cast<size_t>(state.slot)] = share_of(state);
    for (const Division& division : state.divisions) {
      if (division.axis != axis_) continue;
      differs_[storage(state.slot)] = true;
      part_dim_[storage(state.slot)] = division.cut.dim;
    }
  }

  Status check(const PlanFunction& function) {
    for (const PlanState& state : plan_.states) begin(state);
    for (const PlanConstant& constant : plan_.constants) share(constant.slot) = Share::Alike;
    for (const PlanInput& input : function.inputs) {
      const bool has_rows = axis_ == MeshAxis::Data && !input.whole;
      share(input.slot) = has_rows ? Share::Rows : Share::Whole;
      differs_[storage(input.slot)] = has_rows;
    }
    for (size_t i = 0; i < function.instructions.size(); ++i)
      if (Status s = follow(function.instructions[i]))
        return in_context("plan check: " + function.name + " instruction " + llvm::Twine(i) + " (" +
                              function.instructions[i].op + ")",
                          std::move(s));
    const auto fails = [&](const llvm::Twine& what) {
      return model_error("plan check: " + function.name + ": " + what + " is not added up over the ranks along " +
                         axis_name(axis_));
    };
    for (const PlanOutput& output : function.outputs)
      if (share(output.slot) == Share::Partial) return fails("output " + output.name);
    for (const PlanUpdate& update : function.updates)
      if (begun_[static_cast<size_t>(update.state)] == Share::Whole && share(update.value) == Share::Partial)
        return fails("the next value of " + describe_slot(plan_, update.state));
    return Status::success();
  }

  Status follow(const Instruction& instruction) {
    const OpDef* op = find_op(instruction.op);
    Operands operands;
    for (SlotId operand : instruction.operands)
      operands.push_back(operand < 0 ? std::nullopt : std::optional(share(operand)));
    Shares made(instruction.results.size(), Share::Unknown);
    if (op)
      if (Status s = follow(*op, instruction, operands, made)) return s;
    for (size_t r = 0; r < instruction.results.size(); ++r) share(instruction.results[r]) = made[r];
    return Status::success();
  }

  Status follow(const OpDef& op, const Instruction& instruction, Operands& operands, Shares& made) {
    if (Status s = check_dims(op, instruction, operands)) return s;
    if (Status s = check_choice(op, instruction)) return s;
    if (op.engine == Engine::Ranks && !op.collective) {
      pass_between_stages(op, instruction, operands, made);
    } else if (is_copy(op.engine)) {
      for (Share& each : made) each = operands[0].value_or(Share::Unknown);
    } else if (op.name == "fused") {
      if (Status s = follow_body(instruction, operands, made)) return s;
    } else if (!operands.empty()) {
      llvm::SmallVector<const Type*, 8> types;
      for (SlotId operand : instruction.operands) types.push_back(operand < 0 ? nullptr : &type(operand));
      Result<Shares> results = shares_of_results({op, instruction.attrs, types, operands, axis_, instruction.phase},
                                                 instruction.results.size());
      if (!results) return results.takeError();
      made = *results;
    }
    follow_differences(op, instruction);
    return Status::success();
  }

  void pass_between_stages(const OpDef& op, const Instruction& instruction, const Operands& operands, Shares& made) {
    const int64_t peer = instruction.attrs.get_int("peer"), number = instruction.attrs.get_int("number");
    if (op.operands.empty())
      made[0] = sent_[{function_, peer, plan_.stage, number}];
    else
      sent_[{function_, plan_.stage, peer, number}] = operands[0].value_or(Share::Unknown);
  }

  // Where ranks have parts of a dimension of a product's factor, as of a weight, they have parts of the other factor's
  // if the product is summed over that dimension; else all of them multiply the same.
  Status check_dims(const OpDef& op, const Instruction& instruction, Operands& operands) const {
    const LinearForm& form = op.linear.first;
    if (!op.divide || form.empty() || form.terms()[0].summed != SummedDims::Shared) return Status::success();
    const SlotId left = instruction.operands[0], right = instruction.operands[1];
    const int64_t dim = part_dim_[storage(right)];
    if (dim == no_dim || plan_.storage_of(right) != right)
      return Status::success();  // a view may have other dimensions
    llvm::SmallVector<const Type*, 4> types;
    for (SlotId operand : instruction.operands) types.push_back(operand < 0 ? nullptr : &type(operand));
    const Cut part{dim, {type(right).shape[static_cast<size_t>(dim)]}};
    const std::optional<DividedCall> call = divide_call(
        op, OpCall(op, instruction.attrs, types), {type(instruction.results[0])}, {CutAt::Side::Operand, 1, part}, 1);
    if (!call) return Status::success();
    if (call->operands[0] && operands[0] == Share::Unknown) operands[0] = Share::Divided;
    if (call->operands[0] || !differs_[storage(left)]) return Status::success();
    return model_error("multiplies what differs from rank to rank along " + axis_name(axis_) +
                       " with the rank's part of columns");
  }

  // A rank that takes what is its own takes it of the whole.
  Status check_choice(const OpDef& op, const Instruction& instruction) {
    bool chooses_own = false, reads_summand = false;
    for (size_t i = 0; i < instruction.operands.size(); ++i) {
      const SlotId operand = instruction.operands[i];
      if (operand < 0) continue;
      if (op.linear.first.has(op.operands, i))
        reads_summand |= share(operand) == Share::Partial;
      else
        chooses_own |= type(operand).dtype == DType::Bool && differs_[storage(operand)];
    }
    return chooses_own && reads_summand ? summand_is_read("takes the rank's own of") : Status::success();
  }

  // What is made of something that differs from rank to rank does so too, until it is summed up or gathered.
  void follow_differences(const OpDef& op, const Instruction& instruction) {
    const bool of_axis = op.collective && instruction.attrs.get_string("axis") == axis_name(axis_);
    bool differs = of_axis || draws_own(instruction.attrs, axis_);
    for (SlotId operand : instruction.operands) differs |= operand >= 0 && differs_[storage(operand)];
    const bool keeps_dims = (op.elementwise && op.only_moves()) || is_copy(op.engine) || (op.collective && !of_axis);
    const bool is_sent = op.operands.empty() || instruction.operands.empty() || instruction.operands[0] < 0;
    const int64_t dim = keeps_dims && !is_sent ? part_dim_[storage(instruction.operands[0])] : no_dim;
    const bool gives_all = of_axis && op.collective.to == MeshPlacement::Whole;
    for (SlotId result : instruction.results) {
      differs_[storage(result)] = differs && !is_sent && !gives_all;
      part_dim_[storage(result)] = dim;
    }
    if (op.name != "fused") return;
    const FusedBody body = llvm::cantFail(fused_body(instruction.attrs.get_string("body")));
    for (size_t r = 0; r < instruction.results.size(); ++r) {
      const llvm::SmallVector<bool, 8> reads = inputs_behind(*body, r);
      bool of_result = draws_own(instruction.attrs, axis_);
      for (size_t i = 0; i < reads.size(); ++i) of_result |= reads[i] && differs_[storage(instruction.operands[i])];
      differs_[storage(instruction.results[r])] = of_result;
    }
  }

  Status follow_body(const Instruction& fused, const Operands& operands, Shares& made) const {
    const FusedBody body = llvm::cantFail(fused_body(fused.attrs.get_string("body")));
    // A body may say what becomes of one element, of whatever shape its operands are.
    const Type rows_of_element(DType::F32, {4});
    std::vector<Share> shares(body->value_count(), Share::Unknown);
    for (size_t i = 0; i < body->inputs.size(); ++i)
      shares[index_of(body->inputs[i])] = operands[i].value_or(Share::Unknown);
    for (NodeId id : body->order()) {
      const Node& node = body->node(id);
      Operands read;
      bool draws = false;
      for (ValueId operand : node.operands) {
        read.push_back(operand == ValueId::None ? std::nullopt : std::optional(shares[index_of(operand)]));
        draws |= operand != ValueId::None && is_random_counter(body->type(operand));
      }
      if (draws && draws_own(fused.attrs, axis_) && !is_divided(read[0].value_or(Share::Unknown))) continue;
      llvm::SmallVector<const Type*, 4> types = operand_types(*body, node);
      for (size_t i = 0; i < types.size(); ++i)
        if (read[i] == Share::Rows && types[i]->rank() == 0) types[i] = &rows_of_element;
      Result<Shares> results =
          shares_of_results({*node.op, node.attrs, types, read, axis_, fused.phase}, node.results.size());
      if (!results) return results.takeError();
      for (size_t r = 0; r < node.results.size(); ++r) shares[index_of(node.results[r])] = (*results)[r];
    }
    for (size_t r = 0; r < made.size(); ++r) made[r] = shares[index_of(body->outputs[r].value)];
    return Status::success();
  }

  const Plan& plan_;
  MeshAxis axis_;
  Sent& sent_;
  size_t function_ = 0;
  // By slot.
  std::vector<Share> shares_;
  std::vector<Share> begun_;       // of states, as functions find them
  std::vector<bool> differs_;      // surely only where it holds parts, but wherever it may differ from rank to rank
  std::vector<int64_t> part_dim_;  // of a state, or a copy of one, the dimension of which ranks have parts
};

// What is sent is not known at first, and more of it each time that the stages are followed, forth and back.
Status check_along(const Plan& plan, MeshAxis axis) {
  llvm::SmallVector<const Plan*, 4> stages = plan.stages();
  Sent sent, before;
  do {
    before = sent;
    for (const Plan* stage : stages)
      if (Status s = SumsCheck(*stage, axis, sent).run())
        return plan.later_stages.empty() ? std::move(s)
                                         : in_context("stage " + llvm::Twine(stage->stage), std::move(s));
    std::reverse(stages.begin(), stages.end());
  } while (sent != before);
  return Status::success();
}

}  // namespace

Status check_sums(const Plan& plan) {
  for (MeshAxis axis : {MeshAxis::Data, MeshAxis::Tensor}) {
    if (plan.mesh[axis] == 1) continue;
    if (Status s = check_along(plan, axis)) return s;
  }
  return Status::success();
}

}  // namespace plimsoll
