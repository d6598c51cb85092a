#include "ir/plan/snapshot_bytes.h"

#include "ir/kept_copies.h"

#include "llvm/ADT/StringSet.h"

namespace plimsoll {
namespace {

// Sums up states, each once by its name.
class SnapshotBytes {
 public:
  void add(llvm::StringRef name, StateRole role, const StateInit& init, const Type& own,
           llvm::ArrayRef<Division> divisions) {
    if (!is_in_checkpoints(role, init, name) || !seen_.insert(name).second) return;
    const Shape whole = whole_shape(divisions, own.shape);
    const auto name_bytes = static_cast<int64_t>(std::max(name.size(), init.source.size()));
    bytes_ +=
        Type(own.dtype, whole).bytes() + name_bytes + entry_bytes + static_cast<int64_t>(whole.size()) * dim_bytes;
  }
  int64_t sum() const { return bytes_; }

 private:
  // A header's entry is {"dtype":"BF16","shape":[...],"data_offsets":[...]} with up to 19 digits a number.
  static constexpr int64_t entry_bytes = 100, dim_bytes = 20, file_bytes = 16;

  llvm::StringSet<> seen_;
  int64_t bytes_ = 2 * file_bytes;  // weights have a file of their own
};

}  // namespace

bool is_in_checkpoints(StateRole role, const StateInit& init, llvm::StringRef name) {
  return role != StateRole::Gradient && init.kind != StateInit::Kind::TransposeOf && !is_kept_copy(role, init) &&
         name != "accumulated_weight" && name != "learning_rate";
}

int64_t snapshot_bytes(llvm::ArrayRef<const Graph*> functions) {
  SnapshotBytes bytes;
  for (const Graph* function : functions)
    for (const State& state : function->states) {
      const Value& value = function->value(state.value);
      bytes.add(value.name, state.role, state.init, value.type, state.divisions);
    }
  return bytes.sum();
}

int64_t snapshot_bytes(const Plan& plan) {
  SnapshotBytes bytes;
  for (const Plan* stage : plan.stages())
    for (const PlanState& state : stage->states) {
      const Slot& slot = stage->slots[static_cast<size_t>(state.slot)];
      bytes.add(slot.name, state.role, state.init, slot.type, state.divisions);
    }
  return bytes.sum();
}

}  // namespace plimsoll
