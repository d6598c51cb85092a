#include "kernels/cuda/common/block_cluster.cuh"
#include "kernels/cuda/common/card_attributes.h"
#include "kernels/cuda/common/warpgroup.cuh"
#include "kernels/cuda/norm/channel_tiles.cuh"
#include "kernels/cuda/norm/group_norm.cuh"
#include "kernels/cuda/norm/group_slabs.h"

// Serves group_norm and group_norm_grad with channels last, x [batch, inner, channels], where samples are many. A group
// is a run of neighbouring channels at every position, and a block makes a slab of a sample: some whole groups, whose
// rows are wide enough for whole sectors of memory. Its elements wait in shared memory, if they fit, from the
// statistics until they are normalised, and are read again otherwise. Backward does the same with x and dy, in one
// launch. On Hopper these are slabs that group_norm_rings.cu does not take, and a cluster of blocks shares one that is
// too large for one block's memory, or one of too few: each has some of the positions, and reads the others' sums.

namespace plimsoll::cuda {
namespace {

constexpr int slab_threads = GroupSlab::most_threads, max_slab_channels = GroupSlab::most_channels;

template <typename T>
GroupSlab choose_slab(const GroupShape& shape, int tensors) {
  const int64_t most_parts = is_hopper() ? most_slab_parts : 1;
  return {{shape.batch, shape.channels, shape.inner, true}, shape.groups, sizeof(T), tensors, most_parts};
}

// Where a block stands among those of its cluster.
__device__ inline int part_of_slab() {
  if constexpr (has_warpgroups) return block_of_cluster();
  return 0;
}
__device__ inline int parts_of_slab() {
  if constexpr (has_warpgroups) return blocks_of_cluster();
  return 1;
}

// A block's slab, or its part of one. Channels of the slab count from 0, positions from the block's first one, and
// `own` is the first of a thread's accesses.
template <int n>
struct SlabPlace {
  int64_t sample, first_position, positions;
  int first_channel, first_group, run, channels, own, thread, threads;

  __device__ SlabPlace(const GroupShape& shape, int slab_channels)
      : run(static_cast<int>(shape.channels_per_group())),
        channels(slab_channels),
        own(static_cast<int>(threadIdx.x) * n),
        thread(static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x)),
        threads(static_cast<int>(blockDim.x * blockDim.y)) {
    const auto slabs = static_cast<uint32_t>(shape.channels) / static_cast<uint32_t>(slab_channels);
    const auto parts = static_cast<uint32_t>(parts_of_slab()), slab = blockIdx.x / parts;
    const auto of_part = static_cast<int64_t>((static_cast<uint32_t>(shape.inner) + parts - 1) / parts);
    sample = slab / slabs;
    first_channel = static_cast<int>(slab % slabs) * slab_channels;
    first_group = first_channel / run;
    first_position = min(of_part * part_of_slab(), shape.inner);
    positions = min(of_part, shape.inner - first_position);
  }
  // Of the slab at the sample's first position, and of the thread's access at the block's.
  __device__ int64_t slab(const GroupShape& shape) const {
    return sample * shape.inner * shape.channels + first_channel;
  }
  __device__ int64_t offset(const GroupShape& shape) const {
    return slab(shape) + first_position * shape.channels + own;
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

// Where a thread's elements wait: a row of all threads' words for each of its positions and each tensor.
struct Kept {
  uint4* own;  // the thread's first one
  int step;    // words of a row

  __device__ Kept(uint4* kept, int thread, int threads) : own(kept + thread), step(threads) {}
  template <typename Values>
  __device__ void load(Values& values, int row) const {
    memcpy(&values, own + row * step, sizeof values);
  }
  template <typename Values>
  __device__ void store(const Values& values, int row) const {
    memcpy(own + row * step, &values, sizeof values);
  }
};

// What another block of the cluster has in its own `totals`.
__device__ inline GradSums totals_of(int block, const GradSums* totals) {
  GradSums sums;
  asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];"
               : "=f"(sums.dy), "=f"(sums.dy_xhat)
               : "r"(address_in(block, totals))
               : "memory");
  return sums;
}

// Adds up what threads have of each channel, of all blocks that share the slab; `totals` has them, by channel of the
// slab, when the block goes on.
template <int n>
__device__ void add_up(const SlabPlace<n>& place, GradSums (&sums)[n], GradSums* totals) {
  combine_down<slab_threads>(sums, Add());
  if (threadIdx.y == 0)
#pragma unroll
    for (int i = 0; i < n; ++i) totals[threadIdx.x * n + i] = sums[i];
  if constexpr (has_warpgroups) {
    if (blocks_of_cluster() > 1) {
      __shared__ GradSums of_cluster[max_slab_channels];
      __syncthreads();  // warps wait as a whole
      wait_for_cluster();
      for (int c = place.thread; c < place.channels; c += place.threads) {
        GradSums sum{0, 0};
        for (int block = 0; block < blocks_of_cluster(); ++block) sum = sum + totals_of(block, totals + c);
        of_cluster[c] = sum;
      }
      __syncthreads();
      wait_for_cluster();  // none writes its totals, or ends, before all have read them
      for (int c = place.thread; c < place.channels; c += place.threads) totals[c] = of_cluster[c];
    }
  }
  __syncthreads();
}

// Brings the thread's elements of all positions to where they wait, one tensor of several.
template <typename T>
__device__ void bring(const Kept& kept, const GroupShape& shape, int64_t positions, const T* from, int tensor,
                      int tensors) {
  int row = tensor;
  for (int64_t p = threadIdx.y; p < positions; p += blockDim.y, row += tensors)
    copy_async(kept.own + row * kept.step, from + p * shape.channels, true);
}

// visit(values, position): of a thread's elements, from where they wait or from memory.
template <bool keeps, typename T, typename Visit>
__device__ void for_positions(const Kept& kept, const GroupShape& shape, int64_t positions, const T* from,
                              Visit visit) {
  constexpr int n = vector_length<T>;
  int row = 0;
#pragma unroll 4
  for (int64_t p = threadIdx.y; p < positions; p += blockDim.y, ++row) {
    Vector<T, n> values;
    if constexpr (keeps)
      kept.load(values, row);
    else
      values = load_vector<n>(from + p * shape.channels);
    visit(values, p);
  }
}

// Differences are taken from a group's first element, which is one of the elements, so that little cancels. A pair is
// first the sum of differences and of their squares, then the mean and rstd of a group.
template <typename T, NormActivation activation, bool keeps>
__global__ void __launch_bounds__(slab_threads, 2) slab_norm_kernel(GroupNormCall call, int slab_channels) {
  constexpr int n = vector_length<T>;
  extern __shared__ uint4 words[];
  __shared__ alignas(sizeof(GradSums)) GradSums totals[max_slab_channels];
  __shared__ float of_means[max_slab_channels], of_factors[max_slab_channels], of_offsets[max_slab_channels];
  const GroupShape& shape = call.shape;
  const SlabPlace<n> place(shape, slab_channels);
  const Kept kept(words, place.thread, place.threads);
  const int64_t start = place.offset(shape);
  const T* x = static_cast<const T*>(call.x) + start;
  const T* slab = static_cast<const T*>(call.x) + place.slab(shape);
  if constexpr (keeps) bring(kept, shape, place.positions, x, 0, 1), commit_copies();
  place.for_channels([&](int c) { of_means[c] = widen(slab[c / place.run * place.run]); });
  float means[n];
  place.load(means, of_means);
  GradSums sums[n]{};
  if constexpr (keeps) wait_for_copies<0>();
  for_positions<keeps>(kept, shape, place.positions, x, [&](const Vector<T, n>& values, int64_t) {
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const float difference = widen(values.at[i]) - means[i];
      sums[i] = sums[i] + GradSums{difference, difference * difference};
    }
  });
  add_up(place, sums, totals);
  place.for_groups([&](int group, int first) {
    GradSums sum{0, 0};
    for (int c = first; c < first + place.run; ++c) sum = sum + totals[c];
    const float count = static_cast<float>(place.run) * static_cast<float>(shape.inner), shift = sum.dy / count;
    const float mean = of_means[first] + shift;
    const float rstd = rsqrtf(fmaxf(0.0f, sum.dy_xhat / count - shift * shift) + call.eps);
    const int64_t at = place.sample * shape.groups + place.first_group + group;
    if (part_of_slab() == 0) {
      call.mean[at] = mean;
      call.rstd[at] = rstd;
    }
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
  for_positions<keeps>(kept, shape, place.positions, x, [&](Vector<T, n> values, int64_t p) {
#pragma unroll
    for (int i = 0; i < n; ++i)
      values.at[i] = narrow<T>(activated((widen(values.at[i]) - means[i]) * factors[i] + offsets[i], activation));
    store_vector(y + p * shape.channels, values);
  });
}

// A thread's channels, for the gradient in front of the activation, which the norm's own gradient starts from.
template <NormActivation activation, int n>
struct Activation {
  float factors[n], offsets[n];

  __device__ void load(const SlabPlace<n>& place, const float* of_factors, const float* of_offsets) {
    if (activation == NormActivation::None) return;
    place.load(factors, of_factors);
    place.load(offsets, of_offsets);
  }
  // Of the thread's channel i, x being how far its element is from the mean.
  __device__ float grad(float dy, float x, int i) const {
    return activation == NormActivation::None ? dy : activation_grad(dy, x * factors[i] + offsets[i], activation);
  }
};

// dx = rstd * (g - average_g - xhat * average_g_xhat), with g = dy * scale, has three factors for each channel. A pair
// is first the sums over positions, then the averages of a group times its rstd, once and twice. Where elements wait,
// gradients behind the activation give way to those in front of it.
template <typename T, NormActivation activation, bool keeps>
__global__ void __launch_bounds__(slab_threads, keeps || activation == NormActivation::None ? 2 : 1)
    slab_dx_kernel(GroupNormGradCall call, GradSums* planes, int slab_channels) {
  constexpr int n = vector_length<T>;
  constexpr int rounds = !keeps ? 4 : activation == NormActivation::None ? 2 : 1;  // at once, within 64 registers
  extern __shared__ uint4 words[];
  __shared__ alignas(sizeof(GradSums)) GradSums totals[max_slab_channels];
  __shared__ float of_means[max_slab_channels], of_rstds[max_slab_channels], of_factors[max_slab_channels],
      of_offsets[max_slab_channels];
  const GroupShape& shape = call.shape;
  const SlabPlace<n> place(shape, slab_channels);
  const Kept kept(words, place.thread, place.threads);
  const int64_t start = place.offset(shape), groups = place.sample * shape.groups + place.first_group;
  const T *x = static_cast<const T*>(call.x) + start, *dy = static_cast<const T*>(call.dy) + start;
  if constexpr (keeps)
    bring(kept, shape, place.positions, x, 0, 2), bring(kept, shape, place.positions, dy, 1, 2), commit_copies();
  place.for_channels([&](int c) {
    const int channel = place.first_channel + c;
    of_means[c] = call.mean[groups + c / place.run];
    of_rstds[c] = call.rstd[groups + c / place.run];
    of_factors[c] = of_rstds[c] * parameter_at(call.scale, call.parameter_type, channel, 1.0f);
    of_offsets[c] = parameter_at(call.bias, call.parameter_type, channel, 0.0f);
  });
  float means[n];
  place.load(means, of_means);
  GradSums sums[n]{};
  {
    Activation<activation, n> behind;
    behind.load(place, of_factors, of_offsets);
    if constexpr (keeps) wait_for_copies<0>();
    int row = 0;
#pragma unroll(rounds)
    for (int64_t p = threadIdx.y; p < place.positions; p += blockDim.y, row += 2) {
      Vector<T, n> values, grads;
      if constexpr (keeps) {
        kept.load(values, row);
        kept.load(grads, row + 1);
      } else {
        values = load_vector<n>(x + p * shape.channels);
        grads = load_vector<n>(dy + p * shape.channels);
      }
#pragma unroll
      for (int i = 0; i < n; ++i) {
        const float difference = widen(values.at[i]) - means[i];
        const float grad = behind.grad(widen(grads.at[i]), difference, i);
        sums[i] = sums[i] + GradSums{grad, grad * difference};
        if (activation != NormActivation::None) grads.at[i] = narrow<T>(grad);
      }
      if constexpr (keeps && activation != NormActivation::None) kept.store(grads, row + 1);
    }
  }
#pragma unroll
  for (int i = 0; i < n; ++i) sums[i].dy_xhat *= of_rstds[place.own + i];
  add_up(place, sums, totals);
  GradSums* const of_sample = planes + place.sample * shape.channels + place.first_channel;
  place.for_channels([&](int c) {
    if (part_of_slab() == 0) of_sample[c] = totals[c];
  });
  // The factors have rstd once.
  place.for_groups([&](int, int first) {
    GradSums sum{0, 0};
    for (int c = first; c < first + place.run; ++c)
      sum = sum + GradSums{of_factors[c] * totals[c].dy, of_factors[c] * totals[c].dy_xhat};
    const float count = static_cast<float>(place.run) * static_cast<float>(shape.inner);
    totals[first] = {sum.dy / count, of_rstds[first] * sum.dy_xhat / count};
  });
  float factors[n];
  GradSums averages[n];
  place.load(factors, of_factors);
#pragma unroll
  for (int i = 0; i < n; ++i) averages[i] = totals[(place.own + i) / place.run * place.run];
  T* dx = static_cast<T*>(call.dx) + start;
  int row = 0;
#pragma unroll(rounds)
  for (int64_t p = threadIdx.y; p < place.positions; p += blockDim.y, row += 2) {
    Vector<T, n> values, grads;
    if constexpr (keeps) {
      kept.load(values, row);
      kept.load(grads, row + 1);
    } else {
      values = load_vector<n>(x + p * shape.channels);
      grads = load_vector<n>(dy + p * shape.channels);
    }
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const float difference = widen(values.at[i]) - means[i];
      float grad = widen(grads.at[i]);
      if constexpr (!keeps && activation != NormActivation::None)
        grad = activation_grad(grad, difference * factors[i] + of_offsets[place.own + i], activation);
      values.at[i] = narrow<T>(grad * factors[i] - averages[i].dy - difference * averages[i].dy_xhat);
    }
    store_vector(dx + p * shape.channels, values);
  }
}

// Calls body with what is constant in a kernel: the activation, and whether elements wait in shared memory.
template <typename Body>
cudaError_t with_slab_kernel(NormActivation activation, const GroupSlab& slab, Body body) {
  const auto with_activation = [&](auto constant) {
    return slab.kept_bytes > 0 ? body(constant, std::true_type()) : body(constant, std::false_type());
  };
  switch (activation) {
    case NormActivation::Relu: return with_activation(std::integral_constant<NormActivation, NormActivation::Relu>());
    case NormActivation::Silu: return with_activation(std::integral_constant<NormActivation, NormActivation::Silu>());
    default: return with_activation(std::integral_constant<NormActivation, NormActivation::None>());
  }
}

template <typename Kernel, typename... Arguments>
cudaError_t launch_slabs(Kernel* kernel, const GroupSlab& slab, const GroupShape& shape, cudaStream_t stream,
                         Arguments... arguments) {
  if (cudaError_t error =
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(slab.kept_bytes));
      error != cudaSuccess)
    return error;
  const auto blocks = static_cast<unsigned>(shape.batch * slab.per_sample(shape.channels) * slab.parts);
  const dim3 block(static_cast<unsigned>(slab.across), static_cast<unsigned>(slab.down));
  const auto shared_bytes = static_cast<size_t>(slab.kept_bytes);
  if (slab.parts == 1) {
    kernel<<<blocks, block, shared_bytes, stream>>>(arguments..., slab.channels);
    return cudaGetLastError();
  }
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(slab.parts), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, arguments..., slab.channels);
}

}  // namespace

cudaError_t group_norm_in_slabs(const GroupNormCall& call, cudaStream_t stream) {
  return with_f32_math(call.x_type, [&]<typename T>(T*) {
    const GroupSlab slab = choose_slab<T>(call.shape, 1);
    if (slab.channels == 0) return cudaErrorNotSupported;
    return with_slab_kernel(call.activation, slab, [&](auto activation, auto keeps) {
      return launch_slabs(slab_norm_kernel<T, activation, keeps>, slab, call.shape, stream, call);
    });
  });
}

cudaError_t group_dx_in_slabs(const GroupNormGradCall& call, GradSums* planes, cudaStream_t stream) {
  return with_f32_math(call.x_type, [&]<typename T>(T*) {
    const GroupSlab slab = choose_slab<T>(call.shape, 2);
    if (slab.channels == 0) return cudaErrorNotSupported;
    return with_slab_kernel(call.activation, slab, [&](auto activation, auto keeps) {
      return launch_slabs(slab_dx_kernel<T, activation, keeps>, slab, call.shape, stream, call, planes);
    });
  });
}

}  // namespace plimsoll::cuda
