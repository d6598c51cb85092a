#include "passes/match.h"
#include "passes/pass.h"

// Moves reshapes, transposes and slices past the ops that do not care, so that pairs meet
// and cancel (simplify removes them). Each rule is local and only ever moves a layout change in one direction:
// reshapes and transposes down past linear layers and elementwise ops, transposes up through merging reshapes and expands,
// slices up towards what they cut.

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
  const Node* reshape = made_by(graph, node.operands[0], "reshape");
  if (!reshape) return false;
  const Type& from = graph.type(reshape->operands[0]);
  if (from.rank() < 2 || !keeps_last_dim(from, graph.type(node.operands[0]))) return false;
  Builder b = builder_at(graph, id);
  llvm::SmallVector<ValueId, 3> operands(node.operands.begin(), node.operands.end());
  operands[0] = reshape->operands[0];
  ValueId linear = b.emit("linear", operands, node.attrs);
  ValueId back = b.reshape(linear, graph.type(node.results[0]).shape);
  std::string name = graph.value(node.results[0]).name;
  replace_and_rename(graph, node.results[0], back);
  graph.rename(linear, name + ".rows");
  return true;
}

// linear(transpose(x)) -> transpose(linear(x)) where the last dim stays last.
bool transpose_below_linear(Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const Node* transpose = made_by(graph, node.operands[0], "transpose");
  if (!transpose) return false;
  llvm::ArrayRef<int64_t> perm = transpose->attrs.get_ints("perm");
  if (perm.back() != static_cast<int64_t>(perm.size()) - 1) return false;
  Builder b = builder_at(graph, id);
  llvm::SmallVector<ValueId, 3> operands(node.operands.begin(), node.operands.end());
  operands[0] = transpose->operands[0];
  ValueId moved = b.transpose(b.emit("linear", operands, node.attrs), perm);
  replace_and_rename(graph, node.results[0], moved);
  return true;
}

// For a reshape that merges (or keeps) dims: which input dims each output dim is made of. Dims of size 1 go with
// the group at hand. None when some output dim splits an input dim.
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

// transpose(reshape(x)) -> reshape(transpose(x)) for a reshape that merges dims.
bool transpose_above_merge(Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const Node* reshape = made_by(graph, node.operands[0], "reshape");
  if (!reshape) return false;
  const Type& from = graph.type(reshape->operands[0]);
  if (from.rank() <= graph.type(node.operands[0]).rank()) return false;
  auto groups = merged_dims(from.shape, graph.type(node.operands[0]).shape);
  if (!groups) return false;
  Perm perm;
  for (int64_t dim : node.attrs.get_ints("perm"))
    perm.append((*groups)[static_cast<size_t>(dim)].begin(), (*groups)[static_cast<size_t>(dim)].end());
  Builder b = builder_at(graph, id);
  ValueId moved = b.reshape(b.transpose(reshape->operands[0], perm), graph.type(node.results[0]).shape);
  replace_and_rename(graph, node.results[0], moved);
  return true;
}

llvm::SmallVector<int64_t, 6> wide_dims(const Shape& shape) {
  llvm::SmallVector<int64_t, 6> dims;
  for (size_t i = 0; i < shape.size(); ++i)
    if (shape[i] != 1) dims.push_back(static_cast<int64_t>(i));
  return dims;
}

// transpose(reshape(x)) -> reshape(transpose(x)) for a reshape that only adds or drops dims of size 1: the other dims
// are permuted where they stand in x.
bool transpose_above_unit_dims(Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const Node* reshape = made_by(graph, node.operands[0], "reshape");
  if (!reshape) return false;
  const Shape in = graph.type(reshape->operands[0]).shape, out = graph.type(node.operands[0]).shape;
  llvm::SmallVector<int64_t, 6> from = wide_dims(in), to = wide_dims(out);
  bool same = from.size() == to.size() && std::equal(from.begin(), from.end(), to.begin(), [&](int64_t a, int64_t b) {
    return in[static_cast<size_t>(a)] == out[static_cast<size_t>(b)];
  });
  if (!same) return false;
  Perm perm(in.size());
  for (size_t i = 0; i < in.size(); ++i) perm[i] = static_cast<int64_t>(i);
  size_t next = 0;
  for (int64_t dim : node.attrs.get_ints("perm")) {
    auto at = std::find(to.begin(), to.end(), dim);
    if (at != to.end()) perm[static_cast<size_t>(from[next++])] = from[static_cast<size_t>(at - to.begin())];
  }
  Builder b = builder_at(graph, id);
  ValueId moved = b.reshape(b.transpose(reshape->operands[0], perm), graph.type(node.results[0]).shape);
  replace_and_rename(graph, node.results[0], moved);
  return true;
}

// transpose(expand(x)) -> expand(transpose(x)).
bool transpose_above_expand(Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const Node* expand = made_by(graph, node.operands[0], "expand");
  if (!expand || graph.type(expand->operands[0]).rank() != graph.type(node.operands[0]).rank()) return false;
  Builder b = builder_at(graph, id);
  ValueId moved = b.expand(b.transpose(expand->operands[0], node.attrs.get_ints("perm")), graph.type(node.results[0]).shape);
  replace_and_rename(graph, node.results[0], moved);
  return true;
}

// slice(transpose(x)) -> transpose(slice(x)).
bool slice_above_transpose(Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const Node* transpose = made_by(graph, node.operands[0], "transpose");
  if (!transpose) return false;
  llvm::ArrayRef<int64_t> perm = transpose->attrs.get_ints("perm");
  Attrs attrs;
  for (llvm::StringRef name : {"starts", "steps", "sizes"}) {
    llvm::ArrayRef<int64_t> old = node.attrs.get_ints(name);
    Ints now(perm.size(), 0);
    for (size_t i = 0; i < perm.size(); ++i) now[static_cast<size_t>(perm[i])] = old[i];
    attrs.set(name, now);
  }
  Builder b = builder_at(graph, id);
  ValueId moved = b.transpose(b.emit("slice", {transpose->operands[0]}, attrs), perm);
  replace_and_rename(graph, node.results[0], moved);
  return true;
}

// slice(reshape(x)) that cuts one dim, where that dim leads the dims its source dim was split into: the cut is a
// cut of the source dim.
bool slice_above_split(Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const Node* reshape = made_by(graph, node.operands[0], "reshape");
  if (!reshape) return false;
  const Shape in = graph.type(reshape->operands[0]).shape, out = graph.type(node.operands[0]).shape;
  if (in.size() >= out.size()) return false;
  auto groups = merged_dims(out, in);  // the reshape read backwards merges
  if (!groups) return false;
  llvm::ArrayRef<int64_t> starts = node.attrs.get_ints("starts"), steps = node.attrs.get_ints("steps"),
                          sizes = node.attrs.get_ints("sizes");
  Ints new_starts(in.size(), 0), new_steps(in.size(), 1), new_sizes(in.begin(), in.end());
  for (size_t g = 0; g < groups->size(); ++g) {
    int64_t inner = 1;
    const Perm& group = (*groups)[g];
    for (size_t k = group.size(); k-- > 0;) {
      auto dim = static_cast<size_t>(group[k]);
      if (sizes[dim] == out[dim] && steps[dim] == 1) {
        inner *= out[dim];
        continue;
      }
      bool leads = std::all_of(group.begin(), group.begin() + static_cast<int64_t>(k),
                               [&](int64_t before) { return out[static_cast<size_t>(before)] == 1; });
      if (!leads || steps[dim] != 1) return false;
      new_starts[g] = starts[dim] * inner;
      new_sizes[g] = sizes[dim] * inner;
      inner *= out[dim];
    }
  }
  Builder b = builder_at(graph, id);
  ValueId cut = b.emit("slice", {reshape->operands[0]}, {{"starts", new_starts}, {"steps", new_steps}, {"sizes", new_sizes}});
  replace_and_rename(graph, node.results[0], b.reshape(cut, graph.type(node.results[0]).shape));
  return true;
}

// add(transpose(a), transpose(b)) with equal permutations -> transpose(add(a, b)); the residual stream of models that
// keep time first.
bool transpose_below_add(Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const Node* a = made_by(graph, node.operands[0], "transpose");
  const Node* b = made_by(graph, node.operands[1], "transpose");
  if (!a || !b || a->attrs.get_ints("perm") != b->attrs.get_ints("perm")) return false;
  Builder builder = builder_at(graph, id);
  ValueId sum = builder.emit("add", {a->operands[0], b->operands[0]});
  replace_and_rename(graph, node.results[0], builder.transpose(sum, a->attrs.get_ints("perm")));
  return true;
}

bool visit(Graph& graph, NodeId id) {
  llvm::StringRef op = graph.node(id).op->name;
  if (op == "linear") return reshape_below_linear(graph, id) || transpose_below_linear(graph, id);
  if (op == "transpose") return transpose_above_merge(graph, id) || transpose_above_unit_dims(graph, id) || transpose_above_expand(graph, id);
  if (op == "slice") return slice_above_transpose(graph, id) || slice_above_split(graph, id);
  if (op == "add") return transpose_below_add(graph, id);
  return false;
}

Result<bool> run(Graph& graph, PassContext& context) {
  int64_t moved = 0;
  for (NodeId id : graph.order()) moved += visit(graph, id);
  context.count("moved", moved);
  return moved > 0;
}

}  // namespace

extern const PassInfo pass_move_layout_changes;
constinit const PassInfo pass_move_layout_changes{
    .name = "move-layout-changes",
    .summary = "moves reshapes, transposes and slices past ops that do not care, so that they cancel",
    .stage = Stage::Any,
    .keeps_result = true,
    .run = run,
};

}  // namespace plimsoll
