#pragma once

// Layer, RMS, group and batch norm share this. They differ only in which elements have
// their statistics in common and which share a scale: that is a NormLayout.

#include "ir/ops/common/reference_math.h"

namespace plimsoll {

// Element e belongs to statistic e / stat_step % stats and to parameter e / param_step % params.
struct NormLayout {
  int64_t stat_step, stats, param_step, params;

  size_t stat_of(size_t e) const { return e / static_cast<size_t>(stat_step) % static_cast<size_t>(stats); }
  size_t param_of(size_t e) const { return e / static_cast<size_t>(param_step) % static_cast<size_t>(params); }
};

struct NormStatistics {
  std::vector<double> mean, var;  // biased
};
NormStatistics moments_of(const std::vector<double>& x, const NormLayout& layout);
// The mean of x * x, around 0 instead of the mean.
std::vector<double> mean_squares(const std::vector<double>& x, const NormLayout& layout);
// 1 / sqrt(var + eps)
std::vector<double> inverse_deviation(const std::vector<double>& var, double eps);

// The operands of a reference; absent vectors are empty, an empty mean is 0 and an empty scale 1.
struct NormOperands {
  const std::vector<double>&x, &mean, &rstd, &scale;
};
std::vector<double> normalized(const NormOperands& in, const std::vector<double>& bias, const NormLayout& layout);

struct NormGradients {
  std::vector<double> dx, dscale, dbias;
};
NormGradients norm_gradients(const NormOperands& in, const std::vector<double>& dy, const NormLayout& layout);

// Operands 1 and 2, scale and bias, where present: of that shape and of one dtype, which is x's without a scale.
Status need_norm_parameters(const OpCall& call, llvm::ArrayRef<int64_t> shape);
// The types of dx, of dscale with {has_scale} and of dbias with {has_bias}.
Result<Types> norm_gradient_types(const OpCall& call, llvm::ArrayRef<int64_t> shape);
void store_norm_gradients(const ReferenceCall& call, const NormGradients& gradients);
// Emits the gradient op for a norm of x, scale and bias (operands 0 to 2) and hands out its results. It has `others`
// behind scale.
void add_norm_gradients(GradContext& g, llvm::StringRef op, llvm::ArrayRef<ValueId> statistics, Attrs attrs,
                        llvm::ArrayRef<ValueId> others = {});

inline constexpr AttrSpec eps_attr{"eps", AttrKind::Float}, has_scale_attr{"has_scale", 0},
    has_bias_attr{"has_bias", 0};

}  // namespace plimsoll
