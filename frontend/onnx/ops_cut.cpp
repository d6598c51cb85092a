#include "frontend/onnx/import_rows.h"

// Imports operators that cut or pad tensors.

namespace plimsoll {
namespace {

struct Cut {
  Ints starts, steps, sizes;
};

// Slices one axis as numpy does: negative bounds count from the end, and bounds are clamped.
void cut_axis(Cut& cut, int64_t axis, int64_t dim, int64_t start, int64_t end, int64_t step) {
  auto clamp = [&](int64_t at, int64_t low, int64_t high) { return std::clamp(at < 0 ? at + dim : at, low, high); };
  int64_t low = step > 0 ? 0 : -1, high = step > 0 ? dim : dim - 1;
  // The most negative end means "past the first element" when stepping down.
  int64_t first = clamp(std::max(start, -dim), std::min<int64_t>(0, high), high);
  int64_t last = end < -dim ? low : clamp(end, low, high);
  int64_t length = step > 0 ? last - first : first - last;
  step = std::clamp(step, -dim - 1, dim + 1);  // larger steps have the same effect
  cut.starts[axis] = first;
  cut.steps[axis] = step;
  cut.sizes[axis] = length > 0 ? 1 + (length - 1) / std::abs(step) : 0;
}

void emit_cut(NodeContext& n, ValueId x, const Ints& starts, const Ints& ends, Ints axes, Ints steps) {
  if (n.failed()) return;
  if (axes.empty())
    for (size_t i = 0; i < starts.size(); ++i) axes.push_back(static_cast<int64_t>(i));
  if (steps.empty()) steps.assign(starts.size(), 1);
  if (ends.size() != starts.size() || axes.size() != starts.size() || steps.size() != starts.size())
    return n.fail("its starts, ends, axes and steps differ in length");
  axes = n.axes(axes, n.rank(x));
  if (llvm::is_contained(steps, 0)) n.fail("a step is 0");
  if (n.failed()) return;
  const Shape shape = n.shape(x);
  Cut cut{Ints(shape.size(), 0), Ints(shape.size(), 1), Ints(shape.begin(), shape.end())};
  for (size_t i = 0; i < axes.size(); ++i) cut_axis(cut, axes[i], shape[axes[i]], starts[i], ends[i], steps[i]);
  bool everything = llvm::ArrayRef<int64_t>(cut.sizes) == llvm::ArrayRef<int64_t>(shape) &&
                    llvm::all_of(cut.steps, [](int64_t step) { return step == 1; });
  if (everything) return n.output(0, x);
  n.output(0, n.emit("slice", {x}, {{"starts", cut.starts}, {"steps", cut.steps}, {"sizes", cut.sizes}}));
}

void import_slice_attributes(NodeContext& n) {
  emit_cut(n, n.input(0), n.attr_ints("starts"), n.attr_ints("ends"), n.attr_ints("axes"), {});
}

void import_slice(NodeContext& n) {
  ValueId x = n.input(0);
  Ints starts = n.known_ints(1, "start"), ends = n.known_ints(2, "end");
  Ints axes = n.has(3) ? n.known_ints(3, "axes") : Ints();
  emit_cut(n, x, starts, ends, axes, n.has(4) ? n.known_ints(4, "step") : Ints());
}

// Sizes are an attribute before opset 13 and an input since. Without them the pieces are equal, except that the last
// one may be smaller (opset 18).
void import_split(NodeContext& n) {
  ValueId x = n.input(0);
  int64_t axis = n.axis(n.attr_int("axis", 0), n.rank(x));
  Ints sizes = n.has(1) ? n.known_ints(1, "split sizes") : n.attr_ints("split");
  auto pieces = static_cast<int64_t>(n.output_count());
  if (n.failed()) return;
  if (sizes.empty()) {
    int64_t size = (n.dim(x, axis) + pieces - 1) / pieces;
    for (int64_t i = 0; i < pieces; ++i) sizes.push_back(std::clamp<int64_t>(n.dim(x, axis) - i * size, 0, size));
  }
  if (static_cast<int64_t>(sizes.size()) != pieces)
    return n.fail("has " + llvm::Twine(sizes.size()) + " sizes for " + llvm::Twine(pieces) + " outputs");
  if (pieces == 1) return n.output(0, x);
  ValueList results = n.emit_all("split", {x}, {{"axis", axis}, {"sizes", sizes}});
  for (size_t i = 0; i < n.output_count() && !n.failed(); ++i) n.output(i, results[i]);
}

// `widths` has all begins, then all ends, for `axes` or all axes.
void emit_pad(NodeContext& n, Ints widths, Ints axes, ValueId value) {
  ValueId x = n.input(0);
  axes = n.axes_or_all(axes, x);
  if (widths.size() != 2 * axes.size())
    n.fail("has " + llvm::Twine(widths.size()) + " pads for " + llvm::Twine(axes.size()) + " axes");
  if (n.failed()) return;
  Ints before(n.rank(x), 0), after(n.rank(x), 0);
  for (size_t i = 0; i < axes.size(); ++i) {
    before[axes[i]] = widths[i];
    after[axes[i]] = widths[i + axes.size()];
  }
  if (llvm::all_of(widths, [](int64_t w) { return w == 0; })) return n.output(0, x);
  std::string mode = n.attr_string("mode", "constant");
  llvm::SmallVector<ValueId, 2> operands{x};
  if (value != ValueId::None && mode == "constant") operands.push_back(n.reshape(value, {}));
  n.output(0, n.emit("pad", operands, {{"before", before}, {"after", after}, {"mode", mode}}));
}

void import_pad_attributes(NodeContext& n) {
  double value = n.attr_float("value", 0);
  ValueId fill = value == 0 ? ValueId::None : n.scalar(value, n.type(n.input(0)).dtype);
  emit_pad(n, n.attr_ints("pads"), {}, fill);
}

void import_pad(NodeContext& n) {
  Ints widths = n.known_ints(1, "pads");
  emit_pad(n, widths, n.has(3) ? n.known_ints(3, "axes") : Ints(), n.optional_input(2));
}

// Crops around the middle, or pads with zeros, to a given size.
void import_center_crop_pad(NodeContext& n) {
  ValueId x = n.input(0);
  Ints target = n.known_ints(1, "shape"), axes = n.attr_ints("axes");
  axes = n.axes_or_all(axes, x);
  if (target.size() != axes.size()) n.fail("its shape and axes differ in length");
  if (n.failed()) return;
  Ints before(n.rank(x), 0), after(n.rank(x), 0);
  for (size_t i = 0; i < axes.size(); ++i) {
    int64_t extra = target[i] - n.dim(x, axes[i]);
    before[axes[i]] = extra >= 0 ? extra / 2 : -(-extra / 2);
    after[axes[i]] = extra - before[axes[i]];
  }
  n.output(0, n.emit("pad", {x}, {{"before", before}, {"after", after}, {"mode", "constant"}}));
}

constexpr ImportRow cut_table[] = {
    {"CenterCropPad", 18, import_center_crop_pad}, {"Pad", 2, import_pad_attributes}, {"Pad", 11, import_pad},
    {"Slice", 1, import_slice_attributes},         {"Slice", 10, import_slice},       {"Split", 2, import_split},
};

}  // namespace

llvm::ArrayRef<ImportRow> cut_rows() { return cut_table; }

}  // namespace plimsoll
