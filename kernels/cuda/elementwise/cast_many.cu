#include "kernels/cuda/elementwise/elementwise.h"
#include "kernels/cuda/elementwise/elementwise_map.cuh"
#include "kernels/cuda/update/block_table.cuh"

#include <algorithm>

// Serves several casts at once. Every element is read and written once. Casts between f32 and 16 bits of as many
// tensors as a launch's parameters hold: a weight comes with its bias, which is too small to fill a launch of its own.

namespace plimsoll::cuda {
namespace {

constexpr int table_size = 64;

struct CastTable {
  BlockTable<table_size> blocks;
  CastTensor tensors[table_size];
};

struct AsIs {
  __device__ float operator()(float x) const { return x; }
};

template <typename Out, typename In>
__global__ void __launch_bounds__(block_threads) cast_many_kernel(const __grid_constant__ CastTable table) {
  const int number = table.blocks.tensor_of(blockIdx.x);
  const CastTensor& tensor = table.tensors[number];
  map_block<map_vector<Out, In>>(AsIs{}, blockIdx.x - table.blocks.first[number], tensor.elements,
                                 static_cast<Out*>(tensor.y), static_cast<const In*>(tensor.x));
}

template <typename Out, typename In>
cudaError_t cast_tables(const CastTensor* tensors, int count, cudaStream_t stream) {
  constexpr int64_t each = int64_t{map_unroll} * block_threads * map_vector<Out, In>;
  for (; count > 0; tensors += table_size, count -= table_size) {
    CastTable table{};
    for (int i = 0; i < std::min(count, table_size); ++i) {
      table.tensors[i] = tensors[i];
      table.blocks.add((tensors[i].elements + each - 1) / each);
    }
    if (table.blocks.blocks() > 0)
      cast_many_kernel<Out, In><<<table.blocks.blocks(), block_threads, 0, stream>>>(table);
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t cast_many(Scalar y_type, Scalar x_type, const CastTensor* tensors, int count, cudaStream_t stream) {
  if (x_type == Scalar::F32 && y_type == Scalar::BF16) return cast_tables<bf16, float>(tensors, count, stream);
  if (x_type == Scalar::F32 && y_type == Scalar::F16) return cast_tables<f16, float>(tensors, count, stream);
  if (x_type == Scalar::BF16 && y_type == Scalar::F32) return cast_tables<float, bf16>(tensors, count, stream);
  if (x_type == Scalar::F16 && y_type == Scalar::F32) return cast_tables<float, f16>(tensors, count, stream);
  return cudaErrorInvalidValue;
}

}  // namespace plimsoll::cuda
