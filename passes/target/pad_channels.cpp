#include "ir/support/align.h"
#include "passes/pass/pass.h"
#include "passes/rewrite/match.h"

// A convolution whose pixels are no whole vectors of 16 bytes takes three to ten times as long as one with a few
// channels more: the library copies its images, and adds the bias in a launch of its own. Where the result is split,
// the channels more are a part that nobody reads, and cost a copy of the weights and zeros behind the gradients.

namespace plimsoll {
namespace {

constexpr int64_t fewest_channels = 32;  // of which a vector's rest is little

bool wants_channels(const Graph& graph, const Node& split, int64_t multiple) {
  const ValueId whole = split.operands[0];
  const Node* conv = producer_of(graph, whole, "conv");
  if (!conv || !has_one_reader(graph, whole) || !conv->attrs.get_int("channels_last") ||
      conv->attrs.get_int("groups", 1) != 1)
    return false;
  const Type& type = graph.type(whole);
  return split.attrs.get_int("axis") == type.rank() - 1 && is_16_bit_float(type.dtype) &&
         type.shape.back() >= fewest_channels && type.shape.back() % multiple != 0;
}

ValueId with_channels(Builder& b, ValueId value, int64_t more) {
  if (value == ValueId::None) return value;
  const auto rank = static_cast<size_t>(b.type(value).rank());
  Ints before(rank, 0), after(rank, 0);
  after[0] = more;
  return b.emit("pad", {value}, {{"before", before}, {"after", after}}, b.graph().value(value).name + ".padded");
}

void pad(Graph& graph, NodeId id, int64_t more) {
  const Node split = graph.node(id), conv = graph.node(graph.value(split.operands[0]).producer);  // copies
  Builder b = builder_at(graph, id);
  const ValueId whole = b.emit("conv",
                               {operand_of(conv, "x"), with_channels(b, operand_of(conv, "w"), more),
                                with_channels(b, operand_of(conv, "bias"), more)},
                               conv.attrs, graph.value(split.operands[0]).name + ".padded");
  const llvm::ArrayRef<int64_t> parts = split.attrs.get_ints("sizes");
  Ints sizes(parts.begin(), parts.end());
  sizes.push_back(more);
  Attrs attrs = split.attrs;
  attrs.set("sizes", sizes);
  const auto results = b.emit_all("split", {whole}, attrs);
  for (size_t i = 0; i < split.results.size(); ++i) replace_and_rename(graph, split.results[i], results[i]);
}

Result<bool> run_pad_channels(Graph& graph, PassContext& context) {
  const int64_t multiple = context.number("multiple");
  int64_t padded = 0;
  for (NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    if (node.op->name != "split" || !wants_channels(graph, node, multiple)) continue;
    const int64_t channels = graph.type(node.operands[0]).shape.back();
    context.decide(graph.value(node.operands[0]).name,
                   std::to_string(channels) + " channels padded to " + std::to_string(align_up(channels, multiple)),
                   "pixels begin at 16-byte borders, and the channels more are a part that nobody reads");
    pad(graph, id, align_up(channels, multiple) - channels);
    ++padded;
  }
  if (padded > 0) context.count("convolutions", padded);
  return padded > 0;
}

constexpr PassOption pass_options[] = {
    {"multiple", 8, "channels of 16-bit results are padded to a multiple of this many", 2}};

}  // namespace

constinit const PassInfo pass_pad_channels{
    .name = "pad-channels",
    .summary = "pad the channels of 16-bit convolutions whose results are split to 16-byte borders",
    .stage = Stage::Forward,
    .options = pass_options,
    .run = run_pad_channels,
};

}  // namespace plimsoll
