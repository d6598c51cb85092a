#include "frontend/driver/command_options.h"

// The options of the commands that make or compare plans: compile, fit and check.

namespace plimsoll {
namespace {

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

}  // namespace

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
      ->excludes("--max-batch")
      ->excludes("--best-batch");
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

void add_check(CLI::App& program, Options& options) {
  CLI::App& command = *program.add_subcommand("check", "list everything that prevents training a model");
  add_model(command, options.check.job);
  add_config(command, options);
}

}  // namespace plimsoll
