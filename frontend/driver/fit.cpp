#include "frontend/api/machine.h"
#include "frontend/driver/alternatives.h"
#include "frontend/driver/choose_batch.h"
#include "frontend/driver/fit_table.h"
#include "frontend/inspect/text_table.h"
#include "ir/support/units.h"

#include <optional>

// Plans the job for each device without writing the plans, and prints which devices hold it.

namespace plimsoll {
namespace {

struct Answer {
  CompileRequest request;
  Plan plan;            // the plan that needs least if nothing fits
  std::string refusal;  // empty if the job fits

  bool fits() const { return refusal.empty(); }
  int64_t lacks_bytes() const { return plan.promised_bytes() - plan.arenas.front().budget_bytes; }
};

Result<Answer> answer_for(const OpenedModel& model, CompileRequest request, const DeviceDescription& device) {
  request.device = device.name;
  // The description cannot know this machine's memory.
  if (device.backend == "cpu" && request.training.budget_bytes == 0) request.training.budget_bytes = memory_here();
  Answer answer{request, {}, {}};
  CompileHooks hooks;
  std::optional<Plan> least;
  hooks.on_refused = [&](const Plan& smallest) {
    if (!least || smallest.promised_bytes() < least->promised_bytes()) least = smallest;
  };
  auto compile = [&](const CompileRequest& one) { return compile_opened(model, one, hooks); };
  Result<Plan> plan =
      request.training.precision == "auto" ? compile_fastest_precision(request, compile) : compile(request);
  if (plan) return Answer{std::move(request), std::move(*plan), ""};
  Diag diag = take_diag(plan.takeError());
  if (diag.fault() != Fault::Budget) return Status(llvm::make_error<Diag>(diag.fault(), diag.text()));
  answer.plan = std::move(*least);
  answer.request.training.precision = answer.plan.training.precision;
  answer.refusal = diag.text();
  return answer;
}

Result<std::vector<DeviceDescription>> devices_asked_for(const FitCommandOptions& options) {
  const std::string& file = options.compile.device_file;
  std::vector<DeviceDescription> devices;
  for (const std::string& name : options.devices) {
    Result<DeviceDescription> device = find_device(name, file);
    if (!device) return device.takeError();
    devices.push_back(std::move(*device));
  }
  if (!devices.empty()) return devices;
  Result<DeviceCatalog> known = known_devices(file);
  if (!known) return known.takeError();
  return known->all().vec();
}

std::string table_row(llvm::StringRef device, llvm::StringRef budget, llvm::StringRef fits, llvm::StringRef needs,
                      llvm::StringRef step, llvm::StringRef with) {
  return left(device, 12) + right(budget, 10) + right(fits, 6) + right(needs, 12) + right(step, 12) + "  " + with.str();
}

// The needed bytes are rounded up, so that the printed number works as a budget.
std::string row_of(const Answer& answer) {
  const Plan& plan = answer.plan;
  int64_t needs = plan.promised_bytes();
  return table_row(plan.device.name, format_bytes(plan.arenas.front().budget_bytes), answer.fits() ? "yes" : "no",
                   format_bytes(answer.fits() ? needs : round_up_readable(needs)), format_us(plan.predicted_step_us),
                   answer.fits() ? how_it_fits(plan) : "needs least with: " + how_it_fits(plan));
}

}  // namespace

Status fit_command(const FitCommandOptions& options, Console& console) {
  Result<CompileRequest> request = compile_request(options.compile);
  if (!request) return request.takeError();
  Result<std::vector<DeviceDescription>> devices = devices_asked_for(options);
  if (!devices) return devices.takeError();
  console.progress.phase("import");
  Result<OpenedModel> model = open_model(*request);
  if (!model) return model.takeError();
  std::vector<std::string> rows;
  std::optional<Answer> closest;
  for (const DeviceDescription& device : *devices) {
    console.progress.phase(device.name);
    Result<Answer> answer = answer_for(*model, *request, device);
    if (!answer) return answer.takeError();
    rows.push_back(row_of(*answer));
    if (!closest || answer->lacks_bytes() < closest->lacks_bytes()) closest = std::move(*answer);
  }
  console.progress.finish();
  TextTable table(console.out, {console.columns, console.out_is_terminal});
  table.line(table.styled(Style::Strong, table_row("device", "budget", "fits", "needs", "step", "with")));
  for (const std::string& row : rows) table.line(row);
  if (closest->fits()) return Status::success();
  return in_context(closest->plan.device.name,
                    with_alternatives(budget_error(closest->refusal), *model, closest->request, closest->plan));
}

}  // namespace plimsoll
