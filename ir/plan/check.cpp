#include "ir/plan/check.h"

#include "ir/op_def.h"
#include "ir/plan/byte_owners.h"
#include "ir/plan/check_layout.h"
#include "ir/plan/check_ranks.h"
#include "ir/plan/check_stages.h"
#include "ir/plan/check_sums.h"
#include "ir/plan/validate.h"
#include "ir/plan/windows.h"

#include "llvm/ADT/DenseMap.h"

#include <map>

// Runs every function once on an arena that remembers the last writer of each byte. A slot may be read only while its
// own write is the last one to all of its bytes. What split, slice and concat leave in place, they do not write: such a
// result may be read while its bytes have the writers that they had when it was made. Every read, output, update and
// gradient is checked for this, so a plan that passes computes what its instructions say, whichever slots share bytes.

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
  // Addresses [from, to) of an arena, which the slot or a part of it has.
  struct Range {
    int64_t from, to;
  };
  using Ranges = llvm::SmallVector<Range, 1>;
  static Range all_of(const Slot& slot) { return {slot.offset, slot.offset + slot.bytes}; }
  Range bytes_read(const Instruction& instruction, SlotId operand) const;
  Status read(SlotId id, Range range, const llvm::Twine& who);
  Status write_workspace(const Instruction& instruction);
  Status write_result(const Instruction& instruction, const OpDef& op, size_t result);
  Status write_view(const Instruction& instruction, const OpDef& op, SlotId result);
  Ranges ranges_written(const Instruction& instruction, const OpDef& op, size_t result) const;
  Status overlaps(const Instruction& instruction, const OpDef& op, size_t result, const Ranges& written) const;
  Status spaces(const Instruction& instruction, const OpDef& op) const;
  Status take_off(const Instruction& instruction, const OpDef& op);
  void land();
  Status claim(SlotId id, const Ranges& written, const llvm::Twine& who);
  SlotId find_alive(SlotId id, Range range) const;
  bool is_being_copied(const Slot& space, Range range) const;
  bool is_part_of(SlotId part, SlotId whole) const;
  Status touch(SlotId id, const llvm::Twine& who) const;
  Status finished_gradients();
  Status end();

  int32_t instruction_count() const { return static_cast<int32_t>(function_.instructions.size()); }

  const Slot& slot(SlotId id) const { return plan_.slots[id]; }
  const Arena& arena_of(const Slot& slot) const { return plan_.arenas[static_cast<size_t>(slot.space)]; }
  ByteOwners& bytes(const Slot& slot) { return bytes_[static_cast<size_t>(slot.space)]; }
  const ByteOwners& bytes(const Slot& slot) const { return bytes_[static_cast<size_t>(slot.space)]; }
  void write(const Slot& slot, Range range, int32_t owner) {
    for_each_run(arena_of(slot), range.from, range.to,
                 [&](int64_t from, int64_t to) { bytes(slot).write(from, to, owner); });
  }
  bool meet(const Slot& space, Range a, Range b) const {
    return share_bytes(arena_of(space), a.from, a.to, b.from, b.to);
  }
  std::string where() const;
  std::string name(SlotId id) const { return describe_slot(plan_, id); }
  Status wrong(const llvm::Twine& what) const { return model_error("plan check: " + where() + what); }

  const Plan& plan_;
  int32_t index_;
  const PlanFunction& function_;
  int32_t at_ = before_start;
  ByteOwners bytes_[2];
  std::vector<int32_t> written_;  // by slot: the instruction that wrote it
  // Results of which some bytes were not written, as they were there: who had written their bytes then.
  std::map<SlotId, ByteOwners> made_in_place_;
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
  return read(id, all_of(slot(plan_.storage_of(id))), who);
}

// Copies to the device may read a part of a slot.
FunctionCheck::Range FunctionCheck::bytes_read(const Instruction& instruction, SlotId operand) const {
  const Slot& s = slot(plan_.storage_of(operand));
  const OpDef* op = find_op(instruction.op);
  if (op->engine != Engine::ToDevice || !instruction.attrs.has("begin")) return all_of(s);
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
  SlotId thief = storage;
  const auto made = made_in_place_.find(storage);
  for_each_run(arena_of(s), range.from, range.to, [&](int64_t from, int64_t to) {
    if (thief != storage) return;
    if (made != made_in_place_.end()) {
      thief = bytes(s).difference(made->second, from, to).value_or(storage);
    } else if (!bytes(s).holds(from, to, storage)) {
      bytes(s).for_each_in(from, to, [&](SlotId owner) {
        thief = owner;
        return owner == storage;
      });
    }
  });
  if (thief == storage) return Status::success();
  return wrong(who + " " + name(storage) + ", but " + name(thief) + " was written over it at instruction " +
               llvm::Twine(written_[thief]));
}

// Is the slot one of the parts of `whole`, or a part of one?
bool FunctionCheck::is_part_of(SlotId part, SlotId whole) const {
  for (SlotId at = slot(part).part_of; at >= 0; at = slot(at).part_of)
    if (at == whole) return true;
  return false;
}

bool FunctionCheck::is_being_copied(const Slot& space, Range range) const {
  return llvm::any_of(copies_, [&](const Copy& copy) {
    return (slot(copy.source).space == space.space && meet(space, copy.read, range)) ||
           (slot(copy.target).space == space.space && meet(space, all_of(slot(copy.target)), range));
  });
}

// A slot that still needs bytes of `range`, which `id` is about to write; -1: none. The whole that `id` is a part of
// lives as long as its parts, and is intact where it is read.
SlotId FunctionCheck::find_alive(SlotId id, Range range) const {
  const Slot& s = slot(id);
  const auto update = state_of_.find(id);
  const SlotId state = update == state_of_.end() ? -1 : update->second;
  const SlotId taken_over = s.in_place_of < 0 ? -1 : plan_.storage_of(s.in_place_of);
  const auto gives_way = [&](SlotId owner) {
    const Slot& old = slot(owner);
    if (old.function == -1) return owner == state;
    return old.last < at_ || (old.last == at_ && owner == taken_over) || is_part_of(id, owner);
  };
  SlotId alive = -1;
  for_each_run(arena_of(s), range.from, range.to, [&](int64_t from, int64_t to) {
    if (alive >= 0) return;
    bytes(s).for_each_in(from, to, [&](SlotId owner) {
      if (!gives_way(owner) || is_being_copied(s, range)) alive = owner;
      return alive < 0;
    });
  });
  for (const auto& [made, owners] : made_in_place_)
    if (alive < 0 && slot(made).space == s.space && meet(s, all_of(slot(made)), range) && !gives_way(made))
      alive = made;
  return alive;
}

// Gives the bytes that are written to `id`. Their owners must be dead, or be the state that `id` becomes.
Status FunctionCheck::claim(SlotId id, const Ranges& written, const llvm::Twine& who) {
  const Slot& s = slot(id);
  if (s.function == -1)
    return wrong(who + " " + name(id) + " is persistent; only an update's value may be written there");
  if (written_[id] != unwritten)
    return wrong(who + " " + name(id) + " was already written at instruction " + llvm::Twine(written_[id]));
  for (const Range range : written) {
    if (const SlotId alive = find_alive(id, range); alive >= 0)
      return wrong(who + " " + name(id) + " is written over " + name(alive) +
                   (slot(alive).function == -1 ? std::string(", which is persistent")
                                               : ", which lives to instruction " + std::to_string(slot(alive).last)) +
                   (is_being_copied(s, range) ? " and is being copied" : ""));
    write(s, range, id);
  }
  if (written.size() != 1 || written.front().from != s.offset || written.front().to != all_of(s).to)
    for_each_run(arena_of(s), s.offset, all_of(s).to,
                 [&](int64_t from, int64_t to) { made_in_place_[id].copy(bytes(s), from, to); });
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
    if (operand >= 0 && share_bytes(plan_, slot(id), slot(plan_.storage_of(operand))))
      return wrong("its workspace " + name(id) + " overlaps operand " + name(operand));
  return claim(id, {all_of(slot(id))}, "workspace");
}

// The bytes of a result but those of parts that lie at their runs of the whole, which say so.
FunctionCheck::Ranges FunctionCheck::ranges_written(const Instruction& instruction, const OpDef& op,
                                                    size_t result) const {
  const SlotId id = instruction.results[result];
  const Slot& r = slot(id);
  if (!op.result_runs && !op.operand_runs) return {all_of(r)};
  llvm::SmallVector<const Type*, 4> operands;
  for (SlotId operand : instruction.operands) operands.push_back(operand < 0 ? nullptr : &slot(operand).type);
  const OpCall call(op, instruction.attrs, operands);
  const auto lies_at = [&](const Slot& part, SlotId whole, int64_t begin) {
    const bool says_so = part.part_of == whole || part.function == -1;
    return says_so && part.space == slot(whole).space && part.bytes == part.type.bytes() &&
           part.offset == slot(whole).offset + begin * dtype_bytes(part.type.dtype);
  };
  if (op.result_runs) {
    const SlotId whole = plan_.storage_of(instruction.operands[0]);
    const llvm::SmallVector<int64_t, 4> begins = op.result_runs(call);
    if (begins.empty() || !lies_at(r, whole, begins[result])) return {all_of(r)};
    return {};
  }
  Ranges written;
  int64_t from = r.offset;
  const llvm::SmallVector<int64_t, 4> begins = op.operand_runs(call);
  for (size_t i = 0; i < begins.size(); ++i) {
    const Slot& part = slot(plan_.storage_of(instruction.operands[i]));
    if (!lies_at(part, id, begins[i])) continue;
    if (from < part.offset) written.push_back({from, part.offset});
    from = part.offset + part.bytes;
  }
  if (from < all_of(r).to || r.bytes == 0) written.push_back({from, all_of(r).to});
  return written;
}

// A result is written over bytes of an operand only where the op's record pairs them, and then over all of them.
Status FunctionCheck::overlaps(const Instruction& instruction, const OpDef& op, size_t result,
                               const Ranges& written) const {
  const Slot& r = slot(instruction.results[result]);
  bool found = false;
  for (size_t i = 0; i < instruction.operands.size(); ++i) {
    if (instruction.operands[i] < 0) continue;
    SlotId storage = plan_.storage_of(instruction.operands[i]);
    const Slot& read = slot(storage);
    if (read.space != r.space || llvm::none_of(written, [&](Range each) { return meet(r, each, all_of(read)); }))
      continue;
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
  const Ranges written = ranges_written(instruction, op, result);
  if (Status s = overlaps(instruction, op, result, written)) return s;
  return claim(id, written, "result");
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
    write(s, all_of(s), static_cast<SlotId>(i));
    written_[i] = before_start;
  }
  if (Status s = find_updates()) return s;
  for (const PlanInput& input : function_.inputs) {
    if (slot(input.slot).view_of >= 0) return wrong("input " + input.name + " is a view");
    if (Status s = claim(input.slot, {all_of(slot(input.slot))}, "input")) return s;
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
