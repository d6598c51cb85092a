#pragma once

// Boxes of short rows, which the copy engine also takes back to memory while the block goes on.

#include "kernels/cuda/common/box_copy.cuh"

namespace plimsoll::cuda {

// Rows of heads of 32 elements, 64 bytes: boxes have `box_rows` rows of one head, whose 16-byte word w stands at place
// w ^ (row / 2 % 4). A box begins at a border of 512 bytes.
[[nodiscard]] cudaError_t map_short_rows(CUtensorMap& map, const void* tensor, int64_t batch, int64_t rows,
                                         int64_t heads, int64_t step, int box_rows);

// What this thread has written to shared memory becomes visible to the copy engine.
__device__ inline void show_to_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// The boxes that this thread has begun to store are a group.
__device__ inline void commit_boxes() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until shared memory has been read by all groups of this thread.
__device__ inline void wait_for_box_reads() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
// The same for all groups but the newest.
__device__ inline void wait_for_older_box_reads() { asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory"); }

}  // namespace plimsoll::cuda
