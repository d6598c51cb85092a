#include "kernels/cuda/common/early_launch.cuh"
#include "kernels/cuda/common/warpgroup.cuh"
#include "kernels/cuda/conv/grouped.h"
#include "kernels/cuda/conv/packed_operands.cuh"
#include "kernels/cuda/conv/sum_parts.h"
#include "kernels/cuda/conv/unit_tiles.cuh"

// Weight gradients of 3 x 3 convolutions whose pixels are no whole units of 8 channels, on Hopper. Reads a line of x
// and of dy once for each kind of block, and writes the sums of every block, which a second launch adds up in a fixed
// order.

namespace plimsoll::cuda {
namespace {

struct BlockLines {
  int split, kind, first, end;  // lines of x of all images whose sums the block makes
  int first_copied, copied;     // with those above and below them

  __device__ explicit BlockLines(const PackedSums& p)
      : split(static_cast<int>(blockIdx.x) / p.kinds), kind(static_cast<int>(blockIdx.x) - split * p.kinds) {
    const int all = p.batch * p.height;
    first = split * p.block_lines, end = min(first + p.block_lines, all);
    first_copied = max(first - 1, 0), copied = min(end + 1, all) - first_copied;
  }
};

// Places of lines in the ring: those of x first.
struct LinePlaces {
  uint32_t x, dy, zeros;

  __device__ LinePlaces(const void* memory, const PackedSums& p)
      : x(shared_address(memory)),
        dy(x + static_cast<uint32_t>(p.lines * p.x_slot_bytes)),
        zeros(dy + static_cast<uint32_t>(p.lines * p.dy_slot_bytes)) {}
  __device__ uint32_t x_line(const PackedSums& p, int place) const {
    return x + static_cast<uint32_t>(place * p.x_slot_bytes + p.x_front_bytes);
  }
  __device__ uint32_t dy_line(const PackedSums& p, int place) const {
    return dy + static_cast<uint32_t>(place * p.dy_slot_bytes);
  }
};

__device__ void write_zeros(const LinePlaces& at, const PackedSums& p, int thread) {
  const int front = p.x_front_bytes / 16, x_units = (p.x_slot_bytes - p.x_line_bytes) / 16,
            units = x_units + (p.dy_slot_bytes - p.dy_line_bytes) / 16;
  const int gaps = p.lines * units;
  for (int i = thread; i < gaps + p.zero_bytes() / 16; i += PackedSums::computing_threads) {
    const int place = i / units, unit = i - place * units;
    const uint32_t x = at.x_line(p, place), dy = at.dy_line(p, place);
    const int bytes = unit * 16;
    const uint32_t to = i >= gaps        ? at.zeros + static_cast<uint32_t>(i - gaps) * 16
                        : unit < front   ? x - static_cast<uint32_t>(p.x_front_bytes - bytes)
                        : unit < x_units ? x + static_cast<uint32_t>(p.x_line_bytes + bytes - p.x_front_bytes)
                                         : dy + static_cast<uint32_t>(p.dy_line_bytes + bytes - x_units * 16);
    store_zero(to);
  }
}

// Where a thread finds 16 pixels of x and those of dy above, beside and below them.
struct StepPlaces {
  uint32_t x, dy[PackedSums::kernel];
};

// A team's steps: 16 pixels of a line each. Teams take units of pixels by turns. known: channels of both images, or 0.
template <int known>
class TeamSteps {
 public:
  __device__ TeamSteps(const LinePlaces& at, PackedBarriers& barriers, const PackedSums& p, const BlockLines& mine,
                       const SumPart& part)
      : at_(at), p_(p), mine_(mine), reader_(barriers, p) {
    const int lane = static_cast<int>(threadIdx.x) % warp_threads, g = lane / 4, first = lane % 4 * p.spread;
    x_own_ = static_cast<uint32_t>((first - 1) * p.x_channels * 2 + (part.first_word + g) * 4);
    dy_own_ = static_cast<uint32_t>(first * p.y_channels * 2 + (part.first_channel_word + g) * 4);
    gives_back_ = mine.copied > p.lines;
    lines_of_turn_ = p.of_line.quotient(p.teams), units_of_turn_ = p.teams - lines_of_turn_ * p.line_units;
    const int of_block = p.of_line.quotient(part.team), line = mine.first + of_block;
    unit_ = part.team - of_block * p.line_units;
    image_line_ = line - p.of_height.quotient(line) * p.height;
    line_ = line - mine.first_copied, end_ = mine.end - mine.first_copied;
    place_ = p.place_in_ring(line_);
  }

  __device__ bool is_there() const { return line_ < end_; }
  // The next step, whose lines have come.
  __device__ StepPlaces next() {
    constexpr int further = 4;  // pixels from a step to the second one of a unit
    const bool has_two = known > 0 ? known / 2 % 2 != 0 : p_.steps > 1;
    const int x_channels = known > 0 ? known : p_.x_channels, y_channels = known > 0 ? known : p_.y_channels;
    if (has_two && step_ > 0) {
      step_ = 0;
      StepPlaces places = before_;
      places.x += static_cast<uint32_t>(further * x_channels * 2);
      for (uint32_t& dy : places.dy) dy += static_cast<uint32_t>(further * y_channels * 2);
      take_turn();
      return places;
    }
    // Lines of the unit before this may still be read.
    if (gives_back_) reader_.give_back_before(last_line_ - 1);
    last_line_ = line_;
    reader_.wait_for(min(line_ + 1, mine_.copied - 1));
    const int pixel = unit_ * p_.unit_pixels();
    const uint32_t in_dy = static_cast<uint32_t>(pixel * y_channels * 2) + dy_own_;
    before_.x = at_.x_line(p_, place_) + static_cast<uint32_t>(pixel * x_channels * 2) + x_own_;
    // Taps of the first line read x one line above dy.
    const int above = place_ > 0 ? place_ - 1 : p_.lines - 1, below = place_ + 1 < p_.lines ? place_ + 1 : 0;
    before_.dy[0] = image_line_ + 1 < p_.height ? at_.dy_line(p_, below) + in_dy : at_.zeros;
    before_.dy[1] = at_.dy_line(p_, place_) + in_dy;
    before_.dy[2] = image_line_ > 0 ? at_.dy_line(p_, above) + in_dy : at_.zeros;
    const StepPlaces places = before_;
    if (has_two)
      step_ = 1;
    else
      take_turn();
    return places;
  }
  // Others may need lines for which there is no room yet.
  __device__ void give_all_back() {
    if (gives_back_) reader_.give_back_before(mine_.copied);
  }

 private:
  const LinePlaces& at_;
  const PackedSums& p_;
  const BlockLines& mine_;
  PackedReader reader_;
  StepPlaces before_;
  int unit_, step_ = 0, line_, end_, image_line_, place_, last_line_ = 0, lines_of_turn_, units_of_turn_;
  uint32_t x_own_, dy_own_;
  bool gives_back_;

  __device__ void take_turn() {
    unit_ += units_of_turn_;
    const bool wraps = unit_ >= p_.line_units;
    if (wraps) unit_ -= p_.line_units;
    const int lines = lines_of_turn_ + wraps;
    line_ += lines, image_line_ += lines, place_ += lines;
    while (image_line_ >= p_.height) image_line_ -= p_.height;
    while (place_ >= p_.lines) place_ -= p_.lines;
  }
};

// Words of the next products are loaded while those before are multiplied.
template <typename T, int known, int x_doubles, int y_doubles>
__device__ void add_steps(WarpSums<x_doubles, y_doubles>& sums, const LinePlaces& at, PackedBarriers& barriers,
                          const PackedSums& p, const BlockLines& mine, const SumPart& part) {
  const int g = static_cast<int>(threadIdx.x) % warp_threads / 4;
  const bool second_of_last = g % 2 != 0;
  const auto x_pixel = static_cast<uint32_t>((known > 0 ? known : p.x_channels) * 2),
             dy_pixel = static_cast<uint32_t>((known > 0 ? known : p.y_channels) * 2),
             second_pair = static_cast<uint32_t>((known > 0 ? known / 2 % 4 == 0 : p.spread == 2) ? 8 : 2),
             to_last = static_cast<uint32_t>((y_doubles * 8 + g / 2 - g) * 4);
  TeamSteps<known> steps(at, barriers, p, mine, part);
  NumbersOfX<x_doubles> x;
  ChannelsOfDy<y_doubles> dy;
  const auto load_dy = [&](uint32_t address) { dy.load(address, to_last, dy_pixel, second_pair * dy_pixel); };
  if (!steps.is_there()) return steps.give_all_back();
  StepPlaces places = steps.next();
  x.load(places.x, x_pixel, second_pair * x_pixel);
  load_dy(places.dy[0]);
  for (bool goes_on = true; goes_on;) {
    LeftFragment left[x_doubles][2];
#pragma unroll
    for (int d = 0; d < x_doubles; ++d) left[d][0] = x.fragment(d, false), left[d][1] = x.fragment(d, true);
    goes_on = steps.is_there();
    StepPlaces following = places;
    if (goes_on) following = steps.next();
    x.load(following.x, x_pixel, second_pair * x_pixel);
#pragma unroll
    for (int row = 0; row < PackedSums::kernel; ++row) {
      RightFragments right[ChannelsOfDy<y_doubles>::tiles];
#pragma unroll
      for (int n = 0; n < ChannelsOfDy<y_doubles>::tiles; ++n) right[n] = dy.fragment(n, second_of_last);
      load_dy(row + 1 < PackedSums::kernel ? places.dy[row + 1] : following.dy[0]);
#pragma unroll
      for (int d = 0; d < x_doubles; ++d)
#pragma unroll
        for (int second = 0; second < 2; ++second)
#pragma unroll
          for (int n = 0; n < ChannelsOfDy<y_doubles>::tiles; ++n)
            multiply_add<T>(sums.at[row][d][second][n], left[d][second], right[n], 0);
    }
    places = following;
  }
  steps.give_all_back();
}

template <typename T, int known, int x_doubles, int y_doubles>
__global__ void __launch_bounds__(PackedSums::threads, 1)
    packed_lines_dw_kernel(float* __restrict__ partial, const T* __restrict__ x, const T* __restrict__ dy,
                           const __grid_constant__ PackedSums p, int64_t weights) {
  if constexpr (has_warpgroups) {
    let_next_launch_begin();
    extern __shared__ uint4 shared[];
    __shared__ PackedBarriers barriers;
    const LinePlaces at(shared, p);
    const BlockLines mine(p);
    const int thread = static_cast<int>(threadIdx.x);
    if (thread == PackedSums::computing_threads)
      barriers.set_up(p.stages,
                      p.teams * min(p.x_parts * p.y_parts - mine.kind * PackedSums::warps, PackedSums::warps));
    __syncthreads();
    if (thread >= PackedSums::computing_threads) {
      give_registers<PackedSums::copying_registers>();
      if (thread > PackedSums::computing_threads) return;
      const auto* from_x = reinterpret_cast<const uint8_t*>(x) + int64_t{mine.first_copied} * p.x_line_bytes;
      const auto* from_dy = reinterpret_cast<const uint8_t*>(dy) + int64_t{mine.first_copied} * p.dy_line_bytes;
      copy_lines(barriers, p, mine.copied, p.x_line_bytes + p.dy_line_bytes, [&](int line, int place, Barrier* full) {
        copy_bytes_at(at.x_line(p, place), from_x + int64_t{line} * p.x_line_bytes, p.x_line_bytes, full);
        copy_bytes_at(at.dy_line(p, place), from_dy + int64_t{line} * p.dy_line_bytes, p.dy_line_bytes, full);
      });
      return;
    }
    take_registers<PackedSums::computing_registers>();
    write_zeros(at, p, thread);
    asm volatile("bar.sync 1, %0;" ::"n"(PackedSums::computing_threads) : "memory");
    const int warp = __shfl_sync(whole_warp, thread / warp_threads, 0);
    const SumPart part(p, mine.kind, warp);
    WarpSums<x_doubles, y_doubles> sums{};
    if (part.is_there) add_steps<T, known, x_doubles, y_doubles>(sums, at, barriers, p, mine, part);
    float* to = partial + mine.split * weights;
    auto* joined = reinterpret_cast<float2*>(shared);
    switch (x_doubles > 1 ? PackedSums::warps : p.teams) {
      case 8: return join_teams<8>(to, joined, sums, p, part, warp);
      case 4: return join_teams<4>(to, joined, sums, p, part, warp);
      case 2: return join_teams<2>(to, joined, sums, p, part, warp);
      default: write_sums(to, sums, p, part);
    }
  } else {
    __trap();
  }
}

}  // namespace

cudaError_t packed_lines_dw(Scalar type, Scalar to, void* dw, const void* x, const void* dy, const ConvolutionSizes& c,
                            void* workspace, cudaStream_t stream) {
  const PackedSums p(c);
  const auto bytes = static_cast<size_t>(p.shared_bytes());
  auto* partial = static_cast<float*>(workspace);
  return with_16_bits(type, [&]<typename T>(T*) {
    const auto run = [&](auto kernel) {
      if (const cudaError_t error = allow_shared(kernel, bytes)) return error;
      kernel<<<static_cast<unsigned>(p.blocks()), PackedSums::threads, bytes, stream>>>(
          partial, static_cast<const T*>(x), static_cast<const T*>(dy), p, c.weights());
      if (const cudaError_t error = cudaGetLastError()) return error;
      return sum_parts(to, dw, partial, p.splits, c.weights(), stream);
    };
    switch (p.x_channels == p.y_channels ? p.x_channels : 0) {
      case 18: return run(packed_lines_dw_kernel<T, 18, 2, 1>);
      case 36: return run(packed_lines_dw_kernel<T, 36, 1, 2>);
      case 72: return run(packed_lines_dw_kernel<T, 72, 1, 2>);
      default: return p.has_few ? run(packed_lines_dw_kernel<T, 0, 2, 1>) : run(packed_lines_dw_kernel<T, 0, 1, 2>);
    }
  });
}

}  // namespace plimsoll::cuda
