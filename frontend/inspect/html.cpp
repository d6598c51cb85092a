#include "frontend/inspect/html_charts.h"
#include "frontend/inspect/plan_data.h"
#include "frontend/inspect/text_table.h"
#include "ir/support/units.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/JSON.h"

// The report as one self-contained file, for somebody who decides about a budget without running the program.

namespace plimsoll {
namespace {

constexpr size_t largest_shown = 24, decisions_shown = 400;

constexpr llvm::StringLiteral style =
#include "frontend/inspect/page_css.inc"
    ;
constexpr llvm::StringLiteral memory_script =
#include "frontend/inspect/memory_view_js.inc"
    ;
constexpr llvm::StringLiteral run_script =
#include "frontend/inspect/run_view_js.inc"
    ;

std::string escaped(llvm::StringRef text) {
  std::string all;
  llvm::raw_string_ostream out(all);
  llvm::printHTMLEscaped(text, out);
  return out.str();
}

std::string words(llvm::StringRef text) { return "<td>" + escaped(text) + "</td>"; }
std::string figure(llvm::StringRef text) { return "<td class='n'>" + escaped(text) + "</td>"; }

class HtmlReport {
 public:
  HtmlReport(llvm::raw_ostream& out, const Plan& plan, const PageOptions& options)
      : out_(out), plan_(plan), options_(options), device_(summarize_space(plan, MemorySpace::Device)) {}

  void print() {
    head();
    summary();
    stages();
    run();
    comparison();
    categories();
    memory();
    frontier();
    largest_values();
    time();
    ops();
    timeline();
    decisions();
    out_ << "<script>" << memory_script << "</script>\n";
    if (options_.run) out_ << "<script>" << run_script << "</script>\n";
    out_ << "</body></html>\n";
  }

 private:
  const Arena& arena() const { return plan_.arenas.front(); }
  void heading(llvm::StringRef title, llvm::StringRef note = "") {
    out_ << "<h2>" << title << (note.empty() ? "" : " <small class='quiet'>" + escaped(note) + "</small>") << "</h2>\n";
  }

  // A table wider than the page scrolls by itself.
  void open_table(llvm::StringRef header) { out_ << "<div class='scroll'><table>" << header << "\n"; }
  void close_table() { out_ << "</table></div>\n"; }

  void head() {
    out_ << "<!doctype html><html lang='en'><head><meta charset='utf-8'><meta name='viewport' "
            "content='width=device-width,initial-scale=1'><title>"
         << escaped(plan_.model) << " on " << escaped(plan_.device.name) << "</title><style>" << style;
    for (int i = 0; i < category_count; ++i)
      out_ << ".c" << i << "{fill:" << category_color(static_cast<Category>(i))
           << ";background:" << category_color(static_cast<Category>(i)) << "}";
    out_ << "</style></head><body" << (options_.beside ? " class='beside'" : "") << ">\n<h1>" << escaped(plan_.model)
         << " on " << escaped(devices_of(plan_)) << "</h1>\n<p class='quiet'>" << escaped(describe_job(plan_))
         << "</p>\n";
  }

  void summary() {
    int64_t needs = plan_.promised_bytes(), budget = arena().budget_bytes;
    out_ << "<p><b>Needs " << format_bytes(needs) << "</b>";
    if (has_budget(plan_)) {
      double share = static_cast<double>(needs) / static_cast<double>(budget);
      if (needs <= budget)
        out_ << " of " << format_bytes(budget) << ", " << format_bytes(budget - needs) << " to spare.";
      else
        out_ << "; <b class='over'>the budget is " << format_bytes(budget) << ", " << format_bytes(needs - budget)
             << " too small.</b> This is the plan that needs least.";
      out_ << " A step takes <b>" << format_us(plan_.predicted_step_us)
           << "</b> (predicted).</p><div class='bar'><i class='"
           << (share > 1      ? "past"
               : share > 0.95 ? "tight"
                              : "")
           << "' style='width:" << llvm::format("%.1f", std::min(100.0, 100 * share)) << "%'></i></div>\n";
    } else {
      out_ << ", no budget was set. A step takes <b>" << format_us(plan_.predicted_step_us)
           << "</b> (predicted).</p>\n";
    }
  }

  // What follows the table is about the first stage.
  void stages() {
    if (plan_.later_stages.empty()) return;
    heading("Stages of the pipeline");
    open_table(
        "<tr><th>stage</th><th>device</th><th class='n'>needs</th><th class='n'>budget</th><th "
        "class='n'>computes</th><th class='n'>exposed links</th><th class='n'>waits</th></tr>");
    const std::vector<TimeSummary> times = summarize_stages(plan_);
    for (const Plan* stage : plan_.stages()) {
      const TimeSummary& time = times[static_cast<size_t>(stage->stage)];
      const double busy_us = time.step_us - time.awaited_us - time.exposed_us;
      out_ << "<tr>" << words(std::to_string(stage->stage)) << words(stage->device.name)
           << figure(format_bytes(stage->promised_bytes()))
           << figure(has_budget(*stage) ? format_bytes(stage->arenas.front().budget_bytes) : "")
           << figure(format_share(busy_us / time.step_us)) << figure(format_share(time.exposed_us / time.step_us))
           << figure(format_share(time.awaited_us / time.step_us)) << "</tr>\n";
    }
    close_table();
  }

  void category_row(llvm::StringRef key, llvm::StringRef name, int64_t bytes, llvm::StringRef largest = "") {
    double share = static_cast<double>(bytes) / static_cast<double>(std::max<int64_t>(plan_.promised_bytes(), 1));
    out_ << "<tr><td><i class='key " << key << "'></i>" << escaped(name) << "</td>" << figure(format_bytes(bytes))
         << figure(format_share(share)) << figure(largest) << "</tr>\n";
  }

  void categories() {
    heading("Device memory", "at the peak, and the largest amount of each category at any time");
    open_table(
        "<tr><th>category</th><th class='n'>at the peak</th><th class='n'>share</th><th "
        "class='n'>largest</th></tr>");
    for (int i = 0; i < category_count; ++i)
      if (auto category = static_cast<Category>(i); device_.largest[category] > 0)
        category_row("c" + std::to_string(i), category_name(category), device_.at_peak[category],
                     format_bytes(device_.largest[category]));
    category_row("", "packing waste", arena().bytes - arena().peak_live_bytes);
    for (const Reserve& reserve : plan_.device.reserves)
      category_row("reserve", "reserve: " + reserve.name, reserve.bytes);
    out_ << "<tr class='sum'><td>promised</td>" << figure(format_bytes(plan_.promised_bytes())) << "</tr>\n";
    close_table();
    out_ << "<p>Of the host a rank also holds " << format_bytes(plan_.host_bytes()) << ", "
         << format_bytes(plan_.loading_bytes()) << " of them for batches that are read ahead";
    for (const Arena& other : plan_.arenas)
      if (other.space == MemorySpace::Host) out_ << " and " << format_bytes(other.bytes) << " pinned";
    if (plan_.mesh.ranks() > 1) {
      const int64_t ranks = needs_of_hosts(plan_).front().ranks, budget = plan_.host.budget_bytes;
      out_ << "; the " << ranks << (ranks == 1 ? " rank" : " ranks") << " of a host hold at most "
           << format_bytes(most_on_a_host(plan_)) << (budget > 0 ? " of " + format_bytes(budget) : "") << " together";
    }
    out_ << ".</p>\n";
  }

  void run() {
    if (!options_.run) return;
    heading("The run");
    out_ << "<div class='run'></div>\n";
    print_json_script(out_, "run-facts", options_.run->facts_json);
    if (!options_.run->records) return;
    std::string text;
    llvm::raw_string_ostream quoted(text);
    quoted << llvm::json::Value(*options_.run->records);
    print_json_script(out_, "run-records", quoted.str());
  }

  // The numbers of both plans, where there are two.
  void comparison() {
    if (!options_.beside) return;
    heading("Two plans");
    const Plan* plans[] = {&plan_, options_.beside};
    open_table(
        "<tr><th>plan</th><th>device</th><th class='n'>needs</th><th class='n'>budget</th><th "
        "class='n'>peak</th><th class='n'>instructions</th><th class='n'>step, predicted</th></tr>");
    for (size_t i = 0; i < 2; ++i) {
      const Plan& plan = *plans[i];
      int64_t instructions = 0;
      for (const PlanFunction& each : plan.functions) instructions += static_cast<int64_t>(each.instructions.size());
      out_ << "<tr>" << words(options_.titles[i]) << words(plan.device.name)
           << figure(format_bytes(plan.promised_bytes()))
           << figure(has_budget(plan) ? format_bytes(plan.arenas.front().budget_bytes) : "none")
           << figure(format_bytes(plan.arenas.front().peak_live_bytes)) << figure(format_count(instructions))
           << figure(format_us(plan.predicted_step_us)) << "</tr>\n";
    }
    close_table();
    out_ << "<p class='quiet'>What follows is about " << escaped(options_.titles[0])
         << "; memory is drawn for both.</p>\n";
  }

  void memory() {
    heading("Memory over the step", "peak at " + describe_peak(plan_, device_));
    out_ << "<p class='quiet'>Above, the live bytes; below, every value in its place, from its first to its last "
            "instruction. A click shows what is alive there. Drag to move; buttons, the wheel after a click, or two "
            "fingers zoom.</p>\n<div class='views'>\n";
    for (MemorySpace space : {MemorySpace::Device, MemorySpace::Host}) {
      memory_view(plan_, space, options_.beside ? options_.titles[0] : "");
      if (options_.beside) memory_view(*options_.beside, space, options_.titles[1]);
    }
    out_ << "</div>\n";
  }

  void memory_view(const Plan& plan, MemorySpace space, llvm::StringRef title) {
    if (llvm::none_of(plan.arenas, [&](const Arena& each) { return each.space == space && each.bytes > 0; })) return;
    const std::string id = "memory-" + std::to_string(memory_views_++);
    const std::string text =
        title.str() + (space == MemorySpace::Host ? (title.empty() ? "" : ", ") + std::string("host memory") : "");
    out_ << "<div class='memory' data-plan='" << id << "'>" << (text.empty() ? "" : "<h3>" + escaped(text) + "</h3>");
    print_plan_data(out_, plan, space, id, text.empty() ? plan.model : text);
    out_ << "<noscript>The drawing needs JavaScript.</noscript></div>\n";
  }

  void frontier() {
    if (options_.frontier.empty()) return;
    heading("What smaller budgets cost", "time per step against the bytes needed; the ring marks this plan");
    out_ << "<div class='scroll'>";
    draw_frontier_svg(out_, options_.frontier, plan_);
    out_ << "</div>\n";
    open_table(
        "<tr><th class='n'>budget</th><th class='n'>peak</th><th class='n'>step</th><th "
        "class='n'>batch</th><th>with</th></tr>");
    for (const FrontierRow& row : options_.frontier)
      out_ << "<tr>" << figure(format_bytes(row.budget_bytes)) << figure(format_bytes(row.needs_bytes))
           << figure(format_us(row.step_us)) << figure(row.batch) << words(row.with) << "</tr>\n";
    close_table();
  }

  std::string place(const Slot& slot) const {
    if (slot.origin < 0) return "";
    const Origin& origin = plan_.origins[slot.origin];
    return origin.module.empty() ? origin.node : origin.module;
  }

  void largest_values() {
    heading("Alive at the peak");
    std::vector<SlotId> alive = slots_at_peak(plan_, device_);
    open_table(
        "<tr><th>value</th><th "
        "class='n'>bytes</th><th>category</th><th>type</th><th>from</th><th>why</th></tr>");
    int64_t rest = 0;
    for (size_t i = 0; i < alive.size(); ++i) {
      const Slot& slot = plan_.slots[alive[i]];
      if (i >= largest_shown)
        rest += slot.bytes;
      else
        out_ << "<tr>" << words("%" + slot.name) << figure(format_bytes(slot.bytes))
             << words(category_name(slot.category)) << words(to_string(slot.type)) << words(place(slot))
             << words(slot.reason) << "</tr>\n";
    }
    if (rest > 0)
      out_ << "<tr class='quiet'>"
           << words("and " + format_count(static_cast<int64_t>(alive.size() - largest_shown)) + " more")
           << figure(format_bytes(rest)) << "</tr>\n";
    close_table();
  }

  void time_row(llvm::StringRef name, double us) {
    if (us > 0)
      out_ << "<tr>" << words(name) << figure(format_us(us)) << figure(format_share(us / plan_.predicted_step_us))
           << "</tr>\n";
  }

  void time() {
    TimeSummary time = summarize_time(plan_);
    heading("Predicted time", format_us(time.step_us) + " per step");
    open_table("<tr><th>phase</th><th class='n'>time</th><th class='n'>share</th></tr>");
    for (Phase phase : {Phase::Forward, Phase::Backward, Phase::Update})
      time_row(phase_name(phase), time.by_phase_us[static_cast<size_t>(phase)]);
    time_row("recompute, counted above", time.recompute_us);
    time_row(plan_.mesh.ranks() > 1 ? "waiting for copies and ranks" : "waiting for copies", time.stalled_us);
    time_row("parallel copies to host", time.to_host_us);
    time_row("parallel copies to device", time.to_device_us);
    time_row("sums and gathers over ranks", time.ranks_us);
    close_table();
  }

  void ops() {
    const TimingCache* times = options_.times && options_.times->size() > 0 ? options_.times : nullptr;
    std::vector<OpTime> rows = sum_up_by_op(plan_, times);
    heading("Time by op", times ? "predicted, and measured op by op" : "predicted");
    open_table(times ? "<tr><th>op, kernel</th><th class='n'>times</th><th class='n'>predicted</th><th "
                       "class='n'>measured</th><th class='n'>measured / predicted</th></tr>"
                     : "<tr><th>op, kernel</th><th class='n'>times</th><th class='n'>predicted</th></tr>");
    for (const OpTime& row : llvm::ArrayRef<OpTime>(rows).take_front(largest_shown)) {
      out_ << "<tr>" << words(row.name) << figure(format_count(row.count)) << figure(format_us(row.predicted_us));
      if (times)
        out_ << figure(row.measured_us > 0 ? format_us(row.measured_us) : "")
             << figure(row.measured_us > 0 && row.predicted_us > 0
                           ? llvm::formatv("{0:f2}", row.measured_us / row.predicted_us).str()
                           : "");
      out_ << "</tr>\n";
    }
    close_table();
    if (rows.size() > largest_shown)
      out_ << "<p class='quiet'>and " << format_count(static_cast<int64_t>(rows.size() - largest_shown))
           << " more, each below " << format_us(rows[largest_shown].predicted_us) << "</p>\n";
  }

  void timeline() {
    heading("Timeline of " + plan_.functions.front().name,
            plan_.later_stages.empty()
                ? "predicted; what runs beside computing has a lane of its own"
                : "predicted, all stages; backward is pale, and what runs beside computing has a lane of its own");
    out_ << "<div class='scroll'>";
    draw_timeline_svg(out_, plan_);
    out_ << "</div>\n";
    const std::vector<CollectiveSummary> collectives = summarize_collectives(plan_);
    if (collectives.empty()) return;
    open_table(
        "<tr><th>collective</th><th>axis</th><th class='n'>per step</th><th class='n'>bytes</th><th "
        "class='n'>time</th></tr>");
    for (const CollectiveSummary& each : collectives)
      out_ << "<tr>" << words(each.op) << words(each.axis) << figure(format_count(each.count))
           << figure(format_bytes(each.bytes)) << figure(format_us(each.us)) << "</tr>\n";
    close_table();
  }

  void decisions() {
    if (plan_.decisions.empty()) return;
    heading("Decisions", format_count(static_cast<int64_t>(plan_.decisions.size())));
    out_ << "<details" << (plan_.decisions.size() <= largest_shown ? " open" : "")
         << "><summary>choices and the numbers behind them</summary>\n";
    open_table("<tr><th>pass</th><th>subject</th><th>choice</th><th>why</th></tr>");
    for (const Decision& decision : llvm::ArrayRef<Decision>(plan_.decisions).take_front(decisions_shown))
      out_ << "<tr>" << words(decision.pass) << words(decision.subject) << words(decision.choice)
           << words(decision.reason) << "</tr>\n";
    close_table();
    out_ << "</details>\n";
    if (plan_.decisions.size() > decisions_shown)
      out_ << "<p class='quiet'>and " << format_count(static_cast<int64_t>(plan_.decisions.size() - decisions_shown))
           << " more; inspect --json has all</p>\n";
  }

  llvm::raw_ostream& out_;
  const Plan& plan_;
  const PageOptions& options_;
  SpaceSummary device_;
  int memory_views_ = 0;
};

}  // namespace

void print_plan_html(llvm::raw_ostream& out, const Plan& plan, const PageOptions& options) {
  HtmlReport(out, plan, options).print();
}

}  // namespace plimsoll
