#pragma once

// Trains random models on several ranks, which are threads, within random budgets, and compares with one rank's plain
// plan.

#include <cstdint>
#include <string>

namespace plimsoll::testing {

struct RankCounts {
  int64_t graphs = 0, skipped = 0, plans = 0, refused = 0, repeating = 0, on_host = 0, split = 0;
  int64_t tensor = 0, stage = 0, undivided = 0;  // plans along these axes; graphs that these cannot divide
  int64_t filled = 0, batch_coupled = 0;         // plans whose batch does not divide; graphs that cannot be filled up
};

// The model of `seed` on 2 to 4 ranks in a random mesh, with a random ZeRO stage and schedule, without a budget and
// within two that the plain plan for these ranks exceeds. Every plan passes the checker and trains two steps in
// poisoned memory, some with copies and collectives made as late as the plan allows: losses and states must be those of
// one rank but for rounding, and losses the same bits on all ranks along the axes data and tensor. Returns what
// differs, or an empty string.
std::string differs_on_ranks(uint64_t seed, RankCounts& counts);

}  // namespace plimsoll::testing
