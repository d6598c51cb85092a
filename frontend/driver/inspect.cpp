#include "frontend/driver/commands.h"
#include "frontend/inspect/print.h"
#include "ir/plan/serialize.h"
#include "ir/support/output_file.h"

namespace plimsoll {

Status inspect_command(const InspectOptions& options, Console& console) {
  if (!options.html.empty())
    if (Status s = check_output_file(options.html, {options.plan})) return in_context("--html", std::move(s));
  Result<Plan> plan = load_plan(options.plan);
  if (!plan) return plan.takeError();
  ReportOptions report{console.columns, console.out_is_terminal};
  if (options.json) return print_plan_json(console.out, *plan), Status::success();
  if (options.text) return print_plan_text(console.out, *plan), Status::success();
  if (!options.html.empty())
    return write_output_file(options.html,
                             [&](llvm::raw_ostream& out) { return print_plan_html(out, *plan), Status::success(); });
  if (!options.why.empty()) return print_why(console.out, *plan, options.why, report);
  if (options.diff.empty()) return print_report(console.out, *plan, report), Status::success();
  Result<Plan> other = load_plan(options.diff);
  if (!other) return other.takeError();
  print_diff(console.out, *plan, *other, report);
  return Status::success();
}

}  // namespace plimsoll
