#pragma once

// Hopper's copy engine, which fills tiles of shared memory while nobody computes addresses, and the barriers in shared
// memory that say when a tile has come and when it may be filled again. Tiles are those of warpgroup.cuh.

#include "kernels/cuda/common/tensor_core.cuh"

#include <cuda.h>

namespace plimsoll::cuda {

// ---- Barriers: each of their phases ends with so many arrivals and all announced bytes ----

using Barrier = uint64_t;

__device__ inline void set_up_barrier(Barrier* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
// By the thread that has set barriers up, before the others are let on.
__device__ inline void show_barriers_to_copies() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ inline void arrive_at(Barrier* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// Arrives, and lets the phase wait for bytes of copies, too.
__device__ inline void arrive_with_copies(Barrier* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}
// Arrives once the copies that this thread has started by copy_async and copy_word_async are through.
__device__ inline void arrive_after_own_copies(Barrier* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// Is a phase over? Phases have parities 0 and 1 in turn, and the one before the first has 1. Who waits for a phase must
// be one without whom the next cannot end: to any other, two phases that end look like none.
__device__ inline bool is_over(Barrier* barrier, uint32_t parity) {
  uint32_t over;
  asm volatile(
      "{\n.reg .pred over;\nmbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2;\nselp.u32 %0, 1, 0, over;\n}"
      : "=r"(over)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return over != 0;
}
__device__ inline void wait_at(Barrier* barrier, uint32_t parity) {
  while (!is_over(barrier, parity)) {
  }
}
// For threads that run ahead of the others: between two looks they leave the multiprocessor to them.
__device__ inline void wait_patiently_at(Barrier* barrier, uint32_t parity) {
  constexpr unsigned pause_ns = 500;
  while (!is_over(barrier, parity)) __nanosleep(pause_ns);
}
// Arrives for a warp, once its threads are through with what came before.
__device__ inline void arrive_as_warp_at(Barrier* barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) arrive_at(barrier);
}

// A place among stages that are filled in turn, and the parity of its barriers' phases.
template <int stages>
struct StagePlace {
  int stage = 0;
  uint32_t parity = 0;

  __device__ void advance() {
    if (++stage < stages) return;
    stage = 0;
    parity ^= 1;
  }
};

// The same where as many stages as fit are known to the launch alone.
struct RingPlace {
  int stage = 0;
  uint32_t parity = 0;

  __device__ void advance(int stages) {
    if (++stage < stages) return;
    stage = 0;
    parity ^= 1;
  }
};

// ---- Copies ----

inline constexpr int box_depth = 64;  // elements of 16 bits a row: 128 bytes

// Rows of the heads of a tensor [batch, rows, heads, depth], `step` elements apart: what a copy needs to know of it.
// Boxes have 64 elements of `box_rows` rows of one head, 32 as short_boxes.cuh or 16 as narrow_boxes.cuh has them; what
// lies outside the head becomes 0.
[[nodiscard]] cudaError_t map_rows(CUtensorMap& map, const void* tensor, int64_t batch, int64_t rows, int64_t heads,
                                   int64_t depth, int64_t step, int box_rows, int box_elements = box_depth);

// The same of a matrix, whose rows of `width` elements of 16 bits lie one after the other: boxes have 64 columns of
// `box_rows` rows.
[[nodiscard]] cudaError_t map_matrix(CUtensorMap& map, const void* matrix, int64_t rows, int64_t width, int box_rows);

// An image [batch, down, across, channels] of 16-bit elements. Boxes have 64 channels of so many images, lines and
// pixels of a line, of which the latter are `strides` apart, at most 256 pixels or lines in all and 8 apart; what lies
// outside becomes 0. Of more than 32 channels a pixel has 128 bytes in shared memory, of which a copy leaves those
// beyond its channels as they are. Of 32, 64 bytes, the 16-byte word w of pixel p of a box stands at place
// w ^ (p / 2 % 4).
struct ImageBoxes {
  int64_t sizes[4];
  int box[3], strides[2];
  int channels = box_depth;
};
[[nodiscard]] cudaError_t map_image(CUtensorMap& map, const void* image, const ImageBoxes& boxes);

// Weights [outer, taps, inner] of 16-bit elements: boxes have 64 inner channels of one tap of `box_outer` outer ones.
[[nodiscard]] cudaError_t map_taps(CUtensorMap& map, const void* weights, int64_t outer, int64_t taps, int64_t inner,
                                   int box_outer);

__device__ inline void fetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// A head's rows from `row` on, elements from `d` on, of one batch element; or of an image channels from `d` on, of its
// pixels across, down and of images likewise. One thread calls it.
__device__ inline void copy_box(void* to, const CUtensorMap& map, int d, int head, int row, int batch,
                                Barrier* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], "
      "[%6];" ::"r"(shared_address(to)),
      "l"(&map), "r"(d), "r"(head), "r"(row), "r"(batch), "r"(shared_address(barrier))
      : "memory");
}

// Of a map_taps: inner channels from `inner` on, of one tap, of outer ones from `outer` on. One thread calls it.
__device__ inline void copy_box(void* to, const CUtensorMap& map, int inner, int tap, int outer, Barrier* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
      "[%5];" ::"r"(shared_address(to)),
      "l"(&map), "r"(inner), "r"(tap), "r"(outer), "r"(shared_address(barrier))
      : "memory");
}

// A matrix's columns from `column` on, rows from `row` on. One thread calls it.
__device__ inline void copy_box(void* to, const CUtensorMap& map, int column, int row, Barrier* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          shared_address(to)),
      "l"(&map), "r"(column), "r"(row), "r"(shared_address(barrier))
      : "memory");
}

// Writes a box back, but nothing outside the head; what was written to it must have been shown to the matrix units. The
// thread waits by wait_for_stored_boxes before the box is written again or the block ends.
__device__ inline void store_box(const void* box, const CUtensorMap& map, int d, int head, int row, int batch) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%1, %2, %3, %4}], [%5];" ::"l"(&map),
               "r"(d), "r"(head), "r"(row), "r"(batch), "r"(shared_address(box))
               : "memory");
}
__device__ inline void wait_for_stored_boxes() {
  asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;" ::: "memory");
}

}  // namespace plimsoll::cuda
