#pragma once

// Where the program and libplimsoll_mpi.so meet. MPIs differ in their binary interface, so the library is built against
// one of them and opened when a launcher of MPI started the process; only plain data crosses.

namespace plimsoll {

struct MpiRanks {
  int rank = 0, ranks = 1;
  // Each returns null, or what failed. They give up after `patience_s`.
  const char* (*gather_all)(const void* own, void* all, int bytes, double patience_s) = nullptr;
  const char* (*exchange)(const void* own, void* got, int bytes, double patience_s) = nullptr;
  // Sends to rank `to` while it receives from rank `from`; -1: to or from nobody.
  const char* (*transfer)(int to, const void* own, int own_bytes, int from, void* got, int got_bytes,
                          double patience_s) = nullptr;
  void (*interrupt)() = nullptr;  // by any thread: the others fail from now on
  void (*abort)() = nullptr;
  void (*finish)() = nullptr;
};

inline constexpr const char* mpi_symbol = "plimsoll_mpi_ranks";
// Starts MPI. Returns null and fills `ranks`, or what failed.
using MpiRanksFn = const char* (*)(MpiRanks* ranks);

}  // namespace plimsoll
