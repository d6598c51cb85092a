#include "frontend/driver/profile_table.h"

#include "frontend/inspect/text_table.h"
#include "ir/plan/summary.h"
#include "ir/support/units.h"

#include "llvm/Support/FormatVariadic.h"

#include <algorithm>

namespace plimsoll {
namespace {

constexpr int name_columns = 34;
constexpr size_t gaps_shown = 10;

std::string percent(double part, double whole) {
  return llvm::formatv("{0:f1}", 100 * part / std::max(whole, 1e-9)).str();
}

std::string rate(double amount, double us, double unit, const char* format) {
  return llvm::formatv(format, amount / std::max(us, 1e-9) / unit).str();
}

}  // namespace

ProfileTable::Row& ProfileTable::Row::operator+=(const Row& other) {
  count += other.count;
  measured_us += other.measured_us, predicted_us += other.predicted_us;
  flops += other.flops, bytes += other.bytes;
  roofline_us += other.roofline_us, memory_us += other.memory_us, launch_us += other.launch_us;
  matrix_us += other.matrix_us, vector_us += other.vector_us;
  return *this;
}

void ProfileTable::add(size_t function, llvm::ArrayRef<double> times) {
  const int64_t runs = plan_.calls_per_step(function);
  const auto calls = static_cast<double>(runs);
  const std::vector<Instruction>& instructions = plan_.functions[function].instructions;
  for (size_t i = 0; i < instructions.size(); ++i) {
    const Instruction& each = instructions[i];
    Row row{runs, calls * times[i], calls * each.predicted_us, calls * each.flops,
            calls * static_cast<double>(each.bytes_moved)};
    const OpDef* op = find_op(each.op);
    if (op && op->engine == Engine::Compute) {
      const Ceilings ceilings = ceilings_of(plan_, each);
      row.roofline_us = calls * ceilings.roofline_us();
      row.memory_us = calls * ceilings.memory_us;
      (ceilings.is_on_matrix_units ? row.matrix_us : row.vector_us) = calls * ceilings.compute_us;
      const double alone_us = std::max(ceilings.memory_us, ceilings.compute_us);
      row.launch_us = ceilings.launch_us > 0 ? calls * plan_.device.beside_us(alone_us) : 0;
    } else {
      row.roofline_us = row.measured_us;  // links have no ceiling here
    }
    rows_[each.op + "/" + each.kernel] += row;
  }
}

void ProfileTable::print(Console& console) const {
  std::vector<NamedRow> rows(rows_.begin(), rows_.end());
  print_all(rows, console);
  print_gaps(std::move(rows), console);
}

void ProfileTable::print_all(std::vector<NamedRow> rows, Console& console) const {
  llvm::stable_sort(rows,
                    [](const NamedRow& a, const NamedRow& b) { return a.second.measured_us > b.second.measured_us; });
  Row total;
  for (const auto& [name, row] : rows) total += row;
  TextTable table(console.out, {console.columns, console.out_is_terminal});
  const bool has_stages = plan_.mesh[MeshAxis::Stage] > 1;
  table.heading(has_stages ? "one step of the first stage, op by op" : "one step, op by op");
  table.line(table.styled(Style::Strong, left("op/kernel", name_columns) + right("times", 6) + right("measured", 11) +
                                             right("predicted", 11) + right("%", 7) + right("roofline %", 12) +
                                             right("TFLOP/s", 9) + right("GB/s", 8)));
  const auto line = [&](const std::string& name, const Row& row) {
    table.line(left(name, name_columns) + right(std::to_string(row.count), 6) + right(format_us(row.measured_us), 11) +
               right(format_us(row.predicted_us), 11) + right(percent(row.measured_us, total.measured_us), 7) +
               right(percent(row.roofline_us, row.measured_us), 12) +
               right(rate(row.flops, row.measured_us, 1e6, "{0:f1}"), 9) +
               right(rate(row.bytes, row.measured_us, 1e3, "{0:f0}"), 8));
  };
  for (const auto& [name, row] : rows) line(name, row);
  line("total", total);
}

void ProfileTable::print_gaps(std::vector<NamedRow> rows, Console& console) const {
  llvm::erase_if(rows, [](const NamedRow& row) { return row.second.above_us() <= 0; });
  llvm::stable_sort(rows,
                    [](const NamedRow& a, const NamedRow& b) { return a.second.above_us() > b.second.above_us(); });
  if (rows.empty()) return;
  if (rows.size() > gaps_shown) rows.resize(gaps_shown);
  TextTable table(console.out, {console.columns, console.out_is_terminal});
  table.heading("furthest above their roofline");
  table.line(table.styled(Style::Strong, left("op/kernel", name_columns) + right("above it", 11) +
                                             right("measured", 11) + "  what limits it"));
  for (const auto& [name, row] : rows)
    table.line(left(name, name_columns) + right(format_us(row.above_us()), 11) + right(format_us(row.measured_us), 11) +
               "  " + limit_of(row));
}

// Launches where they take half of the time by themselves; else the ceiling that is nearest.
std::string ProfileTable::limit_of(const Row& row) {
  if (2 * row.launch_us > row.measured_us)
    return "launches: " + format_us(row.measured_us / static_cast<double>(row.count)) + " a call";
  const double nearest_us = std::max({row.memory_us, row.matrix_us, row.vector_us});
  const char* name = nearest_us == row.memory_us   ? "memory"
                     : nearest_us == row.matrix_us ? "matrix units"
                                                   : "arithmetic";
  return std::string(name) + ", at " + percent(nearest_us, row.measured_us) + " % of the device's rate";
}

}  // namespace plimsoll
