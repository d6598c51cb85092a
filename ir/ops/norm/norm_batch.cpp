#include "ir/ops/common/expr.h"
#include "ir/ops/norm/norm.h"

// Batch norm normalises each channel by the statistics of the whole batch (batch_norm) or by
// stored ones (batch_norm_inference); running_update keeps the stored ones up to date. What a
// batch_norm normalises may have a residual added and go through a ReLU before it is written.

namespace plimsoll {
namespace {

constexpr AttrRule norm_attrs[] = {eps_rule, channels_last_rule};
constexpr AttrRule training_attrs[] = {
    eps_rule, channels_last_rule, {"activation", AttrKind::String, AttrNeed::Optional}};

NormLayout layout_of(const OpCall& call) {
  const Shape shape = channels_first(call.attrs, call.operand(0).shape);
  int64_t inner = is_channels_last(call.attrs) ? 1 : element_count(llvm::ArrayRef<int64_t>(shape).drop_front(2));
  return {.stat_step = inner, .stats = shape[1], .param_step = inner, .params = shape[1]};
}

Shape channels_of(const OpCall& call) {
  const Shape& shape = call.operand(0).shape;
  return {shape[channel_dim(call.attrs, shape.size())]};
}

Status check_input(const OpCall& call, llvm::ArrayRef<AttrRule> attrs = norm_attrs) {
  if (Status s = check_attrs(call.attrs, attrs)) return s;
  if (Status s = need_float(call, 0)) return s;
  return need_min_rank(call, 0, 2);
}

bool has_relu(const Attrs& attrs) { return attrs.get_string("activation", "none") == "relu"; }

Result<Types> infer_batch_norm(const OpCall& call) {
  if (Status s = check_input(call, training_attrs)) return s;
  if (Status s = need_choice(call.attrs, "activation", {"none", "relu"})) return s;
  if (Status s = need_norm_parameters(call, channels_of(call))) return s;
  if (call.has(3))
    if (Status s = need_type(call, 3, call.operand(0))) return s;
  Type statistic(stat_dtype(call.operand(0).dtype), channels_of(call));
  return Types{call.operand(0), statistic, statistic};
}

// Where the ReLU let nothing through follows from x; behind a residual, y says it.
Status batch_norm_gradient(GradContext& g) {
  if (Status s = need_only_first_gradient(g, "the statistics")) return s;
  const bool relu = has_relu(g.attrs()), residual = g.has_operand(3);
  Attrs attrs{{"eps", g.attrs().get_float("eps")}};
  if (is_channels_last(g.attrs())) attrs.set("channels_last", int64_t{1});
  llvm::SmallVector<ValueId, 7> operands{g.operand(0), g.out_grad(), g.operand(1), g.result(1), g.result(2)};
  if (relu && residual)
    operands.append({ValueId::None, g.result(0)});
  else if (relu)
    operands.push_back(g.operand(2));
  llvm::SmallVector<ValueId, 4> gradients = g.b.emit_all("batch_norm_grad", operands, std::move(attrs));
  for (size_t i = 0; i < 3; ++i)
    if (g.wants(i)) g.add(i, gradients[i]);
  if (g.wants(3)) g.add(3, relu ? gradients[3] : g.out_grad());
  return Status::success();
}

Status batch_norm_reference(const OpCall& call, llvm::ArrayRef<TensorView> operands,
                            llvm::ArrayRef<TensorView> results) {
  NormLayout layout = layout_of(call);
  std::vector<double> x = load(operands, 0), scale = load(operands, 1);
  Moments moments = moments_of(x, layout);
  std::vector<double> rstd = inverse_deviation(moments.var, call.attrs.get_float("eps"));
  std::vector<double> y = normalized({x, moments.mean, rstd, scale}, load(operands, 2), layout);
  if (call.has(3))
    for (size_t e = 0; e < y.size(); ++e) y[e] += operands[3].get(static_cast<int64_t>(e));
  if (has_relu(call.attrs))
    for (double& each : y) each = each < 0 ? 0 : each;
  store(y, results[0]);
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
      {{normal({4, 3, 2}), normal({3}), normal({3}), normal({4, 3, 2})}, {{"eps", 1e-5}}},
      {{normal({4, 3, 2}), normal({3}), normal({3})}, {{"eps", 1e-5}, {"activation", std::string("relu")}}},
      {{normal({5, 3, 8}), normal({8}), normal({8})},
       {{"eps", 1e-5}, {"channels_last", int64_t{1}}, {"activation", std::string("relu")}}},
      {{normal({2, 3, 4}), normal({3}), normal({3}), normal({2, 3, 4})},
       {{"eps", 1e-5}, {"activation", std::string("relu")}}},
      {{normal({5, 3, 8}, DType::BF16), normal({8}), normal({8}), normal({5, 3, 8}, DType::BF16)},
       {{"eps", 1e-5}, {"channels_last", int64_t{1}}, {"activation", std::string("relu")}}},
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
  if (call.has(5))
    if (Status s = need_type(call, 5, call.operand(2))) return s;
  for (size_t i : {6, 7})
    if (call.has(i))
      if (Status s = need_type(call, i, x)) return s;
  if (call.has(5) && call.has(6)) return model_error("bias and y both say where a ReLU let nothing through");
  if (call.has(7) && !call.has(6)) return model_error("a second dy needs y");
  Types types{x, call.operand(2), call.operand(2)};
  if (call.has(6)) types.push_back(x);
  return types;
}

// Where the ReLU behind the norm let something through; everywhere without one.
std::vector<bool> find_open(const OpCall& call, llvm::ArrayRef<TensorView> operands, const NormOperands& in) {
  std::vector<double> y(in.x.size(), 1);
  if (call.has(5)) y = normalized(in, load(operands, 5), layout_of(call));
  if (call.has(6)) y = load(operands, 6);
  std::vector<bool> open;
  for (double each : y) open.push_back(each > 0);
  return open;
}

Status batch_norm_grad_reference(const OpCall& call, llvm::ArrayRef<TensorView> operands,
                                 llvm::ArrayRef<TensorView> results) {
  std::vector<double> x = load(operands, 0), scale = load(operands, 2), mean = load(operands, 3);
  std::vector<double> rstd = inverse_deviation(load(operands, 4), call.attrs.get_float("eps"));
  std::vector<double> dy = load(operands, 1);
  if (call.has(7))
    for (size_t e = 0; e < dy.size(); ++e) dy[e] += operands[7].get(static_cast<int64_t>(e));
  std::vector<bool> open = find_open(call, operands, {x, mean, rstd, scale});
  for (size_t e = 0; e < dy.size(); ++e)
    if (!open[e]) dy[e] = 0;
  NormGradients gradients = norm_gradients({x, mean, rstd, scale}, dy, layout_of(call));
  if (call.has(6)) store(dy, results[3]);
  store(gradients.dx, results[0]);
  store(gradients.dscale, results[1]);
  store(gradients.dbias, results[2]);
  return Status::success();
}

std::vector<Sample> batch_norm_grad_samples() {
  using namespace samples;
  return {
      {{normal({4, 3, 2}), normal({4, 3, 2}), normal({3}), normal({3}), positive({3})}, {{"eps", 1e-5}}},
      {{normal({4, 3, 2}, DType::BF16), normal({4, 3, 2}, DType::BF16), normal({3}), normal({3}), positive({3})},
       {{"eps", 1e-5}}},
      {{normal({4, 2, 3}), normal({4, 2, 3}), normal({3}), normal({3}), positive({3})},
       {{"eps", 1e-5}, {"channels_last", int64_t{1}}}},
      {{normal({5, 3, 8}), normal({5, 3, 8}), normal({8}), normal({8}), positive({8})},
       {{"eps", 1e-5}, {"channels_last", int64_t{1}}}},
      {{normal({4, 3, 2}), normal({4, 3, 2}), normal({3}), normal({3}), positive({3}), normal({3})}, {{"eps", 1e-5}}},
      {{normal({5, 3, 8}), normal({5, 3, 8}), normal({8}), normal({8}), positive({8}), normal({8})},
       {{"eps", 1e-5}, {"channels_last", int64_t{1}}}},
      {{normal({4, 3, 2}), normal({4, 3, 2}), normal({3}), normal({3}), positive({3}), absent(), normal({4, 3, 2})},
       {{"eps", 1e-5}}},
      {{normal({5, 3, 8}), normal({5, 3, 8}), normal({8}), normal({8}), positive({8}), absent(), normal({5, 3, 8}),
        normal({5, 3, 8})},
       {{"eps", 1e-5}, {"channels_last", int64_t{1}}}},
      {{normal({4, 3, 2}, DType::BF16), normal({4, 3, 2}, DType::BF16), normal({3}), normal({3}), positive({3}),
        absent(), normal({4, 3, 2}, DType::BF16), normal({4, 3, 2}, DType::BF16)},
       {{"eps", 1e-5}}}};
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

// In place: y over the residual or x; dx over x or dy, and the residual's gradient over one of the two dy.
constexpr InPlace norm_in_place[] = {{0, 3}, {0, 0}};
constexpr InPlace grad_in_place[] = {{0, 0}, {0, 1}, {3, 1}, {3, 7}};

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
    .summary =
        "y, mean[C], var[C]: x[N, C, ...] normalised by the batch's own biased statistics with {eps}, times "
        "scale[C] plus bias[C], plus a residual where there is one, through {activation=none|relu}; "
        "{channels_last}",
    .min_operands = 3,
    .max_operands = 4,
    .infer = infer_batch_norm,
    .gradient = Gradient::rule(batch_norm_gradient),
    .precision = Precision::Follow,
    .recompute = Recompute::Normal,
    .in_place = norm_in_place,
    .reference = batch_norm_reference,
    .samples = batch_norm_samples,
};

constinit const OpDef op_batch_norm_grad{
    .name = "batch_norm_grad",
    .summary =
        "dx, dscale, dbias from x, dy, scale, mean and var; behind a ReLU also from bias; behind a residual and a "
        "ReLU from y, or y and a second dy to be added, with the residual's gradient; {eps, channels_last}",
    .min_operands = 5,
    .max_operands = 8,
    .infer = infer_batch_norm_grad,
    .gradient = no_second_derivative,
    .precision = Precision::Follow,
    .recompute = Recompute::Normal,
    .in_place = grad_in_place,
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
    .chunk = part_of_first,
    .reference = batch_norm_inference_reference,
    .samples = batch_norm_inference_samples,
};

constinit const OpDef op_running_update{
    .name = "running_update",
    .summary =
        "running * {momentum} + batch * (1 - {momentum}); with {count}, batch is a variance over that many "
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
