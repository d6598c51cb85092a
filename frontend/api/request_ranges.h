#pragma once

// Which numbers a request may hold, and which of them exclude each other, whoever filled it in.

#include "frontend/api/job.h"

namespace plimsoll {

Status check_ranges(const CompileRequest& request);

}  // namespace plimsoll
