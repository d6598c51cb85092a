#include "passes/rewrite/patterns.h"
#include "passes/target/left_products.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>

// A layer over the tokens of each image stands between two transposes, since layers are over the last dimension. Its
// weight multiplies every image from the left instead: rows stay as they are, and neither the transposes nor the
// padding of rows of tokens are left, in backward either. Biases become sums, which elementwise ops behind them make.
//
// It is right because (x^T w^T)^T is w x. It holds for several layers between the transposes, with elementwise ops of
// one operand between them or of one number for each image, as drop path has them. Weights with few rows or columns
// stay as they are: most of what kernels with matrices at the left load would be padding.

namespace plimsoll {
namespace {

constexpr int64_t min_size = 32, columns_multiple = 8;
constexpr size_t max_links = 16;  // between two transposes

bool swaps_last_two(const Node& node) {
  if (node.op->name != "transpose") return false;
  const llvm::ArrayRef<int64_t> perm = node.attrs.get_ints("perm");
  const size_t rank = perm.size();
  if (rank < 3) return false;
  for (size_t d = 0; d + 2 < rank; ++d)
    if (perm[d] != static_cast<int64_t>(d)) return false;
  return perm[rank - 1] == static_cast<int64_t>(rank) - 2;
}

class Chain {
 public:
  Chain(Graph& graph, NodeId first, int64_t size) : graph_(graph), size_(size) {
    value_ = graph.node(first).results[0];
    while (links_.size() < max_links && has_one_reader(graph_, value_)) {
      const NodeId reader = graph_.value(value_).users[0];
      if (swaps_last_two(graph_.node(reader))) {
        last_ = reader;
        return;
      }
      if (!is_layer(graph_.node(reader)) && !is_alike_for_columns(graph_.node(reader))) return;
      links_.push_back(reader);
      value_ = graph_.node(reader).results[0];
    }
  }

  bool is_whole() const {
    return last_ != NodeId::None &&
           llvm::any_of(links_, [&](NodeId id) { return graph_.node(id).op->name == "linear"; });
  }

  // Makes what the last transpose gives of what the first one reads.
  void multiply(NodeId first) {
    ValueId before = graph_.node(first).results[0], now = graph_.node(first).operands[0];
    for (NodeId id : links_) {
      const Node node = graph_.node(id);
      Builder b = builder_at(graph_, id);
      if (node.op->name == "linear") {
        now = product(b, node, now);
      } else {
        llvm::SmallVector<ValueId, 4> operands = node.operands;
        std::replace(operands.begin(), operands.end(), before, now);
        now = b.emit(node.op->name, operands, node.attrs);
      }
      before = node.results[0];
    }
    replace_and_rename(graph_, graph_.node(last_).results[0], now);
  }

 private:
  bool is_layer(const Node& node) const {
    if (node.op->name != "linear" || operand_of(node, "x") != value_ || operand_of(node, "addend") != ValueId::None)
      return false;
    if (llvm::any_of(node.attrs.entries(), [](const Attrs::Entry& entry) { return entry.first != "transpose_w"; }))
      return false;
    const Type& x = graph_.type(value_);
    const int64_t rows = graph_.type(node.results[0]).shape.back(), depth = x.shape.back();
    Type turned = x;
    std::swap(turned.shape[turned.shape.size() - 1], turned.shape[turned.shape.size() - 2]);
    return std::min(rows, depth) >= min_size && fits_left_product(turned, rows, depth, size_);
  }

  bool is_alike_for_columns(const Node& node) const {
    if (!fits_fused_body(graph_, node) || node.op->name == "dropout" ||
        graph_.type(node.results[0]).shape != graph_.type(value_).shape)
      return false;
    return llvm::all_of(node.operands, [&](ValueId operand) {
      const llvm::ArrayRef<int64_t> shape = graph_.type(operand).shape;
      return operand == value_ || llvm::all_of(shape.take_back(2), [](int64_t size) { return size == 1; });
    });
  }

  ValueId product(Builder& b, const Node& layer, ValueId x) const {
    Attrs attrs;
    if (layer.attrs.get_int("transpose_w") == 0) attrs.set("transpose_a", int64_t{1});
    const ValueId y = b.emit("matmul", {operand_of(layer, "w"), x}, std::move(attrs));
    const ValueId bias = operand_of(layer, "bias");
    if (bias == ValueId::None) return y;
    return b.emit("add", {y, b.reshape(bias, {graph_.type(bias).elements(), 1})});
  }

  Graph& graph_;
  int64_t size_;
  llvm::SmallVector<NodeId, 8> links_;
  ValueId value_ = ValueId::None;  // what the last link gives
  NodeId last_ = NodeId::None;
};

Result<bool> run_multiply_from_left(Graph& graph, PassContext& context) {
  const int64_t size = context.number("size");
  return apply_patterns(graph, context, {{"transpose", "chains", [&](Graph& g, NodeId id) {
                                            if (!swaps_last_two(g.node(id))) return false;
                                            Chain chain(g, id, size);
                                            if (!chain.is_whole()) return false;
                                            chain.multiply(id);
                                            return true;
                                          }}});
}

constexpr PassOption pass_options[] = {{"size", 512, "most rows and columns of a weight", 1}};

}  // namespace

bool fits_left_product(const Type& x, int64_t rows, int64_t depth, int64_t left_size) {
  return is_16_bit_float(x.dtype) && x.rank() >= 3 && x.shape.back() % columns_multiple == 0 && rows <= left_size &&
         depth <= left_size;
}

bool is_left_product(const Graph& graph, const Node& node, int64_t left_size) {
  if (node.op->name != "matmul" || node.attrs.get_int("transpose_b") != 0) return false;
  const Type &a = graph.type(operand_of(node, "a")), &b = graph.type(operand_of(node, "b"));
  const llvm::ArrayRef<int64_t> left = a.shape;
  const bool is_one = element_count(left.drop_back(2)) == 1;
  const Shape& y = graph.type(node.results[0]).shape;
  return is_one && b.rank() == static_cast<int64_t>(y.size()) &&
         fits_left_product(b, y[y.size() - 2], b.shape[b.shape.size() - 2], left_size);
}

constinit const PassInfo pass_multiply_from_left{
    .name = "multiply-from-left",
    .summary =
        "multiply weights of 16-bit layers between two transposes, as over the tokens of each image, from the left",
    .stage = Stage::Forward,
    .options = pass_options,
    .run = run_multiply_from_left,
};

}  // namespace plimsoll
