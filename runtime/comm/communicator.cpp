#include "runtime/comm/communicator.h"

#include "ir/support/own_library.h"
#include "runtime/comm/mpi/mpi_abi.h"
#include "runtime/comm/tcp_ranks.h"

#include <dlfcn.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <thread>

namespace plimsoll {
namespace {

std::optional<int64_t> number_in(const char* variable) {
  const char* text = std::getenv(variable);
  int64_t number = 0;
  if (!text || llvm::StringRef(text).getAsInteger(10, number)) return std::nullopt;
  return number;
}

// MPICH's launcher ends the ranks without reading what they printed last, the reason among it. So this waits until the
// pipe to it is empty, and a little longer, since the launcher then passes on what it read.
void wait_for_reader(int file) {
  constexpr int most_waits = 500;
  int unread = 0;
  for (int i = 0; i < most_waits && ioctl(file, FIONREAD, &unread) == 0 && unread > 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
}

// MPI ends with the process, once, however many ranks objects there were.
class MpiCommunicator : public Communicator {
 public:
  MpiCommunicator(const MpiRanks& mpi, double patience_s) : mpi_(mpi), patience_s_(patience_s) {}
  ~MpiCommunicator() override {
    if (!aborted_) mpi_.finish();
  }

  int64_t rank() const override { return mpi_.rank; }
  int64_t ranks() const override { return mpi_.ranks; }
  Status gather_all(const void* own, void* all, int64_t bytes) override {
    return to_status(mpi_.gather_all(own, all, static_cast<int>(bytes), patience_s_));
  }
  Status exchange(const void* own, void* got, int64_t bytes) override {
    return to_status(mpi_.exchange(own, got, static_cast<int>(bytes), patience_s_));
  }
  Status transfer(const Message& own, const Message& got) override {
    // MPI counts bytes in an int.
    constexpr int64_t most = int64_t{1} << 30;
    for (int64_t first = 0; first == 0 || first < std::max(own.count, got.count); first += most) {
      const Message out = part(own, first, most), in = part(got, first, most);
      if (Status s =
              to_status(mpi_.transfer(static_cast<int>(out.peer), out.bytes, static_cast<int>(out.count),
                                      static_cast<int>(in.peer), in.bytes, static_cast<int>(in.count), patience_s_)))
        return s;
    }
    return Status::success();
  }
  void interrupt() override { mpi_.interrupt(); }
  void abort() override {
    wait_for_reader(STDERR_FILENO);
    aborted_ = true;
    mpi_.abort();
  }

 private:
  // At most `most` bytes of the message from `first` on; to nobody where none are left of a longer one.
  static Message part(const Message& message, int64_t first, int64_t most) {
    if (first >= message.count && first > 0) return {};
    return {message.peer, static_cast<char*>(message.bytes) + first, std::min(most, message.count - first)};
  }

  Status to_status(const char* failure) const {
    return failure ? system_error("rank " + llvm::Twine(mpi_.rank) + ": " + failure) : Status::success();
  }

  MpiRanks mpi_;
  double patience_s_;
  bool aborted_ = false;
};

struct MpiKind {
  const char *name, *library, *variable;
  bool counts_ranks;  // does the variable say how many there are?
};
// What each MPI's launcher sets. Slurm's own launcher speaks either's language; then its PMI decides.
constexpr MpiKind mpi_kinds[] = {{"OpenMPI", "libplimsoll_openmpi.so", "OMPI_COMM_WORLD_SIZE", true},
                                 {"MPICH", "libplimsoll_mpich.so", "PMI_SIZE", true},
                                 {"OpenMPI", "libplimsoll_openmpi.so", "PMIX_RANK", false}};

Result<std::unique_ptr<Communicator>> start_mpi(const MpiKind& kind, double patience_s) {
  void* opened = open_own_library(kind.library);
  if (!opened) {
    const char* why = dlerror();
    return system_error(llvm::Twine("a launcher of ") + kind.name + " started this process, and " + kind.library +
                        " cannot be opened: " + (why ? why : "it is not found"));
  }
  auto start = reinterpret_cast<MpiRanksFn>(dlsym(opened, mpi_symbol));
  if (!start) return system_error(llvm::Twine(kind.library) + " is of another build: it lacks " + mpi_symbol);
  MpiRanks ranks;
  if (const char* failure = start(&ranks)) return system_error(failure);
  return std::make_unique<MpiCommunicator>(ranks, patience_s);
}

}  // namespace

Result<std::unique_ptr<Communicator>> connect_ranks(double patience_s) {
  const std::optional<int64_t> rank = number_in("RANK"), ranks = number_in("WORLD_SIZE");
  const char* host = std::getenv("MASTER_ADDR");
  if (rank && ranks && host && *ranks != 1) {
    if (*ranks < 1 || *rank < 0 || *rank >= *ranks)
      return usage_error("RANK is " + llvm::Twine(*rank) + " and WORLD_SIZE " + llvm::Twine(*ranks));
    constexpr int64_t usual_port = 29500;
    return connect_by_tcp(*rank, *ranks, host, static_cast<int>(number_in("MASTER_PORT").value_or(usual_port)),
                          patience_s);
  }
  if (number_in("SLURM_NTASKS") == 1) return nullptr;
  for (const MpiKind& kind : mpi_kinds)
    if (const std::optional<int64_t> number = number_in(kind.variable))
      return kind.counts_ranks && *number == 1 ? Result<std::unique_ptr<Communicator>>(nullptr)
                                               : start_mpi(kind, patience_s);
  if (ranks.value_or(1) > 1)
    return usage_error("WORLD_SIZE is " + llvm::Twine(*ranks) + ", and " +
                       (rank ? "MASTER_ADDR is not set" : "RANK is no number") +
                       "; a launcher sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT");
  return nullptr;
}

int local_rank() {
  for (const char* variable : {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"})
    if (std::optional<int64_t> rank = number_in(variable)) return static_cast<int>(*rank);
  return 0;
}

}  // namespace plimsoll
