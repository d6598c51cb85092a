#include "frontend/driver/commands.h"
#include "frontend/inspect/print.h"
#include "ir/plan/measured.h"
#include "ir/plan/serialize.h"
#include "ir/support/output_file.h"
#include "ir/support/units.h"

namespace plimsoll {
namespace {

// Whatever was not measured keeps its predicted time, and a note says how much of it there is.
Status take_profile(Plan& plan, const std::string& path, Console& console) {
  Result<TimingCache> times = TimingCache::load(path);
  if (!times) return times.takeError();
  int64_t all = 0;
  for (const Plan* stage : plan.stages())
    for (const PlanFunction& function : stage->functions) all += static_cast<int64_t>(function.instructions.size());
  const int64_t measured = use_measured_times(plan, *times);
  if (measured == 0)
    return model_error(path + ": has no time of this plan's instructions; run --profile measures them");
  if (measured < all)
    console.progress.note("measured " + format_count(measured) + " of " + format_count(all) +
                          " instructions, the others have their predicted times");
  return Status::success();
}

Status write_file(llvm::StringRef path, llvm::function_ref<void(llvm::raw_ostream&)> print) {
  return write_output_file(path, [&](llvm::raw_ostream& out) { return print(out), Status::success(); });
}

Status write_page(const Plan& plan, const InspectOptions& options) {
  if (options.beside.empty()) return write_file(options.html, [&](auto& out) { print_plan_html(out, plan); });
  Result<Plan> beside = load_plan(options.beside);
  if (!beside) return beside.takeError();
  const PageOptions page{.beside = &*beside, .titles = {options.plan, options.beside}};
  return write_file(options.html, [&](auto& out) { print_plan_html(out, plan, page); });
}

}  // namespace

Status inspect_command(const InspectOptions& options, Console& console) {
  const std::pair<const char*, const std::string*> files[] = {
      {"--html", &options.html}, {"--trace", &options.trace}, {"--memory-viz", &options.memory_viz}};
  for (const auto& [option, path] : files)
    if (!path->empty())
      if (Status s = check_output_file(*path, {options.plan, options.beside, options.profile}))
        return in_context(option, std::move(s));
  Result<Plan> plan = load_plan(options.plan);
  if (!plan) return plan.takeError();
  if (!options.profile.empty())
    if (Status s = take_profile(*plan, options.profile, console)) return s;
  const ReportOptions report{console.columns, console.out_is_terminal};
  if (options.json) return print_plan_json(console.out, *plan), Status::success();
  if (options.text) return print_plan_text(console.out, *plan), Status::success();
  if (!options.html.empty()) return write_page(*plan, options);
  if (!options.trace.empty()) return write_file(options.trace, [&](auto& out) { print_trace(out, *plan); });
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
