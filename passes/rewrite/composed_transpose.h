#pragma once

// Composes a chain of transposes and reshapes of a dense tensor into the one transpose that it amounts to. It works on
// shapes alone; no dim may be 0.

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
  // False when a dim of `shape` would need a part of a dim that does not divide it; nothing may be asked then.
  [[nodiscard]] bool reshape(llvm::ArrayRef<int64_t> shape);

  // The result with the fewest dims that keep the dims of the source apart.
  ComposedTranspose result() const;

 private:
  // `size` steps of `stride` elements along one dim of the source. Sizes are above 1.
  struct Part {
    int64_t dim, stride, size;
  };
  using Parts = llvm::SmallVector<Part, 4>;

  Shape source_;
  llvm::SmallVector<Parts, 6> dims_;  // the parts of each dim, outermost first; none for a dim of size 1
};

}  // namespace plimsoll
