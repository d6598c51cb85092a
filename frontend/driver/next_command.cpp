#include "frontend/driver/next_command.h"

#include "frontend/api/fit.h"
#include "frontend/api/machine.h"
#include "frontend/inspect/text_table.h"
#include "ir/support/units.h"

#include "llvm/ADT/StringExtras.h"

#include <cmath>

namespace plimsoll {
namespace {

// In quotes where a shell would read more into it.
std::string quoted(const std::string& word) {
  const bool is_plain = word.find_first_not_of(
                            "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                            "_-./:=,+%@") == std::string::npos;
  return is_plain && !word.empty() ? word : "'" + word + "'";
}

// The job as it was asked for, with what was guessed.
JobOptions with_guesses(JobOptions options, const JobGuess& guess) {
  for (const auto& [name, size] : guess.dims) options.dims.push_back(name + "=" + std::to_string(size));
  if (!guess.loss.empty()) options.losses = {guess.loss};
  return options;
}

// Of the usual search: a closer layout would let little more fit.
constexpr double estimate_effort = 0.05;

// The largest batch that fits without remats and copies, which take time.
Result<std::string> describe_fit(JobOptions options, Console& console) {
  options.request.max_batch = true;
  options.recompute = options.offload = "off";
  options.request.training.effort = estimate_effort;
  Result<CompileRequest> request = compile_request(options);
  if (!request) return request.takeError();
  Result<DeviceDescription> device = find_device("auto", "");
  if (!device) return device.takeError();
  request->device = device->name;
  console.progress.phase("fit");
  Result<Job> job = Job::open(*request);
  if (!job) return job.takeError();
  Result<DeviceAnswer> answer = fit_on(*job, *device);
  if (!answer) return answer.takeError();
  const Plan& plan = answer->result.plan;
  if (!answer->result.fits) return "does not fit " + device->name + " as it is; `plimsoll fit` says what would";
  const auto samples = static_cast<double>(plan.training.batch * plan.training.accumulate);
  return "fits " + device->name + " at batch " + std::to_string(plan.training.batch) + ", about " +
         format_count(std::max<int64_t>(1, std::llround(samples / plan.predicted_step_us * 1e6))) + " samples/s";
}

std::string command_for(const JobOptions& options, const ModelCheck& check) {
  const TrainingRequest& training = options.request.training;
  std::string text = "plimsoll train --model " + quoted(options.request.model_path);
  const auto add = [&](const char* option, const std::string& value) {
    text += std::string(" ") + option + " " + quoted(value);
  };
  for (const std::string& dim : options.dims) add("--dim", dim);
  if (training.batch > 0) add("--batch", std::to_string(training.batch));
  for (const std::string& loss : options.losses) add("--loss", loss);
  for (const std::string& pattern : training.train) add("--train", pattern);
  for (const std::string& pattern : training.freeze) add("--freeze", pattern);
  if (options.request.import.freeze_norm) text += " --freeze-norm";
  if (check.guess.has_norms_and_biases) text += " --weight-decay 0.01 --no-decay norms-and-biases";
  return text + " --data DATA --steps 1000 --checkpoint runs --resume auto --save trained.safetensors";
}

}  // namespace

void print_next_command(const JobOptions& asked, const ModelCheck& check, Console& console) {
  const JobOptions options = with_guesses(asked, check.guess);
  Result<std::string> fit = describe_fit(options, console);
  console.progress.finish();
  TextTable table(console.out, {console.columns, console.out_is_terminal});
  table.line("inputs   " + llvm::join(check.guess.inputs, ", "));
  table.line("outputs  " + llvm::join(check.guess.outputs, ", "));
  table.line("groups   " + llvm::join(check.guess.groups, "; ") +
             (check.guess.has_norms_and_biases ? ", which decay leaves out" : ""));
  table.line(fit ? *fit : "the largest batch is not known: " + take_diag(fit.takeError()).text());
  table.line("next     " + command_for(options, check));
}

}  // namespace plimsoll
