#include "passes/budget/lean_workspaces.h"

#include "ir/plan/summary.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>

namespace plimsoll {
namespace {

std::string key_of(const OpDef& op, llvm::ArrayRef<const Type*> operands, llvm::ArrayRef<Type> results) {
  std::string key = op.name.str();
  for (const Type* type : operands) key += " " + (type ? to_string(*type) : "_");
  for (const Type& type : results) key += " > " + to_string(type);
  return key;
}

auto find_lean(std::vector<KernelCandidate>& candidates) {
  return llvm::find_if(candidates, [&](const KernelCandidate& candidate) {
    return llvm::StringRef(candidate.name).endswith(lean_suffix) &&
           candidate.workspace_bytes < candidates.front().workspace_bytes;
  });
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

}  // namespace

// What the layout is higher than its peak is no more room for anybody.
CallKeys lean_calls_for(const Plan& plain, int64_t budget_bytes, const KernelCatalog& catalog) {
  const Arena& arena = plain.arenas.front();
  const int64_t room = budget_bytes - plain.device.reserve_bytes() - (arena.bytes - arena.peak_live_bytes);
  const SpaceSummary memory = summarize_space(plain, MemorySpace::Device);
  CallKeys keys;
  for (size_t f = 0; f < plain.functions.size(); ++f) {
    const std::vector<Instruction>& instructions = plain.functions[f].instructions;
    for (size_t i = 0; i < instructions.size(); ++i) {
      if (instructions[i].workspace < 0 || memory.live[f][i].total() <= room) continue;
      const OpDef& op = get_op(instructions[i].op);
      const CallTypes types(plain, instructions[i]);
      std::vector<KernelCandidate> candidates =
          catalog.candidates(op, OpCall(op, instructions[i].attrs, types.operands), types.results);
      if (find_lean(candidates) != candidates.end()) keys.insert(key_of(op, types.operands, types.results));
    }
  }
  return keys;
}

std::vector<KernelCandidate> LeanCatalog::candidates(const OpDef& op, const OpCall& call,
                                                     llvm::ArrayRef<Type> results) const {
  std::vector<KernelCandidate> all = all_.candidates(op, call, results);
  const auto lean = find_lean(all);
  if (lean == all.end()) return all;
  llvm::SmallVector<const Type*, 6> operands;
  for (size_t i = 0; i < call.count(); ++i) operands.push_back(call.has(i) ? &call.operand(i) : nullptr);
  if (lean_.count(key_of(op, operands, results))) std::rotate(all.begin(), lean, lean + 1);
  return all;
}

}  // namespace plimsoll
