#include "ir/fused_form.h"
#include "passes/rewrite/patterns.h"

// The gradient of a layer or RMS norm makes the dropout of what it gives as a second result. So it is behind a residual
// connection whose other side was dropped: what went on unchanged has the gradient itself, what was dropped the same
// with the same elements dropped. Dropout alone reads all of it again. Plans that keep everything have it so: tight
// budgets would need more, because the norm's operands are still there when the dropout's result is made.
//
// It applies to rows that the kernel with both has in shared memory while it draws: shorter ones share warps in a
// kernel without dropout, and what others take longer is more than dropout alone ([65536, 128] in bf16 40.8 us in place
// of 31 on an H200, [5000, 770] 62 in place of 54). It applies where the gradient is read besides, so that the dropout
// could not have been made over it, and where no reader of the dropout is elementwise or a reduction of rows or
// columns, with which it makes one op anyway.
//
// It is right because dropout's numbers depend on places alone, and what is dropped is rounded before. The dropout
// moves up to the gradient, for which its counter of random numbers must be there.

namespace plimsoll {
namespace {

constexpr int64_t min_length = 257, max_length = 8192, length_unit = 8;

bool is_of_rows(const Graph& graph, const Node& norm) {
  const Shape& shape = graph.type(norm.results[0]).shape;
  const int64_t length = element_count(llvm::ArrayRef<int64_t>(shape).drop_front(norm.attrs.get_int("axis")));
  return length >= min_length && length <= max_length && length % length_unit == 0;
}

bool joins_others(const Graph& graph, ValueId value) {
  return llvm::any_of(graph.value(value).users, [&](NodeId user) {
    const Node& reader = graph.node(user);
    if (reader.op->is_view()) return joins_others(graph, reader.results[0]);
    return is_body_reduction(*reader.op) || fits_fused_body(graph, reader);
  });
}

struct Joiner {
  NodeOrder order;

  bool try_dropout(Graph& graph, NodeId id) {
    const Node dropout = graph.node(id);
    const ValueId dx = past_reshapes(graph, operand_of(dropout, "x")), rng = operand_of(dropout, "rng");
    const NodeId producer = graph.value(dx).producer;
    if (producer == NodeId::None || dropout.attrs.get_int("channels_last")) return false;
    const Node norm = graph.node(producer);
    const bool is_norm = norm.op->name == "layer_norm_grad" || norm.op->name == "rms_norm_grad";
    if (!is_norm || !is_of_rows(graph, norm) || norm.results[0] != dx || norm.phase != dropout.phase ||
        order.of(rng) >= order[producer])
      return false;
    if (has_one_reader(graph, dx) || leaves_graph(graph, dropout.results[0]) || joins_others(graph, dropout.results[0]))
      return false;
    return join(graph, producer, norm, id, dropout), true;
  }

  void join(Graph& graph, NodeId norm_id, const Node& norm, NodeId dropout_id, const Node& dropout) {
    const OpDef& joined = get_op((llvm::Twine(norm.op->name) + "_dropout").str());
    llvm::SmallVector<ValueId, 7> operands(norm.operands.begin(), norm.operands.end());
    operands.insert(operands.begin() + static_cast<ptrdiff_t>(joined.operand("rng")), operand_of(dropout, "rng"));
    Attrs attrs = norm.attrs;
    for (const Attrs::Entry& entry : dropout.attrs.entries()) attrs.set(entry.first, entry.second);
    Builder b = builder_at(graph, norm_id);
    llvm::SmallVector<ValueId, 4> made = b.emit_all(joined.name, operands, std::move(attrs));
    order.add(made[0], norm_id);
    const ValueId dropped = b.reshape(made[1], graph.type(dropout.results[0]).shape);
    order.add(dropped, norm_id);
    made.erase(made.begin() + 1);
    replace_and_rename(graph, dropout.results[0], dropped);
    for (size_t i = 0; i < made.size(); ++i) replace_and_rename(graph, norm.results[i], made[i]);
    graph.erase_node(dropout_id);
    graph.erase_node(norm_id);
  }
};

Result<bool> run_join_dropouts(Graph& graph, PassContext& context) {
  Joiner joiner{NodeOrder(graph)};
  return apply_patterns(graph, context,
                        {{"dropout", "dropouts", [&](Graph& g, NodeId id) { return joiner.try_dropout(g, id); }}});
}

}  // namespace

constinit const PassInfo pass_join_dropouts{
    .name = "join-dropouts",
    .summary = "let gradients of row norms make the dropout of what they give, which reads it again otherwise",
    .run = run_join_dropouts,
};

}  // namespace plimsoll
