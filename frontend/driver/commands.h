#pragma once

// The subcommands as functions on plain options, which command_options.h fills in; nothing here knows about it.

#include "frontend/api/job.h"
#include "frontend/api/merge_adapter.h"
#include "frontend/driver/optimizer_options.h"
#include "frontend/driver/progress.h"
#include "frontend/log/log_targets.h"
#include "runtime/learning_rate.h"

namespace plimsoll {

// Results go to `out`, and progress to `progress`, which writes to stderr.
struct Console {
  llvm::raw_ostream& out;
  Progress& progress;
  bool out_is_terminal = false;
  int columns = 100;
  int error_columns = 0;              // of the terminal that shows errors; 0: they go elsewhere, a line each
  std::function<void()> after_error;  // called once an error has been printed, and nothing is destroyed after
  bool was_stopped = false;           // by a signal, after which the command ended cleanly
};

// A job as the command line gives it: the request, and options whose text the command reads into it.
struct JobOptions {
  CompileRequest request{.device = "auto"};
  std::vector<std::string> dims;  // NAME=N
  std::string lengths;            // NAME=N,N,...; empty: one length
  OptimizerOptions optimizer;
  std::vector<std::string> losses;  // added up
  std::string precision_file, master_weights = "auto", moments = "f32", layout = "auto";
  std::string recompute = "auto", offload = "auto";
  std::string split;  // empty: auto, but off with max_batch
  // Sizes with units, that of the device's memory one for all ranks or one for each with commas between; empty: the
  // device's memory, unlimited.
  std::string budget, host_budget;
  std::string cache;    // size of decoded samples that a run may keep; empty: none
  std::string devices;  // of each rank, with commas between; empty: request.device for all
  int64_t gpus = 0;     // 0: as many as the mesh has
  std::string mesh = "auto", zero = "auto", batch_norm = "synchronised", gradient_sums = "fp32";
  std::string schedule = "auto", runs_per_stage = "auto", micro_batches = "auto";
};

struct CompileOptions {
  JobOptions job;
  std::string output;
  std::string tune;  // measured times are added to this timing cache
  std::string html;  // the report is written here too
  std::string dump_ir, stop_after;
  std::vector<std::string> print_after, skip;
};

struct FitCommandOptions {
  JobOptions job;                    // its device is not used
  std::vector<std::string> devices;  // empty: every known device
  int64_t cards = 0;                 // not 0: also for 1, 2, 4 and so on up to this many cards
};

struct InspectOptions {
  std::string plan;
  bool json = false, text = false;
  std::string html, trace, memory_viz;  // files
  std::string beside;                   // another plan, on the page of `html`
  std::string profile;                  // a timing cache, for the trace
  std::string why, diff;
};

struct WatchCommandOptions {
  std::string folder;
  int port = 0;  // 0: a free one
  std::string html;
};

// How a data set is read; the texts are checked by read_data_options.
struct DataRequest {
  double hold_out = 0;
  bool in_order = false;
  std::string last_batch = "drop";
  std::string transforms;       // a TOML file
  int threads = 0;              // 0: by the data
  int64_t document_end = -1;    // token that ends a document; -1: none
  std::string labels = "auto";  // what a token file gives them
  std::string decode = "auto";  // of JPEGs; of a run alone
};

// How the learning rate goes on, as text where it may be a number or a multiple.
struct RateOptions {
  std::string shape = "constant";
  std::string warmup_from, end;     // empty: as the shape has it
  int64_t warmup = -1, decay = -1;  // updates; below 0: as the shape has it
  int64_t updates = 0;              // 0: those of the run
  double power = -1;                // below 0: 1
};
// The schedule around a peak, for a run of so many updates.
Result<LearningRateSchedule> read_schedule(const RateOptions& options, double peak, int64_t updates);

struct CheckpointOptions {
  std::string folder;           // empty: none are written
  std::string every = "10min";  // "100": updates; with s, min or h: time
  int64_t keep = 3;
  std::string resume;  // a checkpoint, a folder of them, or "auto": the newest in `folder`; empty: from the start
};

// The evaluations of a run.
struct EvaluationOptions {
  std::string data;        // empty: none
  int64_t every = 0;       // steps; 0: only after the last
  int64_t batches = 0;     // 0: all; of data without an end as many as Evaluator::default_batches
  int64_t early_stop = 0;  // evaluations without a better metric after which the run ends; 0: never
  std::string best_by;     // the metric that decides; empty: the first of the plan
};

// Of evaluate and predict.
struct EvaluateOptions {
  std::string plan, weights, data;
  std::string adapter;  // a folder or a file, of a plan with adapters
  std::string output;   // of evaluate JSON, of predict tensors
  int64_t batches = 0;
  double hold_out = 0;     // share of the samples that a run did not train with; 0: all samples
  std::string transforms;  // of training, a TOML file
  uint64_t seed = 0;
  int64_t document_end = -1;    // as of training
  std::string labels = "auto";  // likewise
  int threads = 0;
  bool poison = false;
};

struct VerifyOptions {
  std::string plan, weights, data;
  std::string reproducer;  // a folder; empty: beside the plan
  std::string against;     // an .onnx file whose forward values ONNX Runtime computes too; empty: none
  uint64_t seed = 0;
  int threads = 0;
};

struct RunOptions {
  std::string plan;
  std::string weights;
  std::string model;  // of which saved files have the graph and all names; empty: what `weights` names
  bool random_weights = false;
  uint64_t init_seed = 0;  // seed of the random weights
  double init_std = 0;     // deviation of all their matrices; 0: by kind of layer
  std::string data;
  DataRequest data_request;
  std::string cache;              // size of decoded images that are kept; empty: what the plan says
  int64_t steps = 1, epochs = 0;  // with epochs the steps follow from the data
  // Seed of dropout and of the order of the data; none: 0, or that of the checkpoint that the run resumes.
  std::optional<uint64_t> seed;
  double learning_rate = -1;  // below 0: the plan's learning rate
  RateOptions rate;
  int threads = 0;
  double patience_s = 0;  // 0: by the predicted step
  bool poison = false;
  std::string profile;  // this run's times are added to this timing cache
  LogTargets log;
  std::string dump_gradients;
  std::vector<std::string> save, save_ema;
  std::string adapter;       // whose adapters the run goes on from; empty: fresh ones
  std::string save_adapter;  // a folder or a file; empty: none is saved
  std::string adapter_format = "peft";
  std::string save_quantized;  // a file of the frozen weights as they are stored; empty: none is saved
  CheckpointOptions checkpoints;
  EvaluationOptions evaluation;
  std::string on_bad_loss = "stop";  // or "continue"
  int64_t steps_here = 0;            // above 0: no more steps than these are made by this run
  bool states_job = false;           // says before the first step what the job takes and when it ends
};

// A job: what compile and run take, with the plan in memory in between.
struct TrainOptions {
  CompileOptions compile;
  RunOptions run;
  bool dry_run = false;
};

struct MergeCommandOptions {
  MergeRequest request;
  std::vector<std::string> dims;  // NAME=N
};

struct DataCommandOptions {
  std::string data;
  std::string plan;  // empty: only the data are described
  uint64_t seed = 0;
  DataRequest data_request;
};

struct CheckOptions {
  JobOptions job;  // the model, loss and weights
};

struct DevicesOptions {
  bool measure = false;
  std::string device_file;
  std::string device = "auto";  // of each rank, where several measure
};

// Of the program, by whose fault it is: docs/command_line.md.
int exit_code(Fault fault);
inline constexpr int exit_code_stopped = 6;  // a signal ended the run after a last checkpoint
// A line on stderr, written at once: several ranks may share it.
void print_error(llvm::StringRef text);

Status compile_command(const CompileOptions& options, Console& console);
Status fit_command(const FitCommandOptions& options, Console& console);
Status inspect_command(const InspectOptions& options, Console& console);
Status watch_command(const WatchCommandOptions& options, Console& console);
Status run_command(const RunOptions& options, Console& console);
Status train_command(const TrainOptions& options, Console& console);
Status merge_command(const MergeCommandOptions& options, Console& console);
Status data_command(const DataCommandOptions& options, Console& console);
Status evaluate_command(const EvaluateOptions& options, Console& console);
Status verify_command(const VerifyOptions& options, Console& console);
Status predict_command(const EvaluateOptions& options, Console& console);
Status check_command(const CheckOptions& options, Console& console);
Status devices_command(const DevicesOptions& options, Console& console);

// Bytes that the text of an option says; 0: it is empty.
Result<int64_t> size_option(llvm::StringRef option, llvm::StringRef text);
// The place of `text` among the choices of an option.
Result<size_t> read_choice(llvm::StringRef option, llvm::StringRef text, llvm::ArrayRef<llvm::StringLiteral> choices);

// Binds dimensions, each as NAME=N.
Status read_dims(llvm::ArrayRef<std::string> dims, ImportOptions& import);
// The request with the texts read, for compile, fit and check.
Result<CompileRequest> compile_request(const JobOptions& options);
// A plan that fits, or why there is none. What came of the search is printed where `prints` says so.
enum class Prints : bool { Nothing, Search };
Result<Plan> make_plan(const CompileOptions& options, Console& console, Prints prints);

// Trains with the plan that `make` gives once the ranks are connected; for run it is read from a file.
using PlanMaker = std::function<Result<Plan>(bool is_first_rank)>;
Status run_plan(const RunOptions& options, Console& console, const PlanMaker& make);

}  // namespace plimsoll
