#include "runtime/last_uses.h"

#include "llvm/ADT/STLExtras.h"

namespace plimsoll {

// A slot that owns its bytes dies after its last use unless another value took them over or they outlive the function.
// A part dies with its whole.
std::vector<InstructionDeaths> find_deaths(const Plan& plan, size_t function) {
  std::vector<InstructionDeaths> last_uses(plan.functions[function].instructions.size());
  if (last_uses.empty()) return last_uses;
  std::vector<bool> kept(plan.slots.size(), false);
  for (const Slot& slot : plan.slots)
    if (slot.in_place_of >= 0) kept[static_cast<size_t>(plan.storage_of(slot.in_place_of))] = true;
  for (const PlanOutput& output : plan.functions[function].outputs)
    for (SlotId at = plan.storage_of(output.slot); at >= 0; at = plan.slots[static_cast<size_t>(at)].part_of)
      kept[static_cast<size_t>(at)] = true;
  for (size_t i = 0; i < plan.slots.size(); ++i) {
    const Slot& slot = plan.slots[i];
    if (slot.function != static_cast<int32_t>(function) || slot.view_of >= 0 || slot.part_of >= 0) continue;
    if (slot.offset < plan.arenas[static_cast<size_t>(slot.space)].persistent_bytes) continue;
    if (slot.category != Category::Input && slot.in_place_of < 0)
      last_uses[static_cast<size_t>(slot.first)].fresh.push_back(static_cast<SlotId>(i));
    if (!kept[i]) last_uses[static_cast<size_t>(slot.last)].dead_after.push_back(static_cast<SlotId>(i));
  }
  return last_uses;
}

}  // namespace plimsoll
