#include "kernels/cuda/norm/group_norm.cuh"

// Serves group_norm and group_norm_grad with channels last, x [batch, inner, channels], where slabs are too few to keep
// the chip busy (group_norm_slabs.cu). Traffic is that of group_norm.cu. A group is a run of neighbouring channels at
// every position. A block walks over one group, accesses as wide as the run allows; blocks of one sample's groups run
// side by side and share the cache lines between their runs. Sums of a channel over positions are taken by tiles of 32
// channels, a warp's lanes side by side.

namespace plimsoll::cuda {
namespace {

// Visits the elements of a group: visit(offset, channel in the group, index of the access).
template <int n, typename Visit>
__device__ void for_group(const GroupShape& shape, Visit visit) {
  const auto run = static_cast<uint32_t>(shape.channels_per_group() / n);
  const uint32_t accesses = run * static_cast<uint32_t>(shape.inner);
  for (uint32_t i = threadIdx.x; i < accesses; i += blockDim.x) {
    const uint32_t position = i / run, channel = (i - position * run) * n;
    visit(int64_t{position} * shape.channels + channel, channel);
  }
}

// Where the group of that row starts.
__device__ int64_t group_start(const GroupShape& shape, int64_t row) {
  return row / shape.groups * shape.inner * shape.channels + row % shape.groups * shape.channels_per_group();
}

// The parameters of a group's channels; whoever reads them waits for the block first.
__device__ void stage(float* to, const GroupShape& shape, int64_t row, const void* parameters, Scalar type,
                      float otherwise) {
  const int64_t channels = shape.channels_per_group(), first = row % shape.groups * channels;
  for (int64_t c = threadIdx.x; c < channels; c += blockDim.x)
    to[c] = parameter_at(parameters, type, first + c, otherwise);
}

template <typename T, int n>
__global__ void __launch_bounds__(1024) group_norm_kernel(GroupNormCall call) {
  extern __shared__ float scale[];  // then bias
  const GroupShape& shape = call.shape;
  const int64_t row = blockIdx.x;
  float* bias = scale + shape.channels_per_group();
  stage(scale, shape, row, call.scale, call.parameter_type, 1.0f);
  stage(bias, shape, row, call.bias, call.parameter_type, 0.0f);
  const T* x = static_cast<const T*>(call.x) + group_start(shape, row);
  T* y = static_cast<T*>(call.y) + group_start(shape, row);
  const auto width = static_cast<float>(shape.channels_per_group() * shape.inner);
  const auto [mean, rstd] = block_statistics(width, call.eps, [&](auto visit) {
    for_group<n>(shape, [&](int64_t at, uint32_t) { visit(load_vector<n>(x + at)); });
  });
  if (threadIdx.x == 0) {
    call.mean[row] = mean;
    call.rstd[row] = rstd;
  }
  for_group<n>(shape, [&](int64_t at, uint32_t channel) {
    Vector<T, n> values = load_vector<n>(x + at);
#pragma unroll
    for (int i = 0; i < n; ++i)
      values.at[i] = narrow<T>(
          activated((widen(values.at[i]) - mean) * rstd * scale[channel + i] + bias[channel + i], call.activation));
    store_vector(y + at, values);
  });
}

constexpr int tile_rows = 16;

// planes [batch, channels]; a block 32 channels of a sample, a warp a row of the tile.
template <typename T>
__global__ void __launch_bounds__(warp_threads* tile_rows)
    channel_sums_kernel(GroupNormGradCall call, GradSums* planes) {
  const GroupShape& shape = call.shape;
  __shared__ GradSums of_rows[tile_rows][warp_threads];
  const auto tiles = static_cast<uint32_t>((shape.channels + warp_threads - 1) / warp_threads);
  const int64_t sample = blockIdx.x / tiles, channel = int64_t{blockIdx.x % tiles} * warp_threads + threadIdx.x;
  GradSums sums{0, 0};
  if (channel < shape.channels) {
    const int64_t group = sample * shape.groups + channel / shape.channels_per_group();
    const int64_t start = sample * shape.inner * shape.channels + channel;
    const float mean = call.mean[group], rstd = call.rstd[group];
    const NormChannel parameters(call, channel, rstd);
    const T *x = static_cast<const T*>(call.x) + start, *dy = static_cast<const T*>(call.dy) + start;
#pragma unroll 4
    for (int64_t p = threadIdx.y; p < shape.inner; p += tile_rows) {
      const float difference = widen(x[p * shape.channels]) - mean;
      const float grad = parameters.grad(widen(dy[p * shape.channels]), difference, call.activation);
      sums = sums + GradSums{grad, grad * difference * rstd};
    }
  }
  of_rows[threadIdx.y][threadIdx.x] = sums;
  __syncthreads();
  if (threadIdx.y > 0 || channel >= shape.channels) return;
  for (int row = 1; row < tile_rows; ++row) sums = sums + of_rows[row][threadIdx.x];
  planes[sample * shape.channels + channel] = sums;
}

// A block a group.
template <typename T, int n>
__global__ void __launch_bounds__(1024) group_dx_kernel(GroupNormGradCall call, const GradSums* planes) {
  const GroupShape& shape = call.shape;
  extern __shared__ float scale[];  // then bias
  const int64_t row = blockIdx.x;
  float* bias = scale + shape.channels_per_group();
  stage(scale, shape, row, call.scale, call.parameter_type, 1.0f);
  stage(bias, shape, row, call.bias, call.parameter_type, 0.0f);
  const GroupAverages average(call, planes, row);
  const float mean = call.mean[row], rstd = call.rstd[row];
  const int64_t start = group_start(shape, row);
  const T *x = static_cast<const T*>(call.x) + start, *dy = static_cast<const T*>(call.dy) + start;
  T* dx = static_cast<T*>(call.dx) + start;
  for_group<n>(shape, [&](int64_t at, uint32_t channel) {
    Vector<T, n> values = load_vector<n>(x + at);
    const Vector<T, n> grads = load_vector<n>(dy + at);
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const float xhat = (widen(values.at[i]) - mean) * rstd, factor = scale[channel + i];
      const float g = factor * activation_grad(widen(grads.at[i]), xhat * factor + bias[channel + i], call.activation);
      values.at[i] = narrow<T>(rstd * (g - average.g - xhat * average.g_xhat));
    }
    store_vector(dx + at, values);
  });
}

// Calls body with an integral constant: the elements of the widest access that runs of a group fall into.
template <typename T, typename Body>
void with_access(const GroupShape& shape, Body body) {
  constexpr int widest = vector_length<T>;
  const int64_t run = shape.channels_per_group();
  if (run % widest == 0) return body(std::integral_constant<int, widest>());
  if (run % 2 == 0) return body(std::integral_constant<int, 2>());
  body(std::integral_constant<int, 1>());
}

}  // namespace

cudaError_t group_norm_channels_last(const GroupNormCall& call, cudaStream_t stream) {
  if (cudaError_t error = group_norm_in_rings(call, stream); error != cudaErrorNotSupported) return error;
  if (cudaError_t error = group_norm_in_slabs(call, stream); error != cudaErrorNotSupported) return error;
  return with_f32_math(call.x_type, [&]<typename T>(T*) {
    with_access<T>(call.shape, [&](auto n) {
      const int threads = threads_for_row(call.shape.channels_per_group() * call.shape.inner / n);
      const size_t shared_bytes = 2 * static_cast<size_t>(call.shape.channels_per_group()) * sizeof(float);
      group_norm_kernel<T, n><<<static_cast<unsigned>(call.shape.rows()), threads, shared_bytes, stream>>>(call);
    });
  });
}

cudaError_t group_dx_channels_last(const GroupNormGradCall& call, GradSums* planes, cudaStream_t stream) {
  const GroupShape& shape = call.shape;
  if (cudaError_t error = group_dx_in_rings(call, planes, stream); error != cudaErrorNotSupported) return error;
  if (cudaError_t error = group_dx_in_slabs(call, planes, stream); error != cudaErrorNotSupported) return error;
  return with_f32_math(call.x_type, [&]<typename T>(T*) {
    const auto tiles = static_cast<unsigned>(shape.batch * divide_up(shape.channels, warp_threads));
    channel_sums_kernel<T><<<tiles, dim3(warp_threads, tile_rows), 0, stream>>>(call, planes);
    with_access<T>(shape, [&](auto n) {
      const int threads = threads_for_row(shape.channels_per_group() * shape.inner / n);
      const size_t shared_bytes = 2 * static_cast<size_t>(shape.channels_per_group()) * sizeof(float);
      group_dx_kernel<T, n><<<static_cast<unsigned>(shape.rows()), threads, shared_bytes, stream>>>(call, planes);
    });
  });
}

}  // namespace plimsoll::cuda
