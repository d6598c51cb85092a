#pragma once

// What a budget search may do and how long it may search.

#include "ir/plan/plan.h"

namespace plimsoll {

struct FitOptions {
  bool recompute = true;
  bool offload = true;            // where the device has memory of its own
  TrainingSummary training = {};  // recorded in the plan; its batch and accumulation are in the advice of an error
  double min_share = 0;           // lowest peak to search for, as a share of the plain peak without states
  double search_seconds = 4;      // work for each function that does not fit, see RematOptions
};

}  // namespace plimsoll
