#include "ir/ops/norm/norm.h"

#include <cmath>

// Group norm: the channels of each sample in {groups} equal groups, one pair of statistics
// per group. With as many groups as channels it is instance norm. What it normalises may go through an activation
// before it is written; backward makes the activation's operand of x again.

namespace plimsoll {
namespace {

int64_t channels_of(const OpCall& call) {
  const Shape& shape = call["x"].shape;
  return shape[channel_dim(call.attrs, shape.size())];
}

int64_t positions_of(const OpCall& call) {
  const Shape& shape = call["x"].shape;
  return call["x"].elements() / (shape[0] * channels_of(call));
}

// The layout of elements with channels first, as the two functions below bring them.
NormLayout layout_of(const OpCall& call) {
  int64_t groups = call.get_int("groups"), channels = channels_of(call), inner = positions_of(call);
  return {.stat_step = channels / groups * inner,
          .stats = call["x"].shape[0] * groups,
          .param_step = inner,
          .params = channels};
}

std::vector<double> load_channels_first(const ReferenceCall& call, PortKey operand) {
  std::vector<double> values = call.load(operand);
  return is_channels_last(call.attrs) ? transposed(values, positions_of(call), channels_of(call)) : values;
}

std::vector<double> as_stored(const OpCall& call, std::vector<double> values) {
  return is_channels_last(call.attrs) ? transposed(values, channels_of(call), positions_of(call)) : values;
}

Status check_groups(const OpCall& call) {
  if (Status s = need_float(call, "x")) return s;
  if (Status s = need_min_rank(call, "x", 2)) return s;
  int64_t groups = call.get_int("groups"), channels = channels_of(call);
  if (groups >= 1 && channels % groups == 0) return Status::success();
  return model_error(llvm::Twine(channels) + " channels do not divide into " + llvm::Twine(groups) + " groups");
}

Type stat_type(const OpCall& call) {
  const Type& x = call["x"];
  return Type(stat_dtype(x.dtype), {x.shape[0], call.get_int("groups")});
}

constexpr AttrSpec activation_attr{"activation", "none"};

bool has_activation(const Attrs& attrs) { return attrs.get_string("activation", "none") != "none"; }

Status check_activation(const OpCall& call) { return need_choice(call.attrs, "activation", {"none", "relu", "silu"}); }

void activate(const Attrs& attrs, std::vector<double>& z) {
  const llvm::StringRef activation = attrs.get_string("activation", "none");
  for (double& each : z) {
    if (activation == "relu") each = each < 0 ? 0 : each;
    if (activation == "silu") each = each / (1 + std::exp(-each));
  }
}

// dy times the activation's slope at z.
void pass_back(const Attrs& attrs, const std::vector<double>& z, std::vector<double>& dy) {
  const llvm::StringRef activation = attrs.get_string("activation", "none");
  for (size_t e = 0; e < dy.size(); ++e) {
    const double sigmoid = 1 / (1 + std::exp(-z[e]));
    if (activation == "relu") dy[e] = z[e] > 0 ? dy[e] : 0;
    if (activation == "silu") dy[e] *= sigmoid * (1 + z[e] * (1 - sigmoid));
  }
}

Result<Types> infer_group_norm(const OpCall& call) {
  if (Status s = check_groups(call)) return s;
  if (Status s = check_activation(call)) return s;
  if (Status s = need_norm_parameters(call, {channels_of(call)})) return s;
  return Types{call["x"], stat_type(call), stat_type(call)};
}

Status group_norm_gradient(GradContext& g) {
  if (Status s = need_only_first_gradient(g, "the statistics")) return s;
  Attrs attrs = g.attrs();
  attrs.erase("eps");
  llvm::SmallVector<ValueId, 1> bias;
  if (has_activation(attrs) && g.has("bias")) bias.push_back(g["bias"]);
  add_norm_gradients(g, "group_norm_grad", {g.result("mean"), g.result("rstd")}, attrs, bias);
  return Status::success();
}

void group_norm_reference(const ReferenceCall& call) {
  NormLayout layout = layout_of(call);
  std::vector<double> x = load_channels_first(call, "x"), scale = call.load("scale");
  NormStatistics moments = moments_of(x, layout);
  std::vector<double> rstd = inverse_deviation(moments.var, call.get_float("eps"));
  std::vector<double> y = normalized({x, moments.mean, rstd, scale}, call.load("bias"), layout);
  activate(call.attrs, y);
  call.store(as_stored(call, std::move(y)), "y");
  call.store(moments.mean, "mean");
  call.store(rstd, "rstd");
}

std::vector<Sample> group_norm_samples() {
  using namespace samples;
  return {
      {{normal({2, 4, 3}), normal({4}), normal({4})}, {{"groups", 2}, {"eps", 1e-5}}},
      {{normal({1, 3, 2, 3}), normal({3}), normal({3})}, {{"groups", 3}, {"eps", 1e-3}}},
      {{normal({2, 6})}, {{"groups", 2}, {"eps", 1e-5}}},
      {{normal({2, 4, 3}, DType::BF16), normal({4}), normal({4})}, {{"groups", 2}, {"eps", 1e-5}}},
      {{normal({2, 3, 2, 4}), normal({4}), normal({4})}, {{"groups", 2}, {"eps", 1e-5}, {"channels_last", 1}}},
      {{normal({2, 4, 3}), normal({3}), normal({3})}, {{"groups", 1}, {"eps", 1e-5}, {"channels_last", 1}}},
      {{fixed(normal({2, 20, 40})), fixed(normal({40})), fixed(normal({40}))},
       {{"groups", 5}, {"eps", 1e-5}, {"channels_last", 1}}},
      {{normal({2, 4, 3}), normal({4}), normal({4})}, {{"groups", 2}, {"eps", 1e-5}, {"activation", "silu"}}},
      {{normal({2, 3, 2, 4}, DType::BF16), normal({4}), normal({4})},
       {{"groups", 2}, {"eps", 1e-5}, {"channels_last", 1}, {"activation", "silu"}}},
      {{normal({2, 6, 5})}, {{"groups", 3}, {"eps", 1e-5}, {"activation", "silu"}}},
      {{normal({2, 4, 3}), normal({4}), normal({4})}, {{"groups", 2}, {"eps", 1e-5}, {"activation", "relu"}}},
  };
}

Result<Types> infer_group_norm_grad(const OpCall& call) {
  if (Status s = check_groups(call)) return s;
  if (Status s = check_activation(call)) return s;
  if (Status s = need_float(call, "bias")) return s;
  if (Status s = need_shape(call, "bias", {channels_of(call)})) return s;
  if (Status s = need_same_dtype(call, llvm::StringRef(call.has("scale") ? "scale" : "x"), "bias")) return s;
  for (llvm::StringRef i : {"mean", "rstd"})
    if (Status s = need_type(call, i, stat_type(call))) return s;
  return norm_gradient_types(call, {channels_of(call)});
}

void group_norm_grad_reference(const ReferenceCall& call) {
  std::vector<double> x = load_channels_first(call, "x"), mean = call.load("mean"), rstd = call.load("rstd");
  std::vector<double> dy = load_channels_first(call, "dy"), scale = call.load("scale");
  if (has_activation(call.attrs))
    pass_back(call.attrs, normalized({x, mean, rstd, scale}, call.load("bias"), layout_of(call)), dy);
  NormGradients gradients = norm_gradients({x, mean, rstd, scale}, dy, layout_of(call));
  gradients.dx = as_stored(call, std::move(gradients.dx));
  store_norm_gradients(call, gradients);
}

std::optional<ChunkCall> group_norm_grad_chunk(const OpCall& call, Chunk) {
  ChunkCall made = cut_operands(call, {"x", "dy", "mean", "rstd"});
  made.combine = {Combine::Rows, Combine::Sum, Combine::Sum};
  return made;
}

std::vector<Sample> group_norm_grad_samples() {
  using namespace samples;
  return {
      {{normal({2, 4, 3}), normal({2, 4, 3}), normal({2, 2}), positive({2, 2}), normal({4})},
       {{"groups", 2}, {"has_scale", 1}, {"has_bias", 1}}},
      {{normal({1, 3, 2, 2}), normal({1, 3, 2, 2}), normal({1, 3}), positive({1, 3})}, {{"groups", 3}}},
      {{normal({2, 3, 2, 4}), normal({2, 3, 2, 4}), normal({2, 2}), positive({2, 2}), normal({4})},
       {{"groups", 2}, {"has_scale", 1}, {"has_bias", 1}, {"channels_last", 1}}},
      {{normal({2, 20, 40}), normal({2, 20, 40}), normal({2, 5}), positive({2, 5}), normal({40})},
       {{"groups", 5}, {"has_scale", 1}, {"has_bias", 1}, {"channels_last", 1}}},
      {{normal({2, 4, 3}), normal({2, 4, 3}), normal({2, 1}), positive({2, 1})}, {{"groups", 1}, {"channels_last", 1}}},
      {{normal({2, 4, 3}, DType::BF16), normal({2, 4, 3}, DType::BF16), normal({2, 2}), positive({2, 2}), normal({4})},
       {{"groups", 2}, {"has_scale", 1}, {"has_bias", 1}}},
      {{normal({2, 4, 3}), normal({2, 4, 3}), normal({2, 2}), positive({2, 2}), normal({4}), normal({4})},
       {{"groups", 2}, {"has_scale", 1}, {"has_bias", 1}, {"activation", "silu"}}},
      {{normal({2, 20, 40}), normal({2, 20, 40}), normal({2, 5}), positive({2, 5}), normal({40}), normal({40})},
       {{"groups", 5}, {"has_scale", 1}, {"has_bias", 1}, {"channels_last", 1}, {"activation", "silu"}}},
      {{normal({2, 6, 5}), normal({2, 6, 5}), normal({2, 3}), positive({2, 3})},
       {{"groups", 3}, {"activation", "silu"}}},
      {{normal({2, 4, 3}), normal({2, 4, 3}), normal({2, 2}), positive({2, 2}), normal({4}), normal({4})},
       {{"groups", 2}, {"has_scale", 1}, {"has_bias", 1}, {"activation", "relu"}}},
  };
}

}  // namespace

constinit const OpDef op_group_norm{
    .name = "group_norm",
    .summary =
        "y, mean[N, G], rstd[N, G]: x[N, C, ...] normalised within {groups} of channels with {eps}, times "
        "scale[C] plus bias[C], through {activation=none|relu|silu}; {channels_last}",
    .operands = {"x", "scale?", "bias?"},
    .results = {"y", "mean", "rstd"},
    .attrs = {{"groups", AttrKind::Int}, eps_attr, channels_last_attr, activation_attr},
    .infer = infer_group_norm,
    .gradient = Gradient::rule(group_norm_gradient),
    .dim_order = DimOrder::ChannelsLast,
    .chunk = chunk_of_first,
    .linear = {"?"},
    .reference = group_norm_reference,
    .samples = group_norm_samples,
};

constinit const OpDef op_group_norm_grad{
    .name = "group_norm_grad",
    .summary =
        "dx, then dscale with {has_scale} and dbias with {has_bias}, from x, dy, mean, rstd and scale, behind an "
        "{activation} also from bias; {groups, channels_last}",
    .operands = {"x", "dy", "mean", "rstd", "scale?", "bias?"},
    .results = {"dx", "dscale?has_scale", "dbias?has_bias"},
    .attrs = {{"groups", AttrKind::Int}, channels_last_attr, has_scale_attr, has_bias_attr, activation_attr},
    .infer = infer_group_norm_grad,
    .gradient = no_second_derivative,
    .chunk = group_norm_grad_chunk,
    .linear = {"sum(dy)", "sum(dy)"},
    .reference = group_norm_grad_reference,
    .samples = group_norm_grad_samples,
};

}  // namespace plimsoll
