#pragma once

// How a reduction over some axes is cut into blocks: a formula of the shape, which planning needs for the workspace.

#include "kernels/cuda/common/partials.h"

#include <initializer_list>

namespace plimsoll::cuda {

inline constexpr int max_reduced_rank = 8;

// Dimensions of size 1 are gone and neighbours of one kind are one dimension, so that kept and reduced ones alternate.
struct AlternatingShape {
  int rank = 0;
  int64_t sizes[max_reduced_rank];
  bool reduced[max_reduced_rank];

  // False when there are too many.
  bool add(int64_t size, bool is_reduced) {
    if (size == 1) return true;
    if (rank > 0 && reduced[rank - 1] == is_reduced) {
      sizes[rank - 1] *= size;
      return true;
    }
    if (rank == max_reduced_rank) return false;
    sizes[rank] = size;
    reduced[rank++] = is_reduced;
    return true;
  }
};

struct ReductionPlan {
  enum class Form : uint8_t {
    Rows,     // [lead, outer, length]: the first and the last are reduced
    Slabs,    // the same where short rows lie in many slabs [outer, length], which are added up as columns first
    Columns,  // [outer, length, inner]: the middle is reduced
    FewRows,  // the same where `length` is so short that a thread takes all of it for some neighbouring outputs
    Any,      // outer outputs of `length` elements each, anywhere
  };
  Form form;
  int64_t lead = 1, outer = 1, length = 1, inner = 1;
  int64_t splits = 1;  // parts of `length`

  constexpr int64_t outputs() const { return outer * inner; }
  // The parts that the first stage leaves of each output, to be combined by a second stage when there is more than one.
  constexpr int64_t parts() const { return (form == Form::Slabs ? length : lead) * splits; }
  int64_t workspace() const { return parts() > 1 ? parts() * outputs() : 0; }

  ReductionPlan(const AlternatingShape& shape, int64_t element_bytes) {
    auto kinds = [&](std::initializer_list<bool> expected) {
      return shape.rank == static_cast<int>(expected.size()) &&
             std::equal(expected.begin(), expected.end(), shape.reduced);
    };
    const int64_t* size = shape.sizes;
    form = Form::Rows;
    if (kinds({})) return;
    if (kinds({true}))
      length = size[0];
    else if (kinds({false}))
      outer = size[0];
    else if (kinds({false, true}))
      outer = size[0], length = size[1];
    else if (kinds({true, false, true}))
      lead = size[0], outer = size[1], length = size[2];
    else if (kinds({true, false}))
      form = Form::Columns, length = size[0], inner = size[1];
    else if (kinds({false, true, false}))
      form = Form::Columns, outer = size[0], length = size[1], inner = size[2];
    else
      count_any(shape);
    if (form == Form::Columns && has_few_rows(element_bytes)) form = Form::FewRows;
    if (form == Form::Rows && has_slabs()) form = Form::Slabs;
    choose_splits(element_bytes);
  }

  // Elements that lie side by side in the forms of columns: outputs, or a slab.
  int64_t columns() const { return form == Form::Slabs ? outer * length : inner; }
  // Those that a thread loads at once.
  int columns_at_once(int64_t element_bytes) const {
    int count = 1;
    while (2 * count * element_bytes <= vector_bytes && columns() % (2 * count) == 0) count *= 2;
    return count;
  }

  // These forms have a warp for 32 accesses of a row, so that common widths leave no thread without work.
  ColumnTiles tiles(int64_t element_bytes) const {
    const int64_t accesses = columns() / columns_at_once(element_bytes);
    if (form == Form::Slabs) return {lead, accesses, wanted_blocks, 32};
    return {length, accesses, wanted_blocks / std::max<int64_t>(outer, 1), 32};
  }

 private:
  static constexpr int64_t wanted_blocks = 528;

  // Threads must still fill a chip without a row's being cut.
  bool has_few_rows(int64_t element_bytes) const {
    constexpr int64_t most_rows = 128, least_threads = 16384;
    return length <= most_rows && outputs() / columns_at_once(element_bytes) >= least_threads;
  }
  bool has_slabs() const {
    constexpr int64_t fewest_slabs = 32, longest_row = 4096;
    return lead >= fewest_slabs && length > 1 && length <= longest_row;
  }
  void count_any(const AlternatingShape& shape) {
    form = Form::Any;
    for (int d = 0; d < shape.rank; ++d) (shape.reduced[d] ? length : outer) *= shape.sizes[d];
  }
  // Two blocks and more a multiprocessor, of some thousand elements each.
  void choose_splits(int64_t element_bytes) {
    constexpr int64_t elements_per_block = 8192;
    if (form == Form::Columns || form == Form::Slabs)
      splits = tiles(element_bytes).row_blocks;
    else if (form != Form::FewRows)
      splits = std::clamp<int64_t>(wanted_blocks / std::max<int64_t>(lead * outer, 1), 1,
                                   std::max<int64_t>(divide_up(length, elements_per_block), 1));
  }
};

}  // namespace plimsoll::cuda
