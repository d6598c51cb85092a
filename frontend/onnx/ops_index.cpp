#include "frontend/onnx/import_rows.h"
#include "frontend/onnx/importer.h"

// Imports operators that read or write by index.

namespace plimsoll {
namespace {

// Known indices, such as positions, may be outside a table only where a dimension was bound to a size that is too
// large.
bool are_inside(NodeContext& n, const Tensor& indices, ValueId x, int64_t axis) {
  const int64_t size = n.dim(x, axis);
  for (int64_t i = 0; i < indices.type().elements(); ++i)
    if (const int64_t at = indices.get_int(i); at < -size || at >= size) {
      n.fail("index " + llvm::Twine(at) + " is outside dimension " + llvm::Twine(axis) + " of " + to_string(n.type(x)) +
             (n.rank(x) > 1 ? ", as if an input were longer than the model's tables" : ""));
      return false;
    }
  return true;
}

// One known index becomes a slice, whose gradient needs no scatter.
void import_gather(NodeContext& n) {
  ValueId x = n.input(0), indices = n.input(1);
  int64_t axis = n.axis(n.attr_int("axis", 0), n.rank(x));
  TensorRef known = n.constant(indices);
  if (!n.failed() && known && !are_inside(n, *known, x, axis)) return;
  if (n.failed() || !known || n.rank(indices) > 0) return n.output(0, n.emit("gather", {x, indices}, {{"axis", axis}}));
  int64_t at = known->get_int(0), size = n.dim(x, axis);
  n.output(0, n.select(x, axis, at < 0 ? at + size : at));
}

void import_one_hot(NodeContext& n) {
  ValueId indices = n.input(0), values = n.input(2);
  int64_t depth = n.known_int(1, "depth");
  int64_t axis = n.axis(n.attr_int("axis", -1), n.rank(indices) + 1);
  if (is_float(n.type(indices).dtype)) indices = n.cast(indices, DType::I64);
  n.output(0, n.emit("one_hot", {indices, values}, {{"depth", depth}, {"axis", axis}}));
}

// The op's record allows indices of a lower rank, ONNX does not.
void import_gather_elements(NodeContext& n) {
  const ValueId x = n.input(0), indices = n.input(1);
  if (n.rank(indices) != n.rank(x))
    return n.fail("its indices " + to_string(n.type(indices)) + " do not have the rank of its data " +
                  to_string(n.type(x)));
  n.output(0, n.emit("gather_elements", {x, indices}, {{"axis", n.axis(n.attr_int("axis", 0), n.rank(x))}}));
}

void import_top_k(NodeContext& n) {
  ValueId x = n.input(0);
  int64_t k = n.has(1) ? n.known_int(1, "k") : n.attr_int("k", 1);
  int64_t axis = n.axis(n.attr_int("axis", -1), n.rank(x));
  ValueList results = n.emit_all(
      "top_k", {x},
      {{"k", k}, {"axis", axis}, {"largest", n.attr_int("largest", 1)}, {"sorted", n.attr_int("sorted", 1)}});
  n.output(0, results[0]);
  if (!n.failed()) n.output(1, results[1]);
}

void import_arg(NodeContext& n) {
  ValueId x = n.input(0);
  n.output(0, n.emit(n.target(), {x},
                     {{"axis", n.axis(n.attr_int("axis", 0), n.rank(x))},
                      {"keep_dims", n.attr_int("keepdims", 1)},
                      {"select_last", n.attr_int("select_last_index", 0)}}));
}

void import_trilu(NodeContext& n) {
  int64_t k = n.has(1) ? n.known_int(1, "k") : 0;
  n.output(0, n.emit("triangular", {n.input(0)}, {{"upper", n.attr_int("upper", 1)}, {"k", k}}));
}

void import_cumsum(NodeContext& n) {
  ValueId x = n.input(0);
  int64_t axis = n.axis(n.known_int(1, "axis"), n.rank(x));
  n.output(0,
           n.emit("cumsum", {x},
                  {{"axis", axis}, {"exclusive", n.attr_int("exclusive", 0)}, {"reverse", n.attr_int("reverse", 0)}}));
}

// The number of nonzero elements is a shape, so the input must be known.
void import_non_zero(NodeContext& n) {
  n.known_floats(0, "number of nonzero elements");
  if (n.failed()) return;
  TensorRef x = n.constant(n.input(0));
  const Shape& shape = x->type().shape;
  Shape strides = row_major_strides(shape);
  std::vector<int64_t> at;
  for (int64_t i = 0; i < x->type().elements(); ++i)
    if (x->get(i) != 0) at.push_back(i);
  auto count = static_cast<int64_t>(at.size());
  Tensor positions(Type(DType::I64, {static_cast<int64_t>(shape.size()), count}));
  for (size_t axis = 0; axis < shape.size(); ++axis)
    for (int64_t i = 0; i < count; ++i)
      positions.view().set_int(static_cast<int64_t>(axis) * count + i, at[i] / strides[axis] % shape[axis]);
  n.output(0, n.constant_value(std::move(positions)));
}

// Keeps the slices whose condition is true. The condition must be known.
void import_compress(NodeContext& n) {
  ValueId x = n.input(0);
  Ints condition = n.known_ints(1, "condition");
  if (!n.has_attr("axis")) x = n.reshape(x, {n.type(x).elements()});
  int64_t axis = n.axis(n.attr_int("axis", 0), n.rank(x));
  llvm::SmallVector<int64_t, 8> kept;
  for (size_t i = 0; i < condition.size(); ++i)
    if (condition[i]) kept.push_back(static_cast<int64_t>(i));
  n.output(0, n.emit("gather", {x, n.constant_value(Tensor::of_ints(kept))}, {{"axis", axis}}));
}

// The mask's dimensions up to the last along which it differs, where the data has the same and the rest is whole rows.
int64_t row_dims(const Shape& mask, const Shape& data) {
  const size_t missing = data.size() - std::min(mask.size(), data.size());
  size_t rows = 0;
  for (size_t i = 0; i < mask.size(); ++i)
    if (mask[i] != 1) rows = missing + i + 1;
  for (size_t i = 0; i < rows; ++i)
    if (i < missing || mask[i - missing] != data[i]) return static_cast<int64_t>(data.size());
  return static_cast<int64_t>(rows);
}

// y = where(mask, values[how many places come before], x), by rows of what one number of the mask decides.
void write_masked_rows(NodeContext& n, ValueId x, ValueId mask, ValueId values, int64_t row_rank) {
  const Shape data = n.shape(x);
  Shape ones(data.begin(), data.begin() + row_rank);
  const int64_t rows = element_count(ones), width = element_count(n.dims_from(x, row_rank));
  ones.resize(data.size(), 1);
  mask = n.reshape(mask, ones);
  values = n.reshape(values, {n.type(values).elements() / std::max<int64_t>(width, 1), width});
  const int64_t count = n.dim(values, 0);
  if (n.failed() || rows == 0 || width == 0) return n.output(0, x);
  if (count == 0) return n.fail("writes none of " + to_string(n.type(values)) + " where a mask is true");
  if (count == 1) {
    Shape row = n.dims_from(x, row_rank);
    row.insert(row.begin(), row_rank, 1);
    return n.output(0, n.emit("where", {mask, n.reshape(values, row), x}));
  }
  ValueId before = n.emit("cumsum", {n.cast(n.reshape(mask, {rows}), DType::I64)},
                          {{"axis", int64_t{0}}, {"exclusive", int64_t{1}}, {"reverse", int64_t{0}}});
  // Rows that are not written look up any row, each another, since gradients add up the rows of one place.
  llvm::SmallVector<int64_t, 8> any(rows);
  for (int64_t i = 0; i < rows; ++i) any[i] = i % count;
  before = n.emit("min", {before, n.constant_value(Tensor::scalar_int(count - 1, DType::I64))});
  before = n.emit("where", {n.reshape(mask, {rows}), before, n.constant_value(Tensor::of_ints(any))});
  const ValueId written = n.emit("gather", {values, before}, {{"axis", int64_t{0}}});
  n.output(0, n.emit("where", {mask, n.reshape(written, data), x}));
}

void import_masked_elements(NodeContext& n) {
  const ValueId x = n.input(0), values = n.input(2);
  ValueId mask = n.input(1);
  if (n.failed()) return;
  const Graph& graph = n.importer().graph();
  if (const NodeId maker = graph.value(mask).producer; maker != NodeId::None && graph.node(maker).op->name == "expand")
    mask = graph.node(maker).operands[0];
  int64_t rows = row_dims(n.shape(mask), n.shape(x));
  const int64_t width = element_count(n.dims_from(x, rows));
  if (rows == n.rank(x) || width == 0 || n.type(values).elements() % width != 0)
    mask = n.expand(mask, n.shape(x)), rows = n.rank(x);
  write_masked_rows(n, x, mask, values, rows);
}

void import_masked_values(NodeContext& n) {
  const ValueId x = n.input(0), mask = n.input(1), values = n.input(2);
  const int64_t rows = n.rank(mask);
  if (n.failed()) return;
  Shape row = n.dims_from(x, rows);
  const bool each = n.rank(values) == static_cast<int64_t>(row.size()) + 1 && n.dim(values, 0) != 1;
  row.insert(row.begin(), each ? n.dim(values, 0) : 1);
  write_masked_rows(n, x, mask, n.expand(values, row), rows);
}

constexpr ImportRow masked_rows[] = {
    {"ScatterND", 11, import_masked_elements},
    {"ScatterND", 11, import_masked_values},
};

constexpr ImportRow index_table[] = {
    {"ArgMax", 1, import_arg, "arg_max"},
    {"ArgMin", 1, import_arg, "arg_min"},
    {"Compress", 9, import_compress},
    {"CumSum", 11, import_cumsum},
    {"Gather", 1, import_gather},
    {"GatherElements", 11, import_gather_elements},
    {"GatherND", 11, import_as_is, "gather_nd", {{"batch_dims", 0}}},
    {"NonZero", 9, import_non_zero},
    {"OneHot", 9, import_one_hot},
    {"ReverseSequence", 10, import_as_is, "reverse_sequence", {{"batch_axis", 1}, {"time_axis", 0}}},
    {"Scatter", 9, import_as_is, "scatter_elements", {{"axis", 0}, {"reduction", "none"}}},
    {"ScatterElements", 11, import_as_is, "scatter_elements", {{"axis", 0}, {"reduction", "none"}}},
    {"ScatterND", 11, import_as_is, "scatter_nd", {{"reduction", "none"}}},
    {"TopK", 1, import_top_k},
    {"Trilu", 14, import_trilu},
};

}  // namespace

const ImportRow& masked_write_row(MaskedWrite::Form form) { return masked_rows[static_cast<size_t>(form)]; }

llvm::ArrayRef<ImportRow> index_rows() { return index_table; }

}  // namespace plimsoll
