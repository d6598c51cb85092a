#pragma once

#include "kernels/pool_window.h"
#include "runtime/kernels/cuda_candidate.h"

namespace plimsoll {

// The windows of a pool from x to y.
template <typename Int>
PoolWindow<Int> pool_window(const Attrs& attrs, llvm::ArrayRef<int64_t> x, llvm::ArrayRef<int64_t> y) {
  const auto rank = static_cast<int64_t>(x.size()) - 2;
  const size_t first = attrs.get_int("channels_last") ? 1 : 2;
  PoolWindow<Int> window{};
  for (int64_t to = 0; to < 3; ++to) {
    const int64_t d = to + rank - 3;
    auto entry = [&](llvm::ArrayRef<int64_t> list, int64_t i, Int otherwise) {
      return d < 0 || list.empty() ? otherwise : static_cast<Int>(list[static_cast<size_t>(i)]);
    };
    window.in[to] = entry(x.drop_front(first), d, 1);
    window.out[to] = entry(y.drop_front(first), d, 1);
    window.kernel[to] = entry(attrs.get_ints("kernel"), d, 1);
    window.strides[to] = entry(attrs.get_ints("strides"), d, 1);
    window.dilations[to] = entry(attrs.get_ints("dilations"), d, 1);
    window.pads_begin[to] = entry(attrs.get_ints("pads"), d, 0);
    window.pads_end[to] = entry(attrs.get_ints("pads"), d + rank, 0);
  }
  return window;
}

}  // namespace plimsoll
