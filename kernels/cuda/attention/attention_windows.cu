#include "kernels/cuda/attention/attention_windows_forward.cuh"

// Serves attention ("mma") in small windows: reads q, k and v once and writes y once.

namespace plimsoll::cuda {
namespace {

constexpr int stages = 3, blocks_per_multiprocessor = 4;
enum { Keys, Values, Tensors };

template <int groups, bool has_segments>
struct WindowMemory {
  unsigned char tiles[stages][Tensors][window_bytes];
  WindowAdditions<groups> added[window_tiles];  // by warp
  unsigned char staged[window_tiles][sixteen_rows_bytes];
  // Some may still be read while the next ones are written.
  typename WindowSegments<has_segments>::Numbers segments[2];
};

// Windows of up to 8 * groups columns.
template <typename T, int groups, bool has_segments>
__global__ void __launch_bounds__(window_threads, blocks_per_multiprocessor)
    attention_windows_kernel(AttentionShape n, AttentionCall call, int step) {
  using Memory = WindowMemory<groups, has_segments>;
  extern __shared__ uint4 shared[];
  Memory& memory = *reinterpret_cast<Memory*>(shared);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int heads = static_cast<int>(n.heads), first = static_cast<int>(blockIdx.x) / heads;
  const int rows = static_cast<int>(n.rows), batch = static_cast<int>(n.batch), depth = static_cast<int>(n.depth);
  const int row = 16 * warp + lane / 4;  // and 8 more
  const Head head{0, static_cast<int>(blockIdx.x) % heads};
  const WindowPlaces places;
  const float to_log2 = n.scale * log2_e;
  WindowCopies<T> k(static_cast<const T*>(call.k) + head.k(n), n.k_step, n.columns, depth, first, step);
  WindowCopies<T> v(static_cast<const T*>(call.v) + head.v(n), n.v_step, n.columns, depth, first, step);
  WindowResults<const T> q(static_cast<const T*>(call.q) + head.q(n), n.q_step, n.rows, depth, first, step);
  WindowResults<T> y(static_cast<T*>(call.y) + head.y(n), n.heads * n.depth, n.rows, depth, first, step);
  for (int stage = 0; stage < stages; ++stage) {
    k.clear_rest(memory.tiles[stage][Keys]);
    v.clear_rest(memory.tiles[stage][Values]);
  }
  int copied = first;
  const auto copy = [&](int stage) {
    if (copied < batch) {
      k.copy(memory.tiles[stage][Keys]);
      v.copy(memory.tiles[stage][Values]);
    }
    commit_copies();
    copied += step;
    k.advance();
    v.advance();
  };
  for (int stage = 0; stage + 1 < stages; ++stage) copy(stage);
  EightRows next[2] = {};
  const auto read_queries = [&](int b) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (b < batch && q.has(half)) next[half].vector = __ldg(reinterpret_cast<const uint4*>(q.at(half)));
    q.advance();
  };
  read_queries(first);
  memory.added[warp].template fill<Owner::Rows, T>(n, head, 16 * warp);

  WindowSegments<has_segments> segments;
  segments.read(n, first);
  int stage = 0, numbers = 0;
  for (int b = first; b < batch; b += step, numbers ^= 1) {
    wait_for_copies<stages - 2>();
    // The window has come, and none still reads the one before.
    const bool is_divided = segments.meet(memory.segments[numbers]);
    copy(stage == 0 ? stages - 1 : stage - 1);
    if (b + step < batch) segments.read(n, b + step);
    const EightRows queries[2] = {next[0], next[1]};
    read_queries(b + step);
    WindowMeans means;
    attend_to_window<T, has_segments>(means, queries, memory.tiles[stage][Keys], memory.tiles[stage][Values],
                                      memory.added[warp], to_log2, places, row, memory.segments[numbers], is_divided);
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (lane % 4 == 0 && row + 8 * half < rows) call.lse[Head{b, head.h}.lse(n, row + 8 * half)] = means.lse[half];
    y.write(means.sums, means.factors, memory.staged[warp], places);
    y.advance();
    stage = stage + 1 == stages ? 0 : stage + 1;
  }
}

}  // namespace

cudaError_t attention_windows(const AttentionShape& shape, const AttentionCall& call, cudaStream_t stream) {
  const WindowGrid grid(shape, blocks_per_multiprocessor);
  return with_16_bit_float(shape.type, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    const auto launch = [&]<int groups>(std::integral_constant<int, groups>) {
      return with_window_segments(shape, [&]<bool has_segments>(std::bool_constant<has_segments>) {
        return launch_mma(attention_windows_kernel<T, groups, has_segments>, grid.blocks, window_threads,
                          static_cast<int>(sizeof(WindowMemory<groups, has_segments>)), stream, shape, call,
                          static_cast<int>(grid.blocks_per_head));
      });
    };
    // Windows of seven by seven are the usual ones.
    if (shape.columns <= 56) return launch(std::integral_constant<int, 7>());
    return launch(std::integral_constant<int, 8>());
  });
}

}  // namespace plimsoll::cuda
