#include "kernels/cuda/index/along_axis.h"
#include "kernels/cuda/index/index.cuh"
#include "kernels/cuda/index/index_workspace.h"

// Serves cumsum of few long lines, which blocks share by parts. x is read twice and y written once. The first launch
// sums each part; in the second each block adds up the parts before its own and scans its part from there. Both add in
// a fixed order.

namespace plimsoll::cuda {
namespace {

struct Parts {
  AxisShape axis;
  ScanEnds ends;
  ScanStart start;
  Scalar type;
  int columns, threads_per_line;
  int64_t parts;
  Divider column_blocks, part_blocks;  // a block is [outer, part, block of columns]
};

// What a thread of a block does: `part_run` elements of a line from element `first` on, counted from where the scan
// starts. Threads of the lines side by side are neighbours.
struct Place {
  int64_t outer, part, i, first;
  int column, down;
  bool inside;

  __device__ explicit Place(const Parts& p) {
    int64_t block = blockIdx.x;
    part = p.column_blocks.divide(block);
    outer = p.part_blocks.divide(part);
    column = static_cast<int>(threadIdx.x) % p.columns;
    down = static_cast<int>(threadIdx.x) / p.columns;
    i = block * p.columns + column;
    first = (part * p.threads_per_line + down) * part_run;
    inside = down < p.threads_per_line && i < p.axis.inner;
  }

  __device__ int64_t at(const Parts& p, int64_t k) const {
    return (outer * p.axis.length + (p.start == ScanStart::Last ? p.axis.length - 1 - k : k)) * p.axis.inner + i;
  }
};

template <typename Value>
struct Sums {
  Value before, total;  // of the threads of this line before this one; of all
};

// For each line of the block the values of its threads, in their order.
template <typename Value>
__device__ Sums<Value> scan_lines(const Parts& p, const Place& place, Value value) {
  __shared__ Value of_threads[part_threads];
  const int thread = static_cast<int>(threadIdx.x);
  Value sum = value;
  for (int distance = 1; distance < p.threads_per_line; distance *= 2) {
    of_threads[thread] = sum;
    __syncthreads();
    if (place.down >= distance) sum += of_threads[thread - distance * p.columns];
    __syncthreads();
  }
  of_threads[thread] = sum;
  __syncthreads();
  const Sums<Value> sums{place.down > 0 ? of_threads[thread - p.columns] : Value{0},
                         of_threads[(p.threads_per_line - 1) * p.columns + place.column]};
  __syncthreads();
  return sums;
}

template <typename Value>
__device__ void load_run(const Parts& p, const Place& place, const void* x, Value (&run)[part_run]) {
#pragma unroll
  for (int k = 0; k < part_run; ++k)
    run[k] = place.inside && place.first + k < p.axis.length
                 ? load_any<Value>({x, p.type}, place.at(p, place.first + k))
                 : Value{0};
}

// sums[outer][part][inner]
template <typename Value>
__global__ void __launch_bounds__(part_threads)
    sum_parts_kernel(const __grid_constant__ Parts p, Value* sums, const void* x) {
  const Place place(p);
  Value run[part_run], sum = 0;
  load_run(p, place, x, run);
#pragma unroll
  for (int k = 0; k < part_run; ++k) sum += run[k];
  const Value total = scan_lines(p, place, sum).total;
  if (place.inside && place.down == 0) sums[(place.outer * p.parts + place.part) * p.axis.inner + place.i] = total;
}

template <typename Value>
__global__ void __launch_bounds__(part_threads)
    scan_parts_kernel(const __grid_constant__ Parts p, void* y, const void* x, const Value* sums) {
  const Place place(p);
  Value run[part_run], parts_before = 0, sum = 0;
  load_run(p, place, x, run);
  if (place.inside)
#pragma unroll 4
    for (int64_t part = place.down; part < place.part; part += p.threads_per_line)
      parts_before += sums[(place.outer * p.parts + part) * p.axis.inner + place.i];
  const Value carry = scan_lines(p, place, parts_before).total;
#pragma unroll
  for (int k = 0; k < part_run; ++k) sum += run[k];
  Value before = carry + scan_lines(p, place, sum).before;
  if (!place.inside) return;
#pragma unroll
  for (int k = 0; k < part_run; ++k) {
    const Value after = before + run[k];
    if (place.first + k < p.axis.length)
      store_any(y, p.type, place.at(p, place.first + k), p.ends == ScanEnds::Exclusive ? before : after);
    before = after;
  }
}

template <typename Value>
cudaError_t scan(const Parts& p, unsigned blocks, void* y, const void* x, void* workspace, cudaStream_t stream) {
  auto* sums = static_cast<Value*>(workspace);
  sum_parts_kernel<Value><<<blocks, part_threads, 0, stream>>>(p, sums, x);
  scan_parts_kernel<Value><<<blocks, part_threads, 0, stream>>>(p, y, x, sums);
  return cudaGetLastError();
}

}  // namespace

cudaError_t running_sums_by_parts(Scalar type, void* y, const void* x, const AxisShape& axis, ScanEnds ends,
                                  ScanStart start, void* workspace, cudaStream_t stream) {
  if (axis.outer * axis.length * axis.inner == 0) return cudaSuccess;
  const ScannedParts scanned(axis.length, axis.inner);
  const int64_t column_blocks = divide_up(axis.inner, scanned.columns);
  const Parts p{axis,
                ends,
                start,
                type,
                static_cast<int>(scanned.columns),
                static_cast<int>(scanned.threads_per_line),
                scanned.parts,
                Divider(column_blocks),
                Divider(scanned.parts)};
  const auto blocks = static_cast<unsigned>(axis.outer * scanned.parts * column_blocks);
  return is_float(type) ? scan<double>(p, blocks, y, x, workspace, stream)
                        : scan<int64_t>(p, blocks, y, x, workspace, stream);
}

}  // namespace plimsoll::cuda
