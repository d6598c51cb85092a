#include "frontend/driver/command_options.h"
#include "ir/support/strings.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"

// The options of a training job that several commands take: the model and its loss, the optimizer, the devices and
// their memory.

namespace plimsoll {
namespace {

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
  add_setting(command, "--moments", options.moments, "FORMAT",
              "how the moments of adam, adamw, lamb and muon are stored: f32, bf16, or 8bit with a scale for each 256");
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

void add_adapters(CLI::App& command, AdapterRequest& adapters) {
  command.option_defaults()->group("Adapters");
  add_option(command, "--lora-rank", adapters.rank, "N",
             "train matrices of this rank beside frozen layers (LoRA); then --train names what is trained with them")
      ->check(at_least(1));
  add_option(command, "--lora-alpha", adapters.alpha, "X",
             "scale of the adapters times their rank; default: the rank, a scale of 1")
      ->check(at_least(0));
  add_option(command, "--lora-targets", adapters.targets, "PATTERN",
             "which modules have adapters: all-linear (the default), the end of a module's path such as q_proj, or a "
             "regular expression for the whole path; may be given several times, and each must match");
  add_setting(command, "--lora-dropout", adapters.dropout, "X", "share of each adapter's inputs that a step drops")
      ->check(at_least(0));
  command.add_flag("--rslora", adapters.rslora, "the scale is alpha over the root of the rank");
  command.add_flag("--dora", adapters.dora,
                   "train the norms of adapted weights' rows apart (DoRA); linear layers alone");
  add_option(command, "--lora-root", adapters.root, "PREFIX",
             "what names of weights begin with and paths of modules do not, such as m.; default: what a wrapper "
             "around a library's model puts there");
  command.option_defaults()->group("Options");
}

// CLI11 reads an enumerator from its number.
CLI::Validator number_of_format() {
  return CLI::Validator(
      [](std::string& text) {
        const auto* found = llvm::find(weight_formats, text);
        if (found == std::end(weight_formats))
          return text + " is none of " + llvm::join(std::begin(weight_formats), std::end(weight_formats), ", ");
        text = std::to_string(found - std::begin(weight_formats));
        return std::string();
      },
      "");
}

void add_ranks(CLI::App& command, JobOptions& options) {
  command.option_defaults()->group("Several ranks");
  add_option(command, "--gpus", options.gpus, "N", "number of devices that share the job; each runs as one rank")
      ->check(at_least(1));
  add_setting(command, "--mesh", options.mesh, "MESH",
              "how the ranks share the job: auto, or their number along each axis, such as data=2,tensor=2 or stage=2: "
              "data divides the batch, tensor divides matmuls, heads and vocabularies, stage divides layers");
  add_setting(
      command, "--schedule", options.schedule, "NAME",
      "order in which the stages of a pipeline take micro-batches: 1f1b (one forward, one backward), zero-bubble (the "
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
      "3 also parameters; auto: the fastest that fits");
  add_setting(command, "--gradient-sums", options.gradient_sums, "TYPE",
              "in what ranks with different rows send and add up gradients: fp32, or bf16, which is half the bytes");
  add_option(command, "--cluster", options.request.cluster, "FILE",
             "how the devices hang together, as `devices --measure` writes it on several ranks; without --gpus and "
             "--mesh the job has all of them");
  add_setting(
      command, "--batch-norm", options.batch_norm, "WHEN",
      "statistics of batch norms: synchronised: of all ranks' rows, so that a step equals one rank's; local: of "
      "each rank's own rows, running statistics being the mean over the ranks");
  command.option_defaults()->group("Options");
}

}  // namespace

void add_model(CLI::App& command, JobOptions& options, const char* name) {
  TrainingRequest& training = options.request.training;
  const bool is_option = starts_with(name, "-");
  add_option(command, name, options.request.model_path, is_option ? "FILE" : "", "the exported model, an .onnx file")
      ->required();
  add_option(command, "--dim", options.dims, "NAME=N",
             "bind a symbolic dimension to a size; may be given several times");
  add_option(
      command, "--lengths", options.lengths, "NAME=N,N,...",
      "bind the symbolic dimension along which samples differ in length to the largest size, and make a step for "
      "each: a batch runs in the shortest that its samples fit");
  add_option(command, "--batch", training.batch, "N", "change the batch that the exporter fixed")->check(at_least(1));
  add_option(
      command, "--loss", options.losses, "LOSS",
      "the output that is the loss, a loss to build: cross-entropy:LOGITS:LABELS, mse:A:B, bce:A:B, or a sum such "
      "as 'ce + 0.5*mse:A:B'; several are added up; default: the only scalar float output");
  add_option(command, "--train", training.train, "REGEX",
             "train the weights that match this regular expression; default: every parameter");
  add_option(command, "--freeze", training.freeze, "REGEX",
             "do not train the weights that match this regular expression");
  add_adapters(command, training.adapters);
  add_option(
      command, "--quantize", training.quantize.format, "FORMAT",
      "store frozen matrices of linear layers in 4 or 8 bits: nf4, nf4-single (scales in f32), int4, int8 or fp8; "
      "default: as-trained")
      ->transform(number_of_format());
  add_option(command, "--quantize-skip", training.quantize.skip, "REGEX",
             "leave the weights that match this regular expression as they are");
  command.add_flag("--freeze-norm", options.request.import.freeze_norm,
                   "batch norms use their running statistics and do not change them");
}

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
             "with --max-batch and --best-batch); off: never; N: in N chunks; N:VALUE: in N chunks from this value on");
  add_option(command, "--host-budget", options.host_budget, "BYTES",
             "memory of each host, for all its ranks: what --offload pins, batches that are read ahead, and --cache; "
             "default: what --cluster says, else no limit");
  command.add_flag("--for-checkpoints", options.request.training.checkpoints,
                   "hold back host memory for the copy of all states that run --checkpoint takes");
  command.add_flag("--for-gpu-decoding", options.request.decodes_images,
                   "hold back device memory for JPEGs that run --decode gpu decodes there");
  add_option(command, "--cache", options.cache, "BYTES",
             "host memory in which a run keeps decoded images, so that later epochs do not decode them again");
  add_setting(
      command, "--precision", options.request.training.precision, "NAME",
      "exported, fp32, tf32, bf16 or fp16 (16-bit compute with fp32 parameters), fp8 (bf16 with 8-bit operands "
      "of linear layers' products), or auto: the one of the others with the least predicted time on the device");
  add_option(command, "--precision-file", options.precision_file, "FILE",
             "file with exceptions to --precision: lines such as 'op:exp = fp32' or 'module:REGEX = bf16'");
  add_setting(command, "--layout", options.layout, "NAME",
              "layout of images: channels-first, channels-last, or auto (the one in which the device's convolutions "
              "are faster)");
  add_ranks(command, options);
  add_optimizer(command, options);
}

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
          ->check(at_least(1));
  auto* max_batch = command.add_flag("--max-batch", request.max_batch, "plan for the largest batch that fits");
  max_batch->excludes(global_batch);
  command
      .add_flag("--best-batch", request.best_batch,
                "plan for the batch that fits with the least predicted time per sample")
      ->excludes(global_batch)
      ->excludes(max_batch);
  add_evaluation(command, compile.job.request.training.evaluation);
}

}  // namespace plimsoll
