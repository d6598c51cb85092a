#include "kernels/cuda/norm/channel_tiles.cuh"
#include "kernels/cuda/norm/group_norm.cuh"

// Serves group_norm and group_norm_grad, x [batch, channels, inner]. x is read twice and y written once; backward reads
// x and dy twice. The channels of a group are a row of consecutive elements, which a block walks over: rows are read
// again from the cache. Backward first sums dy and dy * xhat over each plane of a channel; groups and parameters need
// nothing else.

namespace plimsoll::cuda {
namespace {

template <typename T>
__global__ void __launch_bounds__(1024) group_norm_kernel(GroupNormCall call) {
  const GroupShape& shape = call.shape;
  const int64_t row = blockIdx.x, width = shape.channels_per_group() * shape.inner;
  const int64_t first_channel = row % shape.groups * shape.channels_per_group();
  const int t = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const T* x = static_cast<const T*>(call.x) + row * width;
  T* y = static_cast<T*>(call.y) + row * width;
  const auto [mean, rstd] = block_statistics(static_cast<float>(width), call.eps, [&](auto visit) {
    for_row(x, width, t, threads, [&](int64_t, const auto& values) { visit(values); });
  });
  if (t == 0) {
    call.mean[row] = mean;
    call.rstd[row] = rstd;
  }
  for (int64_t c = 0; c < shape.channels_per_group(); ++c) {
    const float factor = rstd * parameter_at(call.scale, call.parameter_type, first_channel + c, 1.0f);
    const float offset = parameter_at(call.bias, call.parameter_type, first_channel + c, 0.0f);
    for_row(x + c * shape.inner, shape.inner, t, threads, [&](int64_t at, auto values) {
      for (T& value : values.at) value = narrow<T>(activated((widen(value) - mean) * factor + offset, call.activation));
      store_vector(y + c * shape.inner + at, values);
    });
  }
}

// planes [batch, channels], one block each.
template <typename T>
__global__ void __launch_bounds__(256) plane_sums_kernel(GroupNormGradCall call, GradSums* planes) {
  const GroupShape& shape = call.shape;
  const int64_t plane = blockIdx.x, group = plane / shape.channels_per_group();
  const float mean = call.mean[group], rstd = call.rstd[group];
  const NormChannel channel(call, plane % shape.channels, rstd);
  const T* dy = static_cast<const T*>(call.dy) + plane * shape.inner;
  const auto t = static_cast<int>(threadIdx.x);
  GradSums sums{0, 0};
  for_row(static_cast<const T*>(call.x) + plane * shape.inner, shape.inner, t, 256,
          [&](int64_t at, const auto& values) {
            constexpr int n = sizeof(values) / sizeof(T);
            const Vector<T, n> grads = load_vector<n>(dy + at);
            for (int i = 0; i < n; ++i) {
              const float difference = widen(values.at[i]) - mean;
              const float grad = channel.grad(widen(grads.at[i]), difference, call.activation);
              sums = sums + GradSums{grad, grad * difference * rstd};
            }
          });
  sums = block_reduce(sums, Add(), GradSums{0, 0});
  if (t == 0) planes[plane] = sums;
}

// A block a group.
template <typename T>
__global__ void __launch_bounds__(1024) group_dx_kernel(GroupNormGradCall call, const GradSums* planes) {
  const GroupShape& shape = call.shape;
  const int64_t row = blockIdx.x, channels = shape.channels_per_group(), first_channel = row % shape.groups * channels;
  const int t = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const GroupAverages average(call, planes, row);
  const float mean = call.mean[row], rstd = call.rstd[row];
  for (int64_t c = 0; c < channels; ++c) {
    const NormChannel channel(call, first_channel + c, rstd);
    const int64_t start = (row * channels + c) * shape.inner;
    const T* dy = static_cast<const T*>(call.dy) + start;
    T* dx = static_cast<T*>(call.dx) + start;
    for_row(static_cast<const T*>(call.x) + start, shape.inner, t, threads, [&](int64_t at, auto values) {
      constexpr int n = sizeof(values) / sizeof(T);
      const Vector<T, n> grads = load_vector<n>(dy + at);
      for (int i = 0; i < n; ++i) {
        const float difference = widen(values.at[i]) - mean, xhat = difference * rstd;
        const float grad = channel.grad(widen(grads.at[i]), difference, call.activation);
        values.at[i] = narrow<T>(grad * channel.factor - rstd * (average.g + xhat * average.g_xhat));
      }
      store_vector(dx + at, values);
    });
  }
}

// On merge_grid.
__global__ void __launch_bounds__(merge_across* merge_down)
    parameter_grads_kernel(GroupNormGradCall call, const GradSums* planes) {
  const int64_t channels = call.shape.channels, c = int64_t{blockIdx.x} * merge_across + threadIdx.x;
  const GradSums sums = combine_parts(planes, call.shape.batch, channels, c, Add(), GradSums{0, 0});
  if (threadIdx.y > 0 || c >= channels) return;
  if (call.dscale) store_any(call.dscale, call.parameter_type, c, static_cast<double>(sums.dy_xhat));
  if (call.dbias) store_any(call.dbias, call.parameter_type, c, static_cast<double>(sums.dy));
}

cudaError_t group_dx(const GroupNormGradCall& call, GradSums* planes, cudaStream_t stream) {
  const GroupShape& shape = call.shape;
  return with_f32_math(call.x_type, [&]<typename T>(T*) {
    plane_sums_kernel<T><<<static_cast<unsigned>(shape.batch * shape.channels), 256, 0, stream>>>(call, planes);
    const int threads = threads_for_row(shape.channels_per_group() * shape.inner / vector_length<T>);
    group_dx_kernel<T><<<static_cast<unsigned>(shape.rows()), threads, 0, stream>>>(call, planes);
  });
}

}  // namespace

cudaError_t group_norm(const GroupNormCall& call, cudaStream_t stream) {
  if (call.shape.rows() == 0) return cudaSuccess;
  if (call.shape.channels_last) return group_norm_channels_last(call, stream);
  return with_f32_math(call.x_type, [&]<typename T>(T*) {
    const int threads = threads_for_row(call.shape.channels_per_group() * call.shape.inner / vector_length<T>);
    group_norm_kernel<T><<<static_cast<unsigned>(call.shape.rows()), threads, 0, stream>>>(call);
  });
}

cudaError_t group_norm_grad(const GroupNormGradCall& call, cudaStream_t stream) {
  const GroupShape& shape = call.shape;
  if (shape.channels == 0) return cudaSuccess;
  auto* planes = reinterpret_cast<GradSums*>(call.workspace);
  if (shape.batch > 0)
    if (cudaError_t error =
            shape.channels_last ? group_dx_channels_last(call, planes, stream) : group_dx(call, planes, stream))
      return error;
  return parameter_grads(call, planes, stream);
}

cudaError_t parameter_grads(const GroupNormGradCall& call, const GradSums* planes, cudaStream_t stream) {
  if (!call.dscale && !call.dbias) return cudaGetLastError();
  const TileGrid merging = merge_grid(call.shape.channels);
  parameter_grads_kernel<<<merging.grid, merging.block, 0, stream>>>(call, planes);
  return cudaGetLastError();
}

}  // namespace plimsoll::cuda
