#pragma once

#include "ir/support/status.h"

#include <map>
#include <string>
#include <vector>

namespace plimsoll {

// The options of each command, by its name ("--optimizer", ...).
using CommandOptions = std::map<std::string, std::vector<std::string>>;

// Reads the file that --config names in `words`, or the job file of `train JOB.toml`, and returns its options as
// further words: those outside any section and those in the section of the command, words[0]; of a job file those of
// all sections. Options that `words` has already are left out. All names of the file are checked, also those in the
// sections of other commands.
Result<std::vector<std::string>> words_of_config(const std::vector<std::string>& words, const CommandOptions& commands);

}  // namespace plimsoll
