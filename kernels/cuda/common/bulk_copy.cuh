#pragma once

// Tiles of tensors that Hopper's copying unit brings to shared memory (sm_90): one thread asks for a box of a tensor,
// and a barrier in shared memory knows when its bytes have arrived.

#include "kernels/cuda/common/tensor_core.cuh"

#include <cuda.h>

namespace plimsoll::cuda {

// A barrier counts arrivals of threads and bytes of copies. Its phases are even and odd by turns, the first is even.
class CopyBarrier {
 public:
  // By one thread, before show_barriers().
  __device__ void create(int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&state_)), "r"(arrivals));
  }
  __device__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&state_)) : "memory");
  }
  // Arrives, and lets the phase wait for so many bytes as well.
  __device__ void expect(int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&state_)), "r"(bytes)
                 : "memory");
  }
  // Until the phase of this parity is over; the phase before the first one counts as odd.
  __device__ void wait(int parity) {
    asm volatile(
        "{\n.reg .pred done;\nwait:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra wait;\n}" ::
            "r"(shared_address(&state_)),
        "r"(parity)
        : "memory");
  }
  // The box of `map` at these coordinates, the innermost first, goes to `to` and arrives here.
  __device__ void copy_box(void* to, const CUtensorMap& map, int x, int y) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
            shared_address(to)),
        "l"(&map), "r"(x), "r"(y), "r"(shared_address(&state_))
        : "memory");
  }

 private:
  uint64_t state_;
};

// The copying unit sees the barriers that this thread has created.
__device__ inline void show_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ inline void fetch_tensor_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// A launch that may begin while the one before it ends: everything before the wait runs beside that one.
__device__ inline void let_next_launch_begin() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
__device__ inline void wait_for_launch_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

}  // namespace plimsoll::cuda
