#include "kernels/cuda/reduce/reduce.h"

#include "kernels/cuda/common/packed.cuh"
#include "kernels/cuda/common/partial_sums.cuh"
#include "kernels/cuda/common/short_rows.cuh"

#include <cmath>

// Serves reduce_sum, reduce_mean, reduce_max, reduce_min and reduce_prod, and the bias of linear_dw. x is read once.
// Blocks combine parts of the reduced elements; where an output has several parts, they go through the workspace
// [parts, outputs] and a second kernel combines them in their order.

namespace plimsoll::cuda {
namespace {

// Sums are templates of their own; what is rarer chooses at run time.
enum class Family : uint8_t { Sum, Other };

template <Family family>
struct Operation {
  Reduction reduction;

  __device__ float empty() const {
    if (family == Family::Sum) return 0.0f;
    if (reduction == Reduction::Product) return 1.0f;
    return reduction == Reduction::Max ? -INFINITY : INFINITY;
  }
  // NaN wins over any maximum or minimum.
  __device__ float operator()(float a, float b) const {
    if (family == Family::Sum) return a + b;
    if (reduction == Reduction::Product) return a * b;
    return b != b || (reduction == Reduction::Max ? a < b : b < a) ? b : a;
  }
};

// Where totals go: the outputs, or the parts of a second stage.
struct Destination {
  void* y;
  Scalar type;
  float divisor;
  float* parts;

  __device__ void store(int64_t output, int64_t part, int64_t outputs, float total) const {
    if (parts)
      parts[part * outputs + output] = total;
    else
      store_any(y, type, output, static_cast<double>(total / divisor));
  }
  // Neighbouring totals that are outputs.
  template <int n>
  __device__ void store_together(int64_t output, float (&totals)[n]) const {
#pragma unroll
    for (float& total : totals) total /= divisor;
    if (type == Scalar::BF16)
      store_packed(static_cast<bf16*>(y) + output, pack<bf16>(totals));
    else if (type == Scalar::F16)
      store_packed(static_cast<f16*>(y) + output, pack<f16>(totals));
    else
      store_vector(static_cast<float*>(y) + output, reinterpret_cast<const Vector<float, n>&>(totals));
  }
};

struct Range {
  int64_t begin, end;
  __device__ Range(int64_t length, int64_t part, int64_t parts)
      : begin(length * part / parts), end(length * (part + 1) / parts) {}
};

// Rows [lead, outer, length]; team number = (lead * splits + split) * outer + output.
template <Family family, RowTeam team, typename T>
__global__ void __launch_bounds__(block_threads)
    reduce_rows_kernel(Operation<family> f, Destination to, ReductionPlan plan, const T* x) {
  const int64_t number = team_row<team>();
  if (number >= plan.lead * plan.splits * plan.outer) return;
  const int64_t output = number % plan.outer, part = number / plan.outer;
  const Range range(plan.length, part % plan.splits, plan.splits);
  const T* row = x + (part / plan.splits * plan.outer + output) * plan.length;
  float total = f.empty();
  for_row(row + range.begin, range.end - range.begin, team_thread<team>(), team_threads<team>(),
          [&](int64_t, const auto& values) {
            for (T value : values.at) total = f(total, widen(value));
          });
  total = team_reduce<team>(total, f, f.empty());
  if (team_thread<team>() == 0) to.store(output, part, plan.outer, total);
}

// The same for whole rows that are too short for a warp.
template <Family family, int n, int held, int at_once, typename T>
__global__ void __launch_bounds__(short_row_threads)
    reduce_short_rows_kernel(Operation<family> f, Destination to, ReductionPlan plan, RowsByLanes rows, const T* x) {
  const TeamOfRow<n, held, at_once> team(rows);
  Packed<T, n> kept[at_once][held];
  team.load(kept, x);
#pragma unroll
  for (int r = 0; r < at_once; ++r) {
    float total = f.empty();
#pragma unroll
    for (int k = 0; k < held; ++k)
      if (team.has(r, k))
#pragma unroll
        for (int i = 0; i < n; ++i) total = f(total, kept[r][k][i]);
    total = team.reduce(total, f);
    const int64_t row = team.first + r * team.step;
    if (team.lane == 0 && row < rows.count) to.store(row % plan.outer, row / plan.outer, plan.outer, total);
  }
}

// Matrices of rows that are added up.
struct SummedColumns {
  int64_t outer, length, inner;
};

// Columns [outer, length, inner], blocks as in ColumnTiles; n elements of inner a thread. Several rows are loaded
// before the first of them is added.
template <Family family, int n, typename T>
__global__ void __launch_bounds__(block_threads, 4)
    reduce_columns_kernel(Operation<family> f, Destination to, SummedColumns shape, const T* x, int64_t column_blocks) {
  constexpr int64_t batch = n * sizeof(T) < 8 ? 8 : 4;
  const int64_t outer = blockIdx.x / column_blocks;
  const int64_t column = (blockIdx.x % column_blocks * blockDim.x + threadIdx.x) * n;
  const bool inside = column < shape.inner;
  float totals[n];
#pragma unroll
  for (int i = 0; i < n; ++i) totals[i] = f.empty();
  const T* from = x + outer * shape.length * shape.inner + column;
  const int64_t step = int64_t{gridDim.y} * blockDim.y, end = inside ? shape.length : 0;
  for (int64_t row = int64_t{blockIdx.y} * blockDim.y + threadIdx.y; row < end; row += batch * step) {
    Vector<T, n> loaded[batch];
#pragma unroll
    for (int b = 0; b < batch; ++b)
      if (row + b * step < end) loaded[b] = load_vector<n>(from + (row + b * step) * shape.inner);
#pragma unroll
    for (int b = 0; b < batch; ++b)
      if (row + b * step < end)
#pragma unroll
        for (int i = 0; i < n; ++i) totals[i] = f(totals[i], widen(loaded[b].at[i]));
  }
  __shared__ float of_threads[n][block_threads];
  const int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
  for (unsigned half = blockDim.y / 2; half > 0; half /= 2) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < n; ++i) of_threads[i][thread] = totals[i];
    __syncthreads();
    if (threadIdx.y >= half) continue;
#pragma unroll
    for (int i = 0; i < n; ++i) totals[i] = f(totals[i], of_threads[i][thread + static_cast<int>(half * blockDim.x)]);
  }
  if (!inside || threadIdx.y != 0) return;
#pragma unroll
  for (int i = 0; i < n; ++i)
    to.store(outer * shape.inner + column + i, blockIdx.y, shape.outer * shape.inner, totals[i]);
}

// Parts of slabs [splits, outer, length], of which a warp or a block of as many threads combines those of an output.
template <Family family, int threads>
__global__ void __launch_bounds__(threads > warp_threads ? threads : block_threads)
    combine_slabs_kernel(Operation<family> f, Destination to, ReductionPlan plan, const float* parts) {
  const int64_t output = threads > warp_threads ? blockIdx.x : team_row<RowTeam::Warp>();
  if (output >= plan.outer) return;
  const auto length = static_cast<int>(plan.length), count = static_cast<int>(plan.parts());
  const float* from = parts + output * length;
  float total = f.empty();
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x) % threads; i < count; i += threads)
    total = f(total, from[i / length * plan.outer * length + i % length]);
  total = threads > warp_threads ? block_reduce(total, f, f.empty()) : warp_reduce(total, f);
  if (threadIdx.x % threads == 0) to.store(output, 0, plan.outer, total);
}

// The form FewRows: thread i takes outputs n * i and following ones, n of which divide a row.
template <Family family, int n, typename T>
__global__ void __launch_bounds__(block_threads)
    reduce_few_rows_kernel(Operation<family> f, Destination to, ReductionPlan plan, const T* x) {
  constexpr int batch = 4;
  const int64_t output = (int64_t{blockIdx.x} * block_threads + threadIdx.x) * n;
  if (output >= plan.outputs()) return;
  const auto inner = static_cast<int>(plan.inner), length = static_cast<int>(plan.length);
  const int outer = static_cast<int>(output) / inner;
  const T* from = x + output + int64_t{outer} * (length - 1) * inner;
  float totals[n];
#pragma unroll
  for (int i = 0; i < n; ++i) totals[i] = f.empty();
  for (int row = 0; row < length; row += batch) {
    Packed<T, n> loaded[batch];
#pragma unroll
    for (int b = 0; b < batch; ++b)
      if (row + b < length) loaded[b] = load_packed<n>(from + int64_t{row + b} * inner);
#pragma unroll
    for (int b = 0; b < batch; ++b)
      if (row + b < length)
#pragma unroll
        for (int i = 0; i < n; ++i) totals[i] = f(totals[i], loaded[b][i]);
  }
  to.store_together(output, totals);
}

// Where the numbers of kept and of reduced elements lead: the two parts of a place.
struct AnyPlaces {
  AlternatingShape shape;

  __device__ int64_t place(int64_t number, bool is_reduced) const {
    return number <= INT32_MAX ? place_of(static_cast<uint32_t>(number), is_reduced) : place_of(number, is_reduced);
  }

 private:
  template <typename Number>
  __device__ int64_t place_of(Number number, bool is_reduced) const {
    int64_t at = 0, stride = 1;
    for (int d = shape.rank - 1; d >= 0; --d) {
      const auto size = static_cast<Number>(shape.sizes[d]);
      if (shape.reduced[d] == is_reduced) {
        at += static_cast<int64_t>(number % size) * stride;
        number /= size;
      }
      stride *= shape.sizes[d];
    }
    return at;
  }
};

// Some threads for a part of an output: number = split * outer + output.
template <Family family, int threads, typename T>
__global__ void __launch_bounds__(block_threads)
    reduce_any_kernel(Operation<family> f, Destination to, ReductionPlan plan, const __grid_constant__ AnyPlaces places,
                      const T* x) {
  const int64_t number = (int64_t{blockIdx.x} * block_threads + threadIdx.x) / threads;
  if (number >= plan.splits * plan.outer) return;
  const int64_t output = number % plan.outer, part = number / plan.outer;
  const Range range(plan.length, part, plan.splits);
  const T* from = x + places.place(output, false);
  float total = f.empty();
  for (int64_t i = range.begin + threadIdx.x % threads; i < range.end; i += threads)
    total = f(total, widen(from[places.place(i, true)]));
  total = threads > warp_threads ? block_reduce(total, f, f.empty()) : warp_reduce(total, f);
  if (threadIdx.x % threads == 0) to.store(output, part, plan.outer, total);
}

// A warp for an output, or a block where the elements are many. Sums wrap as the host's do.
template <int threads, typename T>
__global__ void __launch_bounds__(block_threads)
    reduce_integers_kernel(Reduction reduction, ReductionPlan plan, const __grid_constant__ AnyPlaces places, T* y,
                           const T* x) {
  const int64_t output = (int64_t{blockIdx.x} * block_threads + threadIdx.x) / threads;
  if (output >= plan.outputs()) return;
  const int thread = static_cast<int>(threadIdx.x) % threads;
  using Unsigned = std::make_unsigned_t<T>;
  const auto combine = [reduction](T a, T b) {
    if (reduction == Reduction::Sum) return static_cast<T>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
    return reduction == Reduction::Max ? max(a, b) : min(a, b);
  };
  const int64_t length = plan.lead * plan.length;
  constexpr T least = static_cast<T>(Unsigned{1} << (8 * sizeof(T) - 1));
  T total = reduction == Reduction::Sum ? T{0} : reduction == Reduction::Max ? least : static_cast<T>(~least);
  x += places.place(output, false);
  for (int64_t i = thread; i < length; i += threads) total = combine(total, x[places.place(i, true)]);
  for (int distance = warp_threads / 2; distance > 0; distance /= 2)
    total = combine(total, __shfl_xor_sync(whole_warp, total, distance));
  if constexpr (threads > warp_threads) {
    __shared__ T of_warps[threads / warp_threads];
    if (thread % warp_threads == 0) of_warps[thread / warp_threads] = total;
    __syncthreads();
    total = of_warps[0];
    for (int warp = 1; warp < threads / warp_threads; ++warp) total = combine(total, of_warps[warp]);
  }
  if (thread == 0) y[output] = total;
}

template <Family family>
__global__ void __launch_bounds__(combine_threads)
    combine_parts_kernel(Operation<family> f, Destination to, const float* parts, int64_t count, int64_t outputs,
                         int across) {
  combine_partials(parts, count, outputs, across, f, f.empty(),
                   [&](int64_t output, float total) { to.store(output, 0, outputs, total); });
}

// Calls launch(n) with an integral constant.
template <typename T, typename Launch>
void with_columns_at_once(const ReductionPlan& plan, Launch launch) {
  const int count = plan.columns_at_once(sizeof(T));
  if constexpr (sizeof(T) == 2)
    if (count == 8) return launch(std::integral_constant<int, 8>());
  if (count == 4) return launch(std::integral_constant<int, 4>());
  if (count == 2) return launch(std::integral_constant<int, 2>());
  launch(std::integral_constant<int, 1>());
}

template <Family family, typename T>
void launch_first_stage(const ReduceCall& call, const ReductionPlan& plan, const Destination& to, cudaStream_t stream) {
  const Operation<family> f{call.reduction};
  const T* x = static_cast<const T*>(call.x);
  const int64_t teams = plan.parts() * plan.outer;
  if (plan.form == ReductionPlan::Form::Any) {
    constexpr int64_t most_of_warp = 1024;
    if (plan.length / plan.splits <= most_of_warp)
      reduce_any_kernel<family, warp_threads>
          <<<blocks_for(teams * warp_threads), block_threads, 0, stream>>>(f, to, plan, {call.shape}, x);
    else
      reduce_any_kernel<family, block_threads>
          <<<static_cast<unsigned>(teams), block_threads, 0, stream>>>(f, to, plan, {call.shape}, x);
  } else if (plan.form == ReductionPlan::Form::FewRows) {
    with_columns_at_once<T>(plan, [&](auto n) {
      reduce_few_rows_kernel<family, n>
          <<<blocks_for(divide_up(plan.outputs(), n)), block_threads, 0, stream>>>(f, to, plan, x);
    });
  } else if (plan.form == ReductionPlan::Form::Columns || plan.form == ReductionPlan::Form::Slabs) {
    const bool has_slabs = plan.form == ReductionPlan::Form::Slabs;
    const SummedColumns shape{has_slabs ? 1 : plan.outer, has_slabs ? plan.lead : plan.length, plan.columns()};
    const ColumnTiles tiles = plan.tiles(sizeof(T));
    const dim3 grid(static_cast<unsigned>(tiles.column_blocks * shape.outer), static_cast<unsigned>(plan.splits));
    const dim3 block(static_cast<unsigned>(tiles.across), static_cast<unsigned>(tiles.down()));
    with_columns_at_once<T>(plan, [&](auto n) {
      reduce_columns_kernel<family, n><<<grid, block, 0, stream>>>(f, to, shape, x, tiles.column_blocks);
    });
  } else if (const RowsByLanes rows(teams, plan.length, sizeof(T)); plan.splits == 1 && rows.lanes > 0) {
    with_short_rows<T>(rows, [&](auto n, auto held, auto at_once, unsigned blocks) {
      reduce_short_rows_kernel<family, n, held, at_once>
          <<<blocks, short_row_threads, 0, stream>>>(f, to, plan, rows, x);
    });
  } else if (plan.length / plan.splits <= 1024) {
    const auto blocks = static_cast<unsigned>(divide_up(teams, block_threads / warp_threads));
    reduce_rows_kernel<family, RowTeam::Warp><<<blocks, block_threads, 0, stream>>>(f, to, plan, x);
  } else {
    reduce_rows_kernel<family, RowTeam::Block>
        <<<static_cast<unsigned>(teams), block_threads, 0, stream>>>(f, to, plan, x);
  }
}

template <Family family>
void launch_second_stage(const ReduceCall& call, const ReductionPlan& plan, const Destination& to,
                         cudaStream_t stream) {
  constexpr int64_t most_of_warp = 1024;
  const Operation<family> f{call.reduction};
  if (plan.form != ReductionPlan::Form::Slabs)
    combine_parts_kernel<<<combining_blocks(plan.parts(), plan.outputs()), combine_threads, 0, stream>>>(
        f, to, call.workspace, plan.parts(), plan.outputs(), combined_columns(plan.parts()));
  else if (plan.parts() <= most_of_warp)
    combine_slabs_kernel<family, warp_threads>
        <<<blocks_for(plan.outer * warp_threads), block_threads, 0, stream>>>(f, to, plan, call.workspace);
  else
    combine_slabs_kernel<family, combine_threads>
        <<<static_cast<unsigned>(plan.outer), combine_threads, 0, stream>>>(f, to, plan, call.workspace);
}

template <Family family>
cudaError_t reduce_by(const ReduceCall& call, cudaStream_t stream) {
  return with_f32_math(call.x_type, [&]<typename T>(T*) {
    const ReductionPlan plan(call.shape, sizeof(T));
    if (plan.outputs() == 0) return cudaSuccess;
    const bool is_mean = call.reduction == Reduction::Mean;
    const Destination outputs{call.y, call.y_type, is_mean ? static_cast<float>(plan.lead * plan.length) : 1.0f,
                              nullptr};
    Destination first = outputs;
    if (plan.parts() > 1) first.parts = call.workspace;
    if (plan.parts() > 0) launch_first_stage<family, T>(call, plan, first, stream);
    if (plan.parts() != 1) launch_second_stage<family>(call, plan, outputs, stream);
    return cudaGetLastError();
  });
}

template <typename T>
cudaError_t reduce_integers_of(const ReduceCall& call, cudaStream_t stream) {
  constexpr int64_t most_of_warp = 1024;
  const ReductionPlan plan(call.shape, sizeof(T));
  const AnyPlaces places{call.shape};
  T* y = static_cast<T*>(call.y);
  const T* x = static_cast<const T*>(call.x);
  if (plan.outputs() == 0) return cudaSuccess;
  if (plan.lead * plan.length <= most_of_warp)
    reduce_integers_kernel<warp_threads>
        <<<blocks_for(plan.outputs() * warp_threads), block_threads, 0, stream>>>(call.reduction, plan, places, y, x);
  else
    reduce_integers_kernel<block_threads>
        <<<blocks_for(plan.outputs() * block_threads), block_threads, 0, stream>>>(call.reduction, plan, places, y, x);
  return cudaGetLastError();
}

}  // namespace

cudaError_t reduce_integers(const ReduceCall& call, cudaStream_t stream) {
  return call.x_type == Scalar::I64 ? reduce_integers_of<int64_t>(call, stream)
                                    : reduce_integers_of<int32_t>(call, stream);
}

cudaError_t reduce(const ReduceCall& call, cudaStream_t stream) {
  switch (call.reduction) {
    case Reduction::Sum:
    case Reduction::Mean: return reduce_by<Family::Sum>(call, stream);
    default: return reduce_by<Family::Other>(call, stream);
  }
}

}  // namespace plimsoll::cuda
