#include "frontend/driver/profile.h"

#include "frontend/driver/profile_table.h"
#include "frontend/inspect/text_table.h"
#include "ir/machine/timing_cache.h"
#include "ir/plan/summary.h"
#include "ir/support/units.h"
#include "ir/text.h"
#include "runtime/comm/communicator.h"

#include "llvm/Support/FormatVariadic.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace plimsoll {
namespace {

// Averages the times of equal calls.
void add_to_cache(const Plan& plan, size_t f, llvm::ArrayRef<double> times, TimingCache& cache) {
  std::map<std::string, std::pair<double, int>> sums;
  for (bool second : {false, true})
    for (size_t i = 0; i < times.size(); ++i) {
      const Instruction& instruction = plan.functions[f].instructions[i];
      llvm::SmallVector<const Type*, 6> types;
      std::string key = instruction.op + "/" + instruction.kernel + to_text(instruction.attrs);
      for (SlotId operand : instruction.operands) {
        types.push_back(operand < 0 ? nullptr : &plan.slots[operand].type);
        key += operand < 0 ? "-" : to_string(*types.back());
      }
      auto& [sum, count] = sums[key];
      if (second)
        cache.add(plan.device.name, instruction.op, instruction.kernel,
                  OpCall(get_op(instruction.op), instruction.attrs, types), sum / count);
      else
        sum += times[i], ++count;
    }
}

// One collective of a function.
struct CollectiveRow {
  std::string name;
  int64_t bytes = 0;
  double predicted_us = 0, measured_us = 0;
};

void add_collectives(const Plan& plan, size_t f, llvm::ArrayRef<double> times, std::vector<CollectiveRow>& rows) {
  const std::string stage = plan.mesh[MeshAxis::Stage] > 1 ? "stage " + std::to_string(plan.stage) + " " : "";
  const std::vector<Instruction>& instructions = plan.functions[f].instructions;
  for (size_t i = 0; i < instructions.size(); ++i)
    if (const Instruction& each = instructions[i]; communicates(each))
      rows.push_back({stage + each.op + " %" + plan.slots[static_cast<size_t>(each.results.front())].name,
                      collective_bytes(plan, each), each.predicted_us, times[i]});
}

// A line each, the name last.
std::string to_lines(llvm::ArrayRef<CollectiveRow> rows) {
  std::string text;
  for (const CollectiveRow& row : rows)
    text += std::to_string(row.bytes) + " " + std::to_string(row.predicted_us) + " " + std::to_string(row.measured_us) +
            " " + row.name + "\n";
  return text;
}

void add_lines(llvm::StringRef text, std::vector<CollectiveRow>& rows) {
  while (!text.empty()) {
    llvm::StringRef line;
    std::tie(line, text) = text.split('\n');
    CollectiveRow& row = rows.emplace_back();
    llvm::StringRef bytes, predicted, measured, name;
    std::tie(bytes, line) = line.split(' ');
    std::tie(predicted, line) = line.split(' ');
    std::tie(measured, name) = line.split(' ');
    (void)bytes.getAsInteger(10, row.bytes);
    (void)predicted.getAsDouble(row.predicted_us);
    (void)measured.getAsDouble(row.measured_us);
    row.name = name.str();
  }
}

// Those of the first rank of every stage.
Result<std::vector<CollectiveRow>> of_all_stages(std::vector<CollectiveRow> own, const Plan& plan,
                                                 Communicator* ranks) {
  if (!ranks || plan.mesh[MeshAxis::Stage] == 1) return own;
  std::string text = to_lines(own);
  const auto length = static_cast<int64_t>(text.size());
  std::vector<int64_t> lengths(static_cast<size_t>(ranks->ranks()));
  if (Status s = ranks->gather_all(&length, lengths.data(), sizeof length)) return s;
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  std::string all(lengths.size() * static_cast<size_t>(longest), '\0');
  text.resize(static_cast<size_t>(longest));
  if (Status s = ranks->gather_all(text.data(), all.data(), longest)) return s;
  own.clear();
  for (int64_t rank = 0; rank < ranks->ranks(); rank += plan.mesh.ranks_per_stage())
    add_lines(llvm::StringRef(all).substr(static_cast<size_t>(rank * longest),
                                          static_cast<size_t>(lengths[static_cast<size_t>(rank)])),
              own);
  return own;
}

// A small collective that waits for a busy rank takes thousands of times longer than it is predicted to.
std::string times_of(double measured_us, double predicted_us) {
  constexpr double most = 999;
  const double times = measured_us / std::max(predicted_us, 1e-9);
  return times <= most ? llvm::formatv("{0:f2}", times).str() : "> 999";
}

// The largest ones, each alone: without computing beside it and without the neighbours it is launched with in a step.
void print_collectives(std::vector<CollectiveRow> rows, Console& console) {
  if (rows.empty()) return;
  constexpr size_t shown = 40;
  llvm::stable_sort(rows, [](const CollectiveRow& a, const CollectiveRow& b) { return a.bytes > b.bytes; });
  TextTable table(console.out, {console.columns, console.out_is_terminal});
  table.heading("collectives, each alone");
  auto line = [&](llvm::StringRef name, int64_t bytes, double measured_us, double predicted_us) {
    table.line(left(clipped_middle(name, 44), 45) + right(format_bytes(bytes), 11) + right(format_us(measured_us), 11) +
               right(format_us(predicted_us), 11) + right(times_of(measured_us, predicted_us), 8));
  };
  table.line(table.styled(Style::Strong, left("collective", 45) + right("bytes", 11) + right("measured", 11) +
                                             right("predicted", 11) + right("times", 8)));
  CollectiveRow rest, total;
  for (size_t i = 0; i < rows.size(); ++i) {
    const CollectiveRow& row = rows[i];
    if (i < shown) line(row.name, row.bytes, row.measured_us, row.predicted_us);
    for (CollectiveRow* sum : {&rest, &total}) {
      if (sum == &rest && i < shown) continue;
      sum->bytes += row.bytes;
      sum->measured_us += row.measured_us;
      sum->predicted_us += row.predicted_us;
    }
  }
  if (rows.size() > shown)
    line("and " + std::to_string(rows.size() - shown) + " more", rest.bytes, rest.measured_us, rest.predicted_us);
  line("all " + std::to_string(rows.size()), total.bytes, total.measured_us, total.predicted_us);
}

}  // namespace

Status profile_step(Session& session, Communicator* ranks, const std::string& path, Console& console) {
  Result<TimingCache> cache = TimingCache::load_if_there(path);
  if (!cache) return cache.takeError();
  ProfileTable table(session.plan());
  std::vector<CollectiveRow> collectives;
  for (size_t f = 0; f < session.plan().functions.size(); ++f) {
    if (session.plan().calls_per_step(f) == 0) continue;
    Result<llvm::ArrayRef<double>> times = session.executor().times(f, Executor::Launches::InStep);
    if (!times) return times.takeError();
    table.add(f, *times);
    times = session.executor().times(f);
    if (!times) return times.takeError();
    add_collectives(session.plan(), f, *times, collectives);
    add_to_cache(session.plan(), f, *times, *cache);
  }
  Result<std::vector<CollectiveRow>> of_all = of_all_stages(std::move(collectives), session.plan(), ranks);
  if (!of_all) return of_all.takeError();
  if (session.rank() != 0) return Status::success();
  table.print(console);
  print_collectives(std::move(*of_all), console);
  return cache->save(path);
}

}  // namespace plimsoll
