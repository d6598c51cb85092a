#include "passes/fuse_launches.h"

#include "ir/plan/windows.h"
#include "ir/support/units.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>

// A gelu whose operand backward reads as well reads what the product before it has just written, which one launch
// saves. Searches for orders, remats and layouts see two instructions, so that a gelu can be made again without its
// product. They are fused where that costs no byte: the gelu is written as early as its product if its bytes are free
// from there on and the peak stays where it is. Everything else keeps its place.

namespace plimsoll {
namespace {

class Fuser {
 public:
  Fuser(Plan& plan, size_t function, const KernelCatalog& catalog)
      : plan_(plan), index_(static_cast<int32_t>(function)), function_(plan.functions[function]), catalog_(catalog) {}

  // Instructions behind one that goes change their indices, so the last are looked at first.
  bool run() {
    for (auto at = static_cast<int32_t>(function_.instructions.size()); at-- > 0;)
      if (function_.instructions[static_cast<size_t>(at)].op == "gelu") try_gelu(at);
    if (fused_ > 0)
      plan_.decisions.push_back({"fuse-launches", function_.name,
                                 std::to_string(fused_) + (fused_ == 1 ? " gelu" : " gelus") + " by their products",
                                 "saves " + format_us(saved_us_)});
    return fused_ > 0;
  }

 private:
  const Slot& slot(SlotId id) const { return plan_.slots[static_cast<size_t>(id)]; }
  Instruction& instruction(int32_t at) { return function_.instructions[static_cast<size_t>(at)]; }

  void try_gelu(int32_t at) {
    const Instruction& gelu = instruction(at);
    const SlotId h = gelu.operands[0], y = gelu.results[0];
    const int32_t before = slot(h).view_of < 0 && slot(h).function == index_ ? slot(h).first : -1;
    if (before < 0 || before >= at) return;
    const Instruction& linear = instruction(before);
    if (linear.op != "linear" || linear.results[0] != h || linear.phase != gelu.phase || gelu.workspace >= 0) return;
    if (linear.operands.size() > addend && linear.operands[addend] >= 0) return;
    if (!is_transient(y) || !is_free(y, before, at) || !is_below_peak(y, before, at)) return;
    Instruction fused = fused_instruction(linear, gelu);
    if (!choose_kernel(fused, linear)) return;
    saved_us_ += linear.predicted_us + gelu.predicted_us - fused.predicted_us;
    ++fused_;
    instruction(before) = std::move(fused);
    for (size_t id = 0; id < plan_.slots.size(); ++id)
      if (plan_.storage_of(static_cast<SlotId>(id)) == y) plan_.slots[id].first = before;
    remove(at);
  }

  // Does it have bytes of its own, among those of the function?
  bool is_transient(SlotId id) const {
    const Slot& s = slot(id);
    return s.view_of < 0 && s.in_place_of < 0 && s.part_of < 0 && s.space == MemorySpace::Device &&
           s.offset >= plan_.arenas.front().persistent_bytes;
  }

  // Is no byte of it in use from instruction `first` on until `last`, where it is written so far?
  bool is_free(SlotId id, int32_t first, int32_t last) const {
    const Slot& own = slot(id);
    return llvm::none_of(plan_.slots, [&](const Slot& s) {
      return s.function == index_ && s.first < last && s.last >= first && share_bytes(plan_, s, own);
    });
  }

  // A peak counts results over their operands once, which here may count twice.
  bool is_below_peak(SlotId id, int32_t first, int32_t last) const {
    std::vector<int64_t> live(static_cast<size_t>(last - first), slot(id).bytes);
    for (const Slot& s : plan_.slots) {
      if (s.space != MemorySpace::Device || s.view_of >= 0 || s.part_of >= 0 ||
          (s.function != -1 && s.function != index_))
        continue;
      const int32_t from = s.function == -1 ? first : std::max(s.first, first),
                    to = s.function == -1 ? last - 1 : std::min(s.last, last - 1);
      for (int32_t at = from; at <= to; ++at) live[static_cast<size_t>(at - first)] += s.bytes;
    }
    return *std::max_element(live.begin(), live.end()) <= function_.peak_live_bytes;
  }

  static Instruction fused_instruction(const Instruction& linear, const Instruction& gelu) {
    Instruction fused = linear;
    fused.op = "linear_gelu";
    fused.attrs = {};
    if (linear.attrs.has("transpose_w")) fused.attrs.set("transpose_w", linear.attrs.get_int("transpose_w"));
    if (gelu.attrs.has("approximate")) fused.attrs.set("approximate", gelu.attrs.get_string("approximate").str());
    fused.operands.resize(std::min(fused.operands.size(), addend));
    fused.results.push_back(gelu.results[0]);
    fused.flops += gelu.flops;
    return fused;
  }

  std::vector<KernelCandidate> kernels_of(const Instruction& call) const {
    llvm::SmallVector<const Type*, 4> types;
    for (SlotId operand : call.operands) types.push_back(operand < 0 ? nullptr : &slot(operand).type);
    Types results;
    for (SlotId result : call.results) results.push_back(slot(result).type);
    const OpDef& op = get_op(call.op);
    return catalog_.candidates(op, OpCall(op, call.attrs, types), results);
  }

  // It may have the workspace that the product was to have. False: the fastest kernel is the product's with a launch
  // behind it, and has its name.
  bool choose_kernel(Instruction& fused, const Instruction& linear) const {
    const KernelCandidate kernel = kernels_of(fused).front();
    const auto is_chosen = [&](const KernelCandidate& each) { return each.name == kernel.name; };
    const int64_t bytes = fused.workspace < 0 ? 0 : slot(fused.workspace).bytes;
    if (llvm::any_of(kernels_of(linear), is_chosen) || kernel.workspace_bytes > bytes) return false;
    fused.kernel = kernel.name;
    fused.predicted_us = kernel.predicted_us;
    fused.bytes_moved += slot(fused.results.back()).bytes;
    return true;
  }

  // What is in use at that instruction alone is so at the one before it.
  void remove(int32_t at) {
    const auto behind = [&](int32_t& position) { position -= position >= at; };
    function_.instructions.erase(function_.instructions.begin() + at);
    for (Slot& s : plan_.slots) {
      if (s.function != index_) continue;
      behind(s.first);
      behind(s.last);
    }
    for (Instruction& each : function_.instructions) each.done -= each.done > at;
    for (PlanGradient& gradient : plan_.gradients)
      if (gradient.function == index_) behind(gradient.instruction);
    behind(function_.peak_instruction);
  }

  static constexpr size_t addend = 3;  // of a linear layer's operands

  Plan& plan_;
  const int32_t index_;
  PlanFunction& function_;
  const KernelCatalog& catalog_;
  int64_t fused_ = 0;
  double saved_us_ = 0;
};

}  // namespace

bool fuse_launches(Plan& plan, const KernelCatalog& catalog) {
  bool any = false;
  for (size_t f = 0; f < plan.functions.size(); ++f) any |= Fuser(plan, f, catalog).run();
  return any;
}

}  // namespace plimsoll
