#include "ir/support/align.h"
#include "passes/pass/pass.h"
#include "passes/rewrite/match.h"

// The first convolution of an image has pixels of three channels or so, which are no words of any kernel, and without
// strides as many results as pixels: libraries take ten times as long for it as memory does. Eight neighbouring results
// of a line read one window of the image, whose pixels stand beside each other where channels are last. Such windows,
// copied once, are pixels of 16 channels or a multiple, of which one convolution without taps along the line makes
// eight results as channels: the same memory again. Its weights are those of the eight results, each moved on by a
// pixel, between zeros, so that it multiplies two to four times as often, on the matrix units.

namespace plimsoll {
namespace {

constexpr int64_t together = 8;           // results
constexpr int64_t channel_multiple = 16;  // of windows: the depth of a product of the matrix units

// What a convolution is along its lines.
struct Line {
  int64_t dimension = 0;  // of images
  int64_t channels = 0, pixels = 0, results = 0, taps = 0, before = 0;

  int64_t blocks() const { return results / together; }
  int64_t window() const { return align_up((together - 1 + taps) * channels, channel_multiple); }
};

// Each number stands for a dimension in space, none for all ones.
int64_t number_at(llvm::ArrayRef<int64_t> numbers, size_t at) { return numbers.empty() ? 1 : numbers[at]; }

// Of a result of so many bytes or more.
std::optional<Line> line_of(const Graph& graph, const Node& conv, int64_t least_bytes) {
  if (conv.op->name != "conv" || !conv.attrs.get_int("channels_last") || conv.attrs.get_int("groups", 1) != 1)
    return std::nullopt;
  const Type &x = graph.type(operand_of(conv, "x")), &w = graph.type(operand_of(conv, "w"));
  const Type& y = graph.type(conv.results[0]);
  const auto last = static_cast<size_t>(x.rank()) - 3;  // of the dimensions in space
  const llvm::ArrayRef<int64_t> pads = conv.attrs.get_ints("pads");
  if (number_at(conv.attrs.get_ints("strides"), last) != 1 || number_at(conv.attrs.get_ints("dilations"), last) != 1)
    return std::nullopt;
  const Line line{.dimension = static_cast<int64_t>(last) + 1,
                  .channels = x.shape.back(),
                  .pixels = x.shape[last + 1],
                  .results = y.shape[last + 1],
                  .taps = w.shape[last + 1],
                  .before = pads.empty() ? 0 : pads[last]};
  const bool is_wanted = is_16_bit_float(x.dtype) && line.channels < together && line.taps > 1 &&
                         line.results % together == 0 && y.bytes() >= least_bytes;
  return is_wanted && line.window() <= 2 * together * line.channels ? std::optional(line) : std::nullopt;
}

Shape with_size(Shape shape, size_t dimension, int64_t size) {
  shape[dimension] = size;
  return shape;
}

// `sizes` of a value from `starts` on.
ValueId part_of(Builder& b, ValueId value, const Ints& starts, const Shape& sizes) {
  return b.emit("slice", {value},
                {{"starts", starts}, {"sizes", Ints(sizes.begin(), sizes.end())}, {"steps", Ints(starts.size(), 1)}});
}

// [..., blocks, window]: the pixels of a block, and the first ones of the next.
ValueId windows_of(Builder& b, ValueId x, const Line& line) {
  const auto at = static_cast<size_t>(line.dimension);
  const int64_t blocks = line.blocks(), of_block = together * line.channels;
  Shape shape = b.type(x).shape;
  Ints before(shape.size(), 0), after(shape.size(), 0), starts(shape.size(), 0);
  before[at] = line.before;
  after[at] = (blocks + 1) * together - line.before - line.pixels;
  shape[at] = blocks + 1;
  shape.back() = of_block;
  const ValueId all = b.reshape(b.emit("pad", {x}, {{"before", before}, {"after", after}}), shape);
  const ValueId own = part_of(b, all, starts, with_size(shape, at, blocks));
  starts[at] = 1;
  shape[at] = blocks;
  const ValueId next = part_of(b, all, starts, with_size(shape, at + 1, line.window() - of_block));
  return b.emit("concat", {own, next}, {{"axis", line.dimension + 1}});
}

// [8 * results, ..., 1, window]: rows of a weight's taps, as they repeat in a line that is a pixel too long for them.
ValueId moved_weights(Builder& b, ValueId w, const Line& line) {
  const Shape shape = b.type(w).shape;
  const int64_t results = shape.front(), of_line = line.taps * line.channels, window = line.window();
  const int64_t lines = b.type(w).elements() / (results * of_line), period = window + line.channels;
  const ValueId rows = b.reshape(w, {results * lines, 1, of_line});
  const ValueId longer = b.emit("pad", {rows}, {{"before", Ints{0, 0, 0}}, {"after", Ints{0, 0, period - of_line}}});
  const ValueId repeated = b.emit("expand", {longer}, {{"shape", Ints{results * lines, together, period}}});
  const ValueId moved = part_of(b, b.reshape(repeated, {results * lines, together * period}), {0, 0},
                                {results * lines, together * window});
  const ValueId by_pixel =
      b.transpose(b.reshape(moved, {results, lines, together, window}), llvm::ArrayRef<int64_t>{2, 0, 1, 3});
  Shape made(shape.begin(), shape.end());
  made.front() = together * results;
  made[static_cast<size_t>(line.dimension)] = 1;
  made.back() = window;
  return b.reshape(by_pixel, made);
}

ValueId repeated_bias(Builder& b, ValueId bias) {
  if (bias == ValueId::None) return bias;
  const int64_t results = b.type(bias).shape[0];
  const ValueId row = b.reshape(bias, {1, results});
  return b.reshape(b.emit("expand", {row}, {{"shape", Ints{together, results}}}), {together * results});
}

void join(Graph& graph, NodeId id, const Line& line) {
  const Node conv = graph.node(id);  // a copy
  Builder b = builder_at(graph, id);
  const ValueId y = conv.results[0];
  const Shape shape = b.type(y).shape;
  Attrs attrs = conv.attrs;
  if (const llvm::ArrayRef<int64_t> pads = conv.attrs.get_ints("pads"); !pads.empty()) {
    Ints others(pads.begin(), pads.end());
    const size_t ends = others.size() / 2;
    others[ends - 1] = others.back() = 0;
    attrs.set("pads", others);
  }
  const ValueId made =
      b.emit("conv",
             {windows_of(b, operand_of(conv, "x"), line), moved_weights(b, operand_of(conv, "w"), line),
              repeated_bias(b, operand_of(conv, "bias"))},
             attrs);
  replace_and_rename(graph, y, b.reshape(made, shape));
}

Result<bool> run_join_pixels(Graph& graph, PassContext& context) {
  const int64_t least_bytes = context.number("bytes");
  int64_t joined = 0;
  for (NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    const std::optional<Line> line = line_of(graph, node, least_bytes);
    if (!line) continue;
    context.decide(graph.value(node.results[0]).name, "eight results of a line are channels of one",
                   "pixels of " + std::to_string(line->channels) + " channels are no words, windows of " +
                       std::to_string(line->window()) + " numbers are");
    join(graph, id, *line);
    ++joined;
  }
  if (joined > 0) context.count("convolutions", joined);
  return joined > 0;
}

constexpr PassOption join_options[] = {
    {"bytes", 8 << 20, "least that a result has: what more launches cost is little beside it", 0}};

}  // namespace

constinit const PassInfo pass_join_pixels{
    .name = "join-pixels",
    .summary = "make eight results of a line at a time of 16-bit convolutions of few channels without strides",
    .stage = Stage::Forward,
    .options = join_options,
    .run = run_join_pixels,
};

}  // namespace plimsoll
