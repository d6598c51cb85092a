#include "frontend/driver/commands.h"
#include "frontend/inspect/print.h"
#include "ir/plan/measured.h"
#include "ir/plan/serialize.h"
#include "ir/support/output_file.h"
#include "ir/support/units.h"

namespace plimsoll {
namespace {

// A profile that has no time of the plan is of another plan or device. What was not measured keeps its predicted time,
// and a note says how much of it there is.
Result<TimingCache> open_profile(const Plan& plan, const std::string& path, Console& console) {
  Result<TimingCache> times = TimingCache::load(path);
  if (!times) return times.takeError();
  int64_t all = 0, measured = 0;
  for (const Plan* stage : plan.stages())
    for (const PlanFunction& function : stage->functions)
      for (const Instruction& each : function.instructions) {
        ++all;
        measured += measured_us(*stage, each, *times).has_value();
      }
  if (measured == 0)
    return model_error(path + ": has no time of this plan's instructions; run --profile measures them");
  if (measured < all)
    console.progress.note("measured " + format_count(measured) + " of " + format_count(all) +
                          " instructions, the others have their predicted times");
  return times;
}

Status write_file(llvm::StringRef path, llvm::function_ref<void(llvm::raw_ostream&)> print) {
  return write_output_file(path, [&](llvm::raw_ostream& out) { return print(out), Status::success(); });
}

Status write_page(const Plan& plan, const InspectOptions& options, const TimingCache& times) {
  PageOptions page;
  page.times = &times;
  if (options.beside.empty()) return write_file(options.html, [&](auto& out) { print_plan_html(out, plan, page); });
  Result<Plan> beside = load_plan(options.beside);
  if (!beside) return beside.takeError();
  page.beside = &*beside;
  page.titles[0] = options.plan;
  page.titles[1] = options.beside;
  return write_file(options.html, [&](auto& out) { print_plan_html(out, plan, page); });
}

}  // namespace

Status inspect_command(const InspectOptions& options, Console& console) {
  if (!options.profile.empty() && options.trace.empty() && options.html.empty())
    return usage_error("--profile: give --trace FILE or --html FILE, which show the measured times");
  const std::pair<const char*, const std::string*> files[] = {
      {"--html", &options.html}, {"--trace", &options.trace}, {"--memory-viz", &options.memory_viz}};
  for (const auto& [option, path] : files)
    if (!path->empty())
      if (Status s = check_output_file(*path, {options.plan, options.beside, options.profile}))
        return in_context(option, std::move(s));
  Result<Plan> plan = load_plan(options.plan);
  if (!plan) return plan.takeError();
  TimingCache times;
  if (!options.profile.empty()) {
    Result<TimingCache> profile = open_profile(*plan, options.profile, console);
    if (!profile) return profile.takeError();
    times = std::move(*profile);
  }
  const ReportOptions report{console.columns, console.out_is_terminal};
  if (options.json) return print_plan_json(console.out, *plan), Status::success();
  if (options.text) return print_plan_text(console.out, *plan), Status::success();
  if (!options.html.empty()) return write_page(*plan, options, times);
  if (!options.trace.empty()) {
    use_measured_times(*plan, times);
    return write_file(options.trace, [&](auto& out) { print_trace(out, *plan); });
  }
  if (!options.memory_viz.empty())
    return write_file(options.memory_viz, [&](auto& out) { print_memory_viz(out, *plan); });
  if (!options.why.empty()) return print_why(console.out, *plan, options.why, report);
  if (options.diff.empty()) return print_report(console.out, *plan, report), Status::success();
  Result<Plan> other = load_plan(options.diff);
  if (!other) return other.takeError();
  print_diff(console.out, *plan, *other, report);
  return Status::success();
}

}  // namespace plimsoll
