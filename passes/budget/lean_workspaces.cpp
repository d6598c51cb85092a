#include "passes/budget/lean_workspaces.h"

#include "ir/plan/summary.h"
#include "ir/plan/windows.h"
#include "ir/support/align.h"
#include "ir/support/strings.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <map>
#include <optional>

namespace plimsoll {
namespace {

// Minimum bytes that are live at a slower call of a set, as shares of the peak: no such call, some, all.
constexpr double shares_of_slower[] = {1, 0.5, 0};

std::string key_of(const OpDef& op, llvm::ArrayRef<const Type*> operands, llvm::ArrayRef<Type> results) {
  std::string key = op.name.str();
  for (const Type* type : operands) key += " " + (type ? to_string(*type) : "_");
  for (const Type& type : results) key += " > " + to_string(type);
  return key;
}

auto find_lean(std::vector<KernelCandidate>& candidates) {
  return llvm::find_if(candidates, [&](const KernelCandidate& candidate) {
    return ends_with(candidate.name, lean_suffix) && candidate.workspace_bytes < candidates.front().workspace_bytes;
  });
}

bool is_slower(const KernelCandidate& lean, const KernelCandidate& usual) {
  return usual.predicted_us > 0 && lean.predicted_us > usual.predicted_us;
}

// An instruction's types, in the memory of the lists.
struct CallTypes {
  CallTypes(const Plan& plan, const Instruction& instruction) {
    for (SlotId operand : instruction.operands)
      operands.push_back(operand < 0 ? nullptr : &plan.slots[static_cast<size_t>(operand)].type);
    for (SlotId result : instruction.results) results.push_back(plan.slots[static_cast<size_t>(result)].type);
  }
  llvm::SmallVector<const Type*, 6> operands;
  std::vector<Type> results;
};

std::vector<KernelCandidate> candidates_of(const Instruction& instruction, const CallTypes& types,
                                           const KernelCatalog& catalog) {
  const OpDef& op = get_op(instruction.op);
  return catalog.candidates(op, OpCall(op, instruction.attrs, types.operands), types.results);
}

struct LeanCall {
  int64_t live_bytes = 0;  // the most that is live at such a call in the plain plan
  bool is_slower = false;
};

std::map<std::string, LeanCall> lean_calls(const Plan& plain, const KernelCatalog& catalog) {
  const SpaceSummary memory = summarize_space(plain, MemorySpace::Device);
  std::map<std::string, LeanCall> calls;
  for (size_t f = 0; f < plain.functions.size(); ++f) {
    const std::vector<Instruction>& instructions = plain.functions[f].instructions;
    for (size_t i = 0; i < instructions.size(); ++i) {
      if (instructions[i].workspace < 0) continue;
      const CallTypes types(plain, instructions[i]);
      std::vector<KernelCandidate> candidates = candidates_of(instructions[i], types, catalog);
      const auto lean = find_lean(candidates);
      if (lean == candidates.end()) continue;
      LeanCall& call = calls[key_of(get_op(instructions[i].op), types.operands, types.results)];
      call.live_bytes = std::max(call.live_bytes, memory.live[f][i].total());
      call.is_slower |= is_slower(*lean, candidates.front());
    }
  }
  return calls;
}

// Where a slot of the function may lie while one of its instructions runs.
class HolesAt {
 public:
  HolesAt(const Plan& plan, size_t function, size_t instruction, SlotId but) : plan_(plan), function_(function) {
    const auto at = static_cast<int32_t>(instruction);
    for (size_t id = 0; id < plan.slots.size(); ++id) {
      const Slot& slot = plan.slots[id];
      if (slot.space == MemorySpace::Device && slot.function == static_cast<int32_t>(function) && slot.first <= at &&
          slot.last >= at && static_cast<SlotId>(id) != but)
        for_each_run(plan.arenas.front(), slot.offset, slot.offset + slot.bytes, [&](int64_t from, int64_t to) {
          taken_.push_back({from, to});
        });
    }
    llvm::sort(taken_);
  }

  std::optional<int64_t> lowest(int64_t bytes) const {
    int64_t from = plan_.arenas.front().persistent_bytes;
    const int64_t end = from + plan_.functions[function_].transient_bytes;
    for (const auto& [begin, behind] : taken_) {
      if (from + bytes <= begin) return from;
      from = std::max(from, align_up(behind, plan_.device.alignment_bytes));
    }
    return from + bytes <= end ? std::optional(from) : std::nullopt;
  }

 private:
  const Plan& plan_;
  size_t function_;
  std::vector<std::pair<int64_t, int64_t>> taken_;
};

}  // namespace

std::vector<CallKeys> lean_call_sets(const Plan& plain, const KernelCatalog& catalog) {
  const std::map<std::string, LeanCall> calls = lean_calls(plain, catalog);
  const auto peak = static_cast<double>(plain.arenas.front().peak_live_bytes);
  std::vector<CallKeys> sets;
  for (const double share : shares_of_slower) {
    CallKeys keys;
    for (const auto& [key, call] : calls)
      if (!call.is_slower || static_cast<double>(call.live_bytes) > share * peak) keys.insert(key);
    if (!keys.empty() && (sets.empty() || keys != sets.back())) sets.push_back(std::move(keys));
  }
  return sets;
}

// A prediction or a measurement of one of both says nothing about the other.
std::vector<KernelCandidate> LeanCatalog::candidates(const OpDef& op, const OpCall& call,
                                                     llvm::ArrayRef<Type> results) const {
  std::vector<KernelCandidate> all = all_.candidates(op, call, results);
  const auto lean = find_lean(all);
  if (lean == all.end()) return all;
  llvm::SmallVector<const Type*, 6> operands;
  for (size_t i = 0; i < call.count(); ++i) operands.push_back(call.has(i) ? &call.operand(i) : nullptr);
  if (!lean_.count(key_of(op, operands, results))) return all;
  if (!is_slower(*lean, all.front())) lean->predicted_us = all.front().predicted_us;
  std::rotate(all.begin(), lean, lean + 1);
  return all;
}

namespace {

// Gives the instruction the usual kernel where there is room. The checker sees to it that nobody reads what was there.
bool give_workspace_back(Plan& plan, size_t function, size_t at, int64_t live_bytes, const KernelCatalog& catalog) {
  Instruction& instruction = plan.functions[function].instructions[at];
  std::vector<KernelCandidate> candidates = candidates_of(instruction, CallTypes(plan, instruction), catalog);
  const KernelCandidate& usual = candidates.front();
  const auto lean = find_lean(candidates);
  if (lean == candidates.end() || lean->name != instruction.kernel || is_slower(*lean, usual)) return false;
  const auto padded = [&](int64_t bytes) { return align_up(bytes, plan.device.alignment_bytes); };
  const int64_t more = padded(usual.workspace_bytes) - padded(lean->workspace_bytes);
  if (live_bytes + more > plan.functions[function].peak_live_bytes) return false;
  const std::optional<int64_t> offset =
      HolesAt(plan, function, at, instruction.workspace).lowest(usual.workspace_bytes);
  if (!offset) return false;
  if (instruction.workspace < 0) {
    Slot slot;
    slot.name = plan.slots[static_cast<size_t>(instruction.results[0])].name + ".workspace";
    slot.function = static_cast<int32_t>(function);
    slot.first = slot.last = static_cast<int32_t>(at);
    slot.category = Category::Workspace;
    slot.origin = instruction.origin;
    instruction.workspace = static_cast<SlotId>(plan.slots.size());
    plan.slots.push_back(std::move(slot));
  }
  Slot& workspace = plan.slots[static_cast<size_t>(instruction.workspace)];
  workspace.offset = *offset;
  workspace.bytes = usual.workspace_bytes;
  workspace.type = Type(DType::U8, {usual.workspace_bytes});
  instruction.kernel = usual.name;
  return true;
}

}  // namespace

int64_t give_workspaces_back(Plan& plan, const KernelCatalog& catalog) {
  const SpaceSummary memory = summarize_space(plan, MemorySpace::Device);
  int64_t left = 0;
  for (size_t f = 0; f < plan.functions.size(); ++f) {
    const std::vector<Instruction>& instructions = plan.functions[f].instructions;
    for (size_t i = 0; i < instructions.size(); ++i)
      if (ends_with(instructions[i].kernel, lean_suffix))
        left += give_workspace_back(plan, f, i, memory.live[f][i].total(), catalog) ? 0 : 1;
  }
  return left;
}

}  // namespace plimsoll
