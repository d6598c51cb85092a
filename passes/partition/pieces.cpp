#include "passes/partition/pieces.h"

#include "ir/support/align.h"

namespace plimsoll {
namespace {

constexpr int64_t min_elements = 1024;  // of a piece: each state costs a collective, however small it is
constexpr int64_t piece_multiple = 64;  // pieces begin where kernels read wide words
constexpr int64_t padded_multiple = 1024;

}  // namespace

Shape piece_shape(llvm::ArrayRef<int64_t> whole, int64_t ranks) {
  const int64_t elements = element_count(whole);
  if (ranks == 1 || elements < ranks * min_elements) return {};
  if (elements % (ranks * piece_multiple) == 0) return {elements / ranks};
  return {align_up((elements + ranks - 1) / ranks, padded_multiple)};
}

Attrs data_group(int64_t ranks, llvm::ArrayRef<int64_t> shape) {
  return collective_attrs(MeshAxis::Data, ranks, shape);
}

}  // namespace plimsoll
