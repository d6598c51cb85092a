#include "runtime/kernels/fused_passes.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>

namespace plimsoll {

FusedPasses::FusedPasses(const Graph& body, const BodyForm& form) : body_(body), form_(form) {
  for (NodeId id : body.order())
    if (is_body_reduction(*body.node(id).op)) reductions_.push_back(id);
}

bool FusedPasses::gives(ValueId value, int pass) const {
  for (size_t r = 0; r < body_.outputs.size(); ++r)
    if (is_given(r, pass) && body_.outputs[r].value == value) return true;
  return false;
}

bool FusedPasses::is_read_in(size_t operand, int pass) const {
  const ValueId value = body_.inputs[operand];
  const auto reads = [&](NodeId id) { return llvm::is_contained(body_.node(id).operands, value); };
  return llvm::any_of(nodes_of(pass), reads) || llvm::any_of(reductions_of(body_, form_, pass), reads) ||
         gives(value, pass);
}

bool FusedPasses::is_read_before_last(size_t operand) const {
  for (int pass = 0; pass + 1 < form_.passes; ++pass)
    if (is_read_in(operand, pass)) return true;
  return false;
}

bool FusedPasses::is_kept_before(ValueId value, int pass) const {
  return llvm::any_of(kept_, [&](const KeptValue& kept) { return kept.value == value && kept.pass < pass; });
}

llvm::SmallVector<NodeId, 16> FusedPasses::nodes_of(int pass) const {
  llvm::SmallVector<NodeId, 16> nodes = element_nodes(body_, form_, pass);
  if (kept_.empty()) return nodes;
  std::vector<bool> wanted(body_.value_count());
  for (NodeId id : reductions_of(body_, form_, pass)) wanted[index_of(body_.node(id).operands[0])] = true;
  for (size_t r = 0; r < body_.outputs.size(); ++r)
    if (is_given(r, pass)) wanted[index_of(body_.outputs[r].value)] = true;
  llvm::SmallVector<NodeId, 16> made;
  for (NodeId id : llvm::reverse(nodes)) {
    const Node& node = body_.node(id);
    if (!wanted[index_of(node.results[0])] || is_kept_before(node.results[0], pass)) continue;
    for (ValueId operand : node.operands) wanted[index_of(operand)] = true;
    made.push_back(id);
  }
  std::reverse(made.begin(), made.end());
  return made;
}

// Made again in every pass that reads it: a constant, a 16-bit float as f32, or what is left of a total.
bool FusedPasses::is_free(const Node& node) const {
  const llvm::StringRef op = node.op->name;
  if (op == "constant") return true;
  const auto dtype = [&](ValueId value) { return body_.type(value).dtype; };
  if (op == "cast") return is_16_bit_float(dtype(node.operands[0])) && dtype(node.results[0]) == DType::F32;
  return (op == "add" || op == "sub" || op == "mul") &&
         llvm::any_of(node.operands, [&](ValueId operand) { return form_.is_total[index_of(operand)]; });
}

void FusedPasses::keep_values(int64_t elements, int64_t most_bytes) {
  std::vector<bool> is_made(body_.value_count());
  int64_t bytes = 0;
  for (int pass = 0; pass + 1 < form_.passes; ++pass) {
    llvm::SmallVector<ValueId, 4> made_here;
    for (NodeId id : element_nodes(body_, form_, pass)) {
      const ValueId value = body_.node(id).results[0];
      if (!is_made[index_of(value)] && !is_free(body_.node(id))) made_here.push_back(value);
      is_made[index_of(value)] = true;
    }
    for (ValueId value : made_here) {
      if (!is_read_behind(value, pass, is_made)) continue;
      kept_.push_back({value, pass});
      bytes += elements * dtype_bytes(body_.type(value).dtype);
    }
  }
  if (bytes > most_bytes) kept_.clear();
}

bool FusedPasses::is_read_behind(ValueId value, int pass, const std::vector<bool>& is_made) const {
  for (int later = pass + 1; later < form_.passes; ++later) {
    for (NodeId id : element_nodes(body_, form_, later)) {
      const Node& node = body_.node(id);
      if (llvm::is_contained(node.operands, value) && (is_free(node) || !is_made[index_of(node.results[0])]))
        return true;
    }
    for (NodeId id : reductions_of(body_, form_, later))
      if (body_.node(id).operands[0] == value) return true;
    if (gives(value, later)) return true;
  }
  return false;
}

bool FusedPasses::reads_kept(const KeptValue& kept, int pass, llvm::ArrayRef<NodeId> nodes) const {
  const auto reads = [&](NodeId id) { return llvm::is_contained(body_.node(id).operands, kept.value); };
  return kept.pass < pass && (llvm::any_of(nodes, reads) || llvm::any_of(reductions_of(body_, form_, pass), reads) ||
                              gives(kept.value, pass));
}

void FusedPasses::fix_nodes(llvm::ArrayRef<bool> is_fixed_operand) {
  std::vector<bool> is_fixed(body_.value_count());
  for (size_t i = 0; i < is_fixed_operand.size(); ++i)
    is_fixed[index_of(body_.inputs[i])] = is_fixed_operand[i] && !is_random_counter(body_.type(body_.inputs[i]));
  bool any = false;
  for (NodeId id : element_nodes(body_, form_, 0)) {
    const Node& node = body_.node(id);
    if (node.op->name == "dropout" || !llvm::all_of(node.operands, [&](ValueId v) { return is_fixed[index_of(v)]; }))
      continue;
    is_fixed[index_of(node.results[0])] = true;
    any |= node.op->name != "constant";
    fixed_nodes_.push_back(id);
  }
  if (!any) fixed_nodes_.clear();
  for (NodeId id : fixed_nodes_)
    if (body_.node(id).op->name != "constant" && is_read_of_each_element(body_.node(id).results[0]))
      fixed_values_.push_back(body_.node(id).results[0]);
}

bool FusedPasses::is_read_of_each_element(ValueId value) const {
  for (NodeId user : body_.value(value).users)
    if (!is_fixed_node(user)) return true;
  return llvm::any_of(body_.outputs, [&](const Output& output) { return output.value == value; });
}

}  // namespace plimsoll
