#pragma once

#include "frontend/api/check_model.h"
#include "frontend/driver/commands.h"

namespace plimsoll {

// Prints what the model takes and gives, how large a batch fits this machine's device, and the command that trains it.
void print_next_command(const JobOptions& options, const ModelCheck& check, Console& console);

}  // namespace plimsoll
