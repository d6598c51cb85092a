#pragma once

// CUDA C++ for a fused op with reductions. Elements are [outer, length, inner], of which the middle is reduced:
// - columns, where inner > 1: blocks have tiles of rows, threads keep sums of their columns in registers; of few rows a
//   thread has all, of few columns a warp;
// - sums, where inner = 1 and no element reads a total: one or some or all threads of a warp, or blocks, for each row;
// - rows, where elements read totals of their row: the same threads, or a block, for each row, which stays in registers
//   where it fits and is read again otherwise.
// Where several blocks have parts of a total, these go through the workspace, and a second kernel combines them in
// their order. Totals are f32 until they are complete.

#include "runtime/kernels/fused_source.h"

#include <optional>

namespace plimsoll {

FusedSource reducing_source(const OpCall& call, llvm::ArrayRef<Type> results);

// Bytes of parts of totals; 0 where the body has no reduction or every total is one block's.
int64_t reducing_workspace(const OpCall& call, llvm::ArrayRef<Type> results);

// Elements of columns that a thread takes one by one, since no words divide a row; 0 where words do, and of rows. Of a
// body with reductions.
int64_t single_column_elements(const OpCall& call, llvm::ArrayRef<Type> results);

// The kernel for columns of a body without reductions, whose threads read what belongs to a column once. None where
// operands of columns are no larger a share of what a run reads and writes than all others.
std::optional<FusedSource> column_source(const OpCall& call, llvm::ArrayRef<Type> results);

}  // namespace plimsoll
