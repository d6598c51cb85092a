#pragma once

// Between the plan's structs and the messages of plan.proto, which stay inside this folder.

#include "ir/plan/plan.h"

namespace plimsoll {

namespace proto {
class Plan;
}

void plan_to_proto(const Plan& plan, proto::Plan& to);
// Fails on names and kinds this program does not know; indices are not looked at.
Result<Plan> plan_from_proto(const proto::Plan& from);

}  // namespace plimsoll
