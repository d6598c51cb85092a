#pragma once

namespace plimsoll {

// The whole program: reads the words of the command line (and of a --config file), runs the command, reports
// a failure in one line. Gives the exit code of docs/command_line.md.
int run_program(int argc, char** argv);

}  // namespace plimsoll
