#include "passes/rewrite/patterns.h"

#include <numeric>

// A matrix product reads either operand as it is or transposed, and the transpose of its result is the product of the
// transposed operands in the other order. So transposes of the last two dims become flags of the product. One that
// moves more dims keeps the others, where rows of its operand then stay runs in memory. Where the left operand alone
// has a batch, as heads have that share a matrix for each pixel, the batch becomes rows: one product for each matrix of
// the right operand instead of one for each pair, and a gradient of that matrix without a sum over the batch.
//
// A transpose of rows that found none to cancel with behind a linear layer (passes/clean/move_transposes.cpp) goes back
// before it where rows are shorter there.

namespace plimsoll {
namespace {

using Perm = llvm::SmallVector<int64_t, 6>;

bool is_identity(llvm::ArrayRef<int64_t> perm) {
  for (size_t d = 0; d < perm.size(); ++d)
    if (perm[d] != static_cast<int64_t>(d)) return false;
  return true;
}

bool keeps_rows(llvm::ArrayRef<int64_t> perm) { return perm.back() == static_cast<int64_t>(perm.size()) - 1; }

// Is what is left of the permutation less work than all of it?
bool is_worth(llvm::ArrayRef<int64_t> left, llvm::ArrayRef<int64_t> perm) {
  return is_identity(left) || (keeps_rows(left) && !keeps_rows(perm));
}

ValueId transposed(Builder& b, ValueId value, llvm::ArrayRef<int64_t> perm) {
  return is_identity(perm) ? value : b.transpose(value, perm);
}

// Dims of a batch: `rank` of them, the first of which are 1 where the value has fewer.
Shape batch_dims(const Type& type, size_t rank) {
  Shape dims(rank, 1);
  const llvm::ArrayRef<int64_t> own = llvm::ArrayRef<int64_t>(type.shape).drop_back(2);
  std::copy(own.begin(), own.end(), dims.end() - static_cast<ptrdiff_t>(own.size()));
  return dims;
}

// matmul(a[B, H, P, M, K], b[B, 1, P, K, N]) -> matmul(a[B, P, H M, K], b[B, P, K, N]), where a and the result lie so
// already, or have fewer elements to transpose than b has.
bool make_batch_rows(Graph& graph, NodeId id) {
  const Node node = graph.node(id);
  const Type a = graph.type(operand_of(node, "a")), b = graph.type(operand_of(node, "b")),
             y = graph.type(node.results[0]);
  if (a.rank() < 3 || b.rank() < 3 || y.elements() == 0) return false;
  const bool transpose_a = node.attrs.get_int("transpose_a") != 0;
  const size_t batch = y.shape.size() - 2;
  const Shape of_a = batch_dims(a, batch), of_b = batch_dims(b, batch);
  const int64_t rows = y.shape[batch], columns = y.shape[batch + 1];
  // Other dims of the batch, then those that become rows, then the matrix.
  Perm order, moved;
  Shape a_shape, b_shape, parted;
  int64_t times = 1, matrices = 1;
  bool lies_so = !transpose_a;
  for (size_t d = 0; d < batch; ++d) {
    if (of_b[d] == 1 && of_a[d] > 1) {
      moved.push_back(static_cast<int64_t>(d));
      times *= of_a[d];
      continue;
    }
    lies_so &= moved.empty() || y.shape[d] == 1;
    order.push_back(static_cast<int64_t>(d));
    a_shape.push_back(of_a[d]), b_shape.push_back(of_b[d]), parted.push_back(y.shape[d]);
    matrices *= of_b[d];
  }
  if (moved.empty() || matrices == 1 || (!lies_so && a.elements() + y.elements() > b.elements())) return false;
  order.append(moved);
  for (int64_t d : moved) parted.push_back(of_a[static_cast<size_t>(d)]);
  parted.append({rows, columns});
  const auto last = static_cast<int64_t>(batch);
  Perm a_order = order, y_order = order;
  a_order.append({transpose_a ? last + 1 : last, transpose_a ? last : last + 1});
  y_order.append({last, last + 1});
  Perm back(y_order.size());
  for (size_t d = 0; d < y_order.size(); ++d) back[static_cast<size_t>(y_order[d])] = static_cast<int64_t>(d);

  Builder builder = builder_at(graph, id);
  Shape a_whole = of_a;
  a_whole.append(a.shape.end() - 2, a.shape.end());
  const ValueId left = transposed(builder, builder.reshape(operand_of(node, "a"), a_whole), a_order);
  a_shape.append({times * rows, transpose_a ? a.shape[a.shape.size() - 2] : a.shape.back()});
  b_shape.append(b.shape.end() - 2, b.shape.end());
  Attrs attrs = node.attrs;
  if (transpose_a) attrs.set("transpose_a", 0);
  const ValueId product =
      builder.emit("matmul", {builder.reshape(left, a_shape), builder.reshape(operand_of(node, "b"), b_shape)}, attrs);
  const ValueId result = builder.reshape(transposed(builder, builder.reshape(product, parted), back), y.shape);
  replace_and_rename(graph, node.results[0], result);
  graph.erase_node(id);  // readers of b are counted
  return true;
}

// matmul(transpose(x), y) -> matmul{transpose_a}(x, y), and so for b; a reshape between them may change what is no
// matrix.
bool absorb_operand(Graph& graph, NodeId id, size_t operand, llvm::StringRef flag) {
  const ValueId value = graph.node(id).operands[operand], below = past_reshapes(graph, value);
  const Node* transpose = producer_of(graph, below, "transpose");
  if (!transpose || !has_one_reader(graph, transpose->results[0])) return false;
  const llvm::ArrayRef<int64_t> perm = transpose->attrs.get_ints("perm");
  if (perm.size() < 2) return false;
  Perm left(perm.begin(), perm.end());
  std::swap(left[left.size() - 1], left[left.size() - 2]);
  if (!is_worth(left, perm)) return false;
  Shape matrices = graph.type(value).shape;
  const auto matrix_of = [](const Shape& shape) { return llvm::ArrayRef<int64_t>(shape).take_back(2); };
  if (below != value &&
      (!is_identity(left) || matrices.size() < 2 || matrix_of(matrices) != matrix_of(graph.type(below).shape)))
    return false;
  Builder b = builder_at(graph, id);
  std::swap(matrices[matrices.size() - 1], matrices[matrices.size() - 2]);
  const ValueId source = b.reshape(transposed(b, transpose->operands[0], left), matrices);
  graph.set_operand(id, operand, source);
  Attrs& attrs = graph.node(id).attrs;
  attrs.set(flag, int64_t{attrs.get_int(flag) == 0});
  return true;
}

int64_t absorb_operands(Graph& graph, NodeId id) {
  return int64_t{absorb_operand(graph, id, 0, "transpose_a")} + int64_t{absorb_operand(graph, id, 1, "transpose_b")};
}

// transpose(matmul(x, y)) -> matmul of y and x, each transposed.
bool absorb_result(Graph& graph, NodeId id) {
  const Node& transpose = graph.node(id);
  const Node* product = producer_of(graph, transpose.operands[0], "matmul");
  if (!product || !has_one_reader(graph, transpose.operands[0])) return false;
  const ValueId x = operand_of(*product, "a"), y = operand_of(*product, "b");
  const llvm::ArrayRef<int64_t> perm = transpose.attrs.get_ints("perm");
  const auto rank = static_cast<int64_t>(perm.size());
  if (rank < 2 || graph.type(x).rank() < 2 || graph.type(y).rank() < 2) return false;
  Perm left;
  for (int64_t d : perm) left.push_back(d == rank - 1 ? rank - 2 : d == rank - 2 ? rank - 1 : d);
  if (!is_worth(left, perm)) return false;
  Attrs attrs = product->attrs;
  attrs.set("transpose_a", int64_t{product->attrs.get_int("transpose_b") == 0});
  attrs.set("transpose_b", int64_t{product->attrs.get_int("transpose_a") == 0});
  Builder b = builder_at(graph, id);
  const ValueId turned = transposed(b, b.emit("matmul", {y, x}, attrs), left);
  replace_and_rename(graph, graph.node(id).results[0], turned);
  return true;
}

// transpose(linear(x)) -> linear(transpose(x)) where rows keep their elements and x has fewer.
bool move_before_linear(Graph& graph, NodeId id) {
  const Node& transpose = graph.node(id);
  const llvm::ArrayRef<int64_t> perm = transpose.attrs.get_ints("perm");
  const ValueId rows = transpose.operands[0], made = past_reshapes(graph, rows);
  const Node* linear = producer_of(graph, made, "linear");
  if (!linear || !keeps_rows(perm) || operand_of(*linear, "addend") != ValueId::None || !has_one_reader(graph, made) ||
      !has_one_reader(graph, rows))
    return false;
  const ValueId x = operand_of(*linear, "x");
  Shape shape = graph.type(rows).shape;
  if (shape.back() != graph.type(made).shape.back() || graph.type(x).elements() >= graph.type(made).elements())
    return false;
  shape.back() = graph.type(x).shape.back();
  const Node layer = *linear;
  Builder b = builder_at(graph, id);
  const ValueId moved = b.transpose(b.reshape(x, shape), perm);
  b.origin = layer.origin;
  replace_and_rename(graph, graph.node(id).results[0], b.emit("linear", operands_with(layer, "x", moved), layer.attrs));
  return true;
}

Result<bool> run_absorb_transposes(Graph& graph, PassContext& context) {
  const bool made_rows = apply_patterns(graph, context, {{"matmul", "batches as rows", make_batch_rows}});
  return apply_patterns(graph, context,
                        {{"matmul", "operands", absorb_operands},
                         {"transpose", "results", absorb_result},
                         {"transpose", "before layers", move_before_linear}}) ||
         made_rows;
}

}  // namespace

constinit const PassInfo pass_absorb_transposes{
    .name = "absorb-transposes",
    .summary =
        "let matrix products read their operands, and write their results, transposed, and a batch of their left "
        "operand alone be rows; transpose rows before layers that widen them",
    .run = run_absorb_transposes,
};

}  // namespace plimsoll
