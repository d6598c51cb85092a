#pragma once

// Small questions that rewrites ask of a graph around one value, and small steps they take.

#include "ir/builder.h"

namespace plimsoll {

// The node that computes `value` when its op is `op`, else null.
const Node* producer_of(const Graph& graph, ValueId value, llvm::StringRef op);

// The first operand of that node; None where another op or none computes `value`.
ValueId value_below(const Graph& graph, ValueId value, llvm::StringRef op);

// pow(x, 2) or x * x
bool is_square_of(const Graph& graph, ValueId value, ValueId x);

// Is it an output or a state's next value?
bool leaves_graph(const Graph& graph, ValueId value);

// Read by exactly one node, once, and neither output nor update.
bool has_one_reader(const Graph& graph, ValueId value);

// The tensor of a constant, looked at through expand and reshape; null otherwise. Its shape may differ from the
// value's.
const Tensor* constant_behind(const Graph& graph, ValueId value);

// The number that all elements of a constant are, if they are equal; for f32 the shortest decimal that rounds to it.
std::optional<double> splat_value(const Graph& graph, ValueId value);
bool is_splat(const Graph& graph, ValueId value, double number, double relative_tolerance = 1e-6);

// For a commutative binary node: the operand beside `one`.
ValueId other_operand(const Node& node, ValueId one);

// A binary node with a constant number on one side: the number and the other operand.
struct WithNumber {
  ValueId value;
  double number;
};
std::optional<WithNumber> with_number(const Graph& graph, const Node& node);

// The types of the results for other operands and attributes; none where the op does not take them.
std::optional<Types> try_infer(const OpDef& op, const Attrs& attrs, llvm::ArrayRef<const Type*> operands);

// May the node be one of a fused op's body?
bool fits_fused_body(const Graph& graph, const Node& node);

// Does such a node make the value, for one reader alone?
bool is_elementwise_for_one_reader(const Graph& graph, ValueId value);

// The node's operands with another one, which it need not have yet, of that name.
llvm::SmallVector<ValueId, 4> operands_with(const Node& node, llvm::StringRef name, ValueId operand);

// The value that `value` is a reshape of, past reshapes that nothing else reads.
ValueId past_reshapes(const Graph& graph, ValueId value);

// Do the scores of a loss over classes come from the value by moving alone?
bool makes_scores(const Graph& graph, ValueId value);

// A builder that adds nodes right before `node`, with its origin and phase.
Builder builder_at(Graph& graph, NodeId node);

// Replaces every use of `old` by `now` and gives `now` the old value's name.
void replace_and_rename(Graph& graph, ValueId old, ValueId now);

// The attributes for dimensions in another order. Every list has one entry per dimension, {roi} of a resize has two.
Attrs with_dims_permuted(const Attrs& attrs, llvm::ArrayRef<int64_t> perm);

// What messages call a node: its name in the user's model, or else its first result.
std::string model_name(const Graph& graph, NodeId node);

// Places of nodes in the graph's order while a pass adds nodes. Inputs, states and nodes that were not added here stand
// before all.
class NodeOrder {
 public:
  explicit NodeOrder(const Graph& graph);

  int64_t operator[](NodeId node) const { return node == NodeId::None ? -1 : places_[index_of(node)]; }
  // Where the value's producer stands.
  int64_t of(ValueId value) const { return (*this)[graph_.value(value).producer]; }
  // The value's producer was added where `node` stands.
  void add(ValueId value, NodeId node);

 private:
  const Graph& graph_;
  std::vector<int64_t> places_;
};

}  // namespace plimsoll
