#include "runtime/comm/mpi/mpi_abi.h"

#include <mpi.h>
#include <sched.h>
#include <time.h>
#include <atomic>
#include <chrono>
#include <cstdlib>

// Calls are non-blocking ones that are asked again and again, so that a rank that never comes is noticed.

namespace plimsoll {
namespace {

using Clock = std::chrono::steady_clock;

std::atomic<bool> interrupted{false};

// Ranks may be more than processors, and others may need these too. So what is not there soon is asked for less often.
void leave_processor(double waited_s) {
  constexpr double soon_s = 1e-3;
  constexpr timespec pause{0, 50'000};
  if (waited_s < soon_s)
    sched_yield();
  else
    nanosleep(&pause, nullptr);
}

const char* wait(MPI_Request& request, double patience_s) {
  const Clock::time_point start = Clock::now();
  for (int done = 0; !done;) {
    if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) return "MPI failed";
    if (done) break;
    if (interrupted) return "interrupted";
    const double waited_s = std::chrono::duration<double>(Clock::now() - start).count();
    if (waited_s > patience_s) return "the other ranks did not come in time";
    leave_processor(waited_s);
  }
  return nullptr;
}

const char* gather_all(const void* own, void* all, int bytes, double patience_s) {
  MPI_Request request;
  if (MPI_Iallgather(own, bytes, MPI_BYTE, all, bytes, MPI_BYTE, MPI_COMM_WORLD, &request) != MPI_SUCCESS)
    return "MPI_Iallgather failed";
  return wait(request, patience_s);
}

const char* exchange(const void* own, void* got, int bytes, double patience_s) {
  MPI_Request request;
  if (MPI_Ialltoall(own, bytes, MPI_BYTE, got, bytes, MPI_BYTE, MPI_COMM_WORLD, &request) != MPI_SUCCESS)
    return "MPI_Ialltoall failed";
  return wait(request, patience_s);
}

const char* transfer(int to, const void* own, int own_bytes, int from, void* got, int got_bytes, double patience_s) {
  MPI_Request sent = MPI_REQUEST_NULL, received = MPI_REQUEST_NULL;
  if (from >= 0 && MPI_Irecv(got, got_bytes, MPI_BYTE, from, 0, MPI_COMM_WORLD, &received) != MPI_SUCCESS)
    return "MPI_Irecv failed";
  if (to >= 0 && MPI_Isend(own, own_bytes, MPI_BYTE, to, 0, MPI_COMM_WORLD, &sent) != MPI_SUCCESS)
    return "MPI_Isend failed";
  if (const char* failure = wait(received, patience_s)) return failure;
  return wait(sent, patience_s);
}

void interrupt() { interrupted = true; }

void abort_all() { MPI_Abort(MPI_COMM_WORLD, 5); }

void finish() {
  int finished = 0;
  MPI_Finalized(&finished);
  if (!finished) MPI_Finalize();
}

}  // namespace
}  // namespace plimsoll

extern "C" __attribute__((visibility("default"))) const char* plimsoll_mpi_ranks(plimsoll::MpiRanks* ranks) {
  int started = 0, level = 0;
  MPI_Initialized(&started);
  if (!started && MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level) != MPI_SUCCESS)
    return "MPI does not start";
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_rank(MPI_COMM_WORLD, &ranks->rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks->ranks);
  ranks->gather_all = plimsoll::gather_all;
  ranks->exchange = plimsoll::exchange;
  ranks->transfer = plimsoll::transfer;
  ranks->interrupt = plimsoll::interrupt;
  ranks->abort = plimsoll::abort_all;
  ranks->finish = plimsoll::finish;
  return nullptr;
}
