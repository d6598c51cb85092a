#include "kernels/cuda/index/index.cuh"
#include "kernels/cuda/index/index_workspace.h"

// Serves gather_grad of few short rows, as those of a table of relative positions, where sorting would take longer than
// all else: every block has some rows of dx and looks through all indices for them. Its warps have a piece of the
// indices each, and add up in the order of the indices what they find; at the end their sums are added in order. dy is
// read and dx written once, indices once a block.

namespace plimsoll::cuda {
namespace {

constexpr int scan_threads = scan_warps * warp_threads, in_flight = 4;

struct Scan {
  Indices indices;
  const void* addend;                        // null, or of dx's type and shape
  int64_t size, count, inner, rows, blocks;  // blocks of one of outer
};

template <typename T, typename D>
__global__ void __launch_bounds__(scan_threads) scan_kernel(const __grid_constant__ Scan s, T* dx, const D* dy) {
  __shared__ float sums[max_line_floats];  // [scan_warps, rows, inner]
  const int lane = static_cast<int>(threadIdx.x) % warp_threads, warp = static_cast<int>(threadIdx.x) / warp_threads;
  const int64_t outer = blockIdx.x / s.blocks, first = blockIdx.x % s.blocks * s.rows;
  const int rows = static_cast<int>(min(s.rows, s.size - first)), inner = static_cast<int>(s.inner);
  const int floats = rows * inner;
  float* const own = sums + warp * floats;
  for (int i = lane; i < floats; i += warp_threads) own[i] = 0.0f;

  const int64_t piece = round_up(divide_up(s.count, int64_t{scan_warps}), int64_t{warp_threads});
  const int64_t end = min((warp + 1) * piece, s.count);
  const D* const from = dy + outer * s.count * s.inner;
  for (int64_t next = warp * piece; next < end; next += in_flight * warp_threads) {
    int found[in_flight];  // which of the block's rows, where it is one
#pragma unroll
    for (int u = 0; u < in_flight; ++u) {
      const int64_t j = next + u * warp_threads + lane;
      const int64_t row = j < end ? index_at(s.indices, j, s.size) - first : -1;
      found[u] = row >= 0 && row < rows ? static_cast<int>(row) : -1;
    }
#pragma unroll
    for (int u = 0; u < in_flight; ++u)
      for (unsigned left = __ballot_sync(whole_warp, found[u] >= 0); left != 0; left &= left - 1) {
        const int at = __ffs(static_cast<int>(left)) - 1, row = __shfl_sync(whole_warp, found[u], at);
        const D* const picked = from + (next + u * warp_threads + at) * s.inner;
        for (int c = lane; c < inner; c += warp_threads) own[row * inner + c] += widen(picked[c]);
      }
  }
  __syncthreads();
  const int64_t to = (outer * s.size + first) * s.inner;
  for (int i = static_cast<int>(threadIdx.x); i < floats; i += scan_threads) {
    float sum = sums[i];
    for (int w = 1; w < scan_warps; ++w) sum += sums[w * floats + i];
    if (s.addend) sum += widen(static_cast<const T*>(s.addend)[to + i]);
    dx[to + i] = narrow<T>(sum);
  }
}

}  // namespace

cudaError_t gather_rows_grad_by_scan(Scalar type, void* dx, Scalar dy_type, const void* dy, const void* addend,
                                     const Indices& indices, int64_t outer, int64_t size, int64_t count, int64_t inner,
                                     cudaStream_t stream) {
  if (outer * size * inner == 0) return cudaSuccess;
  const ScannedRows scanned(outer, size, inner);
  const Scan s{indices, addend, size, count, inner, scanned.rows, scanned.blocks / outer};
  return with_f32_math_pair(dy_type, type, [&]<typename D, typename T>(D*, T*) {
    scan_kernel<<<static_cast<unsigned>(scanned.blocks), scan_threads, 0, stream>>>(s, static_cast<T*>(dx),
                                                                                    static_cast<const D*>(dy));
    return cudaGetLastError();
  });
}

}  // namespace plimsoll::cuda
