#include "frontend/inspect/plan_data.h"

#include "frontend/inspect/memory_curve.h"
#include "ir/plan/windows.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/JSON.h"

namespace plimsoll {
namespace {

namespace json = llvm::json;

constexpr llvm::StringLiteral colors[category_count] = {"#3b6ea5", "#b5651d", "#6b8fbf", "#9aa5b1", "#2e7d5b",
                                                        "#d9a441", "#8e5ea2", "#4fa3a5", "#c97b84", "#7aa95c"};

void write_functions(json::OStream& to, const Plan& plan) {
  for (const PlanFunction& function : plan.functions)
    to.object([&] {
      to.attribute("name", function.name);
      // op, kernel, predicted microseconds
      to.attributeArray("ops", [&] {
        for (const Instruction& each : function.instructions)
          to.array([&] {
            to.value(each.op);
            to.value(each.kernel);
            to.value(each.predicted_us);
          });
      });
    });
}

// name, type, category, offset, bytes, function, first instruction, the one behind the last, 1 where it has bytes of
// its own, index of its origin, reason; once for each run of bytes
void write_values(json::OStream& to, const Plan& plan, MemorySpace space, const Arena& arena) {
  const std::vector<int32_t> ends = ends_of_bytes(plan);
  for (size_t i = 0; i < plan.slots.size(); ++i) {
    const Slot& slot = plan.slots[i];
    if (slot.space != space) continue;
    const auto write_run = [&](int64_t from, int64_t end) {
      to.array([&] {
        to.value(slot.name);
        to.value(to_string(slot.type));
        to.value(static_cast<int64_t>(slot.category));
        for (int64_t number : {from, end - from, int64_t{slot.function}, int64_t{slot.first}, int64_t{ends[i]},
                               int64_t{adds_bytes(plan, slot)}, int64_t{slot.origin}})
          to.value(number);
        to.value(slot.reason);
      });
    };
    for_each_run(arena, slot.offset, slot.offset + slot.bytes, write_run);
  }
}

// The column at which each phase begins, one column per instruction of all functions, and its label.
void write_phases(json::OStream& to, const Plan& plan) {
  std::vector<CurveColumn> columns;
  for (size_t f = 0; f < plan.functions.size(); ++f)
    for (size_t i = 0; i < plan.functions[f].instructions.size(); ++i)
      columns.push_back({{}, static_cast<int32_t>(f), i});
  for (const CurvePhase& phase : phases_of_curve(plan, columns))
    to.array([&] {
      to.value(static_cast<int64_t>(phase.first_column));
      to.value(phase.label);
    });
}

void write_origins(json::OStream& to, const Plan& plan) {
  for (const Origin& origin : plan.origins)
    to.array([&] {
      for (const std::string* text : {&origin.node, &origin.op, &origin.module, &origin.source}) to.value(*text);
    });
}

}  // namespace

llvm::StringRef category_color(Category category) { return colors[static_cast<size_t>(category)]; }

void print_json_script(llvm::raw_ostream& out, llvm::StringRef id, llvm::StringRef json) {
  out << "<script type='application/json' id='" << id << "'>";
  for (char c : json)
    if (c == '<')
      out << "\\u003c";
    else
      out << c;
  out << "</script>\n";
}

void print_plan_data(llvm::raw_ostream& out, const Plan& plan, MemorySpace space, llvm::StringRef id,
                     llvm::StringRef title) {
  const auto arena = llvm::find_if(plan.arenas, [&](const Arena& each) { return each.space == space; });
  std::string text;
  llvm::raw_string_ostream stream(text);
  json::OStream to(stream);
  to.object([&] {
    to.attribute("title", title);
    to.attribute("alignment", plan.device.alignment_bytes);
    to.attribute("space", space_name(space));
    to.attribute("arena_bytes", arena->bytes);
    to.attributeArray("categories", [&] {
      for (int i = 0; i < category_count; ++i) to.value(category_name(static_cast<Category>(i)));
    });
    to.attributeArray("colors", [&] {
      for (llvm::StringRef color : colors) to.value(color);
    });
    to.attributeArray("functions", [&] { write_functions(to, plan); });
    to.attributeArray("phases", [&] { write_phases(to, plan); });
    to.attributeArray("values", [&] { write_values(to, plan, space, *arena); });
    to.attributeArray("origins", [&] { write_origins(to, plan); });
  });
  print_json_script(out, id, stream.str());
}

}  // namespace plimsoll
