#include "kernels/cuda/attention/attention_window_boxes.cuh"
#include "kernels/cuda/attention/attention_windows_forward.cuh"
#include "kernels/cuda/common/card_attributes.h"

// Serves attention ("mma") in small windows on Hopper, as attention_windows.cu does elsewhere: the copy engine brings
// tiles and takes results away, which lie over the rows of q that their warp has read. Warps wait for tiles alone and
// never for each other; one thread fills a stage again once all four have said that they have read it.

namespace plimsoll::cuda {
namespace {

constexpr int stages = 3, blocks_per_multiprocessor = 4;
enum { Queries, Keys, Values, Tensors };

struct WindowMaps {
  CUtensorMap q, k, v, y;

  [[nodiscard]] cudaError_t fill(const AttentionShape& n, const AttentionCall& call) {
    const auto map = [&](CUtensorMap& to, const void* tensor, int64_t rows, int64_t step, int64_t box_rows) {
      return map_short_rows(to, tensor, n.batch, rows, n.heads, step, static_cast<int>(box_rows));
    };
    constexpr int of_warp = 16;
    for (cudaError_t error :
         {map(q, call.q, n.rows, n.q_step, n.rows), map(k, call.k, n.columns, n.k_step, n.columns),
          map(v, call.v, n.columns, n.v_step, n.columns), map(y, call.y, n.rows, n.heads * n.depth, of_warp)})
      if (error != cudaSuccess) return error;
    return cudaSuccess;
  }
};

// The segments of a window's rows, which are those of its columns, in shared memory of each warp's own. They are read a
// window ahead, two by a thread. Without segments there is nothing of it.
template <bool exist>
class WarpSegments {
 public:
  using Numbers = typename WindowSegments<exist>::Numbers;

  // Those of window b.
  __device__ void read(const AttentionShape& n, int b) {
    if constexpr (exist) {
      const int64_t* const numbers = n.segments + b * n.segments_step;
      const int last = static_cast<int>(n.rows) - 1, lane = static_cast<int>(threadIdx.x) % 32;
      next_[0] = numbers[min(lane, last)];
      next_[1] = numbers[min(lane + 32, last)];
    }
  }
  // Are there several segments? Then it writes the window's numbers.
  __device__ bool write(Numbers& numbers) const {
    if constexpr (exist) {
      const int64_t first = __shfl_sync(whole_warp, next_[0], 0);
      if (!__any_sync(whole_warp, next_[0] != first || next_[1] != first)) return false;
      const int lane = static_cast<int>(threadIdx.x) % 32;
      numbers[lane] = next_[0], numbers[lane + 32] = next_[1];
      __syncwarp();
      return true;
    }
    return false;
  }

 private:
  int64_t next_[2] = {};
};

template <int groups, bool has_segments>
struct WindowMemory {
  unsigned char tiles[stages][Tensors][window_bytes];
  WindowAdditions<groups> added[window_tiles];  // by warp
  typename WarpSegments<has_segments>::Numbers segments[window_tiles];
  Barrier full[stages], read[stages];
};

template <typename T, int groups, bool has_segments>
__device__ void attend_in_windows(const WindowMaps& maps, const AttentionShape& n, const AttentionCall& call,
                                  int step) {
  extern __shared__ __align__(1024) unsigned char shared_tiles[];
  auto& memory = *reinterpret_cast<WindowMemory<groups, has_segments>*>(shared_tiles);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int heads = static_cast<int>(n.heads), h = static_cast<int>(blockIdx.x) % heads;
  const int first = static_cast<int>(blockIdx.x) / heads;
  const int rows = static_cast<int>(n.rows), columns = static_cast<int>(n.columns), batch = static_cast<int>(n.batch);
  const bool leads = threadIdx.x == 0, leads_warp = lane == 0;
  const int row = 16 * warp + lane / 4, own_row = 16 * warp, own = warp * sixteen_rows_bytes;
  const Head head{0, h};
  const WindowPlaces places;
  // One thread calls it.
  const auto copy = [&](int b, int stage) {
    if (b >= batch) return;
    auto& tiles = memory.tiles[stage];
    Barrier* const full = memory.full + stage;
    arrive_with_copies(full, (rows + 2 * columns) * window_row_bytes);
    copy_box(tiles[Queries], maps.q, 0, h, 0, b, full);
    copy_box(tiles[Keys], maps.k, 0, h, 0, b, full);
    copy_box(tiles[Values], maps.v, 0, h, 0, b, full);
  };
  if (leads) {
    for (Barrier& full : memory.full) set_up_barrier(&full, 1);
    for (Barrier& read : memory.read) set_up_barrier(&read, window_tiles);
    show_barriers_to_copies();
    for (int i = 0; i < stages; ++i) copy(first + i * step, i);
  }
  // Rows of q that no window has become rows of y that are not stored.
  for (auto& tiles : memory.tiles) clear_rest(tiles[Keys], columns), clear_rest(tiles[Values], columns);
  memory.added[warp].template fill<Owner::Rows, T>(n, head, own_row);
  WarpSegments<has_segments> segments;
  segments.read(n, first);
  __syncthreads();

  const float to_log2 = n.scale * log2_e;
  StagePlace<stages> at, before;
#pragma unroll 1
  for (int b = first; b < batch; b += step, before = at, at.advance()) {
    const bool is_divided = segments.write(memory.segments[warp]);
    if (b + step < batch) segments.read(n, b + step);
    wait_at(memory.full + at.stage, at.parity);
    auto& tiles = memory.tiles[at.stage];
    const EightRows queries[2] = {places.rows(tiles[Queries], 2 * warp), places.rows(tiles[Queries], 2 * warp + 1)};
    WindowMeans means;
    const auto attend = [&](bool with_segments) {
      attend_to_window<T, has_segments>(means, queries, tiles[Keys], tiles[Values], memory.added[warp], to_log2, places,
                                        row, memory.segments[warp], with_segments);
    };
    // Windows of one segment have code of their own, in which products and exponentials mix freely.
    if (has_segments && is_divided)
      attend(true);
    else
      attend(false);
    if (leads_warp && b > first) {
      wait_for_box_reads();  // of the window before
      arrive_at(memory.read + before.stage);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (lane % 4 == 0 && row + 8 * half < rows) call.lse[Head{b, h}.lse(n, row + 8 * half)] = means.lse[half];
    __syncwarp();  // queries and segments are read no more
    lay_rows<T>(tiles[Queries] + own, means.sums, means.factors, rows - own_row);
    show_to_copies();
    __syncwarp();
    if (leads_warp) {
      if (own_row < rows) store_box(tiles[Queries] + own, maps.y, 0, h, own_row, b);
      commit_boxes();
    }
    if (leads && b > first && b + (stages - 1) * step < batch) {
      wait_at(memory.read + before.stage, before.parity);
      copy(b + (stages - 1) * step, before.stage);
    }
  }
  if (leads_warp) wait_for_box_reads();
}

// Windows of up to 8 * groups columns.
template <typename T, int groups, bool has_segments>
__global__ void __launch_bounds__(window_threads, blocks_per_multiprocessor)
    attention_window_boxes_kernel(const __grid_constant__ WindowMaps maps, AttentionShape n, AttentionCall call,
                                  int step) {
  if constexpr (has_warpgroups)
    attend_in_windows<T, groups, has_segments>(maps, n, call, step);
  else
    __trap();
}

}  // namespace

bool takes_window_boxes(const AttentionShape& shape) {
  return shape.depth == window_depth && shape.batch * shape.rows * shape.columns > 0 && is_hopper();
}

cudaError_t attention_window_boxes(const AttentionShape& shape, const AttentionCall& call, cudaStream_t stream) {
  WindowMaps maps;
  if (cudaError_t error = maps.fill(shape, call); error != cudaSuccess) return error;
  const WindowGrid grid(shape, blocks_per_multiprocessor);
  return with_16_bit_float(shape.type, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    const auto launch = [&]<int groups>(std::integral_constant<int, groups>) {
      return with_window_segments(shape, [&]<bool has_segments>(std::bool_constant<has_segments>) {
        return launch_mma(attention_window_boxes_kernel<T, groups, has_segments>, grid.blocks, window_threads,
                          static_cast<int>(sizeof(WindowMemory<groups, has_segments>)), stream, maps, shape, call,
                          static_cast<int>(grid.blocks_per_head));
      });
    };
    // Windows of seven by seven are the usual ones.
    if (shape.columns <= 56) return launch(std::integral_constant<int, 7>());
    return launch(std::integral_constant<int, 8>());
  });
}

}  // namespace plimsoll::cuda
