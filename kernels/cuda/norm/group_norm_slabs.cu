#include "kernels/cuda/norm/channel_tiles.cuh"
#include "kernels/cuda/norm/group_norm.cuh"

// Serves group_norm and group_norm_grad with channels last, x [batch, inner, channels], where samples are many. A group
// is a run of neighbouring channels at every position, and a block makes a slab of a sample: some whole groups, whose
// rows are wide enough for whole sectors of memory. Its elements wait in shared memory, if they fit, from the
// statistics until they are normalised, and are read again otherwise. Backward does the same with x and dy, in one
// launch.

namespace plimsoll::cuda {
namespace {

constexpr int slab_threads = 512, max_slab_channels = 512;

struct Slab {
  int channels = 0;       // 0: there is none
  int across, down;       // threads: accesses of a row, rows at a time
  size_t kept_bytes = 0;  // of shared memory; 0: elements are read again

  int64_t per_sample(const GroupShape& shape) const { return shape.channels / channels; }
  dim3 block() const { return dim3(static_cast<unsigned>(across), static_cast<unsigned>(down)); }
};

// Rows of at least 64 bytes, or else of 32, where these fit the shared memory; wider ones where positions are few.
template <typename T>
Slab choose_slab(const GroupShape& shape, int tensors) {
  constexpr int n = vector_length<T>;
  constexpr int64_t wide_bytes = 64, least_bytes = 32, most_kept = int64_t{100} << 10, least_accesses = 512;
  constexpr int64_t least_slabs = 100;  // of all samples
  Slab best;
  if (shape.inner == 0) return best;  // slabs read their groups' first elements
  for (int64_t groups = 1; groups <= shape.groups; ++groups) {
    const int64_t channels = groups * shape.channels_per_group(), row_bytes = channels * int64_t{sizeof(T)};
    if (shape.groups % groups != 0 || channels % n != 0 || row_bytes < least_bytes) continue;
    if (channels > max_slab_channels || shape.batch * (shape.groups / groups) < least_slabs) break;
    const int64_t bytes = tensors * row_bytes * shape.inner;
    const bool keeps = bytes <= most_kept;
    if (best.channels > 0 && best.kept_bytes > 0 && !keeps) break;
    best.channels = static_cast<int>(channels);
    best.across = best.channels / n;
    best.down = 1;
    while (2 * best.down * best.across <= slab_threads && best.down < shape.inner) best.down *= 2;
    const int64_t rounds = divide_up(shape.inner, int64_t{best.down});
    best.kept_bytes = keeps ? static_cast<size_t>(tensors * rounds * best.down * row_bytes) : 0;
    if (row_bytes >= wide_bytes && best.across * shape.inner >= least_accesses) break;
  }
  return best;
}

// A block's slab. Channels of the slab count from 0, and `own` is the first of a thread's accesses.
template <int n>
struct SlabPlace {
  int64_t sample;
  int first_channel, first_group, run, channels, own, thread, threads;

  __device__ SlabPlace(const GroupShape& shape, int slab_channels)
      : run(static_cast<int>(shape.channels_per_group())),
        channels(slab_channels),
        own(static_cast<int>(threadIdx.x) * n),
        thread(static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x)),
        threads(static_cast<int>(blockDim.x * blockDim.y)) {
    const auto slabs = static_cast<uint32_t>(shape.channels) / static_cast<uint32_t>(slab_channels);
    sample = blockIdx.x / slabs;
    first_channel = static_cast<int>(blockIdx.x % slabs) * slab_channels;
    first_group = first_channel / run;
  }
  // Of the thread's access at position 0.
  __device__ int64_t offset(const GroupShape& shape) const {
    return sample * shape.inner * shape.channels + first_channel + own;
  }
  // visit(channel) and visit(group, its first channel), by a thread each; then the block goes on.
  template <typename Visit>
  __device__ void for_channels(Visit visit) const {
    for (int c = thread; c < channels; c += threads) visit(c);
    __syncthreads();
  }
  template <typename Visit>
  __device__ void for_groups(Visit visit) const {
    for (int g = thread; g < channels / run; g += threads) visit(g, g * run);
    __syncthreads();
  }
  __device__ void load(float (&to)[n], const float* of_channels) const {
#pragma unroll
    for (int i = 0; i < n; ++i) to[i] = of_channels[own + i];
  }
};

// Where the thread's element of that position waits: a row of all threads' words for each round.
__device__ inline uint4* kept_at(uint4* kept, int64_t position, int tensor, int tensors) {
  const unsigned round = static_cast<unsigned>(position) / blockDim.y;
  const int threads = static_cast<int>(blockDim.x * blockDim.y);
  return kept + (static_cast<int>(round) * tensors + tensor) * threads +
         static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
}

// Adds up what threads have of each channel; `totals` has them, by channel of the slab, when the block goes on.
template <int n>
__device__ void add_up(GradSums (&sums)[n], GradSums* totals) {
  combine_down<slab_threads>(sums, Add());
  if (threadIdx.y == 0)
#pragma unroll
    for (int i = 0; i < n; ++i) totals[threadIdx.x * n + i] = sums[i];
  __syncthreads();
}

// Differences are taken from a group's first element, which is one of the elements, so that little cancels. A pair is
// first the sum of differences and of their squares, then the mean and rstd of a group.
template <typename T>
__global__ void __launch_bounds__(slab_threads) slab_norm_kernel(GroupNormCall call, int slab_channels, bool keeps) {
  constexpr int n = vector_length<T>;
  extern __shared__ uint4 kept[];
  __shared__ GradSums totals[max_slab_channels];
  __shared__ float of_means[max_slab_channels], of_factors[max_slab_channels], of_offsets[max_slab_channels];
  const GroupShape& shape = call.shape;
  const SlabPlace<n> place(shape, slab_channels);
  const int64_t start = place.offset(shape);
  const T* x = static_cast<const T*>(call.x) + start;
  const T* slab = x - place.own;
  place.for_channels([&](int c) { of_means[c] = widen(slab[c / place.run * place.run]); });
  float means[n];
  place.load(means, of_means);
  GradSums sums[n]{};
#pragma unroll 4
  for (int64_t p = threadIdx.y; p < shape.inner; p += blockDim.y) {
    const Vector<T, n> values = load_vector<n>(x + p * shape.channels);
    if (keeps) memcpy(kept_at(kept, p, 0, 1), &values, sizeof values);
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const float difference = widen(values.at[i]) - means[i];
      sums[i] = sums[i] + GradSums{difference, difference * difference};
    }
  }
  add_up(sums, totals);
  place.for_groups([&](int group, int first) {
    GradSums sum{0, 0};
    for (int c = first; c < first + place.run; ++c) sum = sum + totals[c];
    const float count = static_cast<float>(place.run) * static_cast<float>(shape.inner), shift = sum.dy / count;
    const float mean = of_means[first] + shift;
    const float rstd = rsqrtf(fmaxf(0.0f, sum.dy_xhat / count - shift * shift) + call.eps);
    const int64_t at = place.sample * shape.groups + place.first_group + group;
    call.mean[at] = mean;
    call.rstd[at] = rstd;
    totals[first] = {mean, rstd};
  });
  place.for_channels([&](int c) {
    const GradSums of_group = totals[c / place.run * place.run];
    const int channel = place.first_channel + c;
    of_means[c] = of_group.dy;
    of_factors[c] = of_group.dy_xhat * parameter_at(call.scale, call.parameter_type, channel, 1.0f);
    of_offsets[c] = parameter_at(call.bias, call.parameter_type, channel, 0.0f);
  });
  float factors[n], offsets[n];
  place.load(means, of_means);
  place.load(factors, of_factors);
  place.load(offsets, of_offsets);
  T* y = static_cast<T*>(call.y) + start;
#pragma unroll 4
  for (int64_t p = threadIdx.y; p < shape.inner; p += blockDim.y) {
    Vector<T, n> values;
    if (keeps)
      memcpy(&values, kept_at(kept, p, 0, 1), sizeof values);
    else
      values = load_vector<n>(x + p * shape.channels);
#pragma unroll
    for (int i = 0; i < n; ++i) values.at[i] = narrow<T>((widen(values.at[i]) - means[i]) * factors[i] + offsets[i]);
    store_vector(y + p * shape.channels, values);
  }
}

// dx = rstd * (g - average_g - xhat * average_g_xhat), with g = dy * scale, has three factors for each channel. A pair
// is first the sums over positions, then the averages of a group times its rstd, once and twice.
template <typename T>
__global__ void __launch_bounds__(slab_threads)
    slab_dx_kernel(GroupNormGradCall call, GradSums* planes, int slab_channels, bool keeps) {
  constexpr int n = vector_length<T>;
  extern __shared__ uint4 kept[];
  __shared__ GradSums totals[max_slab_channels];
  __shared__ float of_means[max_slab_channels], of_rstds[max_slab_channels], of_scales[max_slab_channels];
  const GroupShape& shape = call.shape;
  const SlabPlace<n> place(shape, slab_channels);
  const int64_t start = place.offset(shape), groups = place.sample * shape.groups + place.first_group;
  const T *x = static_cast<const T*>(call.x) + start, *dy = static_cast<const T*>(call.dy) + start;
  place.for_channels([&](int c) {
    of_means[c] = call.mean[groups + c / place.run];
    of_rstds[c] = call.rstd[groups + c / place.run];
    of_scales[c] = parameter_at(call.scale, call.parameter_type, place.first_channel + c, 1.0f);
  });
  float means[n], rstds[n];
  place.load(means, of_means);
  place.load(rstds, of_rstds);
  GradSums sums[n]{};
#pragma unroll 4
  for (int64_t p = threadIdx.y; p < shape.inner; p += blockDim.y) {
    const Vector<T, n> values = load_vector<n>(x + p * shape.channels), grads = load_vector<n>(dy + p * shape.channels);
    if (keeps) {
      memcpy(kept_at(kept, p, 0, 2), &values, sizeof values);
      memcpy(kept_at(kept, p, 1, 2), &grads, sizeof grads);
    }
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const float grad = widen(grads.at[i]);
      sums[i] = sums[i] + GradSums{grad, grad * (widen(values.at[i]) - means[i]) * rstds[i]};
    }
  }
  add_up(sums, totals);
  GradSums* const of_sample = planes + place.sample * shape.channels + place.first_channel;
  place.for_channels([&](int c) { of_sample[c] = totals[c]; });
  place.for_groups([&](int, int first) {
    GradSums sum{0, 0};
    for (int c = first; c < first + place.run; ++c)
      sum = sum + GradSums{of_scales[c] * totals[c].dy, of_scales[c] * totals[c].dy_xhat};
    const float count = static_cast<float>(place.run) * static_cast<float>(shape.inner), rstd = of_rstds[first];
    totals[first] = {rstd * sum.dy / count, rstd * rstd * sum.dy_xhat / count};
  });
  float scales[n];
  GradSums averages[n];
  place.load(scales, of_scales);
#pragma unroll
  for (int i = 0; i < n; ++i) {
    scales[i] *= rstds[i];
    averages[i] = totals[(place.own + i) / place.run * place.run];
  }
  T* dx = static_cast<T*>(call.dx) + start;
#pragma unroll 4
  for (int64_t p = threadIdx.y; p < shape.inner; p += blockDim.y) {
    Vector<T, n> values, grads;
    if (keeps) {
      memcpy(&values, kept_at(kept, p, 0, 2), sizeof values);
      memcpy(&grads, kept_at(kept, p, 1, 2), sizeof grads);
    } else {
      values = load_vector<n>(x + p * shape.channels);
      grads = load_vector<n>(dy + p * shape.channels);
    }
#pragma unroll
    for (int i = 0; i < n; ++i)
      values.at[i] = narrow<T>(widen(grads.at[i]) * scales[i] - averages[i].dy -
                               (widen(values.at[i]) - means[i]) * averages[i].dy_xhat);
    store_vector(dx + p * shape.channels, values);
  }
}

template <typename Kernel, typename... Arguments>
cudaError_t launch_slabs(Kernel* kernel, const Slab& slab, const GroupShape& shape, cudaStream_t stream,
                         Arguments... arguments) {
  if (cudaError_t error =
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(slab.kept_bytes));
      error != cudaSuccess)
    return error;
  const auto blocks = static_cast<unsigned>(shape.batch * slab.per_sample(shape));
  kernel<<<blocks, slab.block(), slab.kept_bytes, stream>>>(arguments..., slab.channels, slab.kept_bytes > 0);
  return cudaGetLastError();
}

}  // namespace

cudaError_t group_norm_in_slabs(const GroupNormCall& call, cudaStream_t stream) {
  return with_f32_math(call.x_type, [&]<typename T>(T*) {
    const Slab slab = choose_slab<T>(call.shape, 1);
    return slab.channels == 0 ? cudaErrorNotSupported
                              : launch_slabs(slab_norm_kernel<T>, slab, call.shape, stream, call);
  });
}

cudaError_t group_dx_in_slabs(const GroupNormGradCall& call, GradSums* planes, cudaStream_t stream) {
  return with_f32_math(call.x_type, [&]<typename T>(T*) {
    const Slab slab = choose_slab<T>(call.shape, 2);
    return slab.channels == 0 ? cudaErrorNotSupported
                              : launch_slabs(slab_dx_kernel<T>, slab, call.shape, stream, call, planes);
  });
}

}  // namespace plimsoll::cuda
