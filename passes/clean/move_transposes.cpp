#include "passes/rewrite/patterns.h"

// Moves reshapes, transposes and slices past ops that do not depend on the layout, so that pairs meet and cancel
// (simplify removes them). Each rule is local and moves a layout change in one direction only, so the rules end:
// reshapes move down past linear layers, transposes down past ops on rows and elements and concats, and up through
// merging reshapes, expands and resizes that enlarge, slices and splits up towards the value they cut. Expands move
// down past linear layers, softmax and ops on elements, which then do their work once and not for each copy.

#include <algorithm>

namespace plimsoll {
namespace {

using Perm = llvm::SmallVector<int64_t, 6>;

bool keeps_last_dim(const Type& a, const Type& b) {
  return !a.shape.empty() && !b.shape.empty() && a.shape.back() == b.shape.back();
}

// linear(reshape(x)) -> reshape(linear(x)) where only leading dims are regrouped.
bool reshape_below_linear(Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const ValueId below = value_below(graph, node.operands[0], "reshape");
  if (below == ValueId::None) return false;
  const Type& from = graph.type(below);
  if (from.rank() < 2 || !keeps_last_dim(from, graph.type(node.operands[0]))) return false;
  Builder b = builder_at(graph, id);
  ValueId linear = b.emit("linear", operands_with(node, "x", below), node.attrs);
  ValueId back = b.reshape(linear, graph.type(node.results[0]).shape);
  std::string name = graph.value(node.results[0]).name;
  replace_and_rename(graph, node.results[0], back);
  graph.rename(linear, name + ".rows");
  return true;
}

// How many trailing dims a reduction makes 1; -1 where it drops dims or reduces others.
int64_t reduced_dims(const Graph& graph, const Node& reduction) {
  const llvm::ArrayRef<int64_t> axes = reduction.attrs.get_ints("axes");
  const auto count = static_cast<int64_t>(axes.size());
  const int64_t first = graph.type(reduction.operands[0]).rank() - count;
  const bool are_last = llvm::all_of(axes, [&](int64_t axis) { return axis >= first; });
  return are_last && reduction.attrs.get_int("keep_dims") != 0 ? count : -1;
}

// How many trailing dims of operand 0 form a row that the op reads by itself, so that leading dims may stand in any
// order. An elementwise op has none; -1 stands for ops of another kind.
int64_t row_dims(const Graph& graph, const Node& node) {
  if (node.op->dim_order == DimOrder::LastStays) return 1;
  if (node.op->dim_order == DimOrder::FromAxisStay)
    return graph.type(node.operands[0]).rank() - node.attrs.get_int("axis");
  if (node.op->name.startswith("reduce_")) return reduced_dims(graph, node);
  return node.op->elementwise ? 0 : -1;
}

// Does every dim that is not 1 stay where it is?
bool is_untouched(const Type& type, llvm::ArrayRef<int64_t> perm) {
  if (type.rank() > static_cast<int64_t>(perm.size())) return false;
  size_t first = perm.size() - type.shape.size();
  for (size_t i = 0; i < type.shape.size(); ++i)
    if (type.shape[i] != 1 && perm[first + i] != static_cast<int64_t>(first + i)) return false;
  return true;
}

// Do all readers of a transposed value let the transpose pass? If one keeps it, moving it past the others makes two
// transposes out of one.
bool readers_let_transposes_pass(const Graph& graph, ValueId value) {
  bool kept = llvm::any_of(graph.outputs, [&](const Output& output) { return output.value == value; });
  return !kept && llvm::all_of(graph.value(value).users, [&](NodeId user) {
    llvm::StringRef op = graph.node(user).op->name;
    return op == "transpose" || op == "reshape" || op == "slice" || row_dims(graph, graph.node(user)) >= 0;
  });
}

// Is an operand a number for each head, or little more, that the result repeats? Moving it costs nothing. Tables of
// angles stay: what they are multiplied by meets parts in the other order.
bool is_few_repeated(const Type& operand, const Type& result) {
  constexpr int64_t max_elements = 1024, repeats = 16;
  return operand.elements() <= max_elements && operand.elements() * repeats <= result.elements();
}

// The value that would be `value` behind a transpose.
ValueId in_order_before(Builder& b, ValueId value, llvm::ArrayRef<int64_t> perm) {
  const Shape own = b.type(value).shape;
  Shape shape(perm.size() - own.size(), 1);
  shape.append(own.begin(), own.end());
  Ints inverse(perm.size(), 0);
  for (size_t i = 0; i < perm.size(); ++i) inverse[static_cast<size_t>(perm[i])] = static_cast<int64_t>(i);
  return b.transpose(b.reshape(value, shape), inverse);
}

// op(transpose(x), ...) -> transpose(op(x, ...)) for ops that work on rows or elements: the residual stream of models
// that keep time first, or norms of heads. Operands that are repeated, such as a number for each head, are transposed
// the other way.
bool transpose_below_rows(Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const int64_t rows = row_dims(graph, node), rank = graph.type(node.results[0]).rank();
  if (rows < 0 || llvm::any_of(llvm::drop_begin(node.results), [&](ValueId result) { return graph.is_used(result); }))
    return false;
  llvm::SmallVector<ValueId, 4> operands(node.operands.begin(), node.operands.end());
  llvm::MutableArrayRef<ValueId> moving =
      llvm::MutableArrayRef<ValueId>(operands).take_front(rows > 0 ? 1 : operands.size());
  auto* first = llvm::find_if(moving, [&](ValueId operand) {
    return producer_of(graph, operand, "transpose") && graph.type(operand).rank() == rank;
  });
  if (first == moving.end()) return false;
  const llvm::ArrayRef<int64_t> of_first = producer_of(graph, *first, "transpose")->attrs.get_ints("perm");
  const Ints perm(of_first.begin(), of_first.end());
  for (int64_t i = rank - rows; i < rank; ++i)
    if (perm[i] != i) return false;
  llvm::SmallVector<ValueId*, 2> repeated;
  for (ValueId& operand : moving) {
    if (operand == ValueId::None || is_untouched(graph.type(operand), perm)) continue;
    const Node* transpose = producer_of(graph, operand, "transpose");
    if (transpose && transpose->attrs.get_ints("perm") == llvm::ArrayRef<int64_t>(perm) &&
        readers_let_transposes_pass(graph, operand)) {
      operand = transpose->operands[0];
      continue;
    }
    if (!is_few_repeated(graph.type(operand), graph.type(node.results[0]))) return false;
    repeated.push_back(&operand);
  }
  Builder b = builder_at(graph, id);
  for (ValueId* operand : repeated) *operand = in_order_before(b, *operand, perm);
  replace_and_rename(graph, node.results[0],
                     b.transpose(b.emit_all(node.op->name, operands, node.attrs).front(), perm));
  return true;
}

// concat(transpose(x), transpose(y)) -> transpose(concat(x, y)) where nothing else reads what is transposed, as in
// models that rotate some of a head's dims.
bool transpose_below_concat(Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const Node* first = producer_of(graph, node.operands[0], "transpose");
  if (!first) return false;
  const llvm::ArrayRef<int64_t> of_first = first->attrs.get_ints("perm");
  const Ints perm(of_first.begin(), of_first.end());
  llvm::SmallVector<ValueId, 4> operands;
  for (ValueId operand : node.operands) {
    const Node* transpose = producer_of(graph, operand, "transpose");
    const bool alike = transpose && transpose->attrs.get_ints("perm") == of_first && has_one_reader(graph, operand);
    if (!alike) return false;
    operands.push_back(transpose->operands[0]);
  }
  const int64_t axis = perm[static_cast<size_t>(node.attrs.get_int("axis"))];
  Builder b = builder_at(graph, id);
  replace_and_rename(graph, node.results[0], b.transpose(b.emit("concat", operands, {{"axis", axis}}), perm));
  return true;
}

// The input dims that each output dim of a reshape consists of, none for a new dim of size 1; other dims of size 1 join
// the group at hand. Gives none when an output dim splits an input dim.
std::optional<llvm::SmallVector<Perm, 6>> merged_dims(const Shape& in, const Shape& out) {
  llvm::SmallVector<Perm, 6> groups;
  size_t next = 0;
  for (int64_t dim : out) {
    Perm group;
    int64_t product = 1;
    while (next < in.size() && (product < dim || (product == dim && in[next] == 1 && group.empty()))) {
      product *= in[next];
      group.push_back(static_cast<int64_t>(next++));
      if (product == dim) break;
    }
    if (product != dim) return std::nullopt;
    groups.push_back(group);
  }
  while (next < in.size() && in[next] == 1 && !groups.empty()) groups.back().push_back(static_cast<int64_t>(next++));
  if (next != in.size()) return std::nullopt;
  return groups;
}

// transpose(reshape(x)) -> reshape(transpose(x)) for a reshape that merges dims, or adds and drops dims of size 1.
bool transpose_above_merge(Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const ValueId below = value_below(graph, node.operands[0], "reshape");
  if (below == ValueId::None) return false;
  auto groups = merged_dims(graph.type(below).shape, graph.type(node.operands[0]).shape);
  if (!groups) return false;
  Perm perm;
  for (int64_t dim : node.attrs.get_ints("perm")) llvm::append_range(perm, (*groups)[dim]);
  Builder b = builder_at(graph, id);
  ValueId moved = b.reshape(b.transpose(below, perm), graph.type(node.results[0]).shape);
  replace_and_rename(graph, node.results[0], moved);
  return true;
}

// transpose(expand(x)) -> expand(transpose(x)).
bool transpose_above_expand(Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const ValueId below = value_below(graph, node.operands[0], "expand");
  if (below == ValueId::None || graph.type(below).rank() != graph.type(node.operands[0]).rank()) return false;
  Builder b = builder_at(graph, id);
  ValueId moved = b.expand(b.transpose(below, node.attrs.get_ints("perm")), graph.type(node.results[0]).shape);
  replace_and_rename(graph, node.results[0], moved);
  return true;
}

// Does an op on operand 0 treat the copies alike that an expand makes of it? `in` and `out` are the expand's shapes.
bool treats_copies_alike(const Graph& graph, const Node& node, const Shape& in, const Shape& out) {
  const auto is_copied = [&](int64_t dim) { return in[static_cast<size_t>(dim)] != out[static_cast<size_t>(dim)]; };
  const llvm::StringRef op = node.op->name;
  if (op == "softmax" || op == "log_softmax") return !is_copied(node.attrs.get_int("axis"));
  if (op == "linear")
    return !is_copied(static_cast<int64_t>(in.size()) - 1) && operand_of(node, "addend") == ValueId::None;
  // Masks are left as their readers know them; dropout draws for each copy.
  return node.op->elementwise && node.operands.size() == 1 && is_float(graph.type(node.operands[0]).dtype) &&
         is_float(graph.type(node.results[0]).dtype);
}

// op(expand(x)) -> expand(op(x)). The gradients of copies are summed first likewise.
bool expand_below_rows(Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  if (node.operands.empty() || node.results.size() != 1) return false;
  const ValueId below = value_below(graph, node.operands[0], "expand");
  if (below == ValueId::None) return false;
  const Shape in = graph.type(below).shape, out = graph.type(node.operands[0]).shape;
  if (in.size() != out.size() || in.empty() || !treats_copies_alike(graph, node, in, out)) return false;
  llvm::SmallVector<ValueId, 4> operands(node.operands.begin(), node.operands.end());
  operands[0] = below;
  const Shape result = graph.type(node.results[0]).shape;
  Builder b = builder_at(graph, id);
  replace_and_rename(graph, node.results[0], b.expand(b.emit(node.op->name, operands, node.attrs), result));
  return true;
}

// transpose(resize(x)) -> resize(transpose(x)) where that moves fewer elements. A resize with other readers stays for
// them and is repeated: this reads x once more and writes the result, where the transpose would read and write it.
bool transpose_above_resize(Graph& graph, NodeId id, PassContext& context) {
  const Node& node = graph.node(id);
  const Node* resize = producer_of(graph, node.operands[0], "resize");
  if (!resize) return false;
  const int64_t small = graph.type(resize->operands[0]).elements(), large = graph.type(node.results[0]).elements();
  const bool alone = has_one_reader(graph, node.operands[0]);
  if (2 * small + (alone ? 0 : small + large) >= 2 * large) return false;
  const std::string name = graph.value(node.operands[0]).name;
  const llvm::ArrayRef<int64_t> perm = node.attrs.get_ints("perm");
  Builder b = builder_at(graph, id);
  ValueId x = b.emit("transpose", {resize->operands[0]}, {{"perm", Ints(perm.begin(), perm.end())}},
                     graph.value(resize->operands[0]).name + ".transposed");
  ValueId moved = b.emit("resize", {x}, with_dims_permuted(resize->attrs, perm));
  context.decide(name, alone ? "transposed before it is resized" : "resized in both orders of its dimensions",
                 std::to_string(small) + " elements change places instead of " + std::to_string(large));
  replace_and_rename(graph, node.results[0], moved);
  return true;
}

// slice(transpose(x)) -> transpose(slice(x)).
bool slice_above_transpose(Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const Node* transpose = producer_of(graph, node.operands[0], "transpose");
  if (!transpose) return false;
  llvm::ArrayRef<int64_t> perm = transpose->attrs.get_ints("perm");
  Attrs attrs;
  for (llvm::StringRef name : {"starts", "steps", "sizes"}) {
    llvm::ArrayRef<int64_t> old = node.attrs.get_ints(name);
    Ints now(perm.size(), 0);
    for (size_t i = 0; i < perm.size(); ++i) now[perm[i]] = old[i];
    attrs.set(name, now);
  }
  Builder b = builder_at(graph, id);
  ValueId moved = b.transpose(b.emit("slice", {transpose->operands[0]}, attrs), perm);
  replace_and_rename(graph, node.results[0], moved);
  return true;
}

// split(transpose(x)) -> transposes of the parts of split(x), where only transposes read the parts.
bool split_above_transpose(Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const Node* transpose = producer_of(graph, node.operands[0], "transpose");
  const auto is_transpose = [&](NodeId user) { return graph.node(user).op->name == llvm::StringRef("transpose"); };
  const auto is_transposed = [&](ValueId part) { return llvm::all_of(graph.value(part).users, is_transpose); };
  if (!transpose || !llvm::all_of(node.results, is_transposed)) return false;
  const llvm::ArrayRef<int64_t> of_whole = transpose->attrs.get_ints("perm");
  const Ints perm(of_whole.begin(), of_whole.end());
  Attrs attrs = node.attrs;
  attrs.set("axis", perm[static_cast<size_t>(node.attrs.get_int("axis"))]);
  const llvm::SmallVector<ValueId, 4> results(node.results.begin(), node.results.end());
  Builder b = builder_at(graph, id);
  const auto parts = b.emit_all("split", {transpose->operands[0]}, attrs);
  for (size_t i = 0; i < results.size(); ++i) replace_and_rename(graph, results[i], b.transpose(parts[i], perm));
  return true;
}

// Neighbouring dims of a reshape's operand, and those of its result that have the same elements.
struct DimBlock {
  size_t in_begin, in_end, out_begin, out_end;
};

// The smallest such blocks, in order; dims of size 1 join the block at hand. None where there are no elements.
llvm::SmallVector<DimBlock, 6> blocks_of_reshape(const Shape& in, const Shape& out) {
  llvm::SmallVector<DimBlock, 6> blocks;
  if (in.empty() || out.empty() || element_count(in) == 0) return blocks;
  for (size_t i = 0, o = 0; i < in.size() && o < out.size();) {
    DimBlock block{i, i + 1, o, o + 1};
    for (int64_t of_in = in [i++], of_out = out[o++]; of_in != of_out;)
      of_in < of_out ? of_in *= in[i++] : of_out *= out[o++];
    block.in_end = i, block.out_end = o;
    blocks.push_back(block);
  }
  blocks.back().in_end = in.size(), blocks.back().out_end = out.size();
  return blocks;
}

// slice(reshape(x)) -> reshape(slice(x)) where a dim that is cut leads the dims that one of x's was split into: the
// slice then cuts that one. Other dims may be merged.
bool slice_above_split(Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const ValueId below = value_below(graph, node.operands[0], "reshape");
  if (below == ValueId::None) return false;
  const Shape in = graph.type(below).shape, out = graph.type(node.operands[0]).shape;
  if (in.size() >= out.size()) return false;
  llvm::ArrayRef<int64_t> starts = node.attrs.get_ints("starts"), steps = node.attrs.get_ints("steps"),
                          sizes = node.attrs.get_ints("sizes");
  Ints new_starts(in.size(), 0), new_steps(in.size(), 1), new_sizes(in.begin(), in.end());
  const llvm::SmallVector<DimBlock, 6> blocks = blocks_of_reshape(in, out);
  if (blocks.empty()) return false;
  for (const DimBlock& block : blocks) {
    const auto is_one = [&](int64_t size) { return size == 1; };
    size_t source = block.in_begin;
    while (source + 1 < block.in_end && in[source] == 1) ++source;
    int64_t inner = 1;
    for (size_t dim = block.out_end; dim-- > block.out_begin;) {
      if (sizes[dim] == out[dim] && steps[dim] == 1) {
        inner *= out[dim];
        continue;
      }
      const bool is_split = std::all_of(in.begin() + source + 1, in.begin() + block.in_end, is_one),
                 leads = std::all_of(out.begin() + block.out_begin, out.begin() + dim, is_one);
      if (!is_split || !leads || steps[dim] != 1) return false;
      new_starts[source] = starts[dim] * inner;
      new_sizes[source] = sizes[dim] * inner;
      inner *= out[dim];
    }
  }
  Builder b = builder_at(graph, id);
  ValueId cut = b.emit("slice", {below}, {{"starts", new_starts}, {"steps", new_steps}, {"sizes", new_sizes}});
  replace_and_rename(graph, node.results[0], b.reshape(cut, graph.type(node.results[0]).shape));
  return true;
}

Result<bool> run_move_transposes(Graph& graph, PassContext& context) {
  const auto above_resize = [&](Graph& g, NodeId id) { return transpose_above_resize(g, id, context); };
  return apply_patterns(graph, context,
                        {{"linear", "moved", reshape_below_linear},
                         {"transpose", "moved", transpose_above_merge},
                         {"transpose", "moved", transpose_above_expand},
                         {"transpose", "moved", above_resize},
                         {"slice", "moved", slice_above_transpose},
                         {"slice", "moved", slice_above_split},
                         {"split", "moved", split_above_transpose},
                         {"concat", "moved", transpose_below_concat},
                         {"", "moved", expand_below_rows},
                         {"", "moved", transpose_below_rows}});
}

}  // namespace

constinit const PassInfo pass_move_transposes{
    .name = "move-transposes",
    .summary =
        "move reshapes, transposes and slices past ops that do not depend on the layout, so that they cancel, and "
        "expands past ops that treat copies alike",
    .run = run_move_transposes,
};

}  // namespace plimsoll
