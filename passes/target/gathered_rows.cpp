#include "passes/target/gathered_rows.h"

#include "passes/rewrite/match.h"
#include "passes/target/row_scatters.h"

#include "llvm/ADT/STLExtras.h"

namespace plimsoll {
namespace {

// How many leading dimensions of the shape hold `rows` elements; none where no number of them does.
std::optional<size_t> row_dims(llvm::ArrayRef<int64_t> shape, int64_t rows) {
  int64_t count = 1;
  for (size_t dims = 0; dims <= shape.size(); ++dims) {
    if (count == rows) return dims;
    if (dims < shape.size()) count *= shape[dims];
  }
  return std::nullopt;
}

// The heads that weights of that shape have in each of `rows` rows of the shape `whole`: they are as long as it in
// leading dimensions, and do not change along the others. Gives none where a head has one element alone, as weights of
// elements have.
std::optional<int64_t> heads_of(llvm::ArrayRef<int64_t> weights, llvm::ArrayRef<int64_t> whole, int64_t rows) {
  const std::optional<size_t> of_rows = row_dims(whole, rows);
  if (!of_rows || weights.size() != whole.size()) return std::nullopt;
  size_t same = 0;
  while (same < whole.size() && weights[same] == whole[same]) ++same;
  if (same < *of_rows || llvm::any_of(weights.drop_front(same), [](int64_t n) { return n != 1; })) return std::nullopt;
  const int64_t heads = element_count(whole.slice(*of_rows, same - *of_rows));
  if (2 * heads * rows > element_count(whole)) return std::nullopt;
  return heads;
}

bool add_weights(const Graph& graph, const Node& mul, size_t side, int64_t rows, GatheredRows& found) {
  if (found.weights != ValueId::None) return false;
  const ValueId weights = mul.operands[side];
  const Shape& whole = graph.type(mul.results[0]).shape;
  if (graph.type(mul.operands[1 - side]).shape != whole) return false;
  const std::optional<int64_t> heads = heads_of(graph.type(weights).shape, whole, rows);
  if (!heads) return false;
  found.weights = weights;
  found.heads = *heads;
  return true;
}

bool add_gather(const Graph& graph, NodeId id, int64_t rows, GatheredRows& found) {
  const Node& node = graph.node(id);
  found.gather = id;
  found.table = operand_of(node, "x");
  found.indices = below_reshapes(graph, operand_of(node, "indices"));
  return node.attrs.get_int("axis") == 0 && graph.type(found.indices).elements() == rows &&
         is_float(graph.type(found.table).dtype) && graph.type(found.table).elements() > 0;
}

bool match_below(const Graph& graph, ValueId value, int64_t rows, GatheredRows& found) {
  const NodeId id = graph.value(value).producer;
  if (id == NodeId::None) return false;
  const Node& node = graph.node(id);
  const llvm::StringRef op = node.op->name;
  if (op == "gather") return add_gather(graph, id, rows, found);
  found.between.push_back(id);
  if (op == "reshape") return match_below(graph, node.operands[0], rows, found);
  if (op == "cast")
    return is_float(graph.type(node.operands[0]).dtype) && match_below(graph, node.operands[0], rows, found);
  if (op != "mul") return false;
  for (size_t side : {0, 1}) {
    GatheredRows tried = found;
    if (!add_weights(graph, node, side, rows, tried) || !match_below(graph, node.operands[1 - side], rows, tried))
      continue;
    found = std::move(tried);
    return true;
  }
  return false;
}

}  // namespace

std::optional<GatheredRows> match_gathered_rows(const Graph& graph, ValueId value, int64_t rows) {
  GatheredRows found{NodeId::None, ValueId::None, ValueId::None};
  if (rows < 1 || !is_float(graph.type(value).dtype) || !match_below(graph, value, rows, found)) return std::nullopt;
  return found;
}

std::optional<GatheredDots> match_gathered_dots(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  if (node.op->name != "reduce_sum" || node.operands.size() != 1) return std::nullopt;
  GatheredDots dots{id, {}, {}, 1, {}};
  ValueId products = node.operands[0];
  const Shape whole = graph.type(products).shape;
  while (const Node* above = producer_of(graph, products, "cast")) {
    dots.between.push_back(graph.value(products).producer);
    products = above->operands[0];
  }
  const Node* mul = producer_of(graph, products, "mul");
  if (!mul) return std::nullopt;
  dots.between.push_back(graph.value(products).producer);
  // The last dimensions are summed over; what is left are rows and heads.
  llvm::SmallVector<int64_t, 4> axes = llvm::to_vector<4>(node.attrs.get_ints("axes"));
  llvm::sort(axes);
  const size_t left = whole.size() - axes.size();
  for (size_t i = 0; i < axes.size(); ++i)
    if (axes[i] != static_cast<int64_t>(left + i)) return std::nullopt;
  for (size_t of_rows = 1; of_rows <= left; ++of_rows) {
    const int64_t rows = element_count(llvm::ArrayRef<int64_t>(whole).take_front(of_rows));
    std::optional<GatheredRows> first = match_gathered_rows(graph, mul->operands[0], rows);
    std::optional<GatheredRows> second = match_gathered_rows(graph, mul->operands[1], rows);
    if (!first || !second || first->weights != ValueId::None || second->weights != ValueId::None) continue;
    if (graph.type(mul->operands[0]).shape != whole || graph.type(mul->operands[1]).shape != whole) continue;
    dots.heads = element_count(llvm::ArrayRef<int64_t>(whole).slice(of_rows, left - of_rows));
    dots.between.append(first->between);
    dots.between.append(second->between);
    dots.left = std::move(*first), dots.right = std::move(*second);
    return dots;
  }
  return std::nullopt;
}

}  // namespace plimsoll
