#pragma once

// A stable sort of (key, position) pairs on the device, for kernels that collect by destination what indices scatter.

#include "kernels/cuda/index/index_workspace.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace plimsoll::cuda {

struct SortArrays {
  uint32_t *keys, *positions;              // to be sorted, and afterwards sorted
  uint32_t *other_keys, *other_positions;  // as long
  uint32_t* counts;                        // sort_counts(n)
};

// The arrays in a workspace of sort_workspace_bytes(n), which is left behind.
SortArrays take_sort_arrays(char*& workspace, int64_t n);

// The same where the sorted keys and positions are to stand in arrays of the caller; for
// sort_indices_workspace_bytes(n).
SortArrays take_sort_arrays_into(uint32_t* keys, uint32_t* positions, char*& workspace, int64_t n, int64_t key_bound);

// Sorts by keys below `key_bound`; equal keys keep their order.
[[nodiscard]] cudaError_t sort_pairs(SortArrays& arrays, int64_t n, int64_t key_bound, cudaStream_t stream);

}  // namespace plimsoll::cuda
