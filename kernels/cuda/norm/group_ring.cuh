#pragma once

// The ring in shared memory through which blocks of group_norm_rings.cu take slabs of images, on Hopper: how work is
// divided, what lies where, the warp that copies, and sums over a slab.

#include "kernels/cuda/common/block_cluster.cuh"
#include "kernels/cuda/common/nest.cuh"
#include "kernels/cuda/common/packed.cuh"
#include "kernels/cuda/norm/group_norm.cuh"
#include "kernels/division.h"

namespace plimsoll::cuda {

// How a pass over `tensors` images divides its work. A word has 16 bytes, of neighbouring channels of a position.
struct GroupRing {
  static constexpr int rounds = 2;  // rows of a thread in a stage
  static constexpr int most_warps = 16, most_stages = 32, most_parts = 8, most_channels = 256;

  int64_t inner, all_channels;
  int channels = 0, run, groups;  // of a slab (0: there is none), of a group; groups of a slab
  int tensors = 1, parts = 1;     // parts: blocks that share a slab
  int warps, across, rows;        // warps that compute; words of a row; rows that a warp reads together
  int part_positions, stage_rows, stages = 0;
  int slabs, slabs_of_sample, slabs_at_once = 1;  // slabs_at_once: the others follow them
  Divider32 of_samples;

  constexpr int round_rows() const { return warps * rows; }
  constexpr int round_words() const { return warps * warp_threads; }
  constexpr int tensor_words() const { return rounds * round_words(); }
  constexpr int stage_words() const { return tensors * tensor_words(); }
  constexpr int threads() const { return warps * warp_threads; }  // that compute
  constexpr int chunks() const { return static_cast<int>(divide_up(part_positions, stage_rows)); }
  // Beside the stages: sums of all warps, of the block and of all parts of two slabs, groups' results, parameters,
  // means and rstds of the groups for each stage, and barriers.
  constexpr int64_t other_bytes() const {
    const int64_t pairs = int64_t{channels} * (warps + 1 + 2 * parts) + groups;
    return 8 * pairs + 8 * int64_t{channels} + int64_t{most_stages} * groups * 8 + (2 * most_stages + 2) * 8;
  }
  constexpr int64_t shared_bytes() const { return int64_t{stages} * stage_words() * 16 + other_bytes(); }
  constexpr unsigned blocks() const { return static_cast<unsigned>(slabs_at_once * parts); }
};

// Where everything lies in shared memory.
struct RingMemory {
  uint4* words;
  GradSums *of_warps, *totals, *told;  // [warps, channels], [channels], [2, parts, channels]
  float2* of_groups;
  float *scales, *biases, *constants;  // constants: [stages, 2, groups]
  Barrier *full, *empty, *all_told;

  __device__ RingMemory(uint4* memory, const GroupRing& p)
      : words(memory),
        of_warps(reinterpret_cast<GradSums*>(memory + p.stages * p.stage_words())),
        totals(of_warps + p.warps * p.channels),
        told(totals + p.channels),
        of_groups(reinterpret_cast<float2*>(told + 2 * p.parts * p.channels)),
        scales(reinterpret_cast<float*>(of_groups + p.groups)),
        biases(scales + p.channels),
        constants(biases + p.channels),
        full(reinterpret_cast<Barrier*>(constants + GroupRing::most_stages * 2 * p.groups)),
        empty(full + GroupRing::most_stages),
        all_told(empty + GroupRing::most_stages) {}

  // tellers: how many sums of each part are told.
  __device__ void set_up_barriers(const GroupRing& p, int tellers) const {
    for (int i = 0; i < p.stages; ++i) {
      set_up_barrier(full + i, warp_threads);
      set_up_barrier(empty + i, p.warps);
    }
    for (int i = 0; i < 2; ++i) set_up_barrier(all_told + i, p.parts * tellers);
    show_barriers_to_copies();
  }
};

// What a block computes: every slabs_at_once-th slab, and its part of the positions. A thread has a word of a row, or
// nothing.
struct RingWork {
  int part, first_slab, first_position, positions, chunks;
  int warp, lane, row, word;
  bool has_word;

  __device__ explicit RingWork(const GroupRing& p) {
    first_slab = static_cast<int>(blockIdx.x) / p.parts;
    part = static_cast<int>(blockIdx.x) - first_slab * p.parts;
    const int inner = static_cast<int>(p.inner);
    first_position = min(p.part_positions * part, inner);
    positions = min(p.part_positions, inner - first_position);
    chunks = (positions + p.stage_rows - 1) / p.stage_rows;
    warp = __shfl_sync(whole_warp, static_cast<int>(threadIdx.x) / warp_threads, 0);
    lane = static_cast<int>(threadIdx.x) % warp_threads;
    row = lane / p.across, word = lane - row * p.across;
    has_word = row < p.rows;
  }
};

// A slab's sample, first channel, and first group of all groups of all samples.
struct RingSlab {
  int sample, first_channel, first_group;

  __device__ RingSlab(const GroupRing& p, int slab) : sample(p.of_samples.quotient(slab)) {
    first_channel = (slab - sample * p.slabs_of_sample) * p.channels;
    first_group = slab * p.groups;
  }
  // Of the thread's word in a row of the block.
  __device__ int64_t start(const GroupRing& p, const RingWork& mine, int row, int word_channels) const {
    return (sample * p.inner + mine.first_position + row) * p.all_channels + first_channel + mine.word * word_channels;
  }
};

// What the warp does that copies. constants: mean and rstd of all groups, where a pass reads them beside two images.
template <typename T, int tensors>
__device__ void copy_slabs(const RingMemory& memory, const GroupRing& p, const RingWork& mine,
                           const T* const (&from)[tensors], const float* const (&constants)[tensors]) {
  constexpr int n = vector_length<T>;
  const int64_t step = p.rows * p.all_channels;
  RingPlace at;
  for (int number = mine.first_slab; number < p.slabs; number += p.slabs_at_once) {
    const RingSlab slab(p, number);
    // The rows of a stage follow one another, those of warps first and then those of rounds.
    int64_t row = slab.start(p, mine, mine.row, n);
    int left = mine.has_word ? mine.positions - mine.row : 0;
    for (int chunk = 0; chunk < mine.chunks; ++chunk, at.advance(p.stages), row += p.stage_rows * p.all_channels) {
      wait_at(memory.empty + at.stage, at.parity ^ 1);
      const int copies = left > 0 ? min((left + p.rows - 1) / p.rows, GroupRing::rounds * p.warps) : 0;
      left -= p.stage_rows;
#pragma unroll
      for (int tensor = 0; tensor < tensors; ++tensor) {
        const T* own = from[tensor] + row;
        uint4* to = memory.words + at.stage * p.stage_words() + tensor * p.tensor_words() + mine.lane;
#pragma unroll 4
        for (int i = 0; i < copies; ++i, to += warp_threads, own += step) copy_async(to, own, true);
        if (chunk == 0 && tensors > 1)
          for (int group = mine.lane; group < p.groups; group += warp_threads)
            copy_word_async(memory.constants + (2 * at.stage + tensor) * p.groups + group,
                            constants[tensor] + slab.first_group + group, true);
      }
      arrive_after_own_copies(memory.full + at.stage);
    }
  }
}

__device__ inline void wait_for_computing(const GroupRing& p) {
  asm volatile("bar.sync 1, %0;" ::"r"(p.threads()) : "memory");
}

// Visits a thread's words of a part, in stages from the ring's place `at` on: visit(what load(word) gives, word, row's
// distance from the thread's first row, in elements). The words of a stage are loaded together. wait and leave are
// called for each stage.
template <typename Wait, typename Load, typename Visit, typename Leave>
__device__ __forceinline__ void for_words(const RingMemory& memory, const GroupRing& p, const RingWork& mine,
                                          RingPlace& at, Wait wait, Load load, Visit visit, Leave leave) {
  const int own = mine.warp * warp_threads + mine.lane, round_rows = p.round_rows(), round_words = p.round_words();
  const int64_t round = round_rows * p.all_channels, chunk_step = p.stage_rows * p.all_channels;
  int left = mine.has_word ? mine.positions - mine.warp * p.rows - mine.row : 0;
  int64_t row = 0;
  for (int chunk = 0; chunk < mine.chunks; ++chunk, at.advance(p.stages), row += chunk_step, left -= p.stage_rows) {
    wait(at);
    uint4* const words = memory.words + at.stage * p.stage_words() + own;
    if (left > (GroupRing::rounds - 1) * round_rows) {
      decltype(load(words)) loaded[GroupRing::rounds];
#pragma unroll
      for (int i = 0; i < GroupRing::rounds; ++i) loaded[i] = load(words + i * round_words);
#pragma unroll
      for (int i = 0; i < GroupRing::rounds; ++i) visit(loaded[i], words + i * round_words, row + i * round);
    } else if (left > 0) {
#pragma unroll
      for (int i = 0; i < GroupRing::rounds - 1; ++i)
        if (left > i * round_rows) visit(load(words + i * round_words), words + i * round_words, row + i * round);
    }
    leave(at);
  }
}

// Adds up the sums of a warp's rows, which its first row gets, and writes them beside those of other warps.
template <int n>
__device__ void add_up_rows(GradSums (&sums)[n], const RingMemory& memory, const GroupRing& p, const RingWork& mine) {
  const auto from_lane = [&](int i, int lane) {
    return GradSums{__shfl_sync(whole_warp, sums[i].dy, lane), __shfl_sync(whole_warp, sums[i].dy_xhat, lane)};
  };
  if (p.across * p.rows == warp_threads) {
    for (int distance = p.across; distance < warp_threads; distance *= 2)
#pragma unroll
      for (int i = 0; i < n; ++i) sums[i] = sums[i] + from_lane(i, mine.lane ^ distance);
  } else {
#pragma unroll
    for (int i = 0; i < n; ++i) {
      GradSums all = sums[i];
      for (int row = 1; row < p.rows; ++row) all = all + from_lane(i, (mine.lane + row * p.across) % warp_threads);
      sums[i] = all;
    }
  }
  if (mine.row == 0)
#pragma unroll
    for (int i = 0; i < n; ++i) memory.of_warps[mine.warp * p.channels + mine.word * n + i] = sums[i];
  wait_for_computing(p);
}
__device__ inline GradSums total_of_channel(const RingMemory& memory, const GroupRing& p, int channel) {
  GradSums total{0, 0};
  const GradSums* of_warp = memory.of_warps + channel;
#pragma unroll 4
  for (int warp = 0; warp < p.warps; ++warp, of_warp += p.channels) total = total + *of_warp;
  return total;
}
__device__ inline GradSums total_of_group(const RingMemory& memory, const GroupRing& p, int group) {
  GradSums total{0, 0};
  const GradSums* of_channel = memory.totals + group * p.run;
#pragma unroll 4
  for (int i = 0; i < p.run; ++i) total = total + of_channel[i];
  return total;
}

// Tells all blocks of the cluster a pair, which is theirs at `index` of this part. turn: which one of the block's slabs
// it is.
__device__ inline void tell_parts(const RingMemory& memory, const GroupRing& p, const RingWork& mine, int index,
                                  int turn, const GradSums& pair) {
  GradSums* const own = memory.told + (turn % 2 * p.parts + mine.part) * p.channels + index;
  for (int block = 0; block < p.parts; ++block) {
    asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(address_in(block, own)), "f"(pair.dy),
                 "f"(pair.dy_xhat)
                 : "memory");
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(
                     address_in(block, memory.all_told + turn % 2))
                 : "memory");
  }
}
// Waits until all parts have told theirs: those at `index` are `channels` apart. A thread tells all of its own before.
__device__ inline const GradSums* told_by_parts(const RingMemory& memory, const GroupRing& p, int index, int turn) {
  wait_for_told(memory.all_told + turn % 2, static_cast<uint32_t>(turn / 2 % 2));
  return memory.told + turn % 2 * p.parts * p.channels + index;
}

template <typename T>
__device__ Packed<T, vector_length<T>> packed_word(const uint4* word) {
  return load_packed<vector_length<T>>(reinterpret_cast<const T*>(word));
}

template <typename T>
__device__ void put_word(uint4* word, const Packed<T, vector_length<T>>& packed) {
  memcpy(word, &packed, sizeof packed);
}

template <typename T>
struct TwoWords {
  Packed<T, vector_length<T>> x, dy;
};

// Visits the thread's channels, with the group of each.
template <int n, typename Visit>
__device__ __forceinline__ void for_channels(const GroupRing& p, int first_channel, int first_group, Visit visit) {
  int group = first_group, end = (first_group + 1) * p.run;
#pragma unroll
  for (int i = 0; i < n; ++i) {
    if (first_channel + i == end) ++group, end += p.run;
    visit(i, group);
  }
}

// Parameters of a slab's channels, once for slabs of the same channels that follow one another.
template <typename Call>
__device__ void load_parameters(const Call& call, const RingMemory& memory, const GroupRing& p, const RingSlab& slab,
                                int& loaded) {
  if (slab.first_channel == loaded) return;
  loaded = slab.first_channel;
  wait_for_computing(p);  // all have read those before
  for (int c = static_cast<int>(threadIdx.x); c < p.channels; c += p.threads()) {
    memory.scales[c] = parameter_at(call.scale, call.parameter_type, loaded + c, 1.0f);
    memory.biases[c] = parameter_at(call.bias, call.parameter_type, loaded + c, 0.0f);
  }
  wait_for_computing(p);
}

}  // namespace plimsoll::cuda
