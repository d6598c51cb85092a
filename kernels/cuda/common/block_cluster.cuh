#pragma once

// Clusters of blocks that share their memory (Hopper): where a block stands, how it tells the others something, and
// copies of plain bytes by the copy engine.

#include "kernels/cuda/common/box_copy.cuh"

namespace plimsoll::cuda {

__device__ inline int block_of_cluster() {
  int block;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(block));
  return block;
}
__device__ inline int blocks_of_cluster() {
  int blocks;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
  return blocks;
}
__device__ inline int cluster_of_grid() {
  int cluster;
  asm("mov.u32 %0, %%clusterid.x;" : "=r"(cluster));
  return cluster;
}
__device__ inline int clusters_of_grid() {
  int clusters;
  asm("mov.u32 %0, %%nclusterid.x;" : "=r"(clusters));
  return clusters;
}

// All threads of all blocks.
__device__ inline void wait_for_cluster() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
// The place in another block that this one is in its own.
__device__ inline uint32_t address_in(int block, const void* here) {
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(here)), "r"(block));
  return there;
}
// Writes four floats into another block, and arrives at a barrier there once they can be seen.
__device__ inline void tell_block(int block, float4* to, const float4& values, Barrier* barrier) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address_in(block, to)), "f"(values.x),
               "f"(values.y), "f"(values.z), "f"(values.w)
               : "memory");
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(address_in(block, barrier))
               : "memory");
}
// Until all have told what they had to.
__device__ inline void wait_for_told(Barrier* barrier, uint32_t parity) {
  uint32_t over = 0;
  while (over == 0)
    asm volatile(
        "{\n.reg .pred over;\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 over, [%1], %2;\n"
        "selp.u32 %0, 1, 0, over;\n}"
        : "=r"(over)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
}

// Both sides begin at a border of 16 bytes, and `bytes` is a multiple of 16. One thread calls these. _at: with the
// address in shared memory.
__device__ inline void copy_bytes_at(uint32_t to, const void* from, int bytes, Barrier* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}
__device__ inline void copy_bytes(void* to, const void* from, int bytes, Barrier* barrier) {
  copy_bytes_at(shared_address(to), from, bytes, barrier);
}
// Writes shared memory that was shown to the copy engine; waits by wait_for_stored_boxes before it is written again.
__device__ inline void store_bytes_at(void* to, uint32_t from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
               : "memory");
}
__device__ inline void store_bytes(void* to, const void* from, int bytes) {
  store_bytes_at(to, shared_address(from), bytes);
}

}  // namespace plimsoll::cuda
