#include "ir/depends_on_parameter.h"
#include "passes/clean/attention_mask.h"
#include "passes/rewrite/patterns.h"

// softmax(q k^T * scale + mask) v, as exporters write it, becomes one attention op on
// [batch, time, heads * dim]. Backward then keeps a row of sums instead of two matrices of time x time.
//
// Exports put several things around the softmax: factors on q, k or the scores; additive or boolean masks; a
// where(isnan(p), 0, p) guard for rows that may attend to nothing (the op gives zeros there by definition); dropout on
// p. It does not apply when anything else reads the probabilities, or when a learned mask has not a number for each row
// and column: no kernel makes the gradient of others.

#include <cmath>

namespace plimsoll {
namespace {

struct Attention {
  ValueId q, k_transposed, v;  // [batch, heads, rows, dim], [batch, heads, dim, columns], [batch, heads, columns, dim]
  ValueId mask = ValueId::None, rng = ValueId::None;
  double scale = 1, dropout = 0;
  int64_t dropout_id = 0;
  ClosedForm closed;
  ValueId result;  // what the op replaces: [batch, heads, rows, dim]
};

// Takes factors by numbers off `value`; gives what is left.
ValueId take_factors(const Graph& graph, ValueId value, double& scale) {
  for (;;) {
    if (const Node* mul = producer_of(graph, value, "mul")) {
      std::optional<WithNumber> parts = with_number(graph, *mul);
      if (!parts || graph.type(parts->value) != graph.type(value)) return value;
      scale *= parts->number;
      value = parts->value;
    } else if (const Node* div = producer_of(graph, value, "div")) {
      std::optional<double> number = splat_value(graph, div->operands[1]);
      if (!number || graph.type(div->operands[0]) != graph.type(value)) return value;
      scale /= *number;
      value = div->operands[0];
    } else {
      return value;
    }
  }
}

// Takes masks, factors and casts off the scores down to the matmul q k^T. At most one mask is not constant.
const Node* take_scores(const Graph& graph, ValueId scores, Attention& a) {
  const int64_t rows = graph.type(scores).shape[2], columns = graph.type(scores).shape[3];
  auto take_mask = [&](ValueId mask) {
    mask = boolean_behind(graph, mask);
    if (std::optional<ClosedForm> closed = closed_form_of(graph, mask, rows, columns)) {
      a.closed.narrow(*closed);
      return true;
    }
    if (a.mask != ValueId::None || graph.type(mask).rank() > 4) return false;
    // Kernels make the gradient of masks with a number for each row and column.
    const llvm::ArrayRef<int64_t> dims(graph.type(mask).shape);
    const bool is_whole = dims.size() >= 2 && dims[dims.size() - 2] == rows && dims.back() == columns;
    if (!is_whole && depends_on_parameter(graph, mask)) return false;
    a.mask = mask;
    return true;
  };
  for (int depth = 0; depth < 8; ++depth) {
    double before = a.scale;
    ValueId inner = take_factors(graph, scores, a.scale);
    // A factor above an additive mask would scale the mask too, which only 0 and -inf survive.
    bool scaled = a.scale != before;
    scores = inner;
    if (const Node* product = producer_of(graph, scores, "matmul")) return product;
    if (const Node* cast = producer_of(graph, scores, "cast")) {
      scores = cast->operands[0];
      continue;
    }
    const Node* add = producer_of(graph, scores, "add");
    const Node* where = producer_of(graph, scores, "where");
    if (add && !scaled) {
      size_t side = graph.type(add->operands[0]) == graph.type(scores) ? 0 : 1;
      if (constant_behind(graph, add->operands[side]) || producer_of(graph, add->operands[side], "where"))
        side = 1 - side;
      if (graph.type(add->operands[side]) != graph.type(scores) || !take_mask(add->operands[1 - side])) return nullptr;
      scores = add->operands[side];
    } else if (where && !scaled) {
      std::optional<double> off = splat_value(graph, where->operands[2]);
      if (!off || !(std::isinf(*off) && *off < 0) || !take_mask(where->operands[0])) return nullptr;
      scores = where->operands[1];
    } else {
      return nullptr;
    }
  }
  return nullptr;
}

// Follows the probabilities through guard, dropout and casts to the matmul with v.
const Node* take_probabilities(const Graph& graph, ValueId p, Attention& a) {
  for (int depth = 0; depth < 6; ++depth) {
    llvm::SmallVector<NodeId, 2> users(graph.value(p).users.begin(), graph.value(p).users.end());
    // The guard reads p twice: through isnan and as the value kept.
    const Node* guard = nullptr;
    for (NodeId user : users)
      if (graph.node(user).op->name == "where" && graph.node(user).operands[2] == p) guard = &graph.node(user);
    if (guard && users.size() == 2) {
      const Node* is_nan = producer_of(graph, guard->operands[0], "is_nan");
      if (!is_nan || is_nan->operands[0] != p || !is_splat(graph, guard->operands[1], 0, 0)) return nullptr;
      p = guard->results[0];
      continue;
    }
    if (!has_one_reader(graph, p)) return nullptr;
    const Node& user = graph.node(users.front());
    if (user.op->name == "cast") {
      p = user.results[0];
    } else if (user.op->name == "dropout" && a.rng == ValueId::None) {
      a.rng = user.operands[1];
      a.dropout = user.attrs.get_float("ratio");
      a.dropout_id = user.attrs.get_int("id");
      p = user.results[0];
    } else if (user.op->name == "matmul" && user.operands[0] == p && user.attrs.get_int("transpose_a") == 0) {
      return &user;
    } else {
      return nullptr;
    }
  }
  return nullptr;
}

std::optional<Attention> match_attention(const Graph& graph, const Node& softmax) {
  const Type& type = graph.type(softmax.results[0]);
  if (type.rank() != 4 || softmax.attrs.get_int("axis") != 3) return std::nullopt;
  Attention a;
  const Node* scores = take_scores(graph, softmax.operands[0], a);
  const Node* product = scores ? take_probabilities(graph, softmax.results[0], a) : nullptr;
  if (!product || scores->attrs.get_int("transpose_a") != 0 || product->attrs.get_int("transpose_b") != 0)
    return std::nullopt;
  a.q = take_factors(graph, scores->operands[0], a.scale);
  a.k_transposed = take_factors(graph, scores->operands[1], a.scale);
  if (scores->attrs.get_int("transpose_b") != 0) return std::nullopt;
  a.v = product->operands[1];
  a.result = product->results[0];
  const Type &q = graph.type(a.q), &k = graph.type(a.k_transposed), &v = graph.type(a.v);
  // The matmul may repeat one head of keys and values for all queries.
  bool shaped = q.rank() == 4 && k.rank() == 4 && v.rank() == 4 && q.shape[0] == k.shape[0] &&
                q.shape[0] == v.shape[0] && k.shape[1] == v.shape[1] && (k.shape[1] == q.shape[1] || k.shape[1] == 1);
  if (!shaped || q.dtype != k.dtype || q.dtype != v.dtype || graph.type(a.result).dtype != q.dtype) return std::nullopt;
  return a;
}

// The value in [batch, rows, heads * dim] layout.
ValueId rows_first(Builder& b, ValueId x, llvm::ArrayRef<int64_t> to_rows) {
  ValueId t = b.transpose(x, to_rows);
  const Shape shape = b.type(t).shape;
  return b.reshape(t, {shape[0], shape[1], shape[2] * shape[3]});
}

bool try_attention(Graph& graph, NodeId id) {
  std::optional<Attention> a = match_attention(graph, graph.node(id));
  if (!a) return false;
  NodeId end = graph.value(a->result).producer;
  const Shape out = graph.type(a->result).shape;  // [batch, heads, rows, dim]
  const int64_t kv_heads = graph.type(a->v).shape[1];
  Builder b = builder_at(graph, end);
  ValueId q = rows_first(b, a->q, {0, 2, 1, 3});
  ValueId k = rows_first(b, a->k_transposed, {0, 3, 1, 2});
  ValueId v = rows_first(b, a->v, {0, 2, 1, 3});
  Attrs attrs{{"heads", out[1]}, {"kv_heads", kv_heads}, {"scale", a->scale}, {"causal", int64_t{a->closed.causal}}};
  a->closed.set(attrs);
  if (a->rng != ValueId::None) {
    attrs.set("dropout", a->dropout);
    attrs.set("id", a->dropout_id);
  }
  ValueId y = b.emit_all("attention", {q, k, v, a->mask, a->rng}, attrs).front();
  ValueId back = b.transpose(b.reshape(y, {out[0], out[2], out[1], out[3]}), {0, 2, 1, 3});
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

// Takes the closed forms off a mask, also those that folding has made constant since the op was recovered.
bool try_mask(Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const ValueId given = operand_of(node, "mask");
  if (given == ValueId::None) return false;
  const int64_t rows = graph.type(operand_of(node, "q")).shape[1];
  const bool packed = node.attrs.get_int("packed") != 0;
  const int64_t columns = packed ? rows : graph.type(operand_of(node, "k")).shape[1];
  const OpenMask open = take_closed_forms(graph, id, given, rows, columns);
  if (open.rest == given) return false;
  graph.set_operand(id, graph.node(id).op->operand("mask"), open.rest);
  ClosedForm closed = ClosedForm::of(graph.node(id).attrs);
  closed.narrow(open.closed);
  closed.set(graph.node(id).attrs);
  return true;
}

Result<bool> run(Graph& graph, PassContext& context) {
  const bool found = apply_patterns(graph, context, {{"softmax", "attention", try_attention}});
  return apply_patterns(graph, context, {{"attention", "grouped", try_grouped}, {"attention", "masks", try_mask}}) ||
         found;
}

}  // namespace

constinit const PassInfo pass_recover_attention{
    .name = "recover-attention",
    .summary = "recover attention with its scale, mask, guard, dropout and head groups from its parts",
    .stage = Stage::Any,
    .keeps_result = true,
    .run = run,
};

}  // namespace plimsoll
