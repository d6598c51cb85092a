#pragma once

// A loop nest over several strided tensors, with as few dimensions as their strides allow. The same
// shape, a scalar, a row vector, a column: all become one or two dimensions here.

#include <array>
#include <cstdint>

namespace plimsoll {

inline constexpr int max_rank = 12;

// A tensor around one of its axes.
struct AxisShape {
  int64_t outer = 1, length = 1, inner = 1;

  constexpr int64_t rows() const { return outer * inner; }
};

// Sizes and, for each of N tensors, strides (in elements; 0 repeats, negative runs backwards), outermost
// first.
template <int N>
struct LoopNest {
  int rank = 0;
  std::array<int64_t, max_rank> sizes{};
  std::array<std::array<int64_t, max_rank>, N> strides{};

  void add_dimension(int64_t size, const std::array<int64_t, N>& steps) {
    sizes[rank] = size;
    for (int t = 0; t < N; ++t) strides[t][rank] = steps[t];
    ++rank;
  }

  int64_t iterations() const {
    int64_t n = 1;
    for (int d = 0; d < rank; ++d) n *= sizes[d];
    return n;
  }
};

// The same iterations in the same order: sizes of 1 dropped, neighbours merged where every tensor walks
// through both without a jump. At least one dimension is left.
template <int N>
LoopNest<N> collapse(const LoopNest<N>& nest) {
  LoopNest<N> out;
  for (int d = 0; d < nest.rank; ++d) {
    if (nest.sizes[d] == 1) continue;
    bool joins = out.rank > 0;
    for (int t = 0; joins && t < N; ++t) joins = out.strides[t][out.rank - 1] == nest.strides[t][d] * nest.sizes[d];
    if (!joins) {
      out.sizes[out.rank++] = 1;
    }
    out.sizes[out.rank - 1] *= nest.sizes[d];
    for (int t = 0; t < N; ++t) out.strides[t][out.rank - 1] = nest.strides[t][d];
  }
  if (out.rank == 0) out.add_dimension(1, {});
  return out;
}

// Visits the outer iterations [begin, end) of a nest without its last `inner` dimensions:
// visit(offsets), one offset a tensor, in row-major order.
template <int N, typename Visit>
void walk_outer(const LoopNest<N>& nest, int inner, int64_t begin, int64_t end, Visit&& visit) {
  const int outer = nest.rank - inner;
  std::array<int64_t, max_rank> index{};
  std::array<int64_t, N> offsets{};
  int64_t rest = begin;
  for (int d = outer - 1; d >= 0; --d) {
    index[d] = rest % nest.sizes[d];
    rest /= nest.sizes[d];
    for (int t = 0; t < N; ++t) offsets[t] += index[d] * nest.strides[t][d];
  }
  for (int64_t i = begin; i < end; ++i) {
    visit(offsets);
    for (int d = outer - 1; d >= 0; --d) {
      for (int t = 0; t < N; ++t) offsets[t] += nest.strides[t][d];
      if (++index[d] < nest.sizes[d]) break;
      for (int t = 0; t < N; ++t) offsets[t] -= nest.strides[t][d] * nest.sizes[d];
      index[d] = 0;
    }
  }
}

}  // namespace plimsoll
