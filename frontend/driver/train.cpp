#include "frontend/api/save_states.h"
#include "frontend/driver/commands.h"
#include "frontend/driver/machine_needs.h"
#include "ir/support/strings.h"
#include "runtime/checkpoint/checkpoint_folder.h"
#include "runtime/data/token_windows.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"

#include <unistd.h>

// A job is compile and run in one process, with the options of both. What can be wrong without a plan is said before
// the search for one.

namespace plimsoll {
namespace {

Status check_exists(llvm::StringRef option, const std::string& path) {
  if (llvm::sys::fs::exists(path)) return Status::success();
  return system_error(option + " " + path + ": no such file or folder");
}

// One path, or a list of token files.
Status check_data_exists(llvm::StringRef option, const std::string& data) {
  Result<std::vector<NamedTokenFile>> files = token_files_named(data);
  if (!files) return in_context(option, files.takeError());
  for (const NamedTokenFile& file : *files)
    if (Status s = check_exists(option, file.path)) return s;
  return Status::success();
}

Status check_inputs(const RunOptions& run, const std::string& model) {
  if (Status s = check_exists("--model", model)) return s;
  if (Status s = check_data_exists("--data", run.data)) return s;
  if (!run.evaluation.data.empty())
    if (Status s = check_data_exists("--evaluate-data", run.evaluation.data)) return s;
  if (!run.adapter.empty())
    if (Status s = check_exists("--adapter", run.adapter)) return s;
  if (run.random_weights) return Status::success();
  if (Status s = check_exists("--weights", run.weights)) return s;
  return open_weights(run.weights).takeError();
}

// All checkpoints that are kept, the one that is written before the oldest is removed, and what is saved at the end
// hold at least the weights. The run looks again once the plan says what else a checkpoint has.
Status check_disk_for_weights(const RunOptions& run, const std::string& model) {
  const size_t saves = run.save.size() + run.save_ema.size();
  if (run.checkpoints.folder.empty() && saves == 0) return Status::success();
  Result<int64_t> bytes = min_weight_bytes(model);
  if (!bytes) return bytes.takeError();
  std::vector<DiskNeed> needs;
  const bool is_first_start = !llvm::sys::fs::exists(run.checkpoints.folder);
  if (!run.checkpoints.folder.empty() && is_first_start)
    needs.push_back({"weights of " + std::to_string(run.checkpoints.keep + 1) + " checkpoints", run.checkpoints.folder,
                     (run.checkpoints.keep + 1) * *bytes});
  for (const auto* paths : {&run.save, &run.save_ema})
    for (const std::string& path : *paths) needs.push_back({path, path, *bytes});
  return check_disk(needs);
}

// Where a dry run writes in place of the job's files: beside them, so that the same disk is tried.
class ScratchFiles {
 public:
  ~ScratchFiles() {
    for (const std::string& path : paths_) {
      llvm::sys::fs::remove(path);
      llvm::sys::fs::remove(path + ".data");  // the weights of a large .onnx
      llvm::sys::fs::remove_directories(path);
    }
  }
  std::string beside(const std::string& path) {
    llvm::SmallString<128> scratch(path);
    while (ends_with(scratch, "/")) scratch.pop_back();
    const std::string name = ".dry-run-" + std::to_string(getpid()) + "-" + llvm::sys::path::filename(scratch).str();
    llvm::sys::path::remove_filename(scratch);
    llvm::sys::path::append(scratch, name);
    paths_.push_back(scratch.str().str());
    return paths_.back();
  }

 private:
  std::vector<std::string> paths_;
};

// One step of the job that writes elsewhere. A job that has checkpoints already goes on from the newest.
Result<RunOptions> one_step_of(RunOptions run, ScratchFiles& scratch) {
  run.steps_here = 1;
  run.evaluation.batches = 1;
  run.profile.clear();
  run.dump_gradients.clear();
  for (auto* paths : {&run.save, &run.save_ema})
    for (std::string& path : *paths) path = scratch.beside(path);
  for (std::string* path : {&run.save_adapter, &run.save_quantized})
    if (!path->empty()) *path = scratch.beside(*path);
  for (std::string* path : {&run.log.json_lines, &run.log.csv, &run.log.events, &run.log.folder})
    if (!path->empty()) *path = scratch.beside(*path);
  CheckpointOptions& checkpoints = run.checkpoints;
  if (checkpoints.folder.empty()) return run;
  if (checkpoints.resume == "auto") {
    Result<NewestCheckpoint> newest = newest_checkpoint(checkpoints.folder);
    if (!newest) return newest.takeError();
    checkpoints.resume = newest->found ? newest->found->path : "";
  }
  checkpoints.folder = scratch.beside(checkpoints.folder);
  return run;
}

// What was gone through, and what the job has none of.
std::string describe_dry_run(const RunOptions& once, bool evaluated) {
  const size_t saves = once.save.size() + once.save_ema.size() + (once.save_adapter.empty() ? 0 : 1) +
                       (once.save_quantized.empty() ? 0 : 1);
  std::string done = "dry run: compiled, loaded, one step", lacks;
  const auto add = [&](bool is_there, const std::string& what, const char* plural) {
    is_there ? done += ", " + what : lacks += (lacks.empty() ? "; the job has no " : ", no ") + std::string(plural);
  };
  add(evaluated, "an evaluation of one batch", "evaluation");
  add(!once.checkpoints.folder.empty(), "a checkpoint", "checkpoints");
  add(saves > 0, std::to_string(saves) + (saves == 1 ? " save" : " saves"), "--save");
  return done + lacks + "; what it wrote is removed";
}

}  // namespace

Status train_command(const TrainOptions& options, Console& console) {
  const std::string& model = options.compile.job.request.model_path;
  RunOptions run = options.run;
  run.states_job = true;
  run.model = model;
  if (run.weights.empty() && !run.random_weights) run.weights = model;
  if (Status s = check_inputs(run, model)) return s;
  if (Status s = check_disk_for_weights(run, model)) return s;
  CompileOptions compile_options = options.compile;
  const bool evaluates = !run.evaluation.data.empty() || run.evaluation.every > 0;
  bool& wants_evaluation = compile_options.job.request.training.evaluation.wanted;
  wants_evaluation |= evaluates;
  compile_options.job.request.decodes_images |= run.data_request.decode == "gpu";
  compile_options.job.request.training.checkpoints |= !run.checkpoints.folder.empty();
  const PlanMaker compile = [&](bool is_first_rank) {
    return make_plan(compile_options, console, is_first_rank ? Prints::Search : Prints::Nothing);
  };
  if (!options.dry_run) return run_plan(run, console, compile);

  ScratchFiles scratch;
  Result<RunOptions> once = one_step_of(std::move(run), scratch);
  if (!once) return once.takeError();
  if (Status s = run_plan(*once, console, compile)) return s;
  const bool evaluated = evaluates || (wants_evaluation && once->data_request.hold_out > 0);
  console.out << describe_dry_run(*once, evaluated) << "\n";
  return Status::success();
}

}  // namespace plimsoll
