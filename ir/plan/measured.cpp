#include "ir/plan/measured.h"

#include "ir/op_def.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringMap.h"

namespace plimsoll {

std::optional<double> measured_us(const Plan& plan, const Instruction& instruction, const TimingCache& times) {
  const OpDef* op = find_op(instruction.op);
  if (!op) return std::nullopt;
  llvm::SmallVector<const Type*, 6> types;
  for (SlotId operand : instruction.operands)
    types.push_back(operand < 0 ? nullptr : &plan.slots[static_cast<size_t>(operand)].type);
  return times.find(plan.device.name, instruction.op, instruction.kernel, OpCall(*op, instruction.attrs, types));
}

void use_measured_times(Plan& plan, const TimingCache& times) {
  for (PlanFunction& function : plan.functions)
    for (Instruction& instruction : function.instructions)
      if (const std::optional<double> us = measured_us(plan, instruction, times)) instruction.predicted_us = *us;
  for (Plan& stage : plan.later_stages) use_measured_times(stage, times);
}

std::vector<OpTime> sum_up_by_op(const Plan& plan, const TimingCache* times) {
  std::vector<OpTime> all;
  llvm::StringMap<size_t> places;
  std::vector<bool> lacks_times;
  for (size_t f = 0; f < plan.functions.size(); ++f) {
    const int64_t calls = plan.calls_per_step(f);
    if (calls == 0) continue;
    for (const Instruction& each : plan.functions[f].instructions) {
      const std::string name = each.op + "/" + each.kernel;
      const size_t place = places.try_emplace(name, all.size()).first->second;
      if (place == all.size()) {
        all.push_back({name});
        lacks_times.push_back(false);
      }
      OpTime& row = all[place];
      row.count += calls;
      row.predicted_us += static_cast<double>(calls) * each.predicted_us;
      const std::optional<double> us = times ? measured_us(plan, each, *times) : std::nullopt;
      row.measured_us += static_cast<double>(calls) * us.value_or(0);
      lacks_times[place] = lacks_times[place] || !us;
    }
  }
  for (size_t i = 0; i < all.size(); ++i)
    if (lacks_times[i]) all[i].measured_us = 0;
  llvm::stable_sort(all, [](const OpTime& a, const OpTime& b) { return a.predicted_us > b.predicted_us; });
  return all;
}

}  // namespace plimsoll
