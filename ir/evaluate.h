#pragma once

// The reference interpreter: runs a graph node by node on the records' reference
// functions. It says what a graph means; everything else is compared with it.

#include "ir/mesh.h"
#include "ir/op_def.h"

#include <map>

namespace plimsoll {

// One node by itself. An absent operand is null. Infers the result types, so a call that does not fit
// the op is an error.
Result<std::vector<Tensor>> evaluate_node(const OpDef& op, const Attrs& attrs, llvm::ArrayRef<const Tensor*> operands);

// A tensor for each input and state, by its value; the tensors stay the caller's.
using Bindings = std::map<ValueId, const Tensor*>;

struct Evaluation {
  std::vector<Tensor> outputs;  // in the order of Graph::outputs
  std::vector<Tensor> updates;  // in the order of Graph::updates
  std::vector<Tensor> values;   // by ValueId, node results only, when they were asked for; else empty
};

enum class Keep : uint8_t { Results, EveryValue };

// Inputs and states that nothing reads need no binding. A value is freed after its last use unless every
// value is kept.
Result<Evaluation> evaluate(const Graph& graph, const Bindings& bindings, Keep keep = Keep::Results);

// The same on all ranks of a mesh, node by node together: each has its own bindings, and an op of several ranks sees
// what all members of its group hold. Gives one evaluation per rank.
Result<std::vector<Evaluation>> evaluate_on_ranks(const Graph& graph, const Mesh& mesh,
                                                  llvm::ArrayRef<Bindings> bindings, Keep keep = Keep::Results);

// The same where each stage of the mesh has a graph of its own, which meet where they send, receive and add up. A stage
// that waits for what nobody sends is an error.
Result<std::vector<Evaluation>> evaluate_on_stages(llvm::ArrayRef<const Graph*> stages, const Mesh& mesh,
                                                   llvm::ArrayRef<Bindings> bindings);

// A node's attributes as that rank of the mesh has them: it draws its own random numbers and counts its own classes.
Attrs attrs_of_rank(const Attrs& attrs, const Mesh& mesh, int64_t rank);

}  // namespace plimsoll
