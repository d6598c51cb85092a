#pragma once

// Ops that pick elements by index or put them there. A negative index counts from the end; one outside its dimension
// is an error of the data that stops the kernel, and with it the run. Elements have 1, 2, 4 or 8 bytes. Nothing is
// added atomically: results do not depend on the order in which threads run.

#include "kernels/scalar.h"
#include "kernels/strides.h"

#include <cuda_runtime_api.h>

namespace plimsoll::cuda {

// In device memory, i64 or i32 unless said otherwise.
struct Indices {
  const void* data;
  Scalar type;
};

// y[o, j, :] = x[o, indices[j], :] with x [outer, size, inner_bytes].
[[nodiscard]] cudaError_t gather_rows(void* y, const void* x, const Indices& indices, int64_t outer, int64_t size,
                                      int64_t count, int64_t inner_bytes, cudaStream_t stream);

// dx[o, indices[j], :] += dy[o, j, :] into zeros, or into the addend, which may be dx itself; for each row in the order
// of j; dx and addend [outer, size, inner] of any float but F8, dy of the same type or, where dx is f32, of 16 bits.
// Workspace: gather_grad_workspace_bytes; count and size below 2^31.
[[nodiscard]] cudaError_t gather_rows_grad(Scalar type, void* dx, Scalar dy_type, const void* dy, const void* addend,
                                           const Indices& indices, int64_t outer, int64_t size, int64_t count,
                                           int64_t inner, void* workspace, cudaStream_t stream);
// The same, without workspace, of rows that ScannedRows fit, computed in f32.
[[nodiscard]] cudaError_t gather_rows_grad_by_scan(Scalar type, void* dx, Scalar dy_type, const void* dy,
                                                   const void* addend, const Indices& indices, int64_t outer,
                                                   int64_t size, int64_t count, int64_t inner, cudaStream_t stream);

// Indices of a dimension of `size`, sorted by the row that they name; u32.
struct Segments {
  const uint32_t *order, *rows;  // [count]: the place of each index, stable, and the row that it names
  const uint32_t* starts;        // [size + 1]: where each row starts in these, and the end of the last
  int64_t count, size;
};

// Count and size below 2^31. Workspace: sort_indices_workspace_bytes.
[[nodiscard]] cudaError_t sort_indices(uint32_t* order, uint32_t* rows, uint32_t* starts, const Indices& indices,
                                       int64_t count, int64_t size, void* workspace, cudaStream_t stream);

// None: the last one stays.
enum class Reduction : uint8_t { None, Add, Mul, Max, Min };

// y[o, row, :] = base[o, row, :], or zeros where base is null, combined with the x[o, entry, :] of the row's entries in
// their order; y and base [outer, size, inner] of any float but F8; base may be y. No Mul. x is of the same type or, of
// sums in f32, of 16 bits. Workspace: segment_reduce_workspace_bytes.
[[nodiscard]] cudaError_t segment_reduce(Reduction reduction, Scalar type, void* y, Scalar x_type, const void* x,
                                         const void* base, const Segments& segments, int64_t outer, int64_t inner,
                                         void* workspace, cudaStream_t stream);

// Rows of x [size, inner] that sorted entries pick, one each, of any float of 16 or 32 bits. Each of the `heads` parts
// of a row is multiplied by the weight [count, heads] that the entry has for it where it stood before the sort.
struct GatheredRows {
  const void* data;
  Scalar type;
  Indices picks;  // [count]
  int64_t size, inner, heads;
  const void* weights = nullptr;  // null: 1
  Scalar weight_type = Scalar::F32;
};

// dots[order[e], head] = the product of that part of entry e's row of x with factors at the row that e belongs to.
struct GatheredDots {
  const void* factors = nullptr;  // null: none are made; of y's shape and of any float of 16 or 32 bits
  Scalar type = Scalar::F32;
  float* dots = nullptr;  // [count, heads]
};

// y[row, :] = base[row, :], or zeros where base is null, with the weighted rows of x that the row's entries pick, in
// their order; y and base of any float of 16 or 32 bits, base may be y. Sums are in f32. With
// dots, one group of GatherLanes has a head. Workspace: segment_reduce_workspace_bytes with outer 1 and sums of 4
// bytes.
[[nodiscard]] cudaError_t gather_sum(Scalar type, void* y, const void* base, const GatheredRows& x,
                                     const GatheredDots& dots, const Segments& segments, void* workspace,
                                     cudaStream_t stream);

// y[...] = x[..., indices[...], ...] along one axis; tensors of the nest: y (dense), x with step 0 along the axis,
// which has `size` elements `axis_stride` apart. The `count` indices serve that many elements of y after the other.
struct ElementIndices {
  LoopNest<2> nest;
  Indices indices;
  int64_t count, size, axis_stride;
};
[[nodiscard]] cudaError_t gather_elements(const ElementIndices& places, void* y, const void* x, int element_bytes,
                                          cudaStream_t stream);

// Indices along the middle of a whole of [outer, size, inner], which pick [outer, count, inner] of it. They are
// [sets, count, inner]: slice o of `outer` takes set o modulo `sets`. Size and count are below 2^31.
struct IndexLines {
  Indices indices;
  int64_t outer, sets, size, count, inner;
};
// Inner is 1.
[[nodiscard]] cudaError_t gather_lines(const IndexLines& lines, void* y, const void* x, int element_bytes,
                                       cudaStream_t stream);

// Coordinates of `depth` dimensions: tuple i names `count` consecutive elements of x, after the batch dimensions.
struct TupleIndices {
  Indices indices;  // [tuples, depth]
  int64_t tuples = 0, tuples_per_batch = 1, batch_size = 0, count = 1;
  int depth = 0;
  int64_t sizes[max_rank], strides[max_rank];
};
[[nodiscard]] cudaError_t gather_tuples(const TupleIndices& places, void* y, const void* x, int element_bytes,
                                        cudaStream_t stream);

// y [outer, depth, inner]: on_off[1] where k is the index of (o, i), else on_off[0]. Indices are of any integer type;
// one outside lights nothing.
[[nodiscard]] cudaError_t one_hot(void* y, const Indices& indices, const void* on_off, int64_t outer, int64_t depth,
                                  int64_t inner, int element_bytes, cudaStream_t stream);

// y with each update written or combined in the order of the updates; y holds x already. Destinations below 2^32,
// updates below 2^31. Workspace: sort_workspace_bytes(number of indices or tuples).
[[nodiscard]] cudaError_t scatter_elements(Reduction reduction, const ElementIndices& places, Scalar type, void* y,
                                           int64_t y_elements, const void* updates, void* workspace,
                                           cudaStream_t stream);
// y is x, or zeros where x is null, with the updates added in their order where indices say; f32, bf16 or f16, summed
// in f32. y is x itself, or its bytes lie apart. lines_fit holds.
[[nodiscard]] cudaError_t add_to_lines(Scalar type, const IndexLines& lines, void* y, const void* x,
                                       const void* updates, cudaStream_t stream);
// The same where several slices share each set and inner is 1. shared_lines_fit holds. Workspace:
// shared_lines_workspace_bytes.
[[nodiscard]] cudaError_t add_to_shared_lines(Scalar type, const IndexLines& lines, void* y, const void* x,
                                              const void* updates, void* workspace, cudaStream_t stream);
[[nodiscard]] cudaError_t scatter_tuples(Reduction reduction, const TupleIndices& places, Scalar type, void* y,
                                         int64_t y_elements, const void* updates, void* workspace, cudaStream_t stream);

}  // namespace plimsoll::cuda
