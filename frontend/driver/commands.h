#pragma once

// The subcommands as functions on plain options. command_line.cpp fills the options in; nothing here knows about it.

#include "frontend/api/job.h"
#include "frontend/driver/progress.h"

namespace plimsoll {

// Results go to `out`, and progress to `progress`, which writes to stderr.
struct Console {
  llvm::raw_ostream& out;
  Progress& progress;
  bool out_is_terminal = false;
  int columns = 100;
};

// The options about the model, which compile, fit and check share.
struct ModelOptions {
  std::string model;
  std::vector<std::string> dims;  // NAME=N
  int64_t batch = 0;
  std::string loss;
  std::vector<std::string> train, freeze;
  bool freeze_norm = false;
};

struct CompileOptions {
  ModelOptions model;
  std::string output;
  std::string optimizer = "adamw";
  OptimizerSpec optimizer_settings;
  int64_t accumulate = 1;
  double clip_grad_norm = 0;
  double loss_scale = TrainingRequest().first_loss_scale;
  std::string precision = "exported", precision_file, master_weights = "auto", layout = "auto";
  std::string device = "auto", device_file, timings;
  bool any_order = false;
  std::string tune;  // measured times are added to this timing cache
  std::string recompute = "auto", offload = "auto";
  std::string split;         // empty: auto, but off with max_batch
  int64_t global_batch = 0;  // 0: --batch and --accumulate decide
  bool max_batch = false;
  bool pareto = false;
  std::string html;                 // the report is written here too
  std::string budget, host_budget;  // sizes with units; empty: the device's memory, unlimited
  std::string dump_ir, stop_after;
  std::vector<std::string> print_after, skip;
};

struct FitCommandOptions {
  CompileOptions compile;            // the job; `device` and `output` are not used
  std::vector<std::string> devices;  // empty: every known device
};

struct InspectOptions {
  std::string plan;
  bool json = false, text = false;
  std::string html, why, diff;
};

struct RunOptions {
  std::string plan;
  std::string weights;
  bool random_weights = false;
  uint64_t init_seed = 0;  // seed of the random weights
  std::string data;
  int64_t steps = 1;
  uint64_t seed = 0;          // seed of dropout and of the order of the data
  double learning_rate = -1;  // below 0: the plan's learning rate
  int threads = 0;
  bool poison = false;
  std::string profile;  // this run's times are added to this timing cache
  std::string metrics, dump_gradients;
  std::vector<std::string> save;
};

struct CheckOptions {
  ModelOptions model;
};

struct DevicesOptions {
  bool measure = false;
  std::string device_file;
};

Status compile_command(const CompileOptions& options, Console& console);
Status fit_command(const FitCommandOptions& options, Console& console);
Status inspect_command(const InspectOptions& options, Console& console);
Status run_command(const RunOptions& options, Console& console);
Status check_command(const CheckOptions& options, Console& console);
Status devices_command(const DevicesOptions& options, Console& console);

// Read the options that compile, fit and check share.
Result<ImportOptions> import_options(const ModelOptions& options);
Result<CompileRequest> compile_request(const CompileOptions& options);

}  // namespace plimsoll
