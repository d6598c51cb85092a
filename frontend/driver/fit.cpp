#include "frontend/api/fit.h"
#include "frontend/api/machine.h"
#include "frontend/driver/fit_table.h"
#include "frontend/driver/refusal.h"
#include "frontend/inspect/text_table.h"
#include "ir/support/units.h"

#include <optional>

// Plans the job for each device without writing the plans, and prints which devices hold it.

namespace plimsoll {
namespace {

std::string table_row(llvm::StringRef device, llvm::StringRef budget, llvm::StringRef fits, llvm::StringRef needs,
                      llvm::StringRef step, llvm::StringRef with) {
  return left(device, 12) + right(budget, 10) + right(fits, 6) + right(needs, 12) + right(step, 12) + "  " + with.str();
}

// The needed bytes are rounded up, so that the printed number works as a budget.
std::string row_of(const DeviceAnswer& answer) {
  const Plan& plan = answer.result.plan;
  const bool fits = answer.result.fits;
  int64_t needs = plan.promised_bytes();
  return table_row(plan.device.name, format_bytes(plan.arenas.front().budget_bytes), fits ? "yes" : "no",
                   format_bytes(fits ? needs : round_up_readable(needs)), format_us(plan.predicted_step_us),
                   fits ? how_it_fits(plan) : "the least it needs: " + how_it_fits(plan));
}

}  // namespace

Status fit_command(const FitCommandOptions& options, Console& console) {
  Result<CompileRequest> request = compile_request(options.job);
  if (!request) return request.takeError();
  Result<std::vector<DeviceDescription>> devices = devices_named(options.devices, options.job.request.device_file);
  if (!devices) return devices.takeError();
  console.progress.phase("import");
  request->device = devices->front().name;
  Result<Job> model = Job::open(*request);
  if (!model) return model.takeError();
  std::vector<std::string> rows;
  std::optional<DeviceAnswer> closest;
  for (const DeviceDescription& device : *devices) {
    console.progress.phase(device.name);
    Result<DeviceAnswer> answer = fit_on(*model, device);
    if (!answer) return answer.takeError();
    rows.push_back(row_of(*answer));
    if (!closest || answer->lacks_bytes() < closest->lacks_bytes()) closest = std::move(*answer);
  }
  console.progress.finish();
  TextTable table(console.out, {console.columns, console.out_is_terminal});
  table.line(table.styled(Style::Strong, table_row("device", "budget", "fits", "needs", "step", "with")));
  for (const std::string& row : rows) table.line(row);
  if (closest->result.fits) return Status::success();
  return budget_error(closest->result.plan.device.name + ": " +
                      refusal_text(closest->result, closest->job, closest->training));
}

}  // namespace plimsoll
