#include "kernels/cuda/common/card_attributes.h"
#include "kernels/cuda/common/warpgroup.cuh"
#include "kernels/cuda/norm/group_ring.cuh"

#include <algorithm>

// Serves group_norm and group_norm_grad with channels last, x [batch, inner, channels], on Hopper, by blocks that take
// one slab after the other. A slab is some whole groups of a sample. One warp copies its elements to a ring of stages
// in shared memory, where the other warps read them twice, first for the sums and then for the results. The second
// reading frees a stage, so that the next slab comes while this one is computed. A cluster of blocks shares a slab that
// is too large for the ring of one: each has some of its positions, and tells the others its sums.

namespace plimsoll::cuda {
namespace {

// ---- Forward ----

// The mean of a group and the sum of squared distances from it, over a part or all parts.
struct GroupMoments {
  const RingMemory& memory;
  const GroupRing& p;
  const RingWork& mine;

  __device__ float count_of(int part) const {
    const int left = static_cast<int>(p.inner) - part * p.part_positions;
    return static_cast<float>(max(0, min(p.part_positions, left))) * static_cast<float>(p.run);
  }
  // Sums are those of differences from `shift`, and of their squares.
  __device__ GradSums of_part(int group, float shift) const {
    const GradSums sum = total_of_group(memory, p, group);
    const float count = count_of(mine.part), mean = count > 0 ? sum.dy / count : 0.0f;
    return {shift + mean, fmaxf(0.0f, sum.dy_xhat - mean * sum.dy)};
  }
  __device__ GradSums of_all(const GradSums* of_parts) const {
    const float pivot = of_parts->dy;
    float moved = 0, count = count_of(0), squares = 0;
    for (int part = 1; part < p.parts; ++part) {
      const float more = count_of(part);
      if (more > 0) moved += more * (of_parts[part * p.channels].dy - pivot);
      count += more;
    }
    const float mean = pivot + moved / count;
    for (int part = 0; part < p.parts; ++part) {
      const float distance = of_parts[part * p.channels].dy - mean, of_part = count_of(part);
      if (of_part > 0) squares += of_parts[part * p.channels].dy_xhat + of_part * distance * distance;
    }
    return {mean, squares};
  }
};

// Sums are those of differences from a group's first element of the part, which is one of the elements, so that little
// cancels. Parts tell their moments.
template <typename T, NormActivation activation>
__device__ void normalise_slabs(const GroupNormCall& call, const RingMemory& memory, const GroupRing& p,
                                const RingWork& mine) {
  constexpr int n = vector_length<T>;
  const int thread = static_cast<int>(threadIdx.x), own = mine.word * n, own_group = own / p.run;
  const float all_count = static_cast<float>(p.run) * static_cast<float>(p.inner);
  const GroupMoments moments{memory, p, mine};
  RingPlace first, second;
  int turn = 0, loaded = -1;
  for (int number = mine.first_slab; number < p.slabs; number += p.slabs_at_once, ++turn) {
    const RingSlab slab(p, number);
    load_parameters(call, memory, p, slab, loaded);
    // The part's first position is in the first row.
    const T* const first_row = reinterpret_cast<const T*>(memory.words + first.stage * p.stage_words());
    float shifts[n] = {};
    if (mine.chunks > 0) {
      wait_at(memory.full + first.stage, first.parity);
      for_channels<n>(p, own, own_group, [&](int i, int group) { shifts[i] = widen(first_row[group * p.run]); });
    }
    GradSums sums[n]{};
    for_words(
        memory, p, mine, first, [&](const RingPlace& at) { wait_at(memory.full + at.stage, at.parity); },
        packed_word<T>,
        [&](const auto& values, const uint4*, int64_t) {
#pragma unroll
          for (int i = 0; i < n; ++i) {
            const float difference = values[i] - shifts[i];
            sums[i] = {sums[i].dy + difference, sums[i].dy_xhat + difference * difference};
          }
        },
        [](const RingPlace&) {});
    add_up_rows(sums, memory, p, mine);
    for (int c = thread; c < p.channels; c += p.threads()) memory.totals[c] = total_of_channel(memory, p, c);
    wait_for_computing(p);
    const auto of_part = [&](int group) {
      return moments.of_part(group, mine.chunks > 0 ? widen(first_row[group * p.run]) : 0.0f);
    };
    if (p.parts > 1)
      for (int g = thread; g < p.groups; g += p.threads()) tell_parts(memory, p, mine, g, turn, of_part(g));
    for (int g = thread; g < p.groups; g += p.threads()) {
      const GradSums of_group = p.parts > 1 ? moments.of_all(told_by_parts(memory, p, g, turn)) : of_part(g);
      const float rstd = rsqrtf(of_group.dy_xhat / all_count + call.eps);
      memory.of_groups[g] = {of_group.dy, rstd};
      if (mine.part > 0) continue;
      call.mean[slab.first_group + g] = of_group.dy;
      call.rstd[slab.first_group + g] = rstd;
    }
    wait_for_computing(p);
    float means[n], factors[n], offsets[n];
    for_channels<n>(p, own, own_group, [&](int i, int group) {
      const float2 of_group = memory.of_groups[group];
      factors[i] = of_group.y * memory.scales[own + i];
      means[i] = is_short<T> ? 0.0f : of_group.x;
      offsets[i] = memory.biases[own + i] - (is_short<T> ? of_group.x * factors[i] : 0.0f);
    });
    T* const y = static_cast<T*>(call.y) + slab.start(p, mine, mine.warp * p.rows + mine.row, n);
    for_words(
        memory, p, mine, second, [](const RingPlace&) {}, packed_word<T>,
        [&](const auto& values, const uint4*, int64_t row) {
          float results[n];
#pragma unroll
          for (int i = 0; i < n; ++i)
            results[i] = quick_activated<T>((values[i] - means[i]) * factors[i] + offsets[i], activation);
          store_packed(y + row, pack<T>(results));
        },
        [&](const RingPlace& at) { arrive_as_warp_at(memory.empty + at.stage); });
  }
}

// ---- Backward ----

// dx = rstd * (g - average_g - xhat * average_g_xhat), with g = dy * scale. Gradients in front of an activation take
// the place of those behind it. Parts tell their sums of channels.
template <typename T, NormActivation activation>
__device__ void differentiate_slabs(const GroupNormGradCall& call, GradSums* planes, const RingMemory& memory,
                                    const GroupRing& p, const RingWork& mine) {
  constexpr int n = vector_length<T>;
  constexpr bool activates = activation != NormActivation::None;
  const int thread = static_cast<int>(threadIdx.x), own = mine.word * n, own_group = own / p.run;
  const float all_count = static_cast<float>(p.run) * static_cast<float>(p.inner);
  RingPlace first, second;
  int turn = 0, loaded = -1;
  for (int number = mine.first_slab; number < p.slabs; number += p.slabs_at_once, ++turn) {
    const RingSlab slab(p, number);
    load_parameters(call, memory, p, slab, loaded);
    // z = (x - means) * factors + offsets is what the activation takes; means are in the offsets of 16-bit floats.
    float means[n] = {}, rstds[n] = {}, factors[n] = {}, offsets[n] = {};
    if (mine.chunks > 0) {
      const float* const of_means = memory.constants + 2 * first.stage * p.groups;
      const float* const of_rstds = of_means + p.groups;
      wait_at(memory.full + first.stage, first.parity);
      for_channels<n>(p, own, own_group, [&](int i, int group) {
        means[i] = of_means[group];
        rstds[i] = of_rstds[group];
        factors[i] = rstds[i] * memory.scales[own + i];
        if (activates) offsets[i] = memory.biases[own + i] - (is_short<T> ? means[i] * factors[i] : 0.0f);
      });
    }
    const auto load = [&](const uint4* word) {
      return TwoWords<T>{packed_word<T>(word), packed_word<T>(word + p.tensor_words())};
    };
    const auto shifted = [&](float x, int i) { return is_short<T> ? x : x - means[i]; };
    GradSums sums[n]{};
    for_words(
        memory, p, mine, first, [&](const RingPlace& at) { wait_at(memory.full + at.stage, at.parity); }, load,
        [&](const TwoWords<T>& both, uint4* word, int64_t) {
          float in_front[n];
#pragma unroll
          for (int i = 0; i < n; ++i) {
            const float x = shifted(both.x[i], i);
            in_front[i] =
                activates ? quick_activation_grad<T>(both.dy[i], x * factors[i] + offsets[i], activation) : both.dy[i];
            sums[i] = {sums[i].dy + in_front[i], sums[i].dy_xhat + in_front[i] * x};
          }
          if (activates) put_word(word + p.tensor_words(), pack<T>(in_front));
        },
        [](const RingPlace&) {});
#pragma unroll
    for (int i = 0; i < n; ++i) {
      if (is_short<T>) sums[i].dy_xhat -= means[i] * sums[i].dy;
      sums[i].dy_xhat *= rstds[i];
    }
    add_up_rows(sums, memory, p, mine);
    if (p.parts > 1)
      for (int c = thread; c < p.channels; c += p.threads())
        tell_parts(memory, p, mine, c, turn, total_of_channel(memory, p, c));
    for (int c = thread; c < p.channels; c += p.threads()) {
      GradSums total;
      if (p.parts == 1) {
        total = total_of_channel(memory, p, c);
      } else {
        const GradSums* const of_parts = told_by_parts(memory, p, c, turn);
        total = *of_parts;
        for (int part = 1; part < p.parts; ++part) total = total + of_parts[part * p.channels];
      }
      if (mine.part == 0) planes[slab.sample * p.all_channels + slab.first_channel + c] = total;
      memory.totals[c] = {memory.scales[c] * total.dy, memory.scales[c] * total.dy_xhat};
    }
    wait_for_computing(p);
    for (int g = thread; g < p.groups; g += p.threads()) {
      const GradSums sum = total_of_group(memory, p, g);
      memory.of_groups[g] = {sum.dy / all_count, sum.dy_xhat / all_count};
    }
    wait_for_computing(p);
    // dx = dy * factors + x * slopes + bases
    float slopes[n], bases[n];
    for_channels<n>(p, own, own_group, [&](int i, int group) {
      const float2 of_group = memory.of_groups[group];
      slopes[i] = -rstds[i] * rstds[i] * of_group.y;
      bases[i] = -rstds[i] * of_group.x - (is_short<T> ? means[i] * slopes[i] : 0.0f);
    });
    T* const dx = static_cast<T*>(call.dx) + slab.start(p, mine, mine.warp * p.rows + mine.row, n);
    for_words(
        memory, p, mine, second, [](const RingPlace&) {}, load,
        [&](const TwoWords<T>& both, const uint4*, int64_t row) {
          float results[n];
#pragma unroll
          for (int i = 0; i < n; ++i)
            results[i] = both.dy[i] * factors[i] + (shifted(both.x[i], i) * slopes[i] + bases[i]);
          store_packed(dx + row, pack<T>(results));
        },
        [&](const RingPlace& at) { arrive_as_warp_at(memory.empty + at.stage); });
  }
}

// ---- Kernels ----

constexpr int most_threads = (GroupRing::most_warps + 1) * warp_threads;

// copy() is what one warp does, and compute() what the others do.
template <typename Copy, typename Compute>
__device__ void run_ring(const RingMemory& memory, const GroupRing& p, const RingWork& mine, int tellers, Copy copy,
                         Compute compute) {
  if (threadIdx.x == 0) memory.set_up_barriers(p, tellers);
  __syncthreads();
  if (p.parts > 1) wait_for_cluster();  // all have barriers
  if (mine.warp == p.warps)
    copy();
  else
    compute();
  if (p.parts > 1) {
    __syncwarp();
    wait_for_cluster();  // none ends while another tells it something
  }
}

template <typename T, NormActivation activation>
__global__ void __launch_bounds__(most_threads, 1)
    ring_norm_kernel(const __grid_constant__ GroupNormCall call, const __grid_constant__ GroupRing p) {
  if constexpr (has_warpgroups) {
    extern __shared__ uint4 ring[];
    const RingMemory memory(ring, p);
    const RingWork mine(p);
    const auto* x = static_cast<const T*>(call.x);
    run_ring(
        memory, p, mine, p.groups, [&] { copy_slabs<T, 1>(memory, p, mine, {x}, {nullptr}); },
        [&] { normalise_slabs<T, activation>(call, memory, p, mine); });
  } else {
    __trap();
  }
}

template <typename T, NormActivation activation>
__global__ void __launch_bounds__(most_threads, 1)
    ring_dx_kernel(const __grid_constant__ GroupNormGradCall call, GradSums* planes,
                   const __grid_constant__ GroupRing p) {
  if constexpr (has_warpgroups) {
    extern __shared__ uint4 ring[];
    const RingMemory memory(ring, p);
    const RingWork mine(p);
    const auto *x = static_cast<const T*>(call.x), *dy = static_cast<const T*>(call.dy);
    run_ring(
        memory, p, mine, p.channels,
        [&] {
          copy_slabs<T, 2>(memory, p, mine, {x, dy}, {call.mean, call.rstd});
        },
        [&] { differentiate_slabs<T, activation>(call, planes, memory, p, mine); });
  } else {
    __trap();
  }
}

// ---- Launches ----

// Sets what follows from a slab's channels and parts where so many blocks share a multiprocessor. Returns whether the
// ring holds a block's part.
bool set_ring(GroupRing& p, int blocks_together) {
  constexpr int64_t shared_bytes = 227 << 10, of_block = 1 << 10;
  p.warps = GroupRing::most_warps / blocks_together;
  p.rows = warp_threads / p.across;
  p.stage_rows = GroupRing::rounds * p.round_rows();
  p.part_positions = static_cast<int>(divide_up(p.inner, p.parts));
  const int64_t room = shared_bytes / blocks_together - of_block - p.other_bytes();
  p.stages = static_cast<int>(std::clamp<int64_t>(room / (p.stage_words() * 16), 0, GroupRing::most_stages));
  return p.stages > 0 && p.chunks() <= p.stages;
}

// Rows have at least 128 bytes where there are such, or else 32, and a block has as many blocks beside it as leave room
// for another slab. A cluster shares slabs that one block has no such room for, and those of few samples.
template <typename T>
GroupRing choose_ring(const GroupShape& shape, int tensors, int multiprocessors) {
  constexpr int n = vector_length<T>, most_together = 4;
  constexpr int64_t wide_bytes = 128, least_bytes = 32, least_words = 512, most = 1 << 24;
  constexpr double most_of_ring = 0.85;
  GroupRing best{.inner = shape.inner, .all_channels = shape.channels};
  if (shape.inner == 0 || shape.inner > most || shape.batch * shape.groups > most) return best;
  for (int64_t groups = 1; groups <= shape.groups; ++groups) {
    const int64_t channels = groups * shape.channels_per_group(), row_bytes = channels * int64_t{sizeof(T)};
    if (channels > GroupRing::most_channels || channels / n > warp_threads) break;
    if (shape.groups % groups != 0 || channels % n != 0 || row_bytes < least_bytes) continue;
    GroupRing p = best;
    p.channels = static_cast<int>(channels), p.run = static_cast<int>(shape.channels_per_group());
    p.groups = static_cast<int>(groups), p.tensors = tensors, p.across = p.channels / n;
    p.slabs_of_sample = static_cast<int>(shape.groups / groups);
    p.slabs = static_cast<int>(shape.batch) * p.slabs_of_sample;
    p.of_samples = Divider32(p.slabs_of_sample);
    const auto has_room = [&](int together) {
      return set_ring(p, together) && static_cast<double>(p.chunks()) <= most_of_ring * p.stages;
    };
    const auto are_enough = [&](int together) { return p.slabs * p.parts >= multiprocessors * together * 3 / 4; };
    for (p.parts = 1; p.parts < GroupRing::most_parts && p.parts < shape.inner; p.parts *= 2)
      if (has_room(1) && are_enough(1)) break;
    int together = most_together;
    while (together > 1 && !(has_room(together) && are_enough(together))) together /= 2;
    if (!set_ring(p, together)) {
      if (best.channels > 0) break;
      continue;
    }
    if (best.channels > 0 && p.parts > best.parts) break;
    best = p;
    if (row_bytes >= wide_bytes && int64_t{p.across} * p.part_positions >= least_words) break;
  }
  return best;
}

// As many slabs as the card has room for: those of whole samples, whose channels a block meets again, where that leaves
// little room unused.
void set_slabs_at_once(GroupRing& p, int room) {
  constexpr double least_share = 0.95;
  const int of_samples = room / p.slabs_of_sample * p.slabs_of_sample;
  const bool takes_samples = of_samples >= least_share * room;
  p.slabs_at_once = std::clamp(takes_samples ? of_samples : room, 1, std::max(p.slabs, 1));
}

template <typename Kernel, typename... Arguments>
cudaError_t launch_ring(Kernel* kernel, GroupRing p, int multiprocessors, cudaStream_t stream,
                        const Arguments&... arguments) {
  if (cudaError_t error =
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(p.shared_bytes()));
      error != cudaSuccess)
    return error;
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(p.parts), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(p.parts);
  config.blockDim = static_cast<unsigned>(p.threads() + warp_threads);
  config.dynamicSmemBytes = static_cast<size_t>(p.shared_bytes());
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = p.parts > 1 ? 1 : 0;
  int room = 0;
  if (p.parts > 1) {
    if (cudaError_t error = cudaOccupancyMaxActiveClusters(&room, kernel, &config); error != cudaSuccess) return error;
  } else {
    if (cudaError_t error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(
            &room, kernel, static_cast<int>(config.blockDim.x), config.dynamicSmemBytes);
        error != cudaSuccess)
      return error;
    room *= multiprocessors;
  }
  if (room == 0) return cudaErrorNotSupported;
  set_slabs_at_once(p, room);
  config.gridDim = p.blocks();
  return cudaLaunchKernelEx(&config, kernel, arguments..., p);
}

// Calls launch(activation, ring, multiprocessors), the activation being constant in a kernel.
template <typename T, typename Launch>
cudaError_t with_ring(const GroupShape& shape, NormActivation activation, int tensors, Launch launch) {
  if (!is_hopper()) return cudaErrorNotSupported;
  int multiprocessors = 0;
  if (cudaError_t error = count_multiprocessors(multiprocessors); error != cudaSuccess) return error;
  const GroupRing ring = choose_ring<T>(shape, tensors, multiprocessors);
  if (ring.channels == 0) return cudaErrorNotSupported;
  switch (activation) {
    case NormActivation::Relu:
      return launch(std::integral_constant<NormActivation, NormActivation::Relu>(), ring, multiprocessors);
    case NormActivation::Silu:
      return launch(std::integral_constant<NormActivation, NormActivation::Silu>(), ring, multiprocessors);
    default: return launch(std::integral_constant<NormActivation, NormActivation::None>(), ring, multiprocessors);
  }
}

}  // namespace

cudaError_t group_norm_in_rings(const GroupNormCall& call, cudaStream_t stream) {
  return with_f32_math(call.x_type, [&]<typename T>(T*) {
    return with_ring<T>(call.shape, call.activation, 1,
                        [&](auto activation, const GroupRing& ring, int multiprocessors) {
                          return launch_ring(ring_norm_kernel<T, activation>, ring, multiprocessors, stream, call);
                        });
  });
}

cudaError_t group_dx_in_rings(const GroupNormGradCall& call, GradSums* planes, cudaStream_t stream) {
  return with_f32_math(call.x_type, [&]<typename T>(T*) {
    return with_ring<T>(
        call.shape, call.activation, 2, [&](auto activation, const GroupRing& ring, int multiprocessors) {
          return launch_ring(ring_dx_kernel<T, activation>, ring, multiprocessors, stream, call, planes);
        });
  });
}

}  // namespace plimsoll::cuda
