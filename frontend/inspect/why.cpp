#include "frontend/inspect/text_table.h"
#include "ir/plan/summary.h"
#include "ir/plan/windows.h"
#include "ir/support/did_you_mean.h"
#include "ir/support/units.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>

// `inspect --why NAME` explains one value, from its line in the model to its bytes.

namespace plimsoll {
namespace {

constexpr int label_columns = 14;
constexpr size_t max_readers = 12, max_values = 20, max_runs = 6;

class Why {
 public:
  Why(llvm::raw_ostream& out, const Plan& plan, const ReportOptions& options)
      : table_(out, options), plan_(plan), device_(summarize_space(plan, MemorySpace::Device)) {}

  void print(SlotId id) {
    const Slot& s = slot(id);
    table_.line(table_.styled(Style::Strong, "%" + s.name) + "  " + to_string(s.type) + "  " + format_bytes(s.bytes) +
                "  " + category_name(s.category).str());
    origin(s);
    kind(id);
    place(id);
    life(id);
    readers(id);
    if (!s.reason.empty()) field("because", s.reason);
    sharers(id);
  }

 private:
  const Slot& slot(SlotId id) const { return plan_.slots[id]; }
  const PlanFunction& function(int32_t index) const { return plan_.functions[index]; }

  void field(llvm::StringRef label, llvm::StringRef text) {
    table_.line("  " + table_.styled(Style::Quiet, left(label, label_columns)) + text.str());
  }

  void origin(const Slot& s) {
    if (s.origin < 0) return;
    const Origin& from = plan_.origins[s.origin];
    field("comes from", from.node + (from.op.empty() ? "" : " (" + from.op + ")"));
    if (!from.module.empty()) field("", "module " + from.module);
    if (!from.source.empty()) field("", from.source);
  }

  // Prints the role of a state, constant, input, output or gradient.
  void kind(SlotId id) {
    for (const PlanState& state : plan_.states) {
      if (state.slot != id) continue;
      std::string text = role_name(state.role).str() + (state.role != StateRole::Parameter ? ""
                                                        : state.trained                    ? ", trained"
                                                                                           : ", frozen");
      if (state.init.kind == StateInit::Kind::Weights) text += ", starts from the weight " + state.init.source;
      if (state.init.kind == StateInit::Kind::CopyOf) text += ", starts as a copy of %" + state.init.source;
      if (state.init.kind == StateInit::Kind::TransposeOf) text += ", is the transpose of %" + state.init.source;
      field("is", text);
    }
    for (const PlanConstant& constant : plan_.constants)
      if (constant.slot == id) field("is", "constant, folded at compile time");
    for (const PlanFunction& each : plan_.functions) {
      for (const PlanInput& input : each.inputs)
        if (input.slot == id) field("is", "input " + input.name + " of " + each.name);
      for (const PlanOutput& output : each.outputs)
        if (plan_.storage_of(output.slot) == plan_.storage_of(id))
          field("is", "output " + output.name + " of " + each.name);
      for (const PlanUpdate& update : each.updates)
        if (update.value == id) field("is", "next value of %" + slot(update.state).name);
    }
    for (const PlanGradient& gradient : plan_.gradients)
      if (gradient.slot == id) field("is", "gradient of " + gradient.parameter);
  }

  void place(SlotId id) {
    const Slot& s = slot(id);
    const Arena& arena = plan_.arenas[static_cast<size_t>(s.space)];
    std::vector<std::string> runs;
    for_each_run(arena, s.offset, s.offset + s.bytes,
                 [&](int64_t from, int64_t to) { runs.push_back(format_count(from) + " to " + format_count(to)); });
    std::string text = "bytes ";
    for (size_t i = 0; i < runs.size() && i < max_runs; ++i) text += (i > 0 ? ", " : "") + runs[i];
    if (runs.size() > max_runs) text += " and " + std::to_string(runs.size() - max_runs) + " more runs";
    text += " of the " + space_name(s.space).str() + " arena";
    if (is_in_window(s.offset)) text += ", which a window shows side by side";
    if (s.view_of >= 0) text += ", the bytes of %" + slot(plan_.storage_of(id)).name + " in another shape";
    if (s.in_place_of >= 0) text += ", written over %" + slot(s.in_place_of).name;
    if (const SlotId whole = slot(plan_.storage_of(id)).part_of; whole >= 0)
      text += ", among those of %" + slot(whole).name;
    field("lies at", text);
  }

  std::string name_instruction(const PlanFunction& in, int32_t index) const {
    const Instruction& instruction = in.instructions[index];
    return std::to_string(index) + " " + describe(plan_, instruction) + " (" + phase_name(instruction.phase).str() +
           ")";
  }

  void life(SlotId id) {
    const Slot& s = slot(plan_.storage_of(id));
    bool at_peak =
        s.space == MemorySpace::Device && is_live_at(plan_, s, device_.peak_function, device_.peak_instruction);
    std::string peak =
        s.space == MemorySpace::Device ? at_peak ? ", alive at the peak" : ", not alive at the peak" : "";
    if (s.function < 0) return field("lives", "from one step to the next" + peak);
    const PlanFunction& in = function(s.function);
    size_t count = in.instructions.size();
    double share = static_cast<double>(s.last - s.first + 1) / static_cast<double>(std::max<size_t>(count, 1));
    field("lives", "in " + in.name + " for " + format_share(share) + " of its " +
                       format_count(static_cast<int64_t>(count)) + " instructions" + peak);
    if (count == 0) return;
    field("", "from " + name_instruction(in, s.first));
    field("", "to   " + name_instruction(in, s.last));
  }

  void readers(SlotId id) {
    SlotId storage = plan_.storage_of(id);
    std::vector<std::string> texts;
    for (const PlanFunction& in : plan_.functions)
      for (size_t i = 0; i < in.instructions.size(); ++i) {
        bool reads = llvm::any_of(in.instructions[i].operands,
                                  [&](SlotId operand) { return operand >= 0 && plan_.storage_of(operand) == storage; });
        if (!reads) continue;
        std::string text = name_instruction(in, static_cast<int32_t>(i));
        texts.push_back(plan_.functions.size() > 1 ? in.name + " " + text : text);
      }
    if (texts.empty()) return field("read by", "no instruction");
    for (size_t i = 0; i < texts.size() && i < max_readers; ++i) field(i == 0 ? "read by" : "", texts[i]);
    if (texts.size() > max_readers) field("", "and " + std::to_string(texts.size() - max_readers) + " more");
  }

  // Prints which values use these bytes before and after it.
  void sharers(SlotId id) {
    const Slot& s = slot(plan_.storage_of(id));
    if (s.function < 0) return;
    SlotId before = -1, after = -1;
    for (size_t i = 0; i < plan_.slots.size(); ++i) {
      const Slot& other = plan_.slots[i];
      if (other.function != s.function || other.view_of >= 0 || other.part_of >= 0 || !share_bytes(plan_, s, other))
        continue;
      auto candidate = static_cast<SlotId>(i);
      if (candidate == plan_.storage_of(id)) continue;
      if (other.last <= s.first && (before < 0 || other.last > slot(before).last)) before = candidate;
      if (other.first >= s.last && (after < 0 || other.first < slot(after).first)) after = candidate;
    }
    if (before >= 0)
      field("before it",
            "%" + slot(before).name + " uses some of its bytes until instruction " + std::to_string(slot(before).last));
    if (after >= 0)
      field("after it",
            "%" + slot(after).name + " uses some of its bytes from instruction " + std::to_string(slot(after).first));
  }

  TextTable table_;
  const Plan& plan_;
  SpaceSummary device_;
};

bool made_by(const Plan& plan, const Slot& slot, llvm::StringRef node) {
  return slot.origin >= 0 && plan.origins[slot.origin].node == node;
}

}  // namespace

Status print_why(llvm::raw_ostream& out, const Plan& plan, llvm::StringRef name, const ReportOptions& options) {
  name.consume_front("%");
  std::vector<SlotId> found;
  for (size_t i = 0; i < plan.slots.size(); ++i)
    if (plan.slots[i].name == name) found.push_back(static_cast<SlotId>(i));
  for (const PlanFunction& function : plan.functions)
    for (const PlanOutput& output : function.outputs)
      if (output.name == name && !llvm::is_contained(found, output.slot)) found.push_back(output.slot);
  if (found.empty())
    for (size_t i = 0; i < plan.slots.size(); ++i)
      if (made_by(plan, plan.slots[i], name)) found.push_back(static_cast<SlotId>(i));
  if (found.empty()) {
    std::vector<llvm::StringRef> names;
    for (const Slot& slot : plan.slots) names.push_back(slot.name);
    for (const Origin& origin : plan.origins) names.push_back(origin.node);
    std::vector<std::string> near = did_you_mean(name, names, 5);
    return usage_error("no value or node is called \"" + name + "\"" +
                       (near.empty() ? "" : "; similar: " + llvm::join(near, ", ")));
  }
  Why why(out, plan, options);
  for (size_t i = 0; i < found.size() && i < max_values; ++i) {
    if (i > 0) out << "\n";
    why.print(found[i]);
  }
  if (found.size() > max_values) out << "\nand " << found.size() - max_values << " more values of that node\n";
  return Status::success();
}

}  // namespace plimsoll
