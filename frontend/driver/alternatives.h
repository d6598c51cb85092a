#pragma once

// Changes of a job that does not fit, which would make it fit or need less.

#include "frontend/api/compile_model.h"

namespace plimsoll {

// Adds alternatives with their bytes and times to the refusal of `request`. Each is planned where that takes seconds,
// else estimated ("about"). `smallest` is the plan of the request that needs least.
Status with_alternatives(Status refusal, const OpenedModel& model, const CompileRequest& request, const Plan& smallest);

}  // namespace plimsoll
