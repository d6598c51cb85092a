#pragma once

// How the options of each command become plain structs. Only what includes this header and the readers of TOML files
// know CLI11. Sizes and names stay text until the command reads them, so that the command words their errors.

#include "frontend/driver/commands.h"

#include <CLI/CLI.hpp>

namespace plimsoll {

// The options of every command; parsing fills in those of the command that was named.
struct Options {
  CompileOptions compile;
  FitCommandOptions fit;
  DataCommandOptions data;
  InspectOptions inspect;
  WatchCommandOptions watch;
  RunOptions run;
  TrainOptions train;
  EvaluateOptions evaluate, predict;
  VerifyOptions verify;
  CheckOptions check;
  DevicesOptions devices;
  MergeCommandOptions merge;
  std::string config;
};

// Each adds a command with its options to the program.
void add_compile(CLI::App& program, Options& options);
void add_fit(CLI::App& program, Options& options);
void add_data_command(CLI::App& program, Options& options);
void add_inspect(CLI::App& program, Options& options);
void add_watch(CLI::App& program, Options& options);
void add_run(CLI::App& program, Options& options);
void add_train(CLI::App& program, Options& options);
void add_evaluate(CLI::App& program, Options& options);
void add_predict(CLI::App& program, Options& options);
void add_verify(CLI::App& program, Options& options);
void add_check(CLI::App& program, Options& options);
void add_devices(CLI::App& program, Options& options);
void add_merge(CLI::App& program, Options& options);

// Adds what a job trains. `name` is MODEL, or --model of a command that takes another file first.
void add_model(CLI::App& command, JobOptions& options, const char* name = "MODEL");
// Adds the options of the job that compile and fit share.
void add_job(CLI::App& command, JobOptions& options);
// Adds what says on which devices and for which batch the job is planned, of a command that makes one plan.
void add_target(CLI::App& command, CompileOptions& compile);

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

inline void add_config(CLI::App& command, Options& options) {
  add_option(command, "--config", options.config, "FILE", "read more options from a TOML file: NAME = VALUE");
}

// CLI11's own range check is not used: its message prints the largest double.
inline CLI::Validator at_least(int64_t least) {
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

}  // namespace plimsoll
