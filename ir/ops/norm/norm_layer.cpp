#include "ir/ops/common/divide.h"
#include "ir/ops/norm/norm.h"

// Layer norm and RMS norm: each row, the dimensions from {axis} on, is normalised by its
// own statistics, which are kept for backward in at least f32 whatever x is.

namespace plimsoll {
namespace {

llvm::ArrayRef<int64_t> row_shape(const OpCall& call) {
  return llvm::ArrayRef<int64_t>(call["x"].shape).drop_front(call.get_int("axis"));
}

NormLayout layout_of(const OpCall& call) {
  int64_t width = element_count(row_shape(call));
  int64_t rows = element_count(llvm::ArrayRef<int64_t>(call["x"].shape).take_front(call.get_int("axis")));
  return {.stat_step = width, .stats = rows, .param_step = 1, .params = width};
}

// One statistic per row: x's shape with 1 for every normalised dimension.
Type stat_type(const OpCall& call) {
  Type type(stat_dtype(call["x"].dtype), call["x"].shape);
  for (int64_t d = call.get_int("axis"); d < type.rank(); ++d) type.shape[d] = 1;
  return type;
}

Status check_forward(const OpCall& call) {
  if (Status s = need_float(call, "x")) return s;
  if (Status s = need_axis(call.attrs, "axis", call["x"].rank())) return s;
  return need_norm_parameters(call, row_shape(call));
}

Result<Types> infer_gradient(const OpCall& call, std::initializer_list<PortKey> statistics) {
  if (Status s = need_axis(call.attrs, "axis", call["x"].rank())) return s;
  for (PortKey statistic : statistics)
    if (Status s = need_type(call, statistic, stat_type(call))) return s;
  if (Status s = need_type(call, "addend", call["x"])) return s;
  return norm_gradient_types(call, row_shape(call));
}

void store_gradients(const ReferenceCall& call, NormGradients gradients) {
  const std::vector<double> addend = call.load("addend");
  for (size_t i = 0; i < addend.size(); ++i) gradients.dx[i] += addend[i];
  store_norm_gradients(call, gradients);
}

Attrs axis_only(const Attrs& attrs) { return {{"axis", attrs.get_int("axis")}}; }

Result<Types> infer_layer_norm(const OpCall& call) {
  if (Status s = check_forward(call)) return s;
  return Types{call["x"], stat_type(call), stat_type(call)};
}

Status layer_norm_gradient(GradContext& g) {
  if (Status s = need_only_first_gradient(g, "the statistics")) return s;
  add_norm_gradients(g, "layer_norm_grad", {g.result("mean"), g.result("rstd")}, axis_only(g.attrs()));
  return Status::success();
}

void layer_norm_reference(const ReferenceCall& call) {
  NormLayout layout = layout_of(call);
  std::vector<double> x = call.load("x"), scale = call.load("scale");
  NormStatistics moments = moments_of(x, layout);
  std::vector<double> rstd = inverse_deviation(moments.var, call.get_float("eps"));
  call.store(normalized({x, moments.mean, rstd, scale}, call.load("bias"), layout), "y");
  call.store(moments.mean, "mean");
  call.store(rstd, "rstd");
}

std::vector<Sample> layer_norm_samples() {
  using namespace samples;
  return {
      {{normal({3, 5}), normal({5}), normal({5})}, {{"axis", 1}, {"eps", 1e-5}}},
      {{normal({2, 3, 4}), normal({3, 4})}, {{"axis", 1}, {"eps", 1e-3}}},
      {{normal({2, 2, 6}), absent(), normal({6})}, {{"axis", 2}, {"eps", 1e-5}}},
      {{normal({2, 3})}, {{"axis", 0}, {"eps", 1e-2}}},
      {{normal({3, 5}, DType::BF16), normal({5}), normal({5})}, {{"axis", 1}, {"eps", 1e-5}}},
  };
}

Result<Types> infer_layer_norm_grad(const OpCall& call) { return infer_gradient(call, {"mean", "rstd"}); }

void layer_norm_grad_reference(const ReferenceCall& call) {
  std::vector<double> x = call.load("x"), mean = call.load("mean"), rstd = call.load("rstd");
  std::vector<double> scale = call.load("scale");
  NormGradients gradients = norm_gradients({x, mean, rstd, scale}, call.load("dy"), layout_of(call));
  store_gradients(call, std::move(gradients));
}

// Rows are normalised one by one; the gradients of scale and bias are summed over them.
std::optional<ChunkCall> sums_of_chunks(const OpCall& call, ChunkCall made) {
  if (call.get_int("axis") == 0) return std::nullopt;
  made.combine = {Combine::Rows, Combine::Sum, Combine::Sum};
  return made;
}

std::optional<ChunkCall> layer_norm_grad_chunk(const OpCall& call, Chunk) {
  return sums_of_chunks(call, cut_operands(call, {"x", "dy", "mean", "rstd", "addend"}));
}

std::vector<Sample> layer_norm_grad_samples() {
  using namespace samples;
  return {
      {{normal({3, 5}), normal({3, 5}), normal({3, 1}), positive({3, 1}), normal({5})},
       {{"axis", 1}, {"has_scale", 1}, {"has_bias", 1}}},
      {{normal({2, 3, 4}), normal({2, 3, 4}), normal({2, 1, 1}), positive({2, 1, 1})}, {{"axis", 1}, {"has_bias", 1}}},
      {{normal({2, 4}), normal({2, 4}), normal({2, 1}), positive({2, 1}), normal({4})}, {{"axis", 1}}},
      {{normal({3, 5}, DType::BF16), normal({3, 5}, DType::BF16), normal({3, 1}), positive({3, 1}), normal({5})},
       {{"axis", 1}, {"has_scale", 1}, {"has_bias", 1}}},
      {{normal({3, 5}), normal({3, 5}), normal({3, 1}), positive({3, 1}), normal({5}), normal({3, 5})},
       {{"axis", 1}, {"has_scale", 1}}},
      {{normal({3, 8}, DType::BF16), normal({3, 8}, DType::BF16), normal({3, 1}), positive({3, 1}), absent(),
        normal({3, 8}, DType::BF16)},
       {{"axis", 1}}},
  };
}

Result<Types> infer_rms_norm(const OpCall& call) {
  if (Status s = check_forward(call)) return s;
  return Types{call["x"], stat_type(call)};
}

Status rms_norm_gradient(GradContext& g) {
  if (Status s = need_only_first_gradient(g, "the statistics")) return s;
  add_norm_gradients(g, "rms_norm_grad", {g.result("rstd")}, axis_only(g.attrs()));
  return Status::success();
}

void rms_norm_reference(const ReferenceCall& call) {
  NormLayout layout = layout_of(call);
  std::vector<double> x = call.load("x"), scale = call.load("scale");
  std::vector<double> rstd = inverse_deviation(mean_squares(x, layout), call.get_float("eps"));
  call.store(normalized({x, {}, rstd, scale}, {}, layout), "y");
  call.store(rstd, "rstd");
}

std::vector<Sample> rms_norm_samples() {
  using namespace samples;
  return {
      {{normal({3, 5}), normal({5})}, {{"axis", 1}, {"eps", 1e-5}}},
      {{normal({2, 3, 4}), normal({3, 4})}, {{"axis", 1}, {"eps", 1e-3}}},
      {{normal({2, 2, 6})}, {{"axis", 2}, {"eps", 1e-5}}},
      {{normal({3, 5}, DType::BF16), normal({5})}, {{"axis", 1}, {"eps", 1e-5}}},
  };
}

Result<Types> infer_rms_norm_grad(const OpCall& call) { return infer_gradient(call, {"rstd"}); }

void rms_norm_grad_reference(const ReferenceCall& call) {
  std::vector<double> x = call.load("x"), rstd = call.load("rstd"), scale = call.load("scale");
  NormGradients gradients = norm_gradients({x, {}, rstd, scale}, call.load("dy"), layout_of(call));
  store_gradients(call, std::move(gradients));
}

std::optional<ChunkCall> rms_norm_grad_chunk(const OpCall& call, Chunk) {
  return sums_of_chunks(call, cut_operands(call, {"x", "dy", "rstd", "addend"}));
}

std::vector<Sample> rms_norm_grad_samples() {
  using namespace samples;
  return {
      {{normal({3, 5}), normal({3, 5}), positive({3, 1}), normal({5})}, {{"axis", 1}, {"has_scale", 1}}},
      {{normal({2, 3, 4}), normal({2, 3, 4}), positive({2, 1, 1})}, {{"axis", 1}}},
      {{normal({3, 5}, DType::BF16), normal({3, 5}, DType::BF16), positive({3, 1}), normal({5})},
       {{"axis", 1}, {"has_scale", 1}}},
      {{normal({3, 8}), normal({3, 8}), positive({3, 1}), normal({8}), normal({3, 8})},
       {{"axis", 1}, {"has_scale", 1}}},
  };
}

}  // namespace

namespace {

// By rows, which are normalised one by one.
std::optional<DividedCall> rows_divide(const OpCall& call, llvm::ArrayRef<Type> results, const CutAt& known, int64_t) {
  const int64_t axis = call.get_int("axis");
  const std::string letters = pass_through(axis) + std::string(static_cast<size_t>(call["x"].rank() - axis), '.');
  DimLetters dims{{letters}, llvm::SmallVector<std::string, 4>(results.size(), letters)};
  for (size_t i = 1; i < call.count(); ++i)
    dims.operands.push_back(call.has(i) ? std::string(static_cast<size_t>(call.operand(i).rank()), '.') : "");
  std::optional<DividedCall> made = divide_letters(call, dims, known);
  if (made) made->may_be_uneven = call.get_float("eps") > 0 && (call.count() < 3 || !call.has(2));
  return made;
}

}  // namespace

constinit const OpDef op_layer_norm{
    .name = "layer_norm",
    .summary = "y, mean, rstd: x normalised over the dimensions from {axis} on with {eps}, times scale plus bias",
    .operands = {"x", "scale?", "bias?"},
    .results = {"y", "mean", "rstd"},
    .attrs = {{"axis", AttrKind::Int}, eps_attr},
    .infer = infer_layer_norm,
    .gradient = Gradient::rule(layer_norm_gradient),
    .dim_order = DimOrder::FromAxisStay,
    .chunk = chunk_across_axis,
    .divide = rows_divide,
    .linear = {"1 * scale + bias"},
    .reference = layer_norm_reference,
    .samples = layer_norm_samples,
};

constinit const OpDef op_layer_norm_grad{
    .name = "layer_norm_grad",
    .summary =
        "dx, plus an addend when given, then dscale with {has_scale} and dbias with {has_bias}, from x, dy, mean, "
        "rstd, "
        "scale and the addend; {axis}",
    .operands = {"x", "dy", "mean", "rstd", "scale?", "addend?"},
    .results = {"dx", "dscale?has_scale", "dbias?has_bias"},
    .attrs = {{"axis", AttrKind::Int}, has_scale_attr, has_bias_attr},
    .infer = infer_layer_norm_grad,
    .gradient = no_second_derivative,
    .addend = "addend",
    .in_place = {{"dx", "addend"}},
    .chunk = layer_norm_grad_chunk,
    .linear = {"sum(dy * scale) + addend", "sum(dy)"},
    .reference = layer_norm_grad_reference,
    .samples = layer_norm_grad_samples,
};

constinit const OpDef op_rms_norm{
    .name = "rms_norm",
    .summary = "y, rstd: x over its root mean square in the dimensions from {axis} on with {eps}, times scale",
    .operands = {"x", "scale?"},
    .results = {"y", "rstd"},
    .attrs = {{"axis", AttrKind::Int}, eps_attr},
    .infer = infer_rms_norm,
    .gradient = Gradient::rule(rms_norm_gradient),
    .dim_order = DimOrder::FromAxisStay,
    .chunk = chunk_across_axis,
    .divide = rows_divide,
    .linear = {"scale"},
    .reference = rms_norm_reference,
    .samples = rms_norm_samples,
};

constinit const OpDef op_rms_norm_grad{
    .name = "rms_norm_grad",
    .summary =
        "dx, plus an addend when given, then dscale with {has_scale}, from x, dy, rstd, scale and the addend; {axis}",
    .operands = {"x", "dy", "rstd", "scale?", "addend?"},
    .results = {"dx", "dscale?has_scale"},
    .attrs = {{"axis", AttrKind::Int}, has_scale_attr},
    .infer = infer_rms_norm_grad,
    .gradient = no_second_derivative,
    .addend = "addend",
    .in_place = {{"dx", "addend"}},
    .chunk = rms_norm_grad_chunk,
    .linear = {"sum(dy * scale) + addend", "sum(dy * x * rstd)"},
    .reference = rms_norm_grad_reference,
    .samples = rms_norm_grad_samples,
};

}  // namespace plimsoll
