#include "ir/ops/conv/conv.h"
#include "ir/ops/norm/norm.h"
#include "ir/ops/records.h"

// A convolution with the statistics that a batch norm behind it needs. They are those of y as it is rounded: what a
// batch norm that reads y would find.

namespace plimsoll {
namespace {

NormLayout channels_of_result(const Attrs& attrs, const Type& y) {
  const int64_t channels = y.shape[channel_dim(attrs, y.shape.size())];
  const int64_t inner = is_channels_last(attrs) ? 1 : element_count(spatial_of(y.shape));
  return {.stat_step = inner, .stats = channels, .param_step = inner, .params = channels};
}

Result<Types> infer_conv_moments(const OpCall& call) {
  Result<Types> y = op_conv.infer(call);
  if (!y) return y.takeError();
  const Type& image = y->front();
  const Type statistic(stat_dtype(image.dtype), {image.shape[channel_dim(call.attrs, image.shape.size())]});
  return Types{image, statistic, statistic};
}

// What normalises by the statistics accounts for what they depend on: see batch_norm_given.
Status conv_moments_gradient(GradContext& g) {
  if (Status s = need_only_first_gradient(g, "the statistics")) return s;
  conv_gradient(g);
  return Status::success();
}

void conv_moments_reference(const ReferenceCall& call) {
  call.store(convolved(call), "y");
  const TensorView& y = call.out("y");
  std::vector<double> rounded(static_cast<size_t>(y.elements()));
  for (size_t i = 0; i < rounded.size(); ++i) rounded[i] = y.get(static_cast<int64_t>(i));
  const NormStatistics moments = moments_of(rounded, channels_of_result(call.attrs, y.type));
  call.store(moments.mean, "mean");
  call.store(moments.var, "var");
}

// Products of small integers are exact, so that no order of sums rounds an element of y, and with it the moments,
// otherwise.
std::vector<Sample> conv_moments_samples() {
  using namespace samples;
  const auto few_bits = [](Dims dims, DType dtype = DType::F32) { return integers(dims, -2, 3, dtype); };
  return {
      {{few_bits({2, 3, 5}), few_bits({4, 3, 3}), normal({4})}, {{"pads", Ints{1, 0}}}},
      {{few_bits({3, 2, 5, 4}), few_bits({3, 2, 3, 2})}, {{"strides", Ints{2, 1}}, {"pads", Ints{1, 0, 2, 1}}}},
      {{few_bits({2, 5, 4, 3}), few_bits({6, 3, 3, 1})}, {{"groups", 3}, {"channels_last", 1}}},
      {{few_bits({4, 5, 3, 8}), few_bits({16, 1, 1, 8})}, {{"channels_last", 1}}},
      {{few_bits({4, 5, 3, 8}, DType::BF16), few_bits({16, 1, 1, 8}, DType::BF16)}, {{"channels_last", 1}}},
      {{few_bits({9, 16, 24}, DType::F16), few_bits({8, 1, 24}, DType::F16)}, {{"channels_last", 1}}},
  };
}

}  // namespace

constinit const OpDef op_conv_moments{
    .name = "conv_moments",
    .summary = "conv with mean[M] and biased var[M] of each channel of y; attributes as in conv",
    .operands = {"x", "w", "bias?"},
    .results = {"y", "mean", "var"},
    .attrs = conv_attrs,
    .infer = infer_conv_moments,
    .gradient = Gradient::rule(conv_moments_gradient),
    .precision = Precision::Low,
    .flops = conv_flops,
    .linear = {"sum(x * w) + bias"},
    .reference = conv_moments_reference,
    .samples = conv_moments_samples,
};

}  // namespace plimsoll
