#include "ir/op_def.h"

#include <algorithm>
#include <cassert>

namespace plimsoll {

#define PLIMSOLL_OP(name) extern const OpDef op_##name;
#include "ir/ops/ops.def"
#undef PLIMSOLL_OP

namespace {

constexpr const OpDef* ops[] = {
#define PLIMSOLL_OP(name) &op_##name,
#include "ir/ops/ops.def"
#undef PLIMSOLL_OP
};

// What has the result's rank and rows is cut; what is broadcast along dimension 0 is not.
ChunkCall elementwise_part(const OpCall& call) {
  size_t rank = 0;
  int64_t rows = 0;
  for (size_t i = 0; i < call.count(); ++i) {
    if (!call.has(i)) continue;
    const Shape& shape = call.operand(i).shape;
    if (shape.size() > rank) rows = 0;
    rank = std::max(rank, shape.size());
    if (rank > 0 && shape.size() == rank) rows = std::max(rows, shape[0]);
  }
  ChunkCall part{{}, {}, call.attrs};
  for (size_t i = 0; i < call.count(); ++i)
    part.cut.push_back(call.has(i) && rank > 0 && call.operand(i).shape.size() == rank &&
                       call.operand(i).shape[0] == rows);
  return part;
}

}  // namespace

llvm::ArrayRef<const OpDef*> all_ops() { return ops; }

const OpDef* find_op(llvm::StringRef name) {
  // Built once, on the first question; ops are few but importers ask for each node.
  static const llvm::StringMap<const OpDef*> by_name = [] {
    llvm::StringMap<const OpDef*> map;
    for (const OpDef* op : ops) map[op->name] = op;
    return map;
  }();
  auto at = by_name.find(name);
  return at == by_name.end() ? nullptr : at->second;
}

const OpDef& get_op(llvm::StringRef name) {
  const OpDef* op = find_op(name);
  assert(op && "no such op");
  return *op;
}

llvm::SmallVector<const Type*, 4> operand_types(const Graph& graph, const Node& node) {
  llvm::SmallVector<const Type*, 4> types;
  for (ValueId operand : node.operands) types.push_back(operand == ValueId::None ? nullptr : &graph.type(operand));
  return types;
}

Types result_types(const Graph& graph, const Node& node) {
  Types types;
  for (ValueId result : node.results) types.push_back(graph.type(result));
  return types;
}

double flops_of(const Graph& graph, const Node& node) {
  Types results = result_types(graph, node);
  if (!node.op->flops) return results.empty() ? 0 : static_cast<double>(results.front().elements());
  llvm::SmallVector<const Type*, 4> operands = operand_types(graph, node);
  return node.op->flops(OpCall(node.attrs, operands), results);
}

std::optional<ChunkCall> chunk_of(const OpDef& op, const OpCall& call, Chunk part) {
  std::optional<ChunkCall> found;
  if (op.chunk)
    found = op.chunk(call, part);
  else if (op.elementwise)
    found = elementwise_part(call);
  if (!found) return std::nullopt;
  bool any = false;
  for (size_t i = 0; i < found->cut.size(); ++i) {
    if (!found->cut[i]) continue;
    const Shape& shape = call.operand(i).shape;
    if (shape.empty() || shape[0] % part.count != 0) return std::nullopt;
    any = true;
  }
  return any ? found : std::nullopt;
}

Combine combine_of(const ChunkCall& call, size_t result) {
  return result < call.combine.size() ? call.combine[result] : Combine::Rows;
}

bool is_weighted_mean(const Graph& graph, const Node& node) {
  if (!node.op->sample_weight) return false;
  const llvm::SmallVector<const Type*, 4> types = operand_types(graph, node);
  const std::optional<ChunkCall> call = node.op->chunk(OpCall(node.attrs, types), {0, 1});
  return call && combine_of(*call, 0) == Combine::WeightedMean;
}

}  // namespace plimsoll
