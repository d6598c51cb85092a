#pragma once

// Measures every instruction of a step and compares it with the prediction, by op.

#include "frontend/driver/commands.h"

namespace plimsoll {

// Measures each function, prints a table, and adds the times to the timing cache at `path`. Of several ranks all
// measure, and the first one prints and saves: its own times by op, and the collectives of the first rank of every
// stage. `ranks` is null for one.
Status profile_step(Session& session, Communicator* ranks, const std::string& path, Console& console);

}  // namespace plimsoll
