#pragma once

// Data movement: elements of 1, 2, 4 or 8 bytes go from one strided place to another, bit for bit.

#include "kernels/strides.h"

#include <cstdint>

namespace plimsoll::cpu {

// to[...] = from[...] over the nest; tensors of the nest: destination, source; strides in elements.
// Slices, transposes, expansions, splits, concatenations and pads are all this.
void copy_strided(const LoopNest<2>& nest, void* to, const void* from, int element_bytes);

void copy_bytes(void* to, const void* from, int64_t bytes);
// n copies of one element.
void fill_elements(void* to, const void* element, int element_bytes, int64_t n);

// y[o, j, :] = x[o, indices[j], :] with x [outer, size, inner_bytes]. Negative indices count from the end.
// False when an index is outside [-size, size).
template <typename Index>
[[nodiscard]] bool gather_rows(void* y, const void* x, const Index* indices, int64_t outer, int64_t size, int64_t count,
                               int64_t inner_bytes);

// dx[o, indices[j], :] += dy[o, j, :] into zeros, or into the addend, which may be dx itself; in the order of j;
// dx [outer, size, inner].
template <typename Index>
[[nodiscard]] bool gather_rows_grad(float* dx, const float* dy, const float* addend, const Index* indices,
                                    int64_t outer, int64_t size, int64_t count, int64_t inner);

}  // namespace plimsoll::cpu
