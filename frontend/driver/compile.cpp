#include "frontend/api/choose_plan.h"
#include "frontend/api/request_ranges.h"
#include "frontend/api/tune.h"
#include "frontend/driver/commands.h"
#include "frontend/driver/fit_table.h"
#include "frontend/driver/refusal.h"
#include "frontend/inspect/text_table.h"
#include "ir/plan/serialize.h"
#include "ir/plan/summary.h"
#include "ir/support/output_file.h"
#include "ir/support/units.h"
#include "passes/budget/budget_report.h"
#include "passes/target/precision_rules.h"

#include "llvm/Support/FileSystem.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/Path.h"

#include <optional>

namespace plimsoll {
namespace {

Result<OptimizerKind> optimizer_named(llvm::StringRef name) {
  for (size_t i = 0; i < std::size(optimizer_names); ++i)
    if (optimizer_names[i] == name) return static_cast<OptimizerKind>(i);
  return usage_error("no optimizer is called \"" + name + "\"; there are sgd, adam and adamw");
}

Result<MasterWeights> master_weights_named(llvm::StringRef name) {
  if (name == "auto") return MasterWeights::Auto;
  if (name == "on") return MasterWeights::On;
  if (name == "off") return MasterWeights::Off;
  return usage_error("--master-weights " + name + ": expected auto, on or off");
}

Result<ImageLayout> layout_named(llvm::StringRef name) {
  if (name == "auto") return ImageLayout::Auto;
  if (name == "channels-first") return ImageLayout::ChannelsFirst;
  if (name == "channels-last") return ImageLayout::ChannelsLast;
  return usage_error("--layout " + name + ": expected auto, channels-first or channels-last");
}

// --max-batch keeps the batch whole by default, because in chunks nearly any batch fits.
Status read_split(const CompileOptions& options, TrainingRequest& request) {
  llvm::StringRef text = options.split;
  if (text.empty()) text = options.max_batch ? "off" : "auto";
  if (text == "auto" || text == "off") return request.split = text == "off", Status::success();
  auto [chunks, from] = text.split(':');
  if (chunks.getAsInteger(10, request.split) || request.split < 2)
    return usage_error("--split " + text +
                       ": expected auto, off, or the number of chunks (at least 2), optionally followed by :VALUE");
  request.split_from = from.str();
  return Status::success();
}

Result<int64_t> size_option(llvm::StringRef option, llvm::StringRef text) {
  if (text.empty()) return 0;
  Result<int64_t> bytes = parse_bytes(text);
  if (!bytes) return in_context(option, bytes.takeError());
  if (*bytes == 0) return usage_error(option + ": must be above 0 bytes");
  return *bytes;
}

Result<TrainingRequest> training_request(const CompileOptions& options) {
  TrainingRequest request;
  request.loss = options.model.loss;
  request.train = options.model.train;
  request.freeze = options.model.freeze;
  request.batch = options.model.batch;
  request.accumulate = options.accumulate;
  request.clip_grad_norm = options.clip_grad_norm;
  request.first_loss_scale = options.loss_scale;
  request.precision = options.precision;
  if (!options.precision_file.empty()) {
    if (!is_mixed(options.precision))
      return usage_error("--precision-file needs --precision bf16 or fp16, not " + options.precision);
    auto file = llvm::MemoryBuffer::getFile(options.precision_file, /*IsText=*/true);
    if (!file) return system_error(options.precision_file + ": " + file.getError().message());
    request.precision_rules = (*file)->getBuffer().str();
  }
  Result<OptimizerKind> kind = optimizer_named(options.optimizer);
  if (!kind) return kind.takeError();
  request.frontier = options.pareto;
  request.optimizer = options.optimizer_settings;
  request.optimizer.kind = *kind;
  Result<MasterWeights> masters = master_weights_named(options.master_weights);
  if (!masters) return masters.takeError();
  request.master_weights = *masters;
  Result<ImageLayout> layout = layout_named(options.layout);
  if (!layout) return layout.takeError();
  request.layout = *layout;
  Result<int64_t> budget = size_option("--budget", options.budget);
  if (!budget) return budget.takeError();
  request.budget_bytes = *budget;
  if (options.recompute != "auto" && options.recompute != "off")
    return usage_error("--recompute " + options.recompute + ": expected auto or off");
  request.recompute = options.recompute == "auto";
  if (options.offload != "auto" && options.offload != "off")
    return usage_error("--offload " + options.offload + ": expected auto or off");
  request.offload = options.offload == "auto";
  if (Status s = read_split(options, request)) return s;
  Result<int64_t> host_budget = size_option("--host-budget", options.host_budget);
  if (!host_budget) return host_budget.takeError();
  request.host_budget_bytes = *host_budget;
  return request;
}

void print_result(const CompileOptions& options, const Plan& plan, llvm::raw_ostream& out) {
  size_t instructions = 0;
  for (const PlanFunction& function : plan.functions) instructions += function.instructions.size();
  out << options.output << ": needs " << format_bytes(plan.promised_bytes());
  if (has_budget(plan)) out << " of " << format_bytes(plan.arenas.front().budget_bytes);
  out << " on " << plan.device.name;
  if (plan.arenas.size() > 1) out << " and " << format_bytes(plan.arenas[1].bytes) << " of host memory";
  out << ", " << format_count(static_cast<int64_t>(instructions)) << " instructions, predicted "
      << format_us(plan.predicted_step_us) << " per step";
  if (options.max_batch || options.global_batch > 0)
    out << " of " << plan.training.accumulate << " x " << plan.training.batch << " samples";
  if (const std::string how = how_it_fits(plan); how != "plain") out << ", with " << how;
  out << "\n";
}

Status write_html(const CompileOptions& options, const Plan& plan, llvm::ArrayRef<FrontierRow> front) {
  if (options.html.empty()) return Status::success();
  return write_output_file(
      options.html, [&](llvm::raw_ostream& out) { return print_plan_html(out, plan, front), Status::success(); });
}

// Writes the graph as text to stdout, or to --output in place of the plan.
Status write_stopped(const CompileOptions& options, const CompileRequest& request, const CompileHooks& hooks,
                     Console& console) {
  Result<std::string> text = compile_until(request, hooks);
  if (!text) return text.takeError();
  console.progress.finish();
  if (options.output.empty()) {
    console.out << *text;
    return Status::success();
  }
  return write_output_file(options.output, [&](llvm::raw_ostream& out) {
    out << *text;
    return Status::success();
  });
}

Status refuse(const CompileResult& result, const Job& job) {
  return budget_error(refusal_text(result, job, with_choices_of(result.plan, job.request().training, job.request())));
}

// Plans the job once to know its shapes, times the kernels of these, and gives the job with the times.
Result<Job> tuned(const CompileOptions& options, const Job& job, const CompileHooks& hooks, Console& console) {
  TrainingRequest shapes_alone = job.request().training;
  shapes_alone.frontier = false;
  Result<Plan> plan = fitting_plan(choose_plan(job, shapes_alone, hooks));
  if (!plan) return plan.takeError();
  console.progress.phase("tune");
  TimingCache times;
  if (llvm::sys::fs::exists(options.tune)) {
    Result<TimingCache> earlier = TimingCache::load(options.tune);
    if (!earlier) return earlier.takeError();
    times = std::move(*earlier);
  }
  Result<TuneReport> report = tune(*plan, *kernel_catalog_for(plan->device, options.any_order), times);
  if (!report) return report.takeError();
  if (Status s = times.save(options.tune)) return s;
  console.out << "timed " << report->kernels << " kernels of " << report->calls << " calls\n";
  return job.with_timings(options.tune);
}

}  // namespace

Result<ImportOptions> import_options(const ModelOptions& options) {
  ImportOptions import;
  import.freeze_norm = options.freeze_norm;
  for (llvm::StringRef dim : options.dims) {
    auto [name, number] = dim.rsplit('=');
    int64_t size = 0;
    if (name.empty() || number.getAsInteger(10, size) || size <= 0)
      return usage_error("--dim " + dim + ": expected NAME=N with N above 0");
    import.dims[name.str()] = size;
  }
  return import;
}

Result<CompileRequest> compile_request(const CompileOptions& options) {
  CompileRequest request;
  request.model_path = options.model.model;
  request.device = options.device;
  request.device_file = options.device_file;
  request.timings = options.timings;
  request.any_order = options.any_order;
  request.global_batch = options.global_batch;
  request.max_batch = options.max_batch;
  Result<ImportOptions> import = import_options(options.model);
  if (!import) return import.takeError();
  request.import = std::move(*import);
  Result<TrainingRequest> training = training_request(options);
  if (!training) return training.takeError();
  request.training = std::move(*training);
  if (Status s = check_ranges(request)) return s;
  return request;
}

Status compile_command(const CompileOptions& options, Console& console) {
  if (options.output.empty() && options.stop_after.empty()) return usage_error("--output is required");
  Result<CompileRequest> asked = compile_request(options);
  if (!asked) return asked.takeError();
  const CompileRequest& request = *asked;
  CompileHooks hooks;
  hooks.pipeline.dump_dir = options.dump_ir;
  hooks.pipeline.print_after = options.print_after;
  hooks.pipeline.skip = options.skip;
  hooks.pipeline.stop_after = options.stop_after;
  hooks.pipeline.log = &llvm::errs();
  hooks.on_phase = [&](llvm::StringRef phase) { console.progress.phase(phase); };
  if (!options.dump_ir.empty())
    if (std::error_code failure = llvm::sys::fs::create_directories(options.dump_ir))
      return system_error(options.dump_ir + ": " + failure.message());

  if (!options.stop_after.empty()) return write_stopped(options, request, hooks, console);
  Result<Job> job = Job::open(request, hooks);
  if (job && !options.tune.empty()) job = tuned(options, *job, hooks, console);
  if (!job) return job.takeError();
  Result<CompileResult> result = choose_plan(*job, job->request().training, hooks);
  if (!result) return result.takeError();
  const std::vector<FrontierRow> frontier = frontier_rows(result->frontier);
  print_frontier(console, frontier);
  const Plan& plan = result->plan;
  if (Status s = write_html(options, plan, frontier)) return s;
  if (!result->fits) return refuse(*result, *job);
  console.progress.phase("write");
  if (Status s = save_plan(plan, options.output)) return s;
  console.progress.finish();
  for (const Decision& decision : plan.decisions)
    if (decision.pass == "import") llvm::errs() << "plimsoll: note: " << decision.reason << "\n";
  print_result(options, plan, console.out);
  return Status::success();
}

}  // namespace plimsoll
