#pragma once

// Which values share bytes: views, results written over a dying operand, and updates
// written straight into their state.

#include "ir/machine/kernel_catalog.h"
#include "passes/analysis/aliasing.h"

namespace plimsoll {

// Makes each update's value the result of an instruction of its own that may write straight into the state,
// by inserting a copy where it is not. Gives the writer of each update, in order of Graph::updates.
std::vector<NodeId> make_updates_writable(Graph& graph);

struct Buffer {
  // A part lies inside another buffer (passes/place/place_parts.h).
  enum class Kind : uint8_t { State, Constant, Input, Transient, Part } kind = Kind::Transient;
  ValueId first_value = ValueId::None;  // the value that opened it
  MemorySpace space = MemorySpace::Device;
  int64_t bytes = 0;
  int32_t first = 0, last = 0;  // instruction positions, inclusive; whole function for State and Constant
};

struct BufferAssignment {
  std::vector<int32_t> buffer_of;     // by value; -1: not used by this function
  std::vector<ValueId> in_place_of;   // by value: the operand root whose bytes it took over, or None
  std::vector<int32_t> last_use;      // by root value: last instruction that reads it; its own when unread
  std::vector<int32_t> position;      // by node: instruction index; -1 for constants, views, erased nodes
  std::vector<Buffer> buffers;        // of values, then the kernels' workspaces in instruction order
  std::vector<int32_t> workspace_of;  // by node: its kernel's workspace, a buffer; -1: none
  int32_t instructions = 0;
};

// A copy between memories that is waited for before the instruction at position `done`, and not at once.
struct CopyInFlight {
  NodeId copy = NodeId::None;
  int32_t done = 0;
};

// For the graph in its present order. `writers` is what make_updates_writable gave.
BufferAssignment assign_buffers(const Graph& graph, llvm::ArrayRef<NodeId> writers, llvm::ArrayRef<CopyInFlight> copies,
                                const KernelCatalog& catalog);

}  // namespace plimsoll
