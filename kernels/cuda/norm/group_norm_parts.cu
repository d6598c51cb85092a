#include "kernels/cuda/norm/group_parts.cuh"
#include "kernels/cuda/norm/moments.cuh"

// Serves group_norm where groups are few and large, x [batch, channels, inner] or [batch, inner, channels]. Many blocks
// each take the moments of a part of a group's positions, one block merges those of a group in a fixed order, and many
// normalise. x is read twice and y written once; the second reading begins where the first one ended, with what is
// still in the cache.

namespace plimsoll::cuda {
namespace {

constexpr int moments_in_flight = 8, in_flight = 4, max_merging_threads = 512;

// Differences are taken from a channel's first element of the part, which is one of the elements, so that little
// cancels; a pair is their sum and that of their squares.
template <typename T, int n>
__global__ void __launch_bounds__(block_threads, resident_blocks)
    part_moments_kernel(Moments* partials, const T* x, GroupParts p) {
  const PlaceInPart<n> place(p);
  GradSums sums[n] = {};
  float pivots[n] = {};
  if (place.is_inside && place.rows > 0) {
    const Packed<T, n> first = load_packed<n>(x + place.at(blockIdx.y * blockDim.y));
#pragma unroll
    for (int i = 0; i < n; ++i) pivots[i] = first[p.channels == 1 ? 0 : i];
    const T* from = x + place.at(place.row);
    for (uint32_t row = place.row; row < place.rows; row += moments_in_flight * place.step) {
      Packed<T, n> loaded[moments_in_flight];
#pragma unroll
      for (int k = 0; k < moments_in_flight; ++k, from += place.step * place.width)
        if (row + k * place.step < place.rows) loaded[k] = load_packed<n>(from);
#pragma unroll
      for (int k = 0; k < moments_in_flight; ++k) {
        if (row + k * place.step >= place.rows) break;
#pragma unroll
        for (int i = 0; i < n; ++i) {
          const float difference = loaded[k][i] - pivots[i];
          sums[i] = sums[i] + GradSums{difference, difference * difference};
        }
      }
    }
  }
  const auto count = place.rows > 0 ? static_cast<float>(place.all_rows() * (p.channels == 1 ? n : 1)) : 0.0f;
  add_up_part(p, place, sums, [&](int i, const GradSums& sum) {
    partials[place.partial(p) + i] = PivotSums{pivots[i], sum.dy, sum.dy_xhat}.moments(count);
  });
}

// A block a group.
__global__ void __launch_bounds__(max_merging_threads)
    merge_group_moments_kernel(GroupNormCall call, GroupParts p, const Moments* partials) {
  const GroupShape& shape = call.shape;
  const int64_t group = blockIdx.x;
  const auto run = static_cast<uint32_t>(shape.channels_per_group());
  const auto all = static_cast<uint32_t>(p.partials()) * run;
  Moments total{0, 0, 0};
#pragma unroll 4
  for (uint32_t i = threadIdx.x; i < all; i += blockDim.x)
    total = Merge()(total, partials[partial_of(p, shape, group, i % run, i / run)]);
  total = block_reduce(total, Merge(), Moments{0, 0, 0});
  if (threadIdx.x != 0) return;
  call.mean[group] = total.mean;
  call.rstd[group] = 1.0f / sqrtf(total.squares / total.count + call.eps);
}

// Rows are counted from the last one.
template <typename T, int n, NormActivation activation>
__global__ void __launch_bounds__(block_threads, resident_blocks)
    normalise_parts_kernel(GroupNormCall call, GroupParts p) {
  const PlaceInPart<n> place(p);
  if (!place.is_inside || place.row >= place.rows) return;
  float means[n], factors[n], offsets[n];
  place.for_channels(p, call.shape, [&](int i, uint32_t channel, int64_t group) {
    const float mean = call.mean[group];
    factors[i] = call.rstd[group] * parameter_at(call.scale, call.parameter_type, channel, 1.0f);
    means[i] = is_short<T> ? 0.0f : mean;
    offsets[i] = parameter_at(call.bias, call.parameter_type, channel, 0.0f) - (is_short<T> ? mean * factors[i] : 0.0f);
  });
  const int64_t down = place.step * place.width, last = place.at(place.rows - 1 - place.row);
  const T* x = static_cast<const T*>(call.x) + last;
  T* y = static_cast<T*>(call.y) + last;
  for (uint32_t row = place.row; row < place.rows; row += in_flight * place.step) {
    Packed<T, n> values[in_flight];
#pragma unroll
    for (int k = 0; k < in_flight; ++k)
      if (row + k * place.step < place.rows) values[k] = load_packed<n>(x - k * down);
#pragma unroll
    for (int k = 0; k < in_flight; ++k) {
      if (row + k * place.step >= place.rows) break;
      float results[n];
#pragma unroll
      for (int i = 0; i < n; ++i)
        results[i] = quick_activated<T>((values[k][i] - means[i]) * factors[i] + offsets[i], activation);
      store_packed(y - k * down, pack<T>(results));
    }
    x -= in_flight * down;
    y -= in_flight * down;
  }
}

// Threads that merge so many partials of a group.
int merging_threads(int64_t partials) {
  int threads = warp_threads;
  while (threads < max_merging_threads && 4 * threads < partials) threads *= 2;
  return threads;
}

}  // namespace

cudaError_t group_norm_in_parts(const GroupNormCall& call, cudaStream_t stream) {
  const GroupShape& shape = call.shape;
  if (shape.rows() == 0) return cudaSuccess;
  return with_f32_math(call.x_type, [&]<typename T>(T*) {
    const GroupParts p(channels_of(shape), sizeof(T), group_part_bytes);
    const TileGrid launch = grid_of(p);
    auto* partials = reinterpret_cast<Moments*>(call.workspace);
    with_part_kernel<T, group_part_bytes>(p, call.activation, [&](auto n, auto activation) {
      part_moments_kernel<T, n><<<launch.grid, launch.block, 0, stream>>>(partials, static_cast<const T*>(call.x), p);
      merge_group_moments_kernel<<<static_cast<unsigned>(shape.rows()),
                                   merging_threads(p.partials() * shape.channels_per_group()), 0, stream>>>(call, p,
                                                                                                            partials);
      normalise_parts_kernel<T, n, activation><<<launch.grid, launch.block, 0, stream>>>(call, p);
    });
  });
}

}  // namespace plimsoll::cuda
