// Parameter updates, with PyTorch's semantics exactly. The parameter and its moments may be wider than the
// gradient; all arithmetic is in at least f32. `scale` multiplies the gradient first: it undoes a loss scale,
// averages over micro-batches and clips. Where `skip` is true everything stays as it was: an overflow under a loss
// scale costs a step, never a parameter. With {norms} the last result is the norm of each block of the gradient as it
// came, so that who wants to know the gradient's need not read it again.

#include "ir/ops/common/samples.h"
#include "ir/ops/common/support.h"
#include "ir/ops/update/update_block.h"

#include <algorithm>
#include <cmath>

namespace plimsoll {
namespace {

using namespace samples;

constexpr AttrRule optional_float(llvm::StringLiteral name) { return {name, AttrKind::Float, AttrNeed::Optional}; }

// Operand i: a float of the parameter's shape.
Status need_like_parameter(const OpCall& call, size_t i) {
  if (!call.has(i)) return Status::success();
  if (Status s = need_float(call, i)) return s;
  return need_type(call, i, Type(call.operand(i).dtype, call.operand(0).shape));
}

Status need_float_scalar(const OpCall& call, size_t i) {
  if (Status s = need_float(call, i)) return s;
  return need_rank(call, i, 0);
}

double scalar_or(const OpCall& call, llvm::ArrayRef<TensorView> operands, size_t i, double otherwise) {
  return call.has(i) ? operands[i].get(0) : otherwise;
}

bool skips(const OpCall& call, llvm::ArrayRef<TensorView> operands, size_t i) {
  return call.has(i) && operands[i].get_int(0) != 0;
}

constexpr AttrRule norms_rule{"norms", AttrKind::Int, AttrNeed::Optional};

// Of grad, operand 1: f32 [blocks], or f64 of an f64 gradient.
void add_norms(const OpCall& call, Types& results) {
  if (!call.attrs.get_int("norms")) return;
  const Type& grad = call.operand(1);
  results.push_back(
      Type(grad.dtype == DType::F64 ? DType::F64 : DType::F32, {(grad.elements() + update_block - 1) / update_block}));
}

void write_norms(const OpCall& call, const TensorView& grad, const TensorView& norms) {
  if (!call.attrs.get_int("norms")) return;
  for (int64_t block = 0; block < norms.elements(); ++block) {
    double squares = 0;
    for (int64_t i = block * update_block; i < std::min((block + 1) * update_block, grad.elements()); ++i)
      squares += grad.get(i) * grad.get(i);
    norms.set(block, std::sqrt(squares));
  }
}

constexpr AttrRule sgd_attrs[] = {optional_float("momentum"),
                                  optional_float("dampening"),
                                  {"nesterov", AttrKind::Int, AttrNeed::Optional},
                                  optional_float("weight_decay"),
                                  norms_rule};

Result<Types> infer_sgd(const OpCall& call) {
  if (Status s = check_attrs(call.attrs, sgd_attrs)) return s;
  for (size_t i : {0, 1, 3})
    if (Status s = need_like_parameter(call, i)) return s;
  for (size_t i : {2, 4})
    if (Status s = need_float_scalar(call, i)) return s;
  if (Status s = need_type(call, 5, Type(DType::Bool, {}))) return s;
  Types results{call.operand(0)};
  if (call.has(3)) results.push_back(call.operand(3));
  add_norms(call, results);
  return results;
}

// Operands: param, grad, lr, momentum?, scale?, skip?.
Status sgd_reference(const OpCall& call, llvm::ArrayRef<TensorView> x, llvm::ArrayRef<TensorView> y) {
  double lr = x[2].get(0), scale = scalar_or(call, x, 4, 1), decay = call.attrs.get_float("weight_decay");
  double momentum = call.attrs.get_float("momentum"), dampening = call.attrs.get_float("dampening");
  bool nesterov = call.attrs.get_int("nesterov") != 0;
  write_norms(call, x[1], y.back());
  if (skips(call, x, 5)) {
    copy_elements(y[0], 0, x[0], 0, x[0].elements());
    if (call.has(3)) copy_elements(y[1], 0, x[3], 0, x[3].elements());
    return Status::success();
  }
  for (int64_t i = 0; i < y[0].elements(); ++i) {
    double p = x[0].get(i), g = x[1].get(i) * scale + decay * p;
    if (call.has(3)) {
      double buffer = momentum * x[3].get(i) + (1 - dampening) * g;
      y[1].set(i, buffer);
      g = nesterov ? g + momentum * buffer : buffer;
    }
    y[0].set(i, p - lr * g);
  }
  return Status::success();
}

std::vector<Sample> sgd_samples() {
  SampleOperand lr = values({}, {0.1}), scale = values({}, {0.5});
  SampleOperand yes = values({}, {1}, DType::Bool), no = values({}, {0}, DType::Bool);
  return {{{normal({2, 3}), normal({2, 3}), lr}, {}},
          {{normal({4}), normal({4}, DType::BF16), lr, normal({4})}, {{"momentum", 0.9}, {"weight_decay", 0.01}}},
          {{normal({4}), normal({4}), lr, normal({4}), scale},
           {{"momentum", 0.9}, {"nesterov", int64_t{1}}, {"dampening", 0.0}}},
          {{normal({3}), normal({3}), lr, absent(), scale}, {{"weight_decay", 0.1}}},
          {{normal({3}), values({3}, {1, INFINITY, NAN}), lr, normal({3}), scale, yes}, {{"momentum", 0.9}}},
          {{normal({3}), normal({3}), lr, normal({3}), absent(), no}, {{"momentum", 0.9}}},
          {{normal({3, 700}), normal({3, 700}), lr}, {{"norms", int64_t{1}}}},
          {{normal({1024}), normal({1024}, DType::F16), lr, normal({1024}), absent(), yes},
           {{"momentum", 0.9}, {"norms", int64_t{1}}}}};
}

constexpr AttrRule adamw_attrs[] = {{"beta1", AttrKind::Float},
                                    {"beta2", AttrKind::Float},
                                    {"eps", AttrKind::Float},
                                    optional_float("weight_decay"),
                                    {"decoupled", AttrKind::Int, AttrNeed::Optional},
                                    norms_rule};

Result<Types> infer_adamw(const OpCall& call) {
  if (Status s = check_attrs(call.attrs, adamw_attrs)) return s;
  for (size_t i : {0, 1, 2, 3})
    if (Status s = need_like_parameter(call, i)) return s;
  if (Status s = need_type(call, 4, Type(DType::I64, {}))) return s;
  for (size_t i : {5, 6})
    if (Status s = need_float_scalar(call, i)) return s;
  if (Status s = need_type(call, 7, Type(DType::Bool, {}))) return s;
  Types results{call.operand(0), call.operand(2), call.operand(3)};
  add_norms(call, results);
  return results;
}

// Operands: param, grad, m, v, step, lr, scale?, skip?. Decay is decoupled (Loshchilov and Hutter 2019) or part of
// the gradient (Kingma and Ba 2015).
Status adamw_reference(const OpCall& call, llvm::ArrayRef<TensorView> x, llvm::ArrayRef<TensorView> y) {
  double beta1 = call.attrs.get_float("beta1"), beta2 = call.attrs.get_float("beta2");
  double eps = call.attrs.get_float("eps"), decay = call.attrs.get_float("weight_decay");
  bool decoupled = call.attrs.get_int("decoupled", 1) != 0;
  double step = x[4].get(0), lr = x[5].get(0), scale = scalar_or(call, x, 6, 1);
  write_norms(call, x[1], y.back());
  if (skips(call, x, 7)) {
    for (auto [result, operand] : {std::pair{0, 0}, {1, 2}, {2, 3}})
      copy_elements(y[result], 0, x[operand], 0, x[operand].elements());
    return Status::success();
  }
  double correction1 = 1 - std::pow(beta1, step), correction2 = 1 - std::pow(beta2, step);
  for (int64_t i = 0; i < y[0].elements(); ++i) {
    double p = x[0].get(i), g = x[1].get(i) * scale;
    if (decoupled)
      p *= 1 - lr * decay;
    else
      g += decay * p;
    double m = beta1 * x[2].get(i) + (1 - beta1) * g;
    double v = beta2 * x[3].get(i) + (1 - beta2) * g * g;
    y[0].set(i, p - lr / correction1 * m / (std::sqrt(v) / std::sqrt(correction2) + eps));
    y[1].set(i, m);
    y[2].set(i, v);
  }
  return Status::success();
}

std::vector<Sample> adamw_samples() {
  SampleOperand lr = values({}, {0.01}), step = values({}, {3}, DType::I64);
  Attrs attrs{{"beta1", 0.9}, {"beta2", 0.99}, {"eps", 1e-8}, {"weight_decay", 0.1}};
  Attrs coupled = attrs;
  coupled.set("decoupled", int64_t{0});
  Attrs with_norms = attrs;
  with_norms.set("norms", int64_t{1});
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
       with_norms}};
}

double ten_each(const OpCall&, llvm::ArrayRef<Type> results) { return 10 * static_cast<double>(results[0].elements()); }

constexpr InPlace sgd_in_place[] = {{0, 0}, {1, 3}};
constexpr InPlace adamw_in_place[] = {{0, 0}, {1, 2}, {2, 3}};

}  // namespace

constinit const OpDef op_sgd{
    .name = "sgd",
    .summary =
        "(param, grad, lr, momentum?, scale?, skip?) -> param', momentum'?, norms? {momentum, dampening, nesterov, "
        "weight_decay, norms}",
    .min_operands = 3,
    .max_operands = 6,
    .infer = infer_sgd,
    .gradient = Gradient::zero(),
    .precision = Precision::Full,
    .recompute = Recompute::Never,
    .in_place = sgd_in_place,
    .flops = ten_each,
    .reference = sgd_reference,
    .samples = sgd_samples,
};

constinit const OpDef op_adamw{
    .name = "adamw",
    .summary =
        "(param, grad, m, v, step, lr, scale?, skip?) -> param', m', v', norms? {beta1, beta2, eps, weight_decay, "
        "decoupled=1, norms}",
    .min_operands = 6,
    .max_operands = 8,
    .infer = infer_adamw,
    .gradient = Gradient::zero(),
    .precision = Precision::Full,
    .recompute = Recompute::Never,
    .in_place = adamw_in_place,
    .flops = ten_each,
    .reference = adamw_reference,
    .samples = adamw_samples,
};

}  // namespace plimsoll
