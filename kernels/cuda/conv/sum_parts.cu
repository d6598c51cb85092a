#include "kernels/cuda/conv/sum_parts.h"

#include "kernels/cuda/common/early_launch.cuh"
#include "kernels/cuda/common/partial_sums.cuh"
#include "kernels/cuda/conv/unit_tiles.cuh"

// Sums of parts, which a kernel before has left in the second-level cache: reads each once. Blocks may begin while the
// blocks that write parts end, and wait. They ask for so much shared memory that no multiprocessor has more of them
// than the others: else all would gather where the kernel before ends first.

namespace plimsoll::cuda {
namespace {

constexpr int own_threads = 128, own_columns = 4;

template <typename To>
__global__ void __launch_bounds__(combine_threads)
    sum_parts_kernel(To* sums, const float* partial, int64_t parts, int64_t count, int across) {
  wait_for_launch_before();
  combine_partials(partial, parts, count, across, Add(), 0.0f,
                   [&](int64_t at, float total) { sums[at] = narrow<To>(total); });
}

// The same for few parts: a thread has `vector` neighbours of every rows-th part, with some of them under way at once,
// and blocks are small enough that all are on the card together.
template <typename To, int rows, int lanes, int vector>
__global__ void __launch_bounds__(rows* lanes)
    sum_few_parts_kernel(To* __restrict__ sums, const float* __restrict__ partial, int parts, int64_t count) {
  constexpr int columns = lanes * vector;
  struct alignas(sizeof(float) * vector) Vector {
    float at[vector];
  };
  __shared__ Vector of_rows[rows][lanes];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % lanes, row = thread / lanes;
  const int64_t first = int64_t{blockIdx.x} * columns, mine = first + lane * vector;
  Vector total{};
  wait_for_launch_before();
  if (mine < count)
#pragma unroll 8
    for (int part = row; part < parts; part += rows) {
      const Vector more = *reinterpret_cast<const Vector*>(partial + part * count + mine);
#pragma unroll
      for (int i = 0; i < vector; ++i) total.at[i] += more.at[i];
    }
  of_rows[row][lane] = total;
  __syncthreads();
  if (thread >= columns || first + thread >= count) return;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < rows; ++i) sum += of_rows[i][thread / vector].at[thread % vector];
  sums[first + thread] = narrow<To>(sum);
}

// The same for so few parts that a thread takes all of them, of four neighbours.
template <typename To>
__global__ void __launch_bounds__(own_threads)
    sum_own_parts_kernel(To* __restrict__ sums, const float* __restrict__ partial, int parts, int64_t count) {
  const int64_t mine = (int64_t{blockIdx.x} * own_threads + threadIdx.x) * own_columns;
  wait_for_launch_before();
  if (mine >= count) return;
  float4 total{};
#pragma unroll 8
  for (int part = 0; part < parts; ++part) {
    const float4 more = *reinterpret_cast<const float4*>(partial + part * count + mine);
    total.x += more.x, total.y += more.y, total.z += more.z, total.w += more.w;
  }
  struct alignas(sizeof(To) * own_columns) Rounded {
    To at[own_columns];
  };
  *reinterpret_cast<Rounded*>(sums + mine) = {narrow<To>(total.x), narrow<To>(total.y), narrow<To>(total.z),
                                              narrow<To>(total.w)};
}

// static_bytes: of shared memory, that the kernel has anyway.
template <typename... Parameters>
cudaError_t launch_spread(void (*kernel)(Parameters...), int64_t blocks, int threads, int static_bytes,
                          cudaStream_t stream, std::type_identity_t<Parameters>... arguments) {
  constexpr int reserved_bytes = 1 << 10;  // of each block
  int processors = 1, bytes = 0, most_bytes = 0;
  if (const cudaError_t error = count_multiprocessors(processors)) return error;
  if (const cudaError_t error = read_card_attribute(bytes, cudaDevAttrMaxSharedMemoryPerMultiprocessor)) return error;
  if (const cudaError_t error = read_card_attribute(most_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin)) return error;
  const auto of_processor = static_cast<int>(divide_up(blocks, processors));
  const int of_block = std::min(bytes / of_processor - reserved_bytes, most_bytes) - static_bytes;
  const bool is_early = capability_major() >= 9;
  const auto dynamic_bytes = static_cast<size_t>(is_early ? std::max(of_block, 0) : 0);
  if (const cudaError_t error = allow_shared(kernel, dynamic_bytes)) return error;
  cudaLaunchAttribute early;
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(blocks);
  config.blockDim = static_cast<unsigned>(threads);
  config.dynamicSmemBytes = dynamic_bytes;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = is_early ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

template <int rows, int lanes, int vector, typename To>
cudaError_t sum_few_parts(To* sums, const float* partial, int64_t parts, int64_t count, cudaStream_t stream) {
  static_assert(lanes * vector <= rows * lanes, "a thread finishes one column");
  return launch_spread(sum_few_parts_kernel<To, rows, lanes, vector>, divide_up(count, lanes * vector), rows * lanes,
                       rows * lanes * vector * 4, stream, sums, partial, static_cast<int>(parts), count);
}

}  // namespace

cudaError_t sum_parts(Scalar type, void* sums, const float* partial, int64_t parts, int64_t count,
                      cudaStream_t stream) {
  constexpr int64_t few_parts = 256, very_few_parts = 48, own_parts = 8;
  constexpr int64_t few_sums = 2048, parts_of_warp_rows = 64;
  return with_f32_math(type, [&]<typename To>(To*) {
    To* const to = static_cast<To*>(sums);
    if (parts > few_parts)
      return launch_spread(sum_parts_kernel<To>, combining_blocks(parts, count), combine_threads, combine_threads * 4,
                           stream, to, partial, parts, count, combined_columns(parts));
    if (count % own_columns == 0 && parts <= own_parts)
      return launch_spread(sum_own_parts_kernel<To>, divide_up(count, own_threads * own_columns), own_threads, 0,
                           stream, to, partial, static_cast<int>(parts), count);
    if (count % 4 != 0) return sum_few_parts<4, 64, 1>(to, partial, parts, count, stream);
    // Few sums are few blocks, in which more threads ask for parts at once.
    if (count <= few_sums)
      return parts > parts_of_warp_rows ? sum_few_parts<64, 8, 4>(to, partial, parts, count, stream)
                                        : sum_few_parts<32, 8, 4>(to, partial, parts, count, stream);
    return parts > very_few_parts ? sum_few_parts<8, 16, 4>(to, partial, parts, count, stream)
                                  : sum_few_parts<4, 32, 4>(to, partial, parts, count, stream);
  });
}

}  // namespace plimsoll::cuda
