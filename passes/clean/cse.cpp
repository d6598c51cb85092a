#include "ir/awaited.h"
#include "ir/op_def.h"
#include "passes/pass/pass.h"

// Common subexpression elimination: the first of the nodes with the same op, operands and attributes replaces the
// others. This is right because nodes have no effects and random ops read their counter as an operand.
// Rematerialisation repeats nodes on purpose; it comes later, in planning.

#include "llvm/ADT/Hashing.h"

#include <unordered_map>

namespace plimsoll {
namespace {

llvm::hash_code hash_attr(const Attr& attr) {
  return std::visit(
      [](const auto& value) -> llvm::hash_code {
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, double>)
          return std::hash<double>()(value);
        else if constexpr (std::is_same_v<T, Floats>)
          return llvm::hash_value(value.size());
        else if constexpr (std::is_same_v<T, Ints>)
          return llvm::hash_combine_range(value.begin(), value.end());
        else if constexpr (std::is_same_v<T, TensorRef>)
          // The first bytes of a large tensor distinguish it from most others; equality compares all of them.
          return llvm::hash_value(llvm::StringRef(static_cast<const char*>(value->data()),
                                                  static_cast<size_t>(std::min<int64_t>(value->type().bytes(), 4096))));
        else
          return llvm::hash_value(value);
      },
      attr);
}

size_t hash_node(const Node& node) {
  llvm::hash_code hash =
      llvm::hash_combine(node.op, llvm::hash_combine_range(node.operands.begin(), node.operands.end()));
  for (const auto& [name, attr] : node.attrs.entries()) hash = llvm::hash_combine(hash, name, hash_attr(attr));
  return hash;
}

bool compute_the_same(const Node& a, const Node& b) {
  return a.op == b.op && a.operands == b.operands && a.results.size() == b.results.size() && a.attrs == b.attrs;
}

Result<bool> run_cse(Graph& graph, PassContext& context) {
  std::unordered_map<size_t, llvm::SmallVector<NodeId, 1>> firsts;  // looked up only, never iterated
  int64_t shared = 0;
  for (NodeId id = graph.first_node(), next; id != NodeId::None; id = next) {
    next = graph.next_node(id);
    if (is_awaited(graph.node(id))) continue;
    auto& alike = firsts[hash_node(graph.node(id))];
    auto same = llvm::find_if(alike, [&](NodeId first) { return compute_the_same(graph.node(first), graph.node(id)); });
    if (same == alike.end()) {
      alike.push_back(id);
      continue;
    }
    for (auto [old, first] : llvm::zip(graph.node(id).results, graph.node(*same).results))
      graph.replace_uses(old, first);
    graph.erase_node(id);
    ++shared;
  }
  context.count("shared", shared);
  return shared > 0;
}

}  // namespace

constinit const PassInfo pass_cse{
    .name = "cse",
    .summary = "compute equal nodes once",
    .run = run_cse,
};

}  // namespace plimsoll
