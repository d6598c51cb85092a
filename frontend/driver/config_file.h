#pragma once

#include "ir/support/status.h"

#include <string>
#include <vector>

namespace plimsoll {

// The options of the --config file among `words`, as further words: those outside any section and those in
// the section of the command, which is words[0]. What the command line says itself wins. Names are checked
// against `known`
// ("--optimizer", ...).
Result<std::vector<std::string>> words_of_config(const std::vector<std::string>& words,
                                                 const std::vector<std::string>& known);

}  // namespace plimsoll
