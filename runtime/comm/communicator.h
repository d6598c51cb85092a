#pragma once

// How the processes of a job find each other and talk. No launcher of our own: they are started by mpirun, srun or
// torchrun, which say who they are in the environment.

#include "ir/support/status.h"

#include <memory>

namespace plimsoll {

// One rank's end. Every rank makes the same calls of gather_all and exchange in the same order; each returns once all
// of them came. A transfer is between its two ranks alone. Errors are Fault::System and name the peer where it is
// known.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int64_t rank() const = 0;
  virtual int64_t ranks() const = 0;
  // `all` gets `bytes` bytes from each rank, by rank; `own` is not part of it.
  virtual Status gather_all(const void* own, void* all, int64_t bytes) = 0;
  // Piece i of `own` goes to rank i; piece i of `got` comes from it. Pieces have `bytes` bytes; the two do not overlap.
  virtual Status exchange(const void* own, void* got, int64_t bytes) = 0;
  // Sends `own` to rank `to` while it receives `got` from rank `from`; -1: to or from nobody. Two ranks' messages to
  // each other arrive in the order in which they were sent, and both ends know their sizes. It may return only once the
  // receiver has come. Other calls may run at the same time on ranks that take no part.
  struct Message {
    int64_t peer = -1;
    void* bytes = nullptr;
    int64_t count = 0;
  };
  virtual Status transfer(const Message& own, const Message& got) = 0;
  // Makes this rank's calls fail, those that wait included. Any thread may call it.
  virtual void interrupt() = 0;
  // Ends the other processes of the job, where there is a way to.
  virtual void abort() = 0;
  // Is each rank a process, which may die or be stopped by itself?
  virtual bool are_processes() const { return true; }
};

// Seconds that a rank waits for the others before it gives up.
inline constexpr double default_patience_s = 120;

// By the environment: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT (torchrun), or those of MPI's and Slurm's
// launchers. Null where nothing there says that this process is one of several.
Result<std::unique_ptr<Communicator>> connect_ranks(double patience_s = default_patience_s);

// Of processes that the environment describes: the own rank's place on its host, from 0; 0 where nobody says.
int local_rank();

}  // namespace plimsoll
