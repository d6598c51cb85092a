#include "passes/pass/pass.h"
#include "passes/rewrite/match.h"
#include "passes/rewrite/quantised_weights.h"

#include "llvm/ADT/STLExtras.h"

// A product whose columns are split among its readers, as that of a gated feed-forward layer is, becomes a product for
// each part. Readers find their part as they read it, so that the whole is neither copied into parts nor, in backward,
// joined from their gradients; where a budget is tight, whole and parts are not in memory together. It also holds for a
// sum of products, such as a layer and its adapter, and behind elementwise ops of one operand, such as the activation
// in front of a gate.
//
// It is right because each column of a product has its own column of the weight. What it costs is a copy of the weight
// in parts, of a trained one also its gradient, which is joined, and that the operand is read, and its gradient
// written, once for each part; it is done where that is half of the saved copies or less.

namespace plimsoll {
namespace {

constexpr int64_t min_gain = 2;           // elements that are moved no more, to those that are moved instead
constexpr int64_t columns_alignment = 8;  // rows of 16-bit elements begin at 16-byte borders

class Splitter {
 public:
  Splitter(Graph& graph, PassContext& context)
      : graph_(graph), context_(context), columns_(context.number("columns")) {}

  bool run() {
    const std::vector<NodeId> order = graph_.order();
    for (NodeId id : order)
      if (graph_.node(id).op->name == "split" && pays(graph_.node(id))) divide(id);
    if (divided_ == 0) return false;
    context_.count("split", divided_);
    context_.decide("products that are split", "a product for each part",
                    std::to_string(divided_) + (divided_ == 1 ? " is" : " are") +
                        " made in the parts that are read, without copies of the whole");
    return true;
  }

 private:
  bool pays(const Node& split) const {
    const Type& whole = graph_.type(split.operands[0]);
    const llvm::ArrayRef<int64_t> sizes = split.attrs.get_ints("sizes");
    if (split.attrs.get_int("axis") != whole.rank() - 1 ||
        llvm::any_of(sizes, [&](int64_t size) { return size < columns_ || size % columns_alignment != 0; }))
      return false;
    int64_t moved = 0;
    // The split reads and writes all elements, and so does the concat of its gradient.
    return add_moves(split.operands[0], static_cast<int64_t>(sizes.size()), moved) &&
           4 * whole.elements() >= min_gain * moved;
  }

  // Adds the elements that parts of the value move beside what the whole moves. False where it cannot be made in parts.
  bool add_moves(ValueId value, int64_t parts, int64_t& moved) const {
    const NodeId id = graph_.value(value).producer;
    if (id == NodeId::None || !has_one_reader(graph_, value)) return false;
    const Node& node = graph_.node(id);
    if (node.op->name == "add")
      return llvm::all_of(node.operands, [&](ValueId operand) {
        return graph_.type(operand) == graph_.type(value) && add_moves(operand, parts, moved);
      });
    if (is_of_one_operand(node)) return add_moves(node.operands[0], parts, moved);
    if (node.op->name != "linear") return false;
    for (const auto& [name, attr] : node.attrs.entries())
      if (name != "transpose_w") return false;
    if (const ValueId addend = operand_of(node, "addend"); addend != ValueId::None)
      if (graph_.type(addend) != graph_.type(value) || !add_moves(addend, parts, moved)) return false;
    const int64_t weight_copies = is_frozen(node.operands[1]) ? 1 : 2;
    moved += 2 * weight_copies * graph_.type(node.operands[1]).elements() +
             3 * (parts - 1) * graph_.type(node.operands[0]).elements();
    return true;
  }

  bool is_of_one_operand(const Node& node) const {
    return node.operands.size() == 1 && fits_fused_body(graph_, node) &&
           graph_.type(node.operands[0]).shape == graph_.type(node.results[0]).shape;
  }

  // A frozen parameter, a cast of one, or the numbers of its codes.
  bool is_frozen(ValueId weight) const {
    if (const Node* cast = producer_of(graph_, weight, "cast")) weight = cast->operands[0];
    const NodeId producer = graph_.value(weight).producer;
    if (producer != NodeId::None) return is_dequantize(graph_.node(producer));
    const State* state = graph_.find_state(weight);
    return state && !state->trained;
  }

  void divide(NodeId split) {
    const llvm::SmallVector<ValueId, 4> results(graph_.node(split).results.begin(), graph_.node(split).results.end());
    const Ints sizes = llvm::to_vector<4>(graph_.node(split).attrs.get_ints("sizes"));
    const llvm::SmallVector<ValueId, 4> parts = parts_of(graph_.node(split).operands[0], sizes);
    for (size_t i = 0; i < results.size(); ++i) replace_and_rename(graph_, results[i], parts[i]);
    ++divided_;
  }

  llvm::SmallVector<ValueId, 4> parts_of(ValueId value, const Ints& sizes) {
    const NodeId id = graph_.value(value).producer;
    const Node node = graph_.node(id);
    std::vector<llvm::SmallVector<ValueId, 4>> operands;  // of the node, each in its parts
    for (size_t i = 0; i < node.operands.size(); ++i) operands.push_back(operand_parts(id, node, i, sizes));
    Builder b = builder_at(graph_, id);
    llvm::SmallVector<ValueId, 4> parts;
    for (size_t part = 0; part < sizes.size(); ++part) {
      llvm::SmallVector<ValueId, 4> own;
      for (const auto& operand : operands) own.push_back(operand[part]);
      parts.push_back(b.emit(node.op->name, own, node.attrs, part_name(value, part)));
    }
    return parts;
  }

  std::string part_name(ValueId value, size_t part) const {
    return graph_.value(value).name + ".part" + std::to_string(part);
  }

  // What each part's node has as the node's operand `i`.
  llvm::SmallVector<ValueId, 4> operand_parts(NodeId id, const Node& node, size_t i, const Ints& sizes) {
    const ValueId operand = node.operands[i];
    const bool is_linear = node.op->name == "linear";
    if (operand == ValueId::None || (is_linear && i == 0)) return llvm::SmallVector<ValueId, 4>(sizes.size(), operand);
    if (!is_linear || i == 3) return parts_of(operand, sizes);  // summands, or what an elementwise op reads
    const int64_t along = i == 2 || node.attrs.get_int("transpose_w") != 0 ? 0 : 1;
    const auto parts = builder_at(graph_, id).emit_all("split", {operand}, {{"axis", along}, {"sizes", sizes}});
    for (size_t part = 0; part < parts.size(); ++part) graph_.rename(parts[part], part_name(operand, part));
    return parts;
  }

  Graph& graph_;
  PassContext& context_;
  int64_t columns_, divided_ = 0;
};

Result<bool> run_split_products(Graph& graph, PassContext& context) { return Splitter(graph, context).run(); }

constexpr PassOption pass_options[] = {
    {"columns", 256, "fewest columns of a part: with fewer a product takes as long as reading its operand", 8}};

}  // namespace

constinit const PassInfo pass_split_products{
    .name = "split-products",
    .summary = "make a product whose columns are split as a product for each part",
    .stage = Stage::Forward,
    .options = pass_options,
    .run = run_split_products,
};

}  // namespace plimsoll
