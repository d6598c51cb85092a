#include "frontend/api/adapters.h"
#include "frontend/api/save_quantized.h"
#include "frontend/api/save_states.h"
#include "frontend/driver/checkpoints.h"
#include "frontend/driver/host_memory.h"
#include "frontend/driver/machine_needs.h"
#include "frontend/driver/profile.h"
#include "frontend/driver/run_data.h"
#include "frontend/driver/run_evaluation.h"
#include "frontend/inspect/text_table.h"
#include "frontend/log/log_folder.h"
#include "ir/plan/check.h"
#include "ir/plan/serialize.h"
#include "ir/support/output_file.h"
#include "ir/support/printable.h"
#include "ir/support/strings.h"
#include "ir/support/units.h"
#include "runtime/bad_result.h"
#include "runtime/checkpoint/saved_states.h"
#include "runtime/data/safetensors.h"
#include "runtime/data/token_windows.h"

#include "llvm/Support/FileSystem.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/MemoryBuffer.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <ctime>
#include <thread>

namespace plimsoll {
namespace {

// The local time after so many seconds, with the day where it is not today.
std::string local_time_in(double seconds) {
  const std::time_t now = std::time(nullptr), then = now + std::llround(seconds);
  std::tm here = {}, there = {};
  localtime_r(&now, &here);
  localtime_r(&then, &there);
  const bool is_today = here.tm_yday == there.tm_yday && here.tm_year == there.tm_year;
  char text[32];
  std::strftime(text, sizeof text, is_today ? "%H:%M" : "%Y-%m-%d %H:%M", &there);
  return text;
}

struct NamedGradient {
  TensorEntry entry;
  Tensor value;
};

Status write_gradients(llvm::StringRef path, std::vector<NamedGradient> gradients) {
  llvm::sort(gradients, [](const NamedGradient& a, const NamedGradient& b) { return a.entry.name < b.entry.name; });
  std::vector<TensorEntry> entries;
  for (const NamedGradient& gradient : gradients) entries.push_back(gradient.entry);
  size_t next = 0;
  return write_safetensors(path, entries, [&](const TensorEntry& entry, void* out) {
    std::memcpy(out, gradients[next++].value.data(), static_cast<size_t>(entry.type.bytes()));
    return Status::success();
  });
}

class Run {
 public:
  Run(const RunOptions& options, Console& console, const PlanMaker& make_plan, JobRanks& ranks)
      : options_(options),
        console_(console),
        make_plan_(make_plan),
        ranks_(ranks),
        checkpoints_(options.checkpoints, console),
        evaluation_(options) {}

  // A rank that fails says so before its files are closed, which may take a while: the others would wait for it.
  Status execute() { return ranks_.abandoned(train_and_save()); }

 private:
  bool is_first_rank() const { return ranks_.is_first(); }
  std::string model_of_saves() const {
    if (!options_.model.empty()) return options_.model;
    return ends_with(options_.weights, ".onnx") ? options_.weights : "";
  }
  SaveSources save_sources() const { return {model_of_saves(), options_.weights}; }
  // The plan's promise, with what JPEG decoding takes beside it.
  int64_t promised_bytes() const { return session_->plan().promised_bytes() + data_.decoding_bytes(); }

  Status train_and_save() {
    if (Status s = prepare()) return s;
    if (Status s = train()) return s;
    if (Status s = checkpoints_.take_last()) return s;
    if (console_.was_stopped) return checkpoints_.finish();
    Status promise = check_promise();  // a broken one loses no weights
    if (Status s = profile_and_save()) return llvm::consumeError(std::move(promise)), std::move(s);
    if (!is_first_rank()) return promise;
    console_.progress.finish();
    report();
    return promise;
  }

  Status profile_and_save() {
    if (!options_.profile.empty())
      if (Status s = profile_step(*session_, ranks_.communicator(), options_.profile, console_)) return s;
    if (const std::string& log = options_.log.folder; !options_.profile.empty() && !log.empty() && is_first_rank())
      if (std::error_code failure = llvm::sys::fs::copy_file(options_.profile, path_in_log(log, log_times_file)))
        return system_error(log + ": " + failure.message());
    for (const std::string& path : options_.save) {
      console_.progress.phase("save");
      if (Status s = save_states(*session_, path, save_sources())) return s;
    }
    if (!options_.save_adapter.empty()) {
      console_.progress.phase("save");
      if (Status s = save_adapter(*session_, options_.save_adapter, adapter_format_)) return s;
    }
    if (!options_.save_quantized.empty()) {
      console_.progress.phase("save");
      if (Status s = save_quantized(*session_, options_.save_quantized)) return s;
    }
    for (const std::string& path : options_.save_ema)
      if (Status s = save_states(*session_, path, save_sources(), SavedWeights::Mean)) return s;
    return checkpoints_.finish();
  }

  Status check_outputs() const;
  Status check_machine(const Plan& plan);
  int64_t snapshot_bytes_of(const Plan& plan) const;
  Status check_saves(const Plan& plan);
  Result<Plan> own_plan();
  Status prepare();
  Status explain_bad_step(const StepMetrics& metrics);
  Status train();
  Status start(bool first);
  Status report_evaluation(int64_t step, Result<std::optional<EvaluationResult>> result);
  Status first_values();
  Status load_weights();
  Status check_adapters(const StepMetrics& metrics);
  Status check_promise();
  int64_t last_step() const;
  void state_job() const;
  void report() const;
  std::string describe(const StepMetrics& metrics, double items_per_s) const;

  const RunOptions& options_;
  Console& console_;
  const PlanMaker& make_plan_;
  JobRanks& ranks_;
  Session* session_ = nullptr;  // that of ranks_
  RankMemory takes_;
  DecodeChoice decode_;
  RunData data_;
  Checkpoints checkpoints_;
  RunEvaluation evaluation_;
  RunLog log_;
  AdapterFormat adapter_format_ = AdapterFormat::Peft;
  std::optional<PlannedAdapters> unchecked_adapters_;  // none: there are none, or they were seen to learn
  int64_t device_bytes_ = 0;
  double first_loss_ = 0, last_loss_ = 0;
  std::string last_evaluation_;                // empty: there was none
  std::vector<double> step_ms_, items_per_s_;  // by step
};

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double planned_rate(const Plan& plan) {
  for (const auto& [name, value] : plan.training.hyperparameters)
    if (name == "lr") return value;
  return 0;
}

Status Run::first_values() {
  if (Status s = load_weights()) return s;
  return options_.adapter.empty() || checkpoints_.resumes() ? Status::success()
                                                            : load_adapter(*session_, options_.adapter);
}

Status Run::load_weights() {
  if (checkpoints_.resumes() && options_.weights.empty()) return checkpoints_.restore(nullptr);
  if (options_.random_weights) return session_->initialise_randomly(options_.init_seed, options_.init_std);
  if (options_.weights.empty())
    return usage_error("run needs first values of the weights: --weights FILE (.onnx or .safetensors) or --init SEED");
  Result<Weights> weights = open_weights(options_.weights);
  if (!weights) return weights.takeError();
  if (checkpoints_.resumes()) return checkpoints_.restore(&*weights);
  return session_->initialise(weights->load, options_.seed.value_or(0), weights->load_range, weights->type_of);
}

// A first update that leaves adapters as they began has no gradient for them, and no later one will.
Status Run::check_adapters(const StepMetrics& metrics) {
  if (!unchecked_adapters_ || metrics.learning_rate == 0 || metrics.skipped_steps > 0) return Status::success();
  const PlannedAdapters adapters = *std::exchange(unchecked_adapters_, std::nullopt);
  Result<std::vector<std::string>> unmoved = unmoved_adapters(*session_, adapters);
  if (!unmoved || unmoved->empty()) return unmoved.takeError();
  const std::string which = std::to_string(unmoved->size()) + " of " + std::to_string(adapters.modules.size()) +
                            " adapters (" + list_some(*unmoved) + ")";
  if (unmoved->size() == adapters.modules.size())
    return model_error("the first update left " + which + " as they began: no gradient reaches them");
  console_.progress.note("the first update left " + which + " as they began: no gradient reached them");
  return Status::success();
}

Status check_log(const std::string& path, llvm::ArrayRef<llvm::StringRef> inputs) {
  if (Status s = check_not_an_input(path, inputs)) return s;
  return check_can_append(path);
}

// What cannot be written is said before the first step and not after the last.
Status Run::check_outputs() const {
  if (!options_.save_adapter.empty())
    if (Status s = check_adapter_target(options_.save_adapter, adapter_format_)) return s;
  Result<std::vector<NamedTokenFile>> data = token_files_named(options_.data);
  if (!data) return in_context("--data", data.takeError());
  std::vector<llvm::StringRef> inputs = {options_.plan, options_.weights, options_.model, options_.evaluation.data};
  for (const NamedTokenFile& file : *data) inputs.push_back(file.path);
  for (const auto* paths : {&options_.save, &options_.save_ema})
    if (Status s = check_save_targets(*paths, model_of_saves(), inputs)) return s;
  for (const auto& [option, path] :
       {std::pair("--metrics", &options_.log.json_lines), std::pair("--csv", &options_.log.csv)})
    if (!path->empty())
      if (Status s = check_log(*path, inputs)) return in_context(option, std::move(s));
  for (const auto& [option, folder] :
       {std::pair("--tensorboard", &options_.log.events), std::pair("--log", &options_.log.folder),
        std::pair("--checkpoint", &options_.checkpoints.folder)})
    if (!folder->empty())
      if (Status s = check_can_fill(*folder)) return in_context(option, std::move(s));
  for (const auto& [option, path] :
       {std::pair("--dump-gradients", &options_.dump_gradients), std::pair("--profile", &options_.profile)})
    if (!path->empty())
      if (Status s = check_output_file(*path, inputs)) return in_context(option, std::move(s));
  return Status::success();
}

// Before the device's memory is taken and weights are read.
Status Run::check_machine(const Plan& plan) {
  if (is_first_rank())
    if (Status s = check_saves(plan)) return s;
  Result<int64_t> cache = cache_bytes_of_run(options_.cache, plan);
  if (!cache) return cache.takeError();
  if (plan.mesh.ranks() != ranks_.count()) return Status::success();  // the session will refuse it
  const int64_t stage = plan.mesh.coordinate(ranks_.rank(), MeshAxis::Stage);
  const Plan& own = *plan.stages()[static_cast<size_t>(stage)];
  Result<DecodeChoice> decode = choose_decoder(options_, own, *cache);
  if (!decode) return decode.takeError();
  decode_ = std::move(*decode);
  takes_ = memory_of_rank(own, *cache, snapshot_bytes_of(plan));
  takes_.decoding_bytes = decode_.pinned_bytes;
  return Status::success();
}

// Of the first rank, which writes checkpoints.
int64_t Run::snapshot_bytes_of(const Plan& plan) const {
  return is_first_rank() && !options_.checkpoints.folder.empty() ? Snapshot::bytes_for(whole_states_of(plan)) : 0;
}

Status Run::check_saves(const Plan& plan) {
  const bool has_adapters = adapters_of(plan).has_value();  // whose weights --save does not write
  for (const auto* paths : {&options_.save, &options_.save_ema})
    if (Status s = has_adapters ? Status::success() : check_save_sources(*paths, save_sources(), plan)) return s;
  if (!options_.save_quantized.empty())
    if (Status s =
            check_quantized_target(options_.save_quantized, plan, {options_.plan, options_.weights, options_.model}))
      return s;
  if (Status s = checkpoints_.open_folder()) return s;
  std::vector<DiskNeed> needs;
  if (std::optional<DiskNeed> checkpoints = checkpoints_.disk_need(snapshot_bytes_of(plan)))
    needs.push_back(*checkpoints);
  int64_t weight_bytes = 0;
  for (const WholeState& state : whole_states_of(plan))
    if (is_weight(state)) weight_bytes += state.type.bytes();
  for (const auto* paths : {&options_.save, &options_.save_ema})
    for (const std::string& path : *paths) needs.push_back({path, path, weight_bytes});
  if (const std::string& path = options_.save_quantized; !path.empty()) needs.push_back({path, path, weight_bytes});
  return check_disk(needs);
}

// What each rank sees by itself, before it waits for others.
Result<Plan> Run::own_plan() {
  Result<size_t> format = read_choice("--adapter-format", options_.adapter_format, adapter_formats);
  if (!format) return format.takeError();
  adapter_format_ = static_cast<AdapterFormat>(*format);
  if (Status s = check_outputs()) return s;
  if (Status s = checkpoints_.check_options()) return s;
  if (Result<size_t> known = read_choice("--on-bad-loss", options_.on_bad_loss, {"stop", "continue"}); !known)
    return known.takeError();
  Result<Plan> plan = make_plan_(is_first_rank());
  if (!plan) return plan;
  if (plan->mesh.ranks() > 1 && !options_.dump_gradients.empty())
    return usage_error("--dump-gradients: a plan for several ranks has no whole gradients; compile it for one");
  if (Status s = check_machine(*plan)) return s;
  return plan;
}

Status Run::prepare() {
  Result<Plan> plan = own_plan();
  if (Status s = ranks_.agreed(plan ? Status::success() : plan.takeError())) return s;
  if (Status s = check_host_memory(plan->host, takes_, ranks_)) return s;
  console_.progress.phase("load");
  ExecutorOptions executor{.threads = options_.threads, .poison = options_.poison};
  executor.patience_s = options_.patience_s;
  Result<Session*> session = ranks_.open_session(std::move(*plan), executor);
  if (!session) return session.takeError();
  session_ = *session;
  if (!options_.save_ema.empty() && !has_mean_weights(*session_))
    return usage_error(
        "--save-ema: the plan keeps no running mean of the weights; compile it with --ema, such as 0.999");
  unchecked_adapters_ = adapters_of(session_->plan());
  if (!unchecked_adapters_ && !options_.save_adapter.empty())
    return usage_error("--save-adapter: the plan has no adapters; compile it with --lora-rank, such as 8");
  if (unchecked_adapters_ && !(options_.save.empty() && options_.save_ema.empty()))
    return usage_error(
        "--save: what a plan with adapters trains is saved with --save-adapter; `plimsoll merge` adds it to "
        "the weights");
  if (Status s = checkpoints_.open(*session_, options_.seed)) return s;
  if (Status s = data_.open(options_, checkpoints_.start(), *session_, decode_, ranks_.communicator())) return s;
  if (is_first_rank() && !data_.decoding_note().empty()) console_.progress.note(data_.decoding_note());
  if (const std::string note = data_.source().note(); is_first_rank() && !note.empty())
    llvm::errs() << "plimsoll: note: " << printable(note) << "\n";
  if (Status s = evaluation_.open(*session_, checkpoints_.start())) return s;
  if (evaluation_.is_wanted() && session_->plan().evaluation.of_mean && is_first_rank())
    console_.progress.note("evaluations are of the running mean of the weights (--ema)");
  if (const auto best = checkpoints_.resumed_best(); best && evaluation_.is_wanted()) {
    evaluation_.resume(*best);
    checkpoints_.note_evaluation(evaluation_.best());
  }
  if (Status s = first_values()) return s;
  Result<LearningRateSchedule> schedule = read_schedule(
      options_.rate, options_.learning_rate >= 0 ? options_.learning_rate : planned_rate(session_->plan()),
      data_.steps());
  if (!schedule) return schedule.takeError();
  session_->set_schedule(*schedule);
  Result<MemoryUse> use = session_->executor().memory_use();
  if (!use) return use.takeError();
  device_bytes_ = use->process_bytes > 0 ? use->process_bytes : use->arena_bytes + use->other_bytes;
  if (decode_.on_gpu && use->process_bytes > promised_bytes())
    return budget_error("before the first step the process holds " + format_bytes(use->process_bytes) +
                        " of device memory, " + format_bytes(promised_bytes()) +
                        " are promised with JPEG decoding; --decode cpu takes less");
  if (!is_first_rank()) return Status::success();
  if (options_.states_job) state_job();
  if (const int64_t done = checkpoints_.start().steps; checkpoints_.resumes() && done >= data_.steps())
    console_.progress.note("there is nothing left to train: the checkpoint has " + format_count(done) + " steps, " +
                           format_count(data_.steps()) + " are asked for");
  return log_.open(options_.log, checkpoints_.start().steps, fields_of(session_->plan()),
                   {&session_->plan(), data_.steps(), data_.item_name().str()});
}

int64_t Run::last_step() const {
  const int64_t all = data_.steps();
  return options_.steps_here > 0 ? std::min(all, checkpoints_.start().steps + options_.steps_here) : all;
}

void Run::state_job() const {
  const Plan& plan = session_->plan();
  const int64_t left = std::max<int64_t>(0, data_.steps() - checkpoints_.start().steps);
  const double seconds = static_cast<double>(left) * plan.predicted_step_us / 1e6;
  const std::string batch = plan.training.batch > 0 ? " of " + std::to_string(plan.training.accumulate) + " x " +
                                                          std::to_string(plan.training.batch) + " samples"
                                                    : "";
  console_.progress.note("holds " + format_bytes(promised_bytes()) + " on " + plan.device.name + "; " +
                         format_count(left) + (left == 1 ? " step" : " steps") + batch + ", predicted " +
                         format_us(plan.predicted_step_us) + " each, " + describe_duration(seconds) +
                         " in all, until " + local_time_in(seconds));
}

Status Run::start(bool first) {
  if (!first || options_.dump_gradients.empty()) return session_->start(data_.source());
  std::vector<NamedGradient> gradients;
  GradientSink sink = [&](llvm::StringRef parameter, const Tensor& gradient) {
    gradients.push_back({{parameter.str(), gradient.type()}, gradient});
    return Status::success();
  };
  if (Status s = session_->start(data_.source(), &sink)) return s;
  return write_gradients(options_.dump_gradients, std::move(gradients));
}

Status Run::report_evaluation(int64_t step, Result<std::optional<EvaluationResult>> result) {
  if (!result || !*result) return result.takeError();
  if (Status s = log_.write(record_of(step, **result, evaluation_.is_best()))) return s;
  checkpoints_.note_evaluation(evaluation_.best());
  last_evaluation_ = describe_evaluation(**result);
  if (is_first_rank()) console_.progress.note("step " + std::to_string(step) + ": " + last_evaluation_);
  return Status::success();
}

Status Run::train() {
  console_.progress.phase("train");
  // On an asynchronous device the next step starts before the results of this one are read.
  const int64_t ahead = session_->executor().runs_ahead() ? 1 : 0;
  const int64_t first = checkpoints_.start().steps, steps = last_step();
  int64_t done = first, started = done;
  while (done < steps && !checkpoints_.stops() && !evaluation_.stops()) {
    const int64_t end = std::min({done + 1 + ahead, steps, checkpoints_.next_step(), evaluation_.next_step()});
    for (; started < end; ++started) {
      if (Status s = start(started == first)) return s;
      data_.count_started_step();
    }
    Result<StepMetrics> metrics = session_->finish();
    if (!metrics) return metrics.takeError();
    done = metrics->step;
    if (step_ms_.empty()) {
      first_loss_ = metrics->loss;
      data_.start_clock();
    }
    last_loss_ = metrics->loss;
    step_ms_.push_back(metrics->step_ms);
    const double items_per_s = data_.take_items() * 1e3 / metrics->step_ms;
    items_per_s_.push_back(items_per_s);
    if (Status s = log_.write(record_of(*metrics, items_per_s, device_bytes_))) return s;
    if (is_first_rank()) console_.progress.step(done, steps, describe(*metrics, items_per_s));
    if (metrics->is_bad && options_.on_bad_loss == "stop") return explain_bad_step(*metrics);
    if (Status s = check_adapters(*metrics)) return s;
    if (Status s = report_evaluation(done, evaluation_.after_step(done))) return s;
    if (Status s = checkpoints_.after_step(*metrics, started)) return s;
  }
  console_.was_stopped = checkpoints_.stops() && done < steps;
  return console_.was_stopped ? Status::success() : report_evaluation(done, evaluation_.after_last_step(done));
}

// By now the step has spoilt the weights. What went wrong in it is seen by repeating the run up to it.
Status Run::explain_bad_step(const StepMetrics& metrics) {
  constexpr double longest_repetition_s = 120;
  const bool loss_is_bad = !std::isfinite(metrics.loss);
  const double number = loss_is_bad ? metrics.loss : metrics.grad_norm;
  const std::string what = "step " + std::to_string(metrics.step) + ": " +
                           (loss_is_bad ? "the loss is " : "the norm of the gradients is ") +
                           (std::isnan(number) ? "NaN" : "infinite");
  const std::string end = "; no weights are saved (--on-bad-loss continue goes on)";
  double spent_s = 0;
  for (double ms : step_ms_) spent_s += ms / 1e3;
  if (spent_s > longest_repetition_s)
    return model_error(what +
                       "; the first op whose result is bad was not looked for, because repeating the steps takes " +
                       format_us(1e6 * spent_s) + end);
  console_.progress.phase("look for the first bad result");
  if (Status s = data_.source().seek(checkpoints_.start().batches)) return s;
  if (Status s = first_values()) return s;
  for (int64_t step = checkpoints_.start().steps + 1; step < metrics.step; ++step)
    if (Result<StepMetrics> again = session_->step(data_.source()); !again) return again.takeError();
  Result<std::optional<BadResult>> bad = find_bad_result(*session_, data_.source());
  if (!bad) return bad.takeError();
  return model_error(
      what + "; " + (*bad ? plimsoll::describe(**bad, session_->plan()) : "the repeated step has no bad result") + end);
}

// Compares the plan's promise with the memory that the driver counts. The run fails if the promise is broken.
Status Run::check_promise() {
  const Plan& plan = session_->plan();
  Result<MemoryUse> use = session_->executor().memory_use();
  if (!use) return use.takeError();
  if (use->process_bytes == 0) return Status::success();
  device_bytes_ = use->process_bytes;
  if (is_first_rank()) {
    console_.out << "promised " << format_bytes(promised_bytes()) << ", held " << format_bytes(use->process_bytes)
                 << " (" << use->source << "), of it arenas " << format_bytes(use->arena_bytes);
    for (const Arena& arena : plan.arenas)
      if (arena.space == MemorySpace::Host) console_.out << "; pinned on the host " << format_bytes(arena.bytes);
    console_.out << "\n";
  }
  if (use->process_bytes <= promised_bytes()) return Status::success();
  return budget_error("the promise is broken: the plan promised " + format_bytes(promised_bytes()) +
                      ", the process holds " + format_bytes(use->process_bytes) + "; outside the arenas it holds " +
                      format_bytes(use->other_bytes) + ", the plan reserves " +
                      format_bytes(plan.device.reserve_bytes()));
}

std::string Run::describe(const StepMetrics& metrics, double items_per_s) const {
  return llvm::formatv("loss {0:f4}  ", metrics.loss).str() + format_us(1e3 * metrics.step_ms) + "  " +
         format_count(std::llround(items_per_s)) + " " + data_.item_name().str() + "/s  holds " +
         format_bytes(device_bytes_) + " of " + format_bytes(promised_bytes());
}

void Run::report() const {
  for (const auto* paths : {&options_.save, &options_.save_ema})
    for (const std::string& path : *paths) console_.out << "saved " << path << "\n";
  for (const std::string& path : {options_.save_adapter, options_.save_quantized})
    if (!path.empty()) console_.out << "saved " << path << "\n";
  if (step_ms_.empty()) return;  // --steps 0 only loads the first values, to save or to check them
  const double typical_ms = median_of(step_ms_);
  console_.out << step_ms_.size() << (step_ms_.size() == 1 ? " step, " : " steps, ")
               << llvm::formatv("loss {0:f4} -> {1:f4}, ", first_loss_, last_loss_) << format_us(1e3 * typical_ms)
               << " per step, " << format_count(std::llround(median_of(items_per_s_))) << " " << data_.item_name()
               << "/s, " << format_bytes(device_bytes_) << " held\n";
  if (!last_evaluation_.empty())
    console_.out << "evaluated " << last_evaluation_ << evaluation_.describe_best() << "\n";
  const double predicted_us = session_->plan().predicted_step_us;
  console_.out << "median step " << format_us(1e3 * typical_ms) << ", predicted " << format_us(predicted_us)
               << llvm::formatv(": {0:f2} times the prediction\n", 1e3 * typical_ms / predicted_us);
  if (const std::string wait = data_.describe_wait(); !wait.empty()) console_.out << wait << "\n";
  if (const std::string cache = data_.describe_cache(); !cache.empty()) console_.out << cache << "\n";
  if (const std::string decoding = data_.describe_decoding(); !decoding.empty()) console_.out << decoding << "\n";
}

}  // namespace

Status run_plan(const RunOptions& options, Console& console, const PlanMaker& make) {
  return JobRanks::run(console, std::max(options.patience_s, default_patience_s),
                       [&](JobRanks& ranks) { return Run(options, console, make, ranks).execute(); });
}

Status run_command(const RunOptions& options, Console& console) {
  return run_plan(options, console, [&](bool) -> Result<Plan> {
    Result<Plan> plan = load_plan(options.plan);
    if (!plan) return plan;
    if (Status s = check_plan(*plan)) return in_context(options.plan, std::move(s));
    return plan;
  });
}

}  // namespace plimsoll
