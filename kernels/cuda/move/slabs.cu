#include "kernels/cuda/common/card_attributes.h"
#include "kernels/cuda/common/element.cuh"
#include "kernels/cuda/common/nest.cuh"
#include "kernels/cuda/move/slab_tile.h"
#include "kernels/cuda/move/slabs.h"

#include <algorithm>
#include <cstdint>

// A block looks up where each word of a tile is read and written, once, and goes through many tiles.

namespace plimsoll::cuda {
namespace {

constexpr int blocks_of_multiprocessor = 8, words_at_once = 4;

struct Slabs {
  DeviceNest<2> tiles, by_source, by_target;
  int64_t count;        // of tiles
  int reads, writes;    // words of a tile
  int32_t shared_step;  // from unit to unit of a word that is written
  int32_t places_at;    // of the places behind the tile, in bytes
};

template <typename Unit, int width>
struct alignas(sizeof(Unit) * width) Word {
  Unit units[width];
};

// Words in shared memory begin at whole banks at most.
template <typename Unit, int width>
__device__ void put(Unit* at, const Word<Unit, width>& word) {
  constexpr int part = sizeof(Unit) * width > 4 && sizeof(Unit) < 4 ? 4 / static_cast<int>(sizeof(Unit)) : width;
  constexpr int whole = sizeof(Unit) >= 4 ? 1 : part;
  const auto* parts = reinterpret_cast<const Word<Unit, whole>*>(&word);
#pragma unroll
  for (int i = 0; i < width / whole; ++i) reinterpret_cast<Word<Unit, whole>*>(at)[i] = parts[i];
}

template <typename Unit, int read_width, int write_width>
__global__ void __launch_bounds__(block_threads, blocks_of_multiprocessor)
    permute_kernel(const __grid_constant__ Slabs slabs, Unit* __restrict__ to, const Unit* __restrict__ from) {
  extern __shared__ __align__(16) unsigned char shared[];
  Unit* tile = reinterpret_cast<Unit*>(shared);
  SlabPlace* read_places = reinterpret_cast<SlabPlace*>(shared + slabs.places_at);
  SlabPlace* write_places = read_places + slabs.reads;
  const int thread = static_cast<int>(threadIdx.x);
  int64_t at[2];
  for (int i = thread; i < slabs.reads; i += block_threads) {
    slabs.by_source.offsets(int64_t{i} * read_width, at);
    read_places[i] = {static_cast<int32_t>(at[1]), static_cast<int32_t>(at[0])};
  }
  for (int i = thread; i < slabs.writes; i += block_threads) {
    slabs.by_target.offsets(int64_t{i} * write_width, at);
    write_places[i] = {static_cast<int32_t>(at[0]), static_cast<int32_t>(at[1])};
  }
  for (int64_t t = blockIdx.x; t < slabs.count; t += gridDim.x) {
    slabs.tiles.offsets(t, at);
    __syncthreads();
    const Unit* source = from + at[1];
    for (int first = thread; first < slabs.reads; first += words_at_once * block_threads) {
      Word<Unit, read_width> words[words_at_once];
      int32_t places[words_at_once];
#pragma unroll
      for (int w = 0; w < words_at_once; ++w) {
        const int i = first + w * block_threads;
        if (i >= slabs.reads) break;
        const SlabPlace place = read_places[i];
        places[w] = place.shared;
        words[w] = *reinterpret_cast<const Word<Unit, read_width>*>(source + place.in_memory);
      }
#pragma unroll
      for (int w = 0; w < words_at_once; ++w)
        if (first + w * block_threads < slabs.reads) put(tile + places[w], words[w]);
    }
    __syncthreads();
    Unit* target = to + at[0];
#pragma unroll 4
    for (int i = thread; i < slabs.writes; i += block_threads) {
      const SlabPlace place = write_places[i];
      Word<Unit, write_width> word;
#pragma unroll
      for (int u = 0; u < write_width; ++u) word.units[u] = tile[place.shared + u * slabs.shared_step];
      *reinterpret_cast<Word<Unit, write_width>*>(target + place.in_memory) = word;
    }
  }
}

template <typename Unit, int read_width, int write_width>
cudaError_t launch(const SlabTile& tile, Unit* to, const Unit* from, cudaStream_t stream) {
  int multiprocessors = 0;
  if (cudaError_t error = count_multiprocessors(multiprocessors); error != cudaSuccess) return error;
  const int last = tile.by_target.rank - 1;
  Slabs slabs;
  slabs.tiles = DeviceNest<2>(tile.tiles);
  slabs.by_source = DeviceNest<2>(tile.by_source);
  slabs.by_target = DeviceNest<2>(tile.by_target);
  slabs.count = tile.tiles.iterations();
  slabs.reads = static_cast<int>(tile.reads());
  slabs.writes = static_cast<int>(tile.writes());
  slabs.shared_step = static_cast<int32_t>(tile.by_target.strides[1][last]);
  slabs.places_at = static_cast<int32_t>(slab_places_at(tile, sizeof(Unit)));
  const auto bytes = static_cast<size_t>(slab_shared_bytes(tile, sizeof(Unit)));
  const auto blocks = std::min<int64_t>(slabs.count, int64_t{multiprocessors} * blocks_of_multiprocessor);
  permute_kernel<Unit, read_width, write_width>
      <<<static_cast<unsigned>(blocks), block_threads, bytes, stream>>>(slabs, to, from);
  return cudaGetLastError();
}

// Calls visit with the width as its template argument.
template <typename Unit, typename Visit>
cudaError_t with_width(int width, Visit visit) {
  constexpr int widest = slabs::widest_word(sizeof(Unit));
  if (width == widest) return visit.template operator()<widest>();
  if constexpr (sizeof(Unit) == 2)
    if (width == widest / 2) return visit.template operator()<widest / 2>();
  return visit.template operator()<1>();
}

bool is_at_words(const void* address, int bytes) { return reinterpret_cast<uintptr_t>(address) % bytes == 0; }

}  // namespace

std::optional<cudaError_t> permute_slabs(const LoopNest<2>& nest, void* to, const void* from, int unit_bytes,
                                         cudaStream_t stream) {
  if (unit_bytes > 8) return std::nullopt;
  const std::optional<SlabTile> tile = slab_tile(nest, unit_bytes);
  // Single units of few bytes take longer than tiles of two dimensions, or elements in the order of the destination.
  const bool has_words = tile && (unit_bytes == 8 || (tile->read_width > 1 && tile->write_width > 1));
  if (!has_words || !is_at_words(from, tile->read_width * unit_bytes) ||
      !is_at_words(to, tile->write_width * unit_bytes))
    return std::nullopt;
  return with_unit_bytes(unit_bytes, [&]<typename Unit>(Unit*) {
    if constexpr (sizeof(Unit) <= 8) {
      auto* target = static_cast<Unit*>(to);
      const auto* source = static_cast<const Unit*>(from);
      return with_width<Unit>(tile->read_width, [&]<int read_width>() {
        return with_width<Unit>(tile->write_width, [&]<int write_width>() {
          return launch<Unit, read_width, write_width>(*tile, target, source, stream);
        });
      });
    }
    return cudaErrorInvalidValue;
  });
}

}  // namespace plimsoll::cuda
