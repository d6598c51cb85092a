#include "ir/ops/conv/conv.h"
#include "ir/ops/norm/norm_batch.h"
#include "ir/ops/records.h"

// The gradient of a convolution's input with the first pass of the batch norm before it: conv_dx, then batch_norm_sums
// of what it gives.

namespace plimsoll {
namespace {

Result<Types> infer_conv_dx_sums(const OpCall& call) {
  Result<Types> dx = op_conv_dx.infer(call);
  if (!dx) return dx.takeError();
  if (Status s = need_type(call, "x", dx->front())) return s;
  if (Status s = check_batch_norm_backward(call)) return s;
  const Type& scale = call["scale"];
  return Types{dx->front(), Type(stat_dtype(dx->front().dtype), {2, channel_shape(call)[0]}), scale, scale};
}

// dx is rounded before the norm reads it.
void conv_dx_sums_reference(const ReferenceCall& call) {
  call.store(convolved_gradient(call, "dz"), "dz");
  const TensorView& stored = call.out("dz");
  std::vector<double> dx(static_cast<size_t>(stored.elements()));
  for (size_t i = 0; i < dx.size(); ++i) dx[i] = stored.get(static_cast<int64_t>(i));
  const std::vector<double> x = call.load("x"), scale = call.load("scale"), mean = call.load("mean");
  const std::vector<double> rstd = inverse_deviation(call.load("var"), call.get_float("eps"));
  const NormOperands in{x, mean, rstd, scale};
  const std::vector<double> dz = passed_gradient(call, in, std::move(dx));
  const NormGradients gradients = norm_gradients(in, dz, channel_layout(call));
  std::vector<double> both = gradients.dbias;
  both.insert(both.end(), gradients.dscale.begin(), gradients.dscale.end());
  if (call.has("y")) call.store(dz, "dz");
  call.store(both, "sums");
  call.store(gradients.dscale, "dscale");
  call.store(gradients.dbias, "dbias");
}

std::vector<Sample> conv_dx_sums_samples() {
  using namespace samples;
  const auto sample = [](Shape dy, Shape w, Shape x, DType dtype, bool bias, bool y, bool more, Attrs attrs) {
    const int64_t channels = attrs.get_int("channels_last", 0) != 0 ? x.back() : x[1];
    attrs.set("shape", Ints(x.begin(), x.end()));
    attrs.set("eps", 1e-5);
    return Sample{{normal(dy, dtype), normal(w, dtype), normal(x, dtype), normal({channels}), normal({channels}),
                   positive({channels}), bias ? normal({channels}) : absent(), y ? normal(x, dtype) : absent(),
                   more ? normal(x, dtype) : absent()},
                  attrs};
  };
  const Attrs last{{"channels_last", 1}};
  return {
      sample({2, 4, 3}, {4, 3, 3}, {2, 3, 5}, DType::F32, false, false, false, {}),
      sample({2, 3, 2, 4}, {4, 2, 3, 3}, {2, 6, 4, 3}, DType::F32, true, false, false,
             {{"strides", Ints{2, 1}}, {"channels_last", 1}}),
      sample({4, 5, 3, 8}, {8, 1, 1, 16}, {4, 5, 3, 16}, DType::F32, false, true, true, last),
      sample({4, 5, 3, 8}, {8, 1, 1, 16}, {4, 5, 3, 16}, DType::BF16, false, false, false, last),
      sample({4, 5, 3, 8}, {8, 1, 1, 16}, {4, 5, 3, 16}, DType::BF16, true, false, false, last),
      sample({4, 5, 3, 8}, {8, 1, 1, 16}, {4, 5, 3, 16}, DType::BF16, false, true, false, last),
      sample({4, 5, 3, 8}, {8, 1, 1, 16}, {4, 5, 3, 16}, DType::F16, false, true, true, last),
  };
}

}  // namespace

constinit const OpDef op_conv_dx_sums{
    .name = "conv_dx_sums",
    .summary =
        "conv_dx of dy and w, which is dz, and batch_norm_sums of it; behind a residual and a ReLU dz is what goes "
        "through by y, plus more_dy where there is one; {eps}, the rest as in conv_dx",
    .operands = {"dy", "w", "x", "scale", "mean", "var", "bias?", "y?", "more_dy?"},
    .results = {"dz", "sums", "dscale", "dbias"},
    .attrs = conv_attrs.with({shape_attr, eps_attr}),
    .infer = infer_conv_dx_sums,
    .gradient = no_second_derivative,
    .precision = Precision::Low,
    .flops = conv_dx_flops,
    .linear = {"sum(dy * w) + more_dy", "sum(dy * w) + sum(more_dy)"},
    .reference = conv_dx_sums_reference,
    .samples = conv_dx_sums_samples,
};

}  // namespace plimsoll
