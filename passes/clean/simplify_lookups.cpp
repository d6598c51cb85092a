#include "passes/clean/simplify_rules.h"

#include <algorithm>
#include <numeric>

// These rules remove lookups by a constant that counts. Exporters write a mask's `mask[arange(batch)[:, None],
// arange(time)]` as a table of indices, or as indices into the flattened mask. Where the table names every element
// once, in a regular order, the lookup is a reshape, and the batch can be changed. Others that are the same for all
// samples are kept once. Two tables that count rows and columns of overlapping windows are an unfold.

namespace plimsoll {
namespace {

// The strides with which indices[i, j, ...] = i * strides[0] + j * strides[1] + ...; none when the indices are not that
// regular. A dimension along which nothing changes has stride 0.
std::optional<Shape> counting_strides(llvm::ArrayRef<int64_t> indices, llvm::ArrayRef<int64_t> shape) {
  if (indices.empty()) return std::nullopt;
  const Shape own = row_major_strides(shape);
  Shape strides(shape.size(), 0);
  for (size_t d = 0; d < shape.size(); ++d)
    if (shape[d] > 1) strides[d] = indices[own[d]];
  for (int64_t i = 0; i < static_cast<int64_t>(indices.size()); ++i) {
    int64_t expected = 0;
    for (size_t d = 0; d < shape.size(); ++d) expected += i / own[d] % shape[d] * strides[d];
    if (indices[i] != expected) return std::nullopt;
  }
  return strides;
}

// The dimensions that count, slowest first, when together they name each of `count` elements exactly once.
std::optional<Ints> counting_order(llvm::ArrayRef<int64_t> strides, llvm::ArrayRef<int64_t> shape, int64_t count) {
  Ints order;
  for (size_t d = 0; d < strides.size(); ++d)
    if (strides[d] != 0) order.push_back(static_cast<int64_t>(d));
  llvm::stable_sort(order, [&](int64_t a, int64_t b) { return strides[a] > strides[b]; });
  int64_t named = 1;
  for (int64_t d : llvm::reverse(order)) {
    if (strides[d] != named) return std::nullopt;
    named *= shape[d];
  }
  return named == count ? std::optional(order) : std::nullopt;
}

// The elements that `indices`, of that shape, pick from dimensions [from, to) of x taken as one; None when the indices
// do not count.
ValueId pick_by_counting(Builder& b, ValueId x, size_t from, size_t to, llvm::ArrayRef<int64_t> indices,
                         llvm::ArrayRef<int64_t> shape) {
  llvm::ArrayRef<int64_t> whole = b.type(x).shape, outer = whole.take_front(from), inner = whole.drop_front(to);
  std::optional<Shape> strides = counting_strides(indices, shape);
  if (!strides) return ValueId::None;
  std::optional<Ints> order = counting_order(*strides, shape, element_count(whole.slice(from, to - from)));
  if (!order) return ValueId::None;

  auto surrounded = [&](llvm::ArrayRef<int64_t> middle) {
    Shape all(outer.begin(), outer.end());
    all.append(middle.begin(), middle.end());
    all.append(inner.begin(), inner.end());
    return all;
  };
  Shape counted, once(shape.size(), 1);
  for (int64_t d : *order) counted.push_back(once[d] = shape[d]);
  Ints permutation(from + order->size() + inner.size());
  std::iota(permutation.begin(), permutation.end(), 0);
  llvm::sort(permutation.begin() + from, permutation.begin() + from + order->size(),
             [&](int64_t p, int64_t q) { return (*order)[p - from] < (*order)[q - from]; });
  ValueId in_order = b.transpose(b.reshape(x, surrounded(counted)), permutation);
  return b.expand(b.reshape(in_order, surrounded(once)), surrounded(shape));
}

// One dimension of windows: a table [taps, positions] of tap * dilation + position * stride.
struct WindowTable {
  int64_t taps, positions, dilation, stride;
};

std::optional<WindowTable> window_table(const Graph& graph, const Node& lookup) {
  const Node* constant = producer_of(graph, operand_of(lookup, "indices"), "constant");
  if (!constant) return std::nullopt;
  const TensorRef table = constant->attrs.get_tensor("value");
  const Shape shape = table->type().shape;
  if (shape.size() != 2) return std::nullopt;
  const std::optional<Shape> strides = counting_strides(table->ints(), shape);
  if (!strides) return std::nullopt;
  for (size_t d = 0; d < shape.size(); ++d)
    if ((*strides)[d] < 0 || (shape[d] > 1 && (*strides)[d] == 0)) return std::nullopt;
  return WindowTable{shape[0], shape[1], std::max<int64_t>((*strides)[0], 1), std::max<int64_t>((*strides)[1], 1)};
}

// The image of which `padded` is made by zeros around it, and how many {before, after}; `padded` itself without any.
ValueId without_zeros_around(const Graph& graph, ValueId padded, Ints& pads) {
  const Node* pad = producer_of(graph, padded, "pad");
  pads = {0, 0, 0, 0};
  if (!pad || operand_of(*pad, "value") != ValueId::None || pad->attrs.get_string("mode", "constant") != "constant")
    return padded;
  const llvm::ArrayRef<int64_t> before = pad->attrs.get_ints("before"), after = pad->attrs.get_ints("after");
  const auto is_inside = [](llvm::ArrayRef<int64_t> list) {
    return list[0] == 0 && list[1] == 0 && list[2] >= 0 && list[3] >= 0;
  };
  if (!is_inside(before) || !is_inside(after)) return padded;
  pads = {before[2], before[3], after[2], after[3]};
  return pad->operands[0];
}

// torch's im2col: a lookup of rows of x[N, C, H, W], and one of columns of what it gives, [N, C, taps, positions, W].
ValueId unfold(Builder& b, const Node& columns) {
  const Graph& graph = b.graph();
  const Node* rows = producer_of(graph, operand_of(columns, "x"), "gather");
  if (!rows || rows->attrs.get_int("axis") != 2 || columns.attrs.get_int("axis") != 4) return ValueId::None;
  const ValueId padded = operand_of(*rows, "x");
  const Shape image = graph.type(padded).shape;
  const std::optional<WindowTable> down = window_table(graph, *rows), across = window_table(graph, columns);
  if (image.size() != 4 || !down || !across || !is_float(graph.type(padded).dtype)) return ValueId::None;
  Ints kernel, strides, dilations, pads;
  for (const auto& [table, size] : {std::pair(*down, image[2]), std::pair(*across, image[3])}) {
    // One position has no stride, but windows end where it ends.
    const int64_t stride = table.positions == 1 ? size : table.stride;
    const int64_t reach = (table.taps - 1) * table.dilation + 1;
    if (reach > size || (size - reach) / stride + 1 != table.positions) return ValueId::None;
    kernel.push_back(table.taps);
    strides.push_back(stride);
    dilations.push_back(table.dilation);
  }
  const ValueId x = without_zeros_around(graph, padded, pads);
  const ValueId patches =
      b.emit("unfold", {x}, {{"kernel", kernel}, {"strides", strides}, {"dilations", dilations}, {"pads", pads}});
  const ValueId apart =
      b.reshape(patches, {image[0], image[1], down->taps, across->taps, down->positions, across->positions});
  return b.transpose(apart, {0, 1, 2, 4, 3, 5});
}

ValueId gather(Builder& b, const Node& node) {
  const ValueId x = operand_of(node, "x");
  const Type indices = b.type(operand_of(node, "indices"));
  if (const Node* table = producer_of(b.graph(), operand_of(node, "indices"), "constant")) {
    auto axis = static_cast<size_t>(node.attrs.get_int("axis"));
    const ValueId picked =
        pick_by_counting(b, x, axis, axis + 1, table->attrs.get_tensor("value")->ints(), indices.shape);
    return picked != ValueId::None ? picked : unfold(b, node);
  }
  // Position tables look up the same for all samples, so one lookup is expanded.
  const ValueId once = value_below(b.graph(), operand_of(node, "indices"), "expand");
  if (once == ValueId::None || b.type(once).rank() != indices.rank()) return ValueId::None;
  const Shape result = b.type(node.results[0]).shape;
  return b.expand(b.emit("gather", {x, once}, node.attrs), result);
}

// Numbers of elements, or of rows of them, in the dimensions that the table's entries name, which are the first of x.
// None where an entry is outside.
std::optional<Ints> flat_indices(const Tensor& table, llvm::ArrayRef<int64_t> dims) {
  const auto picked = static_cast<size_t>(table.type().shape.back());
  const auto entries = table.ints();
  Ints flat;
  for (size_t at = 0; at < entries.size(); at += picked) {
    int64_t index = 0;
    for (size_t d = 0; d < picked; ++d) {
      if (entries[at + d] < 0 || entries[at + d] >= dims[d]) return std::nullopt;
      index = index * dims[d] + entries[at + d];
    }
    flat.push_back(index);
  }
  return flat;
}

// Entries that name one dimension, or that are known, pick rows, which gather and its gradient move as such.
ValueId gather_nd(Builder& b, const Node& node) {
  const ValueId x = operand_of(node, "x"), indices = operand_of(node, "indices");
  const Type type = b.type(indices);
  const Shape dims = b.type(x).shape, shape(type.shape.begin(), type.shape.end() - 1);
  const int64_t picked = type.shape.back();
  if (node.attrs.get_int("batch_dims") != 0) return ValueId::None;
  if (const Node* table = producer_of(b.graph(), indices, "constant"); table && picked > 0) {
    const TensorRef tensor = table->attrs.get_tensor("value");
    const std::optional<Ints> flat = flat_indices(*tensor, dims);
    if (!flat) return ValueId::None;
    if (const ValueId counted = pick_by_counting(b, x, 0, static_cast<size_t>(picked), *flat, shape);
        counted != ValueId::None)
      return counted;
    if (picked > 1) {
      Shape rows{element_count(llvm::ArrayRef<int64_t>(dims).take_front(static_cast<size_t>(picked)))};
      llvm::append_range(rows, llvm::ArrayRef<int64_t>(dims).drop_front(static_cast<size_t>(picked)));
      Tensor numbers(Type(type.dtype, shape));
      for (size_t i = 0; i < flat->size(); ++i) numbers.view().set_int(static_cast<int64_t>(i), (*flat)[i]);
      return b.emit("gather", {b.reshape(x, rows), b.constant(std::move(numbers))}, {{"axis", 0}});
    }
  }
  return picked == 1 ? b.emit("gather", {x, b.reshape(indices, shape)}, {{"axis", 0}}) : ValueId::None;
}

// Indices that were repeated along leading dimensions are shared by them.
ValueId gather_elements(Builder& b, const Node& node) {
  const ValueId x = operand_of(node, "x"), indices = operand_of(node, "indices");
  const ValueId once = value_below(b.graph(), indices, "expand");
  if (once == ValueId::None) return ValueId::None;
  const Shape whole = b.type(x).shape, repeated = b.type(indices).shape, shape = b.type(once).shape;
  const int64_t axis = node.attrs.get_int("axis");
  const size_t unpicked = whole.size() - repeated.size(), absent = repeated.size() - shape.size();
  size_t shared = 0;
  while (static_cast<int64_t>(unpicked + shared) < axis && repeated[shared] == whole[unpicked + shared] &&
         (shared < absent || shape[shared - absent] == 1))
    ++shared;
  if (shared == 0) return ValueId::None;
  const llvm::ArrayRef<int64_t> own = llvm::ArrayRef<int64_t>(shape).drop_front(shared > absent ? shared - absent : 0);
  const ValueId expanded = b.expand(b.reshape(once, own), llvm::ArrayRef<int64_t>(repeated).drop_front(shared));
  return b.emit("gather_elements", {x, expanded}, node.attrs);
}

constexpr SimplifyEntry rules[] = {{"gather", gather}, {"gather_elements", gather_elements}, {"gather_nd", gather_nd}};

}  // namespace

llvm::ArrayRef<SimplifyEntry> lookup_rules() { return rules; }

}  // namespace plimsoll
