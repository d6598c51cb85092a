#include "passes/rewrite/patterns.h"

#include <numeric>

// A matrix product reads either operand as it is or transposed, and the transpose of its result is the product of the
// transposed operands in the other order. So transposes of the last two dims become flags of the product. One that
// moves more dims keeps the others, where rows of its operand then stay runs in memory.

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

// matmul(transpose(x), y) -> matmul{transpose_a}(x, y), and so for b.
bool absorb_operand(Graph& graph, NodeId id, size_t operand, llvm::StringRef flag) {
  const Node* transpose = producer_of(graph, graph.node(id).operands[operand], "transpose");
  if (!transpose || !has_one_reader(graph, transpose->results[0])) return false;
  const llvm::ArrayRef<int64_t> perm = transpose->attrs.get_ints("perm");
  if (perm.size() < 2) return false;
  Perm left(perm.begin(), perm.end());
  std::swap(left[left.size() - 1], left[left.size() - 2]);
  if (!is_worth(left, perm)) return false;
  Builder b = builder_at(graph, id);
  const ValueId source = transposed(b, transpose->operands[0], left);
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

Result<bool> run_absorb_transposes(Graph& graph, PassContext& context) {
  return apply_patterns(graph, context,
                        {{"matmul", "operands", absorb_operands}, {"transpose", "results", absorb_result}});
}

}  // namespace

constinit const PassInfo pass_absorb_transposes{
    .name = "absorb-transposes",
    .summary = "let matrix products read their operands, and write their results, transposed",
    .run = run_absorb_transposes,
};

}  // namespace plimsoll
