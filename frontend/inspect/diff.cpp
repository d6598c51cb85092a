#include "frontend/inspect/text_table.h"
#include "ir/plan/summary.h"
#include "ir/support/units.h"

#include "llvm/ADT/StringMap.h"

#include <algorithm>
#include <cmath>

// `inspect PLAN --diff PLAN2` prints totals first, then the values that are new, gone or changed, largest first.

namespace plimsoll {
namespace {

constexpr int label_columns = 28, value_columns = 14;
constexpr size_t max_values = 15;

std::string signed_bytes(int64_t change) {
  return change == 0 ? "same" : (change > 0 ? "+" : "-") + format_bytes(std::llabs(change));
}

std::string signed_us(double change) {
  return change == 0 ? "same" : (change > 0 ? "+" : "-") + format_us(std::fabs(change));
}

struct Change {
  std::string text;
  int64_t bytes;  // the size of the value; larger values come first
};

class Diff {
 public:
  Diff(llvm::raw_ostream& out, const Plan& before, const Plan& after, const ReportOptions& options)
      : table_(out, options), before_(before), after_(after) {}

  void print() {
    table_.line(table_.styled(Style::Strong, left("", label_columns) + right("before", value_columns) +
                                                 right("after", value_columns) + right("change", value_columns)));
    totals();
    categories(MemorySpace::Device);
    if (before_.arenas.size() > 1 || after_.arenas.size() > 1) categories(MemorySpace::Host);
    instructions();
    values();
  }

 private:
  void bytes_row(llvm::StringRef label, int64_t before, int64_t after) {
    if (before == 0 && after == 0) return;
    row(label, format_bytes(before), format_bytes(after), signed_bytes(after - before), after - before);
  }

  void row(llvm::StringRef label, llvm::StringRef before, llvm::StringRef after, llvm::StringRef change, double sign) {
    Style style = sign > 0 ? Style::Warn : sign < 0 ? Style::Good : Style::Quiet;
    table_.line(left(label, label_columns) + right(before, value_columns) + right(after, value_columns) +
                table_.styled(style, right(change, value_columns)));
  }

  static int64_t arena_bytes(const Plan& plan, MemorySpace space, int64_t Arena::*field) {
    for (const Arena& arena : plan.arenas)
      if (arena.space == space) return arena.*field;
    return 0;
  }

  void totals() {
    bytes_row("promised", before_.promised_bytes(), after_.promised_bytes());
    auto device = [](const Plan& plan, int64_t Arena::*field) { return arena_bytes(plan, MemorySpace::Device, field); };
    bytes_row("budget", device(before_, &Arena::budget_bytes), device(after_, &Arena::budget_bytes));
    bytes_row("peak of live bytes", device(before_, &Arena::peak_live_bytes), device(after_, &Arena::peak_live_bytes));
    TimeSummary before = summarize_time(before_), after = summarize_time(after_);
    row("predicted step", format_us(before.step_us), format_us(after.step_us),
        signed_us(after.step_us - before.step_us), after.step_us - before.step_us);
  }

  void categories(MemorySpace space) {
    SpaceSummary before = summarize_space(before_, space), after = summarize_space(after_, space);
    table_.heading((space_name(space) + " bytes at the peak").str());
    for (int i = 0; i < category_count; ++i) {
      auto category = static_cast<Category>(i);
      bytes_row(category_name(category), before.at_peak[category], after.at_peak[category]);
    }
  }

  // Prints how many instructions of each op the plans have where the numbers differ.
  void instructions() {
    llvm::StringMap<std::pair<int64_t, int64_t>> counts;
    for (const PlanFunction& function : before_.functions)
      for (const Instruction& instruction : function.instructions) ++counts[instruction.op].first;
    for (const PlanFunction& function : after_.functions)
      for (const Instruction& instruction : function.instructions) ++counts[instruction.op].second;
    std::vector<std::string> ops;
    for (const auto& entry : counts)
      if (entry.second.first != entry.second.second) ops.push_back(entry.first().str());
    if (ops.empty()) return;
    std::sort(ops.begin(), ops.end());
    table_.heading("instructions");
    for (const std::string& op : ops) {
      auto [before, after] = counts[op];
      int64_t change = after - before;
      row(op, format_count(before), format_count(after), (change > 0 ? "+" : "") + format_count(change),
          static_cast<double>(change));
    }
  }

  using SlotsByName = llvm::StringMap<const Slot*>;

  static SlotsByName by_name(const Plan& plan) {
    SlotsByName slots;
    for (const Slot& slot : plan.slots)
      if (adds_bytes(plan, slot)) slots.try_emplace(key(plan, slot), &slot);
    return slots;
  }

  static std::string key(const Plan& plan, const Slot& slot) {
    return slot.function < 0 ? slot.name : plan.functions[slot.function].name + "/" + slot.name;
  }

  void list(llvm::StringRef title, std::vector<Change> changes) {
    if (changes.empty()) return;
    std::stable_sort(changes.begin(), changes.end(),
                     [](const Change& a, const Change& b) { return a.bytes > b.bytes; });
    table_.heading(title, format_count(static_cast<int64_t>(changes.size())));
    for (size_t i = 0; i < changes.size() && i < max_values; ++i)
      table_.line("  " + clipped(changes[i].text, table_.columns() - 2));
    if (changes.size() > max_values)
      table_.line("  " +
                  table_.styled(Style::Quiet,
                                "and " + format_count(static_cast<int64_t>(changes.size() - max_values)) + " more"));
  }

  void values() {
    SlotsByName old = by_name(before_), now = by_name(after_);
    std::vector<Change> gone, fresh, changed;
    for (const Slot& slot : before_.slots)
      if (adds_bytes(before_, slot) && !now.count(key(before_, slot))) gone.push_back(describe(slot));
    for (const Slot& slot : after_.slots) {
      if (!adds_bytes(after_, slot)) continue;
      auto at = old.find(key(after_, slot));
      if (at == old.end()) {
        fresh.push_back(describe(slot));
        continue;
      }
      const Slot& was = *at->second;
      std::string text;
      if (was.type != slot.type) text += "  " + to_string(was.type) + " -> " + to_string(slot.type);
      if (was.category != slot.category)
        text += "  " + category_name(was.category).str() + " -> " + category_name(slot.category).str();
      if (was.space != slot.space) text += "  to the " + space_name(slot.space).str();
      if (!text.empty()) changed.push_back({"%" + slot.name + text, slot.bytes});
    }
    list("values that are gone", std::move(gone));
    list("values that are new", std::move(fresh));
    list("values whose type, category or memory changed", std::move(changed));
  }

  static Change describe(const Slot& slot) {
    return {left("%" + slot.name, 44) + right(format_bytes(slot.bytes), 11) + "  " + category_name(slot.category).str(),
            slot.bytes};
  }

  TextTable table_;
  const Plan &before_, &after_;
};

}  // namespace

void print_diff(llvm::raw_ostream& out, const Plan& before, const Plan& after, const ReportOptions& options) {
  Diff(out, before, after, options).print();
}

}  // namespace plimsoll
