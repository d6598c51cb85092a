#include "frontend/driver/command_line.h"

#include "frontend/driver/commands.h"
#include "frontend/driver/config_file.h"
#include "ir/support/did_you_mean.h"
#include "ir/support/strings.h"

#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Process.h"

#include <CLI/CLI.hpp>

// The only file that knows CLI11. Options become plain structs; values that need thought (sizes, names of
// things) stay text until the command reads them, so that their errors are ours.

namespace plimsoll {
namespace {

struct Options {
  CompileOptions compile;
  FitCommandOptions fit;
  InspectOptions inspect;
  RunOptions run;
  CheckOptions check;
  DevicesOptions devices;
  std::string config;
};

void add_config(CLI::App& command, Options& options) {
  command.add_option("--config", options.config, "read more options from a TOML file: NAME = VALUE")->type_name("FILE");
}

// CLI11's own range messages spell out the largest double.
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

void add_model(CLI::App& command, ModelOptions& options) {
  command.add_option("MODEL", options.model, "the exported model, an .onnx file")->required()->type_name("");
  command.add_option("--dim", options.dims, "bind a symbolic dimension; may be given several times")
      ->type_name("NAME=N")
      ->allow_extra_args(false);
  command.add_option("--batch", options.batch, "another batch than the exporter froze")
      ->type_name("N")
      ->check(at_least(1));
  command
      .add_option("--loss", options.loss,
                  "the output that is the loss, or cross-entropy:LOGITS:LABELS, mse:A:B, bce:A:B; without it the one "
                  "scalar float output")
      ->type_name("OUTPUT");
  command.add_option("--train", options.train, "regular expression over weights to train; without it every parameter")
      ->type_name("REGEX")
      ->allow_extra_args(false);
  command.add_option("--freeze", options.freeze, "regular expression over weights to leave as they are")
      ->type_name("REGEX")
      ->allow_extra_args(false);
  command.add_flag("--freeze-norm", options.freeze_norm, "batch norms keep their running statistics");
}

void add_optimizer(CLI::App& command, CompileOptions& options) {
  OptimizerSpec& spec = options.optimizer_settings;
  const char* group = "Optimizer";
  command.add_option("--optimizer", options.optimizer, "sgd, adam or adamw")
      ->capture_default_str()
      ->type_name("NAME")
      ->group(group);
  command.add_option("--lr", spec.learning_rate, "learning rate")->capture_default_str()->type_name("X")->group(group);
  command.add_option("--beta1", spec.beta1, "adam, adamw")->capture_default_str()->type_name("X")->group(group);
  command.add_option("--beta2", spec.beta2, "adam, adamw")->capture_default_str()->type_name("X")->group(group);
  command.add_option("--eps", spec.eps, "adam, adamw")->capture_default_str()->type_name("X")->group(group);
  command.add_option("--momentum", spec.momentum, "sgd")->capture_default_str()->type_name("X")->group(group);
  command.add_option("--dampening", spec.dampening, "sgd")->capture_default_str()->type_name("X")->group(group);
  command.add_flag("--nesterov", spec.nesterov, "sgd")->group(group);
  command.add_option("--weight-decay", spec.weight_decay, "decoupled for adamw, part of the gradient for sgd and adam")
      ->capture_default_str()
      ->type_name("X")
      ->group(group);
  command
      .add_option("--master-weights", options.master_weights,
                  "fp32 copies that the optimizer updates: auto (of 16-bit weights), on, off")
      ->capture_default_str()
      ->type_name("WHEN");
  command.add_option("--accumulate", options.accumulate, "micro-batches an update")
      ->capture_default_str()
      ->type_name("N")
      ->check(at_least(1))
      ->group(group);
  command.add_option("--clip-grad-norm", options.clip_grad_norm, "scale gradients down to this global norm; 0 is off")
      ->capture_default_str()
      ->type_name("X")
      ->check(at_least(0))
      ->group(group);
  command
      .add_option("--loss-scale", options.loss_scale,
                  "fp16: what the loss is multiplied by at first; it halves after an overflow")
      ->capture_default_str()
      ->type_name("X")
      ->check(at_least(1))
      ->group(group);
}

void add_passes(CLI::App& command, CompileOptions& options) {
  const char* group = "Looking inside";
  command.add_option("--dump-ir", options.dump_ir, "write the graph after each pass that changed it")
      ->type_name("DIR")
      ->group(group);
  command.add_option("--print-after", options.print_after, "print the graph after a pass, or after all")
      ->type_name("PASS")
      ->allow_extra_args(false)
      ->group(group);
  command
      .add_option("--stop-after", options.stop_after,
                  "go no further than a pass, or the phase clean, train or fit, and print the graph as text instead of "
                  "planning")
      ->type_name("PASS")
      ->group(group);
  command.add_option("--skip", options.skip, "leave a pass out")
      ->type_name("PASS")
      ->allow_extra_args(false)
      ->group(group);
}

// What is planned for and how, shared by compile and fit.
void add_job(CLI::App& command, CompileOptions& compile) {
  command
      .add_option("--device-file", compile.device_file, "more device descriptions, as `devices --measure` writes them")
      ->type_name("FILE");
  command.add_flag(
      "--any-order", compile.any_order,
      "allow kernels that are faster and give other bits each time; without it the same seed gives the same bits");
  command.add_option("--timings", compile.timings, "measured times of kernels, as `run --profile` writes them")
      ->type_name("FILE");
  command.add_option("--budget", compile.budget, "all device memory the job may hold; without it the device's memory")
      ->type_name("BYTES");
  command
      .add_option("--recompute", compile.recompute,
                  "auto: repeat instructions where the budget asks for it; off: refuse instead")
      ->capture_default_str()
      ->type_name("auto|off");
  command
      .add_option(
          "--offload", compile.offload,
          "auto: let states and values wait in host memory where the budget asks for it; off: keep to the device")
      ->capture_default_str()
      ->type_name("auto|off");
  command
      .add_option("--split", compile.split,
                  "auto: take a region of the model through a step one part of the batch after the other where the "
                  "budget asks for it and that is faster "
                  "or nothing else fits (the default, but for --max-batch); off: never; N: in N parts, N:VALUE: what "
                  "follows that value")
      ->type_name("auto|off|N[:VALUE]");
  command
      .add_option("--host-budget", compile.host_budget, "host memory the job may pin for that; without it all it wants")
      ->type_name("BYTES");
  command
      .add_option("--precision", compile.precision,
                  "exported, fp32, tf32, bf16 and fp16 (16-bit compute over f32 parameters), or auto: the one that "
                  "takes the least predicted time on the device")
      ->capture_default_str()
      ->type_name("NAME");
  command
      .add_option("--precision-file", compile.precision_file,
                  "lines such as 'op:exp = fp32' or 'module:REGEX = fp32' that overrule --precision")
      ->type_name("FILE");
  command
      .add_option("--layout", compile.layout,
                  "of images: channels-first, channels-last, or auto (what convolutions of that precision are faster "
                  "in on the device)")
      ->capture_default_str()
      ->type_name("NAME");
  add_optimizer(command, compile);
}

void add_compile(CLI::App& program, Options& options) {
  CLI::App& command = *program.add_subcommand("compile", "turn a model into a training plan that fits a budget");
  CompileOptions& compile = options.compile;
  add_model(command, compile.model);
  command.add_option("-o,--output", compile.output, "the plan to write")->type_name("PLAN");
  command.add_option("--device", compile.device, "what to plan for: a name of `plimsoll devices`, or auto")
      ->capture_default_str()
      ->type_name("NAME");
  command
      .add_option("--tune", compile.tune,
                  "time the kernels there is a choice of on the GPU in this machine, plan by these times, and add them "
                  "to this file")
      ->type_name("FILE");
  auto* global_batch =
      command
          .add_option("--global-batch", compile.global_batch,
                      "samples an update; the micro-batch and how many to accumulate are chosen for the least time")
          ->check(CLI::PositiveNumber)
          ->type_name("N");
  command.add_flag("--max-batch", compile.max_batch, "the largest batch that fits")->excludes(global_batch);
  command.add_flag("--pareto", compile.pareto, "also print what smaller budgets cost, down to the smallest that does")
      ->excludes(global_batch)
      ->excludes("--max-batch");
  command
      .add_option("--html", compile.html,
                  "also write the report as one HTML file, with --pareto's rows where they are asked for; where "
                  "nothing fits, of the plan that needs least")
      ->type_name("FILE");
  add_job(command, compile);
  add_passes(command, compile);
  add_config(command, options);
}

void add_fit(CLI::App& program, Options& options) {
  CLI::App& command =
      *program.add_subcommand("fit", "say on which devices a training job fits, with what and how fast");
  add_model(command, options.fit.compile.model);
  command
      .add_option("--device", options.fit.devices,
                  "a name of `plimsoll devices`, or auto; may be given several times; without it every known device")
      ->type_name("NAME")
      ->allow_extra_args(false);
  add_job(command, options.fit.compile);
  add_config(command, options);
}

void add_inspect(CLI::App& program, Options& options) {
  CLI::App& command = *program.add_subcommand("inspect", "show what lives when, where, and why");
  InspectOptions& inspect = options.inspect;
  command.add_option("PLAN", inspect.plan, "a plan that compile wrote")->required()->type_name("");
  auto* json = command.add_flag("--json", inspect.json, "everything, for programs (docs/interfaces.md)");
  auto* text = command.add_flag("--text", inspect.text, "every slot and instruction, a line each");
  auto* html = command.add_option("--html", inspect.html, "the report as one HTML file")->type_name("FILE");
  auto* why =
      command.add_option("--why", inspect.why, "everything about a value, or the values of a node")->type_name("NAME");
  auto* diff = command.add_option("--diff", inspect.diff, "what another plan does otherwise")->type_name("PLAN2");
  json->excludes(text)->excludes(html)->excludes(why)->excludes(diff);
  text->excludes(html)->excludes(why)->excludes(diff);
  html->excludes(why)->excludes(diff);
  why->excludes(diff);
}

void add_devices(CLI::App& program, Options& options) {
  CLI::App& command = *program.add_subcommand("devices", "list the known devices and what is in this machine");
  command.add_flag("--measure", options.devices.measure,
                   "measure the card in this machine and print its description, for --device-file");
  command.add_option("--device-file", options.devices.device_file, "more device descriptions")->type_name("FILE");
}

void add_run(CLI::App& program, Options& options) {
  CLI::App& command = *program.add_subcommand("run", "train with a plan");
  RunOptions& run = options.run;
  command.add_option("PLAN", run.plan, "a plan that compile wrote")->required()->type_name("");
  auto* weights =
      command.add_option("--weights", run.weights, "first values, from .onnx or .safetensors")->type_name("FILE");
  auto* init = command.add_option("--init", run.init_seed, "random first values from this seed")->type_name("SEED");
  weights->excludes(init);
  command
      .add_option("--data", run.data,
                  "one batch, repeated (.safetensors, .npz, .npy: a tensor an input), or a file of token numbers "
                  "(uint16; .u32: uint32)")
      ->required()
      ->type_name("FILE");
  command.add_option("--steps", run.steps, "updates")->capture_default_str()->type_name("N")->check(at_least(0));
  command.add_option("--seed", run.seed, "of dropout and of the order of the data")
      ->capture_default_str()
      ->type_name("N");
  command.add_option("--lr", run.learning_rate, "another learning rate than the plan's")
      ->type_name("X")
      ->check(at_least(0));
  command.add_option("--threads", run.threads, "0: as many as the machine has")
      ->capture_default_str()
      ->type_name("N")
      ->check(at_least(0));
  command.add_flag("--poison", run.poison, "overwrite dead bytes with NaN: finds plans that read them");
  command
      .add_option("--profile", run.profile,
                  "measure every op of one more step, compare with what was predicted, and add the times to this file")
      ->type_name("FILE");
  command.add_option("--metrics", run.metrics, "a line of JSON a step (docs/interfaces.md)")->type_name("FILE");
  command.add_option("--save", run.save, "trained weights, to .safetensors or .onnx; may be given several times")
      ->type_name("FILE")
      ->allow_extra_args(false);
  command.add_option("--dump-gradients", run.dump_gradients, "gradients of the first step, to .safetensors")
      ->type_name("FILE");
  add_config(command, options);
}

void add_check(CLI::App& program, Options& options) {
  CLI::App& command = *program.add_subcommand("check", "list everything that stands in the way of training a model");
  add_model(command, options.check.model);
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

// "--help" and "--optimizer", as they are written.
std::vector<std::string> option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

std::string suggestion(llvm::StringRef wrong, const std::vector<std::string>& names) {
  std::vector<llvm::StringRef> refs(names.begin(), names.end());
  std::vector<std::string> near = did_you_mean(wrong, refs, 1);
  return near.empty() ? "" : "; did you mean " + near.front() + "?";
}

// One line in our words. `command` is the one that was named, or the program.
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
  if (name == "fit") return fit_command(options.fit, console);
  if (name == "inspect") return inspect_command(options.inspect, console);
  if (name == "run") return run_command(options.run, console);
  if (name == "check") return check_command(options.check, console);
  return devices_command(options.devices, console);
}

// Parses the words; help and version text go to `out` and leave the name empty.
Result<std::string> parse(CLI::App& program, Options& options, std::vector<std::string> words, llvm::raw_ostream& out) {
  const CLI::App* command = &program;
  if (!words.empty() && !starts_with(words.front(), "-")) {
    command = find_command(program, words.front());
    if (!command)
      return usage_error("there is no command " + words.front() + suggestion(words.front(), command_names(program)));
  }
  if (command != &program) {
    Result<std::vector<std::string>> more = words_of_config(words, option_names(*command));
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
  options.run.random_weights = command->get_name() == "run" && command->get_option("--init")->count() > 0;
  return command->get_name();
}

int exit_code(Fault fault) {
  switch (fault) {
    case Fault::Usage:
      return 2;
    case Fault::Model:
      return 3;
    case Fault::Budget:
      return 4;
    case Fault::System:
      return 5;
  }
  return 5;
}

int columns_of(bool terminal, unsigned columns) {
  return terminal && columns > 0 ? static_cast<int>(std::min(std::max(columns, 60u), 160u)) : 100;
}

}  // namespace

int run_program(int argc, char** argv) {
  using llvm::sys::Process;
  bool out_is_terminal = Process::StandardOutIsDisplayed(), err_is_terminal = Process::StandardErrIsDisplayed();
  Progress progress(llvm::errs(), err_is_terminal, columns_of(err_is_terminal, Process::StandardErrColumns()));
  Console console{llvm::outs(), progress, out_is_terminal, columns_of(out_is_terminal, Process::StandardOutColumns())};

  Options options;
  CLI::App program("Plans and runs the training of exported models within a memory budget.", "plimsoll");
  program.set_version_flag("--version", "plimsoll 0.1.0");
  program.require_subcommand(1);
  program.get_formatter()->column_width(32);
  add_compile(program, options);
  add_fit(program, options);
  add_inspect(program, options);
  add_run(program, options);
  add_check(program, options);
  add_devices(program, options);

  Result<std::string> command = parse(program, options, std::vector<std::string>(argv + 1, argv + argc), llvm::outs());
  Status status = !command           ? command.takeError()
                  : command->empty() ? Status::success()
                                     : run_command_named(*command, options, console);
  llvm::outs().flush();
  progress.finish();
  if (!status) return 0;
  Diag diag = take_diag(std::move(status));
  llvm::errs() << "plimsoll: error: " << diag.text() << "\n";
  return exit_code(diag.fault());
}

}  // namespace plimsoll
