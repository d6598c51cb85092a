#include "ir/plan/check_sums.h"

#include "ir/additive.h"
#include "ir/fused_body.h"
#include "ir/plan/summary.h"

#include "llvm/ADT/STLExtras.h"

#include <optional>

// The gradient of what ranks hold alike is a sum, of which each has a summand: each starts from its share of the loss.
// So a gradient goes through matmuls in one of three forms, and the adjoint of each sum is a sum again. Constants are
// alike, but what backward makes of them and of wholes may be a share, such as half of the loss; that is not known
// here.

namespace plimsoll {
namespace {

enum class Share : uint8_t {
  Unknown,
  Constant,  // alike, a constant or scaled from one by wholes
  Whole,     // alike
  Part,      // the rank's part of something that the ranks together hold
  Summand,   // what the ranks hold adds up to what is meant
};

constexpr MeshAxis axis = MeshAxis::Tensor;

// One call of an op. Absent operands have no share.
struct SharedCall {
  const OpDef& op;
  const Attrs& attrs;
  llvm::ArrayRef<std::optional<Share>> operands;
  bool is_forward;

  bool reads(Share share) const {
    return llvm::any_of(operands, [&](const auto& each) { return each == share; });
  }
  bool reads_only(llvm::ArrayRef<Share> shares) const {
    return llvm::all_of(operands, [&](const auto& each) { return !each || llvm::is_contained(shares, *each); });
  }
  llvm::StringRef port(size_t operand) const {
    return operand < op.operands.size() ? op.operands[operand].name : llvm::StringRef("operand");
  }
};

// Is it added to what the others make? A gradient of a norm reads the bias to know what an activation let through.
bool is_added(const OpDef& op, llvm::StringRef port) {
  return (op.name == "linear" && port == "bias") || port == "addend" || port == "more_dy" || port == "dlse";
}

// A product over a dimension of which ranks have parts, on both sides, is their summand.
bool is_product(const OpDef& op) {
  return op.name == "linear" || op.name == "linear_dw" || op.name == "linear_gelu_grad";
}

// Does it make parts of parts?
bool keeps_parts(const OpDef& op) {
  constexpr llvm::StringLiteral others[] = {"transpose", "dropout",        "rotary",
                                            "attention", "attention_grad", "cross_entropy_grad"};
  return op.elementwise || op.is_view() || llvm::is_contained(others, op.name);
}

class SharedOp {
 public:
  explicit SharedOp(const SharedCall& call) : call_(call) {}

  // Of each result.
  Result<llvm::SmallVector<Share, 4>> results(size_t count) {
    if (call_.op.collective && call_.attrs.get_string("axis") == axis_name(axis)) return collective(count);
    if (call_.attrs.get_int("draws_per_part") != 0 || call_.attrs.get_int("all_classes") != 0)
      if (!call_.reads(Share::Part)) return all(count, Share::Unknown);
    if (call_.op.collective) return all(count, call_.operands.size() == 1 ? kept() : Share::Unknown);
    take_shares_of_loss();
    if (call_.reads(Share::Summand)) return of_summands(count);
    if (call_.reads_only({Share::Constant})) return all(count, Share::Constant);
    if (call_.reads_only({Share::Whole}) || (call_.is_forward && call_.reads_only({Share::Whole, Share::Constant})))
      return all(count, Share::Whole);
    const Share first = scales_constant() ? Share::Constant : of_parts();
    if (first != Share::Summand && !is_product(call_.op)) return all(count, first);
    llvm::SmallVector<Share, 4> made = all(count, Share::Unknown);
    made[0] = first;
    return made;
  }

 private:
  static llvm::SmallVector<Share, 4> all(size_t count, Share share) {
    return llvm::SmallVector<Share, 4>(std::max<size_t>(count, 1), share);
  }
  Share kept() const { return call_.operands[0].value_or(Share::Unknown); }

  bool scales_constant() const {
    if (!call_.reads_only({Share::Whole, Share::Constant})) return false;
    for (size_t i = 0; i < call_.operands.size(); ++i)
      if (call_.operands[i] == Share::Constant && additive_in(call_.op, i) != Additive::Yes) return false;
    return call_.op.linear == Linear::InOne || call_.op.linear == Linear::InFirst;
  }

  // The gradient of a loss that ranks hold alike is the rank's share of it, until it is added up.
  void take_shares_of_loss() {
    for (size_t i = 0; i < call_.operands.size(); ++i) {
      if (call_.operands[i] != Share::Constant || call_.port(i) != "dloss") continue;
      changed_.assign(call_.operands.begin(), call_.operands.end());
      changed_[i] = Share::Summand;
    }
    if (!changed_.empty()) call_.operands = changed_;
  }

  Result<llvm::SmallVector<Share, 4>> collective(size_t count) const {
    const llvm::StringRef name = call_.op.name;
    const bool sums = name == "reduce_all" || name == "reduce_pieces" || name == "reduce_root";
    if (sums && call_.reads(Share::Whole)) return model_error("adds up what all ranks hold whole");
    if (!sums && call_.reads(Share::Summand))
      return model_error("reads a summand that has not been added up over the ranks along tensor");
    if (name == "reduce_all" || name == "gather_pieces" || name == "broadcast") return all(count, Share::Whole);
    if (name == "reduce_pieces" || name == "take_piece") return all(count, Share::Part);
    return all(count, name == "place_piece" && call_.reads(Share::Part) ? Share::Summand : Share::Unknown);
  }

  Result<llvm::SmallVector<Share, 4>> of_summands(size_t count) const {
    const OpDef& op = call_.op;
    if (op.linear == Linear::InAll || (op.only_moves() && call_.operands.size() > 1 && op.name == "concat")) {
      if (call_.reads(Share::Whole) || call_.reads(Share::Part))
        return model_error("adds a summand along tensor to what is none");
      return all(count, call_.reads_only({Share::Summand}) ? Share::Summand : Share::Unknown);
    }
    bool is_known = true, is_gradient = false;
    size_t factors = 0;
    for (size_t i = 0; i < call_.operands.size(); ++i) {
      if (call_.operands[i] != Share::Summand || is_added(call_.op, call_.port(i))) continue;
      ++factors;
      const Additive additive = additive_in(op, i);
      if (additive == Additive::No)
        return model_error("reads " + call_.port(i) +
                           ", a summand that has not been added up over the ranks along tensor");
      is_known &= additive == Additive::Yes;
      is_gradient |= is_gradient_of_result(op, i);
    }
    if (!is_known) return all(count, Share::Unknown);
    if (factors > 1) return model_error("multiplies summands that have not been added up over the ranks along tensor");
    return beside_summand(count, factors == 1, is_gradient);
  }

  // `is_factor`: the op is additive in the summand that it reads; otherwise it adds that to what it makes.
  // `is_gradient`: that is the gradient of a result, and all results are gradients.
  Result<llvm::SmallVector<Share, 4>> beside_summand(size_t count, bool is_factor, bool is_gradient) const {
    llvm::SmallVector<Share, 4> made = all(count, Share::Unknown);
    bool is_known = true, reads_part = false;
    size_t parts = 0;
    for (size_t i = 0; i < call_.operands.size(); ++i) {
      const std::optional<Share>& share = call_.operands[i];
      if (!share || share == Share::Summand) continue;
      if (is_added(call_.op, call_.port(i))) {
        if (is_factor && share == Share::Whole) return model_error("adds a whole to a summand along tensor");
        is_known = false;
        continue;
      }
      parts += share == Share::Part;
      reads_part |= share == Share::Part;
      is_known &= share == Share::Whole || share == Share::Constant || !is_factor;
    }
    if (is_factor && reads_part && (is_product(call_.op) || is_gradient))
      return model_error("multiplies a summand along tensor with the rank's part");
    if (!is_factor && is_product(call_.op) && parts < 2 && call_.reads(Share::Whole) && !call_.reads(Share::Unknown) &&
        !call_.reads(Share::Constant))
      return model_error("adds a summand along tensor to what is none");
    const bool is_sum = is_factor || (is_product(call_.op) && parts == 2);
    if (!is_known || !is_sum) return made;
    if (is_gradient) return all(count, Share::Summand);
    made[0] = Share::Summand;
    return made;
  }

  Share of_parts() const {
    const OpDef& op = call_.op;
    if (!call_.reads(Share::Part) || call_.reads(Share::Unknown)) return Share::Unknown;
    if (is_product(op)) {
      const bool both = call_.operands[0] == Share::Part && call_.operands[1] == Share::Part;
      if (!both) return Share::Part;
      for (size_t i = 2; i < call_.operands.size(); ++i)
        if (call_.operands[i]) return Share::Unknown;
      return Share::Summand;
    }
    return keeps_parts(op) ? Share::Part : Share::Unknown;
  }

  SharedCall call_;
  llvm::SmallVector<std::optional<Share>, 8> changed_;
};

class SumsCheck {
 public:
  explicit SumsCheck(const Plan& plan)
      : plan_(plan),
        shares_(plan.slots.size(), Share::Unknown),
        differs_(plan.slots.size(), false),
        part_dim_(plan.slots.size(), no_dim) {}

  Status run() {
    for (const PlanState& state : plan_.states) begin(state);
    for (const PlanConstant& constant : plan_.constants) share(constant.slot) = Share::Constant;
    for (const PlanFunction& function : plan_.functions)
      if (Status s = check(function)) return s;
    return Status::success();
  }

 private:
  static constexpr int64_t no_dim = -1;

  // Views are what their storage is.
  size_t storage(SlotId slot) const { return static_cast<size_t>(plan_.storage_of(slot)); }
  Share& share(SlotId slot) { return shares_[storage(slot)]; }

  void begin(const PlanState& state) {
    if (state.role == StateRole::Gradient) return;
    share(state.slot) = Share::Whole;
    for (const Division& division : state.divisions) {
      if (division.axis != axis) continue;
      share(state.slot) = Share::Part;
      differs_[storage(state.slot)] = true;
      part_dim_[storage(state.slot)] = division.cut.dim;
    }
  }

  Status check(const PlanFunction& function) {
    for (const PlanInput& input : function.inputs) share(input.slot) = Share::Whole;
    for (size_t i = 0; i < function.instructions.size(); ++i)
      if (Status s = follow(function.instructions[i]))
        return in_context("plan check: " + function.name + " instruction " + llvm::Twine(i) + " (" +
                              function.instructions[i].op + ")",
                          std::move(s));
    for (const PlanOutput& output : function.outputs)
      if (share(output.slot) == Share::Summand)
        return model_error("plan check: " + function.name + ": output " + output.name +
                           " is not added up over the ranks along tensor");
    return Status::success();
  }

  Status follow(const Instruction& instruction) {
    const OpDef* op = find_op(instruction.op);
    const bool passes_stages = instruction.op == "receive" || instruction.op == "send" || instruction.operands.empty();
    llvm::SmallVector<std::optional<Share>, 8> operands;
    for (SlotId operand : instruction.operands)
      operands.push_back(operand < 0 ? std::nullopt : std::optional(share(operand)));
    // As many columns as the rank's part of the weight has rows can only be the rank's part.
    if (instruction.op == "linear" && operands[0] == Share::Unknown && reads_part_of(instruction, Columns::Read))
      operands[0] = Share::Part;
    llvm::SmallVector<Share, 4> made(instruction.results.size(), Share::Unknown);
    if (Status s = check_columns(instruction)) return s;
    if (Status s = check_choice(instruction)) return s;
    if (op && op->engine != Engine::Compute && op->engine != Engine::Ranks) {
      for (Share& each : made) each = operands[0].value_or(Share::Unknown);  // copies
    } else if (instruction.op == "fused") {
      if (Status s = follow_body(instruction, operands, made)) return s;
    } else if (op && !passes_stages) {
      Result<llvm::SmallVector<Share, 4>> results =
          SharedOp({*op, instruction.attrs, operands, instruction.phase == Phase::Forward})
              .results(instruction.results.size());
      if (!results) return results.takeError();
      made = *results;
    }
    if (op) follow_differences(*op, instruction);
    for (size_t r = 0; r < instruction.results.size(); ++r) share(instruction.results[r]) = made[r];
    return Status::success();
  }

  enum class Columns : uint8_t { Read, Made };
  // Does each rank have a part of the weight's rows, or of its columns? False where the dimension is not known.
  bool reads_part_of(const Instruction& linear, Columns columns) const {
    const SlotId weight = linear.operands[1];
    if (plan_.storage_of(weight) != weight) return false;  // a view may have other dimensions
    const bool is_transposed = linear.attrs.get_int("transpose_w") != 0;
    return part_dim_[storage(weight)] == ((columns == Columns::Made) != is_transposed ? 1 : 0);
  }

  // Of a product's columns ranks may have parts if all of them multiply the same rows.
  Status check_columns(const Instruction& instruction) {
    if (instruction.op != "linear" || !differs_[storage(instruction.operands[0])]) return Status::success();
    if (!reads_part_of(instruction, Columns::Made)) return Status::success();
    return model_error("multiplies what differs from rank to rank along tensor with the rank's part of columns");
  }

  // A rank that takes what is its own takes it of the whole.
  Status check_choice(const Instruction& instruction) {
    if (instruction.op != "where" || !differs_[storage(instruction.operands[0])]) return Status::success();
    if (share(instruction.operands[1]) != Share::Summand && share(instruction.operands[2]) != Share::Summand)
      return Status::success();
    return model_error("takes the rank's own of a summand that has not been added up over the ranks along tensor");
  }

  // What is made of something that differs from rank to rank does so too, until it is summed up or gathered.
  void follow_differences(const OpDef& op, const Instruction& instruction) {
    const bool of_axis = op.collective && instruction.attrs.get_string("axis") == axis_name(axis);
    const bool gives_all = op.name == "reduce_all" || op.name == "gather_pieces" || op.name == "broadcast";
    bool differs =
        of_axis || instruction.attrs.get_int("draws_per_part") != 0 || instruction.attrs.get_int("all_classes") != 0;
    for (SlotId operand : instruction.operands) differs |= operand >= 0 && differs_[storage(operand)];
    const bool keeps_dims = op.name == "cast" || is_copy(op.engine) || (op.collective && !of_axis);
    const bool is_sent = instruction.op == "receive" || instruction.operands.empty() || instruction.operands[0] < 0;
    const int64_t dim = keeps_dims && !is_sent ? part_dim_[storage(instruction.operands[0])] : no_dim;
    for (SlotId result : instruction.results) {
      differs_[storage(result)] = differs && !is_sent && !(of_axis && gives_all);
      part_dim_[storage(result)] = dim;
    }
    if (op.name != "fused") return;
    const FusedBody body = llvm::cantFail(fused_body(instruction.attrs.get_string("body")));
    for (size_t r = 0; r < instruction.results.size(); ++r) {
      const llvm::SmallVector<bool, 8> reads = inputs_behind(*body, r);
      bool of_result = instruction.attrs.get_int("draws_per_part") != 0;
      for (size_t i = 0; i < reads.size(); ++i) of_result |= reads[i] && differs_[storage(instruction.operands[i])];
      differs_[storage(instruction.results[r])] = of_result;
    }
  }

  static Status follow_body(const Instruction& fused, llvm::ArrayRef<std::optional<Share>> operands,
                            llvm::MutableArrayRef<Share> made) {
    const FusedBody body = llvm::cantFail(fused_body(fused.attrs.get_string("body")));
    const bool draws_own = fused.attrs.get_int("draws_per_part") != 0;
    std::vector<Share> shares(body->value_count(), Share::Unknown);
    for (size_t i = 0; i < body->inputs.size(); ++i)
      shares[index_of(body->inputs[i])] = operands[i].value_or(Share::Unknown);
    for (NodeId id : body->order()) {
      const Node& node = body->node(id);
      llvm::SmallVector<std::optional<Share>, 4> read;
      for (ValueId operand : node.operands)
        read.push_back(operand == ValueId::None ? std::nullopt : std::optional(shares[index_of(operand)]));
      if (draws_own && node.op->name == "dropout" && read[0] != Share::Part) continue;
      Result<llvm::SmallVector<Share, 4>> results =
          SharedOp({*node.op, node.attrs, read, fused.phase == Phase::Forward}).results(node.results.size());
      if (!results) return results.takeError();
      for (size_t r = 0; r < node.results.size(); ++r) shares[index_of(node.results[r])] = (*results)[r];
    }
    for (size_t r = 0; r < made.size(); ++r) made[r] = shares[index_of(body->outputs[r].value)];
    return Status::success();
  }

  const Plan& plan_;
  // By slot.
  std::vector<Share> shares_;
  std::vector<bool> differs_;      // surely only where it holds parts, but wherever it may differ from rank to rank
  std::vector<int64_t> part_dim_;  // of a state, or a copy of one, the dimension of which ranks have parts
};

}  // namespace

Status check_sums(const Plan& plan) {
  for (const Plan* stage : plan.stages()) {
    if (stage->mesh[axis] == 1) continue;
    if (Status s = SumsCheck(*stage).run())
      return plan.later_stages.empty() ? std::move(s) : in_context("stage " + llvm::Twine(stage->stage), std::move(s));
  }
  return Status::success();
}

}  // namespace plimsoll
