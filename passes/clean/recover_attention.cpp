#include "passes/clean/attention_match.h"
#include "passes/rewrite/patterns.h"

// softmax(q k^T * scale + mask) v, as exporters write it, becomes one attention op on
// [batch, time, heads * dim]. Backward then keeps a row of sums instead of two matrices of time x time.
//
// Exports put several things around the softmax: factors on q, k or the scores, also learned ones; a cap
// tanh(s / c) * c; additive or boolean masks, also with batch and heads as one dimension or the batch as two; masks of
// Swin's shifted windows, which images share; sinks as one more column; a where(isnan(p), 0, p) guard for rows that may
// attend to nothing (the op gives zeros there by definition); dropout on p; several values. It does not apply when
// anything else reads the probabilities, or when a learned mask has not a number for each row and column: no kernel
// makes the gradient of others.

#include <cmath>

namespace plimsoll {
namespace {

// The value in [batch, rows, heads * dim] layout.
ValueId rows_first(Builder& b, ValueId x, llvm::ArrayRef<int64_t> to_rows) {
  ValueId t = b.transpose(x, to_rows);
  const Shape shape = b.type(t).shape;
  return b.reshape(t, {shape[0], shape[1], shape[2] * shape[3]});
}

// A term as attention's mask: boolean, or added to scores.
ValueId mask_of(Builder& b, const MaskTerm& term, const AttentionMatch& match) {
  const ValueId mask = with_one_batch(b, term, match);
  if (term.factor != 1) return b.emit("mul", {mask, b.scalar(term.factor, b.type(mask).dtype)});
  if (!term.low) return mask;
  if (std::isinf(*term.low)) return b.emit("not", {mask});
  return b.emit("where", {mask, b.scalar(*term.low, DType::F32), b.scalar(0, DType::F32)});
}

// The masks of a match as one, None where there are none.
ValueId joined_mask(Builder& b, const AttentionMatch& match) {
  ValueId joined = ValueId::None;
  for (const MaskTerm& term : match.masks) {
    ValueId mask = mask_of(b, term, match);
    if (joined == ValueId::None) {
      joined = mask;
      continue;
    }
    auto is_bool = [&](ValueId value) { return b.type(value).dtype == DType::Bool; };
    if (is_bool(joined) && is_bool(mask)) {
      joined = b.emit("and", {joined, mask});
      continue;
    }
    for (ValueId* added : {&joined, &mask})
      *added = is_bool(*added) ? b.emit("where", {*added, b.scalar(0, DType::F32), b.scalar(-INFINITY, DType::F32)})
                               : b.cast(*added, DType::F32);
    joined = b.emit("add", {joined, mask});
  }
  return joined;
}

// A number for each head.
ValueId sinks_of(Builder& b, const AttentionMatch& match) {
  if (match.sinks == ValueId::None) return ValueId::None;
  const Type& type = b.type(match.sinks);
  const Tensor* folded = type.shape[2] > 1 ? constant_behind(b.graph(), match.sinks) : nullptr;
  if (!folded) return b.reshape(match.sinks, {match.heads});
  llvm::SmallVector<double, 8> numbers;
  for (int64_t h = 0; h < match.heads; ++h) numbers.push_back(folded->get(h * type.shape[2]));
  return b.constant(Tensor::of_floats(numbers, type.dtype, {match.heads}));
}

// The segments of all windows of all images.
ValueId segments_of(Builder& b, const AttentionMatch& match) {
  if (!match.window_segments) return ValueId::None;
  const int64_t windows = match.window_segments->type().shape[0];
  const ValueId of_image = b.reshape(b.constant(*match.window_segments), {1, windows, match.rows});
  return b.reshape(b.expand(of_image, {match.batch / windows, windows, match.rows}), {match.batch, match.rows});
}

// Are these the probabilities of a softmax, perhaps dropped out, guarded or cast?
bool are_probabilities(const Graph& graph, ValueId p) {
  for (int depth = 0; depth < 6 && p != ValueId::None; ++depth) {
    const NodeId producer = graph.value(p).producer;
    if (producer == NodeId::None) return false;
    const Node& node = graph.node(producer);
    if (node.op->name == "softmax") return true;
    const bool passes = node.op->name == "dropout" || node.op->name == "cast" || node.op->name == "reshape";
    p = passes ? node.operands[0] : node.op->name == "where" ? node.operands[2] : ValueId::None;
  }
  return false;
}

// Several values under the same probabilities, as in differential attention, are the columns of one.
class ValueJoiner {
 public:
  explicit ValueJoiner(Graph& graph) : graph_(graph), order_(graph) {}

  bool try_join(NodeId last) {
    const ValueId p = graph_.node(last).operands[0];
    const std::vector<NodeId> products = products_with(p, last);
    if (products.size() < 2 || !are_probabilities(graph_, p)) return false;
    llvm::SmallVector<ValueId, 4> values;
    Ints columns;
    for (NodeId product : products) {
      values.push_back(graph_.node(product).operands[1]);
      columns.push_back(graph_.type(values.back()).shape.back());
    }
    const int64_t axis = graph_.type(p).rank() - 1;
    Builder b = builder_at(graph_, last);
    const ValueId whole = b.emit("matmul", {p, b.emit("concat", values, {{"axis", axis}})}, graph_.node(last).attrs);
    const auto parts = b.emit_all("split", {whole}, {{"axis", axis}, {"sizes", columns}});
    for (size_t i = 0; i < products.size(); ++i)
      replace_and_rename(graph_, graph_.node(products[i]).results[0], parts[i]);
    for (NodeId product : products) graph_.erase_node(product);
    return true;
  }

 private:
  // All that reads p, where these are products that differ in their columns and none is needed up to the last of them.
  std::vector<NodeId> products_with(ValueId p, NodeId last) const {
    const Node& own = graph_.node(last);
    std::vector<NodeId> products;
    for (NodeId user : graph_.value(p).users) {
      const Node& product = graph_.node(user);
      if (product.op != own.op || product.operands[0] != p || product.operands[1] == p || product.attrs != own.attrs ||
          own.attrs.get_int("transpose_a") != 0 || own.attrs.get_int("transpose_b") != 0 ||
          !differ_in_columns(product.operands[1], own.operands[1]) || order_[user] > order_[last])
        return {};
      for (NodeId reader : graph_.value(product.results[0]).users)
        if (order_[reader] <= order_[last]) return {};
      products.push_back(user);
    }
    llvm::sort(products, [&](NodeId a, NodeId b) { return order_[a] < order_[b]; });
    return products;
  }

  bool differ_in_columns(ValueId a, ValueId b) const {
    Type other = graph_.type(a);
    if (other.rank() != graph_.type(b).rank()) return false;
    other.shape.back() = graph_.type(b).shape.back();
    return other == graph_.type(b);
  }

  Graph& graph_;
  NodeOrder order_;
};

// Wider ones, as where channels attend to channels over all positions of an image, no kernel keeps on chip, and
// products of so long rows lose nothing to the scores between them.
bool are_heads(const Graph& graph, const AttentionMatch& match) {
  constexpr int64_t max_elements = 256;
  return graph.type(match.q).shape.back() <= max_elements && graph.type(match.v).shape.back() <= max_elements;
}

bool try_attention(Graph& graph, NodeId id) {
  std::optional<AttentionMatch> a = match_attention(graph, graph.node(id));
  if (!a || !are_heads(graph, *a)) return false;
  NodeId end = graph.value(a->result).producer;
  Builder b = builder_at(graph, end);
  ValueId q = with_heads_apart(b, a->q, *a);
  for (ValueId factor : a->factors) q = b.emit("mul", {q, factor});
  q = rows_first(b, q, {0, 2, 1, 3});
  ValueId k = rows_first(b, with_heads_apart(b, a->k_transposed, *a), {0, 3, 1, 2});
  const ValueId v_apart = with_heads_apart(b, a->v, *a);
  const int64_t kv_heads = b.type(v_apart).shape[1], depth = b.type(v_apart).shape[3];
  ValueId v = rows_first(b, v_apart, {0, 2, 1, 3});
  Attrs attrs{{"heads", a->heads}, {"kv_heads", kv_heads}, {"scale", a->scale}, {"causal", int64_t{a->closed.causal}}};
  a->closed.set(attrs);
  if (a->softcap > 0) attrs.set("softcap", a->softcap);
  if (a->rng != ValueId::None) {
    attrs.set("dropout", a->dropout);
    attrs.set("id", a->dropout_id);
  }
  llvm::SmallVector<ValueId, 8> operands{q, k, v, joined_mask(b, *a), a->rng};
  const ValueId segments = segments_of(b, *a), sinks = sinks_of(b, *a);
  if (segments != ValueId::None || sinks != ValueId::None) operands.append({ValueId::None, segments});
  if (sinks != ValueId::None) operands.push_back(sinks);
  ValueId y = b.emit_all("attention", operands, attrs).front();
  ValueId back = b.transpose(b.reshape(y, {a->batch, a->rows, a->heads, depth}), {0, 2, 1, 3});
  const Shape shape = graph.type(a->result).shape;
  back = b.reshape(back, shape);
  std::string name = graph.value(a->result).name;
  replace_and_rename(graph, a->result, back);
  graph.rename(y, name + ".rows");
  return true;
}

// Gives y below the head repetition of grouped queries, reshape(expand(y)) with y [batch, rows, groups, 1, dim]. It has
// this form once layout changes have met.
ValueId ungrouped(Graph& graph, NodeId at, ValueId value, int64_t heads, int64_t& kv_heads) {
  const Node* merge = producer_of(graph, value, "reshape");
  const Node* expand = merge ? producer_of(graph, merge->operands[0], "expand") : nullptr;
  if (!expand) return ValueId::None;
  const Shape from = graph.type(expand->operands[0]).shape, to = graph.type(merge->operands[0]).shape;
  if (from.size() != 5 || to.size() != 5 || from[3] != 1 || to[2] * to[3] != heads) return ValueId::None;
  for (size_t i : {size_t{0}, size_t{1}, size_t{2}, size_t{4}})
    if (from[i] != to[i]) return ValueId::None;
  // A batch of 1 may stand on either side of the rows; the elements lie in the same order.
  const Shape rows = graph.type(value).shape;
  bool same_rows =
      (from[0] == rows[0] && from[1] == rows[1]) ||
      (from[0] * from[1] == rows[0] * rows[1] && (from[0] == 1 || from[1] == 1) && (rows[0] == 1 || rows[1] == 1));
  if (!same_rows) return ValueId::None;
  kv_heads = to[2];
  ValueId source = expand->operands[0];
  return builder_at(graph, at).reshape(source, {rows[0], rows[1], from[2] * from[4]});
}

bool try_grouped(Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  int64_t heads = node.attrs.get_int("heads"), k_heads = 0, v_heads = 0;
  if (node.attrs.get_int("kv_heads") != heads) return false;
  ValueId k = ungrouped(graph, id, operand_of(node, "k"), heads, k_heads);
  ValueId v = ungrouped(graph, id, operand_of(node, "v"), heads, v_heads);
  if (k == ValueId::None || v == ValueId::None || k_heads != v_heads) return false;
  graph.set_operand(id, node.op->operand("k"), k);
  graph.set_operand(id, node.op->operand("v"), v);
  graph.node(id).attrs.set("kv_heads", k_heads);
  return true;
}

// Sets an operand, which the node need not have yet.
void set_named_operand(Graph& graph, NodeId id, llvm::StringRef name, ValueId value) {
  Node& node = graph.node(id);
  const size_t at = node.op->operand(name);
  if (node.operands.size() <= at) node.operands.resize(at + 1, ValueId::None);
  graph.set_operand(id, at, value);
}

// Takes the closed forms off a mask, also those that folding has made constant since the op was recovered.
bool try_mask(Graph& graph, NodeId id) {
  const ValueId as_exported = operand_of(graph.node(id), "mask");
  if (as_exported == ValueId::None) return false;
  const ValueId given = mask_with_heads(graph, id, as_exported);
  const Node& node = graph.node(id);
  const int64_t rows = graph.type(operand_of(node, "q")).shape[1];
  const bool packed = node.attrs.get_int("packed") != 0;
  const int64_t columns = packed ? rows : graph.type(operand_of(node, "k")).shape[1];
  std::optional<Segments> segments;
  if (operand_of(node, "segments") == ValueId::None) segments = segments_within(graph, given, rows, columns);
  const OpenMask open = take_closed_forms(graph, id, given, rows, columns, segments);
  if (open.rest == given || open.rest == as_exported) return false;
  graph.set_operand(id, graph.node(id).op->operand("mask"), open.rest);
  Builder b = builder_at(graph, id);
  if (!open.slopes.empty()) {
    const Shape heads{static_cast<int64_t>(open.slopes.size())};
    set_named_operand(graph, id, "slopes", b.constant(Tensor::of_floats(open.slopes, DType::F32, heads)));
  }
  if (open.has_segments)
    set_named_operand(graph, id, "segments",
                      b.cast(b.reshape(segments->numbers, {segments->samples, rows}), DType::I64));
  ClosedForm closed = ClosedForm::of(graph.node(id).attrs);
  closed.narrow(open.closed);
  closed.set(graph.node(id).attrs);
  return true;
}

Result<bool> run_recover_attention(Graph& graph, PassContext& context) {
  ValueJoiner joiner(graph);
  const auto try_join = [&](Graph&, NodeId id) { return joiner.try_join(id); };
  const bool joined = apply_patterns(graph, context, {{"matmul", "joined values", try_join}});
  const bool found = apply_patterns(graph, context, {{"softmax", "attention", try_attention}}) || joined;
  return apply_patterns(graph, context, {{"attention", "grouped", try_grouped}, {"attention", "masks", try_mask}}) ||
         found;
}

}  // namespace

constinit const PassInfo pass_recover_attention{
    .name = "recover-attention",
    .summary = "recover attention with its scale, mask, guard, dropout and head groups from its parts",
    .stage = Stage::Any,
    .keeps_result = true,
    .run = run_recover_attention,
};

}  // namespace plimsoll
