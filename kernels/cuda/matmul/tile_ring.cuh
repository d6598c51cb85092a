#pragma once

// A ring of stages in shared memory: the copy engine fills them with tiles of both operands of a product, and warps
// that read them free them again.

#include "kernels/cuda/common/box_copy.cuh"

namespace plimsoll::cuda {

inline constexpr int tile_border = 1024;

// Of dynamic shared memory, which may begin at any 16-byte border.
template <int stages, int stage_bytes>
inline constexpr int ring_bytes = tile_border + stages*(stage_bytes + 2 * static_cast<int>(sizeof(Barrier)));

__device__ inline uint8_t* first_tile_border(void* shared) {
  return static_cast<uint8_t*>(shared) + (tile_border - shared_address(shared) % tile_border) % tile_border;
}

// The tile says how many stages there are, how large they are, and how many arrivals free one. They begin at a border.
template <typename Tile>
struct Ring {
  uint8_t* stages;
  Barrier *full, *empty;  // [stages]

  __device__ explicit Ring(uint8_t* first)
      : stages(first),
        full(reinterpret_cast<Barrier*>(stages + Tile::stages * Tile::stage_bytes)),
        empty(full + Tile::stages) {}

  __device__ uint8_t* at(int stage) const { return stages + stage * Tile::stage_bytes; }
  __device__ void create() const {
    for (int i = 0; i < Tile::stages; ++i) {
      set_up_barrier(full + i, 1);
      set_up_barrier(empty + i, Tile::readers);
    }
    show_barriers_to_copies();
  }
};

}  // namespace plimsoll::cuda
