#pragma once

// What the passes of a fused op with reductions read, compute and keep, whichever threads have which elements.

#include "ir/fused_form.h"

namespace plimsoll {

class FusedPasses {
 public:
  // A value that stays in registers from the pass that makes it on.
  struct KeptValue {
    ValueId value;
    int pass;
  };

  // Both outlive this.
  FusedPasses(const Graph& body, const BodyForm& form);

  llvm::ArrayRef<NodeId> reductions() const { return reductions_; }

  bool is_total(size_t result) const { return form_.is_total[index_of(body_.outputs[result].value)]; }
  // Is the result one of elements, which the pass stores?
  bool is_given(size_t result, int pass) const { return !is_total(result) && pass == form_.passes - 1; }
  bool is_read_in(size_t operand, int pass) const;
  // Does a pass before the last read the operand? If not, it need not stay in registers.
  bool is_read_before_last(size_t operand) const;

  // The nodes on elements that a pass computes.
  llvm::SmallVector<NodeId, 16> nodes_of(int pass) const;

  // Keeps what later passes read other than to make again what earlier ones have made, where a thread with so many
  // elements has `most_bytes` for it.
  void keep_values(int64_t elements, int64_t most_bytes);
  llvm::ArrayRef<KeptValue> kept() const { return kept_; }
  // Those that nodes of the pass read, or that it reduces or gives.
  bool reads_kept(const KeptValue& kept, int pass, llvm::ArrayRef<NodeId> nodes) const;

  // Of a body of one pass: what is made of operands that repeat along what is reduced, and of constants, is fixed.
  void fix_nodes(llvm::ArrayRef<bool> is_fixed_operand);
  llvm::ArrayRef<NodeId> fixed_nodes() const { return fixed_nodes_; }     // with the constants that they read
  llvm::ArrayRef<ValueId> fixed_values() const { return fixed_values_; }  // of these nodes, those that others read
  bool is_fixed_node(NodeId id) const { return llvm::is_contained(fixed_nodes_, id); }

 private:
  bool is_kept_before(ValueId value, int pass) const;
  bool is_free(const Node& node) const;
  bool is_read_behind(ValueId value, int pass, const std::vector<bool>& is_made) const;
  bool is_read_of_each_element(ValueId value) const;
  bool gives(ValueId value, int pass) const;

  const Graph& body_;
  const BodyForm& form_;
  llvm::SmallVector<NodeId, 4> reductions_;
  llvm::SmallVector<KeptValue, 4> kept_;
  llvm::SmallVector<NodeId, 8> fixed_nodes_;
  llvm::SmallVector<ValueId, 4> fixed_values_;
};

}  // namespace plimsoll
