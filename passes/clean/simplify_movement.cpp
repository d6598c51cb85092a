#include "passes/clean/simplify_rules.h"
#include "passes/rewrite/composed_transpose.h"

// These rules remove data movement that moves nothing, turn chains into one step, and turn movement that only renames
// dimensions into a reshape, which costs nothing.

#include <cstring>

namespace plimsoll {
namespace {

Ints copy_ints(const Node& node, llvm::StringRef name) {
  llvm::ArrayRef<int64_t> list = node.attrs.get_ints(name);
  return Ints(list.begin(), list.end());
}

bool changes_nothing(Builder& b, const Node& node) { return b.type(node.operands[0]) == b.type(node.results[0]); }

ValueId identity(Builder&, const Node& node) { return node.operands[0]; }

ValueId reshape(Builder& b, const Node& node) {
  ValueId x = node.operands[0];
  if (changes_nothing(b, node)) return x;
  const ValueId below = value_below(b.graph(), x, "reshape");
  return below == ValueId::None ? below : b.reshape(below, copy_ints(node, "shape"));
}

// The reshapes and transposes that lead to `node`, itself first.
llvm::SmallVector<const Node*, 8> movement_chain(const Graph& graph, const Node& node) {
  llvm::SmallVector<const Node*, 8> chain = {&node};
  for (;;) {
    ValueId from = chain.back()->operands[0];
    const Node* before = producer_of(graph, from, "transpose");
    if (!before) before = producer_of(graph, from, "reshape");
    if (!before) return chain;
    chain.push_back(before);
  }
}

// The one transpose that a chain (last step first) amounts to for a tensor of that shape; none where a reshape mixes
// dimensions that a transpose has parted.
std::optional<ComposedTranspose> as_one_transpose(llvm::ArrayRef<const Node*> chain, const Shape& source) {
  TransposeComposer tracker(source);
  for (const Node* step : llvm::reverse(chain)) {
    if (step->op->name == "transpose")
      tracker.transpose(step->attrs.get_ints("perm"));
    else if (!tracker.reshape(step->attrs.get_ints("shape")))
      return std::nullopt;
  }
  return tracker.result();
}

// A chain that ends in a transpose becomes one transpose between two reshapes, from as far up as possible. A chain with
// one transpose is replaced only by a transpose of fewer dimensions, so that no dimension is parted for nothing.
ValueId transpose(Builder& b, const Node& node) {
  const Type result = b.type(node.results[0]);
  if (result.elements() == 0) return ValueId::None;
  llvm::SmallVector<const Node*, 8> chain = movement_chain(b.graph(), node);
  for (size_t length = chain.size(); length > 0; --length) {
    llvm::ArrayRef<const Node*> steps = llvm::ArrayRef<const Node*>(chain).take_front(length);
    ValueId source = steps.back()->operands[0];
    std::optional<ComposedTranspose> one = as_one_transpose(steps, b.type(source).shape);
    if (!one) continue;
    if (one->keeps_order()) return b.reshape(source, result.shape);
    bool spares = llvm::count_if(steps, [](const Node* step) { return step->op->name == "transpose"; }) > 1;
    if (spares || one->split.size() < result.shape.size())
      return b.reshape(b.transpose(b.reshape(source, one->split), one->permutation), result.shape);
  }
  return ValueId::None;
}

llvm::ArrayRef<int64_t> without_leading_ones(llvm::ArrayRef<int64_t> shape) {
  return shape.drop_while([](int64_t dim) { return dim == 1; });
}

// Broadcasting adds leading dimensions of 1 by itself, so a reshape that only adds them is not needed before it.
ValueId expand(Builder& b, const Node& node) {
  ValueId x = node.operands[0];
  const Shape result = b.type(node.results[0]).shape;
  if (b.type(x).elements() == b.type(node.results[0]).elements()) return b.reshape(x, result);
  if (ValueId below = value_below(b.graph(), x, "expand"); below != ValueId::None) return b.expand(below, result);
  const ValueId below = value_below(b.graph(), x, "reshape");
  if (below == ValueId::None || b.type(below).shape.size() > result.size()) return ValueId::None;
  bool adds_leading_ones = without_leading_ones(b.type(below).shape) == without_leading_ones(b.type(x).shape);
  return adds_leading_ones ? b.expand(below, result) : ValueId::None;
}

ValueId slice(Builder& b, const Node& node) {
  ValueId x = node.operands[0];
  if (b.type(node.results[0]).elements() == 0) return ValueId::None;
  Ints starts = copy_ints(node, "starts"), steps = copy_ints(node, "steps"), sizes = copy_ints(node, "sizes");
  auto is_one = [](int64_t step) { return step == 1; };
  if (changes_nothing(b, node) && llvm::all_of(steps, is_one)) return x;
  const Node* inner = producer_of(b.graph(), x, "slice");
  if (!inner) return ValueId::None;
  Ints inner_starts = copy_ints(*inner, "starts"), inner_steps = copy_ints(*inner, "steps");
  for (size_t d = 0; d < starts.size(); ++d) {
    starts[d] = inner_starts[d] + inner_steps[d] * starts[d];
    steps[d] *= inner_steps[d];
    if (sizes[d] == 1) steps[d] = 1;
  }
  return b.emit("slice", {inner->operands[0]}, {{"starts", starts}, {"steps", steps}, {"sizes", sizes}});
}

bool pads_with_zeros(const Node& pad) {
  return operand_of(pad, "value") == ValueId::None && pad.attrs.get_string("mode", "constant") == "constant";
}

// pad(pad(x)) of zeros -> pad(x), unless the first crops where the second pads.
ValueId pad_of_pad(Builder& b, const Node& node) {
  const Node* first = producer_of(b.graph(), node.operands[0], "pad");
  if (!first || !pads_with_zeros(node) || !pads_with_zeros(*first) || !has_one_reader(b.graph(), node.operands[0]))
    return ValueId::None;
  Attrs attrs;
  for (llvm::StringLiteral side : {llvm::StringLiteral("before"), llvm::StringLiteral("after")}) {
    Ints amounts = copy_ints(*first, side);
    const Ints more = copy_ints(node, side);
    for (size_t d = 0; d < amounts.size(); ++d) {
      if (amounts[d] < 0 && more[d] > 0) return ValueId::None;
      amounts[d] += more[d];
    }
    attrs.set(side, std::move(amounts));
  }
  return b.emit("pad", {first->operands[0]}, attrs);
}

// A pad does nothing when all amounts are 0. Equal shapes do not show it: cropping one side and padding the other keeps
// the shape.
//
// The gradient of a weight that was padded with columns is made without them: linear_dw leaves out the last of dy. An
// odd number of columns may take a second product, which reads x again; a small gradient is cut off at less.
ValueId pad(Builder& b, const Node& node) {
  auto is_zero = [](int64_t amount) { return amount == 0; };
  if (const ValueId joined = pad_of_pad(b, node); joined != ValueId::None) return joined;
  if (!llvm::all_of(node.attrs.get_ints("before"), is_zero)) return ValueId::None;
  llvm::ArrayRef<int64_t> after = node.attrs.get_ints("after");
  if (llvm::all_of(after, is_zero)) return node.operands[0];

  const ValueId whole = node.operands[0];
  const Node* product = producer_of(b.graph(), whole, "linear_dw");
  if (!product || product->operands.size() > 2 || product->attrs.has("columns") || product->attrs.has("bias") ||
      !has_one_reader(b.graph(), whole))
    return ValueId::None;
  const size_t columns = product->attrs.get_int("transpose_w") ? 0 : 1;
  if (after[columns] > 0 || after[1 - columns] != 0) return ValueId::None;
  constexpr int64_t aligned = 8;
  const int64_t left = b.type(whole).shape[columns] + after[columns];
  const int64_t copied_bytes = 2 * b.type(node.results[0]).bytes(), x_bytes = b.type(product->operands[0]).bytes();
  if (left % aligned != 0 && copied_bytes < x_bytes) return ValueId::None;
  Attrs attrs = product->attrs;
  attrs.set("columns", left);
  return b.emit("linear_dw", product->operands, std::move(attrs));
}

ValueId tile(Builder& b, const Node& node) { return changes_nothing(b, node) ? node.operands[0] : ValueId::None; }

// A resize to the same size picks each element where it lies.
ValueId resize(Builder& b, const Node& node) {
  const bool keeps = changes_nothing(b, node) && node.attrs.get_string("coordinate") != "tf_crop_and_resize" &&
                     llvm::all_of(node.attrs.get_floats("scales"), [](double scale) { return scale == 1; });
  return keeps ? node.operands[0] : ValueId::None;
}

ValueId split(Builder&, const Node& node) { return node.results.size() == 1 ? node.operands[0] : ValueId::None; }

// A concatenation of one operand, or of all pieces of a split along the same axis in their order, changes nothing.
ValueId concat(Builder& b, const Node& node) {
  if (node.operands.size() == 1) return node.operands[0];
  const Node* parts = producer_of(b.graph(), node.operands[0], "split");
  bool puts_together =
      parts && parts->attrs.get_int("axis") == node.attrs.get_int("axis") && llvm::equal(parts->results, node.operands);
  return puts_together ? parts->operands[0] : ValueId::None;
}

// Exporters that fold store masks for every sample and head. Leading dimensions over which nothing changes are stored
// once and repeated by an expand.
ValueId constant(Builder& b, const Node& node) {
  TensorRef tensor = node.attrs.get_tensor("value");
  Type type = tensor->type();
  const Shape whole = type.shape;
  const auto* bytes = static_cast<const char*>(tensor->data());
  for (size_t d = 0; d + 1 < type.shape.size() && type.elements() > 1; ++d) {
    if (type.shape[d] == 1) continue;
    int64_t part = type.bytes() / type.shape[d];
    if (std::memcmp(bytes, bytes + part, static_cast<size_t>(type.bytes() - part)) != 0) break;
    type.shape[d] = 1;
  }
  if (type.shape == whole) return ValueId::None;
  Tensor once(type);
  std::memcpy(once.data(), bytes, static_cast<size_t>(type.bytes()));
  return b.expand(b.constant(std::move(once)), whole);
}

constexpr SimplifyEntry rules[] = {
    {"constant", constant}, {"identity", identity}, {"reshape", reshape}, {"transpose", transpose},
    {"expand", expand},     {"slice", slice},       {"pad", pad},         {"tile", tile},
    {"split", split},       {"concat", concat},     {"resize", resize},
};

}  // namespace

llvm::ArrayRef<SimplifyEntry> movement_rules() { return rules; }

}  // namespace plimsoll
