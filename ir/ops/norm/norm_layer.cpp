#include "ir/ops/norm/norm.h"

// Layer norm and RMS norm: each row, the dimensions from {axis} on, is normalised by its
// own statistics, which are kept for backward in at least f32 whatever x is.

namespace plimsoll {
namespace {

constexpr AttrRule axis_rule{"axis", AttrKind::Int};
constexpr AttrRule forward_attrs[] = {axis_rule, eps_rule};
constexpr AttrRule gradient_attrs[] = {axis_rule, has_scale_rule, has_bias_rule};

llvm::ArrayRef<int64_t> row_shape(const OpCall& call) {
  return llvm::ArrayRef<int64_t>(call.operand(0).shape).drop_front(call.attrs.get_int("axis"));
}

NormLayout layout_of(const OpCall& call) {
  int64_t width = element_count(row_shape(call));
  int64_t rows = element_count(llvm::ArrayRef<int64_t>(call.operand(0).shape).take_front(call.attrs.get_int("axis")));
  return {.stat_step = width, .stats = rows, .param_step = 1, .params = width};
}

// One statistic a row: x's shape with 1 for every normalised dimension.
Type stat_type(const OpCall& call) {
  Type type(stat_dtype(call.operand(0).dtype), call.operand(0).shape);
  for (int64_t d = call.attrs.get_int("axis"); d < type.rank(); ++d) type.shape[d] = 1;
  return type;
}

Status check_forward(const OpCall& call) {
  if (Status s = check_attrs(call.attrs, forward_attrs)) return s;
  if (Status s = need_float(call, 0)) return s;
  if (Status s = need_axis(call.attrs, "axis", call.operand(0).rank())) return s;
  return need_norm_parameters(call, row_shape(call));
}

// Operands from 2 to scale_operand are statistics; behind the scale comes what is added to dx.
Result<Types> infer_gradient(const OpCall& call, size_t scale_operand) {
  if (Status s = check_attrs(call.attrs, gradient_attrs)) return s;
  if (Status s = need_axis(call.attrs, "axis", call.operand(0).rank())) return s;
  for (size_t i = 2; i < scale_operand; ++i)
    if (Status s = need_type(call, i, stat_type(call))) return s;
  if (Status s = need_type(call, scale_operand + 1, call.operand(0))) return s;
  return norm_gradient_types(call, scale_operand, row_shape(call));
}

void store_gradients(const OpCall& call, NormGradients gradients, const std::vector<double>& addend,
                     llvm::ArrayRef<TensorView> results) {
  for (size_t i = 0; i < addend.size(); ++i) gradients.dx[i] += addend[i];
  store_norm_gradients(call, gradients, results);
}

Attrs axis_only(const Attrs& attrs) { return {{"axis", attrs.get_int("axis")}}; }

Result<Types> infer_layer_norm(const OpCall& call) {
  if (Status s = check_forward(call)) return s;
  return Types{call.operand(0), stat_type(call), stat_type(call)};
}

Status layer_norm_gradient(GradContext& g) {
  if (Status s = need_only_first_gradient(g, "the statistics")) return s;
  add_norm_gradients(g, "layer_norm_grad", {g.result(1), g.result(2)}, axis_only(g.attrs()));
  return Status::success();
}

Status layer_norm_reference(const OpCall& call, llvm::ArrayRef<TensorView> operands,
                            llvm::ArrayRef<TensorView> results) {
  NormLayout layout = layout_of(call);
  std::vector<double> x = load(operands, 0), scale = load(operands, 1);
  Moments moments = moments_of(x, layout);
  std::vector<double> rstd = inverse_deviation(moments.var, call.attrs.get_float("eps"));
  store(normalized({x, moments.mean, rstd, scale}, load(operands, 2), layout), results[0]);
  store(moments.mean, results[1]);
  store(rstd, results[2]);
  return Status::success();
}

std::vector<Sample> layer_norm_samples() {
  using namespace samples;
  return {
      {{normal({3, 5}), normal({5}), normal({5})}, {{"axis", int64_t{1}}, {"eps", 1e-5}}},
      {{normal({2, 3, 4}), normal({3, 4})}, {{"axis", int64_t{1}}, {"eps", 1e-3}}},
      {{normal({2, 2, 6}), absent(), normal({6})}, {{"axis", int64_t{2}}, {"eps", 1e-5}}},
      {{normal({2, 3})}, {{"axis", int64_t{0}}, {"eps", 1e-2}}},
      {{normal({3, 5}, DType::BF16), normal({5}), normal({5})}, {{"axis", int64_t{1}}, {"eps", 1e-5}}},
  };
}

Result<Types> infer_layer_norm_grad(const OpCall& call) { return infer_gradient(call, 4); }

Status layer_norm_grad_reference(const OpCall& call, llvm::ArrayRef<TensorView> operands,
                                 llvm::ArrayRef<TensorView> results) {
  std::vector<double> x = load(operands, 0), mean = load(operands, 2), rstd = load(operands, 3);
  std::vector<double> scale = load(operands, 4);
  NormGradients gradients = norm_gradients({x, mean, rstd, scale}, load(operands, 1), layout_of(call));
  store_gradients(call, std::move(gradients), load(operands, 5), results);
  return Status::success();
}

std::vector<Sample> layer_norm_grad_samples() {
  using namespace samples;
  return {
      {{normal({3, 5}), normal({3, 5}), normal({3, 1}), positive({3, 1}), normal({5})},
       {{"axis", int64_t{1}}, {"has_scale", int64_t{1}}, {"has_bias", int64_t{1}}}},
      {{normal({2, 3, 4}), normal({2, 3, 4}), normal({2, 1, 1}), positive({2, 1, 1})},
       {{"axis", int64_t{1}}, {"has_bias", int64_t{1}}}},
      {{normal({2, 4}), normal({2, 4}), normal({2, 1}), positive({2, 1}), normal({4})}, {{"axis", int64_t{1}}}},
      {{normal({3, 5}, DType::BF16), normal({3, 5}, DType::BF16), normal({3, 1}), positive({3, 1}), normal({5})},
       {{"axis", int64_t{1}}, {"has_scale", int64_t{1}}, {"has_bias", int64_t{1}}}},
      {{normal({3, 5}), normal({3, 5}), normal({3, 1}), positive({3, 1}), normal({5}), normal({3, 5})},
       {{"axis", int64_t{1}}, {"has_scale", int64_t{1}}}},
      {{normal({3, 8}, DType::BF16), normal({3, 8}, DType::BF16), normal({3, 1}), positive({3, 1}), absent(),
        normal({3, 8}, DType::BF16)},
       {{"axis", int64_t{1}}}},
  };
}

Result<Types> infer_rms_norm(const OpCall& call) {
  if (Status s = check_forward(call)) return s;
  return Types{call.operand(0), stat_type(call)};
}

Status rms_norm_gradient(GradContext& g) {
  if (Status s = need_only_first_gradient(g, "the statistics")) return s;
  add_norm_gradients(g, "rms_norm_grad", {g.result(1)}, axis_only(g.attrs()));
  return Status::success();
}

Status rms_norm_reference(const OpCall& call, llvm::ArrayRef<TensorView> operands, llvm::ArrayRef<TensorView> results) {
  NormLayout layout = layout_of(call);
  std::vector<double> x = load(operands, 0), scale = load(operands, 1);
  std::vector<double> rstd = inverse_deviation(mean_squares(x, layout), call.attrs.get_float("eps"));
  store(normalized({x, {}, rstd, scale}, {}, layout), results[0]);
  store(rstd, results[1]);
  return Status::success();
}

std::vector<Sample> rms_norm_samples() {
  using namespace samples;
  return {
      {{normal({3, 5}), normal({5})}, {{"axis", int64_t{1}}, {"eps", 1e-5}}},
      {{normal({2, 3, 4}), normal({3, 4})}, {{"axis", int64_t{1}}, {"eps", 1e-3}}},
      {{normal({2, 2, 6})}, {{"axis", int64_t{2}}, {"eps", 1e-5}}},
      {{normal({3, 5}, DType::BF16), normal({5})}, {{"axis", int64_t{1}}, {"eps", 1e-5}}},
  };
}

Result<Types> infer_rms_norm_grad(const OpCall& call) {
  if (call.attrs.has("has_bias")) return model_error("unknown attribute 'has_bias'");
  return infer_gradient(call, 3);
}

Status rms_norm_grad_reference(const OpCall& call, llvm::ArrayRef<TensorView> operands,
                               llvm::ArrayRef<TensorView> results) {
  std::vector<double> x = load(operands, 0), rstd = load(operands, 2), scale = load(operands, 3);
  NormGradients gradients = norm_gradients({x, {}, rstd, scale}, load(operands, 1), layout_of(call));
  store_gradients(call, std::move(gradients), load(operands, 4), results);
  return Status::success();
}

std::vector<Sample> rms_norm_grad_samples() {
  using namespace samples;
  return {
      {{normal({3, 5}), normal({3, 5}), positive({3, 1}), normal({5})},
       {{"axis", int64_t{1}}, {"has_scale", int64_t{1}}}},
      {{normal({2, 3, 4}), normal({2, 3, 4}), positive({2, 1, 1})}, {{"axis", int64_t{1}}}},
      {{normal({3, 5}, DType::BF16), normal({3, 5}, DType::BF16), positive({3, 1}), normal({5})},
       {{"axis", int64_t{1}}, {"has_scale", int64_t{1}}}},
      {{normal({3, 8}), normal({3, 8}), positive({3, 1}), normal({8}), normal({3, 8})},
       {{"axis", int64_t{1}}, {"has_scale", int64_t{1}}}},
  };
}

}  // namespace

constexpr InPlace layer_norm_grad_over_addend[] = {{0, 5}}, rms_norm_grad_over_addend[] = {{0, 4}};

constinit const OpDef op_layer_norm{
    .name = "layer_norm",
    .summary = "y, mean, rstd: x normalised over the dimensions from {axis} on with {eps}, times scale plus bias",
    .min_operands = 1,
    .max_operands = 3,
    .infer = infer_layer_norm,
    .gradient = Gradient::rule(layer_norm_gradient),
    .precision = Precision::Follow,
    .recompute = Recompute::Normal,
    .chunk = chunk_across_axis,
    .reference = layer_norm_reference,
    .samples = layer_norm_samples,
};

constinit const OpDef op_layer_norm_grad{
    .name = "layer_norm_grad",
    .summary =
        "dx, plus an addend when given, then dscale with {has_scale} and dbias with {has_bias}, from x, dy, mean, "
        "rstd, "
        "scale and the addend; {axis}",
    .min_operands = 4,
    .max_operands = 6,
    .infer = infer_layer_norm_grad,
    .gradient = no_second_derivative,
    .precision = Precision::Follow,
    .recompute = Recompute::Normal,
    .addend = 5,
    .in_place = layer_norm_grad_over_addend,
    .reference = layer_norm_grad_reference,
    .samples = layer_norm_grad_samples,
};

constinit const OpDef op_rms_norm{
    .name = "rms_norm",
    .summary = "y, rstd: x over its root mean square in the dimensions from {axis} on with {eps}, times scale",
    .min_operands = 1,
    .max_operands = 2,
    .infer = infer_rms_norm,
    .gradient = Gradient::rule(rms_norm_gradient),
    .precision = Precision::Follow,
    .recompute = Recompute::Normal,
    .chunk = chunk_across_axis,
    .reference = rms_norm_reference,
    .samples = rms_norm_samples,
};

constinit const OpDef op_rms_norm_grad{
    .name = "rms_norm_grad",
    .summary =
        "dx, plus an addend when given, then dscale with {has_scale}, from x, dy, rstd, scale and the addend; {axis}",
    .min_operands = 3,
    .max_operands = 5,
    .infer = infer_rms_norm_grad,
    .gradient = no_second_derivative,
    .precision = Precision::Follow,
    .recompute = Recompute::Normal,
    .addend = 4,
    .in_place = rms_norm_grad_over_addend,
    .reference = rms_norm_grad_reference,
    .samples = rms_norm_grad_samples,
};

}  // namespace plimsoll
