#include "ir/plan/check_stages.h"

#include "ir/fused_body.h"
#include "ir/op_def.h"
#include "ir/plan/check_layout.h"

#include "llvm/ADT/Hashing.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/Support/xxhash.h"

#include <optional>
#include <set>

// Stages run up to where they meet, again and again. A meeting is possible once all who take part have come; where none
// is and not all stages are through, they wait for ever.

namespace plimsoll {
namespace {

// What a slot holds, as far as it is the same on all stages that compute it in the same way from the same things.
using Recipe = std::optional<uint64_t>;

uint64_t mixed(uint64_t a, uint64_t b) { return llvm::hash_combine(a, b); }

uint64_t hash_of(llvm::StringRef text) { return llvm::xxHash64(text); }

uint64_t hash_of(const Attr& attr) {
  struct Hasher {
    uint64_t operator()(int64_t value) const { return llvm::hash_value(value); }
    uint64_t operator()(double value) const { return std::hash<double>()(value); }
    uint64_t operator()(const std::string& value) const { return hash_of(llvm::StringRef(value)); }
    uint64_t operator()(const Ints& value) const { return llvm::hash_combine_range(value.begin(), value.end()); }
    uint64_t operator()(const Floats& value) const {
      uint64_t all = value.size();
      for (double each : value) all = mixed(all, std::hash<double>()(each));
      return all;
    }
    uint64_t operator()(DType value) const { return static_cast<uint64_t>(value); }
    uint64_t operator()(const TensorRef& value) const { return hash_of(*value); }
    uint64_t hash_of(llvm::StringRef text) const { return llvm::xxHash64(text); }
    uint64_t hash_of(const Tensor& tensor) const {
      return llvm::xxHash64({static_cast<const char*>(tensor.data()), static_cast<size_t>(tensor.type().bytes())});
    }
  };
  return std::visit(Hasher{}, attr);
}

// One function of one stage.
class StageWalk {
 public:
  StageWalk(const Plan& plan, size_t function, const llvm::StringMap<int>& stages_with)
      : plan_(plan), function_(plan.functions[function]), recipe_(plan.slots.size()) {
    for (const PlanState& state : plan.states)
      if (stages_with.lookup(name(state.slot)) > 1) recipe_[state.slot] = hash_of(llvm::StringRef(name(state.slot)));
    for (const PlanConstant& constant : plan.constants) recipe_[constant.slot] = hash_of(Attr(constant.value));
    for (const PlanInput& input : function_.inputs) recipe_[input.slot] = hash_of(llvm::StringRef(input.name));
  }

  // Follows instructions up to the next meeting, or to the end.
  void run_to_meeting() {
    for (; !is_through() && !meets(); ++next_) follow(next_);
  }

  bool is_through() const { return next_ == function_.instructions.size(); }
  const Instruction& meeting() const { return function_.instructions[next_]; }
  // `shared`: what all stages get alike by it.
  void meet(Recipe shared) {
    for (SlotId result : meeting().results) recipe_[result] = shared;
    ++next_;
  }

  // Of what it sends, receives, broadcasts or adds up.
  const Type& moved_type() const {
    return plan_.slots[meeting().op == "send" ? meeting().operands.front() : meeting().results.front()].type;
  }

  std::string where() const {
    return "stage " + std::to_string(plan_.stage) + " " + function_.name + " instruction " + std::to_string(next_) +
           " (" + meeting().op + ")";
  }

  // By name of the states with a next value: what that is.
  llvm::StringMap<Recipe> updates() const {
    llvm::StringMap<Recipe> updates;
    for (const PlanUpdate& update : function_.updates)
      updates[name(update.state)] = recipe_[plan_.storage_of(update.value)];
    return updates;
  }

 private:
  const std::string& name(SlotId slot) const { return plan_.slots[slot].name; }

  bool meets() const {
    const OpDef* op = find_op(meeting().op);
    return op && op->engine == Engine::Ranks && meeting().attrs.get_string("axis") == axis_name(MeshAxis::Stage);
  }

  // What an op makes of what it reads, as its first result; none where it reads something unknown. Whether a reduction
  // keeps its dimensions is a matter of its result's type.
  static Recipe made_by(llvm::StringRef op, const Attrs& attrs, llvm::ArrayRef<Recipe> reads) {
    Recipe made = hash_of(op);
    for (const auto& [attr, value] : attrs.entries())
      if (attr != "keep_dims") made = mixed(mixed(*made, hash_of(llvm::StringRef(attr))), hash_of(value));
    for (const Recipe& read : reads) made = made && read ? Recipe(mixed(*made, *read)) : std::nullopt;
    return made;
  }

  void follow(size_t i) {
    const Instruction& instruction = function_.instructions[i];
    if (instruction.op == "fused") return follow_body(instruction);
    if (instruction.op == "copy" &&
        plan_.slots[instruction.operands[0]].type == plan_.slots[instruction.results[0]].type) {
      recipe_[instruction.results[0]] = recipe_[plan_.storage_of(instruction.operands[0])];
      return;
    }
    std::vector<Recipe> reads;
    for (SlotId operand : instruction.operands) reads.push_back(operand < 0 ? Recipe(0) : recipe_of(operand));
    const Recipe made = made_by(instruction.op, instruction.attrs, reads);
    for (size_t r = 0; r < instruction.results.size(); ++r)
      recipe_[instruction.results[r]] = made ? Recipe(mixed(*made, r)) : std::nullopt;
  }

  // As its ops would be followed alone: stages may have one op in different company.
  void follow_body(const Instruction& fused) {
    const FusedBody body = llvm::cantFail(fused_body(fused.attrs.get_string("body")));
    std::vector<Recipe> held(body->value_count());
    std::vector<Type> types(body->value_count());
    for (size_t i = 0; i < body->inputs.size(); ++i) {
      const size_t at = index_of(body->inputs[i]);
      held[at] = recipe_[plan_.storage_of(fused.operands[i])], types[at] = plan_.slots[fused.operands[i]].type;
    }
    for (NodeId id : body->order()) follow_node(fused, *body, body->node(id), held, types);
    for (size_t r = 0; r < fused.results.size(); ++r)
      recipe_[fused.results[r]] = held[index_of(body->outputs[r].value)];
  }

  // One of a body's nodes; `held` and `types` are of its values.
  void follow_node(const Instruction& fused, const Graph& body, const Node& node, std::vector<Recipe>& held,
                   std::vector<Type>& types) const {
    const size_t at = index_of(node.results[0]);
    if (node.op->name == "constant") {
      held[at] = hash_of(*node.attrs.find("value")), types[at] = body.type(node.results[0]);
      return;
    }
    Attrs attrs = node.attrs;
    for (llvm::StringRef name : draw_attrs)
      if (node.op->name == "dropout" && fused.attrs.has(name)) attrs.set(name, fused.attrs.get_int(name));
    std::vector<Recipe> reads;
    Shape shape;
    for (ValueId operand : node.operands) {
      reads.push_back(typed(held[index_of(operand)], types[index_of(operand)]));
      if (!is_random_counter(body.type(operand)))
        shape = broadcast_shapes(shape, types[index_of(operand)].shape).value_or(shape);
    }
    const Recipe made = made_by(node.op->name, attrs, reads);
    held[at] = made ? Recipe(mixed(*made, 0)) : std::nullopt;
    // A body with reductions has the shapes themselves.
    const Type& inside = body.type(node.results[0]);
    types[at] = inside.rank() > 0 ? inside : Type(inside.dtype, shape);
  }

  // A view holds what the slot behind it does, in its own shape.
  Recipe recipe_of(SlotId slot) const { return typed(recipe_[plan_.storage_of(slot)], plan_.slots[slot].type); }
  static Recipe typed(Recipe held, const Type& type) {
    return held ? Recipe(mixed(*held, hash_of(llvm::StringRef(to_string(type))))) : std::nullopt;
  }

  const Plan& plan_;
  const PlanFunction& function_;
  std::vector<Recipe> recipe_;  // by slot
  size_t next_ = 0;
};

class StagesCheck {
 public:
  explicit StagesCheck(const Plan& plan) : stages_(plan.stages()) {
    for (const Plan* stage : stages_) {
      std::set<std::string> names;
      for (const PlanState& state : stage->states) names.insert(stage->slots[state.slot].name);
      for (const std::string& name : names) ++stages_with_[name];
    }
  }

  Status run() {
    if (Status s = check_shape()) return s;
    for (size_t f = 0; f < stages_.front()->functions.size(); ++f) {
      std::vector<StageWalk> walks;
      for (const Plan* stage : stages_) walks.emplace_back(*stage, f, stages_with_);
      if (Status s = run_all(walks)) return s;
      if (Status s = check_updates(walks)) return s;
    }
    return Status::success();
  }

 private:
  static Status wrong(const llvm::Twine& what) { return model_error("plan check: " + what); }

  Status check_shape() const {
    const Plan& first = *stages_.front();
    if (first.mesh[MeshAxis::Stage] != static_cast<int64_t>(stages_.size()))
      return wrong("the mesh " + to_string(first.mesh) + " has " + llvm::Twine(first.mesh[MeshAxis::Stage]) +
                   " stages, the plan has " + llvm::Twine(stages_.size()));
    for (size_t i = 0; i < stages_.size(); ++i) {
      const Plan& stage = *stages_[i];
      if (stage.stage != static_cast<int32_t>(i) || (i > 0 && !stage.later_stages.empty()) ||
          !(stage.mesh == first.mesh) || stage.functions.size() != first.functions.size())
        return wrong("stage " + llvm::Twine(i) + " is not one of this plan");
      if (stage.training.accumulate != first.training.accumulate)
        return wrong("stage " + llvm::Twine(i) + " accumulates " + llvm::Twine(stage.training.accumulate) +
                     " times, the first " + llvm::Twine(first.training.accumulate));
    }
    return Status::success();
  }

  Status run_all(std::vector<StageWalk>& walks) {
    for (;;) {
      for (StageWalk& walk : walks) walk.run_to_meeting();
      if (llvm::all_of(walks, [](const StageWalk& walk) { return walk.is_through(); })) return Status::success();
      Result<bool> met = meet(walks);
      if (!met) return met.takeError();
      if (!*met) return wait_for_ever(walks);
    }
  }

  static Status wait_for_ever(llvm::ArrayRef<StageWalk> walks) {
    std::string text;
    for (const StageWalk& walk : walks)
      if (!walk.is_through()) text += (text.empty() ? "" : ", ") + walk.where();
    return wrong("waits for ever: " + text);
  }

  // One meeting, if one is possible.
  Result<bool> meet(std::vector<StageWalk>& walks) {
    size_t adding = 0;
    for (size_t i = 0; i < walks.size(); ++i) {
      if (walks[i].is_through()) continue;
      const Instruction& own = walks[i].meeting();
      if (!own.attrs.has("peer")) {
        ++adding;
        continue;
      }
      const auto peer = static_cast<size_t>(own.attrs.get_int("peer"));
      if (peer >= walks.size() || peer == i) return wrong(walks[i].where() + " has no such peer");
      if (own.op != "send" || walks[peer].is_through()) continue;
      const Instruction& other = walks[peer].meeting();
      if (other.op != "receive" || static_cast<size_t>(other.attrs.get_int("peer")) != i) continue;
      if (Status s = check_pair(walks[i], walks[peer])) return s;
      walks[i].meet(std::nullopt);
      walks[peer].meet(std::nullopt);
      return true;
    }
    if (adding < walks.size()) return false;
    for (const StageWalk& walk : walks)
      if (walk.meeting().op != walks.front().meeting().op || walk.moved_type() != walks.front().moved_type() ||
          walk.meeting().attrs.get_int("root") != walks.front().meeting().attrs.get_int("root"))
        return wrong(walk.where() + " meets " + walks.front().where() + " of " + to_string(walks.front().moved_type()) +
                     root_of(walks.front()));
    ++meetings_;
    for (StageWalk& walk : walks) walk.meet(mixed(hash_of(llvm::StringRef("all stages")), meetings_));
    return true;
  }

  static std::string root_of(const StageWalk& walk) {
    return walk.meeting().attrs.has("root") ? " from " + std::to_string(walk.meeting().attrs.get_int("root")) : "";
  }

  static Status check_pair(const StageWalk& sender, const StageWalk& receiver) {
    const int64_t sent = sender.meeting().attrs.get_int("number"), got = receiver.meeting().attrs.get_int("number");
    if (sent != got)
      return wrong(sender.where() + " sends transfer " + llvm::Twine(sent) + ", " + receiver.where() + " expects " +
                   llvm::Twine(got));
    if (sender.moved_type() == receiver.moved_type()) return Status::success();
    return wrong(sender.where() + " sends " + to_string(sender.moved_type()) + ", " + receiver.where() + " expects " +
                 to_string(receiver.moved_type()));
  }

  Status check_updates(llvm::ArrayRef<StageWalk> walks) const {
    std::vector<llvm::StringMap<Recipe>> updates;
    for (const StageWalk& walk : walks) updates.push_back(walk.updates());
    for (size_t i = 0; i < stages_.size(); ++i)
      for (const PlanState& state : stages_[i]->states) {
        const std::string& name = stages_[i]->slots[state.slot].name;
        if (stages_with_.lookup(name) == 1) continue;
        for (size_t other = 0; other < stages_.size(); ++other) {
          if (!updates[other].count(name)) continue;
          const bool same = updates[i].count(name) && updates[i].lookup(name) && updates[other].lookup(name) &&
                            *updates[i].lookup(name) == *updates[other].lookup(name);
          if (!same)
            return wrong("stages " + llvm::Twine(i) + " and " + llvm::Twine(other) + " have " + name +
                         " and may give it different next values");
        }
      }
    return Status::success();
  }

  llvm::SmallVector<const Plan*, 4> stages_;
  llvm::StringMap<int> stages_with_;  // by state: how many have it
  uint64_t meetings_ = 0;             // of all stages
};

}  // namespace

Status check_stages(const Plan& plan) { return StagesCheck(plan).run(); }

}  // namespace plimsoll
