#pragma once

// NCCL, opened when a plan for several ranks runs. Its functions are named here by hand, as nccl.h 2.28 declares them,
// so that building needs no NCCL.

#include "ir/type.h"
#include "runtime/cuda/backend/device_memory.h"
#include "runtime/cuda/backend_abi.h"

#include <cuda_runtime_api.h>
#include <atomic>
#include <future>

namespace plimsoll {

struct ncclComm;

// One communicator: of the ranks that differ along one axis of the mesh.
class Nccl {
 public:
  Nccl() = default;
  Nccl(const Nccl&) = delete;
  ~Nccl();

  // A fresh name under which ranks find each other; one rank makes it and tells the others.
  static Status make_id(CudaRanksId& id);
  // Waits for all ranks. The card of this rank has been chosen.
  Status join(const CudaGroup& group);
  // As many as a collective of the group holds while it runs: in arenas at most, otherwise as was seen.
  static int multiprocessors_of(const CudaGroup& group);

  // Memory of this card that the other cards of the host can map. Empty where NCCL is older than 2.27 or has no room.
  static CudaMemory shareable_memory(int64_t bytes);
  // Lets the collectives of all ranks read and write the others' `memory` in place: NCCL then needs fewer
  // multiprocessors and no buffers of its own. All ranks call it alike, with as many bytes; `memory` is shareable, and
  // what a collective reads or writes lies at the same offset in it on every rank. Where cards do not reach each other
  // collectives stay as they are.
  Status share(const CudaMemory& memory) const;

  // Makes kernels that wait for other ranks end, by any thread. The communicator is lost.
  void abort();

  bool is_joined() const { return comm_ != nullptr; }
  int64_t rank() const { return rank_; }
  int64_t ranks() const { return ranks_; }

  // All go to `stream`; between begin and end they become one launch.
  Status begin_group() const;
  Status end_group() const;
  Status reduce_all(void* out, const void* in, int64_t elements, DType dtype, cudaStream_t stream) const;
  // `elements` of the piece.
  Status reduce_pieces(void* piece, const void* in, int64_t elements, DType dtype, cudaStream_t stream) const;
  Status gather_pieces(void* out, const void* piece, int64_t bytes, cudaStream_t stream) const;
  // `in` is read on rank `root` alone, `out` written there alone by the sum.
  Status broadcast(void* out, const void* in, int64_t bytes, int64_t root, cudaStream_t stream) const;
  Status reduce_root(void* out, const void* in, int64_t elements, DType dtype, int64_t root, cudaStream_t stream) const;
  // To or from one rank of the communicator, which makes the other call.
  Status send(const void* in, int64_t bytes, int64_t to, cudaStream_t stream) const;
  Status receive(void* out, int64_t bytes, int64_t from, cudaStream_t stream) const;

 private:
  std::atomic<ncclComm*> comm_{nullptr};
  std::future<void> aborted_;  // valid once abort() has been called
  int64_t rank_ = 0, ranks_ = 1;
};

}  // namespace plimsoll
