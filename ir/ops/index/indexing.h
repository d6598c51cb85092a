#pragma once

// The gather and scatter families share the three ways of naming elements by index.

#include "ir/ops/common/support.h"

#include "llvm/ADT/STLExtras.h"

namespace plimsoll {

// A negative index counts from the end.
inline Result<int64_t> checked_index(int64_t index, int64_t length) {
  int64_t at = index < 0 ? index + length : index;
  if (at < 0 || at >= length)
    return model_error("index " + llvm::Twine(index) + " is outside a dimension of " + llvm::Twine(length));
  return at;
}

// Operand 1 indexes operand 0 along the attribute `axis`, elementwise: equal ranks, no larger but at the
// axis.
Status check_elements_indices(const OpCall& call);
// The same where indices may lack leading dimensions, which lie before the axis: all slices along these share them.
Status check_shared_indices(const OpCall& call, const Type& x);
// The leading dimensions of x that such indices lack, then theirs.
Shape indexed_shape(const Type& x, const Type& indices);
// The last dimension of operand 1 holds coordinates into operand 0, after `batch_dims` dimensions they share.
Status check_nd_indices(const OpCall& call, int64_t batch_dims);

// visit(i, at): element i of what the indices pick is the element `at` of a tensor of shape `whole`. Indices may lack
// leading dimensions.
template <typename Visit>
Status for_each_element_index(llvm::ArrayRef<int64_t> whole, int64_t axis, const TensorView& indices, Visit visit) {
  Shape own = row_major_strides(whole), strides = own;
  strides[axis] = 0;
  Shape shape(whole.begin(), whole.end() - indices.type.rank());
  llvm::append_range(shape, indices.type.shape);
  const int64_t count = indices.elements();
  Status status = Status::success();
  walk<1>(shape, {strides}, {}, [&](int64_t i, const auto& at) {
    if (status) return;
    Result<int64_t> k = checked_index(indices.get_int(i % count), whole[axis]);
    if (k)
      visit(i, at[0] + *k * own[axis]);
    else
      status = k.takeError();
  });
  return status;
}

// visit(i, at, count): index tuple i names `count` consecutive elements from `at` of a tensor of shape
// `whole`.
template <typename Visit>
Status for_each_nd_index(llvm::ArrayRef<int64_t> whole, const TensorView& indices, int64_t batch_dims, Visit visit) {
  Shape strides = row_major_strides(whole);
  int64_t depth = indices.type.shape.back();
  int64_t tuples = element_count(llvm::ArrayRef<int64_t>(indices.type.shape).drop_back());
  int64_t batches = element_count(whole.take_front(batch_dims));
  int64_t batch_size = element_count(whole.drop_front(batch_dims));
  int64_t count = element_count(whole.drop_front(batch_dims + depth));
  for (int64_t i = 0; i < tuples; ++i) {
    int64_t at = i / (tuples / batches) * batch_size;
    for (int64_t d = 0; d < depth; ++d) {
      Result<int64_t> k = checked_index(indices.get_int(i * depth + d), whole[batch_dims + d]);
      if (!k) return k.takeError();
      at += *k * strides[batch_dims + d];
    }
    visit(i, at, count);
  }
  return Status::success();
}

}  // namespace plimsoll
