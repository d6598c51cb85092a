#pragma once

// Sums of a team's pixels on their way to memory.

#include "kernels/cuda/common/short_boxes.cuh"
#include "kernels/cuda/conv/packed_weights.cuh"

namespace plimsoll::cuda {

// The results of a team's pixels on their way to memory.
template <typename T, int known, int units, int tiles>
class TeamResults {
 public:
  __device__ TeamResults(const PackedPlaces& at, const PackedForm<known>& form, int team, int member, int part)
      : form_(form),
        staged_(at.teams + static_cast<uint32_t>(team * form.p.team_bytes())),
        exchanged_(staged_ + static_cast<uint32_t>(form.p.staged_bytes())),
        team_(team),
        member_(member),
        part_(part) {}

  __device__ void meet() const {
    if (form_.p.team_warps == 1)
      __syncwarp();
    else
      asm volatile("bar.sync %0, %1;" ::"r"(team_ + 1), "r"(form_.p.team_warps * warp_threads) : "memory");
  }
  __device__ void add_bias(float (&sums)[tiles][units][4], const T* bias) const {
#pragma unroll
    for (int n = 0; n < units; ++n) {
      const int channel = (part_ * units + n) * unit_channels + static_cast<int>(threadIdx.x) % 4 * 2;
      if (channel >= form_.out_channels()) continue;
      const float added[2] = {widen(bias[channel]), widen(bias[channel + 1])};
#pragma unroll
      for (int i = 0; i < tiles; ++i)
#pragma unroll
        for (int k = 0; k < 4; ++k) sums[i][n][k] += added[k % 2];
    }
  }
  // Every line of taps has the sums of one of three tiles in the end.
  __device__ void exchange(float (&sums)[tiles][units][4], int row) const {
    constexpr int others = PackedLines::kernel - 1, numbers = units * 4;
    const auto place = [&](int tile, int from, int i) {
      const int other = from - (from > tile);
      return exchanged_ + static_cast<uint32_t>((((part_ * tiles + tile) * others + other) * numbers + i) * 128 +
                                                static_cast<int>(threadIdx.x) % warp_threads * 4);
    };
#pragma unroll
    for (int tile = 0; tile < tiles; ++tile)
      if (tile != row)
#pragma unroll
        for (int i = 0; i < numbers; ++i)
          asm volatile("st.shared.f32 [%0], %1;" ::"r"(place(tile, row, i)), "f"(sums[tile][i / 4][i % 4]) : "memory");
    meet();
#pragma unroll
    for (int tile = 0; tile < tiles; ++tile)
      if (tile == row)
#pragma unroll
        for (int i = 0; i < numbers; ++i)
#pragma unroll
          for (int other = 0; other < others; ++other)
            sums[tile][i / 4][i % 4] += __uint_as_float(shared_word(place(tile, other + (other >= tile), i)));
  }
  // Leaves tiles for which `has` holds in shared memory.
  template <typename Has>
  __device__ void stage(const float (&sums)[tiles][units][4], Has has) const {
    const int first = part_ * units * unit_channels + static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
    for (int i = 0; i < 2 * tiles; ++i) {
      if (!has(i / 2)) continue;
      const uint32_t pixel =
          staged_ + static_cast<uint32_t>((form_.pixel_in_team(i) * form_.out_channels() + first) * 2);
#pragma unroll
      for (int n = 0; n < units; ++n) {
        if (first + n * unit_channels >= form_.out_channels()) continue;
        const float* of_row = sums[i / 2][n] + i % 2 * 2;
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(pixel + static_cast<uint32_t>(n * unit_channels * 2)),
                     "r"(packed_pair<T>(of_row[0], of_row[1]))
                     : "memory");
      }
    }
  }
  __device__ bool stores() const { return member_ == 0 && threadIdx.x % warp_threads == 0; }
  // Before results are staged again.
  __device__ void wait_for_store() const {
    if (stores()) wait_for_box_reads();
  }
  __device__ void store(T* out, int pixel, int count) const {
    show_to_copies();
    meet();
    if (!stores()) return;
    store_bytes_at(out + int64_t{pixel} * form_.out_channels(), staged_, count * form_.out_channels() * 2);
    commit_boxes();
  }

 private:
  const PackedForm<known>& form_;
  uint32_t staged_, exchanged_;
  int team_, member_, part_;
};

}  // namespace plimsoll::cuda
