#pragma once

// CUDA C++ for a fused op: its body as straight code on one element, in a loop over the elements of a thread, with the
// body's text as a comment. A thread reads all its elements before it writes the first, so a result may lie over any
// operand that is read at the place of each element. Bodies with reductions have kernels of other forms
// (fused_reductions.h).

#include "ir/op_def.h"

namespace plimsoll {

inline constexpr int combining_threads = 256;

struct FusedSource {
  std::string name;  // of the kernel, by a hash of its text: equal calls have one kernel
  std::string text;
  int64_t blocks = 0;  // of a launch, of `threads` each
  int threads = 256;
  // A second kernel, {name}_combine, makes these results of the parts of totals that the first one leaves in the
  // workspace, an argument behind the operands. Its arguments are these results and the workspace. 0 blocks: there
  // is none, and no workspace.
  int64_t combining_blocks = 0;
  llvm::SmallVector<size_t, 8> totals;
  // Streams of its dropouts, which are no part of the text: layers that differ in them alone have one kernel. Where
  // there are any, the last arguments are the block of random numbers at which to begin, int64_t, and each stream,
  // uint32_t.
  llvm::SmallVector<uint32_t, 4> streams;
};

// Arguments of the kernel are pointers to the results and then to the operands, in their order, each to the first
// element that is read.
FusedSource fused_source(const OpCall& call, llvm::ArrayRef<Type> results);

// A text that generated code includes by that name.
struct SourceHeader {
  const char* name;
  const char* text;
};
llvm::ArrayRef<SourceHeader> fused_source_headers();

}  // namespace plimsoll
