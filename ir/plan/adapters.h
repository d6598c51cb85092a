#pragma once

// The adapters of a plan (LoRA), as its states, their names and its numbers say them.

#include "ir/adapter_names.h"
#include "ir/plan/plan.h"

namespace plimsoll {

// Two states that make the adapter of one module.
struct PlannedAdapter {
  std::string module;     // its path
  std::string a, b;       // names of the states
  std::string magnitude;  // likewise; empty without DoRA
  Type a_type, b_type;    // of the whole states; an embedding's A is the transpose of a file's
  bool of_embedding = false;
  int64_t rank = 0;
  double alpha = 0;
};

struct PlannedAdapters {
  int64_t rank = 0;  // and alpha: of modules without their own
  double alpha = 0, dropout = 0;
  bool rslora = false;
  bool from_export = false;             // the model itself has them
  bool fan_in_fan_out = false;          // some adapted linear layer keeps its weight as [inputs, outputs]
  std::string root;                     // what names of states begin with and paths do not
  std::vector<PlannedAdapter> modules;  // by path

  bool has_magnitudes() const { return !modules.empty() && !modules.front().magnitude.empty(); }  // DoRA
  double scale(const PlannedAdapter& adapter) const;                                              // of B A
};
// Those of all stages; none where the plan has no adapters.
std::optional<PlannedAdapters> adapters_of(const Plan& plan);

}  // namespace plimsoll
