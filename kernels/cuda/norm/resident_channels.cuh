#pragma once

// What batch norms in one launch share: where a thread's words are, the copies that bring them to shared memory and
// keep as many as fit, and sums of channels over a block and over all blocks of a slab, in a fixed order.

#include "kernels/cuda/common/blocks_together.h"
#include "kernels/cuda/common/card_attributes.h"
#include "kernels/cuda/common/cooperative_launch.cuh"
#include "kernels/cuda/common/packed.cuh"
#include "kernels/cuda/common/rows.cuh"
#include "kernels/cuda/common/tensor_core.cuh"
#include "kernels/cuda/norm/resident_channels.h"

#include <cooperative_groups.h>

namespace plimsoll::cuda {

// Rows of part p: `least`, and one more of the first `longer` parts.
struct ResidentRows {
  int64_t least, longer;
  explicit ResidentRows(const ResidentChannels& c) : least(c.rows / c.parts), longer(c.rows % c.parts) {}
  __device__ int64_t of(int part) const { return least + (part < longer ? 1 : 0); }
  __device__ int64_t first_of(int part) const { return part * least + min(static_cast<int64_t>(part), longer); }
};

struct ResidentGrid {
  ResidentChannels channels;
  ResidentRows rows;
  int slots;  // words of each tensor that a thread keeps
};

// The words of a thread: `count` from `first` on, `stride` apart. Its elements are of channels `channel` and following
// ones of the slab, after the last of which the first one comes again.
struct ResidentWords {
  int slab, part, count, channel;
  int64_t first, stride;

  template <int n>
  __device__ static ResidentWords of_thread(const ResidentGrid& grid) {
    const ResidentChannels& c = grid.channels;
    const int slab = static_cast<int>(blockIdx.x) % c.slabs, part = static_cast<int>(blockIdx.x) / c.slabs;
    const int down = resident_threads / c.slab_words, row = static_cast<int>(threadIdx.x) / c.slab_words,
              word = static_cast<int>(threadIdx.x) - row * c.slab_words;
    const auto rows = grid.rows.of(part);
    const int count = row < down && row < rows ? static_cast<int>((rows - row + down - 1) / down) : 0;
    return {slab,
            part,
            count,
            word * n % c.channels,
            (grid.rows.first_of(part) + row) * c.row_words + slab * c.slab_words + word,
            down * c.row_words};
  }
};

// A thread's words go through a ring of its own slots: forward from the first to the last, and back. The newest ones
// are still there when it turns; earlier ones are copied again.
struct ResidentRing {
  int count, slots, slot = 0, filling = 0;

  __device__ ResidentRing(int count, int slots) : count(count), slots(slots) {}
  __device__ bool stays(int word) const { return word >= count - slots; }

  // copy(word, slot) starts the copies of a word.
  template <int depth, typename Copy>
  __device__ void start(Copy copy) {
#pragma unroll
    for (int word = 0; word < depth; ++word) {
      if (word < count) fill(word, copy);
      commit_copies();
    }
  }
  template <int depth, typename Copy, typename Use>
  __device__ void go_forward(Copy copy, Use use) {
    for (int word = 0; word < count; ++word) {
      wait_for_copies<depth - 1>();
      use(word, slot);
      if (word + 1 < count) slot = slot + 1 < slots ? slot + 1 : 0;
      if (word + depth < count) fill(word + depth, copy);
      commit_copies();
    }
  }
  // There are more slots than `depth`.
  template <int depth, typename Copy, typename Use>
  __device__ void go_back(Copy copy, Use use) {
    for (int word = count - 1; word >= 0; --word) {
      wait_for_copies<depth>();
      use(word, slot);
      if (word >= slots) copy(word - slots, slot);
      commit_copies();
      slot = slot > 0 ? slot - 1 : slots - 1;
    }
  }

 private:
  template <typename Copy>
  __device__ void fill(int word, Copy copy) {
    copy(word, filling);
    filling = filling + 1 < slots ? filling + 1 : 0;
  }
};

template <typename T, int n>
__device__ Packed<T, n> packed_word(const uint4& word) {
  Packed<T, n> packed;
  packed.word[0] = word.x, packed.word[1] = word.y, packed.word[2] = word.z, packed.word[3] = word.w;
  return packed;
}

// Values of a thread's elements' channels, of values [channels of the slab].
template <int n>
__device__ void load_channels(float (&to)[n], const float* values, int channel, int channels) {
#pragma unroll
  for (int i = 0; i < n; ++i) {
    to[i] = values[channel];
    channel = channel + 1 < channels ? channel + 1 : 0;
  }
}

// Adds up a value for each element of the block's threads; thread c gets the sum of channel c of the slab. `memory`
// has n floats a thread, and all threads call it.
template <int n>
__device__ float sum_of_channel(const float (&values)[n], float* memory, const ResidentChannels& c) {
  const int thread = static_cast<int>(threadIdx.x), threads = resident_threads / c.slab_words * c.slab_words;
  const int step = resident_threads / c.channels * c.channels;
  __syncthreads();
  if (thread < threads)
#pragma unroll
    for (int i = 0; i < n; i += 4)
      *reinterpret_cast<float4*>(memory + thread * n + i) =
          make_float4(values[i], values[i + 1], values[i + 2], values[i + 3]);
  __syncthreads();
  float total = 0.0f;
  if (thread < step)
#pragma unroll 4
    for (int i = thread; i < threads * n; i += step) total += memory[i];
  __syncthreads();
  if (thread < step) memory[thread] = total;
  __syncthreads();
  total = 0.0f;
  if (thread < c.channels)
#pragma unroll 4
    for (int i = thread; i < step; i += c.channels) total += memory[i];
  return total;
}

// Goes over what the blocks of this slab left for a channel: terms(part, pair) are two terms. Thread c gets the sums
// of channel c.
template <typename Terms>
__device__ float2 sum_of_parts(const float2* partials, const ResidentGrid& grid, int slab, float* memory, Terms terms) {
  const ResidentChannels& c = grid.channels;
  const int thread = static_cast<int>(threadIdx.x), groups = resident_threads / c.channels, step = groups * c.channels;
  const int group = thread / c.channels, channel = thread - group * c.channels, width = c.channels * c.slabs;
  const float2* from = partials + slab * c.channels + channel;
  float2 total = make_float2(0.0f, 0.0f);
  constexpr int in_flight = 8;
  if (thread < step)
    for (int first = group; first < c.parts; first += in_flight * groups) {
      float2 loaded[in_flight];
#pragma unroll
      for (int k = 0; k < in_flight; ++k)
        if (const int part = first + k * groups; part < c.parts) loaded[k] = __ldcg(from + int64_t{part} * width);
#pragma unroll
      for (int k = 0; k < in_flight; ++k)
        if (const int part = first + k * groups; part < c.parts) {
          const float2 more = terms(part, loaded[k]);
          total.x += more.x, total.y += more.y;
        }
    }
  if (thread < step) memory[thread] = total.x, memory[resident_threads + thread] = total.y;
  __syncthreads();
  total = make_float2(0.0f, 0.0f);
  if (thread < c.channels)
#pragma unroll 4
    for (int i = thread; i < step; i += c.channels) total.x += memory[i], total.y += memory[resident_threads + i];
  __syncthreads();
  return total;
}

// The grid of a call and the shared memory of its blocks: `tensors` that are kept, and `more` words a thread.
template <typename T>
struct ResidentLaunch {
  ResidentGrid grid;
  int bytes;

  ResidentLaunch(const ResidentChannels& channels, int tensors, int more) : grid{channels, ResidentRows(channels), 0} {
    constexpr int word_bytes = resident_threads * static_cast<int>(vector_bytes), most_bytes = 227 * 1024;
    const int fixed = resident_threads * (static_cast<int>(vector_bytes / sizeof(T)) * 4) + more * word_bytes;
    const int down = resident_threads / channels.slab_words;
    const auto words = (grid.rows.least + (grid.rows.longer > 0 ? 1 : 0) + down - 1) / down;
    grid.slots = static_cast<int>(std::min<int64_t>(words, (most_bytes - fixed) / (tensors * word_bytes)));
    bytes = fixed + grid.slots * tensors * word_bytes;
  }

  template <typename... Parameters, typename... Arguments>
  cudaError_t start(void (*kernel)(Parameters...), cudaStream_t stream, Arguments... arguments) const {
    return launch_together(kernel, grid.channels.slabs * grid.channels.parts, resident_threads, bytes, stream,
                           arguments...);
  }
};

// Calls visit(null pointer of the element's type, how the card's blocks divide the shape).
template <typename Visit>
cudaError_t with_resident_channels(const ChannelShape& shape, Scalar type, Visit visit) {
  int multiprocessors = 0;
  if (const cudaError_t error = count_multiprocessors_together(multiprocessors); error != cudaSuccess) return error;
  return with_f32_math(type, [&]<typename T>(T* element) {
    const ResidentChannels channels(shape, sizeof(T), std::min<int64_t>(multiprocessors, max_resident_blocks));
    return channels.is_taken() ? visit(element, channels) : cudaErrorNotSupported;
  });
}

}  // namespace plimsoll::cuda
