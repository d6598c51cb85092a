// Parameter updates, with PyTorch's semantics exactly. The parameter and its moments may be wider than the
// gradient; all arithmetic is in at least f32. `scale` multiplies the gradient first: it undoes a loss scale,
// averages over micro-batches and clips. Where `skip` is true everything stays as it was: an overflow under a loss
// scale costs a step, never a parameter. With {norms} the last result is the norm of each block of the gradient as it
// came, so that who wants to know the gradient's need not read it again.

#include "ir/ops/common/samples.h"
#include "ir/ops/update/update_call.h"

#include <cmath>

namespace plimsoll {
namespace {

using namespace samples;

std::optional<ChunkCall> sgd_chunk(const OpCall& call, Chunk chunk) {
  return cut_update(call, chunk, {"param", "grad", "momentum"});
}

std::optional<ChunkCall> adamw_chunk(const OpCall& call, Chunk chunk) {
  return cut_update(call, chunk, {"param", "grad", "m", "v"});
}

Result<Types> infer_sgd(const OpCall& call) {
  for (llvm::StringRef i : {"param", "grad", "momentum"})
    if (Status s = need_like_parameter(call, i)) return s;
  for (llvm::StringRef i : {"lr", "scale"})
    if (Status s = need_float_scalar(call, i)) return s;
  if (Status s = need_type(call, "skip", Type(DType::Bool, {}))) return s;
  if (Status s = need_copy_dtype(call)) return s;
  Types results{call["param"]};
  if (call.has("momentum")) results.push_back(call["momentum"]);
  add_norms(call, results);
  add_copy(call, results);
  return results;
}

void update_by_sgd(const ReferenceCall& call) {
  if (skips(call, {"param", "momentum"})) return;
  const TensorView &param = call.in("param"), &moment = call.in("momentum");
  const std::vector<double> grad = call.load("grad");
  double lr = call.in("lr").get(0), scale = scale_of(call), decay = call.get_float("weight_decay");
  double momentum = call.get_float("momentum"), dampening = call.get_float("dampening");
  bool nesterov = call.get_int("nesterov") != 0;
  for (int64_t i = 0; i < param.elements(); ++i) {
    double p = param.get(i), g = grad[static_cast<size_t>(i)] * scale + decay * p;
    if (call.has("momentum")) {
      double buffer = momentum * moment.get(i) + (1 - dampening) * g;
      call.out("momentum").set(i, buffer);
      g = nesterov ? g + momentum * buffer : buffer;
    }
    call.out("param").set(i, p - lr * g);
  }
}

void sgd_reference(const ReferenceCall& call) {
  write_norms(call);
  update_by_sgd(call);
  write_copy(call);
}

std::vector<Sample> sgd_samples() {
  SampleOperand lr = values({}, {0.1}), scale = values({}, {0.5});
  SampleOperand yes = values({}, {1}, DType::Bool), no = values({}, {0}, DType::Bool);
  return {
      {{normal({2, 3}), normal({2, 3}), lr}, {}},
      {{normal({4}), normal({4}, DType::BF16), lr, normal({4})}, {{"momentum", 0.9}, {"weight_decay", 0.01}}},
      {{normal({4}), normal({4}), lr, normal({4}), scale}, {{"momentum", 0.9}, {"nesterov", 1}, {"dampening", 0.0}}},
      {{normal({3}), normal({3}), lr, absent(), scale}, {{"weight_decay", 0.1}}},
      {{normal({3}), values({3}, {1, INFINITY, NAN}), lr, normal({3}), scale, yes}, {{"momentum", 0.9}}},
      {{normal({3}), normal({3}), lr, normal({3}), absent(), no}, {{"momentum", 0.9}}},
      {{normal({3, 700}), normal({3, 700}), lr}, {{"norms", 1}}},
      {{normal({3, 700}), normal({3, 700}, DType::BF16), lr, normal({3, 700})},
       {{"momentum", 0.9}, {"norms", 1}, {"copy_dtype", DType::BF16}}},
      {{normal({5}), normal({5}), lr, absent(), absent(), yes}, {{"copy_dtype", DType::F16}}},
      {{normal({1024}), normal({1024}, DType::F16), lr, normal({1024}), absent(), yes},
       {{"momentum", 0.9}, {"norms", 1}}}};
}

Result<Types> infer_adamw(const OpCall& call) {
  for (llvm::StringRef i : {"param", "grad", "m", "v"})
    if (Status s = need_like_parameter(call, i)) return s;
  if (Status s = need_type(call, "step", Type(DType::I64, {}))) return s;
  for (llvm::StringRef i : {"lr", "scale"})
    if (Status s = need_float_scalar(call, i)) return s;
  if (Status s = need_type(call, "skip", Type(DType::Bool, {}))) return s;
  if (Status s = need_rounding(call)) return s;
  if (Status s = need_copy_dtype(call)) return s;
  Types results{call["param"], call["m"], call["v"]};
  add_norms(call, results);
  add_copy(call, results);
  return results;
}

// Decay is decoupled (Loshchilov and Hutter 2019) or part of the gradient (Kingma and Ba 2015).
void update_by_adamw(const ReferenceCall& call) {
  if (skips(call, {"param", "m", "v"})) return;
  const std::vector<double> param = call.load("param"), grad = call.load("grad");
  std::vector<double> m = call.load("m"), v = call.load("v"), updated(param.size());
  double beta1 = call.get_float("beta1"), beta2 = call.get_float("beta2");
  double eps = call.get_float("eps"), decay = call.get_float("weight_decay");
  bool decoupled = call.get_int("decoupled") != 0;
  double step = call.in("step").get(0), lr = call.in("lr").get(0), scale = scale_of(call);
  double correction1 = 1 - std::pow(beta1, step), correction2 = 1 - std::pow(beta2, step);
  for (size_t i = 0; i < param.size(); ++i) {
    double p = param[i], g = grad[i] * scale;
    if (decoupled)
      p *= 1 - lr * decay;
    else
      g += decay * p;
    m[i] = beta1 * m[i] + (1 - beta1) * g;
    v[i] = beta2 * v[i] + (1 - beta2) * g * g;
    updated[i] = p - lr / correction1 * m[i] / (std::sqrt(v[i]) / std::sqrt(correction2) + eps);
  }
  for (size_t i = 0; i < updated.size(); ++i) updated[i] = rounded(call, static_cast<int64_t>(i), updated[i]);
  call.store(updated, "param");
  call.store(m, "m");
  call.store(v, "v");
}

void adamw_reference(const ReferenceCall& call) {
  write_norms(call);
  update_by_adamw(call);
  write_copy(call);
}

std::vector<Sample> adamw_samples() {
  SampleOperand lr = values({}, {0.01}), step = values({}, {3}, DType::I64);
  Attrs attrs{{"beta1", 0.9}, {"beta2", 0.99}, {"eps", 1e-8}, {"weight_decay", 0.1}};
  Attrs coupled = attrs;
  coupled.set("decoupled", 0);
  Attrs with_norms = attrs;
  with_norms.set("norms", 1);
  Attrs rounded = attrs;
  rounded.set("rounding_id", 77);
  rounded.set("first_draw", 12);
  Attrs copied = with_norms, copied_f16 = attrs;
  copied.set("copy_dtype", DType::BF16);
  copied_f16.set("copy_dtype", DType::F16);
  return {
      {{normal({2, 3}), normal({2, 3}), normal({2, 3}), positive({2, 3}), step, lr}, attrs},
      {{normal({4}), normal({4}, DType::BF16), normal({4}), positive({4}), step, lr, values({}, {0.25})}, coupled},
      {{normal({3}), values({3}, {1, INFINITY, NAN}), normal({3}), positive({3}), step, lr, absent(),
        values({}, {1}, DType::Bool)},
       attrs},
      {{normal({4}), normal({4}), normal({4}), positive({4}), step, lr, values({}, {0.25}),
        values({}, {0}, DType::Bool)},
       attrs},
      {{normal({1025}), normal({1025}), normal({1025}), positive({1025}), step, lr, values({}, {0.25})}, with_norms},
      {{normal({7, 300}), normal({7, 300}, DType::BF16), normal({7, 300}), positive({7, 300}), step, lr, absent(),
        values({}, {1}, DType::Bool)},
       with_norms},
      {{normal({500}, DType::BF16), normal({500}, DType::BF16), normal({500}), positive({500}), step, lr}, rounded},
      {{normal({3, 999}), normal({3, 999}, DType::BF16), normal({3, 999}), positive({3, 999}), step, lr}, copied},
      {{normal({6}), normal({6}), normal({6}), positive({6}), step, lr, absent(), values({}, {1}, DType::Bool)},
       copied_f16}};
}

}  // namespace

constinit const OpDef op_sgd{
    .name = "sgd",
    .summary =
        "(param, grad, lr, momentum?, scale?, skip?) -> param', momentum'?, norms?, copy? {momentum, dampening, "
        "nesterov, "
        "weight_decay, norms, copy_dtype}",
    .operands = {"param", "grad", "lr", "momentum?", "scale?", "skip?"},
    .results = {"param", "momentum?momentum", "norms?norms", "copy?copy_dtype"},
    .attrs =
        {{"momentum", 0.0}, {"dampening", 0.0}, {"nesterov", 0}, {"weight_decay", 0.0}, {"norms", 0}, copy_dtype_attr},
    .infer = infer_sgd,
    .gradient = Gradient::zero(),
    .precision = Precision::Full,
    .repeatable = false,
    .in_place = {{"param", "param"}, {"momentum", "momentum"}},
    .flops = ten_each,
    .chunk = sgd_chunk,
    .linear = {"param + grad + momentum"},
    .reference = sgd_reference,
    .samples = sgd_samples,
};

constinit const OpDef op_adamw{
    .name = "adamw",
    .summary =
        "(param, grad, m, v, step, lr, scale?, skip?) -> param', m', v', norms?, copy? {beta1, beta2, eps, "
        "weight_decay, "
        "decoupled=1, norms, copy_dtype}",
    .operands = {"param", "grad", "m", "v", "step", "lr", "scale?", "skip?"},
    .results = {"param", "m", "v", "norms?norms", "copy?copy_dtype"},
    .attrs = adamw_attrs.with({copy_dtype_attr}),
    .infer = infer_adamw,
    .gradient = Gradient::zero(),
    .precision = Precision::Full,
    .repeatable = false,
    .in_place = {{"param", "param"}, {"m", "m"}, {"v", "v"}},
    .flops = ten_each,
    .chunk = adamw_chunk,
    .reference = adamw_reference,
    .samples = adamw_samples,
};

}  // namespace plimsoll
