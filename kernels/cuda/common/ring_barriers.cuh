#pragma once

// The barriers of kernels in which one warp asks for the stages of a ring and others read them, or write such a ring
// that is stored.

#include "kernels/cuda/common/box_copy.cuh"

namespace plimsoll::cuda {

// Of each stage of a ring a barrier ends with its copies, or with its store, and another one when all warps that
// compute have read it, or written it.
struct RingBarriers {
  Barrier* first;  // in shared memory
  int stages;

  __device__ Barrier* copied(int stage) const { return first + stage; }
  __device__ Barrier* used(int stage) const { return first + stages + stage; }
  __device__ Barrier* end() const { return first + 2 * stages; }
  // By one thread, before show_barriers_to_copies.
  __device__ void create(int warps) const {
    for (int i = 0; i < stages; ++i) set_up_barrier(copied(i), 1), set_up_barrier(used(i), warps);
  }
};

// Where a block's shared memory begins: at a border of so many bytes.
template <uint32_t border>
__device__ uint8_t* bordered(void* shared) {
  return static_cast<uint8_t*>(shared) + (border - shared_address(shared) % border) % border;
}

}  // namespace plimsoll::cuda
