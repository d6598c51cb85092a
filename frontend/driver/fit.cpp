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
  Job job;
  TrainingRequest training;
  CompileResult result;

  const Plan& plan() const { return result.plan; }
  int64_t lacks_bytes() const { return plan().promised_bytes() - plan().arenas.front().budget_bytes; }
};

Result<Answer> answer_for(const Job& model, const DeviceDescription& device) {
  Result<Job> job = model.on(device);
  if (!job) return job.takeError();
  TrainingRequest training = job->request().training;
  // The description's memory stands for any machine's.
  if (device.backend == "cpu" && training.budget_bytes == 0) training.budget_bytes = memory_here();
  auto compile = [&](const TrainingRequest& one) { return job->compile(one); };
  Result<CompileResult> result =
      training.precision == "auto" ? compile_fastest_precision(*job, training, compile) : compile(training);
  if (!result) return result.takeError();
  training.precision = result->plan.training.precision;
  return Answer{std::move(*job), std::move(training), std::move(*result)};
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
  const Plan& plan = answer.plan();
  const bool fits = answer.result.fits;
  int64_t needs = plan.promised_bytes();
  return table_row(plan.device.name, format_bytes(plan.arenas.front().budget_bytes), fits ? "yes" : "no",
                   format_bytes(fits ? needs : round_up_readable(needs)), format_us(plan.predicted_step_us),
                   fits ? how_it_fits(plan) : "the least it needs: " + how_it_fits(plan));
}

}  // namespace

Status fit_command(const FitCommandOptions& options, Console& console) {
  Result<CompileRequest> request = compile_request(options.compile);
  if (!request) return request.takeError();
  Result<std::vector<DeviceDescription>> devices = devices_asked_for(options);
  if (!devices) return devices.takeError();
  console.progress.phase("import");
  request->device = devices->front().name;
  Result<Job> model = Job::open(*request);
  if (!model) return model.takeError();
  std::vector<std::string> rows;
  std::optional<Answer> closest;
  for (const DeviceDescription& device : *devices) {
    console.progress.phase(device.name);
    Result<Answer> answer = answer_for(*model, device);
    if (!answer) return answer.takeError();
    rows.push_back(row_of(*answer));
    if (!closest || answer->lacks_bytes() < closest->lacks_bytes()) closest = std::move(*answer);
  }
  console.progress.finish();
  TextTable table(console.out, {console.columns, console.out_is_terminal});
  table.line(table.styled(Style::Strong, table_row("device", "budget", "fits", "needs", "step", "with")));
  for (const std::string& row : rows) table.line(row);
  if (closest->result.fits) return Status::success();
  return budget_error(closest->plan().device.name + ": " +
                      refusal_text(closest->result, closest->job, closest->training));
}

}  // namespace plimsoll
