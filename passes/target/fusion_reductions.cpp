#include "passes/target/fusion_reductions.h"

#include "ir/fused_form.h"
#include "passes/target/fusion_groups.h"

#include "llvm/ADT/STLExtras.h"

namespace plimsoll {
namespace {

// A total of fewer elements saves little, and its kernel has more threads than work.
constexpr int64_t min_reduced_length = 4;
// A row whose totals its own elements read is one block's, however long it is.
constexpr int64_t max_row_length = 16384;

Shape with_kept_dims(const Graph& graph, const Node& reduction) {
  Shape shape = graph.type(reduction.operands[0]).shape;
  for (int64_t axis : reduction.attrs.get_ints("axes")) shape[static_cast<size_t>(axis)] = 1;
  return shape;
}

struct Extents {
  int64_t length = 1, inner = 1;
  bool are_neighbours = true;  // the dimensions that are reduced
};

Extents extents_of(llvm::ArrayRef<int64_t> whole, llvm::ArrayRef<int64_t> totals) {
  Extents extents;
  for (size_t d = 0; d < whole.size(); ++d) {
    if (whole[d] == 1) continue;
    if (totals[d] == 1) {
      extents.are_neighbours &= extents.inner == 1;
      extents.length *= whole[d];
    } else if (extents.length > 1) {
      extents.inner *= whole[d];
    }
  }
  return extents;
}

// Follows the nodes of a group in order.
class TotalsFinder {
 public:
  TotalsFinder(const Graph& graph, llvm::ArrayRef<int64_t> shape) : graph_(graph), shape_(shape.begin(), shape.end()) {}

  bool add(const Node& node) { return is_fusible_reduction(graph_, node) ? add_reduction(node) : add_other(node); }

  // Elements or a second reduction make it worth a kernel of its own.
  bool is_worthwhile() const { return elements_ > 0 || reductions_ > 1; }
  GroupTotals take() { return std::move(totals_); }

 private:
  bool add_reduction(const Node& node) {
    const Shape kept = with_kept_dims(graph_, node);
    if (graph_.type(node.operands[0]).shape != shape_ || totals_.has(node.operands[0])) return false;
    if (reductions_++ > 0 && kept != kept_) return false;
    kept_ = kept;
    totals_.values.push_back(node.results[0]);
    return true;
  }

  bool add_other(const Node& node) {
    const auto is_total = [&](ValueId value) { return totals_.has(value); };
    const ValueId made = node.results[0];
    const Type& type = graph_.type(made);
    const bool reads_totals = llvm::any_of(node.operands, is_total);
    // A body keeps the dimensions that it reduces, so that what reads a total without them would have another shape.
    if (llvm::any_of(node.operands,
                     [&](ValueId operand) { return is_total(operand) && graph_.type(operand).shape != kept_; }))
      return false;
    if (reads_totals && llvm::all_of(node.operands, [&](ValueId operand) {
          return is_total(operand) || is_one_number(graph_, operand);
        })) {
      totals_.values.push_back(made);
      return type.shape == kept_;
    }
    const bool waits = reads_totals || llvm::any_of(node.operands, [&](ValueId operand) {
                         return llvm::is_contained(behind_totals_, operand);
                       });
    elements_ += type.shape == shape_;
    if (!waits) return true;
    behind_totals_.push_back(made);
    const Extents extents = extents_of(shape_, kept_);
    return extents.inner == 1 && extents.length <= max_row_length && type.shape == shape_;
  }

  const Graph& graph_;
  Shape shape_, kept_;
  GroupTotals totals_;
  std::vector<ValueId> behind_totals_;  // elements that wait for totals
  size_t reductions_ = 0, elements_ = 0;
};

}  // namespace

bool GroupTotals::has(ValueId value) const { return llvm::is_contained(values, value); }

bool is_fusible_reduction(const Graph& graph, const Node& node) {
  if (!is_body_reduction(*node.op)) return false;
  const auto types = operand_types(graph, node);
  const Type& x = *types[0];
  if (!fits_body_reduction(OpCall(*node.op, node.attrs, types), graph.type(node.results[0]))) return false;
  const Extents extents = extents_of(x.shape, with_kept_dims(graph, node));
  return extents.are_neighbours && extents.length >= min_reduced_length;
}

const Shape& iterated_shape(const Graph& graph, const Node& node) {
  return graph.type(is_fusible_reduction(graph, node) ? node.operands[0] : node.results[0]).shape;
}

std::optional<GroupTotals> totals_of(const Graph& graph, llvm::ArrayRef<NodeId> nodes, llvm::ArrayRef<int64_t> shape) {
  if (llvm::none_of(nodes, [&](NodeId id) { return is_fusible_reduction(graph, graph.node(id)); }))
    return GroupTotals();
  TotalsFinder finder(graph, shape);
  for (NodeId id : nodes)
    if (!finder.add(graph.node(id))) return std::nullopt;
  return finder.is_worthwhile() ? std::optional(finder.take()) : std::nullopt;
}

}  // namespace plimsoll
