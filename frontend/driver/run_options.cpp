#include "frontend/driver/command_options.h"

// The options of the commands that train, run and train, and of data, which shows what they would read.

namespace plimsoll {
namespace {

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
             "how images are cropped, flipped and normalised, and samples of differing lengths padded: the section "
             "[transforms] of a TOML file");
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

// The evaluations of a run.
void add_evaluations(CLI::App& command, EvaluationOptions& evaluation) {
  command.option_defaults()->group("Evaluation");
  add_option(command, "--evaluate-data", evaluation.data, "FILE",
             "evaluate with these samples after the last step, by a plan that was compiled with --evaluate");
  add_option(command, "--evaluate-every", evaluation.every, "N", "also evaluate after every N steps")
      ->check(at_least(1));
  add_option(command, "--evaluate-batches", evaluation.batches, "N", "batches of an evaluation; default: all")
      ->check(at_least(1));
  add_option(command, "--early-stop", evaluation.early_stop, "N",
             "end the run after N evaluations in which the metric did not become better")
      ->check(at_least(1));
  add_option(command, "--best-by", evaluation.best_by, "METRIC",
             "which metric decides; default: the first that the plan was compiled with, else the loss");
  command.option_defaults()->group("Options");
}

void add_logs(CLI::App& command, LogTargets& log) {
  command.option_defaults()->group("Logs");
  add_option(command, "--metrics", log.json_lines, "FILE", "write one line of JSON per step (docs/interfaces.md)");
  add_option(command, "--csv", log.csv, "FILE", "write a table with one row per step");
  add_option(command, "--tensorboard", log.events, "DIR", "write events for TensorBoard into this folder");
  add_option(command, "--log", log.folder, "DIR", "write plan and numbers into this folder, for `plimsoll watch`");
  command.option_defaults()->group("Options");
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
  add_setting(command, "--decode", run.data_request.decode, "WHERE",
              "where JPEGs are decoded: cpu, gpu (by nvJPEG), or auto: on the GPU where the processor's cores are too "
              "slow for the predicted step and the budget has room");
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
  add_option(command, "--save", run.save, "FILE",
             "save the trained weights as .safetensors or .onnx; may be given several times");
  add_option(command, "--save-ema", run.save_ema, "FILE",
             "save the running mean of the weights, which a plan with --ema keeps, in the same way");
  add_option(command, "--adapter", run.adapter, "PATH",
             "go on from these adapters, a folder or file of PEFT, diffusers or kohya");
  auto* save_adapter = add_option(command, "--save-adapter", run.save_adapter, "DIR",
                                  "save the adapters of a plan that was compiled with --lora-rank");
  add_setting(command, "--adapter-format", run.adapter_format, "NAME",
              "for which programs: peft, diffusers or kohya; the latter two may be saved as a .safetensors file")
      ->needs(save_adapter);
  add_option(command, "--save-quantized", run.save_quantized, "FILE",
             "save the base of a plan that was compiled with --quantize nf4 as bitsandbytes' .safetensors");
  add_option(command, "--dump-gradients", run.dump_gradients, "FILE",
             "write the gradients of the first step as .safetensors");
  add_logs(command, run.log);
  add_checkpoints(command, run.checkpoints);
  add_evaluations(command, run.evaluation);
}

}  // namespace

void add_run(CLI::App& program, Options& options) {
  CLI::App& command = *program.add_subcommand("run", "train with a plan");
  RunOptions& run = options.run;
  add_option(command, "PLAN", run.plan, "", "a plan that compile wrote")->required();
  add_option(command, "--model", run.model, "MODEL.onnx",
             "the model that the plan was compiled from, for the graph and the names of what --save writes; default: "
             "--weights, where that is an .onnx file");
  add_option(command, "--lr", run.learning_rate, "X", "learning rate; of a schedule its peak; default: the plan's")
      ->check(at_least(0));
  add_option(command, "--cache", run.cache, "BYTES",
             "host memory in which decoded images are kept, so that later epochs do not decode them again; default: "
             "what the plan was compiled with");
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

void add_data_command(CLI::App& program, Options& options) {
  CLI::App& command =
      *program.add_subcommand("data", "say what a data set holds, and show the first batch that a plan would get");
  add_option(command, "SOURCE", options.data.data, "", data_help)->required();
  add_option(command, "--plan", options.data.plan, "PLAN", "a plan that compile wrote, whose inputs are fed");
  add_setting(command, "--seed", options.data.seed, "N", "seed of the order of the data");
  add_data(command, options.data.data_request);
  add_config(command, options);
}

}  // namespace plimsoll
