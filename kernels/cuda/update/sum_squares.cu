#include "kernels/cuda/common/rows.cuh"
#include "kernels/cuda/reduce/reduce.h"
#include "kernels/cuda/update/block_table.cuh"

#include <algorithm>

// Serves sum_squares. The sum of squares over tensors: a block sums a piece of one of them, and one block adds the
// pieces in their order. Reads every element once.

namespace plimsoll::cuda {
namespace {

constexpr int last_threads = 1024;
constexpr int table_size = 192;  // keeps the parameters of a launch below 4 KB

struct SquaresTable {
  BlockTable<table_size> blocks;
  const void* x[table_size];
  int64_t elements[table_size];
};

template <typename T>
__global__ void __launch_bounds__(block_threads)
    squares_kernel(const __grid_constant__ SquaresTable table, int64_t block_elements, float* parts) {
  const int tensor = table.blocks.tensor_of(blockIdx.x);
  const int64_t begin = int64_t{blockIdx.x - table.blocks.first[tensor]} * block_elements;
  const int64_t left = table.elements[tensor] - begin;
  float total = 0.0f;
  for_row(static_cast<const T*>(table.x[tensor]) + begin, left < block_elements ? left : block_elements,
          static_cast<int>(threadIdx.x), block_threads, [&](int64_t, const auto& values) {
            for (T value : values.at) total += widen(value) * widen(value);
          });
  total = block_reduce(total, Add{}, 0.0f);
  if (threadIdx.x == 0) parts[blockIdx.x] = total;
}

__global__ void __launch_bounds__(last_threads) add_parts_kernel(float* y, const float* parts, int64_t count) {
  float total = 0.0f;
#pragma unroll 4
  for (int64_t part = threadIdx.x; part < count; part += last_threads) total += parts[part];
  total = block_reduce(total, Add{}, 0.0f);
  if (threadIdx.x == 0) *y = total;
}

// Pieces of as many tensors as a table holds; gives the end of the parts.
template <typename T>
float* launch_table(const SquaresCall& call, int begin, int64_t block_elements, float* parts, cudaStream_t stream) {
  SquaresTable table{};
  for (int i = begin; i < std::min(begin + table_size, call.count); ++i) {
    table.x[i - begin] = call.x[i];
    table.elements[i - begin] = call.elements[i];
    table.blocks.add(squares_parts(call.elements[i], block_elements));
  }
  const unsigned blocks = table.blocks.blocks();
  if (blocks > 0) squares_kernel<T><<<blocks, block_threads, 0, stream>>>(table, block_elements, parts);
  return parts + blocks;
}

}  // namespace

cudaError_t sum_squares(const SquaresCall& call, cudaStream_t stream) {
  int64_t total = 0;
  for (int i = 0; i < call.count; ++i) total += call.elements[i];
  const int64_t block_elements = squares_block(total);
  return with_f32_math(call.x_type, [&]<typename T>(T*) {
    float* end = call.workspace;
    for (int i = 0; i < call.count; i += table_size) end = launch_table<T>(call, i, block_elements, end, stream);
    add_parts_kernel<<<1, last_threads, 0, stream>>>(call.y, call.workspace, end - call.workspace);
  });
}

}  // namespace plimsoll::cuda
