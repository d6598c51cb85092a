#include "tests/support/random_ranks.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

// Trains many random models on several ranks within random budgets, and prints the seed of one that differs from one
// rank's plain plan.
//
// rank_graphs [--graphs 2000] [--seed 1]

int main(int argc, char** argv) {
  long graphs = 2000, seed = 1;
  for (int i = 1; i < argc; i += 2) {
    long* setting = std::strcmp(argv[i], "--graphs") == 0 ? &graphs
                    : std::strcmp(argv[i], "--seed") == 0 ? &seed
                                                          : nullptr;
    if (!setting || i + 1 == argc) {
      std::fprintf(stderr, "usage: rank_graphs [--graphs N] [--seed N]\n");
      return 2;
    }
    *setting = std::atol(argv[i + 1]);
  }
  plimsoll::testing::RankCounts counts;
  long broken = 0;
  const auto start = std::chrono::steady_clock::now();
  for (long graph = seed; counts.graphs < graphs; ++graph) {
    const std::string failure = plimsoll::testing::differs_on_ranks(static_cast<uint64_t>(graph), counts);
    if (failure.empty()) continue;
    ++broken;
    std::printf("seed %ld: %s\n", graph, failure.c_str());
    std::fflush(stdout);
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  auto number = [](int64_t count) { return static_cast<long long>(count); };
  std::printf(
      "%lld graphs (%lld have one sample), %lld plans: %lld with remats, %lld with bytes on the host, %lld "
      "split, %lld with parts of tensors, %lld with stages; %lld graphs cannot be divided so; %lld with rows that "
      "do not divide, %lld graphs whose rows mix so; %lld budgets refused; "
      "%.0f s\n%lld passed, %ld failed\n",
      number(counts.graphs), number(counts.skipped), number(counts.plans), number(counts.repeating),
      number(counts.on_host), number(counts.split), number(counts.tensor), number(counts.stage),
      number(counts.undivided), number(counts.filled), number(counts.batch_coupled), number(counts.refused),
      seconds.count(), number(counts.graphs) - broken, broken);
  return broken != 0;
}
