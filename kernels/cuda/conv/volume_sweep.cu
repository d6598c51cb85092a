#include "kernels/cuda/common/early_launch.cuh"
#include "kernels/cuda/common/packed.cuh"
#include "kernels/cuda/common/short_boxes.cuh"
#include "kernels/cuda/common/volume_boxes.cuh"
#include "kernels/cuda/common/warpgroup_columns.cuh"
#include "kernels/cuda/conv/unit_tiles.cuh"
#include "kernels/cuda/conv/volumes.h"
#include "kernels/cuda/matmul/tile_ring.cuh"

// Serves conv and conv_dx ("warpgroup_volumes"): 3 x 3 x 3 convolutions of volumes. Reads each plane of a tile once and
// its lines and pixels around it besides, and writes results once. One warp asks the copy engine for planes, in which
// what lies outside the volume is 0, another one for weights, unless all of them stay in shared memory. Two warpgroups
// multiply. A tap is a distance in pixels: the left operand, 8 lines of 8 pixels, may begin at any pixel of a plane.

namespace plimsoll::cuda {
namespace {

using Sweep = VolumeSweep;

constexpr int group_threads = warpgroup_threads;
constexpr int computing_threads = Sweep::groups * group_threads, all_threads = computing_threads + group_threads;
constexpr int computing_registers = 232, copying_registers = 40;

template <int slot_, int terms_>
struct VolumeForm {
  static constexpr int slot = slot_, terms = terms_, steps = terms / 16;
  static constexpr int columns = VolumeSizes::kernel * slot, product_tiles = columns / 8, slot_tiles = slot / 8;
  static constexpr int pixel_bytes = terms * 2, result_bytes = slot * 2;
  static constexpr int weight_bytes = columns * pixel_bytes, staged_tile = Sweep::tile_pixels * result_bytes;
};

// Weights [channel tile, chunk, tap of a plane, column, term] as a block reads them: columns are the channels of a
// result under the last, the middle and the first tap in depth, of which the last one completes a plane. Zeros stand
// for channels that are not there. A gradient reads the taps the other way round.
template <typename T, typename Form>
__global__ void __launch_bounds__(block_threads)
    pack_volume_weights_kernel(uint8_t* to, const T* w, const __grid_constant__ Sweep p) {
  let_next_launch_begin();
  const int64_t item = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  const int k = static_cast<int>(item % Form::terms), column = static_cast<int>(item / Form::terms % Form::columns);
  const int64_t stage = item / Form::terms / Form::columns;
  const int tap = static_cast<int>(stage % VolumeSizes::plane_taps),
            depth = VolumeSizes::kernel - 1 - column / Form::slot;
  const int chunk = static_cast<int>(stage / VolumeSizes::plane_taps % p.chunks()),
            tile = static_cast<int>(stage / VolumeSizes::plane_taps / p.chunks());
  if (tile >= p.channel_tiles()) return;
  const int in = chunk * Form::terms + k, out = tile * Form::slot + column % Form::slot;
  const int own = depth * VolumeSizes::plane_taps + tap, of_w = p.gradient ? VolumeSizes::taps - 1 - own : own;
  const int outer = p.gradient ? in : out, inner = p.gradient ? out : in;
  const bool is_there = in < p.in_channels() && out < p.out_channels();
  const T value =
      is_there ? w[(int64_t{outer} * VolumeSizes::taps + of_w) * p.sizes.x_channels + inner] : narrow<T>(0.0f);
  const int word = k / 8, place = Form::pixel_bytes == 128 ? word ^ column % 8 : word ^ column / 2 % 4;
  T* row = reinterpret_cast<T*>(to + stage * Form::weight_bytes + column * Form::pixel_bytes);
  row[place * 8 + k % 8] = value;
}

// What a block needs of a sweep, counted once by the launch: kernels have no registers to spare for it.
struct SweepNumbers {
  int planes, plane_bytes, weight_stages, weight_bytes, staged_bytes, chunks, line_pixels, tiles_across, copied_bytes;
  int channel_tiles, across, pixels_across, down, pixels_down, parts, part_planes, out_channels, terms;
  int in[3], out[3], first[3];
  bool keeps_weights;

  explicit SweepNumbers(const Sweep& s)
      : planes(s.planes()),
        plane_bytes(s.plane_bytes()),
        weight_stages(s.weight_stages()),
        weight_bytes(s.weight_bytes()),
        staged_bytes(s.staged_bytes()),
        chunks(s.chunks()),
        line_pixels(s.line_pixels()),
        tiles_across(s.tiles_across()),
        copied_bytes(s.copied_bytes()),
        channel_tiles(s.channel_tiles()),
        across(s.across()),
        pixels_across(s.pixels_across()),
        down(s.down()),
        pixels_down(s.pixels_down()),
        parts(s.parts),
        part_planes(s.part_planes()),
        out_channels(s.out_channels()),
        terms(s.terms),
        in{s.in(0), s.in(1), s.in(2)},
        out{s.out(0), s.out(1), s.out(2)},
        first{s.first(0), s.first(1), s.first(2)},
        keeps_weights(s.keeps_weights()) {}
};

struct SweepShared {
  uint8_t *planes, *weights, *staged;
  Barrier *plane_there, *plane_read, *weight_there, *weight_read;

  __device__ SweepShared(void* shared, const SweepNumbers& p) : planes(first_tile_border(shared)) {
    weights = planes + p.planes * p.plane_bytes;
    staged = weights + p.weight_stages * p.weight_bytes;
    plane_there = reinterpret_cast<Barrier*>(staged + p.staged_bytes);
    plane_read = plane_there + Sweep::max_planes;
    weight_there = plane_read + Sweep::max_planes;
    weight_read = weight_there + p.weight_stages;
  }
  __device__ void create(const SweepNumbers& p) const {
    for (int i = 0; i < p.planes; ++i)
      set_up_barrier(plane_there + i, 1), set_up_barrier(plane_read + i, Sweep::groups);
    for (int i = 0; i < p.weight_stages; ++i)
      set_up_barrier(weight_there + i, 1), set_up_barrier(weight_read + i, Sweep::groups);
    show_barriers_to_copies();
  }
};

// What a block makes: a tile of pixels and channels in a range of planes.
struct SweepBlock {
  int channel_tile, across, down, batch, begin, end;

  __device__ explicit SweepBlock(const SweepNumbers& p) {
    int index = static_cast<int>(blockIdx.x);
    channel_tile = index % p.channel_tiles, index /= p.channel_tiles;
    across = index % p.across * p.pixels_across, index /= p.across;
    down = index % p.down * p.pixels_down, index /= p.down;
    begin = index % p.parts * p.part_planes, batch = index / p.parts;
    end = min(begin + p.part_planes, p.out[0]);
  }
  // Planes of the input that results of the block are made of, some of them outside the volume.
  __device__ int first_plane(const SweepNumbers& p) const { return begin + p.first[0]; }
  __device__ int end_plane(const SweepNumbers& p) const { return end + p.first[0] + VolumeSizes::kernel - 1; }
};

__device__ inline void copy_planes(const SweepShared& shared, const CUtensorMap& in, const SweepNumbers& p,
                                   const SweepBlock& mine) {
  RingPlace place;
  for (int z = max(mine.first_plane(p), 0); z < min(mine.end_plane(p), p.in[0]); ++z)
    for (int chunk = 0; chunk < p.chunks; ++chunk, place.advance(p.planes)) {
      wait_at(shared.plane_read + place.stage, place.parity ^ 1);
      arrive_with_copies(shared.plane_there + place.stage, p.copied_bytes);
      copy_box(shared.planes + place.stage * p.plane_bytes, in,
               VolumePlace{chunk * p.terms, mine.across + p.first[2], mine.down + p.first[1], z, mine.batch},
               shared.plane_there + place.stage);
    }
}

__device__ inline void copy_weights(const SweepShared& shared, const uint8_t* packed, const SweepNumbers& p,
                                    const SweepBlock& mine) {
  const int all = p.chunks * VolumeSizes::plane_taps, bytes = p.weight_bytes;
  const uint8_t* from = packed + int64_t{mine.channel_tile} * all * bytes;
  RingPlace place;
  wait_for_launch_before();
  for (int z = max(mine.first_plane(p), 0); z < min(mine.end_plane(p), p.in[0]); ++z) {
    for (int i = 0; i < all; ++i, place.advance(p.weight_stages)) {
      wait_at(shared.weight_read + place.stage, place.parity ^ 1);
      arrive_with_copies(shared.weight_there + place.stage, bytes);
      copy_bytes(shared.weights + place.stage * bytes, from + int64_t{i} * bytes, bytes,
                 shared.weight_there + place.stage);
    }
    if (p.keeps_weights) return;
  }
}

// The products of one chunk of a plane, for all taps of the plane.
template <typename T, typename Form>
__device__ __forceinline__ void multiply_plane(float (&sums)[Sweep::group_tiles][Form::product_tiles][4],
                                               const SweepShared& shared, const SweepNumbers& p,
                                               const uint32_t (&tile_at)[2], uint32_t plane, RingPlace& weights,
                                               bool announces) {
  const uint32_t line_bytes = static_cast<uint32_t>(p.line_pixels * Form::pixel_bytes);
  const bool keeps = p.keeps_weights;
  int before = -1;  // the stage of weights whose products may still be under way
#pragma unroll 1
  for (int tap = 0; tap < VolumeSizes::plane_taps; ++tap, weights.advance(p.weight_stages)) {
    wait_at(shared.weight_there + weights.stage, keeps ? 0 : weights.parity);
    const uint32_t behind = static_cast<uint32_t>(tap / VolumeSizes::kernel) * line_bytes +
                            static_cast<uint32_t>(tap % VolumeSizes::kernel * Form::pixel_bytes);
    const uint64_t right = shared_pixels<Form::pixel_bytes>(
        shared_address(shared.weights) + static_cast<uint32_t>(weights.stage * Form::weight_bytes),
        8 * Form::pixel_bytes);
    begin_products();
#pragma unroll
    for (int k = 0; k < Form::steps; ++k)
#pragma unroll
      for (int m = 0; m < Sweep::group_tiles; ++m)
        start_wide_product<T, false, false, Form::product_tiles>(
            sums[m], shared_pixels<Form::pixel_bytes>(plane + tile_at[m] + behind, line_bytes) + 2 * k, right + 2 * k);
    commit_products();
    if (keeps) continue;
    wait_for_products<1>();
    if (announces && before >= 0) arrive_at(shared.weight_read + before);
    before = weights.stage;
  }
  wait_for_products<0>();
#pragma unroll
  for (int m = 0; m < Sweep::group_tiles; ++m) settle_here(sums[m]);
  if (announces && before >= 0) arrive_at(shared.weight_read + before);
}

// The threads of one computing warpgroup wait for each other.
__device__ inline void wait_for_group(int group) {
  asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(group_threads) : "memory");
}

template <typename T, typename Form>
__device__ void sweep_planes(const SweepShared& shared, const CUtensorMap& out, const SweepNumbers& p,
                             const SweepBlock& mine, const T* bias) {
  const int group = static_cast<int>(threadIdx.x) / group_threads,
            thread = static_cast<int>(threadIdx.x) % group_threads;
  const int warp = thread / warp_threads, lane = thread % warp_threads;
  const bool announces = thread == 0;
  uint32_t tile_at[Sweep::group_tiles];
  int tile_down[Sweep::group_tiles], tile_across[Sweep::group_tiles];
#pragma unroll
  for (int m = 0; m < Sweep::group_tiles; ++m) {
    const int tile = group * Sweep::group_tiles + m;
    tile_down[m] = tile / p.tiles_across * Sweep::tile_side, tile_across[m] = tile % p.tiles_across * Sweep::tile_side;
    tile_at[m] = static_cast<uint32_t>((tile_down[m] * p.line_pixels + tile_across[m]) * Form::pixel_bytes);
  }
  // Lane 8 m + i says where row i of 8 x 8 matrix m goes: two of them are below each other, two beside each other.
  uint8_t* const staged = shared.staged + group * Sweep::group_tiles * Form::staged_tile;
  const int row = warp * 16 + lane / 8 % 2 * 8 + lane % 8;
  const int change = Form::result_bytes == 128 ? row % 8 : row / 2 % 4;
  const int first_channel = mine.channel_tile * Form::slot;

  float sums[Sweep::group_tiles][Form::product_tiles][4] = {};
  RingPlace place, weights;
#pragma unroll 1
  for (int z = mine.first_plane(p); z < mine.end_plane(p); ++z) {
    if (z >= 0 && z < p.in[0])
#pragma unroll 1
      for (int chunk = 0; chunk < p.chunks; ++chunk, place.advance(p.planes)) {
        wait_at(shared.plane_there + place.stage, place.parity);
        multiply_plane<T, Form>(sums, shared, p, tile_at,
                                shared_address(shared.planes) + static_cast<uint32_t>(place.stage * p.plane_bytes),
                                weights, announces);
        if (announces) arrive_at(shared.plane_read + place.stage);
      }
    const int made = z - p.first[0] - (VolumeSizes::kernel - 1);
    if (made >= mine.begin) {
      if (announces) wait_for_box_reads();
      wait_for_group(group);
#pragma unroll
      for (int m = 0; m < Sweep::group_tiles; ++m)
#pragma unroll
        for (int i = 0; i < Form::slot_tiles; i += 2) {
          float(&left)[4] = sums[m][i], (&right)[4] = sums[m][i + 1];
          if (bias) {
#pragma unroll
            for (int j = 0; j < 2; ++j) {
              const int channel = first_channel + (i + j) * 8 + lane % 4 * 2;
              if (channel >= p.out_channels) continue;
              const Packed<T, 2> two = load_packed<2>(bias + channel);
              float(&sum)[4] = j == 0 ? left : right;
              sum[0] += two[0], sum[1] += two[1], sum[2] += two[0], sum[3] += two[1];
            }
          }
          const uint32_t words[4] = {packed_pair<T>(left[0], left[1]), packed_pair<T>(left[2], left[3]),
                                     packed_pair<T>(right[0], right[1]), packed_pair<T>(right[2], right[3])};
          store_matrices(staged + m * Form::staged_tile + row * Form::result_bytes + ((i + lane / 16) ^ change) * 16,
                         words);
        }
      show_to_copies();
      wait_for_group(group);
      if (announces) {
#pragma unroll
        for (int m = 0; m < Sweep::group_tiles; ++m) {
          const VolumePlace at{first_channel, mine.across + tile_across[m], mine.down + tile_down[m], made, mine.batch};
          if (at.across < p.out[2] && at.down < p.out[1]) store_box(staged + m * Form::staged_tile, out, at);
        }
        commit_boxes();
      }
    }
    // The plane that was second is the next one to be complete.
#pragma unroll
    for (int m = 0; m < Sweep::group_tiles; ++m)
#pragma unroll
      for (int i = 0; i < Form::product_tiles; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j)
          sums[m][i][j] = i < 2 * Form::slot_tiles ? sums[m][(i + Form::slot_tiles) % Form::product_tiles][j] : 0.0f;
  }
  if (announces) wait_for_box_reads();
}

template <typename T, typename Form>
__global__ void __launch_bounds__(all_threads, 1)
    volume_sweep_kernel(const __grid_constant__ CUtensorMap in, const __grid_constant__ CUtensorMap out,
                        const uint8_t* packed, const T* bias, const __grid_constant__ SweepNumbers p) {
  if constexpr (has_warpgroups) {
    extern __shared__ uint8_t memory[];
    const SweepShared shared(memory, p);
    const SweepBlock mine(p);
    const int thread = static_cast<int>(threadIdx.x);
    if (thread == 0) shared.create(p);
    __syncthreads();
    if (thread >= computing_threads) {
      give_registers<copying_registers>();
      if (thread == computing_threads) copy_planes(shared, in, p, mine);
      if (thread == computing_threads + warp_threads) copy_weights(shared, packed, p, mine);
    } else {
      take_registers<computing_registers>();
      sweep_planes<T, Form>(shared, out, p, mine, bias);
    }
  } else {
    __trap();
  }
}

template <typename T, typename Form>
cudaError_t launch(void* y, const void* x, const void* w, const void* bias, const Sweep& p, void* workspace,
                   cudaStream_t stream) {
  CUtensorMap in, out;
  if (const cudaError_t error = map_volume(
          in, x,
          {p.sizes.batch, {p.in(0), p.in(1), p.in(2)}, p.in_channels(), {1, p.lines(), p.line_pixels()}, Form::terms}))
    return error;
  if (const cudaError_t error = map_volume(out, y,
                                           {p.sizes.batch,
                                            {p.out(0), p.out(1), p.out(2)},
                                            p.out_channels(),
                                            {1, Sweep::tile_side, Sweep::tile_side},
                                            Form::slot}))
    return error;
  auto* packed = static_cast<uint8_t*>(workspace);
  pack_volume_weights_kernel<T, Form>
      <<<blocks_for(p.packed_bytes() / 2), block_threads, 0, stream>>>(packed, static_cast<const T*>(w), p);
  if (const cudaError_t error = cudaGetLastError()) return error;
  const auto kernel = volume_sweep_kernel<T, Form>;
  const auto bytes = static_cast<size_t>(p.shared_bytes());
  if (const cudaError_t error = allow_shared(kernel, bytes)) return error;
  cudaLaunchAttribute early;
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(p.blocks());
  config.blockDim = all_threads;
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, in, out, static_cast<const uint8_t*>(packed), static_cast<const T*>(bias),
                            SweepNumbers(p));
}

}  // namespace

cudaError_t volume_convolution(Scalar type, void* y, const void* x, const void* w, const void* bias, const Sweep& p,
                               void* workspace, cudaStream_t stream) {
  return with_16_bits(type, [&]<typename T>(T*) {
    const auto run = [&]<int slot, int terms>(std::integral_constant<int, slot>, std::integral_constant<int, terms>) {
      return launch<T, VolumeForm<slot, terms>>(y, x, w, bias, p, workspace, stream);
    };
    constexpr std::integral_constant<int, 32> few;
    constexpr std::integral_constant<int, 64> many;
    if (p.slot == 64) return p.terms == 64 ? run(many, many) : run(many, few);
    return p.terms == 64 ? run(few, many) : run(few, few);
  });
}

}  // namespace plimsoll::cuda
