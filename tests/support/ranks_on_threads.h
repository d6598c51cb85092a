#pragma once

// Ranks as threads of a test's own process.

#include "runtime/comm/tcp_ranks.h"
#include "runtime/comm/thread_ranks.h"

#include "llvm/Support/Error.h"

#include <unistd.h>
#include <thread>

namespace plimsoll::testing {

// Runs the body once per rank, each on a thread of its own.
template <typename Body>
void on_ranks(std::vector<std::unique_ptr<Communicator>>& ranks, Body body) {
  std::vector<std::thread> threads;
  for (auto& rank : ranks) threads.emplace_back([&body, &rank] { body(*rank); });
  for (std::thread& thread : threads) thread.join();
}

// Ranks of the process's own `job`, at a port below those that a system gives to connections. Other processes may run
// these tests at the same time.
inline std::vector<std::unique_ptr<Communicator>> tcp_ranks(int64_t count, int job) {
  constexpr int first_port = 15000, ports = 16000, jobs = 8;
  const int port = first_port + (getpid() * jobs + job) % ports;
  std::vector<std::unique_ptr<Communicator>> ranks(static_cast<size_t>(count));
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < count; ++rank)
    threads.emplace_back([&ranks, rank, count, port] {
      ranks[static_cast<size_t>(rank)] =
          llvm::cantFail(connect_by_tcp(rank, count, "127.0.0.1", port, default_patience_s));
    });
  for (std::thread& thread : threads) thread.join();
  return ranks;
}

}  // namespace plimsoll::testing
