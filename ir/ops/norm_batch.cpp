#include "ir/ops/expr.h"
#include "ir/ops/norm.h"

// Batch norm normalises each channel by the statistics of the whole batch (batch_norm) or by
// stored ones (batch_norm_inference); running_update keeps the stored ones up to date.

namespace plimsoll {
namespace {

constexpr AttrRule norm_attrs[] = {eps_rule, channels_last_rule};

NormLayout layout_of(const OpCall& call) {
  const Shape shape = channels_first(call.attrs, call.operand(0).shape);
  int64_t inner = is_channels_last(call.attrs) ? 1 : element_count(llvm::ArrayRef<int64_t>(shape).drop_front(2));
  return {.stat_step = inner, .stats = shape[1], .param_step = inner, .params = shape[1]};
}

Shape channels_of(const OpCall& call) {
  const Shape& shape = call.operand(0).shape;
  return {shape[channel_dim(call.attrs, shape.size())]};
}

Status check_input(const OpCall& call) {
  if (Status s = check_attrs(call.attrs, norm_attrs)) return s;
  if (Status s = need_float(call, 0)) return s;
  return need_min_rank(call, 0, 2);
}

Result<Types> infer_batch_norm(const OpCall& call) {
  if (Status s = check_input(call)) return s;
  if (Status s = need_norm_parameters(call, channels_of(call))) return s;
  Type statistic(stat_dtype(call.operand(0).dtype), channels_of(call));
  return Types{call.operand(0), statistic, statistic};
}

Status batch_norm_gradient(GradContext& g) {
  if (Status s = need_only_first_gradient(g, "the statistics")) return s;
  llvm::SmallVector<ValueId, 4> gradients =
      g.b.emit_all("batch_norm_grad", {g.operand(0), g.out_grad(), g.operand(1), g.result(1), g.result(2)}, g.attrs());
  for (size_t i = 0; i < 3; ++i)
    if (g.wants(i)) g.add(i, gradients[i]);
  return Status::success();
}

Status batch_norm_reference(const OpCall& call, llvm::ArrayRef<TensorView> operands,
                            llvm::ArrayRef<TensorView> results) {
  NormLayout layout = layout_of(call);
  std::vector<double> x = load(operands, 0), scale = load(operands, 1);
  Moments moments = moments_of(x, layout);
  std::vector<double> rstd = inverse_deviation(moments.var, call.attrs.get_float("eps"));
  store(normalized({x, moments.mean, rstd, scale}, load(operands, 2), layout), results[0]);
  store(moments.mean, results[1]);
  store(moments.var, results[2]);
  return Status::success();
}

std::vector<Sample> batch_norm_samples() {
  using namespace samples;
  return {
      {{normal({4, 3, 2}), normal({3}), normal({3})}, {{"eps", 1e-5}}},
      {{normal({2, 2, 3, 2}), normal({2}), normal({2})}, {{"eps", 1e-3}}},
      {{normal({6, 3}), normal({3}), normal({3})}, {{"eps", 1e-5}}},
      {{normal({4, 3, 2}, DType::BF16), normal({3}), normal({3})}, {{"eps", 1e-5}}},
      {{normal({2, 3, 2, 3}), normal({3}), normal({3})}, {{"eps", 1e-5}, {"channels_last", int64_t{1}}}},
      {{normal({3, 2, 4}, DType::BF16), normal({4}), normal({4})}, {{"eps", 1e-5}, {"channels_last", int64_t{1}}}},
      {{normal({5, 3, 8}), normal({8}), normal({8})}, {{"eps", 1e-5}, {"channels_last", int64_t{1}}}},
  };
}

Result<Types> infer_batch_norm_grad(const OpCall& call) {
  if (Status s = check_input(call)) return s;
  const Type& x = call.operand(0);
  if (Status s = need_type(call, 1, x)) return s;
  if (Status s = need_float(call, 2)) return s;
  if (Status s = need_shape(call, 2, channels_of(call))) return s;
  for (size_t i : {3, 4})
    if (Status s = need_type(call, i, Type(stat_dtype(x.dtype), channels_of(call)))) return s;
  return Types{x, call.operand(2), call.operand(2)};
}

Status batch_norm_grad_reference(const OpCall& call, llvm::ArrayRef<TensorView> operands,
                                 llvm::ArrayRef<TensorView> results) {
  std::vector<double> x = load(operands, 0), scale = load(operands, 2), mean = load(operands, 3);
  std::vector<double> rstd = inverse_deviation(load(operands, 4), call.attrs.get_float("eps"));
  NormGradients gradients = norm_gradients({x, mean, rstd, scale}, load(operands, 1), layout_of(call));
  store(gradients.dx, results[0]);
  store(gradients.dscale, results[1]);
  store(gradients.dbias, results[2]);
  return Status::success();
}

std::vector<Sample> batch_norm_grad_samples() {
  using namespace samples;
  return {{{normal({4, 3, 2}), normal({4, 3, 2}), normal({3}), normal({3}), positive({3})}, {{"eps", 1e-5}}},
          {{normal({4, 3, 2}, DType::BF16), normal({4, 3, 2}, DType::BF16), normal({3}), normal({3}), positive({3})},
           {{"eps", 1e-5}}},
          {{normal({4, 2, 3}), normal({4, 2, 3}), normal({3}), normal({3}), positive({3})},
           {{"eps", 1e-5}, {"channels_last", int64_t{1}}}},
          {{normal({5, 3, 8}), normal({5, 3, 8}), normal({8}), normal({8}), positive({8})},
           {{"eps", 1e-5}, {"channels_last", int64_t{1}}}}};
}

Result<Types> infer_batch_norm_inference(const OpCall& call) {
  if (Status s = check_input(call)) return s;
  if (Status s = need_norm_parameters(call, channels_of(call))) return s;
  for (size_t i : {3, 4}) {
    if (Status s = need_float(call, i)) return s;
    if (Status s = need_shape(call, i, channels_of(call))) return s;
  }
  return Types{call.operand(0)};
}

// The statistics are constants here, so y is an affine function of x and dx needs no x.
Status batch_norm_inference_gradient(GradContext& g) {
  if (g.wants(3) || g.wants(4)) return model_error("the statistics of batch_norm_inference cannot be trained");
  const Type x_type = g.type(g.operand(0)), parameter = g.type(g.operand(1));
  DType wide = stat_dtype(x_type.dtype);
  Shape along_channels(x_type.shape.size(), 1);
  const size_t channels = channel_dim(g.attrs(), along_channels.size());
  along_channels[channels] = x_type.shape[channels];
  Expr dy = out_grad(g);
  auto rstd = [&] { return apply("rsqrt", cast(operand(g, 4), wide) + g.attrs().get_float("eps")); };
  if (g.wants(0)) {
    Expr factor = cast(operand(g, 1), wide) * rstd();
    g.add(0, dy * reshape(cast(factor, x_type.dtype), along_channels));
  }
  if (g.wants(1)) {
    Expr centered = cast(operand(g, 0), wide) - reshape(cast(operand(g, 3), wide), along_channels);
    Expr sum{&g.b, channel_sum(g.b, cast(dy, wide) * centered, g.attrs())};
    g.add(1, cast(sum * rstd(), parameter.dtype));
  }
  if (g.wants(2)) g.add(2, g.b.cast(channel_sum(g.b, cast(dy, wide), g.attrs()), parameter.dtype));
  return Status::success();
}

Status batch_norm_inference_reference(const OpCall& call, llvm::ArrayRef<TensorView> operands,
                                      llvm::ArrayRef<TensorView> results) {
  std::vector<double> x = load(operands, 0), scale = load(operands, 1), mean = load(operands, 3);
  std::vector<double> rstd = inverse_deviation(load(operands, 4), call.attrs.get_float("eps"));
  store(normalized({x, mean, rstd, scale}, load(operands, 2), layout_of(call)), results[0]);
  return Status::success();
}

std::vector<Sample> batch_norm_inference_samples() {
  using namespace samples;
  return {
      {{normal({4, 3, 2}), normal({3}), normal({3}), fixed(normal({3})), fixed(positive({3}))}, {{"eps", 1e-5}}},
      {{normal({2, 2, 2, 3}), normal({2}), normal({2}), fixed(normal({2})), fixed(positive({2}))}, {{"eps", 1e-3}}},
      {{normal({4, 3, 2}, DType::BF16), normal({3}), normal({3}), fixed(normal({3})), fixed(positive({3}))},
       {{"eps", 1e-5}}},
      {{normal({2, 2, 3, 3}), normal({3}), normal({3}), fixed(normal({3})), fixed(positive({3}))},
       {{"eps", 1e-5}, {"channels_last", int64_t{1}}}},
      {{normal({5, 3, 8}), normal({8}), normal({8}), fixed(normal({8})), fixed(positive({8}))},
       {{"eps", 1e-5}, {"channels_last", int64_t{1}}}},
  };
}

constexpr AttrRule running_attrs[] = {{"momentum", AttrKind::Float}, {"count", AttrKind::Int, AttrNeed::Optional}};

Result<Types> infer_running_update(const OpCall& call) {
  if (Status s = check_attrs(call.attrs, running_attrs)) return s;
  for (size_t i : {0, 1})
    if (Status s = need_float(call, i)) return s;
  if (Status s = need_shape(call, 1, call.operand(0).shape)) return s;
  if (call.attrs.has("count") && call.attrs.get_int("count") < 1)
    return model_error("count is " + llvm::Twine(call.attrs.get_int("count")) + ", it must be at least 1");
  return Types{call.operand(0)};
}

Status running_update_reference(const OpCall& call, llvm::ArrayRef<TensorView> operands,
                                llvm::ArrayRef<TensorView> results) {
  double momentum = call.attrs.get_float("momentum"), share = 1 - momentum;
  // A biased variance over `count` elements becomes the unbiased estimate; one element has no estimate to correct.
  auto count = static_cast<double>(call.attrs.get_int("count", 1));
  if (count > 1) share *= count / (count - 1);
  std::vector<double> running = load(operands, 0), batch = load(operands, 1);
  for (size_t c = 0; c < running.size(); ++c) running[c] = running[c] * momentum + batch[c] * share;
  store(running, results[0]);
  return Status::success();
}

std::vector<Sample> running_update_samples() {
  using namespace samples;
  return {
      {{normal({3}), normal({3})}, {{"momentum", 0.9}}},
      {{positive({4}), positive({4})}, {{"momentum", 0.8}, {"count", int64_t{6}}}},
  };
}

}  // namespace

constinit const OpDef op_batch_norm{
    .name = "batch_norm",
    .summary = "y, mean[C], var[C]: x[N, C, ...] normalised by the batch's own biased statistics with {eps}, times "
               "scale[C] plus bias[C]; {channels_last}",
    .min_operands = 3,
    .max_operands = 3,
    .infer = infer_batch_norm,
    .gradient = Gradient::rule(batch_norm_gradient),
    .precision = Precision::Follow,
    .recompute = Recompute::Normal,
    .reference = batch_norm_reference,
    .samples = batch_norm_samples,
};

constinit const OpDef op_batch_norm_grad{
    .name = "batch_norm_grad",
    .summary = "dx, dscale, dbias from x, dy, scale, mean and var; {eps, channels_last}",
    .min_operands = 5,
    .max_operands = 5,
    .infer = infer_batch_norm_grad,
    .gradient = no_second_derivative,
    .precision = Precision::Follow,
    .recompute = Recompute::Normal,
    .reference = batch_norm_grad_reference,
    .samples = batch_norm_grad_samples,
};

constinit const OpDef op_batch_norm_inference{
    .name = "batch_norm_inference",
    .summary = "(x - mean[C]) / sqrt(var[C] + {eps}) * scale[C] + bias[C] for x[N, C, ...]; {channels_last}",
    .min_operands = 5,
    .max_operands = 5,
    .infer = infer_batch_norm_inference,
    .gradient = Gradient::rule(batch_norm_inference_gradient),
    .precision = Precision::Follow,
    .recompute = Recompute::Cheap,
    .in_place = over_first,
    .reference = batch_norm_inference_reference,
    .samples = batch_norm_inference_samples,
};

constinit const OpDef op_running_update{
    .name = "running_update",
    .summary = "running * {momentum} + batch * (1 - {momentum}); with {count}, batch is a variance over that many "
               "elements and enters unbiased",
    .min_operands = 2,
    .max_operands = 2,
    .infer = infer_running_update,
    .gradient = Gradient::zero(),
    .precision = Precision::Full,
    .recompute = Recompute::Never,
    .in_place = over_first,
    .reference = running_update_reference,
    .samples = running_update_samples,
};

}  // namespace plimsoll
