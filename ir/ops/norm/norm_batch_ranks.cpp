#include "ir/ops/norm/norm_batch.h"

#include "ir/ops/common/expr.h"

#include <cmath>

// Batch norm where several ranks share the batch. Forward, a rank's own moments (batch_moments) are gathered and merged
// (merge_moments), and one op normalises by them (batch_norm_given). Backward, two sums per channel (batch_norm_sums)
// are added up over the ranks, and one op makes dx of them (batch_norm_dx). Moments and not sums are exchanged: sums of
// squares would cancel where a mean is far from 0.

namespace plimsoll {
namespace {

Attrs data_axis(int64_t ranks) { return {{"axis", std::string("data")}, {"ranks", ranks}}; }

// As many elements as one channel has on this rank.
int64_t elements_per_channel(const Type& x, const Attrs& attrs) {
  return x.elements() / x.shape[channel_dim(attrs, x.shape.size())];
}

// Each rank normalises by its own statistics; what goes on to the running ones is their mean over the ranks, so that
// these stay alike. A running variance corrects for the whole batch's number of elements, of which a rank has fewer.
llvm::SmallVector<ValueId, 4> normalise_by_own_rows(Builder& b, const Node& node, int64_t ranks) {
  const llvm::SmallVector<ValueId, 4> local = b.emit_all("batch_norm", node.operands, node.attrs);
  const auto own = static_cast<double>(elements_per_channel(b.type(node.operands[0]), node.attrs));
  const double all = own * static_cast<double>(ranks);
  auto mean_of_ranks = [&](ValueId statistic, double factor) -> ValueId {
    return apply("reduce_all", Expr{&b, statistic}, data_axis(ranks)) * (factor / static_cast<double>(ranks));
  };
  const double correction = (own > 1 ? own / (own - 1) : 1) * (all - 1) / all;
  return {local[0], mean_of_ranks(local[1], 1), mean_of_ranks(local[2], correction)};
}

Attrs layout_attrs(const Attrs& from) {
  Attrs attrs;
  if (is_channels_last(from)) attrs.set("channels_last", 1);
  return attrs;
}

llvm::SmallVector<ValueId, 4> normalise_by_all_rows(Builder& b, const Node& node, int64_t ranks) {
  const ValueId x = operand_of(node, "x");
  const ValueId own = b.emit("batch_moments", {x}, layout_attrs(node.attrs));
  Attrs gather = data_axis(ranks);
  gather.set("shape", Ints{ranks, 2, b.type(own).shape[1]});
  const llvm::SmallVector<ValueId, 4> merged = b.emit_all("merge_moments", {b.emit("gather_pieces", {own}, gather)});
  Attrs attrs = node.attrs;
  attrs.set("ranks", ranks);
  const ValueId y = b.emit(
      "batch_norm_given",
      {x, operand_of(node, "scale"), operand_of(node, "bias"), merged[0], merged[1], operand_of(node, "residual")},
      attrs);
  return {y, merged[0], merged[1]};
}

// ---- batch_moments and merge_moments ----

Result<Types> infer_batch_moments(const OpCall& call) {
  if (Status s = check_batch_norm_input(call)) return s;
  return one_result(stat_dtype(call["x"].dtype), {2, channel_shape(call)[0]});
}

void batch_moments_reference(const ReferenceCall& call) {
  const NormStatistics moments = moments_of(call.load("x"), channel_layout(call));
  std::vector<double> both = moments.mean;
  both.insert(both.end(), moments.var.begin(), moments.var.end());
  call.store(both, "moments");
}

std::vector<Sample> batch_moments_samples() {
  using namespace samples;
  return {
      {{normal({4, 3, 2})}, {}}, {{normal({4, 3, 2}, DType::BF16)}, {}}, {{normal({5, 3, 8})}, {{"channels_last", 1}}}};
}

Result<Types> infer_merge_moments(const OpCall& call) {
  if (Status s = need_float(call, "moments")) return s;
  const Shape& shape = call["moments"].shape;
  if (shape.size() != 3 || shape[1] != 2)
    return model_error("moments is " + to_string(call["moments"]) + ", expected [ranks, 2, C]");
  const Type statistic(call["moments"].dtype, {shape[2]});
  return Types{statistic, statistic};
}

// All ranks have equally many elements.
void merge_moments_reference(const ReferenceCall& call) {
  const Shape& shape = call["moments"].shape;
  const auto ranks = static_cast<size_t>(shape[0]), channels = static_cast<size_t>(shape[2]);
  const std::vector<double> parts = call.load("moments");
  std::vector<double> mean(channels), var(channels);
  for (size_t c = 0; c < channels; ++c) {
    for (size_t rank = 0; rank < ranks; ++rank) mean[c] += parts[2 * rank * channels + c] / static_cast<double>(ranks);
    for (size_t rank = 0; rank < ranks; ++rank) {
      const double away = parts[2 * rank * channels + c] - mean[c];
      var[c] += (parts[(2 * rank + 1) * channels + c] + away * away) / static_cast<double>(ranks);
    }
  }
  call.store(mean, "mean");
  call.store(var, "var");
}

std::vector<Sample> merge_moments_samples() {
  using namespace samples;
  return {{{positive({1, 2, 5})}, {}}, {{positive({3, 2, 4})}, {}}};
}

// ---- batch_norm_given ----

Result<Types> infer_batch_norm_given(const OpCall& call) {
  if (Status s = check_batch_norm_input(call)) return s;
  if (Status s = check_batch_norm_activation(call)) return s;
  if (Status s = need_norm_parameters(call, channel_shape(call))) return s;
  const Type& x = call["x"];
  for (llvm::StringRef i : {"mean", "var"})
    if (Status s = need_type(call, i, Type(stat_dtype(x.dtype), channel_shape(call)))) return s;
  if (Status s = need_type(call, "residual", x)) return s;
  return Types{x};
}

// The gradient through the statistics is part of dx, and nothing flows into them: every element of every rank moves
// them, which the two sums over the ranks stand for.
Status batch_norm_given_gradient(GradContext& g) {
  const bool relu = has_relu(g.attrs()), silu = has_silu(g.attrs()), residual = g.has("residual");
  Attrs attrs = layout_attrs(g.attrs());
  attrs.set("eps", g.attrs().get_float("eps"));
  if (silu) attrs.set("activation", std::string("silu"));
  const ValueId gate = silu || (relu && !residual) ? g["bias"] : ValueId::None;
  llvm::SmallVector<ValueId, 7> operands{g["x"], g.out_grad(), g["scale"], g["mean"], g["var"]};
  if (relu || silu) operands.push_back(gate);
  if (relu && residual) operands.push_back(g.result("y"));
  const llvm::SmallVector<ValueId, 4> local = g.b.emit_all("batch_norm_sums", operands, attrs);
  const ValueId dz = relu && residual ? local[3] : g.out_grad();
  if (g.wants("x")) {
    const int64_t ranks = g.attrs().get_int("ranks");
    ValueId sums = g.b.emit("reduce_all", {local[0]}, data_axis(ranks));
    // batch_norm_dx divides by the number of all rows.
    if (g.attrs().has("counting")) sums = Expr{&g.b, sums} * (1 / g.attrs().get_float("counting"));
    attrs.set("ranks", ranks);
    llvm::SmallVector<ValueId, 7> parts{g["x"], dz, g["scale"], g["mean"], g["var"], sums};
    if (gate != ValueId::None) parts.push_back(gate);
    g.add("x", g.b.emit("batch_norm_dx", parts, std::move(attrs)));
  }
  if (g.wants("scale")) g.add("scale", local[1]);
  if (g.wants("bias")) g.add("bias", local[2]);
  if (residual && g.wants("residual")) g.add("residual", dz);
  return Status::success();
}

void batch_norm_given_reference(const ReferenceCall& call) {
  const std::vector<double> x = call.load("x"), scale = call.load("scale"), mean = call.load("mean");
  const std::vector<double> rstd = inverse_deviation(call.load("var"), call.get_float("eps"));
  std::vector<double> y = normalized({x, mean, rstd, scale}, call.load("bias"), channel_layout(call));
  const std::vector<double> residual = call.load("residual");
  for (size_t e = 0; e < residual.size(); ++e) y[e] += residual[e];
  activate_batch_norm(call.attrs, y);
  call.store(y, "y");
}

// x moves statistics that are given here, so its gradient is no derivative of this op alone.
std::vector<Sample> batch_norm_given_samples() {
  using namespace samples;
  auto sample = [](Shape shape, int64_t channels, DType dtype, bool residual, Attrs attrs) {
    attrs.set("eps", 1e-5);
    Sample made{{fixed(normal(shape, dtype)), normal({channels}), normal({channels}), fixed(normal({channels})),
                 fixed(positive({channels}))},
                attrs};
    if (residual) made.operands.push_back(normal(shape, dtype));
    return made;
  };
  const Attrs relu{{"activation", std::string("relu")}};
  Attrs last{{"channels_last", 1}}, last_relu = relu;
  last_relu.set("channels_last", 1);
  return {sample({4, 3, 2}, 3, DType::F32, false, {}),
          sample({4, 3, 2}, 3, DType::BF16, false, {}),
          sample({5, 3, 8}, 8, DType::F32, false, last),
          sample({4, 3, 2}, 3, DType::F32, true, {}),
          sample({4, 3, 2}, 3, DType::F32, false, relu),
          sample({5, 3, 8}, 8, DType::F32, false, last_relu),
          sample({2, 3, 4}, 3, DType::F32, true, relu),
          sample({5, 3, 8}, 8, DType::BF16, true, last_relu),
          sample({4, 3, 2}, 3, DType::F32, false, {{"activation", std::string("silu")}})};
}

// ---- batch_norm_sums and batch_norm_dx ----

Result<Types> infer_batch_norm_sums(const OpCall& call) {
  if (Status s = check_batch_norm_gradient(call)) return s;
  Types types{Type(stat_dtype(call["x"].dtype), {2, channel_shape(call)[0]}), call["scale"], call["scale"]};
  if (call.has("y")) types.push_back(call["x"]);
  return types;
}

void batch_norm_sums_reference(const ReferenceCall& call) {
  const std::vector<double> x = call.load("x"), scale = call.load("scale"), mean = call.load("mean");
  const std::vector<double> rstd = inverse_deviation(call.load("var"), call.get_float("eps"));
  const NormOperands in{x, mean, rstd, scale};
  const std::vector<double> dz = passed_gradient(call, in, call.load("dy"));
  const NormGradients gradients = norm_gradients(in, dz, channel_layout(call));
  std::vector<double> both = gradients.dbias;
  both.insert(both.end(), gradients.dscale.begin(), gradients.dscale.end());
  call.store(both, "sums");
  call.store(gradients.dscale, "dscale");
  call.store(gradients.dbias, "dbias");
  if (call.has("y")) call.store(dz, "dresidual");
}

std::vector<Sample> batch_norm_sums_samples() {
  using namespace samples;
  return {{{normal({4, 3, 2}), normal({4, 3, 2}), normal({3}), normal({3}), positive({3})}, {{"eps", 1e-5}}},
          {{normal({5, 3, 8}), normal({5, 3, 8}), normal({8}), normal({8}), positive({8}), normal({8})},
           {{"eps", 1e-5}, {"channels_last", 1}}},
          {{normal({5, 3, 8}), normal({5, 3, 8}), normal({8}), normal({8}), positive({8}), normal({8})},
           {{"eps", 1e-5}, {"channels_last", 1}, {"activation", "silu"}}},
          {{normal({4, 3, 2}), normal({4, 3, 2}), normal({3}), normal({3}), positive({3}), absent(), normal({4, 3, 2})},
           {{"eps", 1e-5}}},
          {{normal({4, 3, 2}, DType::BF16), normal({4, 3, 2}, DType::BF16), normal({3}), normal({3}), positive({3}),
            absent(), normal({4, 3, 2}, DType::BF16), normal({4, 3, 2}, DType::BF16)},
           {{"eps", 1e-5}}}};
}

Result<Types> infer_batch_norm_dx(const OpCall& call) {
  if (Status s = check_batch_norm_input(call)) return s;
  const Type& x = call["x"];
  if (Status s = need_type(call, "dz", x)) return s;
  if (Status s = need_float(call, "scale")) return s;
  if (Status s = need_shape(call, "scale", channel_shape(call))) return s;
  const DType wide = stat_dtype(x.dtype);
  for (llvm::StringRef i : {"mean", "var"})
    if (Status s = need_type(call, i, Type(wide, channel_shape(call)))) return s;
  if (Status s = need_type(call, "sums", Type(wide, {2, channel_shape(call)[0]}))) return s;
  if (Status s = need_type(call, "bias", call["scale"])) return s;
  if (Status s = need_choice(call.attrs, "activation", {"relu", "silu"})) return s;
  if (has_silu(call.attrs) && !call.has("bias")) return model_error("the slope of a SiLU needs bias");
  if (call.get_int("ranks") < 1)
    return model_error("ranks is " + llvm::Twine(call.get_int("ranks")) + ", it must be at least 1");
  return Types{x};
}

// dx = rstd * scale * (dz - (sum of dz + xhat * sum of dz * xhat) / count), count and sums being those of all ranks.
void batch_norm_dx_reference(const ReferenceCall& call) {
  const NormLayout layout = channel_layout(call);
  const std::vector<double> x = call.load("x"), scale = call.load("scale"), mean = call.load("mean");
  const std::vector<double> rstd = inverse_deviation(call.load("var"), call.get_float("eps")), sums = call.load("sums");
  std::vector<double> dx = call.load("dz"), y(x.size(), 1);
  if (call.has("bias")) y = normalized({x, mean, rstd, scale}, call.load("bias"), layout);
  const auto count = static_cast<double>(elements_per_channel(call["x"], call.attrs) * call.get_int("ranks"));
  for (size_t e = 0; e < x.size(); ++e) {
    const size_t c = layout.stat_of(e);
    const double xhat = (x[e] - mean[c]) * rstd[c], dz = passed_share(call.attrs, y[e]) * dx[e];
    dx[e] = rstd[c] * scale[c] * (dz - (sums[c] + xhat * sums[c + scale.size()]) / count);
  }
  call.store(dx, "dx");
}

std::vector<Sample> batch_norm_dx_samples() {
  using namespace samples;
  auto sample = [](Shape shape, int64_t channels, DType dtype, bool relu, Attrs attrs) {
    attrs.set("eps", 1e-5);
    attrs.set("ranks", 2);
    Sample made{{normal(shape, dtype), normal(shape, dtype), normal({channels}), normal({channels}),
                 positive({channels}), normal({2, channels})},
                attrs};
    if (relu) made.operands.push_back(normal({channels}));
    return made;
  };
  return {sample({4, 3, 2}, 3, DType::F32, false, {}), sample({4, 3, 2}, 3, DType::BF16, true, {}),
          sample({4, 3, 2}, 3, DType::F32, true, {}), sample({5, 3, 8}, 8, DType::F32, true, {{"channels_last", 1}}),
          sample({4, 3, 2}, 3, DType::F32, true, {{"activation", std::string("silu")}})};
}

}  // namespace

llvm::SmallVector<ValueId, 4> batch_norm_across_ranks(Builder& b, const Node& node, int64_t ranks,
                                                      Statistics statistics) {
  return statistics == Statistics::OfOwnRows ? normalise_by_own_rows(b, node, ranks)
                                             : normalise_by_all_rows(b, node, ranks);
}

// Where only `rows` count. The others are first zeros, which makes a mean that needs a factor alone, and then that
// mean, which adds nothing to the sum of squares about it: no large numbers cancel. What gradient they would get, by
// the two sums over all ranks, the choice of x takes away.
llvm::SmallVector<ValueId, 4> batch_norm_of_counting_rows(Builder& b, const Node& node, const CountingRows& rows,
                                                          int64_t ranks) {
  const Expr x{&b, operand_of(node, "x")};
  const Shape shape = x.type().shape;
  const size_t channel = channel_dim(node.attrs, shape.size());
  const int64_t channels = shape[channel];
  Shape by_row(shape.size(), 1), by_channel(shape.size(), 1);
  by_row[0] = shape[0], by_channel[channel] = channels;
  const Expr counts = reshape({&b, rows.counts}, by_row), cleared = where(counts, x, 0.0);
  const Attrs layout = layout_attrs(node.attrs);
  const DType wide = stat_dtype(x.type().dtype);

  // By rank: all of its rows over those that count, and its share in all that do.
  Tensor ratios(Type(wide, {ranks})), shares(Type(wide, {ranks, 1}));
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const auto count = static_cast<double>(rows.counting_on(rank));
    ratios.view().set(rank, static_cast<double>(rows.of_rank) / count);
    shares.view().set(rank, count / static_cast<double>(rows.samples));
  }
  Attrs own = data_axis(ranks);
  own.set("shape", Ints{1});
  const Expr ratio = apply("take_piece", Expr{&b, b.constant(std::move(ratios))}, own);
  // Means (0) or variances (1) of moments [..., 2, C].
  const auto statistic = [&](Expr moments, int64_t which, llvm::ArrayRef<int64_t> to) {
    Ints starts(moments.type().shape.size(), 0), steps(starts.size(), 1),
        sizes(moments.type().shape.begin(), moments.type().shape.end());
    starts[starts.size() - 2] = which, sizes[sizes.size() - 2] = 1;
    return reshape(apply("slice", moments, {{"starts", starts}, {"steps", steps}, {"sizes", sizes}}), to);
  };
  const Expr mean = statistic(apply("batch_moments", cleared, layout), 0, {1, channels}) * ratio;
  const Expr filled = where(counts, x, cast(reshape(mean, by_channel), x.type().dtype));
  const Expr var = statistic(apply("batch_moments", filled, layout), 1, {1, channels}) * ratio;

  Attrs gather = data_axis(ranks);
  gather.set("shape", Ints{ranks, 2, channels});
  const Expr all = apply("gather_pieces", apply("concat", mean, var, {{"axis", int64_t{0}}}), gather);
  const Expr share{&b, b.constant(std::move(shares))};
  const auto weighted = [&](Expr of_ranks) {
    return apply("reduce_sum", of_ranks * share, {{"axes", Ints{0}}, {"keep_dims", int64_t{0}}});
  };
  const Expr means = statistic(all, 0, {ranks, channels}), all_mean = weighted(means);
  const Expr away = means - all_mean, all_var = weighted(statistic(all, 1, {ranks, channels}) + away * away);
  Attrs attrs = node.attrs;
  attrs.set("ranks", ranks);
  attrs.set("counting", static_cast<double>(rows.samples) / static_cast<double>(ranks * rows.of_rank));
  const ValueId y = b.emit(
      "batch_norm_given",
      {cleared, operand_of(node, "scale"), operand_of(node, "bias"), all_mean, all_var, operand_of(node, "residual")},
      attrs);
  return {y, all_mean, all_var};
}

// With the statistics of the rank's own rows that count. The others become the mean of those, differentiably, so that a
// plain batch norm finds this mean, and all rows are made longer by the root of what the variance then lacks.
llvm::SmallVector<ValueId, 4> batch_norm_of_own_counting_rows(Builder& b, const Node& node, const CountingRows& rows,
                                                              int64_t ranks) {
  const Expr x{&b, operand_of(node, "x")};
  const Shape shape = x.type().shape;
  const size_t channel = channel_dim(node.attrs, shape.size());
  const int64_t elements_of_row = elements_per_channel(x.type(), node.attrs) / shape[0];
  const DType dtype = x.type().dtype, wide = stat_dtype(dtype);
  Shape by_row(shape.size(), 1);
  by_row[0] = shape[0];
  Ints others;
  for (size_t d = 0; d < shape.size(); ++d)
    if (d != channel) others.push_back(static_cast<int64_t>(d));

  // By rank: one over the elements that count, the factor, one over it, and what a running variance corrects for.
  constexpr int64_t numbers = 4;
  Tensor of_ranks(Type(wide, {ranks, numbers}));
  const double rows_of_sample = static_cast<double>(shape[0]) / static_cast<double>(rows.of_rank),
               all = static_cast<double>(rows.samples * elements_of_row) * rows_of_sample;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const auto count = static_cast<double>(rows.counting_on(rank));
    const double own = count * rows_of_sample * static_cast<double>(elements_of_row),
                 factor = std::sqrt(static_cast<double>(rows.of_rank) / count);
    const double correction = (own > 1 ? own / (own - 1) : 1) * (all - 1) / all;
    int64_t at = rank * numbers;
    for (double number : {1 / own, factor, 1 / factor, correction}) of_ranks.view().set(at++, number);
  }
  Attrs own_numbers = data_axis(ranks);
  own_numbers.set("shape", Ints{numbers});
  const Expr own = apply("take_piece", Expr{&b, b.constant(std::move(of_ranks))}, own_numbers);
  const auto number = [&](int64_t which) {
    return apply("slice", own, {{"starts", Ints{which}}, {"steps", Ints{1}}, {"sizes", Ints{1}}});
  };
  const Expr factor = number(1), shrink = number(2);

  const Expr counts = reshape({&b, rows.counts}, by_row), exact = cast(x, wide), cleared = where(counts, exact, 0.0);
  const Expr mean = apply("reduce_sum", cleared, {{"axes", others}, {"keep_dims", int64_t{1}}}) * number(0);
  const Expr longer = where(counts, exact, mean) * factor;
  const Expr scale = Expr{&b, b.cast(operand_of(node, "scale"), wide)} * shrink;
  ValueId residual = operand_of(node, "residual");
  if (residual != ValueId::None) residual = b.cast(residual, wide);
  const auto results =
      b.emit_all("batch_norm", {longer, scale, b.cast(operand_of(node, "bias"), wide), residual}, node.attrs);
  const auto mean_of_ranks = [&](ValueId statistic, Expr times) -> ValueId {
    return apply("reduce_all", Expr{&b, statistic} * times, data_axis(ranks)) * (1 / static_cast<double>(ranks));
  };
  return {b.cast(results[0], dtype), mean_of_ranks(results[1], shrink), mean_of_ranks(results[2], number(3))};
}

constinit const OpDef op_batch_moments{
    .name = "batch_moments",
    .summary = "mean and biased variance of each channel of x[N, C, ...], as [2, C]; {channels_last}",
    .results = {"moments"},
    .attrs = {channels_last_attr},
    .infer = infer_batch_moments,
    .gradient = Gradient::zero(),
    .reference = batch_moments_reference,
    .samples = batch_moments_samples,
};

constinit const OpDef op_merge_moments{
    .name = "merge_moments",
    .summary = "mean[C] and var[C] of everything from the moments[ranks, 2, C] of equally many elements each",
    .operands = {"moments"},
    .results = {"mean", "var"},
    .infer = infer_merge_moments,
    .gradient = Gradient::zero(),
    .precision = Precision::Full,
    .linear = {"sum(moments)"},
    .reference = merge_moments_reference,
    .samples = merge_moments_samples,
};

constinit const OpDef op_batch_norm_given{
    .name = "batch_norm_given",
    .summary =
        "batch_norm with mean[C] and var[C] of the rows of all {ranks}; its gradient goes through these to the rows of "
        "every rank, of which the share {counting} counts; {eps, activation=none|relu|silu, channels_last}",
    .operands = {"x", "scale", "bias", "mean", "var", "residual?"},
    .attrs = {eps_attr, channels_last_attr, {"activation", "none"}, {"ranks", 1}, {"counting", 1.0}},
    .infer = infer_batch_norm_given,
    .gradient = Gradient::rule(batch_norm_given_gradient),
    .in_place = {{"y", "residual"}, {"y", "x"}},
    .reference = batch_norm_given_reference,
    .samples = batch_norm_given_samples,
};

constinit const OpDef op_batch_norm_sums{
    .name = "batch_norm_sums",
    .summary =
        "sums[2, C] of dz and of dz * xhat, which are dbias and dscale, dz being what of dy goes back through the "
        "{activation=relu|silu} behind the norm, with bias; behind a residual and a ReLU also dz, from y, or y and a "
        "second dy; {eps, channels_last}",
    .operands = {"x", "dy", "scale", "mean", "var", "bias?", "y?", "more_dy?"},
    .results = {"sums", "dscale", "dbias", "dresidual?y"},
    .attrs = {eps_attr, channels_last_attr, {"activation", "relu"}},
    .infer = infer_batch_norm_sums,
    .gradient = no_second_derivative,
    .in_place = {{"dresidual", "dy"}, {"dresidual", "more_dy"}},
    .linear = {"sum(dy) + sum(more_dy)", "sum(dy) + sum(more_dy)"},
    .reference = batch_norm_sums_reference,
    .samples = batch_norm_sums_samples,
};

constinit const OpDef op_batch_norm_dx{
    .name = "batch_norm_dx",
    .summary =
        "dx from x, dz, scale, mean, var and the sums[2, C] of all {ranks}; behind {activation=relu|silu} without a "
        "residual dz is dy, and bias says what goes through; {eps, channels_last}",
    .operands = {"x", "dz", "scale", "mean", "var", "sums", "bias?"},
    .results = {"dx"},
    .attrs = {eps_attr, channels_last_attr, {"activation", "relu"}, {"ranks", 1}},
    .infer = infer_batch_norm_dx,
    .gradient = no_second_derivative,
    .in_place = {{"dx", "x"}, {"dx", "dz"}},
    .linear = {"dz + sums"},
    .reference = batch_norm_dx_reference,
    .samples = batch_norm_dx_samples,
};

}  // namespace plimsoll
