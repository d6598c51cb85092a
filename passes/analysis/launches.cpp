#include "passes/analysis/launches.h"

#include "ir/op_def.h"

namespace plimsoll {

std::string launch_kind(const Graph& graph, const Node& node) {
  std::string kind = node.op->name.str() + " " + std::to_string(node.attrs.get_float("weight_decay"));
  for (ValueId operand : node.operands)
    kind += operand == ValueId::None ? " -" : " " + dtype_name(graph.type(operand).dtype).str();
  kind += " ->";
  const size_t copies = node.attrs.has("copy_dtype") ? 1 : 0;
  for (ValueId result : llvm::ArrayRef<ValueId>(node.results).drop_back(copies))
    kind += " " + dtype_name(graph.type(result).dtype).str();
  return kind;
}

}  // namespace plimsoll
