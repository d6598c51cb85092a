#pragma once

// Rings of lines that the copy engine brings as they lie in memory.

#include "kernels/cuda/conv/packed_lines.h"
#include "kernels/cuda/conv/ring_reader.cuh"

namespace plimsoll::cuda {

struct PackedBarriers {
  Barrier full[PackedRing::max_stages], empty[PackedRing::max_stages];

  __device__ void set_up(int stages, int warps) {
    for (int i = 0; i < stages; ++i) {
      set_up_barrier(&full[i], 1);
      set_up_barrier(&empty[i], warps);
    }
    show_barriers_to_copies();
  }
};

// What one thread does: it has all lines of the block copied, as stages become empty. copy(line, place, barrier) starts
// the copies of a line, `bytes` in all.
template <typename Copy>
__device__ void copy_lines(PackedBarriers& barriers, const PackedRing& p, int lines, int bytes, Copy copy) {
  RingPlace at;
  for (int line = 0; line < lines; line += p.stage_lines, at.advance(p.stages)) {
    wait_at(&barriers.empty[at.stage], at.parity ^ 1);
    const int count = min(p.stage_lines, lines - line);
    arrive_with_copies(&barriers.full[at.stage], count * bytes);
    for (int i = 0; i < count; ++i) copy(line + i, at.stage * p.stage_lines + i, &barriers.full[at.stage]);
  }
}

using PackedReader = RingReader<PackedBarriers, PackedRing>;

__device__ inline void store_zero(uint32_t address) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(address), "r"(0) : "memory");
}

// As load_two_matrices_at, of transposed matrices.
__device__ inline void load_two_matrices_transposed_at(uint32_t (&at)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(at[0]), "=r"(at[1])
               : "r"(row)
               : "memory");
}

__device__ inline uint32_t shared_word(uint32_t address) {
  uint32_t word;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
  return word;
}

}  // namespace plimsoll::cuda
