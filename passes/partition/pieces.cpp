#include "passes/partition/pieces.h"

#include "ir/support/align.h"

namespace plimsoll {
namespace {

constexpr int64_t min_elements = 1024;  // of a piece: each state costs a collective, however small it is
constexpr int64_t piece_multiple = 64;  // pieces begin where kernels read wide words
constexpr int64_t padded_multiple = 1024;
constexpr int64_t max_padding = 8;  // one of so many: padded pieces are copied and have launches of their own

}  // namespace

Shape piece_shape(llvm::ArrayRef<int64_t> whole, int64_t ranks) {
  const int64_t elements = element_count(whole);
  if (ranks == 1 || elements < ranks * min_elements) return {};
  if (elements % (ranks * piece_multiple) == 0) return {elements / ranks};
  const int64_t piece = align_up((elements + ranks - 1) / ranks, padded_multiple);
  if (ranks * piece - elements > elements / max_padding) return {};
  return {piece};
}

Attrs data_group(int64_t ranks, llvm::ArrayRef<int64_t> shape) {
  return collective_attrs(MeshAxis::Data, ranks, shape);
}

}  // namespace plimsoll
