#include "passes/rewrite/patterns.h"

// Recovers RMS norm, layer norm and group norm from their parts. The fused ops compute statistics in f32 whatever the
// model's dtype, as exports do by casting around them, so the casts go too.

namespace plimsoll {
namespace {

ValueId skip_cast(const Graph& graph, ValueId value) {
  const ValueId below = value_below(graph, value, "cast");
  return below == ValueId::None ? value : below;
}

// The first axis of a reduce_mean over trailing axes that keeps its dims; -1 for another one.
int64_t trailing_mean_axis(const Graph& graph, const Node& mean) {
  llvm::ArrayRef<int64_t> axes = mean.attrs.get_ints("axes");
  int64_t rank = graph.type(mean.operands[0]).rank();
  if (axes.empty() || mean.attrs.get_int("keep_dims") == 0) return -1;
  for (size_t i = 0; i < axes.size(); ++i)
    if (axes[i] != rank - static_cast<int64_t>(axes.size() - i)) return -1;
  return axes.front();
}

// Gives s for 1 / sqrt(s) in all its spellings, and None for another value.
ValueId below_inverse_root(const Graph& graph, ValueId value) {
  if (const Node* div = producer_of(graph, value, "div"))
    return is_splat(graph, operand_of(*div, "a"), 1, 0) ? value_below(graph, operand_of(*div, "b"), "sqrt")
                                                        : ValueId::None;
  if (const Node* pow = producer_of(graph, value, "pow"))
    return is_splat(graph, operand_of(*pow, "b"), -0.5) ? operand_of(*pow, "a") : ValueId::None;
  const ValueId below = value_below(graph, value, "rsqrt");
  return below != ValueId::None ? below : value_below(graph, value_below(graph, value, "reciprocal"), "sqrt");
}

struct Normalised {
  ValueId x;
  int64_t axis;
  double eps;
};

// x * rsqrt(mean(x^2) + eps), or x / sqrt(mean(x^2) + eps).
std::optional<Normalised> match_rms(const Graph& graph, const Node& node) {
  for (size_t i = 0; i < 2; ++i) {
    ValueId x = node.operands[i], other = node.operands[1 - i], sum = ValueId::None;
    if (node.op->name == "mul") sum = below_inverse_root(graph, other);
    if (node.op->name == "div" && i == 0) sum = value_below(graph, other, "sqrt");
    const Node* add = producer_of(graph, sum, "add");
    std::optional<WithNumber> mean_and_eps = add ? with_number(graph, *add) : std::nullopt;
    const Node* mean = mean_and_eps ? producer_of(graph, mean_and_eps->value, "reduce_mean") : nullptr;
    if (!mean || !is_square_of(graph, operand_of(*mean, "x"), x)) continue;
    int64_t axis = trailing_mean_axis(graph, *mean);
    if (axis >= 0) return Normalised{x, axis, mean_and_eps->number};
  }
  return std::nullopt;
}

// A parameter per element of the normalised dims has exactly their shape.
bool is_trailing_parameter(const Graph& graph, ValueId value, ValueId x, int64_t axis) {
  llvm::ArrayRef<int64_t> trailing = llvm::ArrayRef<int64_t>(graph.type(x).shape).drop_front(static_cast<size_t>(axis));
  return llvm::ArrayRef<int64_t>(graph.type(value).shape) == trailing;
}

// The only reader of `value` when it is `op`; null otherwise.
const Node* sole_reader(const Graph& graph, ValueId value, llvm::StringRef op, NodeId& id) {
  if (!has_one_reader(graph, value)) return nullptr;
  id = graph.value(value).users.front();
  return graph.node(id).op->name == op ? &graph.node(id) : nullptr;
}

// Follows `value` through a cast to a multiplication (or addition) with a trailing parameter.
struct Affine {
  ValueId result, parameter;
};

std::optional<Affine> match_affine(const Graph& graph, ValueId value, llvm::StringRef op, ValueId x, int64_t axis) {
  NodeId id = NodeId::None;
  ValueId at = value;
  if (const Node* cast = sole_reader(graph, at, "cast", id)) at = cast->results[0];
  const Node* node = sole_reader(graph, at, op, id);
  if (!node) return std::nullopt;
  ValueId parameter = other_operand(*node, at);
  if (!is_trailing_parameter(graph, parameter, x, axis)) return std::nullopt;
  return Affine{node->results[0], parameter};
}

bool try_rms(Graph& graph, NodeId id) {
  std::optional<Normalised> match = match_rms(graph, graph.node(id));
  if (!match) return false;
  ValueId end = graph.node(id).results[0];
  // 16-bit models cast up before the norm and down after it; the op reads and writes their dtype.
  ValueId x = skip_cast(graph, match->x);
  std::optional<Affine> scale = match_affine(graph, end, "mul", match->x, match->axis);
  if (scale)
    end = scale->result;
  else
    x = match->x;
  if (graph.type(end).dtype != graph.type(x).dtype) x = match->x;
  if (graph.type(end).dtype != graph.type(x).dtype) return false;
  Builder b = builder_at(graph, graph.value(end).producer);
  llvm::SmallVector<ValueId, 2> operands = {x};
  if (scale) operands.push_back(scale->parameter);
  ValueId norm = b.emit("rms_norm", operands, {{"axis", match->axis}, {"eps", match->eps}});
  replace_and_rename(graph, end, norm);
  return true;
}

// (x - mean) / sqrt(mean((x - mean)^2) + eps) is an RMS norm of the centred value.
bool try_layer(Graph& graph, NodeId id) {
  std::optional<Normalised> match = match_rms(graph, graph.node(id));
  if (!match) return false;
  const Node* centre = producer_of(graph, match->x, "sub");
  if (!centre) return false;
  const ValueId x = operand_of(*centre, "a");
  const Node* mean = producer_of(graph, operand_of(*centre, "b"), "reduce_mean");
  if (!mean || operand_of(*mean, "x") != x || trailing_mean_axis(graph, *mean) != match->axis) return false;
  ValueId end = graph.node(id).results[0];
  std::optional<Affine> scale = match_affine(graph, end, "mul", x, match->axis);
  if (scale) end = scale->result;
  std::optional<Affine> bias = match_affine(graph, end, "add", x, match->axis);
  if (bias) end = bias->result;
  if (graph.type(end).dtype != graph.type(x).dtype) return false;
  Builder b = builder_at(graph, graph.value(end).producer);
  ValueId norm =
      b.emit("layer_norm", {x, scale ? scale->parameter : ValueId::None, bias ? bias->parameter : ValueId::None},
             {{"axis", match->axis}, {"eps", match->eps}});
  replace_and_rename(graph, end, norm);
  return true;
}

// A layer norm holds an RMS norm, so it is looked for first.
bool try_norm(Graph& graph, NodeId id) { return try_layer(graph, id) || try_rms(graph, id); }

// PyTorch exports GroupNorm as a reshape to [N, G, rest], a norm over each group, a reshape back, and scale and bias
// per channel. `id` is the inner norm: a group_norm whose channels are the groups and whose own scale and bias are 1
// and 0.
bool try_group(Graph& graph, NodeId id) {
  const Node& inner = graph.node(id);
  const Node* split = producer_of(graph, inner.operands[0], "reshape");
  if (!split || !has_one_reader(graph, inner.results[0])) return false;
  for (size_t i = 1; i < inner.operands.size(); ++i)
    if (inner.operands[i] != ValueId::None && !is_splat(graph, inner.operands[i], i == 1 ? 1 : 0, 0)) return false;
  NodeId merge_id = NodeId::None;
  const Node* merge = sole_reader(graph, inner.results[0], "reshape", merge_id);
  ValueId x = split->operands[0];
  const Type type = graph.type(x), grouped = graph.type(inner.operands[0]);
  if (!merge || graph.type(merge->results[0]) != type || type.rank() < 3 || grouped.rank() != 3) return false;
  int64_t groups = grouped.shape[1];
  if (inner.attrs.get_int("groups") != groups || grouped.shape[0] != type.shape[0] || type.shape[1] % groups != 0)
    return false;
  double eps = inner.attrs.get_float("eps");

  ValueId end = merge->results[0], scale = ValueId::None, bias = ValueId::None;
  auto absorb = [&](llvm::StringRef op, ValueId& parameter) {
    NodeId next = NodeId::None;
    const Node* node = sole_reader(graph, end, op, next);
    if (!node) return;
    ValueId candidate = other_operand(*node, end);
    const Shape& shape = graph.type(candidate).shape;
    bool channelled = static_cast<int64_t>(shape.size()) == type.rank() - 1 && shape[0] == type.shape[1] &&
                      graph.type(candidate).elements() == shape[0];
    if (!channelled) return;
    ValueId result = node->results[0];
    parameter = builder_at(graph, next).reshape(candidate, {type.shape[1]});
    end = result;
  };
  absorb("mul", scale);
  absorb("add", bias);
  Builder b = builder_at(graph, graph.value(end).producer);
  ValueId norm = b.emit("group_norm", {x, scale, bias}, {{"groups", groups}, {"eps", eps}});
  replace_and_rename(graph, end, norm);
  return true;
}

Result<bool> run_recover_norms(Graph& graph, PassContext& context) {
  return apply_patterns(graph, context,
                        {{"group_norm", "group", try_group}, {"mul", "norms", try_norm}, {"div", "norms", try_norm}});
}

}  // namespace

constinit const PassInfo pass_recover_norms{
    .name = "recover-norms",
    .summary = "recover RMS, layer and group norms from their parts",
    .run = run_recover_norms,
};

}  // namespace plimsoll
