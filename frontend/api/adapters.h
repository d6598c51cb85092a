#pragma once

// The adapters of a session: saved, gone on from, and looked at.

#include "frontend/api/adapter_file.h"
#include "ir/plan/adapters.h"
#include "runtime/session.h"

namespace plimsoll {

// Checks before hours of training that an adapter can be saved so.
Status check_adapter_target(const std::string& path, AdapterFormat format);

// Saves the adapters of the session, and what of the model is trained beside them, for other programs. `path` is a
// folder, which is made, or of the formats that are one file its name. Every rank calls it; the first one writes.
Status save_adapter(Session& session, const std::string& path, AdapterFormat format);

// Gives the session, which has its first values, the adapters of a file in any of the formats. Errors: the file's
// modules, rank or scale are not the plan's.
Status load_adapter(Session& session, const std::string& path);

// Names of modules whose adapters are still as they began, so that no gradient has reached them. Every rank calls it;
// the first one gets the names.
Result<std::vector<std::string>> unmoved_adapters(Session& session, const PlannedAdapters& adapters);

}  // namespace plimsoll
