#pragma once

// Where the elements of a dense tensor go through any chain of transposes and reshapes, as the one transpose the chain
// amounts to. Works on shapes alone; no dim may be 0.

#include "ir/type.h"

namespace plimsoll {

// reshape(x, split), then transpose by `permutation`, then a reshape to whatever shape the chain ends in.
struct ComposedTranspose {
  Shape split;
  llvm::SmallVector<int64_t, 6> permutation;

  bool keeps_order() const;  // no element moves: a reshape does
};

class TransposeComposer {
 public:
  explicit TransposeComposer(llvm::ArrayRef<int64_t> source);

  void transpose(llvm::ArrayRef<int64_t> permutation);
  // False when a dim of `shape` would need a part of a dim that does not divide it; the tracker is of no use then.
  [[nodiscard]] bool reshape(llvm::ArrayRef<int64_t> shape);

  // With as few dims as possible among those that leave the dims of the source apart.
  ComposedTranspose result() const;

 private:
  // `size` steps of `stride` elements along one dim of the source. Sizes are above 1.
  struct Part {
    int64_t dim, stride, size;
  };
  using Parts = llvm::SmallVector<Part, 4>;

  Shape source_;
  llvm::SmallVector<Parts, 6> dims_;  // what each dim is made of, outermost first; none: a dim of size 1
};

}  // namespace plimsoll
