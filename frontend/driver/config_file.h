#pragma once

#include "ir/support/status.h"

#include <string>
#include <vector>

namespace plimsoll {

// Reads the file that --config names in `words`, or the job file of `train JOB.toml`, and returns its options as
// further words: those outside any section and those in the section of the command, words[0]; of a job file those of
// all sections. Options that `words` has already are left out. Names are checked against `known` ("--optimizer", ...).
Result<std::vector<std::string>> words_of_config(const std::vector<std::string>& words,
                                                 const std::vector<std::string>& known);

}  // namespace plimsoll
