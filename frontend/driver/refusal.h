#pragma once

#include "frontend/driver/commands.h"

namespace plimsoll {

// Why `result`, the outcome of `training`, does not fit, and with which options it would fit or need less:
// Fault::Budget. On a terminal a table with these options first, else one line. `subject` goes before it: "h200: ".
Status refuse(const CompileResult& result, const Job& job, const TrainingRequest& training, const Console& console,
              const std::string& subject = "");

}  // namespace plimsoll
