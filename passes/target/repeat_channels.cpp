#include "passes/pass/pass.h"
#include "passes/rewrite/match.h"

// A convolution of groups of one channel to several, or of several to one, for which libraries have no kernels on a GPU
// that deserve the name (27 ms where a copy takes 10 us), as one of one channel a group with channels last. Of the
// first, each channel of x stands as many times beside itself as its group has results, which are what they were, and
// so are the weights. Of the second, what channels give alone is summed. Their gradients follow.

namespace plimsoll {
namespace {

// Channels of a group of x and of the result.
struct GroupSides {
  int64_t groups, from, to;
};

std::optional<GroupSides> narrow_groups(const Graph& graph, const Node& node) {
  const int64_t groups = node.attrs.get_int("groups", 1);
  if (node.op->name != "conv" || groups == 1 || !node.attrs.get_int("channels_last")) return std::nullopt;
  const Shape w = graph.type(operand_of(node, "w")).shape;
  const GroupSides sides{groups, w.back(), w.front() / groups};
  return std::min(sides.from, sides.to) == 1 && sides.from != sides.to ? std::optional(sides) : std::nullopt;
}

// [..., groups, of each]
Shape with_groups(llvm::ArrayRef<int64_t> shape, int64_t groups, int64_t each) {
  Shape apart(shape.begin(), shape.end() - 1);
  apart.append({groups, each});
  return apart;
}

Shape with_channels(llvm::ArrayRef<int64_t> shape, int64_t channels) {
  Shape whole(shape.begin(), shape.end());
  whole.back() = channels;
  return whole;
}

ValueId repeated(Builder& b, ValueId x, const GroupSides& sides) {
  const Shape shape = b.type(x).shape;
  const ValueId beside =
      b.expand(b.reshape(x, with_groups(shape, sides.groups, 1)), with_groups(shape, sides.groups, sides.to));
  return b.reshape(beside, with_channels(shape, sides.groups * sides.to));
}

// w[groups, kernel..., from] to [groups * from, kernel..., 1].
ValueId weights_apart(Builder& b, ValueId w, const GroupSides& sides) {
  const Shape shape = b.type(w).shape;
  Ints perm{0, static_cast<int64_t>(shape.size()) - 1};
  for (int64_t d = 1; d + 1 < static_cast<int64_t>(shape.size()); ++d) perm.push_back(d);
  Shape apart(shape);
  apart.front() = sides.groups * sides.from, apart.back() = 1;
  return b.reshape(b.transpose(w, perm), apart);
}

ValueId rewritten(Builder& b, const Node& conv, const GroupSides& sides) {
  const ValueId x = operand_of(conv, "x"), w = operand_of(conv, "w"), bias = operand_of(conv, "bias");
  Attrs attrs = conv.attrs;
  attrs.set("groups", sides.groups * std::max(sides.from, sides.to));
  if (sides.from == 1) return b.emit("conv", operands_with(conv, "x", repeated(b, x, sides)), attrs);
  const ValueId terms = b.emit("conv", {x, weights_apart(b, w, sides)}, attrs);
  const Shape shape = b.type(terms).shape;
  const auto last = static_cast<int64_t>(shape.size());
  const ValueId sum = b.sum(b.reshape(terms, with_groups(shape, sides.groups, sides.from)), {last}, false);
  return bias == ValueId::None ? sum : b.emit("add", {sum, bias});
}

Result<bool> run_repeat_channels(Graph& graph, PassContext& context) {
  int64_t count = 0;
  for (NodeId id : graph.order()) {
    const Node conv = graph.node(id);  // a copy
    const std::optional<GroupSides> sides = narrow_groups(graph, conv);
    if (!sides) continue;
    Builder b = builder_at(graph, id);
    replace_and_rename(graph, conv.results[0], rewritten(b, conv, *sides));
    ++count;
  }
  if (count > 0) context.count("convolutions", count);
  return count > 0;
}

}  // namespace

constinit const PassInfo pass_repeat_channels{
    .name = "repeat-channels",
    .summary = "make convolutions of groups of one channel to several, or of several to one, ones of one channel each",
    .stage = Stage::Forward,
    .run = run_repeat_channels,
};

}  // namespace plimsoll
