#include "ir/ops/norm/norm_batch.h"

#include "ir/ops/common/expr.h"

#include <cmath>

// Batch norm normalises each channel by the statistics of the whole batch (batch_norm) or by
// stored ones (batch_norm_inference); running_update keeps the stored ones up to date. What a
// batch_norm normalises may have a residual added and go through a ReLU before it is written, or through a SiLU alone.

namespace plimsoll {

NormLayout channel_layout(const OpCall& call) {
  const Shape shape = channels_first(call.attrs, call["x"].shape);
  int64_t inner = is_channels_last(call.attrs) ? 1 : element_count(llvm::ArrayRef<int64_t>(shape).drop_front(2));
  return {.stat_step = inner, .stats = shape[1], .param_step = inner, .params = shape[1]};
}

Shape channel_shape(const OpCall& call) {
  const Shape& shape = call["x"].shape;
  return {shape[channel_dim(call.attrs, shape.size())]};
}

bool has_relu(const Attrs& attrs) { return attrs.get_string("activation", "none") == "relu"; }

bool has_silu(const Attrs& attrs) { return attrs.get_string("activation", "none") == "silu"; }

Status check_batch_norm_activation(const OpCall& call) {
  if (Status s = need_choice(call.attrs, "activation", {"none", "relu", "silu"})) return s;
  if (has_silu(call.attrs) && call.has("residual")) return model_error("a SiLU stands behind no residual");
  return Status::success();
}

void activate_batch_norm(const Attrs& attrs, std::vector<double>& y) {
  for (double& each : y) {
    if (has_relu(attrs)) each = each < 0 ? 0 : each;
    if (has_silu(attrs)) each = each / (1 + std::exp(-each));
  }
}

Status check_batch_norm_input(const OpCall& call) {
  if (Status s = need_float(call, "x")) return s;
  return need_min_rank(call, "x", 2);
}

Status check_batch_norm_gradient(const OpCall& call) {
  if (Status s = check_batch_norm_backward(call)) return s;
  return need_type(call, "dy", call["x"]);
}

Status check_batch_norm_backward(const OpCall& call) {
  if (Status s = check_batch_norm_input(call)) return s;
  const Type& x = call["x"];
  if (Status s = need_float(call, "scale")) return s;
  if (Status s = need_shape(call, "scale", channel_shape(call))) return s;
  for (llvm::StringRef i : {"mean", "var"})
    if (Status s = need_type(call, i, Type(stat_dtype(x.dtype), channel_shape(call)))) return s;
  if (Status s = need_type(call, "bias", call["scale"])) return s;
  for (llvm::StringRef i : {"y", "more_dy"})
    if (Status s = need_type(call, i, x)) return s;
  if (call.has("bias") && call.has("y")) return model_error("bias and y both say where a ReLU let nothing through");
  if (Status s = need_choice(call.attrs, "activation", {"relu", "silu"})) return s;
  if (has_silu(call.attrs) && !call.has("bias")) return model_error("the slope of a SiLU needs bias");
  if (call.has("more_dy") && !call.has("y")) return model_error("a second dy needs y");
  return Status::success();
}

double passed_share(const Attrs& attrs, double z) {
  if (!has_silu(attrs)) return z > 0 ? 1 : 0;
  const double sigmoid = 1 / (1 + std::exp(-z));
  return sigmoid * (1 + z * (1 - sigmoid));
}

std::vector<double> passed_gradient(const ReferenceCall& call, const NormOperands& in, std::vector<double> dy) {
  std::vector<double> more_dy = call.load("more_dy"), y(in.x.size(), 1);
  if (call.has("bias")) y = normalized(in, call.load("bias"), channel_layout(call));
  if (call.has("y")) y = call.load("y");
  for (size_t e = 0; e < more_dy.size(); ++e) dy[e] += more_dy[e];
  for (size_t e = 0; e < dy.size(); ++e) dy[e] *= passed_share(call.attrs, y[e]);
  return dy;
}

namespace {

Result<Types> infer_batch_norm(const OpCall& call) {
  if (Status s = check_batch_norm_input(call)) return s;
  if (Status s = check_batch_norm_activation(call)) return s;
  if (Status s = need_norm_parameters(call, channel_shape(call))) return s;
  if (Status s = need_type(call, "residual", call["x"])) return s;
  Type statistic(stat_dtype(call["x"].dtype), channel_shape(call));
  return Types{call["x"], statistic, statistic};
}

// The gradient finds where the ReLU let nothing through, or the SiLU's slope, from x; behind a residual, from y.
Status batch_norm_gradient(GradContext& g) {
  if (Status s = need_only_first_gradient(g, "the statistics")) return s;
  const bool relu = has_relu(g.attrs()), silu = has_silu(g.attrs()), residual = g.has("residual");
  Attrs attrs{{"eps", g.attrs().get_float("eps")}};
  if (silu) attrs.set("activation", std::string("silu"));
  if (is_channels_last(g.attrs())) attrs.set("channels_last", 1);
  llvm::SmallVector<ValueId, 7> operands{g["x"], g.out_grad(), g["scale"], g.result("mean"), g.result("var")};
  if (relu && residual)
    operands.append({ValueId::None, g.result("y")});
  else if (relu || silu)
    operands.push_back(g["bias"]);
  llvm::SmallVector<ValueId, 4> gradients = g.b.emit_all("batch_norm_grad", operands, std::move(attrs));
  for (size_t i : {g.index("x"), g.index("scale"), g.index("bias")})
    if (g.wants(i)) g.add(i, gradients[i]);
  if (g.wants("residual")) g.add("residual", relu ? gradients[3] : g.out_grad());
  return Status::success();
}

void batch_norm_reference(const ReferenceCall& call) {
  NormLayout layout = channel_layout(call);
  std::vector<double> x = call.load("x"), scale = call.load("scale");
  NormStatistics moments = moments_of(x, layout);
  std::vector<double> rstd = inverse_deviation(moments.var, call.get_float("eps"));
  std::vector<double> y = normalized({x, moments.mean, rstd, scale}, call.load("bias"), layout);
  const std::vector<double> residual = call.load("residual");
  for (size_t e = 0; e < residual.size(); ++e) y[e] += residual[e];
  activate_batch_norm(call.attrs, y);
  call.store(y, "y");
  call.store(moments.mean, "mean");
  call.store(moments.var, "var");
}

std::vector<Sample> batch_norm_samples() {
  using namespace samples;
  return {
      {{normal({4, 3, 2}), normal({3}), normal({3})}, {{"eps", 1e-5}}},
      {{normal({2, 2, 3, 2}), normal({2}), normal({2})}, {{"eps", 1e-3}}},
      {{normal({6, 3}), normal({3}), normal({3})}, {{"eps", 1e-5}}},
      {{normal({4, 3, 2}, DType::BF16), normal({3}), normal({3})}, {{"eps", 1e-5}}},
      {{normal({2, 3, 2, 3}), normal({3}), normal({3})}, {{"eps", 1e-5}, {"channels_last", 1}}},
      {{normal({3, 2, 4}, DType::BF16), normal({4}), normal({4})}, {{"eps", 1e-5}, {"channels_last", 1}}},
      {{normal({5, 3, 8}), normal({8}), normal({8})}, {{"eps", 1e-5}, {"channels_last", 1}}},
      {{normal({4, 3, 2}), normal({3}), normal({3}), normal({4, 3, 2})}, {{"eps", 1e-5}}},
      {{normal({4, 3, 2}), normal({3}), normal({3})}, {{"eps", 1e-5}, {"activation", "relu"}}},
      {{normal({5, 3, 8}), normal({8}), normal({8})}, {{"eps", 1e-5}, {"channels_last", 1}, {"activation", "relu"}}},
      {{normal({2, 3, 4}), normal({3}), normal({3}), normal({2, 3, 4})}, {{"eps", 1e-5}, {"activation", "relu"}}},
      {{normal({5, 3, 8}, DType::BF16), normal({8}), normal({8}), normal({5, 3, 8}, DType::BF16)},
       {{"eps", 1e-5}, {"channels_last", 1}, {"activation", "relu"}}},
      {{normal({4, 3, 2}), normal({3}), normal({3})}, {{"eps", 1e-5}, {"activation", "silu"}}},
      {{normal({5, 3, 8}, DType::BF16), normal({8}), normal({8})},
       {{"eps", 1e-5}, {"channels_last", 1}, {"activation", "silu"}}},
  };
}

Result<Types> infer_batch_norm_grad(const OpCall& call) {
  if (Status s = check_batch_norm_gradient(call)) return s;
  Types types{call["x"], call["scale"], call["scale"]};
  if (call.has("y")) types.push_back(call["x"]);
  return types;
}

void batch_norm_grad_reference(const ReferenceCall& call) {
  std::vector<double> x = call.load("x"), scale = call.load("scale"), mean = call.load("mean");
  std::vector<double> rstd = inverse_deviation(call.load("var"), call.get_float("eps"));
  const std::vector<double> dy = passed_gradient(call, {x, mean, rstd, scale}, call.load("dy"));
  NormGradients gradients = norm_gradients({x, mean, rstd, scale}, dy, channel_layout(call));
  if (call.has("y")) call.store(dy, "dresidual");
  call.store(gradients.dx, "dx");
  call.store(gradients.dscale, "dscale");
  call.store(gradients.dbias, "dbias");
}

std::vector<Sample> batch_norm_grad_samples() {
  using namespace samples;
  return {
      {{normal({4, 3, 2}), normal({4, 3, 2}), normal({3}), normal({3}), positive({3})}, {{"eps", 1e-5}}},
      {{normal({4, 3, 2}, DType::BF16), normal({4, 3, 2}, DType::BF16), normal({3}), normal({3}), positive({3})},
       {{"eps", 1e-5}}},
      {{normal({4, 2, 3}), normal({4, 2, 3}), normal({3}), normal({3}), positive({3})},
       {{"eps", 1e-5}, {"channels_last", 1}}},
      {{normal({5, 3, 8}), normal({5, 3, 8}), normal({8}), normal({8}), positive({8})},
       {{"eps", 1e-5}, {"channels_last", 1}}},
      {{normal({4, 3, 2}), normal({4, 3, 2}), normal({3}), normal({3}), positive({3}), normal({3})}, {{"eps", 1e-5}}},
      {{normal({5, 3, 8}), normal({5, 3, 8}), normal({8}), normal({8}), positive({8}), normal({8})},
       {{"eps", 1e-5}, {"channels_last", 1}}},
      {{normal({4, 3, 2}), normal({4, 3, 2}), normal({3}), normal({3}), positive({3}), absent(), normal({4, 3, 2})},
       {{"eps", 1e-5}}},
      {{normal({5, 3, 8}), normal({5, 3, 8}), normal({8}), normal({8}), positive({8}), absent(), normal({5, 3, 8}),
        normal({5, 3, 8})},
       {{"eps", 1e-5}, {"channels_last", 1}}},
      {{normal({4, 3, 2}, DType::BF16), normal({4, 3, 2}, DType::BF16), normal({3}), normal({3}), positive({3}),
        absent(), normal({4, 3, 2}, DType::BF16), normal({4, 3, 2}, DType::BF16)},
       {{"eps", 1e-5}}},
      {{normal({4, 3, 2}), normal({4, 3, 2}), normal({3}), normal({3}), positive({3}), normal({3})},
       {{"eps", 1e-5}, {"activation", "silu"}}},
      {{normal({5, 3, 8}, DType::BF16), normal({5, 3, 8}, DType::BF16), normal({8}), normal({8}), positive({8}),
        normal({8})},
       {{"eps", 1e-5}, {"channels_last", 1}, {"activation", "silu"}}}};
}

Result<Types> infer_batch_norm_inference(const OpCall& call) {
  if (Status s = check_batch_norm_input(call)) return s;
  if (Status s = need_norm_parameters(call, channel_shape(call))) return s;
  for (llvm::StringRef i : {"mean", "var"}) {
    if (Status s = need_float(call, i)) return s;
    if (Status s = need_shape(call, i, channel_shape(call))) return s;
  }
  return Types{call["x"]};
}

// The statistics are constants here, so y is an affine function of x and dx needs no x.
Status batch_norm_inference_gradient(GradContext& g) {
  for (const PortKey statistic : {PortKey("mean"), PortKey("var")})
    if (g.wants(statistic)) return g.cannot_train(statistic, "the statistics of batch_norm_inference");
  const Type x_type = g.type(g["x"]), parameter = g.type(g["scale"]);
  DType wide = stat_dtype(x_type.dtype);
  Shape along_channels(x_type.shape.size(), 1);
  const size_t channels = channel_dim(g.attrs(), along_channels.size());
  along_channels[channels] = x_type.shape[channels];
  Expr dy = out_grad(g);
  auto rstd = [&] { return apply("rsqrt", cast(operand(g, "var"), wide) + g.attrs().get_float("eps")); };
  if (g.wants("x")) {
    Expr factor = cast(operand(g, "scale"), wide) * rstd();
    g.add("x", dy * reshape(cast(factor, x_type.dtype), along_channels));
  }
  if (g.wants("scale")) {
    Expr centered = cast(operand(g, "x"), wide) - reshape(cast(operand(g, "mean"), wide), along_channels);
    Expr sum{&g.b, channel_sum(g.b, cast(dy, wide) * centered, g.attrs())};
    g.add("scale", cast(sum * rstd(), parameter.dtype));
  }
  if (g.wants("bias")) g.add("bias", g.b.cast(channel_sum(g.b, cast(dy, wide), g.attrs()), parameter.dtype));
  return Status::success();
}

void batch_norm_inference_reference(const ReferenceCall& call) {
  std::vector<double> x = call.load("x"), scale = call.load("scale"), mean = call.load("mean");
  std::vector<double> rstd = inverse_deviation(call.load("var"), call.get_float("eps"));
  call.store(normalized({x, mean, rstd, scale}, call.load("bias"), channel_layout(call)), "y");
}

std::vector<Sample> batch_norm_inference_samples() {
  using namespace samples;
  return {
      {{normal({4, 3, 2}), normal({3}), normal({3}), fixed(normal({3})), fixed(positive({3}))}, {{"eps", 1e-5}}},
      {{normal({2, 2, 2, 3}), normal({2}), normal({2}), fixed(normal({2})), fixed(positive({2}))}, {{"eps", 1e-3}}},
      {{normal({4, 3, 2}, DType::BF16), normal({3}), normal({3}), fixed(normal({3})), fixed(positive({3}))},
       {{"eps", 1e-5}}},
      {{normal({2, 2, 3, 3}), normal({3}), normal({3}), fixed(normal({3})), fixed(positive({3}))},
       {{"eps", 1e-5}, {"channels_last", 1}}},
      {{normal({5, 3, 8}), normal({8}), normal({8}), fixed(normal({8})), fixed(positive({8}))},
       {{"eps", 1e-5}, {"channels_last", 1}}},
  };
}

Result<Types> infer_running_update(const OpCall& call) {
  for (llvm::StringRef i : {"running", "batch"})
    if (Status s = need_float(call, i)) return s;
  if (Status s = need_shape(call, "batch", call["running"].shape)) return s;
  if (call.attrs.has("count") && call.get_int("count") < 1)
    return model_error("count is " + llvm::Twine(call.get_int("count")) + ", it must be at least 1");
  return Types{call["running"]};
}

void running_update_reference(const ReferenceCall& call) {
  double momentum = call.get_float("momentum"), share = 1 - momentum;
  // A biased variance over `count` elements becomes the unbiased estimate; one element has no estimate to correct.
  auto count = static_cast<double>(call.get_int("count"));
  if (count > 1) share *= count / (count - 1);
  std::vector<double> running = call.load("running"), batch = call.load("batch");
  for (size_t c = 0; c < running.size(); ++c) running[c] = running[c] * momentum + batch[c] * share;
  call.store(running, "running");
}

std::vector<Sample> running_update_samples() {
  using namespace samples;
  return {
      {{normal({3}), normal({3})}, {{"momentum", 0.9}}},
      {{positive({4}), positive({4})}, {{"momentum", 0.8}, {"count", 6}}},
  };
}

}  // namespace

constinit const OpDef op_batch_norm{
    .name = "batch_norm",
    .summary =
        "y, mean[C], var[C]: x[N, C, ...] normalised by the batch's own biased statistics with {eps}, times "
        "scale[C] plus bias[C], plus a residual where there is one, through {activation=none|relu}, or without "
        "one through {activation=silu}; {channels_last}",
    .operands = {"x", "scale", "bias", "residual?"},
    .results = {"y", "mean", "var"},
    .attrs = {eps_attr, channels_last_attr, {"activation", "none"}},
    .infer = infer_batch_norm,
    .gradient = Gradient::rule(batch_norm_gradient),
    .dim_order = DimOrder::ChannelsLast,
    .in_place = {{"y", "residual"}, {"y", "x"}},
    .across_ranks = batch_norm_across_ranks,
    .reference = batch_norm_reference,
    .samples = batch_norm_samples,
};

constinit const OpDef op_batch_norm_grad{
    .name = "batch_norm_grad",
    .summary =
        "dx, dscale, dbias from x, dy, scale, mean and var; behind {activation=relu|silu} also from bias; behind a "
        "residual and a ReLU from y, or y and a second dy to be added, with the residual's gradient; {eps, "
        "channels_last}",
    .operands = {"x", "dy", "scale", "mean", "var", "bias?", "y?", "more_dy?"},
    .results = {"dx", "dscale", "dbias", "dresidual?y"},
    .attrs = {eps_attr, channels_last_attr, {"activation", "relu"}},
    .infer = infer_batch_norm_grad,
    .gradient = no_second_derivative,
    .in_place = {{"dx", "x"}, {"dx", "dy"}, {"dresidual", "dy"}, {"dresidual", "more_dy"}},
    .linear = {"sum(dy) + sum(more_dy)", "sum(dy) + sum(more_dy)"},
    .reference = batch_norm_grad_reference,
    .samples = batch_norm_grad_samples,
};

constinit const OpDef op_batch_norm_inference{
    .name = "batch_norm_inference",
    .summary = "(x - mean[C]) / sqrt(var[C] + {eps}) * scale[C] + bias[C] for x[N, C, ...]; {channels_last}",
    .operands = {"x", "scale", "bias", "mean", "var"},
    .attrs = {eps_attr, channels_last_attr},
    .infer = infer_batch_norm_inference,
    .gradient = Gradient::rule(batch_norm_inference_gradient),
    .dim_order = DimOrder::ChannelsLast,
    .in_place = {{"y", "x"}},
    .chunk = chunk_of_first,
    .linear = {"x * scale + mean * scale + bias"},
    .reference = batch_norm_inference_reference,
    .samples = batch_norm_inference_samples,
};

constinit const OpDef op_running_update{
    .name = "running_update",
    .summary =
        "running * {momentum} + batch * (1 - {momentum}); with {count}, batch is a variance over that many "
        "elements and enters unbiased",
    .operands = {"running", "batch"},
    .results = {"running"},
    .attrs = {{"momentum", AttrKind::Float}, {"count", 1}},
    .infer = infer_running_update,
    .gradient = Gradient::zero(),
    .precision = Precision::Full,
    .repeatable = false,
    .in_place = {{"running", "running"}},
    .linear = {"running + batch"},
    .reference = running_update_reference,
    .samples = running_update_samples,
};

}  // namespace plimsoll
