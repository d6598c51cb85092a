#include "kernels/cuda/norm/group_parts.cuh"

// Serves group_norm_grad where groups are few and large. Many blocks each sum dy and dy * xhat over a part of a group's
// positions, by channel; one block adds up those of a group in a fixed order and makes its averages, and many blocks
// make dx. x and dy are read twice and dx written once, the second time from the last row to the first. The parameters
// need nothing but the sums.

namespace plimsoll::cuda {
namespace {

constexpr int sums_in_flight = 8, in_flight = 6;

template <typename T, int n, NormActivation activation>
__global__ void __launch_bounds__(block_threads, resident_blocks)
    part_sums_kernel(GroupNormGradCall call, GroupParts p, GradSums* partials) {
  const PlaceInPart<n> place(p);
  GradSums sums[n] = {};
  if (place.is_inside && place.row < place.rows) {
    float means[n], factors[n], offsets[n];
    place.for_channels(p, call.shape, [&](int i, uint32_t c, int64_t group) {
      means[i] = call.mean[group];
      if (activation == NormActivation::None) return;
      const NormChannel channel(call, c, call.rstd[group]);
      factors[i] = channel.factor, offsets[i] = channel.offset;
    });
    const int64_t down = place.step * place.width;
    const T* x = static_cast<const T*>(call.x) + place.at(place.row);
    const T* dy = static_cast<const T*>(call.dy) + place.at(place.row);
    for (uint32_t row = place.row; row < place.rows; row += sums_in_flight * place.step) {
      Packed<T, n> values[sums_in_flight], grads[sums_in_flight];
#pragma unroll
      for (int k = 0; k < sums_in_flight; ++k, x += down, dy += down)
        if (row + k * place.step < place.rows) values[k] = load_packed<n>(x), grads[k] = load_packed<n>(dy);
#pragma unroll
      for (int k = 0; k < sums_in_flight; ++k) {
        if (row + k * place.step >= place.rows) break;
#pragma unroll
        for (int i = 0; i < n; ++i) {
          const float difference = values[k][i] - means[i];
          float grad = grads[k][i];
          if (activation != NormActivation::None)
            grad = quick_activation_grad<T>(grad, difference * factors[i] + offsets[i], activation);
          sums[i] = sums[i] + GradSums{grad, grad * difference};
        }
      }
    }
  }
  add_up_part(p, place, sums, [&](int i, const GradSums& sum) { partials[place.partial(p) + i] = sum; });
}

constexpr int merging_across = 256;

// A block a group, threads x for channels and y for partials. The averages are those of GroupAverages times rstd, the
// second one twice.
__global__ void __launch_bounds__(1024) merge_group_sums_kernel(GroupNormGradCall call, GroupParts p, GradSums* planes,
                                                                GradSums* averages, const GradSums* partials) {
  __shared__ alignas(sizeof(GradSums)) GradSums of_columns[merging_across];
  const GroupShape& shape = call.shape;
  const int64_t group = blockIdx.x, run = shape.channels_per_group();
  const int64_t count = p.partials();
  const int64_t first_channel = group % shape.groups * run;
  const float rstd = call.rstd[group];
  GradSums weighted{0, 0};
  for (int64_t first = 0; first < run; first += blockDim.x) {
    const int64_t c = first + threadIdx.x;
    GradSums sums[1] = {};
    if (c < run)
#pragma unroll 4
      for (int64_t k = threadIdx.y; k < count; k += blockDim.y)
        sums[0] = sums[0] + partials[partial_of(p, shape, group, c, k)];
    combine_down<1024>(sums, Add());
    if (threadIdx.y != 0 || c >= run) continue;
    const GradSums total{sums[0].dy, sums[0].dy_xhat * rstd};
    planes[group * run + c] = total;
    const float scale = parameter_at(call.scale, call.parameter_type, first_channel + c, 1.0f);
    weighted = weighted + GradSums{scale * total.dy, scale * total.dy_xhat};
  }
  if (threadIdx.y == 0) of_columns[threadIdx.x] = weighted;
  __syncthreads();
  const auto thread = threadIdx.y * blockDim.x + threadIdx.x;
  if (thread >= warp_threads) return;
  weighted = {0, 0};
  for (unsigned column = thread; column < blockDim.x; column += warp_threads) weighted = weighted + of_columns[column];
  weighted = warp_reduce(weighted, Add());
  const float factor = rstd / (static_cast<float>(run) * static_cast<float>(shape.inner));
  if (thread == 0) averages[group] = {weighted.dy * factor, weighted.dy_xhat * factor * rstd};
}

// dx = rstd * (g - average_g - xhat * average_g_xhat), with g = dy * scale, has three factors for each channel.
template <typename T, int n, NormActivation activation>
__global__ void __launch_bounds__(block_threads, resident_blocks)
    dx_parts_kernel(GroupNormGradCall call, GroupParts p, const GradSums* averages) {
  const PlaceInPart<n> place(p);
  if (!place.is_inside || place.row >= place.rows) return;
  float means[n], factors[n], offsets[n];
  GradSums of_group[n];
  place.for_channels(p, call.shape, [&](int i, uint32_t c, int64_t group) {
    const NormChannel channel(call, c, call.rstd[group]);
    means[i] = call.mean[group];
    factors[i] = channel.factor, offsets[i] = channel.offset;
    of_group[i] = averages[group];
  });
  const int64_t down = place.step * place.width, last = place.at(place.rows - 1 - place.row);
  const T *x = static_cast<const T*>(call.x) + last, *dy = static_cast<const T*>(call.dy) + last;
  T* dx = static_cast<T*>(call.dx) + last;
  for (uint32_t row = place.row; row < place.rows; row += in_flight * place.step) {
    Packed<T, n> values[in_flight], grads[in_flight];
#pragma unroll
    for (int k = 0; k < in_flight; ++k)
      if (row + k * place.step < place.rows)
        values[k] = load_packed<n>(x - k * down), grads[k] = load_packed<n>(dy - k * down);
#pragma unroll
    for (int k = 0; k < in_flight; ++k) {
      if (row + k * place.step >= place.rows) break;
      float results[n];
#pragma unroll
      for (int i = 0; i < n; ++i) {
        const float difference = values[k][i] - means[i];
        const float grad = quick_activation_grad<T>(grads[k][i], difference * factors[i] + offsets[i], activation);
        results[i] = grad * factors[i] - of_group[i].dy - difference * of_group[i].dy_xhat;
      }
      store_packed(dx - k * down, pack<T>(results));
    }
    x -= in_flight * down;
    dy -= in_flight * down;
    dx -= in_flight * down;
  }
}

dim3 merging_block(int64_t run, int64_t partials) {
  unsigned across = 1, down = 1;
  while (across < merging_across && across < run) across *= 2;
  while (across * down < 1024 && (across * down < warp_threads || 4 * down < partials)) down *= 2;
  return {across, down};
}

}  // namespace

cudaError_t group_norm_grad_in_parts(const GroupNormGradCall& call, cudaStream_t stream) {
  const GroupShape& shape = call.shape;
  if (shape.channels == 0) return cudaSuccess;
  auto* planes = reinterpret_cast<GradSums*>(call.workspace);
  if (shape.batch == 0) return parameter_grads(call, planes, stream);
  GradSums *averages = planes + shape.batch * shape.channels, *partials = averages + shape.rows();
  const cudaError_t error = with_f32_math(call.x_type, [&]<typename T>(T*) {
    const GroupParts p(channels_of(shape), sizeof(T), group_part_grad_bytes);
    const TileGrid launch = grid_of(p);
    with_part_kernel<T, group_part_grad_bytes>(p, call.activation, [&](auto n, auto activation) {
      part_sums_kernel<T, n, activation><<<launch.grid, launch.block, 0, stream>>>(call, p, partials);
      merge_group_sums_kernel<<<static_cast<unsigned>(shape.rows()),
                                merging_block(shape.channels_per_group(), p.partials()), 0, stream>>>(
          call, p, planes, averages, partials);
      dx_parts_kernel<T, n, activation><<<launch.grid, launch.block, 0, stream>>>(call, p, averages);
    });
  });
  return error != cudaSuccess ? error : parameter_grads(call, planes, stream);
}

}  // namespace plimsoll::cuda
