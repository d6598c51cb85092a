#include "frontend/driver/command_line.h"

#include "frontend/driver/commands.h"
#include "frontend/driver/config_file.h"
#include "ir/support/did_you_mean.h"
#include "ir/support/printable.h"
#include "ir/support/strings.h"

#include "llvm/Support/ErrorHandling.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Process.h"
#include "llvm/Support/Signals.h"

#include <CLI/CLI.hpp>

#include <unistd.h>
#include <new>

// Only this file knows CLI11. Options become plain structs; sizes and names stay text until the command reads them, so
// that the command words their errors.

namespace plimsoll {
namespace {

struct Options {
  CompileOptions compile;
  FitCommandOptions fit;
  DataCommandOptions data;
  InspectOptions inspect;
  RunOptions run;
  TrainOptions train;
  EvaluateOptions evaluate, predict;
  VerifyOptions verify;
  CheckOptions check;
  DevicesOptions devices;
  std::string config;
};

// Adds an option that takes a value of the kind that `value` says, such as FILE. A list takes one value each time the
// option is given.
template <typename T>
CLI::Option* add_option(CLI::App& command, const char* name, T& variable, const char* value, const char* help) {
  CLI::Option* option = command.add_option(name, variable, help)->type_name(value);
  return std::is_same_v<T, std::vector<std::string>> ? option->allow_extra_args(false) : option;
}

// The same for an option whose help shows its default.
template <typename T>
CLI::Option* add_setting(CLI::App& command, const char* name, T& variable, const char* value, const char* help) {
  return add_option(command, name, variable, value, help)->capture_default_str();
}

void add_config(CLI::App& command, Options& options) {
  add_option(command, "--config", options.config, "FILE", "read more options from a TOML file: NAME = VALUE");
}

// CLI11's own range check is not used: its message prints the largest double.
CLI::Validator at_least(int64_t least) {
  return CLI::Validator(
      [least](std::string& text) {
        double value = 0;
        bool number = !llvm::StringRef(text).getAsDouble(value);
        return number && value >= static_cast<double>(least)
                   ? std::string()
                   : text + " is not a number of at least " + std::to_string(least);
      },
      "");
}

// `name` is MODEL, or --model of a command that takes another file first.
void add_model(CLI::App& command, JobOptions& options, const char* name = "MODEL") {
  TrainingRequest& training = options.request.training;
  const bool is_option = llvm::StringRef(name).startswith("-");
  add_option(command, name, options.request.model_path, is_option ? "FILE" : "", "the exported model, an .onnx file")
      ->required();
  add_option(command, "--dim", options.dims, "NAME=N",
             "bind a symbolic dimension to a size; may be given several times");
  add_option(command, "--batch", training.batch, "N", "change the batch that the exporter fixed")->check(at_least(1));
  add_option(
      command, "--loss", options.losses, "LOSS",
      "the output that is the loss, a loss to build: cross-entropy:LOGITS:LABELS, mse:A:B, bce:A:B, or a sum such "
      "as 'ce + 0.5*mse:A:B'; several are added up; default: the only scalar float output");
  add_option(command, "--train", training.train, "REGEX",
             "train the weights that match this regular expression; default: every parameter");
  add_option(command, "--freeze", training.freeze, "REGEX",
             "do not train the weights that match this regular expression");
  command.add_flag("--freeze-norm", options.request.import.freeze_norm,
                   "batch norms use their running statistics and do not change them");
}

void add_evaluation(CLI::App& command, EvaluationRequest& request) {
  command.option_defaults()->group("Evaluation");
  command.add_flag("--evaluate", request.wanted,
                   "the plan gets a function that computes the loss and the model's outputs and changes no state");
  add_option(
      command, "--metric", request.metrics, "NAME",
      "also evaluate accuracy, top5, perplexity, f1, miou or a scalar output of the model; accuracy:LOGITS:LABELS "
      "names what is counted; may be given several times");
  add_option(command, "--evaluate-batch", request.batch, "N",
             "batch of the evaluation; default: that of training, halved while evaluation needs more memory")
      ->check(at_least(1));
  command.option_defaults()->group("Options");
}

void add_optimizer(CLI::App& command, JobOptions& options) {
  TrainingRequest& training = options.request.training;
  OptimizerOptions& optimizer = options.optimizer;
  command.option_defaults()->group("Optimizer");
  add_setting(command, "--optimizer", optimizer.name, "NAME",
              "sgd, adam, adamw, adafactor, lion, rmsprop, adagrad, lamb or muon");
  for (size_t i = 0; i < std::size(optimizer_settings); ++i)
    add_option(command, option_name(optimizer_settings[i]).c_str(), optimizer.settings[i], "X",
               option_help(optimizer_settings[i]).c_str());
  command.add_flag("--nesterov", optimizer.nesterov, "use Nesterov momentum, for sgd; muon always does");
  add_option(
      command, "--group", optimizer.groups, "REGEX:NAME=VALUE,...",
      "other settings for the weights that match this regular expression: lr=X, or lr=0.1x for a multiple; "
      "weight_decay=X; with muon also optimizer=adamw; of several groups the first that has a setting decides it");
  add_option(command, "--no-decay", optimizer.no_decay, "REGEX",
             "no weight decay for the weights that match this regular expression, or norms-and-biases: all with fewer "
             "than two dimensions");
  add_setting(command, "--layer-rate", training.layer_rate, "X",
              "factor of the learning rate from each layer to the one below it")
      ->check(at_least(0));
  add_option(command, "--ema", training.ema, "X",
             "keep a running mean of the weights with this decay, such as 0.999, in f32")
      ->check(at_least(0));
  add_setting(command, "--master-weights", options.master_weights, "WHEN",
              "fp32 copies of the weights that the optimizer updates: auto (for 16-bit weights), on, off");
  add_setting(command, "--accumulate", training.accumulate, "N", "micro-batches per update")->check(at_least(1));
  add_setting(command, "--clip-grad-norm", training.clip_grad_norm, "X",
              "scale gradients down to at most this global norm; 0 turns it off")
      ->check(at_least(0));
  add_setting(command, "--clip-grad-value", training.clip_grad_value, "X",
              "bound each element of the gradients to at most this size, before --clip-grad-norm; 0 turns it off")
      ->check(at_least(0));
  add_setting(command, "--loss-scale", training.first_loss_scale, "X",
              "first factor of the loss in fp16; it halves after an overflow")
      ->check(at_least(1));
  command.option_defaults()->group("Options");
}

void add_ranks(CLI::App& command, JobOptions& options) {
  command.option_defaults()->group("Several ranks");
  add_option(command, "--gpus", options.gpus, "N", "number of devices that share the job; each runs as one rank")
      ->check(at_least(1));
  add_setting(command, "--mesh", options.mesh, "MESH",
              "how the ranks share the job: auto, or their number along each axis, such as data=2,tensor=2 or stage=2: "
              "data divides the batch, tensor divides matmuls, heads and vocabularies, stage divides layers");
  add_setting(command, "--schedule", options.schedule, "NAME",
              "order in which the stages of a pipeline take micro-batches: 1f1b (one forward, one backward), zb1p (the "
              "same, with gradients of weights where a stage would wait), interleaved (each stage has several runs of "
              "layers, and micro-batches go round the stages), v (two runs of layers on each stage, there and back, "
              "with gradients of weights between), or auto: the fastest that fits");
  add_setting(command, "--runs-per-stage", options.runs_per_stage, "N",
              "runs of layers that each stage of --schedule interleaved has; auto: as many as are fastest");
  add_setting(command, "--micro-batches", options.micro_batches, "N",
              "equal parts of a rank's batch that go through the stages of a pipeline one after the other; auto: as "
              "many as divide the batch, up to four for each stage");
  add_setting(
      command, "--zero", options.zero, "STAGE",
      "what ranks with different rows divide: 0 nothing, 1 the optimizer's states, 2 also accumulated gradients, "
      "3 also parameters; auto: 1");
  add_option(command, "--cluster", options.request.cluster, "FILE",
             "how the devices hang together, as `devices --measure` writes it on several ranks; without --gpus and "
             "--mesh the job has all of them");
  add_setting(
      command, "--batch-norm", options.batch_norm, "WHEN",
      "statistics of batch norms: synchronised: of all ranks' rows, so that a step equals one rank's; local: of "
      "each rank's own rows, running statistics being the mean over the ranks");
  command.option_defaults()->group("Options");
}

void add_passes(CLI::App& command, CompileOptions& options) {
  command.option_defaults()->group("Looking inside");
  add_option(command, "--dump-ir", options.dump_ir, "DIR", "write the graph after each pass that changed it");
  add_option(command, "--print-after", options.print_after, "PASS",
             "print the graph after this pass, or after `all` passes");
  add_option(command, "--stop-after", options.stop_after, "PASS",
             "stop after this pass, or after the phase clean, train or fit, and print the graph instead of writing "
             "a plan");
  add_option(command, "--skip", options.skip, "PASS", "do not run this pass");
  command.option_defaults()->group("Options");
}

// Adds the options of the job that compile and fit share.
void add_job(CLI::App& command, JobOptions& options) {
  add_option(command, "--device-file", options.request.device_file, "FILE",
             "file with more device descriptions, as `devices --measure` prints them");
  command.add_flag("--any-order", options.request.any_order,
                   "allow faster kernels whose results differ in their last bits from run to run");
  add_option(command, "--timings", options.request.timings, "FILE",
             "file with measured kernel times, as `run --profile` and `--tune` write it");
  add_option(command, "--budget", options.budget, "BYTES",
             "device memory that the job may hold in all, of each rank, or one size for each with commas between; "
             "default: the memory of the device");
  add_setting(
      command, "--recompute", options.recompute, "auto|off",
      "auto: rematerialise values, that is compute them again instead of keeping them, where the budget needs it; "
      "off: refuse the budget instead");
  add_setting(command, "--offload", options.offload, "auto|off",
              "auto: keep states and values in host memory while they wait, where the budget needs it; off: use device "
              "memory alone");
  add_option(command, "--split", options.split, "auto|off|N[:VALUE]",
             "run part of the model chunk by chunk of the batch; auto: where the budget needs it (the default, except "
             "with --max-batch); off: never; N: in N chunks; N:VALUE: in N chunks from this value on");
  add_option(command, "--host-budget", options.host_budget, "BYTES",
             "host memory that --offload may pin; default: no limit");
  add_setting(command, "--precision", options.request.training.precision, "NAME",
              "exported, fp32, tf32, bf16 or fp16 (16-bit compute with fp32 parameters), or auto: the one with the "
              "least predicted time on the device");
  add_option(command, "--precision-file", options.precision_file, "FILE",
             "file with exceptions to --precision: lines such as 'op:exp = fp32' or 'module:REGEX = fp32'");
  add_setting(command, "--layout", options.layout, "NAME",
              "layout of images: channels-first, channels-last, or auto (the one in which the device's convolutions "
              "are faster)");
  add_ranks(command, options);
  add_optimizer(command, options);
}

// Adds what says on which devices and for which batch the job is planned, of a command that makes one plan.
void add_target(CLI::App& command, CompileOptions& compile) {
  CompileRequest& request = compile.job.request;
  auto* device =
      add_setting(command, "--device", request.device, "NAME",
                  "device to plan for: a name that `plimsoll devices` lists, or auto: the device in this machine");
  add_option(
      command, "--devices", compile.job.devices, "NAMES",
      "the device of each rank, with commas between, such as h200,h200,rtx4090; unlike ones become the stages of "
      "a pipeline unless --mesh says otherwise")
      ->excludes(device);
  add_option(command, "--tune", compile.tune, "FILE",
             "time every kernel alternative on the GPU in this machine, add the times to this file, and plan with "
             "them");
  auto* global_batch =
      add_option(command, "--global-batch", request.global_batch, "N",
                 "samples per update; the micro-batch and --accumulate are chosen for the least predicted time")
          ->check(CLI::PositiveNumber);
  command.add_flag("--max-batch", request.max_batch, "plan for the largest batch that fits")->excludes(global_batch);
  add_evaluation(command, compile.job.request.training.evaluation);
}

void add_compile(CLI::App& program, Options& options) {
  CLI::App& command = *program.add_subcommand("compile", "turn a model into a training plan that fits a budget");
  CompileOptions& compile = options.compile;
  add_model(command, compile.job);
  add_option(command, "-o,--output", compile.output, "PLAN", "the plan to write");
  add_target(command, compile);
  command
      .add_flag("--pareto", compile.job.request.training.frontier,
                "also print what smaller budgets cost, down to the smallest that fits")
      ->excludes("--global-batch")
      ->excludes("--max-batch");
  add_option(command, "--html", compile.html, "FILE",
             "also write the report as one HTML file, with the rows of --pareto if it is given; if nothing fits, the "
             "report shows the plan that needs least");
  add_job(command, compile.job);
  add_passes(command, compile);
  add_config(command, options);
}

void add_fit(CLI::App& program, Options& options) {
  CLI::App& command = *program.add_subcommand("fit", "say on which devices a training job fits, how, and how fast");
  add_model(command, options.fit.job);
  add_option(command, "--device", options.fit.devices, "NAME",
             "a name that `plimsoll devices` lists, or auto; may be given several times; default: every known device");
  add_option(command, "--cards", options.fit.cards, "N",
             "also plan for 2, 4, 8 and so on up to N cards that share the batch, and print a table for each device")
      ->check(at_least(2));
  add_job(command, options.fit.job);
  add_config(command, options);
}

void add_inspect(CLI::App& program, Options& options) {
  CLI::App& command = *program.add_subcommand("inspect", "show what lives when, where, and why");
  InspectOptions& inspect = options.inspect;
  add_option(command, "PLAN", inspect.plan, "", "a plan that compile wrote")->required();
  CLI::Option* forms[] = {
      command.add_flag("--json", inspect.json, "print everything for programs (docs/interfaces.md)"),
      command.add_flag("--text", inspect.text, "print every slot and instruction, one per line"),
      add_option(command, "--html", inspect.html, "FILE", "write the report as one HTML file"),
      add_option(command, "--why", inspect.why, "NAME", "explain one value, or the values of one node"),
      add_option(command, "--diff", inspect.diff, "PLAN2", "show how another plan differs")};
  for (CLI::Option* form : forms)
    for (CLI::Option* other : forms)
      if (form != other) form->excludes(other);
}

void add_devices(CLI::App& program, Options& options) {
  CLI::App& command = *program.add_subcommand("devices", "list the known devices and what is in this machine");
  command.add_flag("--measure", options.devices.measure,
                   "measure the GPU in this machine and print its description for --device-file; started as several "
                   "ranks: measure how they talk to each other and print that for --cluster");
  add_setting(command, "--device", options.devices.device, "NAME",
              "with --measure on several ranks: what each of them runs on, a GPU of its own or cpu");
  add_option(command, "--device-file", options.devices.device_file, "FILE", "file with more device descriptions");
}

constexpr const char* data_help =
    "samples: tensors whose first dimension counts them (.safetensors, .npz, .npy: one per input, or a folder of such "
    "files), images (a folder, or .tar shards), or files of token numbers (uint16; .u32: uint32); docs/data.md";

// How a command reads a data set.
void add_data(CLI::App& command, DataRequest& request) {
  add_option(command, "--hold-out", request.hold_out, "X", "share of the samples that training never reads");
  command.add_flag("--in-order", request.in_order, "read the samples in the order of the files, not shuffled");
  add_setting(command, "--last-batch", request.last_batch, "drop|pad",
              "samples that are left over at the end of an epoch: drop them, or pad their batch with ignored labels");
  add_option(command, "--transforms", request.transforms, "FILE",
             "how images are cropped, flipped and normalised: the section [transforms] of a TOML file");
  add_option(command, "--document-end", request.document_end, "TOKEN",
             "token that ends a document of a token file: no window crosses it")
      ->check(at_least(0));
  add_setting(command, "--labels", request.labels, "WHICH",
              "what a token file gives the labels at a position: same (the token there, for models that shift labels "
              "themselves), next (the token after it), or auto: as the model's graph needs it");
  add_option(command, "--data-threads", request.threads, "N", "threads that read samples; default: by the data")
      ->check(at_least(1));
}

void add_rate(CLI::App& command, RateOptions& rate) {
  command.option_defaults()->group("Learning rate");
  add_setting(
      command, "--lr-schedule", rate.shape, "NAME",
      "how the rate goes behind the warm-up: constant, linear, cosine, polynomial, wsd (constant, then a linear "
      "decay) or one-cycle");
  add_option(command, "--warmup", rate.warmup, "N",
             "updates in which the rate rises linearly to its peak; default: 0, "
             "of one-cycle 30 % of the schedule")
      ->check(at_least(0));
  add_option(
      command, "--warmup-from", rate.warmup_from, "X",
      "rate of the first update of the warm-up, or a multiple of the peak such as 0.1x; default: 0, of one-cycle "
      "0.04x");
  add_option(command, "--lr-end", rate.end, "X",
             "rate at the end of the schedule, or a multiple of the peak such as 0.1x; default: 0, of one-cycle a "
             "10000th of the first rate");
  add_option(command, "--lr-decay", rate.decay, "N",
             "updates of the decay at the end of wsd; default: a tenth of the "
             "schedule")
      ->check(at_least(1));
  add_option(command, "--lr-power", rate.power, "X", "power of polynomial; default: 1")->check(at_least(0));
  add_option(command, "--lr-steps", rate.updates, "N",
             "updates of the whole schedule; default: those of the run; behind them the rate stays at its end")
      ->check(at_least(1));
  command.option_defaults()->group("Options");
}

void add_checkpoints(CLI::App& command, CheckpointOptions& options) {
  command.option_defaults()->group("Checkpoints");
  auto* folder = add_option(command, "--checkpoint", options.folder, "DIR",
                            "write checkpoints into this folder while training goes on, and a last one at the end or "
                            "when a signal stops the run");
  add_setting(command, "--every", options.every, "N|TIME",
              "updates from one checkpoint to the next, or time such as 90s, 10min or 2h")
      ->needs(folder);
  add_setting(command, "--keep", options.keep, "N", "checkpoints to keep at most; older ones are removed")
      ->check(at_least(1))
      ->needs(folder);
  add_option(command, "--resume", options.resume, "auto|PATH",
             "go on from a checkpoint: the newest whole one of --checkpoint, if there is one, or the one at PATH");
  command.option_defaults()->group("Options");
}

void add_data_command(CLI::App& program, Options& options) {
  CLI::App& command =
      *program.add_subcommand("data", "say what a data set holds, and show the first batch that a plan would get");
  add_option(command, "SOURCE", options.data.data, "", data_help)->required();
  add_option(command, "--plan", options.data.plan, "PLAN", "a plan that compile wrote, whose inputs are fed");
  add_setting(command, "--seed", options.data.seed, "N", "seed of the order of the data");
  add_data(command, options.data.data_request);
  add_config(command, options);
}

// The evaluations of a run.
void add_evaluations(CLI::App& command, EvaluationOptions& evaluation) {
  command.option_defaults()->group("Evaluation");
  add_option(command, "--evaluate-data", evaluation.data, "FILE",
             "evaluate with these samples after the last step, by a plan that was compiled with --evaluate");
  add_option(command, "--evaluate-every", evaluation.every, "N", "also evaluate after every N steps")
      ->check(at_least(1));
  add_option(command, "--evaluate-batches", evaluation.batches, "N",
             "batches of an evaluation; default: all, and 32 of data without an end")
      ->check(at_least(1));
  add_option(command, "--early-stop", evaluation.early_stop, "N",
             "end the run after N evaluations in which the metric did not become better")
      ->check(at_least(1));
  add_option(command, "--best-by", evaluation.best_by, "METRIC",
             "which metric decides; default: the first that the plan was compiled with, else the loss");
  command.option_defaults()->group("Options");
}

CLI::App& add_evaluate_command(CLI::App& program, const char* name, const char* help, EvaluateOptions& options) {
  CLI::App& command = *program.add_subcommand(name, help);
  add_option(command, "PLAN", options.plan, "", "a plan that compile wrote with --evaluate")->required();
  add_option(command, "--weights", options.weights, "FILE", "the model or a .safetensors file that run saved")
      ->required();
  add_option(command, "--data", options.data, "FILE", "the samples, as `run` reads them")->required();
  add_option(command, "--batches", options.batches, "N",
             "how many batches; default: all, and 32 of data without an end")
      ->check(at_least(1));
  add_option(command, "--hold-out", options.hold_out, "X",
             "only the samples that a run with the same --hold-out and --seed does not train with");
  add_option(command, "--transforms", options.transforms, "FILE",
             "the transforms of training; images are shown without what they draw");
  add_setting(command, "--seed", options.seed, "N", "seed of what is held out and of the windows of a token file");
  add_setting(command, "--threads", options.threads, "N", "CPU threads; 0: as many as the machine has")
      ->check(at_least(0));
  command.add_flag("--poison", options.poison, "overwrite dead bytes with NaN, to find plans that read them");
  return command;
}

void add_evaluate(CLI::App& program, Options& options) {
  CLI::App& command =
      add_evaluate_command(program, "evaluate", "compute the loss and the metrics of a data set", options.evaluate);
  add_option(command, "--metrics", options.evaluate.output, "FILE", "also write them as JSON (docs/interfaces.md)");
  add_config(command, options);
}

void add_predict(CLI::App& program, Options& options) {
  CLI::App& command =
      add_evaluate_command(program, "predict", "write the model's outputs for every sample", options.predict);
  add_option(command, "-o,--output", options.predict.output, "FILE", "a .safetensors file with a tensor per output")
      ->required();
  add_config(command, options);
}

void add_verify(CLI::App& program, Options& options) {
  CLI::App& command = *program.add_subcommand(
      "verify", "compare a step of a plan with the reference interpreter, and find what differs");
  VerifyOptions& verify = options.verify;
  add_option(command, "PLAN", verify.plan, "", "a plan that compile wrote")->required();
  add_option(command, "--weights", verify.weights, "MODEL", "the plan's model, an .onnx file")->required();
  add_option(command, "--data", verify.data, "FILE", "the samples of the step, as `run` reads them")->required();
  add_option(command, "--loss", verify.loss, "LOSS", "the loss as compile was given it, if it was");
  add_option(command, "--reproducer", verify.reproducer, "DIR",
             "folder for the IR and the tensors of what differs; default: PLAN.verify");
  add_setting(command, "--seed", verify.seed, "N", "seed of dropout and of the windows of a token file");
  add_setting(command, "--threads", verify.threads, "N", "CPU threads; 0: as many as the machine has")
      ->check(at_least(0));
  add_config(command, options);
}

// Adds the options of training that run and train share.
void add_training(CLI::App& command, RunOptions& run) {
  auto* weights =
      add_option(command, "--weights", run.weights, "FILE", "first values of the weights, from .onnx or .safetensors");
  auto* init = add_option(command, "--init", run.init_seed, "SEED",
                          "draw random first values from this seed, as PyTorch and transformers do by kind of layer");
  weights->excludes(init);
  add_option(command, "--init-std", run.init_std, "X",
             "with --init: draw all matrices from a normal distribution with this deviation instead")
      ->check(at_least(0))
      ->needs(init);
  add_option(command, "--data", run.data, "PATH", data_help)->required();
  add_data(command, run.data_request);
  add_setting(command, "--on-bad-loss", run.on_bad_loss, "WHAT",
              "when the loss is NaN or infinite: stop, name the first op whose result is bad and save nothing, or "
              "continue");
  auto* steps = add_setting(command, "--steps", run.steps, "N", "number of updates")->check(at_least(0));
  add_option(command, "--epochs", run.epochs, "N", "train as often with every sample, in place of a number of steps")
      ->check(at_least(1))
      ->excludes(steps);
  add_option(command, "--seed", run.seed, "N",
             "seed of dropout and of the order of the data; default: 0, or the resumed checkpoint's");
  add_rate(command, run.rate);
  add_setting(command, "--threads", run.threads, "N", "CPU threads; 0: as many as the machine has")->check(at_least(0));
  add_option(
      command, "--patience", run.patience_s, "SECONDS",
      "of several ranks: end the job when one gives no sign of life or of progress for so long; default: 20 times "
      "the predicted step, and at least 60")
      ->check(at_least(1));
  command.add_flag("--poison", run.poison, "overwrite dead bytes with NaN, to find plans that read them");
  add_option(command, "--profile", run.profile, "FILE",
             "measure every op of one more step, compare it with the prediction, and add the times to this file");
  add_option(command, "--metrics", run.metrics, "FILE", "write one line of JSON per step (docs/interfaces.md)");
  add_option(command, "--save", run.save, "FILE",
             "save the trained weights as .safetensors or .onnx; may be given several times");
  add_option(command, "--save-ema", run.save_ema, "FILE",
             "save the running mean of the weights, which a plan with --ema keeps, in the same way");
  add_option(command, "--dump-gradients", run.dump_gradients, "FILE",
             "write the gradients of the first step as .safetensors");
  add_checkpoints(command, run.checkpoints);
  add_evaluations(command, run.evaluation);
}

void add_run(CLI::App& program, Options& options) {
  CLI::App& command = *program.add_subcommand("run", "train with a plan");
  RunOptions& run = options.run;
  add_option(command, "PLAN", run.plan, "", "a plan that compile wrote")->required();
  add_option(command, "--lr", run.learning_rate, "X", "learning rate; of a schedule its peak; default: the plan's")
      ->check(at_least(0));
  add_training(command, run);
  add_config(command, options);
}

void add_train(CLI::App& program, Options& options) {
  CLI::App& command = *program.add_subcommand("train", "compile a job and run it, as a file describes it");
  TrainOptions& train = options.train;
  add_option(command, "JOB", options.config, "",
             "a TOML file with the options of this command, NAME = VALUE; its sections are headings");
  add_model(command, train.compile.job, "--model");
  add_target(command, train.compile);
  add_job(command, train.compile.job);
  add_training(command, train.run);
  command.add_flag(
      "--dry-run", train.dry_run,
      "go once through all of it: load, one step, one checkpoint and one save, and remove what was written");
}

void add_check(CLI::App& program, Options& options) {
  CLI::App& command = *program.add_subcommand("check", "list everything that prevents training a model");
  add_model(command, options.check.job);
  add_config(command, options);
}

std::vector<std::string> command_names(const CLI::App& program) {
  std::vector<std::string> names;
  for (const CLI::App* command : program.get_subcommands({})) names.push_back(command->get_name());
  return names;
}

const CLI::App* find_command(const CLI::App& program, const std::string& name) {
  for (const CLI::App* command : program.get_subcommands({}))
    if (command->get_name() == name) return command;
  return nullptr;
}

// Long names with their dashes, such as "--help".
std::vector<std::string> option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

CommandOptions options_by_command(const CLI::App& program) {
  CommandOptions commands;
  for (const CLI::App* command : program.get_subcommands({})) commands[command->get_name()] = option_names(*command);
  return commands;
}

std::string suggestion(llvm::StringRef wrong, const std::vector<std::string>& names) {
  std::vector<llvm::StringRef> refs(names.begin(), names.end());
  std::vector<std::string> near = did_you_mean(wrong, refs, 1);
  return near.empty() ? "" : "; did you mean " + near.front() + "?";
}

// Turns a parse error into one line. `command` is the command that was named, or the program.
Status explain(const CLI::ParseError& error, const CLI::App& program, const CLI::App& command) {
  if (dynamic_cast<const CLI::ExtrasError*>(&error)) {
    for (const std::string& extra : program.remaining(/*recurse=*/true)) {
      llvm::StringRef word = llvm::StringRef(extra).split('=').first;
      if (starts_with(word, "-"))
        return usage_error(command.get_name() + " has no option " + word + suggestion(word, option_names(command)));
      return usage_error(command.get_name() + " takes no further argument: " + extra);
    }
  }
  if (&command == &program)
    return usage_error("a command is missing; there are " + llvm::join(command_names(program), ", "));
  std::string text = llvm::StringRef(error.what()).split('\n').first.rtrim(". ").str();
  return usage_error(command.get_name() + ": " + text);
}

Status run_command_named(llvm::StringRef name, const Options& options, Console& console) {
  if (name == "compile") return compile_command(options.compile, console);
  if (name == "data") return data_command(options.data, console);
  if (name == "fit") return fit_command(options.fit, console);
  if (name == "inspect") return inspect_command(options.inspect, console);
  if (name == "run") return run_command(options.run, console);
  if (name == "train") return train_command(options.train, console);
  if (name == "evaluate") return evaluate_command(options.evaluate, console);
  if (name == "verify") return verify_command(options.verify, console);
  if (name == "predict") return predict_command(options.predict, console);
  if (name == "check") return check_command(options.check, console);
  return devices_command(options.devices, console);
}

// Returns the command's name. Prints help and version text to `out`; the name is then empty.
Result<std::string> parse(CLI::App& program, Options& options, std::vector<std::string> words, llvm::raw_ostream& out) {
  const CLI::App* command = &program;
  if (!words.empty() && !starts_with(words.front(), "-")) {
    command = find_command(program, words.front());
    if (!command)
      return usage_error("there is no command " + words.front() + suggestion(words.front(), command_names(program)));
  }
  if (command != &program) {
    Result<std::vector<std::string>> more = words_of_config(words, options_by_command(program));
    if (!more) return more.takeError();
    words.insert(words.end(), more->begin(), more->end());
  }
  try {
    std::reverse(words.begin(), words.end());  // CLI11 takes them from the back
    program.parse(words);
  } catch (const CLI::CallForHelp&) {
    out << (command == &program ? program.help() : command->help(program.get_name()));
    return std::string();
  } catch (const CLI::CallForVersion& version) {
    out << version.what() << "\n";
    return std::string();
  } catch (const CLI::ParseError& error) {
    return explain(error, program, *command);
  }
  for (auto [name, run] : {std::pair("run", &options.run), std::pair("train", &options.train.run)})
    run->random_weights = command->get_name() == name && command->get_option("--init")->count() > 0;
  return command->get_name();
}

int columns_of(bool terminal, unsigned columns) {
  return terminal && columns > 0 ? static_cast<int>(std::min(std::max(columns, 60u), 160u)) : 100;
}

// An error that is left in the stream would end the program with a crash.
Status flush_results() {
  llvm::outs().flush();
  const std::error_code failure = llvm::outs().error();
  llvm::outs().clear_error();
  return failure ? system_error("standard output: " + failure.message()) : Status::success();
}

// Without memory nothing can be unwound; unfinished files are taken away all the same.
[[noreturn]] void end_without(const char* what) {
  constexpr llvm::StringLiteral before = "plimsoll: error: ";
  for (llvm::StringRef text : {llvm::StringRef(before), llvm::StringRef(what), llvm::StringRef("\n")})
    if (write(STDERR_FILENO, text.data(), text.size()) < 0) break;
  llvm::sys::RunInterruptHandlers();
  _exit(exit_code(Fault::System));
}

void end_in_words_without_memory() {
  std::set_new_handler([] { end_without("this machine has too little free memory for the command"); });
  std::set_terminate([] { end_without("the machine refuses threads or memory that the command needs"); });
  llvm::install_bad_alloc_error_handler(
      [](void*, const char*, bool) { end_without("this machine has too little free memory for the command"); });
}

}  // namespace

int exit_code(Fault fault) {
  switch (fault) {
    case Fault::Usage: return 2;
    case Fault::Model: return 3;
    case Fault::Budget: return 4;
    case Fault::System: return 5;
  }
  return 5;
}

int run_program(int argc, char** argv) {
  end_in_words_without_memory();
  using llvm::sys::Process;
  bool out_is_terminal = Process::StandardOutIsDisplayed(), err_is_terminal = Process::StandardErrIsDisplayed();
  Progress progress(llvm::errs(), err_is_terminal, columns_of(err_is_terminal, Process::StandardErrColumns()));
  PrintableStream out(llvm::outs(), out_is_terminal);
  Console console{out, progress, out_is_terminal, columns_of(out_is_terminal, Process::StandardOutColumns())};

  Options options;
  CLI::App program("Plans and runs the training of exported models within a memory budget.", "plimsoll");
  program.set_version_flag("--version", "plimsoll 0.1.0");
  program.require_subcommand(1);
  program.get_formatter()->column_width(32);
  add_compile(program, options);
  add_fit(program, options);
  add_data_command(program, options);
  add_inspect(program, options);
  add_run(program, options);
  add_train(program, options);
  add_evaluate(program, options);
  add_predict(program, options);
  add_verify(program, options);
  add_check(program, options);
  add_devices(program, options);

  Result<std::string> command = parse(program, options, std::vector<std::string>(argv + 1, argv + argc), llvm::outs());
  Status status = !command           ? command.takeError()
                  : command->empty() ? Status::success()
                                     : run_command_named(*command, options, console);
  out.flush();
  progress.finish();
  status = llvm::joinErrors(std::move(status), flush_results());
  if (!status) return console.was_stopped ? exit_code_stopped : 0;
  Diag diag = take_diag(std::move(status));
  llvm::errs() << "plimsoll: error: " << printable(diag.text()) << "\n";
  llvm::errs().flush();
  if (console.after_error) console.after_error();
  return exit_code(diag.fault());
}

}  // namespace plimsoll
