#include "ir/support/align.h"
#include "passes/pass/pass.h"
#include "passes/rewrite/match.h"

// A convolution whose pixels are no whole vectors of 16 bytes takes three to ten times as long as one with a few
// channels more: the library copies its images, and adds the bias in a launch of its own. Where the result is split,
// the channels more are a part that nobody reads, and cost a copy of the weights and zeros behind the gradients. The
// first convolution of images of few channels, for whose pixels there are other kernels, takes ten times as long as a
// copy of its result without them: there the result is cut off.

namespace plimsoll {
namespace {

constexpr int64_t fewest_channels = 32;  // of which a vector's rest is little

bool has_odd_channels(const Graph& graph, const Node& conv, int64_t multiple) {
  const Type& type = graph.type(conv.results[0]);
  return conv.attrs.get_int("channels_last") && conv.attrs.get_int("groups", 1) == 1 && is_16_bit_float(type.dtype) &&
         type.shape.back() >= fewest_channels && type.shape.back() % multiple != 0;
}

// The convolution whose result a node splits along its channels.
const Node* split_convolution(const Graph& graph, const Node& split) {
  if (split.op->name != "split") return nullptr;
  const ValueId whole = split.operands[0];
  const bool parts_channels = split.attrs.get_int("axis") == graph.type(whole).rank() - 1;
  return parts_channels && has_one_reader(graph, whole) ? producer_of(graph, whole, "conv") : nullptr;
}

// Several taps of pixels with fewer channels than a vector has.
bool is_first_convolution(const Graph& graph, const Node& node, int64_t multiple) {
  if (node.op->name != "conv" || !has_odd_channels(graph, node, multiple)) return false;
  const int64_t from = graph.type(operand_of(node, "x")).shape.back(), to = graph.type(node.results[0]).shape.back();
  const bool has_several_taps = graph.type(operand_of(node, "w")).elements() > from * to;
  return from < multiple && has_several_taps;
}

ValueId with_channels(Builder& b, ValueId value, int64_t more) {
  if (value == ValueId::None) return value;
  const auto rank = static_cast<size_t>(b.type(value).rank());
  Ints before(rank, 0), after(rank, 0);
  after[0] = more;
  return b.emit("pad", {value}, {{"before", before}, {"after", after}}, b.graph().value(value).name + ".padded");
}

ValueId widened(Builder& b, const Node& conv, int64_t more) {
  return b.emit("conv",
                {operand_of(conv, "x"), with_channels(b, operand_of(conv, "w"), more),
                 with_channels(b, operand_of(conv, "bias"), more)},
                conv.attrs, b.graph().value(conv.results[0]).name + ".padded");
}

// The channels more are a part more.
void pad_split(Graph& graph, NodeId id, int64_t more) {
  const Node split = graph.node(id), conv = graph.node(graph.value(split.operands[0]).producer);  // copies
  Builder b = builder_at(graph, id);
  const ValueId whole = widened(b, conv, more);
  const llvm::ArrayRef<int64_t> parts = split.attrs.get_ints("sizes");
  Ints sizes(parts.begin(), parts.end());
  sizes.push_back(more);
  Attrs attrs = split.attrs;
  attrs.set("sizes", sizes);
  const auto results = b.emit_all("split", {whole}, attrs);
  for (size_t i = 0; i < split.results.size(); ++i) replace_and_rename(graph, split.results[i], results[i]);
}

// They are cut off.
void pad_whole(Graph& graph, NodeId id, int64_t more) {
  const Node conv = graph.node(id);  // a copy
  const Shape sizes = graph.type(conv.results[0]).shape;
  Builder b = builder_at(graph, id);
  const Ints starts(sizes.size(), 0), steps(sizes.size(), 1);
  const ValueId cut = b.emit("slice", {widened(b, conv, more)},
                             {{"starts", starts}, {"sizes", Ints(sizes.begin(), sizes.end())}, {"steps", steps}});
  replace_and_rename(graph, conv.results[0], cut);
}

Result<bool> run_pad_channels(Graph& graph, PassContext& context) {
  const int64_t multiple = context.number("multiple");
  int64_t padded = 0;
  for (NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    const Node* conv = split_convolution(graph, node);
    const bool is_split = conv && has_odd_channels(graph, *conv, multiple);
    if (!is_split && !is_first_convolution(graph, node, multiple)) continue;
    const ValueId whole = is_split ? node.operands[0] : node.results[0];
    const int64_t channels = graph.type(whole).shape.back(), wanted = align_up(channels, multiple);
    context.decide(graph.value(whole).name, std::to_string(channels) + " channels padded to " + std::to_string(wanted),
                   is_split ? "pixels begin at 16-byte borders, and the channels more are a part that nobody reads"
                            : "pixels begin at 16-byte borders, and the channels more are cut off behind it");
    if (is_split)
      pad_split(graph, id, wanted - channels);
    else
      pad_whole(graph, id, wanted - channels);
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
    .summary =
        "pad the channels of 16-bit convolutions whose results are split, and of first convolutions, to 16-byte "
        "borders",
    .stage = Stage::Forward,
    .options = pass_options,
    .run = run_pad_channels,
};

}  // namespace plimsoll
