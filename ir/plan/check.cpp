#include "ir/plan/check.h"

#include "ir/op_def.h"
#include "ir/plan/byte_owners.h"
#include "ir/plan/check_layout.h"
#include "ir/plan/check_ranks.h"
#include "ir/plan/check_stages.h"
#include "ir/plan/check_sums.h"
#include "ir/plan/validate.h"

#include "llvm/ADT/DenseMap.h"

// Runs every function once on an arena that remembers the last writer of each byte. A slot may be read only while its
// own write is the last one to all of its bytes. Every read, output, update and gradient is checked for this, so a plan
// that passes computes what its instructions say, whichever slots share bytes.

namespace plimsoll {
namespace {

class FunctionCheck {
 public:
  FunctionCheck(const Plan& plan, int32_t index)
      : plan_(plan), index_(index), function_(plan.functions[index]), written_(plan.slots.size(), unwritten) {}

  Status run();

 private:
  static constexpr int32_t unwritten = -2, before_start = -1;

  Status begin();
  Status find_updates();
  Status step(const Instruction& instruction);
  Status types(const Instruction& instruction, const OpDef& op) const;
  Status read(SlotId id, const llvm::Twine& who);
  // The bytes [from, to) of an arena, which the slot or a part of it has.
  struct Range {
    int64_t from, to;
    bool meets(const Slot& slot) const { return from < slot.offset + slot.bytes && slot.offset < to; }
  };
  Range bytes_read(const Instruction& instruction, SlotId operand) const;
  Status read(SlotId id, Range range, const llvm::Twine& who);
  Status write_workspace(const Instruction& instruction);
  Status write_result(const Instruction& instruction, const OpDef& op, size_t result);
  Status write_view(const Instruction& instruction, const OpDef& op, SlotId result);
  Status overlaps(const Instruction& instruction, const OpDef& op, size_t result) const;
  Status spaces(const Instruction& instruction, const OpDef& op) const;
  Status take_off(const Instruction& instruction, const OpDef& op);
  void land();
  Status claim(SlotId id, const llvm::Twine& who);
  Status touch(SlotId id, const llvm::Twine& who) const;
  Status finished_gradients();
  Status end();

  int32_t instruction_count() const { return static_cast<int32_t>(function_.instructions.size()); }

  const Slot& slot(SlotId id) const { return plan_.slots[id]; }
  ByteOwners& bytes(const Slot& slot) { return bytes_[static_cast<size_t>(slot.space)]; }
  std::string where() const;
  std::string name(SlotId id) const { return describe_slot(plan_, id); }
  Status wrong(const llvm::Twine& what) const { return model_error("plan check: " + where() + what); }

  const Plan& plan_;
  int32_t index_;
  const PlanFunction& function_;
  int32_t at_ = before_start;
  ByteOwners bytes_[2];
  std::vector<int32_t> written_;             // by slot: the instruction that wrote it
  llvm::DenseMap<SlotId, SlotId> state_of_;  // an update's value -> the state it becomes
  llvm::DenseMap<int32_t, llvm::SmallVector<const PlanGradient*, 1>> gradients_after_;
  struct Copy {
    SlotId source, target;
    Range read;  // of the source
    int32_t done;
  };
  llvm::SmallVector<Copy, 8> copies_;  // those that run
};

std::string FunctionCheck::where() const {
  if (at_ == before_start) return function_.name + ": ";
  if (at_ == instruction_count()) return function_.name + " at its end: ";
  return function_.name + " instruction " + std::to_string(at_) + " (" + function_.instructions[at_].op + "): ";
}

// Every touch of a slot lies in its lifetime and that of its storage.
Status FunctionCheck::touch(SlotId id, const llvm::Twine& who) const {
  for (SlotId each : {id, plan_.storage_of(id)}) {
    const Slot& s = slot(each);
    if (s.function == -1) continue;
    if (s.function != index_) return wrong(who + " " + name(each) + ", a slot of " + plan_.functions[s.function].name);
    int32_t now = std::max(std::min(at_, instruction_count() - 1), 0);
    if (now < s.first || now > s.last)
      return wrong(who + " " + name(each) + ", which lives from instruction " + llvm::Twine(s.first) + " to " +
                   llvm::Twine(s.last));
  }
  return Status::success();
}

Status FunctionCheck::read(SlotId id, const llvm::Twine& who) {
  const Slot& storage = slot(plan_.storage_of(id));
  return read(id, {storage.offset, storage.offset + storage.bytes}, who);
}

// Copies to the device may read a part of a slot.
FunctionCheck::Range FunctionCheck::bytes_read(const Instruction& instruction, SlotId operand) const {
  const Slot& s = slot(plan_.storage_of(operand));
  const OpDef* op = find_op(instruction.op);
  if (op->engine != Engine::ToDevice || !instruction.attrs.has("begin")) return {s.offset, s.offset + s.bytes};
  const Type& part = slot(instruction.results[0]).type;
  const int64_t from = s.offset + instruction.attrs.get_int("begin") * dtype_bytes(part.dtype);
  return {from, from + part.bytes()};
}

Status FunctionCheck::read(SlotId id, Range range, const llvm::Twine& who) {
  if (Status s = touch(id, who)) return s;
  SlotId storage = plan_.storage_of(id);
  const Slot& s = slot(storage);
  if (written_[storage] == unwritten) return wrong(who + " " + name(storage) + ", which was never written");
  for (const Copy& copy : copies_)
    if (copy.target == storage)
      return wrong(who + " " + name(storage) + ", whose copy is waited for before instruction " +
                   llvm::Twine(copy.done));
  if (bytes(s).holds(range.from, range.to, storage)) return Status::success();
  SlotId thief = storage;
  bytes(s).for_each_in(range.from, range.to, [&](SlotId owner) {
    thief = owner;
    return owner == storage;
  });
  if (thief == storage) return Status::success();
  return wrong(who + " " + name(storage) + ", but " + name(thief) + " was written over it at instruction " +
               llvm::Twine(written_[thief]));
}

// Gives the bytes of `id` to it. Their owners must be dead, or be the state that `id` becomes.
Status FunctionCheck::claim(SlotId id, const llvm::Twine& who) {
  const Slot& s = slot(id);
  if (s.function == -1)
    return wrong(who + " " + name(id) + " is persistent; only an update's value may be written there");
  if (written_[id] != unwritten)
    return wrong(who + " " + name(id) + " was already written at instruction " + llvm::Twine(written_[id]));
  auto update = state_of_.find(id);
  SlotId state = update == state_of_.end() ? -1 : update->second;
  SlotId alive = -1;
  bytes(s).for_each_in(s.offset, s.offset + s.bytes, [&](SlotId owner) {
    const Slot& old = slot(owner);
    bool gives_way = old.function == -1 ? owner == state
                                        : old.last < at_ || (old.last == at_ && s.in_place_of >= 0 &&
                                                             plan_.storage_of(s.in_place_of) == owner);
    gives_way &= llvm::none_of(copies_, [&](const Copy& copy) {
      return (copy.source == owner && copy.read.meets(s)) || copy.target == owner;
    });
    if (!gives_way) alive = owner;
    return gives_way;
  });
  if (alive >= 0)
    return wrong(who + " " + name(id) + " is written over " + name(alive) +
                 (slot(alive).function == -1 ? std::string(", which is persistent")
                                             : ", which lives to instruction " + std::to_string(slot(alive).last)) +
                 (llvm::any_of(copies_, [&](const Copy& copy) { return copy.source == alive || copy.target == alive; })
                      ? " and is being copied"
                      : ""));
  bytes(s).write(s.offset, s.offset + s.bytes, id);
  written_[id] = at_;
  return touch(id, who);
}

Status FunctionCheck::types(const Instruction& instruction, const OpDef& op) const {
  llvm::SmallVector<const Type*, 4> operands;
  for (SlotId id : instruction.operands) operands.push_back(id < 0 ? nullptr : &slot(id).type);
  Result<Types> inferred = infer(OpCall(op, instruction.attrs, operands));
  if (!inferred) return in_context("plan check: " + where() + "types", inferred.takeError());
  if (inferred->size() != instruction.results.size())
    return wrong("has " + llvm::Twine(instruction.results.size()) + " results, " + op.name + " gives " +
                 llvm::Twine(inferred->size()));
  for (size_t i = 0; i < inferred->size(); ++i)
    if ((*inferred)[i] != slot(instruction.results[i]).type)
      return wrong(name(instruction.results[i]) + " is " + to_string(slot(instruction.results[i]).type) + ", " +
                   op.name + " gives " + to_string((*inferred)[i]));
  return Status::success();
}

Status FunctionCheck::write_workspace(const Instruction& instruction) {
  SlotId id = instruction.workspace;
  if (id < 0) return Status::success();
  for (SlotId operand : instruction.operands)
    if (operand >= 0 && share_bytes(slot(id), slot(plan_.storage_of(operand))))
      return wrong("its workspace " + name(id) + " overlaps operand " + name(operand));
  return claim(id, "workspace");
}

// A result shares bytes with an operand only where the op's record pairs them, and then all of them.
Status FunctionCheck::overlaps(const Instruction& instruction, const OpDef& op, size_t result) const {
  const Slot& r = slot(instruction.results[result]);
  bool found = false;
  for (size_t i = 0; i < instruction.operands.size(); ++i) {
    if (instruction.operands[i] < 0) continue;
    SlotId storage = plan_.storage_of(instruction.operands[i]);
    if (!share_bytes(r, slot(storage))) continue;
    std::string both =
        name(instruction.results[result]) + " overlaps operand " + std::to_string(i) + ", " + name(storage);
    bool allowed = llvm::any_of(op.in_place_pairs(), [&](const InPlace& pair) {
      return static_cast<size_t>(pair.result) == result && static_cast<size_t>(pair.operand) == i;
    });
    if (!allowed) return wrong(both + ", which " + op.name + " does not allow");
    if (!same_bytes(r, slot(storage))) return wrong(both + ", but not exactly");
    if (r.in_place_of < 0 || plan_.storage_of(r.in_place_of) != storage) return wrong(both + ", without saying so");
    found = true;
  }
  if (r.in_place_of >= 0 && !found)
    return wrong(name(instruction.results[result]) + " claims the bytes of " + name(r.in_place_of) +
                 ", which is no operand there");
  return Status::success();
}

// Nobody writes a view: its bytes are an operand's.
Status FunctionCheck::write_view(const Instruction& instruction, const OpDef& op, SlotId result) {
  SlotId source = op.is_view() ? instruction.operands[op.operand(op.view_of)] : -1;
  if (source < 0) return wrong("its result " + name(result) + " is a view, and " + op.name + " makes none");
  if (plan_.storage_of(source) != plan_.storage_of(result))
    return wrong("its result " + name(result) + " is no view of operand " + name(source));
  return touch(result, "makes");
}

Status FunctionCheck::write_result(const Instruction& instruction, const OpDef& op, size_t result) {
  SlotId id = instruction.results[result];
  if (slot(id).view_of >= 0) return write_view(instruction, op, id);
  if (Status s = overlaps(instruction, op, result)) return s;
  return claim(id, "result");
}

Status FunctionCheck::spaces(const Instruction& instruction, const OpDef& op) const {
  for (SlotId operand : instruction.operands)
    if (operand >= 0 && slot(operand).space != read_space(op.engine))
      return wrong("reads " + name(operand) + " in " + space_name(slot(operand).space) + " memory");
  for (SlotId result : instruction.results)
    if (slot(result).space != written_space(op.engine))
      return wrong("writes " + name(result) + " in " + space_name(slot(result).space) + " memory");
  return Status::success();
}

// A copy that is not waited for at once keeps its bytes until its end.
Status FunctionCheck::take_off(const Instruction& instruction, const OpDef& op) {
  if (instruction.done < 0) return Status::success();
  if (op.engine == Engine::Compute) return wrong("is waited for later, and computes");
  SlotId target = instruction.results[0], source = instruction.operands.empty() || instruction.operands[0] < 0
                                                       ? target
                                                       : plan_.storage_of(instruction.operands[0]);
  Range read = source == target ? Range{0, 0} : bytes_read(instruction, instruction.operands[0]);
  if (slot(target).in_place_of >= 0) source = target;  // the source's bytes are the target's now
  for (SlotId id : {source, target, instruction.workspace})
    if (id >= 0 && slot(id).function >= 0 && slot(id).last < instruction.done - 1)
      return wrong("runs until instruction " + llvm::Twine(instruction.done) + ", but " + name(id) +
                   " lives to instruction " + llvm::Twine(slot(id).last));
  copies_.push_back({source, target, read, instruction.done});
  return Status::success();
}

void FunctionCheck::land() {
  llvm::erase_if(copies_, [&](const Copy& copy) { return copy.done <= at_; });
}

Status FunctionCheck::step(const Instruction& instruction) {
  const OpDef* op = find_op(instruction.op);
  if (!op) return wrong("there is no such op");
  land();
  if (Status s = types(instruction, *op)) return s;
  if (Status s = spaces(instruction, *op)) return s;
  for (SlotId operand : instruction.operands) {
    if (operand < 0) continue;
    if (Status s = read(operand, bytes_read(instruction, operand), "reads")) return s;
  }
  if (Status s = write_workspace(instruction)) return s;
  for (size_t i = 0; i < instruction.results.size(); ++i)
    if (Status s = write_result(instruction, *op, i)) return s;
  return take_off(instruction, *op);
}

Status FunctionCheck::find_updates() {
  if (function_.name == evaluate_function && !function_.updates.empty())
    return wrong("updates " + name(function_.updates.front().state) + ", and evaluation changes no state");
  llvm::DenseMap<SlotId, int64_t> updated_bytes;  // by state: of its next value, which may come in pieces
  for (const PlanUpdate& update : function_.updates) {
    const Slot& state = slot(update.state);
    if (state.function != -1 || state.view_of >= 0)
      return wrong("updates " + name(update.state) + ", which is no state");
    int64_t& bytes = updated_bytes[update.state];
    if ((bytes += slot(update.value).bytes) > state.bytes) return wrong(name(update.state) + " is updated twice");
    state_of_[update.value] = update.state;
  }
  return Status::success();
}

// Writes what is in the arena before the first instruction: states, constants and inputs.
Status FunctionCheck::begin() {
  for (size_t i = 0; i < plan_.slots.size(); ++i) {
    const Slot& s = plan_.slots[i];
    if (s.function != -1 || s.view_of >= 0) continue;
    bytes(s).write(s.offset, s.offset + s.bytes, static_cast<SlotId>(i));
    written_[i] = before_start;
  }
  if (Status s = find_updates()) return s;
  for (const PlanInput& input : function_.inputs) {
    if (slot(input.slot).view_of >= 0) return wrong("input " + input.name + " is a view");
    if (Status s = claim(input.slot, "input")) return s;
    if (input.staging < 0) continue;
    const Slot& staging = slot(input.staging);
    if (staging.function != -1 || staging.view_of >= 0 || staging.type != slot(input.slot).type)
      return wrong("input " + input.name + " is staged in " + name(input.staging) +
                   ", which is no persistent slot of its type");
  }
  return Status::success();
}

Status FunctionCheck::finished_gradients() {
  auto due = gradients_after_.find(at_);
  if (due == gradients_after_.end()) return Status::success();
  for (const PlanGradient* gradient : due->second)
    if (Status s = read(gradient->slot, "the gradient of " + gradient->parameter + " is in")) return s;
  return Status::success();
}

Status FunctionCheck::end() {
  land();
  for (const PlanOutput& output : function_.outputs)
    if (Status s = read(output.slot, "output " + output.name + " is in")) return s;
  // Pieces that are intact, lie in the state and have as many bytes as it are all of it.
  llvm::DenseMap<SlotId, int64_t> updated_bytes;
  for (const PlanUpdate& update : function_.updates) {
    const Slot &state = slot(update.state), &value = slot(update.value);
    const bool in_state = state.space == value.space && state.offset <= value.offset &&
                          value.offset + value.bytes <= state.offset + state.bytes;
    if (!in_state) return wrong("the next value of " + name(update.state) + " is left in " + name(update.value));
    updated_bytes[update.state] += value.bytes;
    if (Status s = read(update.value, "the next value of " + state.name + " is in")) return s;
  }
  for (const PlanUpdate& update : function_.updates)
    if (updated_bytes[update.state] != slot(update.state).bytes)
      return wrong("of the next value of " + name(update.state) + " there are " +
                   llvm::Twine(updated_bytes[update.state]) + " bytes");
  // claim() let only updates' values over persistent bytes, so everything else persistent is untouched.
  return Status::success();
}

Status FunctionCheck::run() {
  for (const PlanGradient& gradient : plan_.gradients)
    if (gradient.function == index_) gradients_after_[gradient.instruction].push_back(&gradient);
  if (Status s = begin()) return s;
  if (Status s = finished_gradients()) return s;
  for (at_ = 0; at_ < instruction_count(); ++at_) {
    if (Status s = step(function_.instructions[at_])) return s;
    if (Status s = finished_gradients()) return s;
  }
  return end();
}

Status check_one(const Plan& plan) {
  if (Status s = validate_plan(plan)) return s;
  if (Status s = check_layout(plan)) return s;
  for (size_t i = 0; i < plan.functions.size(); ++i)
    if (Status s = FunctionCheck(plan, static_cast<int32_t>(i)).run()) return s;
  return check_peaks(plan);
}

}  // namespace

Status check_plan(const Plan& plan) {
  for (const Plan* stage : plan.stages())
    if (Status s = check_one(*stage))
      return plan.later_stages.empty() ? std::move(s) : in_context("stage " + llvm::Twine(stage->stage), std::move(s));
  if (Status s = check_ranks(plan)) return s;
  if (Status s = check_sums(plan)) return s;
  return check_stages(plan);
}

}  // namespace plimsoll
