#include "ir/plan/check_ranks.h"

#include "ir/fused_body.h"
#include "ir/plan/check_layout.h"
#include "ir/plan/summary.h"

#include <algorithm>
#include <map>
#include <tuple>

// Follows for every slot and every axis of the mesh how its bytes on one rank relate to those on the ranks that differ
// along that axis. Storage is not followed: check_plan has shown that each slot still holds what its writer wrote. What
// a stage receives relates as it does where it is sent, so all stages are followed again until nothing they send has
// changed; relations only rise, so this ends.

namespace plimsoll {
namespace {

// In this order what an op makes of several operands is the largest of theirs.
enum class Held : uint8_t {
  Alike,  // the same on all ranks
  Piece,  // the rank's own piece of something of which all ranks together hold the whole, or its summand
  Own,    // made of the rank's own rows
};

constexpr MeshAxis axes[] = {MeshAxis::Data, MeshAxis::Tensor, MeshAxis::Stage};

struct HeldByAxis {
  std::array<Held, mesh_axis_count> along{};
  Held& operator[](MeshAxis axis) { return along[static_cast<size_t>(axis)]; }
  Held operator[](MeshAxis axis) const { return along[static_cast<size_t>(axis)]; }
  friend bool operator==(const HeldByAxis&, const HeldByAxis&) = default;
  void raise(const HeldByAxis& other) {
    for (MeshAxis axis : axes) (*this)[axis] = std::max((*this)[axis], other[axis]);
  }
};

// What stages send each other: by function, sender, receiver and number. Broadcasts go from their root to the receiver
// -1, numbered as they come.
using Sent = std::map<std::tuple<size_t, int64_t, int64_t, int64_t>, HeldByAxis>;

// One stage.
class RanksCheck {
 public:
  RanksCheck(const Plan& plan, Sent& sent) : plan_(plan), held_(plan.slots.size()), sent_(sent) {}

  Status run() {
    for (const PlanState& state : plan_.states)
      if (Status s = begin(state)) return s;
    for (function_ = 0; function_ < plan_.functions.size(); ++function_)
      if (Status s = check(plan_.functions[function_])) return s;
    return Status::success();
  }

  const Plan& plan() const { return plan_; }
  std::vector<std::string> placements() const {
    std::vector<std::string> all;
    for (size_t slot = 0; slot < held_.size(); ++slot) {
      const HeldByAxis& held = held_[static_cast<size_t>(plan_.storage_of(static_cast<SlotId>(slot)))];
      std::string& text = all.emplace_back();
      for (MeshAxis axis : axes)
        if (held[axis] != Held::Alike)
          text += (text.empty() ? "" : ", ") + std::string(held[axis] == Held::Own ? "own" : "part") + " along " +
                  axis_name(axis).str();
    }
    return all;
  }

 private:
  const Slot& slot(SlotId id) const { return plan_.slots[static_cast<size_t>(id)]; }
  // Views hold what their storage does.
  HeldByAxis& held(SlotId id) { return held_[static_cast<size_t>(plan_.storage_of(id))]; }
  std::string name(SlotId id) const { return describe_slot(plan_, id); }

  Status begin(const PlanState& state) {
    HeldByAxis& now = held(state.slot);
    // Accumulated gradients are the ranks' summands, which the update adds up.
    if (state.role == StateRole::Gradient)
      for (MeshAxis axis : {MeshAxis::Data, MeshAxis::Tensor}) now[axis] = own_along(axis);
    for (size_t i = 0; i < state.divisions.size(); ++i) {
      const bool last = i + 1 == state.divisions.size();
      const Shape& piece = last ? slot(state.slot).type.shape : state.divisions[i + 1].whole;
      if (Status s = check_division(state, state.divisions[i], piece)) return s;
      now[state.divisions[i].axis] = Held::Piece;
    }
    return Status::success();
  }

  Status check_division(const PlanState& state, const Division& division, const Shape& piece) const {
    const int64_t ranks = plan_.mesh[division.axis];
    const auto fails = [&] {
      return model_error("plan check: " + llvm::Twine(ranks) + " pieces " + to_string(piece) + " of " +
                         name(state.slot) + " do not make " + to_string(llvm::ArrayRef(division)));
    };
    if (division.cut.dim == Cut::flat)
      return element_count(piece) * ranks < element_count(division.whole) ? fails() : Status::success();
    if (division.cut.dim < 0 || division.cut.dim >= static_cast<int64_t>(division.whole.size())) return fails();
    const auto dim = static_cast<size_t>(division.cut.dim);
    int64_t size = 0;
    for (int64_t block : division.cut.blocks) size += block;
    Shape expected = division.whole;
    if (size != expected[dim] || !can_divide(division.cut, ranks)) return fails();
    expected[dim] = part_size(division.cut, ranks);
    return expected == piece ? Status::success() : fails();
  }

  Status check(const PlanFunction& function) {
    broadcasts_ = 0;
    for (const PlanInput& input : function.inputs)
      held(input.slot)[MeshAxis::Data] = input.whole ? Held::Alike : own_along(MeshAxis::Data);
    for (size_t i = 0; i < function.instructions.size(); ++i)
      if (Status s = follow(function.instructions[i]))
        return in_context("plan check: " + function.name + " instruction " + llvm::Twine(i) + " (" +
                              function.instructions[i].op + ")",
                          std::move(s));
    // Of evaluation each rank has its share, which is added up when all samples are through.
    const bool is_share = function.name == evaluate_function;
    for (const PlanOutput& output : function.outputs)
      for (MeshAxis axis : axes)
        if (held(output.slot)[axis] != Held::Alike && !(is_share && axis == MeshAxis::Data))
          return model_error("plan check: " + function.name + ": output " + output.name +
                             " differs from rank to rank along " + axis_name(axis));
    for (const PlanUpdate& update : function.updates)
      for (MeshAxis axis : axes)
        if (held(update.value)[axis] > held(update.state)[axis])
          return model_error("plan check: " + function.name + ": the next value of " + name(update.state) +
                             " is the rank's own; ranks would drift apart along " + axis_name(axis));
    return Status::success();
  }

  Held own_along(MeshAxis axis) const { return plan_.mesh[axis] == 1 ? Held::Alike : Held::Own; }

  Status follow(const Instruction& instruction) {
    const OpDef* op = find_op(instruction.op);
    HeldByAxis most;
    // An update draws by its piece of a parameter, other ops by their rows of the batch.
    const bool is_update = instruction.attrs.get_int("rounding_id") != 0;
    if (instruction.attrs.get_int("draws_per_rank") != 0) most[MeshAxis::Data] = is_update ? Held::Piece : Held::Own;
    if (instruction.attrs.get_int("draws_per_part") != 0 || instruction.attrs.get_int("all_classes") != 0)
      most[MeshAxis::Tensor] = Held::Piece;
    for (SlotId operand : instruction.operands)
      if (operand >= 0) most.raise(held(operand));
    if (op && (op->collective || op->engine == Engine::Ranks))
      if (Status s = check_group(instruction)) return s;
    // What stages add up is as alike as each one's share.
    const int64_t peer = instruction.attrs.get_int("peer"), number = instruction.attrs.get_int("number");
    if (instruction.op == "receive") most = sent_[{function_, peer, plan_.stage, number}];
    if (instruction.op == "send") {
      sent_[{function_, plan_.stage, peer, number}].raise(most);
      most = {};
    }
    if (op && op->collective) {
      const bool of_stages = instruction.attrs.get_string("axis") == axis_name(MeshAxis::Stage);
      if (Status s = of_stages ? follow_broadcast(instruction, most) : follow_collective(instruction, most)) return s;
    }
    for (size_t r = 0; r < instruction.results.size(); ++r)
      held(instruction.results[r]) = instruction.op == "fused" ? held_by_body(instruction, r) : most;
    return Status::success();
  }

  // `most`: what the operands are, and then what the results are.
  Status follow_collective(const Instruction& instruction, HeldByAxis& most) const {
    const Collective& collective = get_op(instruction.op).collective;
    Held& held = most[*parse_axis(instruction.attrs.get_string("axis"))];
    if (collective.from == MeshPlacement::Whole && held == Held::Own)
      return model_error("takes a piece of " + name(instruction.operands[0]) + ", which differs from rank to rank");
    const bool gives_own = collective.to == MeshPlacement::Partial || collective.to == collective.from;
    held = collective.to == MeshPlacement::Whole ? Held::Alike : gives_own ? Held::Own : Held::Piece;
    return Status::success();
  }

  // Of a broadcast among stages the root alone has an operand. Sums among stages are as alike as each one's share.
  Status follow_broadcast(const Instruction& instruction, HeldByAxis& most) {
    if (instruction.op != "broadcast") return Status::success();
    const int64_t root = instruction.attrs.get_int("root");
    const bool gives = !instruction.operands.empty() && instruction.operands[0] >= 0;
    if (gives != (root == plan_.stage))
      return model_error("is of what stage " + llvm::Twine(root) + " has, and stage " + llvm::Twine(plan_.stage) +
                         (gives ? " gives a value" : " gives none"));
    HeldByAxis& sent = sent_[{function_, root, -1, broadcasts_++}];
    sent.raise(most);
    most = sent;
    return Status::success();
  }

  // A result of a fused op is as alike as what its body reads for it.
  HeldByAxis held_by_body(const Instruction& fused, size_t result) {
    HeldByAxis most;
    const FusedBody body = llvm::cantFail(fused_body(fused.attrs.get_string("body")));
    const llvm::SmallVector<bool, 8> reads = inputs_behind(*body, result);
    for (size_t i = 0; i < reads.size(); ++i) {
      if (!reads[i]) continue;
      most.raise(held(fused.operands[i]));
      if (!is_random_counter(body->type(body->inputs[i]))) continue;
      if (fused.attrs.get_int("draws_per_rank") != 0) most[MeshAxis::Data] = Held::Own;
      if (fused.attrs.get_int("draws_per_part") != 0) most[MeshAxis::Tensor] = Held::Piece;
    }
    return most;
  }

  Status check_group(const Instruction& instruction) const {
    const std::optional<MeshAxis> axis = parse_axis(instruction.attrs.get_string("axis"));
    const int64_t ranks = instruction.attrs.get_int("ranks");
    if (axis && plan_.mesh[*axis] == ranks) return Status::success();
    return model_error("is of " + llvm::Twine(ranks) + " ranks, the mesh is " + to_string(plan_.mesh));
  }

  const Plan& plan_;
  std::vector<HeldByAxis> held_;  // by slot
  Sent& sent_;
  size_t function_ = 0;
  int64_t broadcasts_ = 0;  // of the function, among stages, so far
};

// The plan promises for each device what it reserves, and asks for nothing that the device lacks.
Status check_kind(const Plan& plan, const RankKind& kind) {
  const DeviceDescription &common = plan.device, &own = kind.device;
  const auto wrong = [&](const llvm::Twine& what) { return model_error("plan check: " + own.name + ": " + what); };
  if (own.backend != common.backend) return wrong("the plan is for the backend " + common.backend);
  if (own.alignment_bytes <= 0 || common.alignment_bytes % own.alignment_bytes != 0)
    return wrong("slots are aligned to " + llvm::Twine(common.alignment_bytes) + " bytes, it wants " +
                 llvm::Twine(own.alignment_bytes));
  if (own.compute_capability < common.compute_capability)
    return wrong("kernels are those of compute capability " + llvm::Twine(common.compute_capability) + ", it has " +
                 llvm::Twine(own.compute_capability));
  for (const Reserve& reserve : own.reserves) {
    const auto planned = llvm::find_if(common.reserves, [&](const Reserve& each) { return each.name == reserve.name; });
    if (planned == common.reserves.end() || planned->bytes < reserve.bytes)
      return wrong("its reserve of " + llvm::Twine(reserve.bytes) + " bytes, " + reserve.name + ", is not planned");
  }
  if (kind.budget_bytes > 0 && plan.promised_bytes() > kind.budget_bytes)
    return wrong("arena and reserves need " + llvm::Twine(plan.promised_bytes()) + " bytes, the budget is " +
                 llvm::Twine(kind.budget_bytes));
  return Status::success();
}

Status check_kinds(const Plan& plan) {
  if (plan.kinds.empty()) return Status::success();
  const int64_t ranks = plan.mesh.ranks_per_stage(), first = plan.stage * ranks;
  std::vector<int> kinds_of(static_cast<size_t>(ranks), 0);
  for (const RankKind& kind : plan.kinds) {
    if (Status s = check_kind(plan, kind)) return s;
    for (int64_t rank : kind.ranks) {
      if (rank < first || rank >= first + ranks)
        return model_error("plan check: rank " + llvm::Twine(rank) + " does not run this plan");
      ++kinds_of[static_cast<size_t>(rank - first)];
    }
  }
  for (size_t i = 0; i < kinds_of.size(); ++i)
    if (kinds_of[i] != 1)
      return model_error("plan check: rank " + llvm::Twine(first + static_cast<int64_t>(i)) + " has " +
                         llvm::Twine(kinds_of[i]) + " devices");
  return Status::success();
}

// What its ranks promise together is within each host's memory and budget.
Status check_hosts(const Plan& plan) {
  for (const Plan& stage : plan.later_stages)
    if (stage.host.budget_bytes != plan.host.budget_bytes || stage.host.memory_bytes != plan.host.memory_bytes ||
        stage.host.ranks_per_host != plan.host.ranks_per_host)
      return model_error("plan check: stage " + llvm::Twine(stage.stage) + " is on other hosts than stage 0");
  for (const HostNeed& host : needs_of_hosts(plan))
    for (const auto& [what, limit] :
         {std::pair("memory", plan.host.memory_bytes), std::pair("budget", plan.host.budget_bytes)})
      if (limit > 0 && host.bytes > limit)
        return model_error("plan check: the host of ranks " + llvm::Twine(host.first_rank) + " to " +
                           llvm::Twine(host.first_rank + host.ranks - 1) + " holds " + llvm::Twine(host.bytes) +
                           " bytes for them, its " + what + " is " + llvm::Twine(limit));
  return Status::success();
}

// Visits each stage that was followed, the last time when nothing that stages send has changed.
Status follow_stages(const Plan& plan, llvm::function_ref<void(const RanksCheck&)> visit) {
  Sent sent, before;
  do {
    before = sent;
    for (const Plan* stage : plan.stages()) {
      RanksCheck check(*stage, sent);
      if (Status s = check.run())
        return plan.later_stages.empty() ? std::move(s)
                                         : in_context("stage " + llvm::Twine(stage->stage), std::move(s));
      visit(check);
    }
  } while (sent != before);
  return Status::success();
}

}  // namespace

Status check_ranks(const Plan& plan) {
  if (Status s = check_hosts(plan)) return s;
  for (const Plan* stage : plan.stages())
    if (Status s = check_kinds(*stage)) return s;
  return follow_stages(plan, [](const RanksCheck&) {});
}

std::vector<std::vector<std::string>> placements_of(const Plan& plan) {
  std::vector<std::vector<std::string>> placements(plan.later_stages.size() + 1);
  Status followed = follow_stages(
      plan, [&](const RanksCheck& check) { placements[static_cast<size_t>(check.plan().stage)] = check.placements(); });
  llvm::consumeError(std::move(followed));  // of a plan that is refused, as far as it was followed
  for (size_t stage = 0; stage < placements.size(); ++stage)
    placements[stage].resize(plan.stages()[stage]->slots.size());
  return placements;
}

}  // namespace plimsoll
