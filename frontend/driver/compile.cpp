#include "frontend/api/choose_plan.h"
#include "frontend/api/request_ranges.h"
#include "frontend/api/shorter_steps.h"
#include "frontend/api/tune.h"
#include "frontend/driver/commands.h"
#include "frontend/driver/fit_table.h"
#include "frontend/driver/refusal.h"
#include "frontend/inspect/mesh_table.h"
#include "ir/machine/cluster.h"
#include "ir/plan/serialize.h"
#include "ir/plan/summary.h"
#include "ir/support/output_file.h"
#include "ir/support/printable.h"
#include "ir/support/read_file.h"
#include "ir/support/units.h"
#include "passes/budget/budget_report.h"
#include "passes/target/precision_rules.h"
#include "passes/train/update_rules.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"

#include <optional>
#include <set>

namespace plimsoll {
namespace {

// A search for the largest batch keeps it whole by default, because in chunks nearly any batch fits.
Status read_split(llvm::StringRef text, bool searches_largest, TrainingRequest& request) {
  if (text.empty()) text = searches_largest ? "off" : "auto";
  if (text == "auto" || text == "off") return request.split = text == "off", Status::success();
  auto [chunks, from] = text.split(':');
  if (chunks.getAsInteger(10, request.split) || request.split < 2)
    return usage_error("--split " + text +
                       ": expected auto, off, or the number of chunks (at least 2), optionally followed by :VALUE");
  request.split_from = from.str();
  return Status::success();
}

// Where nothing is said, a rank for each of the devices, or all of the cluster.
Result<int64_t> ranks_asked_for(const JobOptions& options, const CompileRequest& request) {
  if (const size_t devices = request.devices.size(); devices > 0) return static_cast<int64_t>(devices);
  if (options.gpus > 0 || options.request.cluster.empty()) return std::max<int64_t>(options.gpus, 1);
  Result<ClusterDescription> cluster = read_cluster(options.request.cluster);
  if (!cluster) return cluster.takeError();
  return cluster->ranks();
}

Status read_pipeline(const JobOptions& options, TrainingRequest& request) {
  const bool may_be_pipeline =
      request.mesh[MeshAxis::Stage] > 1 || (options.mesh == "auto" && request.mesh.ranks() > 1);
  if (!may_be_pipeline && (options.schedule != "auto" || options.micro_batches != "auto"))
    return usage_error((options.schedule != "auto" ? "--schedule" : "--micro-batches") +
                       llvm::Twine(": only a pipeline has one; give its stages, such as --mesh stage=2"));
  if (options.schedule != "auto") {
    Result<size_t> schedule =
        read_choice("--schedule", options.schedule, {"1f1b", "zero-bubble", "interleaved", "v", "auto"});
    if (!schedule) return schedule.takeError();
    request.schedule = static_cast<PipelineSchedule>(*schedule);
  }
  if (options.runs_per_stage != "auto") {
    if (request.schedule != PipelineSchedule::Interleaved)
      return usage_error("--runs-per-stage: only the stages of --schedule interleaved have a number of runs to choose");
    if (llvm::StringRef(options.runs_per_stage).getAsInteger(10, request.runs_per_stage) || request.runs_per_stage < 2)
      return usage_error("--runs-per-stage " + options.runs_per_stage + ": expected auto or a number above 1");
  }
  if (options.micro_batches != "auto" &&
      (llvm::StringRef(options.micro_batches).getAsInteger(10, request.micro_batches) || request.micro_batches < 1))
    return usage_error("--micro-batches " + options.micro_batches + ": expected auto or a number above 0");
  return Status::success();
}

// Some options are about ranks that compute different rows of the batch.
Status check_shares_rows(llvm::StringRef option, bool is_set, const JobOptions& options,
                         const TrainingRequest& request) {
  const bool may_share_rows = request.mesh[MeshAxis::Data] > 1 || (options.mesh == "auto" && request.mesh.ranks() > 1);
  if (!is_set || may_share_rows) return Status::success();
  return usage_error(option + ": only ranks that share the batch have a use for it; give them, such as --mesh data=2");
}

Status read_ranks(const JobOptions& options, CompileRequest& job) {
  TrainingRequest& request = job.training;
  if (options.mesh == "auto") {
    Result<int64_t> ranks = ranks_asked_for(options, job);
    if (!ranks) return ranks.takeError();
    // Ranks with unlike devices have more of the model or less of it; along another axis the least of them would
    // decide.
    request.mesh[job.has_unlike_devices() ? MeshAxis::Stage : MeshAxis::Data] = *ranks;
    if (*ranks > 1) job.cards = *ranks;
  } else {
    Result<Mesh> mesh = parse_mesh(options.mesh);
    if (!mesh) return in_context("--mesh", mesh.takeError());
    request.mesh = *mesh;
  }
  if (options.gpus > 0 && request.mesh.ranks() != options.gpus)
    return usage_error((options.mesh == "auto" ? "--devices names " : "--mesh " + options.mesh + " has ") +
                       llvm::Twine(request.mesh.ranks()) + " ranks, --gpus says " + llvm::Twine(options.gpus));
  if (const size_t devices = job.devices.size(); devices > 0 && request.mesh.ranks() != static_cast<int64_t>(devices))
    return usage_error("--mesh " + options.mesh + " has " + llvm::Twine(request.mesh.ranks()) +
                       " ranks, --devices names " + llvm::Twine(devices));
  if (Status s = read_pipeline(options, request)) return s;
  if (options.zero != "auto" &&
      (llvm::StringRef(options.zero).getAsInteger(10, request.zero) || request.zero < 0 || request.zero > 3))
    return usage_error("--zero " + options.zero + ": expected auto, 0, 1, 2 or 3");
  if (Status s =
          check_shares_rows("--zero " + options.zero, options.zero != "auto" && request.zero > 0, options, request))
    return s;
  if (options.zero == "auto") {
    job.any_zero = !needs_whole_parameters(request.optimizer.kind);
    request.zero = job.any_zero ? 1 : 0;
  }
  if (request.mesh.ranks() == 1) request.zero = 0;
  return Status::success();
}

// One for all ranks, or one for each.
Status read_budgets(llvm::StringRef text, CompileRequest& request) {
  llvm::SmallVector<llvm::StringRef, 8> sizes;
  text.split(sizes, ',');
  for (llvm::StringRef size : sizes) {
    Result<int64_t> bytes = size_option("--budget", size.trim());
    if (!bytes) return bytes.takeError();
    if (*bytes == 0 && sizes.size() > 1) return usage_error("--budget " + text + ": a size is missing");
    request.budgets.push_back(*bytes);
  }
  const int64_t ranks = request.training.mesh.ranks();
  if (sizes.size() == 1) {
    request.training.budget_bytes = request.budgets.front();
    request.budgets.clear();
  } else if (static_cast<int64_t>(sizes.size()) != ranks) {
    return usage_error("--budget " + text + ": " + llvm::Twine(sizes.size()) + " sizes for " + llvm::Twine(ranks) +
                       (ranks == 1 ? " rank" : " ranks") + "; give one for all or one for each");
  }
  return Status::success();
}

Status read_devices(llvm::StringRef text, CompileRequest& request) {
  if (text.empty()) return Status::success();
  llvm::SmallVector<llvm::StringRef, 8> names;
  text.split(names, ',');
  for (llvm::StringRef name : names) {
    if (name.trim().empty()) return usage_error("--devices " + text + ": a name is missing");
    request.devices.push_back(name.trim().str());
  }
  return Status::success();
}

Status read_precision_rules(const std::string& path, TrainingRequest& request) {
  if (path.empty()) return Status::success();
  if (!is_mixed(request.precision))
    return usage_error("--precision-file needs --precision bf16, fp16 or fp8, not " + request.precision);
  Result<std::unique_ptr<llvm::MemoryBuffer>> file = read_file(path);
  if (!file) return file.takeError();
  request.precision_rules = (*file)->getBuffer().str();
  return Status::success();
}

// "seq=128,256,512": the longest binds the dimension.
Status read_lengths(llvm::StringRef text, CompileRequest& request) {
  if (text.empty()) return Status::success();
  const auto [name, list] = text.split('=');
  llvm::SmallVector<llvm::StringRef, 4> words;
  list.split(words, ',');
  std::set<int64_t> lengths;
  for (llvm::StringRef word : words) {
    int64_t length = 0;
    if (name.empty() || word.getAsInteger(10, length) || length < 1)
      return usage_error("--lengths " + text + ": expected NAME=N,N,..., such as sequence=128,256,512");
    lengths.insert(length);
  }
  if (!request.import.dims.emplace(name.str(), *lengths.rbegin()).second)
    return usage_error("--lengths " + text + ": --dim binds " + name + " too");
  request.length_dim = name.str();
  request.shorter_lengths.assign(lengths.begin(), std::prev(lengths.end()));
  return Status::success();
}

void print_needs(const Plan& plan, llvm::raw_ostream& out) {
  out << "needs " << format_bytes(plan.promised_bytes());
  if (has_budget(plan)) out << " of " << format_bytes(plan.arenas.front().budget_bytes);
  out << " on " << plan.device.name;
}

// Of all stages together, what their ranks hold of a host.
void print_host_needs(const Plan& plan, llvm::raw_ostream& out) {
  const auto waits_there = [](const Plan* stage) { return stage->arenas.size() > 1; };
  if (plan.host.budget_bytes == 0 && llvm::none_of(plan.stages(), waits_there)) return;
  out << " and " << format_bytes(most_on_a_host(plan));
  if (plan.host.budget_bytes > 0) out << " of " << format_bytes(plan.host.budget_bytes);
  out << " of host memory";
  if (const int64_t ranks = needs_of_hosts(plan).front().ranks; plan.mesh.ranks() > 1)
    out << " for the " << format_count(ranks) << (ranks == 1 ? " rank" : " ranks") << " of a host";
}

void print_result(const CompileOptions& options, const Plan& plan, llvm::raw_ostream& out) {
  size_t instructions = 0;
  for (size_t f = 0; f < plan.functions.size(); ++f)
    if (plan.calls_per_step(f) > 0) instructions += plan.functions[f].instructions.size();
  out << options.output << ": ";
  const bool shows_all = !plan.has_one_device() || options.job.budget.find(',') != std::string::npos;
  for (const Plan* stage : shows_all ? plan.stages() : llvm::SmallVector<const Plan*, 4>{&largest_stage(plan)}) {
    if (shows_all && stage->stage > 0) out << ", ";
    if (shows_all && !plan.later_stages.empty()) out << "stage " << stage->stage << " ";
    print_needs(*stage, out);
  }
  print_host_needs(plan, out);
  out << ", " << format_count(static_cast<int64_t>(instructions)) << " instructions, predicted "
      << format_us(plan.predicted_step_us) << " per step";
  if (options.job.request.chooses_batch())
    out << " of " << plan.training.accumulate << " x " << plan.training.batch << " samples";
  if (const std::string how = how_it_fits(plan); how != "plain") out << ", with " << how;
  out << "\n";
}

Status write_html(const CompileOptions& options, const Plan& plan, llvm::ArrayRef<FrontierRow> front) {
  if (options.html.empty()) return Status::success();
  return write_output_file(
      options.html, [&](llvm::raw_ostream& out) { return print_plan_html(out, plan, {front}), Status::success(); });
}

// Writes the graph as text to stdout, or to --output in place of the plan.
Status write_stopped(const CompileOptions& options, const CompileRequest& request, const CompileHooks& hooks,
                     Console& console) {
  Result<std::string> text = Job::compile_until(request, hooks);
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

// What cannot be written is said before a long search and not after it.
Status check_outputs(const CompileOptions& options) {
  const JobOptions& job = options.job;
  const llvm::StringRef inputs[] = {job.request.model_path, job.request.device_file, job.request.timings,
                                    job.request.cluster, job.precision_file};
  for (const auto& [option, path] : {std::pair("--output", &options.output), std::pair("--html", &options.html)})
    if (!path->empty())
      if (Status s = check_output_file(*path, inputs)) return in_context(option, std::move(s));
  return Status::success();
}

// Plans the job once to know its shapes, times the kernels of these, and gives the job with the times.
Result<Job> tuned(const CompileOptions& options, const Job& job, const CompileHooks& hooks, Console& console) {
  TrainingRequest shapes_alone = job.request().training;
  shapes_alone.frontier = false;
  Result<Plan> plan = fitting_plan(choose_plan(job, shapes_alone, hooks));
  if (!plan) return plan.takeError();
  console.progress.phase("tune");
  Result<TimingCache> times = TimingCache::load_if_there(options.tune);
  if (!times) return times.takeError();
  Result<TuneReport> report = tune(*plan, *kernel_catalog_for(plan->device, job.request().any_order), *times);
  if (!report) return report.takeError();
  if (Status s = times->save(options.tune)) return s;
  console.out << "timed " << report->kernels << " kernels of " << report->calls << " calls\n";
  return job.with_timings(options.tune);
}

}  // namespace

Result<int64_t> size_option(llvm::StringRef option, llvm::StringRef text) {
  if (text.empty()) return 0;
  Result<int64_t> bytes = parse_bytes(text);
  if (!bytes) return in_context(option, bytes.takeError());
  if (*bytes == 0) return usage_error(option + ": must be above 0 bytes");
  return *bytes;
}

Status read_dims(llvm::ArrayRef<std::string> dims, ImportOptions& import) {
  for (llvm::StringRef dim : dims) {
    auto [name, number] = dim.rsplit('=');
    int64_t size = 0;
    if (name.empty() || number.getAsInteger(10, size) || size <= 0)
      return usage_error("--dim " + dim + ": expected NAME=N with N above 0");
    import.dims[name.str()] = size;
  }
  return Status::success();
}

Result<size_t> read_choice(llvm::StringRef option, llvm::StringRef text, llvm::ArrayRef<llvm::StringLiteral> choices) {
  if (const auto* found = llvm::find(choices, text); found != choices.end())
    return static_cast<size_t>(found - choices.begin());
  return usage_error(option + " " + text + ": expected " + llvm::join(choices.drop_back(), ", ") + " or " +
                     choices.back());
}

Result<CompileRequest> compile_request(const JobOptions& options) {
  CompileRequest request = options.request;
  if (Status s = read_devices(options.devices, request)) return s;
  TrainingRequest& training = request.training;
  EvaluationRequest& evaluation = training.evaluation;
  evaluation.wanted |= evaluation.batch > 0 || !evaluation.metrics.empty();
  if (Status s = read_dims(options.dims, request.import)) return s;
  if (Status s = read_lengths(options.lengths, request)) return s;
  if (Status s = read_precision_rules(options.precision_file, training)) return s;
  if (Status s = read_split(options.split, request.max_batch || request.best_batch, training)) return s;
  training.loss = llvm::join(options.losses, " + ");
  if (Status s = read_optimizer(options.optimizer, training)) return s;
  if (Status s = read_ranks(options, request)) return s;
  Result<size_t> masters = read_choice("--master-weights", options.master_weights, {"auto", "on", "off"});
  if (!masters) return masters.takeError();
  Result<size_t> moments = read_choice("--moments", options.moments, moment_formats);
  if (!moments) return moments.takeError();
  Result<size_t> batch_norm = read_choice("--batch-norm", options.batch_norm, {"synchronised", "local"});
  if (!batch_norm) return batch_norm.takeError();
  Result<size_t> sums = read_choice("--gradient-sums", options.gradient_sums, {"fp32", "bf16"});
  if (!sums) return sums.takeError();
  if (Status s = check_shares_rows("--batch-norm local", *batch_norm == 1, options, training)) return s;
  if (Status s = check_shares_rows("--gradient-sums bf16", *sums == 1, options, training)) return s;
  Result<size_t> layout = read_choice("--layout", options.layout, {"auto", "channels-first", "channels-last"});
  if (!layout) return layout.takeError();
  Result<size_t> recompute = read_choice("--recompute", options.recompute, {"off", "auto"});
  if (!recompute) return recompute.takeError();
  Result<size_t> offload = read_choice("--offload", options.offload, {"off", "auto"});
  if (!offload) return offload.takeError();
  if (Status s = read_budgets(options.budget, request)) return s;
  Result<int64_t> host_budget = size_option("--host-budget", options.host_budget);
  if (!host_budget) return host_budget.takeError();
  training.master_weights = static_cast<MasterWeights>(*masters);
  training.moments = static_cast<Moments>(*moments);
  training.batch_norm = static_cast<Statistics>(*batch_norm);
  training.sum_dtype = *sums == 1 ? DType::BF16 : DType::F32;
  training.layout = static_cast<ImageLayout>(*layout);
  training.recompute = *recompute == 1;
  training.offload = *offload == 1;
  training.host_budget_bytes = *host_budget;
  Result<int64_t> cache = size_option("--cache", options.cache);
  if (!cache) return cache.takeError();
  training.cache_bytes = *cache;
  if (Status s = check_ranges(request)) return s;
  return request;
}

// Names in --skip and --print-after are passes.
static Status check_passes(const CompileOptions& options) {
  for (const std::string& name : options.skip)
    if (Result<Pipeline> known = parse_pipeline(name); !known) return in_context("--skip", known.takeError());
  for (const std::string& name : options.print_after)
    if (name != "all")
      if (Result<Pipeline> known = parse_pipeline(name); !known) return in_context("--print-after", known.takeError());
  return Status::success();
}

static CompileHooks hooks_of(const CompileOptions& options, Console& console) {
  CompileHooks hooks;
  hooks.pipeline.dump_dir = options.dump_ir;
  hooks.pipeline.print_after = options.print_after;
  hooks.pipeline.skip = options.skip;
  hooks.pipeline.stop_after = options.stop_after;
  hooks.pipeline.log = &llvm::errs();
  hooks.on_phase = [&](llvm::StringRef phase) { console.progress.phase(phase); };
  return hooks;
}

Result<Plan> make_plan(const CompileOptions& options, Console& console, Prints prints) {
  if (Status s = check_outputs(options)) return s;
  if (Status s = check_passes(options)) return s;
  Result<CompileRequest> asked = compile_request(options.job);
  if (!asked) return asked.takeError();
  const CompileRequest& request = *asked;
  const CompileHooks hooks = hooks_of(options, console);
  if (!options.tune.empty() && request.has_unlike_devices())
    return usage_error(
        "--tune times the GPU in this machine, --devices names unlike ones; times that were measured on "
        "each of them can be given with --timings");
  Result<Job> job = Job::open(request, hooks);
  if (job && !options.tune.empty()) job = tuned(options, *job, hooks, console);
  if (!job) return job.takeError();
  Result<CompileResult> result = choose_plan(*job, job->request().training, hooks);
  if (!result) return result.takeError();
  const std::vector<FrontierRow> frontier = frontier_rows(result->frontier);
  print_frontier(console, frontier);
  if (Status s = write_html(options, result->plan, frontier)) return s;
  if (!result->fits)
    return refuse(*result, *job, with_choices_of(result->plan, job->request().training, job->request()), console);
  if (!job->request().shorter_lengths.empty()) {
    const TrainingRequest training = with_choices_of(result->plan, job->request().training, job->request());
    Result<Plan> plan = with_shorter_steps(*job, training, std::move(result->plan), hooks);
    if (!plan) return plan;
    result->plan = std::move(*plan);
  }
  if (prints == Prints::Search) {
    console.progress.finish();
    for (const Decision& decision : result->plan.decisions)
      if (decision.pass == "import") llvm::errs() << "plimsoll: note: " << printable(decision.reason) << "\n";
    TextTable table(console.out, {console.columns, console.out_is_terminal});
    print_mesh_search(table, result->plan);
  }
  return std::move(result->plan);
}

Status compile_command(const CompileOptions& options, Console& console) {
  if (options.output.empty() && options.stop_after.empty()) return usage_error("--output is required");
  if (!options.dump_ir.empty())
    if (std::error_code failure = llvm::sys::fs::create_directories(options.dump_ir))
      return system_error(options.dump_ir + ": " + failure.message());
  if (!options.stop_after.empty()) {
    Result<CompileRequest> request = compile_request(options.job);
    if (!request) return request.takeError();
    return write_stopped(options, *request, hooks_of(options, console), console);
  }
  Result<Plan> plan = make_plan(options, console, Prints::Search);
  if (!plan) return plan.takeError();
  console.progress.phase("write");
  if (Status s = save_plan(*plan, options.output)) return s;
  console.progress.finish();
  print_result(options, *plan, console.out);
  return Status::success();
}

}  // namespace plimsoll
