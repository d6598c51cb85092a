#include "frontend/driver/checkpoints.h"

#include "frontend/driver/stop_signals.h"
#include "ir/support/strings.h"
#include "ir/support/units.h"

#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"

#include <unistd.h>
#include <cerrno>
#include <cmath>
#include <ctime>

namespace plimsoll {
namespace {

std::string now_in_utc() {
  const std::time_t now = std::time(nullptr);
  std::tm parts = {};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

// Seconds of "90s", "10min" or "2h"; none for other texts.
std::optional<double> parse_duration(llvm::StringRef text) {
  double factor = 1, number = 0;
  if (text.consume_back("min"))
    factor = 60;
  else if (text.consume_back("h"))
    factor = 3600;
  else if (!text.consume_back("s"))
    return std::nullopt;
  if (text.trim().getAsDouble(number) || !std::isfinite(number) || number <= 0) return std::nullopt;
  return factor * number;
}

// Whether a folder can be made at `path` or written to.
Status check_folder(const std::string& path) {
  llvm::SmallString<128> there(path);
  llvm::sys::fs::make_absolute(there);
  while (!llvm::sys::fs::exists(there)) llvm::sys::path::remove_filename(there);
  if (!llvm::sys::fs::is_directory(there)) return system_error("--checkpoint " + path + ": " + there + " is no folder");
  if (::access(there.c_str(), W_OK | X_OK) == 0) return Status::success();
  return system_error("--checkpoint " + path + ": " + there + ": " + std::generic_category().message(errno));
}

constexpr int64_t bit_stop = 1, bit_due = 2;

// Of a record: its plan's and its metrics' entries about evaluations.
constexpr llvm::StringLiteral best_metric_key = "best_by", best_value_key = "best", best_step_key = "best_step",
                              since_best_key = "evaluations_since_best";

}  // namespace

Status Checkpoints::check_options() {
  if (options_.resume == "auto" && !writes())
    return usage_error("--resume auto looks for the newest checkpoint in --checkpoint DIR, which is not given");
  if (writes())
    if (Status s = check_folder(options_.folder)) return s;
  if (!llvm::StringRef(options_.every).getAsInteger(10, every_steps_) && every_steps_ > 0) return Status::success();
  every_steps_ = 0;
  const std::optional<double> seconds = parse_duration(options_.every);
  if (!seconds)
    return usage_error("--every " + options_.every +
                       ": give a number of updates, such as 500, or a time: 90s, 10min, 2h");
  every_seconds_ = *seconds;
  return Status::success();
}

Status Checkpoints::open_folder() {
  if (!writes()) return Status::success();
  Result<CheckpointFolder> folder = CheckpointFolder::open(options_.folder);
  if (!folder) return folder.takeError();
  folder_ = std::move(*folder);
  return Status::success();
}

// The newest is written before the oldest is removed.
std::optional<DiskNeed> Checkpoints::disk_need(int64_t snapshot_bytes) const {
  if (!folder_) return std::nullopt;
  const auto there = std::min<int64_t>(static_cast<int64_t>(folder_->checkpoints().size()), options_.keep);
  const int64_t more = options_.keep + 1 - there;
  return DiskNeed{std::to_string(more) + (there > 0 ? " more" : "") + (more == 1 ? " checkpoint" : " checkpoints"),
                  options_.folder, more * snapshot_bytes};
}

Status Checkpoints::open(Session& session, std::optional<uint64_t> seed) {
  session_ = &session;
  if (!options_.resume.empty())
    if (Status s = find_resumed()) return s;
  choose_seed(seed);
  if (!writes()) return Status::success();
  if (is_first_rank())
    if (Status s = reserve()) return s;
  catch_stop_signals();
  last_.step = taken_step_ = start_.steps;
  taken_at_ = Clock::now();
  set_next_step();
  return Status::success();
}

// On the first rank.
Result<std::optional<Checkpoint>> Checkpoints::choose_resumed() {
  const bool is_auto = options_.resume == "auto";
  const std::string& where = is_auto ? options_.folder : options_.resume;
  if (llvm::sys::fs::exists(where + "/" + checkpoint_record_file.str())) {
    Result<Checkpoint> found = open_checkpoint(where, Check::Checksums);
    if (!found) return found.takeError();
    return std::optional(std::move(*found));
  }
  Result<NewestCheckpoint> newest = newest_checkpoint(where);
  if (!newest) return newest.takeError();
  for (const std::string& reason : newest->skipped) console_.progress.note("skipped " + reason);
  if (!newest->found && (!is_auto || !newest->skipped.empty()))
    return model_error(where + ": has no whole checkpoint to resume");
  return std::move(newest->found);
}

// The first rank chooses and looks at every byte; the others open the same one.
Status Checkpoints::find_resumed() {
  constexpr int64_t no_checkpoint = -1;
  std::string path;
  if (is_first_rank()) {
    Result<std::optional<Checkpoint>> chosen = choose_resumed();
    if (!chosen) return chosen.takeError();
    resumed_ = std::move(*chosen);
  }
  Result<int64_t> step = session_->number_of_first_rank(resumed_ ? resumed_->record.step : no_checkpoint);
  if (!step) return step.takeError();
  if (*step == no_checkpoint) return Status::success();
  if (!is_first_rank()) {
    const std::string& where = options_.resume == "auto" ? options_.folder : options_.resume;
    const bool is_one = llvm::sys::fs::exists(where + "/" + checkpoint_record_file.str());
    Result<Checkpoint> same = open_checkpoint(is_one ? where : path_of_checkpoint(where, *step), Check::Sizes);
    if (!same) return same.takeError();
    resumed_ = std::move(*same);
  }
  Result<CheckpointStates> states = CheckpointStates::open(*resumed_, *session_);
  if (!states) return states.takeError();
  states_ = std::move(*states);
  resume_reader();
  return Status::success();
}

// A batch of another size: the reader goes on with the batch that has the first sample that was not read.
void Checkpoints::resume_reader() {
  const CheckpointRecord& record = resumed_->record;
  start_.steps = record.step;
  start_.batches = record.batches;
  const int64_t samples = session_->plan().training.batch;
  if (is_first_rank()) {
    console_.progress.note("resumes " + resumed_->path + ", step " + std::to_string(record.step));
    for (const std::string& difference : states_->differences()) console_.progress.note(difference);
  }
  if (samples == record.batch_samples || samples == 0 || record.batch_samples == 0) return;
  start_.batches = record.batches * record.batch_samples / samples;
  if (is_first_rank())
    console_.progress.note("the checkpoint had read " + std::to_string(record.batches) + " batches of " +
                           std::to_string(record.batch_samples) + " samples, the plan has batches of " +
                           std::to_string(samples) + ": the data go on with batch " + std::to_string(start_.batches));
}

void Checkpoints::choose_seed(std::optional<uint64_t> asked) {
  start_.seed = asked ? *asked : resumed_ ? resumed_->record.seed : 0;
  if (resumed_ && start_.seed != resumed_->record.seed && is_first_rank())
    console_.progress.note("the checkpoint was made with --seed " + std::to_string(resumed_->record.seed) +
                           "; the order of the data is now that of --seed " + std::to_string(start_.seed) +
                           ", dropout goes on with its own");
}

Status Checkpoints::restore(const Weights* weights) {
  if (!weights && !states_->lacking_weights().empty())
    return usage_error(resumed_->path + ": lacks " + list_some(states_->lacking_weights()) +
                       "; give a file that has them as --weights FILE");
  const WeightLoader none = [](llvm::StringRef name, const TensorView&) {
    return model_error("no file has the weight '" + name + "'");
  };
  return session_->restore(states_->saved(), weights ? weights->load : none, start_.seed,
                           weights ? weights->load_range : nullptr);
}

// Takes the memory of snapshots, on the first rank.
Status Checkpoints::reserve() {
  if (!resumed_ && !folder_->checkpoints().empty())
    return usage_error(options_.folder + ": has checkpoints up to step " +
                       llvm::Twine(folder_->checkpoints().back().record.step) +
                       " of an earlier run; go on with --resume auto, or give another folder");
  const int64_t bytes = Snapshot::bytes_for(session_->whole_states());
  console_.progress.note("checkpoints in " + options_.folder + " every " +
                         (every_steps_ > 0 ? std::to_string(every_steps_) + " steps" : options_.every) + ", at most " +
                         std::to_string(options_.keep) + ": each " + format_bytes(bytes) +
                         " on the disk and as much host memory" +
                         (session_->plan().device.backend == "cuda" ? ", pinned" : ""));
  return snapshot_.allocate(*session_);
}

void Checkpoints::set_next_step() {
  if (every_steps_ > 0)
    next_step_ = (taken_step_ / every_steps_ + 1) * every_steps_;
  else
    next_step_ = std::numeric_limits<int64_t>::max();
}

Status Checkpoints::after_step(const StepMetrics& metrics, int64_t started) {
  last_ = metrics;
  if (!writes()) return Status::success();
  if (writer_.was_started() && writer_.is_done()) collect();
  int64_t bits = stop_requested() ? bit_stop : 0;
  if (is_first_rank() && every_seconds_ > 0 &&
      std::chrono::duration<double>(Clock::now() - taken_at_).count() >= every_seconds_)
    bits |= bit_due;
  Result<int64_t> all = session_->bits_of_all_ranks(bits);
  if (!all) return all.takeError();
  if (*all != 0) next_step_ = std::min(next_step_, started);
  stop_requested_ = stop_requested_ || (*all & bit_stop) != 0;
  const bool is_best = best_ && best_->step == metrics.step;
  return metrics.step == next_step_ || is_best ? take() : Status::success();
}

CheckpointRecord Checkpoints::record() const {
  const Plan& plan = session_->plan();
  CheckpointRecord record;
  record.step = last_.step;
  record.sequence = folder_->next_sequence();
  record.time = now_in_utc();
  record.model = plan.model;
  record.weights_hash = llvm::utohexstr(hash_of_weights(*session_), /*LowerCase=*/true);
  record.seed = start_.seed;
  record.batches = start_.batches + (last_.step - start_.steps) * plan.training.accumulate;
  record.batch_samples = plan.training.batch;
  record.plan = {{"precision", plan.training.precision},
                 {"optimizer", plan.training.optimizer},
                 {"mesh", to_string(plan.mesh)},
                 {"device", plan.device.name}};
  record.schedule = {{"learning_rate", last_.learning_rate}};
  record.metrics = {{"loss", last_.loss}, {"grad_norm", last_.grad_norm}, {"step_ms", last_.step_ms}};
  if (last_.loss_scale) record.metrics["loss_scale"] = *last_.loss_scale;
  if (best_) {
    record.plan[best_metric_key.str()] = best_->metric;
    record.metrics[best_value_key.str()] = best_->value;
    record.metrics[best_step_key.str()] = static_cast<double>(best_->step);
    record.metrics[since_best_key.str()] = static_cast<double>(best_->since);
  }
  return record;
}

std::optional<BestEvaluation> Checkpoints::resumed_best() const {
  if (!resumed_) return std::nullopt;
  const CheckpointRecord& record = resumed_->record;
  const auto metric = record.plan.find(best_metric_key.str());
  const auto number = [&](llvm::StringRef key) {
    const auto found = record.metrics.find(key.str());
    return found == record.metrics.end() ? std::nullopt : std::optional(found->second);
  };
  const std::optional<double> value = number(best_value_key), step = number(best_step_key),
                              since = number(since_best_key);
  if (metric == record.plan.end() || !value || !step || !since) return std::nullopt;
  return BestEvaluation{metric->second, *value, static_cast<int64_t>(*step), static_cast<int64_t>(*since)};
}

// Of an asynchronous device all steps that were started are finished.
Status Checkpoints::take() {
  const Clock::time_point start = Clock::now();
  if (writer_.was_started()) collect();
  if (Status s = snapshot_.take(*session_)) return s;
  taken_step_ = last_.step;
  taken_at_ = Clock::now();
  waited_s_ += std::chrono::duration<double>(taken_at_ - start).count();
  ++taken_;
  set_next_step();
  if (!is_first_rank()) return Status::success();
  llvm::SmallVector<int64_t, 2> staying;
  if (best_) staying.push_back(best_->step);
  writer_.start([this, staying, record = record()]() -> Status {
    // A run that was killed before it removed one may have left one too many. The resumed one is known to be whole, and
    // stays until there is a newer one of this run.
    llvm::SmallVector<int64_t, 2> staying_now = staying;
    staying_now.push_back(start_.steps);
    if (Status s = folder_->remove_old(options_.keep, staying_now)) return s;
    if (Status s = folder_->write(record, {{checkpoint_weights_file, snapshot_.weights().bytes()},
                                           {checkpoint_states_file, snapshot_.states().bytes()}}))
      return s;
    return folder_->remove_old(options_.keep, staying);
  });
  return Status::success();
}

// A failure is told at once; the next checkpoint tries again.
void Checkpoints::collect() {
  Status written = writer_.finish();
  failure_.reset();
  if (!written) return;
  failure_ = take_diag(std::move(written));
  console_.progress.note("the checkpoint of step " + std::to_string(taken_step_) +
                         " was not written, older ones are as they were, training goes on: " + failure_->text());
}

Status Checkpoints::take_last() { return writes() && last_.step != taken_step_ ? take() : Status::success(); }

Status Checkpoints::finish() {
  if (writer_.was_started()) collect();
  if (taken_ > 0 && is_first_rank())
    console_.progress.note("training waited " + format_us(1e6 * waited_s_) + " for " + std::to_string(taken_) +
                           (taken_ == 1 ? " checkpoint" : " checkpoints"));
  if (!failure_) return Status::success();
  return in_context("the last checkpoint was not written", llvm::make_error<Diag>(*failure_));
}

}  // namespace plimsoll
