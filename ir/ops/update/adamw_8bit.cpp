#include "ir/eight_bit_moments.h"
#include "ir/ops/common/samples.h"
#include "ir/ops/update/update_call.h"
#include "ir/quantized_numbers.h"

#include <algorithm>
#include <cmath>

// AdamW whose moments are 8-bit codes between steps, with torchao's order of operations: the update reads the moments
// as they are before they are rounded to codes. Moments are computed in f32 with the roundings below, so that every
// kernel makes the same codes.

namespace plimsoll {
namespace {

using namespace samples;

Result<Types> infer_adamw_8bit(const OpCall& call) {
  for (llvm::StringRef i : {"param", "grad"})
    if (Status s = need_like_parameter(call, i)) return s;
  for (llvm::StringRef i : {"m", "v"})
    if (Status s = need_type(call, i, Type(DType::U8, call["param"].shape))) return s;
  if (Status s = need_type(call, "scales", Type(DType::F32, call["scales"].shape))) return s;
  const int64_t blocks = moment_blocks(call["param"].elements());
  if (call["scales"].elements() != 2 * blocks)
    return model_error("scales has " + llvm::Twine(call["scales"].elements()) + " elements, " + llvm::Twine(blocks) +
                       " blocks of " + llvm::Twine(moment_block) + " have two each");
  if (Status s = need_type(call, "step", Type(DType::I64, {}))) return s;
  for (llvm::StringRef i : {"lr", "scale"})
    if (Status s = need_float_scalar(call, i)) return s;
  if (Status s = need_type(call, "skip", Type(DType::Bool, {}))) return s;
  if (Status s = need_rounding(call)) return s;
  Types results{call["param"], call["m"], call["v"], call["scales"]};
  add_norms(call, results);
  return results;
}

// One of the moments: codes and scales before and after. Scales of both stand side by side.
struct Moment {
  TensorView codes, scales, new_codes, new_scales;
  bool is_signed;

  int64_t scale_at(int64_t i) const { return i / moment_block * 2 + (is_signed ? 0 : 1); }
  float scale(int64_t i) const { return static_cast<float>(scales.get(scale_at(i))); }
  float share(int64_t i) const { return dynamic_map(is_signed)[static_cast<size_t>(codes.get_int(i))]; }
  void set_block(int64_t first, llvm::ArrayRef<float> values) const {
    const float scale = moment_scale(values);
    new_scales.set(scale_at(first), scale);
    for (size_t i = 0; i < values.size(); ++i)
      new_codes.set_int(first + static_cast<int64_t>(i), moment_code(values[i], scale, is_signed));
  }
};

// A chunk has blocks of its own.
std::optional<ChunkCall> adamw_8bit_chunk(const OpCall& call, Chunk chunk) {
  if (call["param"].elements() % (chunk.count * moment_block) != 0) return std::nullopt;
  return cut_update(call, chunk, {"param", "grad", "m", "v", "scales"});
}

void adamw_8bit_reference(const ReferenceCall& call) {
  write_norms(call);
  if (skips(call, {"param", "m", "v", "scales"})) return;
  const TensorView &param = call.in("param"), &grad = call.in("grad");
  const Moment mean{call.in("m"), call.in("scales"), call.out("m"), call.out("scales"), true},
      square{call.in("v"), call.in("scales"), call.out("v"), call.out("scales"), false};
  const double beta1 = call.get_float("beta1"), beta2 = call.get_float("beta2"), eps = call.get_float("eps");
  const double decay = call.get_float("weight_decay"), step = call.in("step").get(0), lr = call.in("lr").get(0);
  const bool decoupled = call.get_int("decoupled") != 0;
  const double correction1 = 1 - std::pow(beta1, step), correction2 = 1 - std::pow(beta2, step);
  const auto share1 = static_cast<float>(1 - beta1), share2 = static_cast<float>(1 - beta2);
  const auto scale = static_cast<float>(scale_of(call)), l2 = decoupled ? 0.0F : static_cast<float>(decay);
  for (int64_t first = 0; first < param.elements(); first += moment_block) {
    std::vector<float> means, squares;
    for (int64_t i = first; i < std::min(first + moment_block, param.elements()); ++i) {
      const double p = param.get(i);
      const float g = std::fma(l2, static_cast<float>(p), static_cast<float>(grad.get(i)) * scale);
      const float m = mean.share(i) * mean.scale(i), v = square.share(i) * square.scale(i);
      means.push_back(std::fma(share1, std::fma(-mean.share(i), mean.scale(i), g), m));  // g - m, rounded once
      squares.push_back(std::fma(share2, std::fma(g, g, -v), v));
      const double direction = means.back() / correction1 / (std::sqrt(squares.back() / correction2) + eps);
      call.out("param").set(i, rounded(call, i, p - lr * direction - (decoupled ? lr * decay * p : 0)));
    }
    mean.set_block(first, means);
    square.set_block(first, squares);
  }
}

std::vector<Sample> adamw_8bit_samples() {
  SampleOperand lr = values({}, {0.01}), step = values({}, {3}, DType::I64);
  const Attrs attrs{{"beta1", 0.9}, {"beta2", 0.99}, {"eps", 1e-8}, {"weight_decay", 0.1}};
  Attrs coupled = attrs, with_norms = attrs;
  Attrs rounded = attrs;
  rounded.set("rounding_id", 77);
  rounded.set("first_draw", 12);
  coupled.set("decoupled", 0);
  with_norms.set("norms", 1);
  // Parameter, gradient, codes and scales.
  const auto tensors = [&](Dims shape, int64_t blocks, DType grad = DType::F32, DType param = DType::F32) {
    const auto codes = integers(shape, 0, 255, DType::U8);
    return llvm::SmallVector<SampleOperand, 4>{
        fixed(normal(shape, param)), fixed(normal(shape, grad)), codes, codes, fixed(positive({blocks, 2})), step, lr};
  };
  const auto with = [](llvm::SmallVector<SampleOperand, 4> operands, SampleOperand scale,
                       std::optional<SampleOperand> skip = std::nullopt) {
    operands.push_back(fixed(std::move(scale)));
    if (skip) operands.push_back(*skip);
    return operands;
  };
  auto of_zeros = tensors({4, 256}, 4);  // as a first step
  of_zeros[2] = of_zeros[3] = integers({4, 256}, 0, 0, DType::U8);
  of_zeros[4] = fixed(values({4, 2}, {0, 0, 0, 0, 0, 0, 0, 0}));
  return {
      {tensors({2, 3}, 1), attrs},
      {of_zeros, attrs},
      {tensors({2, 512}, 4), attrs},
      {with(tensors({300}, 2, DType::BF16), values({}, {0.25})), coupled},
      {with(tensors({1025}, 5), values({}, {0.25}), values({}, {0}, DType::Bool)), with_norms},
      {with(tensors({7, 300}, 9, DType::BF16), absent(), values({}, {1}, DType::Bool)), with_norms},
      {tensors({5, 4096}, 80, DType::F16), with_norms},
      {tensors({3, 300}, 4, DType::BF16, DType::BF16), rounded},
  };
}

}  // namespace

constinit const OpDef op_adamw_8bit{
    .name = "adamw_8bit",
    .summary =
        "(param, grad, m, v, scales, step, lr, scale?, skip?) -> param', m', v', scales', norms? {beta1, beta2, eps, "
        "weight_decay, decoupled=1, norms}: adamw whose moments are 8-bit codes; each 256 of them in a row share a "
        "scale, "
        "those of m and v stand side by side",
    .operands = {"param", "grad", "m", "v", "scales", "step", "lr", "scale?", "skip?"},
    .results = {"param", "m", "v", "scales", "norms?norms"},
    .attrs = adamw_attrs,
    .infer = infer_adamw_8bit,
    .gradient = Gradient::zero(),
    .precision = Precision::Full,
    .repeatable = false,
    .in_place = {{"param", "param"}, {"m", "m"}, {"v", "v"}, {"scales", "scales"}},
    .flops = ten_each,
    .chunk = adamw_8bit_chunk,
    .reference = adamw_8bit_reference,
    .samples = adamw_8bit_samples,
};

}  // namespace plimsoll
