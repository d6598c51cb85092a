#include "frontend/driver/command_options.h"

// The options of the commands that run a plan and train nothing: evaluate, predict and verify.

namespace plimsoll {
namespace {

CLI::App& add_evaluate_command(CLI::App& program, const char* name, const char* help, EvaluateOptions& options) {
  CLI::App& command = *program.add_subcommand(name, help);
  add_option(command, "PLAN", options.plan, "", "a plan that compile wrote with --evaluate")->required();
  add_option(command, "--weights", options.weights, "FILE", "the model or a .safetensors file that run saved")
      ->required();
  add_option(command, "--adapter", options.adapter, "PATH",
             "the adapters of a plan that was compiled with --lora-rank, as `run` saved them");
  add_option(command, "--data", options.data, "FILE", "the samples, as `run` reads them")->required();
  add_option(command, "--batches", options.batches, "N", "how many batches; default: all")->check(at_least(1));
  add_option(command, "--hold-out", options.hold_out, "X",
             "only the samples that a run with the same --hold-out and --seed does not train with");
  add_option(command, "--transforms", options.transforms, "FILE",
             "the transforms of training; images are shown without what they draw");
  add_option(command, "--document-end", options.document_end, "TOKEN", "of token files, as of training")
      ->check(at_least(0));
  add_setting(command, "--labels", options.labels, "WHICH", "of token files, as of training: same, next or auto");
  add_setting(command, "--seed", options.seed, "N", "seed of what is held out and of the windows of a token file");
  add_setting(command, "--threads", options.threads, "N", "CPU threads; 0: as many as the machine has")
      ->check(at_least(0));
  command.add_flag("--poison", options.poison, "overwrite dead bytes with NaN, to find plans that read them");
  return command;
}

}  // namespace

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

void add_merge(CLI::App& program, Options& options) {
  CLI::App& command = *program.add_subcommand("merge", "add adapters to the weights of a model");
  MergeRequest& merge = options.merge.request;
  add_option(command, "MODEL", merge.model, "", "the model that was trained, an .onnx file")->required();
  add_option(command, "--adapter", merge.adapter, "PATH", "the adapter, of PEFT, diffusers or kohya")->required();
  add_option(command, "-o,--output", merge.output, "FILE", "the merged model (.onnx) or its weights (.safetensors)")
      ->required();
  add_option(command, "--weights", merge.weights, "FILE", "the weights it was trained with; default: the model's");
  add_option(command, "--lora-root", merge.root, "PREFIX", "as of compile");
  add_option(command, "--dim", options.merge.dims, "NAME=N", "size of an open dimension, where the model needs one");
  add_config(command, options);
}

void add_verify(CLI::App& program, Options& options) {
  CLI::App& command = *program.add_subcommand(
      "verify", "compare a step of a plan with the reference interpreter, and find what differs");
  VerifyOptions& verify = options.verify;
  add_option(command, "PLAN", verify.plan, "", "a plan that compile wrote")->required();
  add_option(command, "--weights", verify.weights, "MODEL", "the plan's model, an .onnx file")->required();
  add_option(command, "--data", verify.data, "FILE", "the samples of the step, as `run` reads them")->required();
  add_option(command, "--reproducer", verify.reproducer, "DIR",
             "folder for the IR and the tensors of what differs; default: PLAN.verify");
  add_option(command, "--against", verify.against, "MODEL",
             "compare first the forward values of this .onnx file, as it is imported, with those of ONNX Runtime, "
             "which a python3 must have");
  add_setting(command, "--seed", verify.seed, "N", "seed of dropout and of the windows of a token file");
  add_setting(command, "--threads", verify.threads, "N", "CPU threads; 0: as many as the machine has")
      ->check(at_least(0));
  add_config(command, options);
}

}  // namespace plimsoll
