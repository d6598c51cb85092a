#include "frontend/onnx/import_rows.h"
#include "frontend/onnx/importer.h"
#include "ir/depends_on_parameter.h"

#include <cmath>

// Imports attention and rotary embedding. In ONNX heads are a dimension of their own, [B, H, S, D], or part of the last
// one, [B, S, H*D]. Our ops take the second form.

namespace plimsoll {
namespace {

// Converts [B, H, S, D] to [B, S, H*D].
ValueId fold_heads(NodeContext& n, ValueId x) {
  const Shape s = n.shape(x);
  if (n.failed() || s.size() != 4) return x;
  return n.reshape(n.transpose(x, {0, 2, 1, 3}), {s[0], s[2], s[1] * s[3]});
}

// Converts [B, S, H*D] to [B, H, S, D].
ValueId split_heads(NodeContext& n, ValueId x, int64_t heads) {
  const Shape s = n.shape(x);
  if (n.failed() || s.size() != 3) return x;
  if (heads < 1 || s[2] % heads != 0) {
    n.fail("a width of " + llvm::Twine(s[2]) + " does not divide into " + llvm::Twine(heads) + " heads");
    return x;
  }
  return n.transpose(n.reshape(x, {s[0], s[1], heads, s[2] / heads}), {0, 2, 1, 3});
}

struct Attention {
  ValueId q, k, v;  // as given, with past keys and values in front of k and v
  ValueId mask = ValueId::None;
  int64_t heads = 0, kv_heads = 0, causal = 0, new_keys = 0;
  double scale = 0;

  bool four_dims(NodeContext& n) const { return n.rank(q) == 4; }
  int64_t rows(NodeContext& n) const { return n.dim(q, n.rank(q) - 2); }
  int64_t columns(NodeContext& n) const { return n.dim(k, n.rank(k) - 2); }
};

// Returns the present keys or values as [B, H, T, D]: the past ones followed by the new ones.
ValueId with_past(NodeContext& n, ValueId now, size_t past, size_t present, int64_t heads) {
  if (!n.has(past) && !n.wants(present)) return now;
  ValueId split = split_heads(n, now, heads);
  if (n.has(past)) split = n.concat({n.input(past), split}, 2);
  n.output(present, split);
  return split;
}

ValueId positions(NodeContext& n, int64_t count, llvm::ArrayRef<int64_t> shape) {
  llvm::SmallVector<int64_t, 16> numbers;
  for (int64_t i = 0; i < count; ++i) numbers.push_back(i);
  return n.reshape(n.constant_value(Tensor::of_ints(numbers)), shape);
}

// Returns the mask of keys that a query may see by position: key j <= query i + offset, where offset is the number of
// keys before the first query. If there is a number of valid keys per sample (opset 24), only those count. Returns None
// for all keys, or for the plain lower triangle, which the attention op implements.
ValueId place_mask(NodeContext& n, const Attention& a, ValueId lengths) {
  int64_t rows = a.rows(n), columns = a.columns(n), past = columns - a.new_keys;
  bool triangle = a.causal && past == 0 && lengths == ValueId::None;
  ValueId mask = ValueId::None;
  auto at_column = [&] { return positions(n, columns, {1, 1, 1, columns}); };
  if (lengths != ValueId::None) {
    lengths = n.reshape(n.cast(lengths, DType::I64), {n.type(lengths).elements(), 1, 1, 1});
    mask = n.emit("less", {at_column(), lengths});
  }
  if (!a.causal || triangle) return mask;
  ValueId offset = lengths == ValueId::None ? n.constant_value(Tensor::scalar_int(past))
                                            : n.emit("sub", {lengths, n.constant_value(Tensor::scalar_int(rows))});
  ValueId last = n.emit("add", {positions(n, rows, {1, 1, rows, 1}), offset});
  ValueId causal = n.emit("less_equal", {at_column(), last});
  return mask == ValueId::None ? causal : n.emit("and", {mask, causal});
}

// A float mask is added to the scores; a boolean one selects keys.
ValueId as_added(NodeContext& n, ValueId mask, DType dtype) {
  if (n.type(mask).dtype != DType::Bool) return n.cast(mask, dtype);
  return n.emit("where", {mask, n.scalar(0, dtype), n.scalar(-INFINITY, dtype)});
}

// A mask shorter than the keys hides the rest.
ValueId widen_mask(NodeContext& n, ValueId mask, int64_t columns) {
  int64_t rank = n.rank(mask), width = n.dim(mask, rank - 1);
  if (n.failed() || width == columns || width == 1) return mask;
  Ints before(rank, 0), after(rank, 0);
  after[rank - 1] = columns - width;
  bool chooses = n.type(mask).dtype == DType::Bool;
  ValueId fill = chooses ? n.constant_value(Tensor::scalar(0, DType::Bool)) : n.scalar(-INFINITY, n.type(mask).dtype);
  return n.emit("pad", {mask, fill}, {{"before", before}, {"after", after}, {"mode", "constant"}});
}

// Combines the model's mask with the mask by position.
void read_mask(NodeContext& n, Attention& a) {
  ValueId given = n.optional_input(3), place = place_mask(n, a, n.optional_input(6));
  if (given != ValueId::None) given = widen_mask(n, given, a.columns(n));
  if (place != ValueId::None) a.causal = 0;
  a.mask = given == ValueId::None ? place : given;
  if (n.failed() || given == ValueId::None || place == ValueId::None) return;
  bool chooses = n.type(given).dtype == DType::Bool;
  a.mask = chooses ? n.emit("and", {given, place}) : n.emit("add", {given, as_added(n, place, n.type(given).dtype)});
}

Attention read_attention(NodeContext& n) {
  Attention a{n.input(0), n.input(1), n.input(2)};
  bool four = a.four_dims(n);
  if (n.rank(a.q) != n.rank(a.k) || n.rank(a.k) != n.rank(a.v) || (!four && n.rank(a.q) != 3))
    n.fail("needs queries, keys and values of 3 or 4 dimensions, got " + to_string(n.type(a.q)) + ", " +
           to_string(n.type(a.k)) + " and " + to_string(n.type(a.v)));
  a.heads = four ? n.dim(a.q, 1) : n.attr_int("q_num_heads", 0);
  a.kv_heads = four ? n.dim(a.k, 1) : n.attr_int("kv_num_heads", 0);
  if (!n.failed() && (a.heads < 1 || a.kv_heads < 1)) n.fail("has 3 dimensions, but no q_num_heads and kv_num_heads");
  if (n.failed()) return a;
  int64_t width = n.dim(a.q, n.rank(a.q) - 1) / (four ? 1 : a.heads);
  a.scale = n.attr_float("scale", 1 / std::sqrt(static_cast<double>(width)));
  a.causal = n.attr_int("is_causal", 0);
  a.new_keys = a.columns(n);
  a.k = with_past(n, a.k, 4, 1, a.kv_heads);
  a.v = with_past(n, a.v, 5, 2, a.kv_heads);
  read_mask(n, a);
  return a;
}

ValueId repeat_heads(NodeContext& n, ValueId x, int64_t times) {
  const Shape s = n.shape(x);
  if (n.failed() || times == 1) return x;
  ValueId spread = n.expand(n.reshape(x, {s[0], s[1], 1, s[2], s[3]}), {s[0], s[1], times, s[2], s[3]});
  return n.reshape(spread, {s[0], s[1] * times, s[2], s[3]});
}

// Adds all masks to the scores.
ValueId added_bias(NodeContext& n, const Attention& a, DType dtype) {
  ValueId bias = a.mask == ValueId::None ? ValueId::None : as_added(n, a.mask, dtype);
  if (!a.causal) return bias;
  int64_t rows = a.rows(n), columns = a.columns(n);
  Tensor triangle(Type(DType::Bool, {rows, columns}));
  for (int64_t i = 0; i < rows * columns; ++i) triangle.view().set_int(i, i % columns <= i / columns);
  ValueId causal = as_added(n, n.constant_value(std::move(triangle)), dtype);
  return bias == ValueId::None ? causal : n.emit("add", {bias, causal});
}

// Returns the probabilities of scores [B, H, S, T]. A row whose keys are all masked gets zeros.
ValueId guarded_softmax(NodeContext& n, ValueId scores, ValueId bias) {
  DType dtype = n.type(scores).dtype;
  ValueId open = ValueId::None, zero = n.scalar(0, dtype);
  if (bias != ValueId::None) {
    ValueId best = n.reduce("reduce_max", bias, {n.rank(bias) - 1}, true);
    open = n.emit("greater", {best, n.scalar(-INFINITY, dtype)});
    scores = n.emit("where", {open, scores, zero});
  }
  ValueId p = n.emit("softmax", {scores}, {{"axis", 3}});
  return bias == ValueId::None ? p : n.emit("where", {open, p, zero});
}

// Emits attention as single ops if scores are an output, or if the mask is learned and no kernel makes its gradient.
// The scores can be an output at one of four points.
void emit_composed(NodeContext& n, const Attention& a) {
  DType dtype = n.type(a.q).dtype, precise = n.attr_dtype("softmax_precision", dtype);
  int64_t group = a.heads / a.kv_heads, point = n.attr_int("qk_matmul_output_mode", 0);
  if (point < 0 || point > 3) return n.fail("qk_matmul_output_mode is " + llvm::Twine(point));
  ValueId q = split_heads(n, a.q, a.heads);
  ValueId k = repeat_heads(n, split_heads(n, a.k, a.kv_heads), group);
  ValueId v = repeat_heads(n, split_heads(n, a.v, a.kv_heads), group);
  ValueId scores = n.emit("matmul", {q, k}, {{"transpose_a", 0}, {"transpose_b", 1}});
  std::array<ValueId, 4> points;
  points[0] = points[1] = n.emit("mul", {scores, n.scalar(a.scale, dtype)});
  if (double cap = n.attr_float("softcap", 0); cap != 0) {
    ValueId limit = n.scalar(cap, dtype);
    points[1] = n.emit("mul", {n.emit("tanh", {n.emit("div", {points[0], limit})}), limit});
  }
  ValueId bias = added_bias(n, a, dtype);
  points[2] = bias == ValueId::None ? points[1] : n.emit("add", {points[1], bias});
  if (bias != ValueId::None) bias = n.cast(bias, precise);
  points[3] = n.cast(guarded_softmax(n, n.cast(points[2], precise), bias), dtype);
  ValueId y = n.emit("matmul", {points[3], v}, {{"transpose_a", 0}, {"transpose_b", 0}});
  n.output(0, a.four_dims(n) ? y : fold_heads(n, y));
  n.output(3, points[point]);
}

void import_attention(NodeContext& n) {
  Attention a = read_attention(n);
  if (n.failed()) return;
  // Of a mask with a number for each row and column attention has the gradient.
  bool whole = a.mask != ValueId::None && n.dim(a.mask, n.rank(a.mask) - 2) == a.rows(n) &&
               n.dim(a.mask, n.rank(a.mask) - 1) == a.columns(n);
  bool learned = a.mask != ValueId::None && !whole && depends_on_parameter(n.importer().graph(), a.mask);
  if (n.wants(3) || learned) return emit_composed(n, a);
  ValueList operands{fold_heads(n, a.q), fold_heads(n, a.k), fold_heads(n, a.v)};
  if (a.mask != ValueId::None) operands.push_back(a.mask);
  Attrs attrs{{"heads", a.heads}, {"kv_heads", a.kv_heads}, {"scale", a.scale}, {"causal", a.causal}};
  if (double cap = n.attr_float("softcap", 0); cap != 0) attrs.set("softcap", cap);
  ValueId y = n.emit("attention", operands, attrs);
  n.output(0, a.four_dims(n) ? split_heads(n, y, a.heads) : y);
}

// The tables have one row per position. If there are position numbers, they select the rows first.
void import_rotary(NodeContext& n) {
  ValueId x = n.input(0);
  bool four = n.rank(x) == 4;
  int64_t heads = four ? n.dim(x, 1) : n.attr_int("num_heads", 0);
  if (n.rank(x) != 3 && !four) n.fail("needs 3 or 4 dimensions, got " + to_string(n.type(x)));
  if (heads < 1) n.fail("has 3 dimensions, but no num_heads");
  if (n.failed()) return;
  int64_t batch = n.dim(x, 0), rows = n.dim(x, n.rank(x) - 2);
  int64_t width = n.dim(x, n.rank(x) - 1) / (four ? 1 : heads);
  int64_t rotated = n.attr_int("rotary_embedding_dim", 0);
  if (rotated == 0) rotated = width;
  auto table = [&](size_t i) {
    ValueId values = n.input(i);
    if (n.has(3)) values = n.emit("gather", {values, n.input(3)}, {{"axis", 0}});
    return n.slice(values, n.rank(values) - 1, 0, rotated / 2);
  };
  ValueId cosine = table(1), sine = table(2);
  if (n.rank(cosine) != 3 || (n.dim(cosine, 0) != batch && n.dim(cosine, 0) != 1) || n.dim(cosine, 1) != rows)
    return n.fail("tables of " + to_string(n.type(cosine)) + " do not fit " + to_string(n.type(x)));
  ValueId y = n.emit("rotary", {fold_heads(n, x), cosine, sine},
                     {{"heads", heads}, {"interleaved", n.attr_int("interleaved", 0)}});
  n.output(0, four ? split_heads(n, y, heads) : y);
}

constexpr ImportRow attention_table[] = {
    {"Attention", 23, import_attention},
    {"RotaryEmbedding", 23, import_rotary},
};

}  // namespace

llvm::ArrayRef<ImportRow> attention_rows() { return attention_table; }

}  // namespace plimsoll
