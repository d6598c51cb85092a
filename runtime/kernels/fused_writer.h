#pragma once

// What every kind of generated kernel is written with: the iteration over elements and the loads of operands.

#include "runtime/kernels/fused_source.h"
#include "runtime/kernels/fused_statements.h"

#include "llvm/Support/raw_ostream.h"

namespace plimsoll {

// What a thread reads of an operand for a run of elements. A line are neighbouring elements that the operand takes in
// equal steps: aligned words, elements or one element of one line, of up to two lines, or elements of several lines,
// whose places are computed one by one.
enum class LineReads : uint8_t { Words, Steps, TwoLines, Places };
struct RunReads {
  LineReads form;
  int64_t step, line;  // in elements; a step of 0 reads one element of a line
};

// Dimensions from the outermost to the innermost, joined where every operand walks through without a jump.
struct FusedIteration {
  int64_t elements = 1;
  llvm::SmallVector<int64_t, 4> sizes;
  llvm::SmallVector<llvm::SmallVector<int64_t, 4>, 8> strides;  // by operand, by dimension; 0 repeats
  // Of each operand the elements in front of what is read, which the kernel's pointers are moved by.
  llvm::SmallVector<int64_t, 8> starts;

  FusedIteration(const OpCall& call, const Graph& body, llvm::ArrayRef<int64_t> shape);

  // Does every run of `length` elements begin at a multiple of it in each operand that walks along it?
  bool runs_align(int64_t length) const;
  // How the operand's elements of such a run lie, whatever the other operands do.
  RunReads run_reads(size_t operand, int64_t length) const;
  bool walks(size_t operand) const { return strides[operand].back() != 0; }
};

class FusedWriter {
 protected:
  // `shape` is that of the elements.
  FusedWriter(const OpCall& call, llvm::ArrayRef<Type> results, llvm::ArrayRef<int64_t> shape);

  // Elements of a run: 16 bytes of the narrowest tensor, 8 at most.
  int64_t whole_run_length(llvm::ArrayRef<Type> element_results) const;
  // The same, fewer where runs would not be aligned.
  int64_t run_length(llvm::ArrayRef<Type> element_results) const;

  bool is_counter(size_t operand) const { return is_random_counter(body->type(body->inputs[operand])); }
  llvm::StringRef index() const { return iteration.elements < (int64_t{1} << 31) ? "uint32_t" : "int64_t"; }
  llvm::StringRef stored_operand(size_t i) const { return stored_type(call.operand(i).dtype); }
  llvm::StringRef register_operand(size_t i) const { return register_type(call.operand(i).dtype); }

  // Where the run that begins at element `at`, a variable, begins in the operand.
  std::string offset(size_t operand, llvm::StringRef at) const;
  // Pointers to results and operands.
  std::string pointers() const;
  // The parameters that random numbers take, each after a comma.
  std::string draw_parameters() const;
  std::string statements(llvm::ArrayRef<NodeId> nodes, llvm::StringRef indent);
  // Puts the header, functions and the body as a comment in front of the kernels, which call themselves KERNEL.
  FusedSource finish(const std::string& kernels, llvm::StringRef header);

  const OpCall& call;
  llvm::ArrayRef<Type> results;
  FusedBody body;
  FusedIteration iteration;
  BodyStatements variables;
  FusedSource source;

 private:
  // The index in a dimension of that size, of which one step is `inner` elements, times the stride.
  std::string term(llvm::StringRef at, int64_t inner, int64_t size, int64_t stride) const;
  std::string comment() const;
};

}  // namespace plimsoll
