#pragma once

// Where a run decodes its JPEGs.

#include "frontend/driver/commands.h"
#include "ir/plan/plan.h"

namespace plimsoll {

// Images of about 500 x 375 that a core of a processor decodes in a second, and crops to 224 x 224.
inline constexpr int images_per_core_and_s = 500;

struct DecodeChoice {
  bool on_gpu = false;
  bool was_asked = false;    // and not chosen, so that what is missing is an error
  int64_t device_bytes = 0;  // beside what the plan promises
  int64_t pinned_bytes = 0;
  std::string note;  // what kept the choice from the GPU, where that is worth knowing
};

// `own` is the plan of this rank's stage. With --decode auto the GPU is chosen where the predicted step takes images
// faster than the cores here decode them, and where the plan's budgets have room. The choice depends on the plan, the
// options and the number of cores alone, so that a run that is resumed decides alike.
Result<DecodeChoice> choose_decoder(const RunOptions& options, const Plan& own, int64_t cache_bytes);

}  // namespace plimsoll
