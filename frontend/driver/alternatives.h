#pragma once

// What a job that does not fit could do otherwise.

#include "frontend/api/compile_model.h"

namespace plimsoll {

// The refusal of `request` with what changes to the job would need and take: each is planned where that is a matter of
// seconds, else estimated ("about"). `smallest` is the plan of the request that needs least.
Status with_alternatives(Status refusal, const OpenedModel& model, const CompileRequest& request, const Plan& smallest);

}  // namespace plimsoll
