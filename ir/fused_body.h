#pragma once

// What a fused op computes for one element: a graph over scalars, held as text in the op's attribute {body}. Its inputs
// are the op's operands and its outputs the op's results. Nodes are elementwise ops, constants, and dropout, whose
// second operand is the counter of random numbers, i64[2], which every element reads whole. Each op rounds to its own
// type, as it does outside a body. A body with reductions is over tensors instead (ir/fused_form.h).

#include "ir/op_def.h"

#include <memory>

namespace plimsoll {

// Bounds of one body. Kernels keep an element of every operand and of every value in registers or in one cache.
inline constexpr size_t max_body_operands = 16, max_body_results = 8, max_body_nodes = 48;

// Attributes of a dropout that say where its random numbers begin. A fused op has them in place of its body's nodes.
inline constexpr llvm::StringLiteral draw_attrs[] = {"first_draw", "draws_per_rank", "draws_per_part"};

using FusedBody = std::shared_ptr<const Graph>;

// The body of a text, checked. Each text is parsed once in a process, since inference, predictions and kernels ask for
// the same few bodies again and again.
Result<FusedBody> fused_body(llvm::StringRef text);

// The body as one line.
std::string fused_body_text(const Graph& body);

// A fused op may read a part of an operand where it lies: elements from `start` on along one axis, more than one of
// them. Its attribute {parts} has these four numbers for each.
struct OperandPart {
  size_t operand;
  int64_t axis, start, size;
};
llvm::SmallVector<OperandPart, 4> operand_parts(const Attrs& attrs);
void add_operand_part(Attrs& attrs, const OperandPart& part);

// The operand as the body reads it: all of it, or its part.
Type read_type(const OpCall& call, size_t operand);
// Elements of the operand in front of those that are read, and from one of them to the next along each dimension of
// what they broadcast to; 0 repeats.
int64_t read_start(const OpCall& call, size_t operand);
Shape read_steps(const OpCall& call, size_t operand, llvm::ArrayRef<int64_t> shape);
// Bytes of operands that the op does not read: of fused ops and slices, which read parts.
int64_t unread_bytes(const OpCall& call);

// Which inputs a result depends on.
llvm::SmallVector<bool, 8> inputs_behind(const Graph& body, size_t result);

// Is it the counter of random numbers, which is no element?
bool is_random_counter(const Type& type);

// May the node be one of a body, by its op and the types of its elements? Kernels of all backends have these.
bool fits_fused_body(const OpDef& op, llvm::ArrayRef<const Type*> operands, llvm::ArrayRef<Type> results);

}  // namespace plimsoll
