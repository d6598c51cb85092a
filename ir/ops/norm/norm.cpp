#include "ir/ops/norm/norm.h"

#include <cmath>

// With xhat = (x - mean) * rstd and g = dy * scale, every norm's gradient is
//   dx = rstd * (g - avg(g) - xhat * avg(g * xhat)),  dscale = sum(dy * xhat),  dbias = sum(dy),
// avg over the elements that share a statistic; RMS norm has no mean, hence no avg(g).

namespace plimsoll {
namespace {

void divide(std::vector<double>& sums, double count) {
  for (double& sum : sums) sum /= count;
}

double elements_per_stat(size_t elements, const NormLayout& layout) {
  return static_cast<double>(elements) / static_cast<double>(layout.stats);
}

double normal_value(const NormOperands& in, size_t e, size_t s) {
  return (in.x[e] - (in.mean.empty() ? 0 : in.mean[s])) * in.rstd[s];
}

}  // namespace

std::vector<double> mean_squares(const std::vector<double>& x, const NormLayout& layout) {
  std::vector<double> sums(static_cast<size_t>(layout.stats));
  for (size_t e = 0; e < x.size(); ++e) sums[layout.stat_of(e)] += x[e] * x[e];
  divide(sums, elements_per_stat(x.size(), layout));
  return sums;
}

NormStatistics moments_of(const std::vector<double>& x, const NormLayout& layout) {
  std::vector<double> mean(static_cast<size_t>(layout.stats)), centered = x;
  for (size_t e = 0; e < x.size(); ++e) mean[layout.stat_of(e)] += x[e];
  divide(mean, elements_per_stat(x.size(), layout));
  for (size_t e = 0; e < x.size(); ++e) centered[e] -= mean[layout.stat_of(e)];
  std::vector<double> var = mean_squares(centered, layout);
  return {std::move(mean), std::move(var)};
}

std::vector<double> inverse_deviation(const std::vector<double>& var, double eps) {
  std::vector<double> rstd;
  for (double v : var) rstd.push_back(1 / std::sqrt(v + eps));
  return rstd;
}

std::vector<double> normalized(const NormOperands& in, const std::vector<double>& bias, const NormLayout& layout) {
  std::vector<double> y(in.x.size());
  for (size_t e = 0; e < y.size(); ++e) {
    size_t p = layout.param_of(e);
    y[e] = normal_value(in, e, layout.stat_of(e));
    if (!in.scale.empty()) y[e] *= in.scale[p];
    if (!bias.empty()) y[e] += bias[p];
  }
  return y;
}

NormGradients norm_gradients(const NormOperands& in, const std::vector<double>& dy, const NormLayout& layout) {
  auto params = static_cast<size_t>(layout.params), stats = static_cast<size_t>(layout.stats);
  NormGradients out{dy, std::vector<double>(params), std::vector<double>(params)};
  std::vector<double> average_g(stats), average_g_xhat(stats);
  for (size_t e = 0; e < dy.size(); ++e) {
    size_t s = layout.stat_of(e), p = layout.param_of(e);
    double xhat = normal_value(in, e, s), g = dy[e] * (in.scale.empty() ? 1 : in.scale[p]);
    out.dscale[p] += dy[e] * xhat;
    out.dbias[p] += dy[e];
    if (!in.mean.empty()) average_g[s] += g;
    average_g_xhat[s] += g * xhat;
    out.dx[e] = g;
  }
  divide(average_g, elements_per_stat(dy.size(), layout));
  divide(average_g_xhat, elements_per_stat(dy.size(), layout));
  for (size_t e = 0; e < dy.size(); ++e) {
    size_t s = layout.stat_of(e);
    out.dx[e] = in.rstd[s] * (out.dx[e] - average_g[s] - normal_value(in, e, s) * average_g_xhat[s]);
  }
  return out;
}

Status need_norm_parameters(const OpCall& call, llvm::ArrayRef<int64_t> shape) {
  for (size_t i : {1, 2}) {
    if (Status s = need_float(call, i)) return s;
    if (Status s = need_shape(call, i, shape)) return s;
  }
  if (Status s = need_same_dtype(call, 1, 2)) return s;
  return call.has(1) ? Status::success() : need_same_dtype(call, 0, 2);
}

Result<Types> norm_gradient_types(const OpCall& call, llvm::ArrayRef<int64_t> shape) {
  const Type& x = call["x"];
  if (Status s = need_float(call, "x")) return s;
  if (Status s = need_type(call, "dy", x)) return s;
  if (Status s = need_float(call, "scale")) return s;
  if (Status s = need_shape(call, "scale", shape)) return s;
  bool has_scale = call.get_int("has_scale");
  if (has_scale && !call.has("scale")) return model_error("has_scale is set, but there is no scale operand");
  Type parameter(call.has("scale") ? call["scale"].dtype : x.dtype, shape);
  Types types{x};
  if (has_scale) types.push_back(parameter);
  if (call.attrs.get_int("has_bias")) types.push_back(parameter);
  return types;
}

void store_norm_gradients(const ReferenceCall& call, const NormGradients& gradients) {
  call.store(gradients.dx, "dx");
  if (call.get_int("has_scale")) call.store(gradients.dscale, "dscale");
  if (call.attrs.get_int("has_bias")) call.store(gradients.dbias, "dbias");
}

void add_norm_gradients(GradContext& g, llvm::StringRef op, llvm::ArrayRef<ValueId> statistics, Attrs attrs,
                        llvm::ArrayRef<ValueId> others) {
  llvm::SmallVector<ValueId, 6> operands{g["x"], g.out_grad()};
  operands.append(statistics.begin(), statistics.end());
  if (g.has("scale") || !others.empty()) operands.push_back(g.has("scale") ? g["scale"] : ValueId::None);
  operands.append(others.begin(), others.end());
  if (g.wants("scale")) attrs.set("has_scale", 1);
  if (g.wants(2)) attrs.set("has_bias", 1);
  llvm::SmallVector<ValueId, 4> gradients = g.b.emit_all(op, operands, std::move(attrs));
  size_t next = 1;
  if (g.wants("x")) g.add("x", gradients[0]);
  for (size_t i : {1, 2})
    if (g.wants(i)) g.add(i, gradients[next++]);
}

}  // namespace plimsoll
