#include "ir/plan/plan.h"

#include "ir/channels_last_weight.h"

#include "ir/plan/lengths.h"

#include "llvm/ADT/STLExtras.h"

namespace plimsoll {

llvm::StringRef category_name(Category category) {
  constexpr llvm::StringLiteral names[category_count] = {"parameters", "gradients", "optimizer", "constants", "saved",
                                                         "temporary",  "recompute", "offload",   "workspace", "input"};
  return names[static_cast<size_t>(category)];
}

llvm::StringRef use_name(OutputUse use) {
  constexpr llvm::StringLiteral names[] = {"mean", "sum", "rows", "whole"};
  return names[static_cast<size_t>(use)];
}

int64_t Plan::promised_bytes() const {
  int64_t bytes = device.reserve_bytes();
  for (const Arena& arena : arenas)
    if (arena.space == MemorySpace::Device) bytes += arena.bytes;
  return bytes;
}

int64_t loading_bytes(int64_t input_bytes, llvm::StringRef backend) {
  constexpr int64_t staged_batches = 2;
  return (batches_read_ahead + (backend == "cuda" ? staged_batches : 0)) * input_bytes;
}

int64_t Plan::loading_bytes() const {
  int64_t bytes = 0;
  for (const PlanFunction& function : functions)
    if (!length_of_shorter_step(function.name))  // of these a batch takes the place of a longer one
      for (const PlanInput& input : function.inputs) bytes += slots[static_cast<size_t>(input.slot)].type.bytes();
  return plimsoll::loading_bytes(bytes, device.backend);
}

int64_t Plan::host_bytes() const {
  int64_t bytes = loading_bytes() + host.cache_bytes + host.snapshot_bytes;
  for (const Arena& arena : arenas)
    if (arena.space == MemorySpace::Host) bytes += arena.bytes;
  return bytes;
}

std::optional<size_t> Plan::find_function(llvm::StringRef name) const {
  for (size_t i = 0; i < functions.size(); ++i)
    if (functions[i].name == name) return i;
  return std::nullopt;
}

int64_t Plan::calls_per_step(size_t function) const {
  if (function == 0) return training.accumulate;
  return functions[function].name == update_function ? 1 : 0;
}

Type Plan::model_type(const PlanState& state) const {
  const Type& type = slots[static_cast<size_t>(state.slot)].type;
  return state.channels_last ? Type(type.dtype, with_channels_second(type.shape)) : type;
}

SlotId Plan::storage_of(SlotId slot) const {
  while (slots[slot].view_of >= 0) slot = slots[slot].view_of;
  return slot;
}

const DeviceDescription& Plan::device_of(int64_t rank) const {
  for (const RankKind& kind : kinds)
    if (llvm::is_contained(kind.ranks, rank)) return kind.device;
  const auto own = static_cast<size_t>(rank / mesh.ranks_per_stage());
  return own == 0 || later_stages.size() < own ? device : later_stages[own - 1].device;
}

bool Plan::has_one_device() const {
  return kinds.empty() &&
         llvm::all_of(later_stages, [&](const Plan& stage) { return stage.device.name == device.name; });
}

llvm::SmallVector<const Plan*, 4> Plan::stages() const {
  llvm::SmallVector<const Plan*, 4> all{this};
  for (const Plan& stage : later_stages) all.push_back(&stage);
  return all;
}

}  // namespace plimsoll
