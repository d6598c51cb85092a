#include "frontend/driver/command_line.h"

#include "frontend/driver/commands.h"
#include "frontend/driver/config_file.h"
#include "ir/support/did_you_mean.h"
#include "ir/support/strings.h"

#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Process.h"

#include <CLI/CLI.hpp>

// Only this file knows CLI11. Options become plain structs; sizes and names stay text until the command reads them, so
// that the command words their errors.

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

void add_model(CLI::App& command, ModelOptions& options) {
  command.add_option("MODEL", options.model, "the exported model, an .onnx file")->required()->type_name("");
  command.add_option("--dim", options.dims, "bind a symbolic dimension to a size; may be given several times")
      ->type_name("NAME=N")
      ->allow_extra_args(false);
  command.add_option("--batch", options.batch, "change the batch that the exporter fixed")
      ->type_name("N")
      ->check(at_least(1));
  command
      .add_option("--loss", options.loss,
                  "the output that is the loss, or a loss to build: cross-entropy:LOGITS:LABELS, mse:A:B, bce:A:B; "
                  "default: the only scalar float output")
      ->type_name("OUTPUT");
  command
      .add_option("--train", options.train,
                  "train the weights that match this regular expression; default: every parameter")
      ->type_name("REGEX")
      ->allow_extra_args(false);
  command.add_option("--freeze", options.freeze, "do not train the weights that match this regular expression")
      ->type_name("REGEX")
      ->allow_extra_args(false);
  command.add_flag("--freeze-norm", options.freeze_norm,
                   "batch norms use their running statistics and do not change them");
}

void add_optimizer(CLI::App& command, CompileOptions& options) {
  OptimizerSpec& spec = options.optimizer_settings;
  const char* group = "Optimizer";
  command.add_option("--optimizer", options.optimizer, "sgd, adam or adamw")
      ->capture_default_str()
      ->type_name("NAME")
      ->group(group);
  command.add_option("--lr", spec.learning_rate, "learning rate")->capture_default_str()->type_name("X")->group(group);
  command.add_option("--beta1", spec.beta1, "decay of the mean of gradients, for adam and adamw")
      ->capture_default_str()
      ->type_name("X")
      ->group(group);
  command.add_option("--beta2", spec.beta2, "decay of the mean of squared gradients, for adam and adamw")
      ->capture_default_str()
      ->type_name("X")
      ->group(group);
  command.add_option("--eps", spec.eps, "added to the denominator, for adam and adamw")
      ->capture_default_str()
      ->type_name("X")
      ->group(group);
  command.add_option("--momentum", spec.momentum, "momentum, for sgd")
      ->capture_default_str()
      ->type_name("X")
      ->group(group);
  command.add_option("--dampening", spec.dampening, "dampening of the momentum, for sgd")
      ->capture_default_str()
      ->type_name("X")
      ->group(group);
  command.add_flag("--nesterov", spec.nesterov, "use Nesterov momentum, for sgd")->group(group);
  command
      .add_option("--weight-decay", spec.weight_decay,
                  "weight decay: decoupled for adamw, added to the gradient for sgd and adam")
      ->capture_default_str()
      ->type_name("X")
      ->group(group);
  command
      .add_option("--master-weights", options.master_weights,
                  "fp32 copies of the weights that the optimizer updates: auto (for 16-bit weights), on, off")
      ->capture_default_str()
      ->type_name("WHEN");
  command.add_option("--accumulate", options.accumulate, "micro-batches per update")
      ->capture_default_str()
      ->type_name("N")
      ->check(at_least(1))
      ->group(group);
  command
      .add_option("--clip-grad-norm", options.clip_grad_norm,
                  "scale gradients down to at most this global norm; 0 turns it off")
      ->capture_default_str()
      ->type_name("X")
      ->check(at_least(0))
      ->group(group);
  command
      .add_option("--loss-scale", options.loss_scale, "first factor of the loss in fp16; it halves after an overflow")
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
  command.add_option("--print-after", options.print_after, "print the graph after this pass, or after `all` passes")
      ->type_name("PASS")
      ->allow_extra_args(false)
      ->group(group);
  command
      .add_option(
          "--stop-after", options.stop_after,
          "stop after this pass, or after the phase clean, train or fit, and print the graph instead of writing "
          "a plan")
      ->type_name("PASS")
      ->group(group);
  command.add_option("--skip", options.skip, "do not run this pass")
      ->type_name("PASS")
      ->allow_extra_args(false)
      ->group(group);
}

// Adds the options of the job that compile and fit share.
void add_job(CLI::App& command, CompileOptions& compile) {
  command
      .add_option("--device-file", compile.device_file,
                  "file with more device descriptions, as `devices --measure` prints them")
      ->type_name("FILE");
  command.add_flag("--any-order", compile.any_order,
                   "allow faster kernels whose results differ in their last bits from run to run");
  command
      .add_option("--timings", compile.timings,
                  "file with measured kernel times, as `run --profile` and `--tune` write it")
      ->type_name("FILE");
  command
      .add_option("--budget", compile.budget,
                  "device memory that the job may hold in all; default: the memory of the device")
      ->type_name("BYTES");
  command
      .add_option(
          "--recompute", compile.recompute,
          "auto: rematerialise values, that is compute them again instead of keeping them, where the budget needs it; "
          "off: refuse the budget instead")
      ->capture_default_str()
      ->type_name("auto|off");
  command
      .add_option(
          "--offload", compile.offload,
          "auto: keep states and values in host memory while they wait, where the budget needs it; off: use device "
          "memory alone")
      ->capture_default_str()
      ->type_name("auto|off");
  command
      .add_option(
          "--split", compile.split,
          "run part of the model chunk by chunk of the batch; auto: where the budget needs it (the default, except "
          "with --max-batch); off: never; N: in N chunks; N:VALUE: in N chunks from this value on")
      ->type_name("auto|off|N[:VALUE]");
  command.add_option("--host-budget", compile.host_budget, "host memory that --offload may pin; default: no limit")
      ->type_name("BYTES");
  command
      .add_option("--precision", compile.precision,
                  "exported, fp32, tf32, bf16 or fp16 (16-bit compute with fp32 parameters), or auto: the one with the "
                  "least predicted time on the device")
      ->capture_default_str()
      ->type_name("NAME");
  command
      .add_option("--precision-file", compile.precision_file,
                  "file with exceptions to --precision: lines such as 'op:exp = fp32' or 'module:REGEX = fp32'")
      ->type_name("FILE");
  command
      .add_option(
          "--layout", compile.layout,
          "layout of images: channels-first, channels-last, or auto (the one in which the device's convolutions "
          "are faster)")
      ->capture_default_str()
      ->type_name("NAME");
  add_optimizer(command, compile);
}

void add_compile(CLI::App& program, Options& options) {
  CLI::App& command = *program.add_subcommand("compile", "turn a model into a training plan that fits a budget");
  CompileOptions& compile = options.compile;
  add_model(command, compile.model);
  command.add_option("-o,--output", compile.output, "the plan to write")->type_name("PLAN");
  command
      .add_option("--device", compile.device,
                  "device to plan for: a name that `plimsoll devices` lists, or auto: the device in this machine")
      ->capture_default_str()
      ->type_name("NAME");
  command
      .add_option("--tune", compile.tune,
                  "time every kernel alternative on the GPU in this machine, add the times to this file, and plan with "
                  "them")
      ->type_name("FILE");
  auto* global_batch =
      command
          .add_option("--global-batch", compile.global_batch,
                      "samples per update; the micro-batch and --accumulate are chosen for the least predicted time")
          ->check(CLI::PositiveNumber)
          ->type_name("N");
  command.add_flag("--max-batch", compile.max_batch, "plan for the largest batch that fits")->excludes(global_batch);
  command.add_flag("--pareto", compile.pareto, "also print what smaller budgets cost, down to the smallest that fits")
      ->excludes(global_batch)
      ->excludes("--max-batch");
  command
      .add_option(
          "--html", compile.html,
          "also write the report as one HTML file, with the rows of --pareto if it is given; if nothing fits, the "
          "report shows the plan that needs least")
      ->type_name("FILE");
  add_job(command, compile);
  add_passes(command, compile);
  add_config(command, options);
}

void add_fit(CLI::App& program, Options& options) {
  CLI::App& command = *program.add_subcommand("fit", "say on which devices a training job fits, how, and how fast");
  add_model(command, options.fit.compile.model);
  command
      .add_option(
          "--device", options.fit.devices,
          "a name that `plimsoll devices` lists, or auto; may be given several times; default: every known device")
      ->type_name("NAME")
      ->allow_extra_args(false);
  add_job(command, options.fit.compile);
  add_config(command, options);
}

void add_inspect(CLI::App& program, Options& options) {
  CLI::App& command = *program.add_subcommand("inspect", "show what lives when, where, and why");
  InspectOptions& inspect = options.inspect;
  command.add_option("PLAN", inspect.plan, "a plan that compile wrote")->required()->type_name("");
  auto* json = command.add_flag("--json", inspect.json, "print everything for programs (docs/interfaces.md)");
  auto* text = command.add_flag("--text", inspect.text, "print every slot and instruction, one per line");
  auto* html = command.add_option("--html", inspect.html, "write the report as one HTML file")->type_name("FILE");
  auto* why =
      command.add_option("--why", inspect.why, "explain one value, or the values of one node")->type_name("NAME");
  auto* diff = command.add_option("--diff", inspect.diff, "show how another plan differs")->type_name("PLAN2");
  json->excludes(text)->excludes(html)->excludes(why)->excludes(diff);
  text->excludes(html)->excludes(why)->excludes(diff);
  html->excludes(why)->excludes(diff);
  why->excludes(diff);
}

void add_devices(CLI::App& program, Options& options) {
  CLI::App& command = *program.add_subcommand("devices", "list the known devices and what is in this machine");
  command.add_flag("--measure", options.devices.measure,
                   "measure the GPU in this machine and print its description for --device-file");
  command.add_option("--device-file", options.devices.device_file, "file with more device descriptions")
      ->type_name("FILE");
}

void add_run(CLI::App& program, Options& options) {
  CLI::App& command = *program.add_subcommand("run", "train with a plan");
  RunOptions& run = options.run;
  command.add_option("PLAN", run.plan, "a plan that compile wrote")->required()->type_name("");
  auto* weights =
      command.add_option("--weights", run.weights, "first values of the weights, from .onnx or .safetensors")
          ->type_name("FILE");
  auto* init =
      command.add_option("--init", run.init_seed, "draw random first values from this seed")->type_name("SEED");
  weights->excludes(init);
  command
      .add_option("--data", run.data,
                  "one batch for every step (.safetensors, .npz, .npy: one tensor per input), or a file of token "
                  "numbers (uint16; .u32: uint32)")
      ->required()
      ->type_name("FILE");
  command.add_option("--steps", run.steps, "number of updates")
      ->capture_default_str()
      ->type_name("N")
      ->check(at_least(0));
  command.add_option("--seed", run.seed, "seed of dropout and of the order of the data")
      ->capture_default_str()
      ->type_name("N");
  command.add_option("--lr", run.learning_rate, "learning rate; default: the plan's")
      ->type_name("X")
      ->check(at_least(0));
  command.add_option("--threads", run.threads, "CPU threads; 0: as many as the machine has")
      ->capture_default_str()
      ->type_name("N")
      ->check(at_least(0));
  command.add_flag("--poison", run.poison, "overwrite dead bytes with NaN, to find plans that read them");
  command
      .add_option("--profile", run.profile,
                  "measure every op of one more step, compare it with the prediction, and add the times to this file")
      ->type_name("FILE");
  command.add_option("--metrics", run.metrics, "write one line of JSON per step (docs/interfaces.md)")
      ->type_name("FILE");
  command
      .add_option("--save", run.save, "save the trained weights as .safetensors or .onnx; may be given several times")
      ->type_name("FILE")
      ->allow_extra_args(false);
  command.add_option("--dump-gradients", run.dump_gradients, "write the gradients of the first step as .safetensors")
      ->type_name("FILE");
  add_config(command, options);
}

void add_check(CLI::App& program, Options& options) {
  CLI::App& command = *program.add_subcommand("check", "list everything that prevents training a model");
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

// Long names with their dashes, such as "--help".
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
  if (name == "fit") return fit_command(options.fit, console);
  if (name == "inspect") return inspect_command(options.inspect, console);
  if (name == "run") return run_command(options.run, console);
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
    case Fault::Usage: return 2;
    case Fault::Model: return 3;
    case Fault::Budget: return 4;
    case Fault::System: return 5;
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
