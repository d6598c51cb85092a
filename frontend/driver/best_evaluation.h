#pragma once

// What a run's evaluations have come to, which its checkpoints hold too.

#include <cstdint>
#include <string>

namespace plimsoll {

struct BestEvaluation {
  std::string metric;  // "accuracy"
  double value = 0;
  int64_t step = -1;  // of the best one
  int64_t since = 0;  // evaluations since it
};

}  // namespace plimsoll
