#include "tests/support/random_training.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

// Checks the promises about budgets on many random training graphs and prints the seed of a graph that breaks one.
//
// promise_graphs [--graphs 10000] [--seed 1] [--execute-every 20] [--split-every 4] [--effort 0.01]

int main(int argc, char** argv) {
  double graphs = 10000, seed = 1, execute_every = 20, split_every = 4;
  plimsoll::testing::PromiseOptions options;
  struct Setting {
    const char* name;
    double* value;
  };
  const Setting settings[] = {{"--graphs", &graphs},
                              {"--seed", &seed},
                              {"--execute-every", &execute_every},
                              {"--split-every", &split_every},
                              {"--effort", &options.effort}};
  for (int i = 1; i < argc; i += 2) {
    const Setting* found = std::find_if(std::begin(settings), std::end(settings),
                                        [&](const Setting& s) { return std::strcmp(s.name, argv[i]) == 0; });
    if (found == std::end(settings) || i + 1 == argc) {
      std::fprintf(
          stderr, "usage: promise_graphs [--graphs N] [--seed N] [--execute-every N] [--split-every N] [--effort X]\n");
      return 2;
    }
    *found->value = std::atof(argv[i + 1]);
  }
  options.split_every = static_cast<int>(split_every);
  plimsoll::testing::PromiseCounts counts;
  long broken = 0;
  auto start = std::chrono::steady_clock::now();
  const long first = static_cast<long>(seed), end = first + static_cast<long>(graphs);
  for (long graph = first; graph < end; ++graph) {
    options.execute = execute_every > 0 && graph % static_cast<long>(execute_every) == 0;
    std::string failure = plimsoll::testing::broken_promise(static_cast<uint64_t>(graph), options, counts);
    if (failure.empty()) continue;
    ++broken;
    std::printf("seed %ld: %s\n", graph, failure.c_str());
    std::fflush(stdout);
  }
  std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::printf(
      "%lld graphs, %lld budgets: %lld refused, %lld with remats, %lld with bytes on the host, %lld split, %lld "
      "executed, %lld of them split; %.0f s\n%ld passed, %ld failed\n",
      static_cast<long long>(counts.graphs), static_cast<long long>(counts.budgets),
      static_cast<long long>(counts.refused), static_cast<long long>(counts.repeating),
      static_cast<long long>(counts.on_host), static_cast<long long>(counts.split),
      static_cast<long long>(counts.executed), static_cast<long long>(counts.split_executed), seconds.count(),
      end - first - broken, broken);
  return broken != 0;
}
