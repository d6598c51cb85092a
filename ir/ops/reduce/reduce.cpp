// Reductions over some axes. `axes` are distinct and not negative; keep_dims leaves them in as size 1.

#include "ir/ops/common/divide.h"
#include "ir/ops/common/expr.h"
#include "ir/ops/common/samples.h"

#include <algorithm>
#include <limits>

namespace plimsoll {
namespace {

llvm::ArrayRef<int64_t> axes_of(const Attrs& attrs) { return attrs.get_ints("axes"); }

constexpr AttrSpecs extreme_attrs{{"axes", AttrKind::Ints}, {"keep_dims", 0}};
constexpr AttrSpecs sum_attrs = extreme_attrs.with({sum_dtype_attr});

// Sums, means and products may round to {dtype}.
Result<Types> infer_reduce(const OpCall& call) {
  const Type& x = call["x"];
  if (Status s = need_number(call, "x")) return s;
  llvm::ArrayRef<int64_t> axes = axes_of(call.attrs);
  for (size_t i = 0; i < axes.size(); ++i) {
    if (axes[i] < 0 || axes[i] >= x.rank())
      return model_error("axis " + llvm::Twine(axes[i]) + " is outside the rank " + llvm::Twine(x.rank()));
    if (contains(axes.take_front(i), axes[i])) return model_error("axis " + llvm::Twine(axes[i]) + " is named twice");
  }
  Result<DType> dtype = sum_dtype(call);
  if (!dtype) return dtype.takeError();
  return one_result(*dtype, reduced_shape(x.shape, axes, call.get_int("keep_dims") != 0));
}

Status empty_operand(const OpCall& call) { return model_error("reduces an empty tensor " + to_string(call["x"])); }

// An empty slice has no largest element.
Result<Types> infer_extreme(const OpCall& call) {
  Result<Types> types = infer_reduce(call);
  if (types && call["x"].elements() == 0 && types->front().elements() != 0) return empty_operand(call);
  return types;
}

double reduce_flops(const OpCall& call, llvm::ArrayRef<Type>) { return static_cast<double>(call["x"].elements()); }

// Folds every element of x into its place in `totals`, which has x's shape with the axes taken out.
template <typename T, typename Fold>
std::vector<T> fold(const OpCall& call, const TensorView& x, int64_t results, T start, Fold fold_in) {
  std::vector<T> totals(static_cast<size_t>(results), start);
  Shape kept = reduced_shape(x.type.shape, axes_of(call.attrs), true);
  walk<1>(x.type.shape, {broadcast_strides(kept, x.type.shape)}, {}, [&](int64_t i, const auto& at) {
    T& total = totals[at[0]];
    if constexpr (std::is_same_v<T, double>)
      total = fold_in(total, x.get(i));
    else
      total = fold_in(total, static_cast<T>(x.get_int(i)));
  });
  return totals;
}

// Integers are folded without sign where they wrap, see the callers.
template <typename T, auto f>
void fold_into(const OpCall& call, const TensorView& x, const TensorView& y, T start) {
  std::vector<T> totals = fold<T>(call, x, y.elements(), start, f);
  for (int64_t i = 0; i < y.elements(); ++i)
    if constexpr (std::is_same_v<T, double>)
      y.set(i, totals[i]);
    else
      y.set_int(i, static_cast<int64_t>(totals[i]));
}

template <auto f, int start>
void accumulate(const ReferenceCall& call) {
  const TensorView &x = call.in("x"), &y = call.out("y");
  if (is_float(x.type.dtype)) return fold_into<double, f>(call, x, y, start);
  return fold_into<uint64_t, f>(call, x, y, start);
}

constexpr ReferenceFn sum_reference = accumulate<[](auto a, auto b) { return a + b; }, 0>;
constexpr ReferenceFn prod_reference = accumulate<[](auto a, auto b) { return a * b; }, 1>;

void mean_reference(const ReferenceCall& call) {
  const TensorView &x = call.in("x"), &y = call.out("y");
  std::vector<double> totals = fold<double>(call, x, y.elements(), 0.0, std::plus<double>());
  double count = static_cast<double>(x.elements()) / static_cast<double>(y.elements());
  for (int64_t i = 0; i < y.elements(); ++i) y.set(i, totals[i] / count);
}

// `wins(b, a)`: b replaces a. NaN wins always.
template <auto wins>
void extreme_reference(const ReferenceCall& call) {
  const TensorView &x = call.in("x"), &y = call.out("y");
  constexpr auto choose = [](auto a, auto b) { return b != b || wins(b, a) ? b : a; };
  auto lowest = [](auto worst, auto best) { return wins(worst, best) ? best : worst; };
  if (is_float(x.type.dtype)) {
    double infinity = std::numeric_limits<double>::infinity();
    return fold_into<double, choose>(call, x, y, lowest(-infinity, infinity));
  }
  if (x.type.dtype == DType::U64) return fold_into<uint64_t, choose>(call, x, y, lowest(uint64_t{0}, ~uint64_t{0}));
  using Limits = std::numeric_limits<int64_t>;
  return fold_into<int64_t, choose>(call, x, y, lowest(Limits::min(), Limits::max()));
}

// ---- Gradients ----

Expr with_kept_axes(GradContext& g, Expr reduced) {
  return reshape(reduced, reduced_shape(g.type(g["x"]).shape, axes_of(g.attrs()), true));
}

Expr spread(GradContext& g, Expr dy) {
  const Shape shape = g.type(g["x"]).shape;
  return {&g.b, g.b.expand(with_kept_axes(g, dy), shape)};
}

// dy in x's dtype, cast before it is spread.
Expr narrow_grad(GradContext& g) { return cast(out_grad(g), g.type(g["x"]).dtype); }

Expr sum_over_axes(GradContext& g, Expr x) { return {&g.b, g.b.sum(x, axes_of(g.attrs()), true)}; }

void sum_gradient(GradContext& g) { g.add("x", spread(g, narrow_grad(g))); }

void mean_gradient(GradContext& g) {
  double count = static_cast<double>(g.type(g["x"]).elements()) / static_cast<double>(g.type(g.result("y")).elements());
  g.add("x", spread(g, cast(out_grad(g) * (1 / count), g.type(g["x"]).dtype)));
}

// Elements that equal the extreme share its gradient evenly.
void extreme_gradient(GradContext& g) {
  Expr x = operand(g, "x");
  Expr winners = cast(equals(x, with_kept_axes(g, result(g))), x.type().dtype);
  g.add("x", winners * (with_kept_axes(g, out_grad(g)) / sum_over_axes(g, winners)));
}

// d/dx_i is the product of the others: y / x_i where no other is zero, taking the product over
// non-zero elements, so that a single zero gets its due.
void prod_gradient(GradContext& g) {
  Expr x = operand(g, "x");
  Expr is_zero = equals(x, 0.0);
  Expr zero_count = cast(is_zero, x.type().dtype);
  Expr safe = where(is_zero, like(x, 1), x);
  Expr product = apply("reduce_prod", safe, {{"axes", *g.attrs().find("axes")}, {"keep_dims", 1}});
  Expr dy = with_kept_axes(g, narrow_grad(g));
  Expr other_zeros = sum_over_axes(g, zero_count) - zero_count;
  g.add("x", where(equals(other_zeros, 0.0), dy * product / safe, 0.0));
}

// ---- Samples ----

Sample reduction(SampleOperand x, llvm::ArrayRef<int64_t> axes, int64_t keep_dims) {
  return {{std::move(x)}, {{"axes", Ints(axes.begin(), axes.end())}, {"keep_dims", keep_dims}}};
}

std::vector<Sample> float_samples() {
  return {reduction(samples::distinct({2, 3, 4}), {1}, 0), reduction(samples::distinct({2, 3, 4}), {2, 0}, 1),
          reduction(samples::distinct({5}), {0}, 0), reduction(samples::distinct({2, 3}), {}, 0)};
}

// 16-bit operands, summed to 16 bits and to f32.
std::vector<Sample> sum_samples() {
  std::vector<Sample> list = float_samples();
  list.push_back(reduction(samples::distinct({4, 3}, DType::BF16), {0}, 0));
  for (DType narrow : {DType::BF16, DType::F16}) {
    list.push_back(reduction(samples::distinct({4, 3}, narrow), {0}, 0));
    list.back().attrs.set("dtype", DType::F32);
  }
  return list;
}

std::vector<Sample> with_integers(std::vector<Sample> list) {
  list.push_back(reduction(samples::integers({2, 5}, -4, 9), {1}, 1));
  list.push_back(reduction(samples::integers({2, 5}, 0, 3, DType::U8), {0, 1}, 0));
  return list;
}

std::vector<Sample> sum_number_samples() { return with_integers(sum_samples()); }
std::vector<Sample> extreme_samples() { return with_integers(float_samples()); }

std::vector<Sample> prod_samples() {
  std::vector<Sample> list = sum_number_samples();
  list.push_back(reduction(samples::values({3, 3}, {2, 0, -3, 0, 0.5, 0, 1, 2, 4}), {1}, 0));
  return list;
}

// Chunks of dimension 0 combine as `over_rows` says.
ChunkCall reduced_chunk(const OpCall& call, Combine over_rows) {
  ChunkCall made = cut_operands(call, {"x"});
  if (contains(axes_of(call.attrs), 0)) made.combine = {over_rows};
  return made;
}

std::optional<ChunkCall> sum_chunk(const OpCall& call, Chunk) { return reduced_chunk(call, Combine::Sum); }
std::optional<ChunkCall> mean_chunk(const OpCall& call, Chunk) { return reduced_chunk(call, Combine::Mean); }

std::optional<ChunkCall> within_rows_chunk(const OpCall& call, Chunk chunk) {
  return contains(axes_of(call.attrs), 0) ? std::nullopt : chunk_of_first(call, chunk);
}

// A dimension that is summed over makes summands; other reductions read it whole.
std::optional<DividedCall> divide_reduction(const OpCall& call, llvm::ArrayRef<Type> results, const CutAt& known,
                                            int64_t) {
  const std::string x = pass_through(call["x"].rank());
  const bool keeps = results[0].rank() == call["x"].rank();
  std::string y;
  for (size_t d = 0; d < x.size(); ++d) {
    const bool reduced = contains(axes_of(call.attrs), static_cast<int64_t>(d));
    if (!reduced) y += x[d];
    if (reduced && keeps) y += '.';
  }
  std::optional<DividedCall> made = divide_letters(call, {{x}, {y}}, known);
  if (made && made->sums && call.op.name != "reduce_sum") return std::nullopt;
  if (made) made->may_be_uneven = call.op.name == "reduce_sum" || call.op.name == "reduce_mean";
  return made;
}

constexpr OpDef reduction_op(llvm::StringLiteral name, llvm::StringLiteral summary, AttrSpecs attrs, InferFn infer,
                             GradientFn gradient, Precision precision, ChunkFn chunk, ReferenceFn reference,
                             SamplesFn samples, LinearForms linear = {}) {
  return {.name = name,
          .summary = summary,
          .attrs = attrs,
          .infer = infer,
          .gradient = Gradient::rule(gradient),
          .precision = precision,
          .dim_order = DimOrder::Axes,
          .flops = reduce_flops,
          .chunk = chunk,
          .divide = divide_reduction,
          .linear = linear,
          .reference = reference,
          .samples = samples};
}

Result<Types> infer_mean(const OpCall& call) {
  if (Status s = need_float(call, "x")) return s;
  Result<Types> types = infer_reduce(call);
  if (types && call["x"].elements() == 0 && types->front().elements() != 0) return empty_operand(call);
  return types;
}

}  // namespace

constinit const OpDef op_reduce_sum =
    reduction_op("reduce_sum", "sum over {axes} {keep_dims}, rounded to {dtype} when given", sum_attrs, infer_reduce,
                 sum_gradient, Precision::Full, sum_chunk, sum_reference, sum_number_samples, {"sum(x)"});
constinit const OpDef op_reduce_mean =
    reduction_op("reduce_mean", "mean over {axes} {keep_dims}, rounded to {dtype} when given", sum_attrs, infer_mean,
                 mean_gradient, Precision::Full, mean_chunk, mean_reference, sum_samples, {"sum(x)"});
constinit const OpDef op_reduce_max = reduction_op(
    "reduce_max", "largest element over {axes} {keep_dims}", extreme_attrs, infer_extreme, extreme_gradient,
    Precision::Follow, within_rows_chunk, extreme_reference<[](auto b, auto a) { return a < b; }>, extreme_samples);
constinit const OpDef op_reduce_min = reduction_op(
    "reduce_min", "smallest element over {axes} {keep_dims}", extreme_attrs, infer_extreme, extreme_gradient,
    Precision::Follow, within_rows_chunk, extreme_reference<[](auto b, auto a) { return b < a; }>, extreme_samples);
constinit const OpDef op_reduce_prod =
    reduction_op("reduce_prod", "product over {axes} {keep_dims}, rounded to {dtype} when given", sum_attrs,
                 infer_reduce, prod_gradient, Precision::Full, within_rows_chunk, prod_reference, prod_samples);

// ---- sum_squares ----

namespace {

Result<Types> infer_sum_squares(const OpCall& call) {
  DType sum = DType::F32;
  for (size_t i = 0; i < call.count(); ++i) {
    if (Status s = need_float(call, i)) return s;
    if (stat_dtype(call.operand(i).dtype) == DType::F64) sum = DType::F64;
  }
  return one_result(sum, {});
}

void sum_squares_reference(const ReferenceCall& call) {
  const TensorView& y = call.out("y");
  double sum = 0;
  for (const TensorView& x : call.operands)
    for (int64_t i = 0; i < x.elements(); ++i) sum += x.get(i) * x.get(i);
  y.set(0, sum);
}

void sum_squares_gradient(GradContext& g) {
  for (size_t i = 0; i < g.operand_count(); ++i) {
    if (!g.wants(i)) continue;
    Expr x = operand(g, i);
    g.add(i, x * cast(out_grad(g) * 2.0, x.type().dtype));
  }
}

double sum_squares_flops(const OpCall& call, llvm::ArrayRef<Type>) {
  double flops = 0;
  for (size_t i = 0; i < call.count(); ++i) flops += 2 * static_cast<double>(call.operand(i).elements());
  return flops;
}

std::optional<ChunkCall> sum_squares_chunk(const OpCall& call, Chunk) {
  return ChunkCall{llvm::SmallVector<bool, 4>(call.count(), true), {Combine::Sum}, call.attrs};
}

std::vector<Sample> sum_squares_samples() {
  using samples::normal;
  return {{{normal({2, 3})}, {}},
          {{normal({})}, {}},
          {{normal({4}, DType::BF16)}, {}},
          {{normal({2, 3}), normal({}), normal({5})}, {}},
          {{normal({4}, DType::BF16), normal({3}, DType::BF16)}, {}}};
}

}  // namespace

constinit const OpDef op_sum_squares{
    .name = "sum_squares",
    .summary = "the sum of x * x over all elements of all operands, a scalar, f32 for 16-bit floats",
    .operands = {"xs+"},
    .infer = infer_sum_squares,
    .gradient = Gradient::rule(sum_squares_gradient),
    .flops = sum_squares_flops,
    .chunk = sum_squares_chunk,
    .reference = sum_squares_reference,
    .samples = sum_squares_samples,
};

}  // namespace plimsoll
