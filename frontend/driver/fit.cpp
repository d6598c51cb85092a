#include "frontend/api/fit.h"
#include "frontend/api/machine.h"
#include "frontend/driver/fit_table.h"
#include "frontend/driver/refusal.h"
#include "frontend/inspect/text_table.h"
#include "ir/support/units.h"

#include "llvm/Support/FormatVariadic.h"

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
  int64_t needs = largest_stage(plan).promised_bytes();
  return table_row(plan.device.name, format_bytes(plan.arenas.front().budget_bytes), fits ? "yes" : "no",
                   format_bytes(fits ? needs : round_up_readable(needs)), format_us(plan.predicted_step_us),
                   fits ? how_it_fits(plan) : "the least it needs: " + how_it_fits(plan));
}

std::string cards_row(llvm::StringRef cards, llvm::StringRef mesh, llvm::StringRef zero, llvm::StringRef fits,
                      llvm::StringRef needs, llvm::StringRef step, llvm::StringRef rate, llvm::StringRef with) {
  return right(cards, 7) + "  " + left(mesh, 24) + right(zero, 6) + right(fits, 6) + right(needs, 12) +
         right(step, 12) + right(rate, 12) + "  " + with.str();
}

std::string cards_row_of(int64_t cards, const DeviceAnswer& answer) {
  const Plan& plan = answer.result.plan;
  const double samples = static_cast<double>(plan.training.batch * plan.training.accumulate);
  const std::string rate = samples > 0 ? llvm::formatv("{0:f1}", samples / plan.predicted_step_us * 1e6).str() : "";
  const int64_t needs = largest_stage(plan).promised_bytes();
  const bool fits = answer.result.fits, shares_rows = answer.training.mesh[MeshAxis::Data] > 1;
  return cards_row(std::to_string(cards), to_string(answer.training.mesh),
                   shares_rows ? std::to_string(answer.training.zero) : "", fits ? "yes" : "no",
                   format_bytes(fits ? needs : round_up_readable(needs)), format_us(plan.predicted_step_us), rate,
                   how_it_fits(plan));
}

// 1, 2, 4 and so on, and the number itself.
std::vector<int64_t> counts_up_to(int64_t cards) {
  std::vector<int64_t> counts;
  for (int64_t count = 1; count < cards; count *= 2) counts.push_back(count);
  counts.push_back(cards);
  return counts;
}

// Options that say how cards share the job have nothing to say of one.
JobOptions on_cards(JobOptions job, int64_t cards) {
  job.gpus = cards;
  if (cards > 1) return job;
  const JobOptions defaults;
  job.zero = defaults.zero;
  job.schedule = defaults.schedule;
  job.runs_per_stage = defaults.runs_per_stage;
  job.micro_batches = defaults.micro_batches;
  job.gradient_sums = defaults.gradient_sums;
  job.batch_norm = defaults.batch_norm;
  return job;
}

Result<CompileRequest> request_for(int64_t cards, const Job& model, const FitCommandOptions& options) {
  Result<CompileRequest> request = compile_request(on_cards(options.job, cards));
  if (request) request->device = model.request().device;
  return request;
}

// The batch stays the same, whatever the number of cards.
Status print_cards(const Job& model, const DeviceDescription& device, const FitCommandOptions& options,
                   Console& console) {
  std::vector<std::string> rows;
  for (int64_t cards : counts_up_to(options.cards)) {
    Result<CompileRequest> request = request_for(cards, model, options);
    if (!request) return request.takeError();
    console.progress.phase(std::to_string(cards) + " x " + device.name);
    Result<DeviceAnswer> answer = fit_on(model.with(*request), device);
    if (answer) {
      rows.push_back(cards_row_of(cards, *answer));
      continue;
    }
    const Diag why = take_diag(answer.takeError());
    if (why.fault() == Fault::System) return llvm::make_error<Diag>(why);
    rows.push_back(cards_row(std::to_string(cards), "", "", "", "", "", "", why.text()));
  }
  console.progress.finish();
  TextTable table(console.out, {console.columns, console.out_is_terminal});
  table.heading(device.name, "cards that share the job, bytes for each of them");
  table.line(
      table.styled(Style::Strong, cards_row("cards", "mesh", "ZeRO", "fits", "needs", "step", "samples/s", "with")));
  for (const std::string& row : rows) table.line(row);
  return Status::success();
}

}  // namespace

Status fit_command(const FitCommandOptions& options, Console& console) {
  const bool asks_for_cards = options.cards > 1;
  if (asks_for_cards && (options.job.mesh != "auto" || options.job.gpus > 0))
    return usage_error("--cards chooses a mesh for 1, 2, 4 and more cards; leave out " +
                       llvm::Twine(options.job.gpus > 0 ? "--gpus" : "--mesh"));
  Result<CompileRequest> request = compile_request(asks_for_cards ? on_cards(options.job, 1) : options.job);
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
  if (asks_for_cards)
    for (const DeviceDescription& device : *devices)
      if (Status s = print_cards(*model, device, options, console)) return s;
  if (closest->result.fits) return Status::success();
  return refuse(closest->result, closest->job, closest->training, console, closest->result.plan.device.name + ": ");
}

}  // namespace plimsoll
