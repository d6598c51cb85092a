#include "frontend/driver/command_line.h"

#include "frontend/driver/command_options.h"
#include "frontend/driver/config_file.h"
#include "ir/support/did_you_mean.h"
#include "ir/support/printable.h"
#include "ir/support/strings.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/ErrorHandling.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Process.h"
#include "llvm/Support/Signals.h"

#include <sys/ioctl.h>
#include <unistd.h>
#include <algorithm>
#include <new>

// From the words of the command line to the command: parsing, suggestions for wrong names, exit codes.

namespace plimsoll {
namespace {

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
  if (name == "watch") return watch_command(options.watch, console);
  if (name == "run") return run_command(options.run, console);
  if (name == "train") return train_command(options.train, console);
  if (name == "evaluate") return evaluate_command(options.evaluate, console);
  if (name == "verify") return verify_command(options.verify, console);
  if (name == "predict") return predict_command(options.predict, console);
  if (name == "check") return check_command(options.check, console);
  if (name == "merge") return merge_command(options.merge, console);
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

// Of the terminal behind a file descriptor. LLVM knows the width only where the environment tells it.
int columns_of(int fd, bool terminal) {
  constexpr int least = 60, most = 160, otherwise = 100;
  winsize size = {};
  const bool is_known = terminal && ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return is_known ? std::clamp<int>(size.ws_col, least, most) : otherwise;
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

void print_error(llvm::StringRef text) {
  llvm::errs() << "plimsoll: error: " + printable(text) + "\n";
  llvm::errs().flush();
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

int run_program(int argc, char** argv) {
  end_in_words_without_memory();
  using llvm::sys::Process;
  bool out_is_terminal = Process::StandardOutIsDisplayed(), err_is_terminal = Process::StandardErrIsDisplayed();
  Progress progress(llvm::errs(), err_is_terminal, columns_of(STDERR_FILENO, err_is_terminal));
  PrintableStream out(llvm::outs(), out_is_terminal);
  Console console{out, progress, out_is_terminal, columns_of(STDOUT_FILENO, out_is_terminal),
                  err_is_terminal ? columns_of(STDERR_FILENO, true) : 0};

  Options options;
  CLI::App program("Plans and runs the training of exported models within a memory budget.", "plimsoll");
  program.set_version_flag("--version", "plimsoll 0.1.0");
  program.require_subcommand(1);
  program.get_formatter()->column_width(32);
  add_compile(program, options);
  add_fit(program, options);
  add_data_command(program, options);
  add_inspect(program, options);
  add_watch(program, options);
  add_run(program, options);
  add_train(program, options);
  add_evaluate(program, options);
  add_predict(program, options);
  add_verify(program, options);
  add_merge(program, options);
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
  if (!diag.text().empty()) print_error(diag.text());  // else another rank tells it
  if (!console.after_error) return exit_code(diag.fault());
  console.after_error();
  llvm::sys::RunInterruptHandlers();  // takes unfinished files away
  _exit(exit_code(diag.fault()));
}

}  // namespace plimsoll
