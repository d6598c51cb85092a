#include "frontend/inspect/memory_curve.h"
#include "frontend/inspect/mesh_table.h"
#include "frontend/inspect/text_table.h"
#include "ir/plan/summary.h"
#include "ir/support/units.h"

#include <algorithm>
#include <cmath>

// Prints the report that a person reads first. Every number in it is also in the JSON.

namespace plimsoll {
namespace {

constexpr int bytes_columns = 11;

class Report {
 public:
  Report(llvm::raw_ostream& out, const Plan& plan, const ReportOptions& options)
      : table_(out, options),
        plan_(plan),
        label_columns_(options.columns >= 100 ? 36 : 25),
        device_(summarize_space(plan, MemorySpace::Device)) {}

  void print() {
    header();
    if (plan_.arenas.empty()) return;
    stages();
    budget_line();
    categories();
    host();
    curve();
    largest_values();
    time();
    ranks();
    print_mesh_search(table_, plan_);
    decisions();
  }

 private:
  const Arena& arena() const { return plan_.arenas.front(); }

  void header() {
    table_.line(table_.styled(Style::Strong, plan_.model) + " on " + devices_of(plan_));
    table_.line(table_.styled(Style::Quiet, clipped(describe_job(plan_), table_.columns())));
  }

  void budget_line() {
    int64_t promised = plan_.promised_bytes(), budget = arena().budget_bytes;
    std::string text = "needs " + format_bytes(promised);
    table_.line();
    if (!has_budget(plan_)) return table_.line(table_.styled(Style::Strong, text) + ", no budget was set");
    double share = static_cast<double>(promised) / static_cast<double>(budget);
    std::string of = " of " + format_bytes(budget) + ", " + format_bytes(budget - promised) + " to spare  ";
    int columns = std::max(10, table_.columns() - width_of(text + of) - 2);
    std::string filled = bar(share, columns);
    std::string rest = repeated("─", columns - width_of(filled));
    table_.line(table_.styled(Style::Strong, text) + of +
                table_.styled(share > 0.95 ? Style::Warn : Style::Good, filled) + table_.styled(Style::Quiet, rest));
  }

  // One row for each stage of a pipeline. What follows the table is about the first stage.
  void stages() {
    if (plan_.later_stages.empty()) return;
    table_.heading("stages of the pipeline", "of a step of " + format_us(plan_.predicted_step_us));
    auto cells = [&](llvm::ArrayRef<std::string> texts) {
      std::string line = "  " + left(texts.front(), 24);
      for (const std::string& text : texts.drop_front()) line += right(text, 16);
      return line;
    };
    const bool unlike = !plan_.has_one_device();
    table_.line(table_.styled(Style::Quiet, cells({"", "needs", "budget", "computes", "exposed links", "waits"})));
    const std::vector<TimeSummary> times = summarize_stages(plan_);
    const llvm::SmallVector<const Plan*, 4> all = plan_.stages();
    const int64_t ranks = plan_.mesh.ranks() / static_cast<int64_t>(all.size());
    for (size_t i = 0; i < all.size(); ++i) {
      const TimeSummary& time = times[i];
      const double busy = time.step_us - time.awaited_us - time.exposed_us;
      const std::string on =
          (ranks > 1 ? std::to_string(ranks) + (unlike ? " x " : " ranks") : "") + (unlike ? all[i]->device.name : "");
      table_.line(
          cells({"stage " + std::to_string(i) + (on.empty() ? "" : " on ") + on, format_bytes(all[i]->promised_bytes()),
                 format_bytes(all[i]->arenas.front().budget_bytes), format_share(busy / time.step_us),
                 format_share(time.exposed_us / time.step_us), format_share(time.awaited_us / time.step_us)}));
    }
  }

  void row(llvm::StringRef label, int64_t bytes, llvm::StringRef rest = "", Style style = Style::Plain) {
    table_.line("  " + table_.styled(style, left(label, label_columns_) + right(format_bytes(bytes), bytes_columns)) +
                rest.str());
  }

  void categories() {
    table_.heading("device memory", "at the peak, and the largest amount of each category at any time");
    int64_t whole = std::max<int64_t>(plan_.promised_bytes(), 1);
    int bar_columns = std::max(8, table_.columns() - 2 - label_columns_ - 2 * bytes_columns - 12);
    for (int i = 0; i < category_count; ++i) {
      auto category = static_cast<Category>(i);
      if (device_.largest[category] == 0) continue;
      double share = static_cast<double>(device_.at_peak[category]) / static_cast<double>(whole);
      row(category_name(category), device_.at_peak[category],
          right(format_bytes(device_.largest[category]), bytes_columns) + right(format_share(share), 10) + "  " +
              table_.styled(Style::Accent, bar(share, bar_columns)));
    }
    row("packing waste", arena().bytes - arena().peak_live_bytes,
        right("", bytes_columns) + right(format_share(device_.packing_waste), 10), Style::Quiet);
    for (const Reserve& reserve : plan_.device.reserves)
      row("reserve: " + reserve.name, reserve.bytes, "", Style::Quiet);
    row("promised", plan_.promised_bytes(), "", Style::Strong);
    bound();
  }

  // How far the promise is above what the largest instruction needs by itself.
  void bound() {
    const LargestInstruction largest = largest_instruction(plan_);
    if (largest.bytes == 0) return;
    const double above = static_cast<double>(plan_.promised_bytes()) / static_cast<double>(largest.least_bytes) - 1;
    const int columns = table_.columns() - 2 - label_columns_ - 2 * bytes_columns - 12;
    const Instruction& at = plan_.functions[largest.function].instructions[largest.instruction];
    row("bound by the largest op", largest.least_bytes,
        right("", bytes_columns) + right(format_share(above), 10) + "  " + clipped(describe(plan_, at), columns),
        Style::Quiet);
  }

  // What a rank holds of the host beside the program and its checkpoints, and what all ranks of each host do.
  void host() {
    const HostSummary& limit = plan_.host;
    const bool alone = plan_.mesh.ranks() == 1;
    const std::string what = alone ? "the budget is " : "of a rank; the budget of a host is ";
    table_.heading("host memory", limit.budget_bytes > 0 ? what + format_bytes(limit.budget_bytes)
                                  : alone                ? ""
                                                         : "of a rank");
    for (const Arena& arena : plan_.arenas) {
      if (arena.space != MemorySpace::Host) continue;
      SpaceSummary host = summarize_space(plan_, MemorySpace::Host);
      for (int i = 0; i < category_count; ++i)
        if (auto category = static_cast<Category>(i); host.largest[category] > 0)
          row(category_name(category), host.at_peak[category],
              right(format_bytes(host.largest[category]), bytes_columns));
      row("pinned arena", arena.bytes, "");
    }
    row("batches read ahead", plan_.loading_bytes(), "");
    if (limit.cache_bytes > 0) row("cache of decoded samples", limit.cache_bytes, "");
    if (limit.snapshot_bytes > 0) row("snapshot for checkpoints", limit.snapshot_bytes, "");
    row("in all", plan_.host_bytes(), "", Style::Strong);
    hosts();
  }

  // Neighbouring hosts that hold as much are one line.
  void hosts() {
    if (plan_.mesh.ranks() == 1) return;
    const std::vector<HostNeed> needs = needs_of_hosts(plan_);
    for (size_t first = 0, end; first < needs.size(); first = end) {
      for (end = first + 1; end < needs.size() && needs[end].bytes == needs[first].bytes; ++end) {
      }
      const bool alone = end - first == 1;
      const std::string which = alone ? "host " + std::to_string(first) + ", "
                                      : "hosts " + std::to_string(first) + " to " + std::to_string(end - 1) + ", each ";
      const int64_t ranks = needs[first].ranks, limit = plan_.host.budget_bytes;
      row(which + std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks"), needs[first].bytes,
          limit > 0 ? "  of " + format_bytes(limit) : "");
    }
  }

  void curve() {
    if (device_.live.empty()) return;
    table_.heading("memory over the step",
                   "peak " + format_bytes(arena().peak_live_bytes) + " at " + describe_peak(plan_, device_));
    for (const std::string& line : draw_memory_curve(plan_, device_, table_.columns())) table_.line(line);
  }

  // Returns the module and source line that a slot comes from, cut to the width of a cell.
  std::string place(const Slot& slot, int columns) const {
    if (slot.origin < 0) return slot.reason;
    const Origin& origin = plan_.origins[slot.origin];
    std::string where = origin.module.empty() ? origin.node : origin.module;
    int rest = columns - width_of(where) - 2;
    return !origin.source.empty() && rest > 16 ? where + "  " + clipped(origin.source, rest) : where;
  }

  void largest_values() {
    table_.heading("largest values at the peak");
    std::vector<SlotId> alive = slots_at_peak(plan_, device_);
    constexpr size_t shown = 12;
    int name_columns = std::min(30, table_.columns() / 3), type_columns = 17;
    int rest = table_.columns() - 2 - name_columns - bytes_columns - 2 - 12 - type_columns;
    for (size_t i = 0; i < alive.size() && i < shown; ++i) {
      const Slot& slot = plan_.slots[alive[i]];
      table_.line("  " + left(clipped_middle("%" + slot.name, name_columns - 1), name_columns) +
                  right(format_bytes(slot.bytes), bytes_columns) + "  " + left(category_name(slot.category), 12) +
                  left(clipped(to_string(slot.type), type_columns - 1), type_columns) +
                  table_.styled(Style::Quiet, clipped_middle(place(slot, rest), rest)));
    }
    if (alive.size() > shown) {
      int64_t bytes = 0;
      for (size_t i = shown; i < alive.size(); ++i) bytes += plan_.slots[alive[i]].bytes;
      table_.line("  " + table_.styled(Style::Quiet,
                                       left("and " + format_count(static_cast<int64_t>(alive.size() - shown)) + " more",
                                            name_columns) +
                                           right(format_bytes(bytes), bytes_columns)));
    }
  }

  void time() {
    TimeSummary time = summarize_time(plan_);
    table_.heading("predicted time", format_us(time.step_us) + " per step");
    double sum = time.by_phase_us[0] + time.by_phase_us[1] + time.by_phase_us[2];
    for (Phase phase : {Phase::Forward, Phase::Backward, Phase::Update}) {
      double us = time.by_phase_us[static_cast<size_t>(phase)];
      if (us <= 0) continue;
      table_.line("  " + left(phase_name(phase), label_columns_) + right(format_us(us), bytes_columns) + "  " +
                  table_.styled(Style::Accent, bar(us / sum, table_.columns() - label_columns_ - bytes_columns - 6)));
    }
    if (time.recompute_us > 0)
      table_.line("  " + left("recompute, counted above", label_columns_) +
                  right(format_us(time.recompute_us), bytes_columns));
    if (const double share = model_flops_utilisation(plan_); share > 0)
      table_.line("  " + left("model FLOPs utilisation (MFU)", label_columns_) +
                  right(format_share(share), bytes_columns));
    const char* waiting = plan_.mesh.ranks() > 1 ? "waiting for copies and ranks" : "waiting for copies";
    for (auto [what, us] : {std::pair{waiting, time.stalled_us},
                            {"parallel copies to host", time.to_host_us},
                            {"parallel copies to device", time.to_device_us},
                            {"sums and gathers over ranks", time.ranks_us}})
      if (us > 0) table_.line("  " + left(what, label_columns_) + right(format_us(us), bytes_columns));
  }

  void ranks() {
    if (plan_.mesh.ranks() == 1) return;
    const TimeSummary time = summarize_time(plan_);
    const double busy_us = time.by_phase_us[0] + time.by_phase_us[1] + time.by_phase_us[2];
    const size_t stages = plan_.later_stages.size() + 1;
    table_.heading("ranks", to_string(plan_.mesh) + ", " +
                                std::to_string(plan_.mesh.ranks() / static_cast<int64_t>(stages)) + " that run " +
                                (stages == 1 ? "this plan" : "the first stage"));
    auto line = [&](llvm::StringRef what, llvm::StringRef bytes, llvm::StringRef us, llvm::StringRef rest = "") {
      table_.line("  " + left(what, label_columns_) + right(bytes, bytes_columns) + right(us, bytes_columns) +
                  (rest.empty() ? "" : "  " + table_.styled(Style::Quiet, rest)));
    };
    for (const RankKind& kind : plan_.kinds)
      line(std::to_string(kind.ranks.size()) + " x " + kind.device.name, format_bytes(kind.budget_bytes), "",
           "budget of each; the plan is for what all kinds can do");
    line("each rank", format_bytes(plan_.promised_bytes()), format_us(busy_us), "held, and busy with computing");
    line("waits for the others", "", format_us(time.exposed_us), "communication that computing does not hide");
    for (const CollectiveSummary& each : summarize_collectives(plan_))
      line(format_count(each.count) + " x " + each.op + " along " + each.axis, format_bytes(each.bytes),
           format_us(each.us));
  }

  void decisions() {
    if (plan_.decisions.empty()) return;
    table_.heading("decisions");
    constexpr size_t shown = 24;
    for (size_t i = 0; i < plan_.decisions.size() && i < shown; ++i) {
      const Decision& decision = plan_.decisions[i];
      std::string text = decision.pass + "  " + decision.subject + ": " + decision.choice;
      if (!decision.reason.empty())
        text += table_.styled(Style::Quiet,
                              clipped("; " + decision.reason, std::max(0, table_.columns() - 2 - width_of(text))));
      table_.line("  " + (width_of(text) > table_.columns() && decision.reason.empty()
                              ? clipped(text, table_.columns() - 2)
                              : text));
    }
    if (plan_.decisions.size() > shown)
      table_.line("  " + table_.styled(Style::Quiet, "and " + std::to_string(plan_.decisions.size() - shown) +
                                                         " more; inspect --json has all"));
  }

  TextTable table_;
  const Plan& plan_;
  int label_columns_;
  SpaceSummary device_;
};

}  // namespace

void print_report(llvm::raw_ostream& out, const Plan& plan, const ReportOptions& options) {
  Report(out, plan, options).print();
}

}  // namespace plimsoll
