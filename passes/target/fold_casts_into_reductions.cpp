#include "passes/rewrite/patterns.h"

// A long sum of 16-bit operands whose only reader casts it to f32 rounds to f32 itself, where its record takes {dtype}.
// Weight and bias gradients of a mixed-precision step are thus rounded once and have no 16-bit copy in memory. Views
// between the sum and the cast move behind it, and so do a split of which all parts are cast, and a concatenation of
// such sums.
//
// It is right because the sum is accumulated in at least f32 either way; only the rounding in the middle goes.
//
// Slices that are added at indices are read in 16 bits where they were cast to f32 for it, which sums the same numbers.
//
// A cast to fewer bits comes before the zeros that are padded, so that a last layer whose classes are padded has no
// padded weights in f32. It keeps zero as it is. Before differentiation the gradient would have fewer bits, too. It
// also comes before a transpose, and one to more bits behind it, so that transposes move fewer bytes.

namespace plimsoll {
namespace {

// The sum that makes the value, past reshapes that nothing else reads; None where there is none.
NodeId sum_behind(const Graph& graph, ValueId read) {
  const ValueId value = past_reshapes(graph, read);
  const NodeId id = graph.value(value).producer;
  if (id == NodeId::None || !has_one_reader(graph, value)) return NodeId::None;
  const Node& sum = graph.node(id);
  const DType narrow = graph.type(value).dtype;
  const bool sums_narrow = !sum.operands.empty() && sum.results.size() == 1 && !sum.attrs.has("dtype") &&
                           is_16_bit_float(narrow) && graph.type(sum.operands[0]).dtype == narrow;
  return sums_narrow ? id : NodeId::None;
}

// The attributes of that sum where it rounds to f32 instead; nothing where its record does not take {dtype}.
std::optional<Attrs> wide_attrs(const Graph& graph, const Node& sum) {
  Attrs attrs = sum.attrs;
  attrs.set("dtype", DType::F32);
  if (!try_infer(*sum.op, attrs, operand_types(graph, sum))) return std::nullopt;
  return attrs;
}

// The sum behind the value, rounded to f32 instead, in the value's shape, as nodes before `place`; None where there is
// none that takes {dtype}.
ValueId wide_sum(Graph& graph, ValueId value, NodeId place) {
  const NodeId id = sum_behind(graph, value);
  if (id == NodeId::None) return ValueId::None;
  const Node& sum = graph.node(id);
  std::optional<Attrs> attrs = wide_attrs(graph, sum);
  if (!attrs) return ValueId::None;
  Builder b = builder_at(graph, place);
  b.origin = sum.origin;
  const Shape shape = graph.type(value).shape;
  return b.reshape(b.emit(sum.op->name, sum.operands, std::move(*attrs)), shape);
}

bool try_fold(Graph& graph, NodeId cast) {
  const ValueId old = graph.node(cast).results[0];
  if (graph.type(old).dtype != DType::F32) return false;
  const ValueId sum = wide_sum(graph, operand_of(graph.node(cast), "x"), cast);
  if (sum == ValueId::None) return false;
  replace_and_rename(graph, old, sum);
  return true;
}

// All parts of a sum are cast to f32.
bool try_fold_parts(Graph& graph, NodeId split) {
  const Node node = graph.node(split);
  llvm::SmallVector<ValueId, 4> casts;
  for (ValueId part : node.results) {
    if (!has_one_reader(graph, part)) return false;
    const Node& reader = graph.node(graph.value(part).users[0]);
    if (reader.op->name != "cast" || graph.type(reader.results[0]).dtype != DType::F32) return false;
    casts.push_back(reader.results[0]);
  }
  const ValueId sum = wide_sum(graph, node.operands[0], split);
  if (sum == ValueId::None) return false;
  const auto parts = builder_at(graph, split).emit_all("split", {sum}, node.attrs);
  for (size_t i = 0; i < parts.size(); ++i) replace_and_rename(graph, casts[i], parts[i]);
  return true;
}

// Sums that are joined, as those of a weight are that is read in parts, and then cast to f32.
bool try_fold_joined(Graph& graph, NodeId cast) {
  const ValueId old = graph.node(cast).results[0], joined = operand_of(graph.node(cast), "x");
  const Node* concat = producer_of(graph, joined, "concat");
  if (!concat || graph.type(old).dtype != DType::F32 || !has_one_reader(graph, joined)) return false;
  const llvm::SmallVector<ValueId, 4> narrow(concat->operands.begin(), concat->operands.end());
  const Attrs attrs = concat->attrs;
  const bool all_fold = llvm::all_of(narrow, [&](ValueId part) {
    const NodeId sum = sum_behind(graph, part);
    return sum != NodeId::None && has_one_reader(graph, part) && wide_attrs(graph, graph.node(sum));
  });
  if (!all_fold) return false;
  llvm::SmallVector<ValueId, 4> wide;
  for (ValueId part : narrow) wide.push_back(wide_sum(graph, part, sum_behind(graph, part)));
  replace_and_rename(graph, old, builder_at(graph, cast).emit("concat", wide, attrs));
  return true;
}

// Slices that are cast from 16 bits and then added in f32.
bool try_fold_slices(Graph& graph, NodeId sum) {
  const Node& node = graph.node(sum);
  const ValueId dy = operand_of(node, "dy"), old = node.results[0];
  const Node* cast = producer_of(graph, past_reshapes(graph, dy), "cast");
  if (!cast || node.attrs.has("dtype") || graph.type(old).dtype != DType::F32) return false;
  const ValueId narrow = operand_of(*cast, "x");
  if (!is_16_bit_float(graph.type(narrow).dtype)) return false;
  Attrs attrs = node.attrs;
  attrs.set("dtype", DType::F32);
  Builder b = builder_at(graph, sum);
  llvm::SmallVector<ValueId, 3> operands(node.operands.begin(), node.operands.end());
  operands[1] = b.reshape(narrow, graph.type(dy).shape);
  replace_and_rename(graph, old, b.emit("gather_grad", operands, std::move(attrs)));
  return true;
}

// The node that makes the value if it is of that op and nothing else reads the value; None otherwise.
NodeId only_for_reader(const Graph& graph, ValueId value, llvm::StringRef op) {
  return producer_of(graph, value, op) && has_one_reader(graph, value) ? graph.value(value).producer : NodeId::None;
}

bool has_more_bits(const Graph& graph, ValueId value, ValueId other) {
  return dtype_bytes(graph.type(value).dtype) > dtype_bytes(graph.type(other).dtype);
}

// A cast to fewer bits of what `op` moves becomes a move of the cast.
bool try_swap(Graph& graph, NodeId cast, llvm::StringRef op) {
  const ValueId narrow = graph.node(cast).results[0], moved = operand_of(graph.node(cast), "x");
  const NodeId id = only_for_reader(graph, moved, op);
  if (id == NodeId::None || !has_more_bits(graph, moved, narrow)) return false;
  const Node& move = graph.node(id);
  if (move.operands.size() > 1 && move.operands[1] != ValueId::None) return false;  // padded with other than zeros
  const DType dtype = graph.type(narrow).dtype;
  Builder b = builder_at(graph, cast);
  b.origin = move.origin;
  replace_and_rename(graph, narrow, b.emit(op, {b.cast(move.operands[0], dtype)}, move.attrs));
  return true;
}

bool try_swap_with_wider(Graph& graph, NodeId transpose) {
  const ValueId result = graph.node(transpose).results[0], wide = graph.node(transpose).operands[0];
  const NodeId id = only_for_reader(graph, wide, "cast");
  if (id == NodeId::None || !has_more_bits(graph, wide, graph.node(id).operands[0])) return false;
  const DType dtype = graph.type(wide).dtype;
  Builder b = builder_at(graph, transpose);
  const ValueId moved = b.emit("transpose", {graph.node(id).operands[0]}, graph.node(transpose).attrs);
  replace_and_rename(graph, result, b.cast(moved, dtype));
  return true;
}

Result<bool> run_fold_casts_into_reductions(Graph& graph, PassContext& context) {
  const auto swap_with = [](llvm::StringRef op) { return [op](Graph& g, NodeId id) { return try_swap(g, id, op); }; };
  return apply_patterns(graph, context,
                        {{"cast", "sums", try_fold},
                         {"split", "sums", try_fold_parts},
                         {"cast", "sums", try_fold_joined},
                         {"gather_grad", "slices", try_fold_slices},
                         {"cast", "pads", swap_with("pad")},
                         {"cast", "transposes", swap_with("transpose")},
                         {"transpose", "transposes", try_swap_with_wider}});
}

}  // namespace

constinit const PassInfo pass_fold_casts_into_reductions{
    .name = "fold-casts-into-reductions",
    .summary =
        "let sums of 16-bit operands that are cast to f32 round to f32 themselves; cast to fewer bits before padding "
        "and "
        "transposes, to more bits behind transposes",
    .keeps_result = false,
    .run = run_fold_casts_into_reductions,
};

}  // namespace plimsoll
