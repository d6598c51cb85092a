#pragma once

// Where a step's time goes: every instruction measured, by op, beside what was predicted.

#include "frontend/driver/commands.h"

namespace plimsoll {

// Takes the times of each function, prints a table, and adds them to the timing cache at `path`.
Status profile_step(Session& session, const std::string& path, Console& console);

}  // namespace plimsoll
