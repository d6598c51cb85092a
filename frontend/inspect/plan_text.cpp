#include "frontend/inspect/print.h"
#include "ir/plan/check_ranks.h"
#include "ir/support/units.h"
#include "ir/text.h"

#include "llvm/Support/Format.h"

// Writes `inspect --text`, which docs/plan_form.md describes. It is for people and diff tools; nothing parses it.

namespace plimsoll {
namespace {

class TextForm {
 public:
  TextForm(llvm::raw_ostream& out, const Plan& plan, llvm::ArrayRef<std::string> placements)
      : out_(out), plan_(plan), placements_(placements) {}

  void print() {
    out_ << "plan " << plan_.model << " for " << plan_.device.name << " format " << plan_format_version << "\n";
    if (!plan_.pipeline.schedule.empty())
      out_ << "stage " << plan_.stage << " of " << to_string(plan_.mesh) << ", " << plan_.pipeline.schedule << " with "
           << plan_.pipeline.micro_batches << " micro-batches\n";
    for (const RankKind& kind : plan_.kinds) {
      out_ << "device " << kind.device.name << " budget " << kind.budget_bytes << " bytes, ranks";
      for (int64_t rank : kind.ranks) out_ << " " << rank;
      out_ << "\n";
    }
    for (const Arena& arena : plan_.arenas) print_arena(arena);
    for (const Reserve& reserve : plan_.device.reserves)
      out_ << "reserve \"" << reserve.name << "\" " << reserve.bytes << " bytes\n";
    out_ << "\n";
    for (const PlanState& state : plan_.states) print_state(state);
    for (const PlanConstant& constant : plan_.constants) {
      out_ << "constant ";
      print_slot(constant.slot);
      out_ << "\n";
    }
    for (size_t i = 0; i < plan_.functions.size(); ++i) print_function(plan_.functions[i]);
    if (!plan_.decisions.empty()) out_ << "\n";
    for (const Decision& decision : plan_.decisions)
      out_ << "decision " << decision.pass << " " << decision.subject << ": " << decision.choice << "; "
           << decision.reason << "\n";
  }

 private:
  const Slot& slot(SlotId id) const { return plan_.slots[id]; }

  void print_arena(const Arena& arena) {
    out_ << "arena " << space_name(arena.space) << " " << arena.bytes << " bytes, persistent " << arena.persistent_bytes
         << ", peak live " << arena.peak_live_bytes << ", budget " << arena.budget_bytes << "\n";
    for (const PageWindow& window : arena.windows) {
      out_ << "window @ " << window.offset << ", pages of " << arena.page_bytes << " bytes:";
      for (int64_t page : window.pages) out_ << " " << page;
      out_ << "\n";
    }
  }

  // Prints "%h.3 : f32[8,64] @ 1024", and the slot that it is a view of or takes its bytes from.
  void print_slot(SlotId id) {
    const Slot& s = slot(id);
    out_ << "%" << s.name << " : " << to_string(s.type) << " @ ";
    if (s.space == MemorySpace::Host) out_ << "host ";
    out_ << s.offset;
    if (s.view_of >= 0) out_ << " view of %" << slot(s.view_of).name;
    if (s.in_place_of >= 0) out_ << " over %" << slot(s.in_place_of).name;
    if (s.part_of >= 0) out_ << " in %" << slot(s.part_of).name;
    if (const std::string& placement = placements_[static_cast<size_t>(id)]; !placement.empty())
      out_ << " [" << placement << "]";
  }

  void print_state(const PlanState& state) {
    out_ << "state ";
    print_slot(state.slot);
    out_ << " " << role_name(state.role) << (state.trained ? " trained" : "")
         << (state.channels_last ? " channels last" : "");
    switch (state.init.kind) {
      case StateInit::Kind::Weights: out_ << " from \"" << state.init.source << "\""; break;
      case StateInit::Kind::Fill: out_ << " filled with " << llvm::format("%g", state.init.fill); break;
      case StateInit::Kind::CopyOf: out_ << " copy of %" << state.init.source; break;
      case StateInit::Kind::TransposeOf: out_ << " transpose of %" << state.init.source; break;
    }
    if (!state.divisions.empty()) out_ << ", of " << to_string(llvm::ArrayRef<Division>(state.divisions));
    out_ << "\n";
  }

  void print_function(const PlanFunction& function) {
    out_ << "\nfunction " << function.name << ": " << function.instructions.size() << " instructions, transient "
         << function.transient_bytes << " bytes, peak live " << function.peak_live_bytes << " at "
         << function.peak_instruction << "\n";
    for (const PlanInput& input : function.inputs) {
      out_ << "  input ";
      print_slot(input.slot);
      if (input.whole) out_ << " whole";
      out_ << "\n";
    }
    for (size_t i = 0; i < function.instructions.size(); ++i) print_instruction(i, function.instructions[i]);
    for (const PlanOutput& output : function.outputs)
      out_ << "  output " << output.name << " = %" << slot(output.slot).name
           << (output.use == OutputUse::Whole ? "" : " " + use_name(output.use).str()) << "\n";
    for (const PlanUpdate& update : function.updates)
      out_ << "  update %" << slot(update.state).name << " <- %" << slot(update.value).name << "\n";
  }

  void print_instruction(size_t index, const Instruction& instruction) {
    out_ << llvm::format("%5zu  ", index);
    for (size_t i = 0; i < instruction.results.size(); ++i) {
      if (i > 0) out_ << ", ";
      print_slot(instruction.results[i]);
    }
    out_ << " = " << instruction.op << "(";
    for (size_t i = 0; i < instruction.operands.size(); ++i) {
      if (i > 0) out_ << ", ";
      instruction.operands[i] < 0 ? out_ << "_" : out_ << "%" << slot(instruction.operands[i]).name;
    }
    out_ << ")";
    if (std::string attrs = to_text(instruction.attrs); !attrs.empty()) out_ << " " << attrs;
    out_ << " on " << instruction.kernel << ", " << phase_name(instruction.phase)
         << llvm::format(", %.1f us", instruction.predicted_us);
    if (instruction.workspace >= 0)
      out_ << ", workspace " << slot(instruction.workspace).bytes << " @ " << slot(instruction.workspace).offset;
    if (instruction.done >= 0) out_ << ", done before " << instruction.done;
    for (SlotId result : instruction.results)
      if (!slot(result).reason.empty()) out_ << "  // %" << slot(result).name << " " << slot(result).reason;
    if (!instruction.reason.empty()) out_ << "  // " << instruction.reason;
    out_ << "\n";
  }

  llvm::raw_ostream& out_;
  const Plan& plan_;
  llvm::ArrayRef<std::string> placements_;  // by slot
};

}  // namespace

void print_plan_text(llvm::raw_ostream& out, const Plan& plan) {
  const std::vector<std::vector<std::string>> placements = placements_of(plan);
  for (const Plan* stage : plan.stages()) {
    if (stage->stage > 0) out << "\n";
    TextForm(out, *stage, placements[static_cast<size_t>(stage->stage)]).print();
  }
}

}  // namespace plimsoll
