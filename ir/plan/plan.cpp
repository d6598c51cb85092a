#include "ir/plan/plan.h"

namespace plimsoll {

llvm::StringRef category_name(Category category) {
  constexpr llvm::StringLiteral names[category_count] = {"parameters", "gradients", "optimizer", "constants", "saved",
                                                         "temporary",  "recompute", "offload",   "workspace", "input"};
  return names[static_cast<size_t>(category)];
}

int64_t Plan::promised_bytes() const {
  int64_t bytes = device.reserve_bytes();
  for (const Arena& arena : arenas)
    if (arena.space == MemorySpace::Device) bytes += arena.bytes;
  return bytes;
}

SlotId Plan::storage_of(SlotId slot) const {
  while (slots[slot].view_of >= 0) slot = slots[slot].view_of;
  return slot;
}

llvm::SmallVector<const Plan*, 4> Plan::stages() const {
  llvm::SmallVector<const Plan*, 4> all{this};
  for (const Plan& stage : later_stages) all.push_back(&stage);
  return all;
}

}  // namespace plimsoll
