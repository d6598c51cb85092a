#include "ir/ops/common/samples.h"
#include "ir/ops/common/support.h"

#include <cmath>

// dora_scale: what the results of a layer with an adapter are multiplied by in DoRA (Liu et al. 2024). The norms are
// numbers of the step: no gradient passes through them, neither to the adapter nor to the weight, as the paper has it.

namespace plimsoll {
namespace {

Result<Types> infer_dora_scale(const OpCall& call) {
  for (size_t operand : {0, 1, 2})
    if (Status s = need_rank(call, operand, 2)) return s;
  if (Status s = need_float(call, "w")) return s;
  const Shape& w = call["w"].shape;
  const bool by_outputs = call.get_int("transpose_w") != 0;
  const int64_t outputs = w[by_outputs ? 0 : 1], inputs = w[by_outputs ? 1 : 0], rank = call["a"].shape[0];
  const DType dtype = stat_dtype(call["w"].dtype);
  if (Status s = need_type(call, "a", Type(dtype, {rank, inputs}))) return s;
  if (Status s = need_type(call, "b", Type(dtype, {outputs, rank}))) return s;
  if (Status s = need_type(call, "magnitude", Type(dtype, {outputs}))) return s;
  return Types{Type(dtype, {outputs}), Type(dtype, {outputs})};
}

void dora_scale_gradient(GradContext& g) {
  if (!g.wants("magnitude") || g.out_grad("y") == ValueId::None) return;
  g.add("magnitude", g.b.emit("div", {g.out_grad("y"), g.result("norms")}));
}

void dora_scale_reference(const ReferenceCall& call) {
  const std::vector<double> w = call.load("w"), a = call.load("a"), b = call.load("b"),
                            magnitude = call.load("magnitude");
  const int64_t rank = call["a"].shape[0], inputs = call["a"].shape[1], outputs = call["b"].shape[0];
  const bool by_outputs = call.get_int("transpose_w") != 0;
  const double scale = call.get_float("scale");
  std::vector<double> y(magnitude.size()), norms(magnitude.size());
  for (int64_t o = 0; o < outputs; ++o) {
    double sum = 0;
    for (int64_t i = 0; i < inputs; ++i) {
      double change = 0;
      for (int64_t r = 0; r < rank; ++r)
        change += b[static_cast<size_t>(o * rank + r)] * a[static_cast<size_t>(r * inputs + i)];
      const double adapted = w[static_cast<size_t>(by_outputs ? o * inputs + i : i * outputs + o)] + scale * change;
      sum += adapted * adapted;
    }
    norms[static_cast<size_t>(o)] = std::sqrt(sum);
    y[static_cast<size_t>(o)] = magnitude[static_cast<size_t>(o)] / norms[static_cast<size_t>(o)];
  }
  call.store(y, "y");
  call.store(norms, "norms");
}

double dora_scale_flops(const OpCall& call, llvm::ArrayRef<Type>) {
  return 2.0 * static_cast<double>(call["w"].elements()) * static_cast<double>(call["a"].shape[0] + 1);
}

std::vector<Sample> dora_scale_samples() {
  using namespace samples;
  const auto sample = [](const SampleOperand& w, int64_t outputs, int64_t inputs, int64_t rank, double scale,
                         int64_t by_outputs) {
    return Sample{{fixed(w), fixed(normal({rank, inputs})), fixed(normal({outputs, rank})), positive({outputs})},
                  Attrs{{"scale", scale}, {"transpose_w", by_outputs}}};
  };
  return {sample(normal({5, 7}), 5, 7, 2, 0.5, 1),
          sample(normal({7, 5}), 5, 7, 3, 2.0, 0),
          sample(normal({40, 300}), 40, 300, 8, 1.0, 1),
          sample(normal({300, 40}, DType::BF16), 40, 300, 1, 1.5, 0),
          sample(normal({33, 64}, DType::F16), 33, 64, 4, 0.25, 1),
          sample(normal({19, 600}), 19, 600, 70, 0.5, 1),
          sample(normal({301, 37}), 37, 301, 70, 0.5, 0)};
}

}  // namespace

constinit const OpDef op_dora_scale{
    .name = "dora_scale",
    .summary =
        "y = magnitude / norms, where norms are those of the rows of w + {scale} b a; with {transpose_w} 1 w is "
        "[outputs, inputs] as those are, else its transpose. For adapters with magnitudes (DoRA)",
    .operands = {"w", "a", "b", "magnitude"},
    .results = {"y", "norms"},
    .attrs = {{"scale", AttrKind::Float}, {"transpose_w", 0}},
    .infer = infer_dora_scale,
    .gradient = Gradient::rule(dora_scale_gradient),
    .precision = Precision::Full,
    .flops = dora_scale_flops,
    .linear = {"magnitude"},
    .reference = dora_scale_reference,
    .samples = dora_scale_samples,
};

}  // namespace plimsoll
