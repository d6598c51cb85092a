#include "frontend/driver/command_options.h"

// The options of the commands that look at a plan or at this machine: inspect and devices.

namespace plimsoll {

void add_inspect(CLI::App& program, Options& options) {
  CLI::App& command = *program.add_subcommand("inspect", "show what lives when, where, and why");
  InspectOptions& inspect = options.inspect;
  add_option(command, "PLAN", inspect.plan, "", "a plan that compile wrote")->required();
  CLI::Option* forms[] = {
      command.add_flag("--json", inspect.json, "print everything for programs (docs/interfaces.md)"),
      command.add_flag("--text", inspect.text, "print every slot and instruction, one per line"),
      add_option(command, "--html", inspect.html, "FILE", "write the report as one HTML file"),
      add_option(command, "--trace", inspect.trace, "FILE", "write a step's timeline for Perfetto or Chrome"),
      add_option(command, "--memory-viz", inspect.memory_viz, "FILE",
                 "write the life of every value for PyTorch's memory_viz page"),
      add_option(command, "--why", inspect.why, "NAME", "explain one value, or the values of one node"),
      add_option(command, "--diff", inspect.diff, "PLAN2", "show how another plan differs")};
  for (CLI::Option* form : forms)
    for (CLI::Option* other : forms)
      if (form != other) form->excludes(other);
  add_option(command, "--beside", inspect.beside, "PLAN2", "with --html: draw another plan's memory beside this one's")
      ->needs("--html");
  add_option(command, "--profile", inspect.profile, "FILE",
             "the times that `run --profile` measured: with --trace in the place of predicted "
             "ones, with --html beside them");
}

void add_watch(CLI::App& program, Options& options) {
  CLI::App& command = *program.add_subcommand("watch", "show a run over its plan as a page in a browser");
  add_option(command, "DIR", options.watch.folder, "", "the folder of run --log or train --log")->required();
  add_setting(command, "--port", options.watch.port, "N", "port on 127.0.0.1; 0: a free one")
      ->check(CLI::Range(0, 65535));
  add_option(command, "--html", options.watch.html, "FILE", "write the page as it is now, and serve nothing");
  add_config(command, options);
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

}  // namespace plimsoll
