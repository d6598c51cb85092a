#include "frontend/inspect/html_charts.h"
#include "frontend/inspect/text_table.h"
#include "ir/support/units.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/Format.h"

// The report as one self-contained file, for somebody who decides about a budget without running the program.

namespace plimsoll {
namespace {

constexpr size_t largest_shown = 24, decisions_shown = 400;

constexpr llvm::StringLiteral style = R"(
:root{color-scheme:light dark;--ink:#1d2430;--quiet:#667085;--rule:#d5d9e0;--paper:#fff}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ef;--quiet:#98a2b3;--rule:#3a4250;--paper:#14181f}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:980px;margin:2em auto;padding:0 1em}
h1{font-size:1.5em;margin:0}h2{font-size:1.1em;margin:2em 0 .4em}.quiet{color:var(--quiet)}.over{color:#c4320a}
table{border-collapse:collapse;width:100%}td,th{padding:.15em .8em .15em 0;text-align:left;vertical-align:top}
th{font-weight:600;border-bottom:1px solid var(--rule)}td.n,th.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
tr.sum td{border-top:1px solid var(--rule);font-weight:600}
.bar{height:14px;background:var(--rule);border-radius:7px;overflow:hidden;margin:.5em 0}.bar i{display:block;height:100%;background:#2e7d5b}.bar i.tight{background:#b7791f}
.bar i.past{background:#c4320a}.key{display:inline-block;width:.8em;height:.8em;border-radius:2px;margin-right:.5em}
svg{width:100%;height:auto}svg text{font-size:12px;fill:var(--quiet)}.line{stroke:var(--rule)}
.limit{stroke:#c4320a;stroke-dasharray:6 4}.frontier{fill:none;stroke:#3366cc;stroke-width:2}.point{fill:#3366cc}.mark{fill:none;stroke:#c4320a;stroke-width:2}
.pale{opacity:.5}.reserve{fill:#8d99ae;background:#8d99ae}
)";

// One colour per category, dark enough for light and dark backgrounds.
constexpr llvm::StringLiteral colors[category_count] = {"#3b6ea5", "#b5651d", "#6b8fbf", "#9aa5b1", "#2e7d5b",
                                                        "#d9a441", "#8e5ea2", "#4fa3a5", "#c97b84", "#7aa95c"};

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
  HtmlReport(llvm::raw_ostream& out, const Plan& plan, llvm::ArrayRef<FrontierRow> frontier)
      : out_(out), plan_(plan), frontier_(frontier), device_(summarize_space(plan, MemorySpace::Device)) {}

  void print() {
    head();
    summary();
    stages();
    categories();
    curve();
    frontier();
    largest_values();
    time();
    timeline();
    decisions();
    out_ << "</body></html>\n";
  }

 private:
  const Arena& arena() const { return plan_.arenas.front(); }
  void heading(llvm::StringRef title, llvm::StringRef note = "") {
    out_ << "<h2>" << title << (note.empty() ? "" : " <small class='quiet'>" + escaped(note) + "</small>") << "</h2>\n";
  }

  void head() {
    out_ << "<!doctype html><html lang='en'><head><meta charset='utf-8'><meta name='viewport' "
            "content='width=device-width'><title>"
         << escaped(plan_.model) << " on " << escaped(plan_.device.name) << "</title><style>" << style;
    for (int i = 0; i < category_count; ++i)
      out_ << ".c" << i << "{fill:" << colors[i] << ";background:" << colors[i] << "}";
    out_ << "</style></head><body>\n<h1>" << escaped(plan_.model) << " on " << escaped(devices_of(plan_))
         << "</h1>\n<p class='quiet'>" << escaped(describe_job(plan_)) << "</p>\n";
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
    out_ << "<table><tr><th>stage</th><th>device</th><th class='n'>needs</th><th class='n'>budget</th><th "
            "class='n'>computes</th><th class='n'>exposed links</th><th class='n'>waits</th></tr>\n";
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
    out_ << "</table>\n";
  }

  void category_row(llvm::StringRef key, llvm::StringRef name, int64_t bytes, llvm::StringRef largest = "") {
    double share = static_cast<double>(bytes) / static_cast<double>(std::max<int64_t>(plan_.promised_bytes(), 1));
    out_ << "<tr><td><i class='key " << key << "'></i>" << escaped(name) << "</td>" << figure(format_bytes(bytes))
         << figure(format_share(share)) << figure(largest) << "</tr>\n";
  }

  void categories() {
    heading("Device memory", "at the peak, and the largest amount of each category at any time");
    out_ << "<table><tr><th>category</th><th class='n'>at the peak</th><th class='n'>share</th><th "
            "class='n'>largest</th></tr>\n";
    for (int i = 0; i < category_count; ++i)
      if (auto category = static_cast<Category>(i); device_.largest[category] > 0)
        category_row("c" + std::to_string(i), category_name(category), device_.at_peak[category],
                     format_bytes(device_.largest[category]));
    category_row("", "packing waste", arena().bytes - arena().peak_live_bytes);
    for (const Reserve& reserve : plan_.device.reserves)
      category_row("reserve", "reserve: " + reserve.name, reserve.bytes);
    out_ << "<tr class='sum'><td>promised</td>" << figure(format_bytes(plan_.promised_bytes())) << "</tr></table>\n";
    for (const Arena& other : plan_.arenas)
      if (other.space == MemorySpace::Host)
        out_ << "<p>The plan also pins " << format_bytes(other.bytes) << " of host memory.</p>\n";
  }

  void curve() {
    heading("Memory over the step", "peak at " + describe_peak(plan_, device_));
    draw_curve_svg(out_, plan_, device_);
  }

  void frontier() {
    if (frontier_.empty()) return;
    heading("What smaller budgets cost", "time per step against the bytes needed; the ring marks this plan");
    draw_frontier_svg(out_, frontier_, plan_);
    out_ << "<table><tr><th class='n'>budget</th><th class='n'>peak</th><th class='n'>step</th><th "
            "class='n'>batch</th><th>with</th></tr>\n";
    for (const FrontierRow& row : frontier_)
      out_ << "<tr>" << figure(format_bytes(row.budget_bytes)) << figure(format_bytes(row.needs_bytes))
           << figure(format_us(row.step_us)) << figure(row.batch) << words(row.with) << "</tr>\n";
    out_ << "</table>\n";
  }

  std::string place(const Slot& slot) const {
    if (slot.origin < 0) return "";
    const Origin& origin = plan_.origins[slot.origin];
    return origin.module.empty() ? origin.node : origin.module;
  }

  void largest_values() {
    heading("Alive at the peak");
    std::vector<SlotId> alive = slots_at_peak(plan_, device_);
    out_ << "<table><tr><th>value</th><th "
            "class='n'>bytes</th><th>category</th><th>type</th><th>from</th><th>why</th></tr>\n";
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
    out_ << "</table>\n";
  }

  void time_row(llvm::StringRef name, double us) {
    if (us > 0)
      out_ << "<tr>" << words(name) << figure(format_us(us)) << figure(format_share(us / plan_.predicted_step_us))
           << "</tr>\n";
  }

  void time() {
    TimeSummary time = summarize_time(plan_);
    heading("Predicted time", format_us(time.step_us) + " per step");
    out_ << "<table><tr><th>phase</th><th class='n'>time</th><th class='n'>share</th></tr>\n";
    for (Phase phase : {Phase::Forward, Phase::Backward, Phase::Update})
      time_row(phase_name(phase), time.by_phase_us[static_cast<size_t>(phase)]);
    time_row("recompute, counted above", time.recompute_us);
    time_row("waiting for copies", time.stalled_us);
    time_row("parallel copies to host", time.to_host_us);
    time_row("parallel copies to device", time.to_device_us);
    time_row("sums and gathers over ranks", time.ranks_us);
    out_ << "</table>\n";
  }

  void timeline() {
    heading("Timeline of " + plan_.functions.front().name,
            plan_.later_stages.empty()
                ? "predicted; what runs beside computing has a lane of its own"
                : "predicted, all stages; backward is pale, and what runs beside computing has a lane of its own");
    draw_timeline_svg(out_, plan_);
    const std::vector<CollectiveSummary> collectives = summarize_collectives(plan_);
    if (collectives.empty()) return;
    out_ << "<table><tr><th>collective</th><th>axis</th><th class='n'>per step</th><th class='n'>bytes</th><th "
            "class='n'>time</th></tr>\n";
    for (const CollectiveSummary& each : collectives)
      out_ << "<tr>" << words(each.op) << words(each.axis) << figure(format_count(each.count))
           << figure(format_bytes(each.bytes)) << figure(format_us(each.us)) << "</tr>\n";
    out_ << "</table>\n";
  }

  void decisions() {
    if (plan_.decisions.empty()) return;
    heading("Decisions", format_count(static_cast<int64_t>(plan_.decisions.size())));
    out_ << "<details" << (plan_.decisions.size() <= largest_shown ? " open" : "")
         << "><summary>choices and the numbers behind them</summary>\n"
         << "<table><tr><th>pass</th><th>subject</th><th>choice</th><th>why</th></tr>\n";
    for (const Decision& decision : llvm::makeArrayRef(plan_.decisions).take_front(decisions_shown))
      out_ << "<tr>" << words(decision.pass) << words(decision.subject) << words(decision.choice)
           << words(decision.reason) << "</tr>\n";
    out_ << "</table></details>\n";
    if (plan_.decisions.size() > decisions_shown)
      out_ << "<p class='quiet'>and " << format_count(static_cast<int64_t>(plan_.decisions.size() - decisions_shown))
           << " more; inspect --json has all</p>\n";
  }

  llvm::raw_ostream& out_;
  const Plan& plan_;
  llvm::ArrayRef<FrontierRow> frontier_;
  SpaceSummary device_;
};

}  // namespace

void print_plan_html(llvm::raw_ostream& out, const Plan& plan, llvm::ArrayRef<FrontierRow> frontier) {
  HtmlReport(out, plan, frontier).print();
}

}  // namespace plimsoll
