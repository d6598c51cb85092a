#include "passes/pass/pass.h"
#include "passes/rewrite/match.h"

#include <algorithm>
#include <map>
#include <tuple>

// Products with few columns, such as those with the first matrices of adapters, take as long as reading their operand.
// Where several read the same one, they become one product with the columns of all, and a split: the operand is read
// once, and so it is for the gradient of the weights, and its own gradient is written once.
//
// Weights are joined where they are parameters or casts of them, which is work once a step; a weight with a bias or
// with products of 8-bit floats stays by itself.

namespace plimsoll {
namespace {

constexpr int64_t min_ratio = 16;  // of the operand's columns to those of the results, which are copied once more

struct Narrow {
  NodeId node;
  int64_t columns;
};

// A product that may be joined: the shared operand, and how its weight is stored.
using Kind = std::tuple<ValueId, bool, DType>;

// The parameter that a weight is, or is a cast of; None otherwise.
ValueId parameter_of(const Graph& graph, ValueId weight) {
  if (const Node* cast = producer_of(graph, weight, "cast")) weight = cast->operands[0];
  return graph.value(weight).producer == NodeId::None ? weight : ValueId::None;
}

class Joiner {
 public:
  Joiner(Graph& graph, PassContext& context) : graph_(graph), context_(context), columns_(context.number("columns")) {}

  bool run() {
    std::map<Kind, std::vector<Narrow>> products;  // ordered: the result does not depend on addresses
    for (NodeId id : graph_.order())
      if (const std::optional<Narrow> narrow = narrow_product(id))
        products[kind_of(graph_.node(id))].push_back(*narrow);
    for (const auto& [kind, all] : products)
      for (llvm::ArrayRef<Narrow> rest = all; !rest.empty();) {
        const size_t count = fitting(rest);
        if (count > 1) join(rest.take_front(count));
        rest = rest.drop_front(count);
      }
    if (joined_ == 0) return false;
    context_.count("joined", joined_);
    context_.decide("narrow products", "joined",
                    std::to_string(joined_) + " that read what others read are " + std::to_string(made_) +
                        " products, which read it once");
    return true;
  }

 private:
  std::optional<Narrow> narrow_product(NodeId id) const {
    const Node& node = graph_.node(id);
    if (node.op->name != "linear" || node.operands.size() != 2) return std::nullopt;
    for (const auto& [name, value] : node.attrs.entries())
      if (name != "transpose_w") return std::nullopt;
    const Type& result = graph_.type(node.results[0]);
    const int64_t columns = result.shape.back();
    if (columns > columns_ || columns * min_ratio > graph_.type(node.operands[0]).shape.back()) return std::nullopt;
    if (parameter_of(graph_, node.operands[1]) == ValueId::None) return std::nullopt;
    return Narrow{id, columns};
  }

  Kind kind_of(const Node& node) const {
    return {node.operands[0], is_transposed(node), graph_.type(parameter_of(graph_, node.operands[1])).dtype};
  }

  static bool is_transposed(const Node& node) { return node.attrs.get_int("transpose_w") != 0; }

  // How many of the first products are narrow together.
  size_t fitting(llvm::ArrayRef<Narrow> products) const {
    const int64_t inner = graph_.type(graph_.node(products[0].node).operands[0]).shape.back();
    int64_t columns = 0;
    size_t count = 0;
    for (; count < products.size(); ++count) {
      columns += products[count].columns;
      if (columns > columns_ || columns * min_ratio > inner) break;
    }
    return std::max<size_t>(count, 1);
  }

  void join(llvm::ArrayRef<Narrow> products) {
    const Node first = graph_.node(products[0].node);
    const Type weight = graph_.type(first.operands[1]);
    const int64_t along = is_transposed(first) ? 0 : 1, last = graph_.type(first.results[0]).rank() - 1;
    llvm::SmallVector<ValueId, 4> parameters;
    Ints sizes;
    for (const Narrow& product : products) {
      parameters.push_back(parameter_of(graph_, graph_.node(product.node).operands[1]));
      sizes.push_back(product.columns);
    }
    const std::string name = graph_.value(first.results[0]).name;
    Builder b = builder_at(graph_, products[0].node);
    ValueId joined = b.emit("concat", parameters, {{"axis", along}});
    if (graph_.type(joined).dtype != weight.dtype) joined = b.emit("cast", {joined}, {{"to", weight.dtype}});
    const ValueId product = b.emit("linear", {first.operands[0], joined}, first.attrs, name + ".joined");
    const auto parts = b.emit_all("split", {product}, {{"axis", last}, {"sizes", sizes}});
    for (size_t i = 0; i < products.size(); ++i)
      replace_and_rename(graph_, graph_.node(products[i].node).results[0], parts[i]);
    joined_ += static_cast<int64_t>(products.size());
    ++made_;
  }

  Graph& graph_;
  PassContext& context_;
  int64_t columns_, joined_ = 0, made_ = 0;
};

Result<bool> run_join_narrow(Graph& graph, PassContext& context) { return Joiner(graph, context).run(); }

constexpr PassOption pass_options[] = {
    {"columns", 128, "most columns of a joined product: with fewer it takes as long as reading its operand", 2}};

}  // namespace

constinit const PassInfo pass_join_narrow{
    .name = "join-narrow",
    .summary = "make products with few columns of one operand as one product",
    .stage = Stage::Forward,
    .options = pass_options,
    .run = run_join_narrow,
};

}  // namespace plimsoll
