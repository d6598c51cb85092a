#include "passes/rewrite/composed_transpose.h"

// Every dim is a list of parts of source dims. A reshape that cuts a dim cuts a part in two. Parts that end up in their
// old order are merged again.

#include "llvm/ADT/STLExtras.h"

#include <algorithm>

namespace plimsoll {

bool ComposedTranspose::keeps_order() const {
  int64_t last = -1;
  for (int64_t from : permutation) {
    if (split[from] == 1) continue;
    if (from < last) return false;
    last = from;
  }
  return true;
}

TransposeComposer::TransposeComposer(llvm::ArrayRef<int64_t> source) : source_(source.begin(), source.end()) {
  for (size_t d = 0; d < source.size(); ++d) {
    dims_.emplace_back();
    if (source[d] != 1) dims_.back().push_back({static_cast<int64_t>(d), 1, source[d]});
  }
}

void TransposeComposer::transpose(llvm::ArrayRef<int64_t> permutation) {
  llvm::SmallVector<Parts, 6> moved;
  for (int64_t from : permutation) moved.push_back(dims_[from]);
  dims_ = std::move(moved);
}

bool TransposeComposer::reshape(llvm::ArrayRef<int64_t> shape) {
  Parts left;  // not taken by any dim yet, in reverse order
  for (const Parts& dim : llvm::reverse(dims_)) left.append(dim.rbegin(), dim.rend());
  dims_.clear();
  for (int64_t wanted : shape) {
    Parts& dim = dims_.emplace_back();
    while (wanted > 1) {
      Part part = left.pop_back_val();
      if (wanted % part.size != 0) {
        if (part.size % wanted != 0) return false;
        int64_t inner = part.size / wanted;
        left.push_back({part.dim, part.stride, inner});
        part = {part.dim, part.stride * inner, wanted};
      }
      dim.push_back(part);
      wanted /= part.size;
    }
  }
  return true;
}

ComposedTranspose TransposeComposer::result() const {
  Parts moved;
  for (size_t d = 0; d < source_.size(); ++d)
    if (source_[d] == 1) moved.push_back({static_cast<int64_t>(d), 1, 1});
  for (const Parts& dim : dims_)
    for (const Part& part : dim) {
      bool continues = !moved.empty() && moved.back().dim == part.dim && moved.back().stride == part.stride * part.size;
      if (continues)
        moved.back() = {part.dim, part.stride, moved.back().size * part.size};
      else
        moved.push_back(part);
    }
  Parts placed = moved;
  llvm::sort(placed, [](const Part& a, const Part& b) { return a.dim != b.dim ? a.dim < b.dim : a.stride > b.stride; });
  ComposedTranspose result;
  for (const Part& part : placed) result.split.push_back(part.size);
  for (const Part& part : moved)
    result.permutation.push_back(
        llvm::find_if(placed, [&](const Part& p) { return p.dim == part.dim && p.stride == part.stride; }) -
        placed.begin());
  return result;
}

}  // namespace plimsoll
