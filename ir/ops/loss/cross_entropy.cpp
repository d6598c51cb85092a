#include "ir/ops/loss/loss.h"

#include <algorithm>
#include <cmath>

// Softmax cross-entropy in one op. With W the weight of a row's label (1 without class weights, 0 for an
// ignored row), s = {label_smoothing} and C classes, a row's loss is
//   (1 - s) * W * (lse - x[label]) + s / C * sum_c weight[c] * (lse - x[c])
// and "mean" divides the sum over rows by the sum of W. Backward reads the logits and one lse a row, so no
// probabilities are kept.

namespace plimsoll {
namespace {

constexpr AttrSpecs cross_entropy_attrs{ignore_index_attr, reduction_attr, classes_attr, {"label_smoothing", 0.0}};

Status check_smoothing(const OpCall& call) {
  double smoothing = call.get_float("label_smoothing");
  if (smoothing >= 0 && smoothing <= 1) return Status::success();
  return model_error("label_smoothing is " + std::to_string(smoothing) + ", it must be between 0 and 1");
}

Result<Types> infer_cross_entropy(const OpCall& call) {
  if (Status s = check_smoothing(call)) return s;
  if (Status s = need_classified(call, call["logits"].shape)) return s;
  if (Status s = need_float(call, "logits")) return s;
  DType wide = stat_dtype(call["logits"].dtype);
  const Shape& rows = call["labels"].shape;
  return Types{Type(wide, loss_shape(call, rows)), Type(wide, rows), Type(wide, {})};
}

Status cross_entropy_gradient(GradContext& g) {
  if (Status s = need_only_first_gradient(g, "lse and weight")) return s;
  if (g.wants("class_weights")) return model_error("class weights of cross_entropy cannot be trained");
  llvm::SmallVector<ValueId, 6> operands{g["logits"], g["labels"], g.result("lse"), g.result("weight"), g.out_grad()};
  if (g.has("class_weights")) operands.push_back(g["class_weights"]);
  if (g.wants("logits")) g.add("logits", g.b.emit("cross_entropy_grad", operands, g.attrs()));
  return Status::success();
}

// Weighted sum over all classes, for label smoothing: of the logits where given, else of 1.
double smoothed_sum(const ClassRows& rows, const std::vector<double>& weights, int64_t row,
                    const std::vector<double>* logits) {
  double sum = 0;
  for (int64_t c = 0; c < rows.classes; ++c)
    sum += class_weight(weights, c) * (logits ? (*logits)[rows.at(row, c)] : 1);
  return sum;
}

double log_sum_exp(const ClassRows& rows, const std::vector<double>& logits, int64_t row) {
  double largest = -INFINITY, sum = 0;
  for (int64_t c = 0; c < rows.classes; ++c) largest = std::max(largest, logits[rows.at(row, c)]);
  for (int64_t c = 0; c < rows.classes; ++c) sum += std::exp(logits[rows.at(row, c)] - largest);
  return largest + std::log(sum);
}

Status cross_entropy_reference(const ReferenceCall& call) {
  const TensorView &labels = call.in("labels"), &lses = call.out("lse");
  ClassRows rows(call["logits"].shape, call.attrs);
  std::vector<double> logits = call.load("logits"), weights = call.load("class_weights"), losses(rows.count());
  double smoothing = call.get_float("label_smoothing"), total_weight = 0;
  for (int64_t r = 0; r < static_cast<int64_t>(losses.size()); ++r) {
    double lse = log_sum_exp(rows, logits, r);
    lses.set(r, lse);
    Result<std::optional<int64_t>> label = label_of(call, labels, r, rows.classes);
    if (!label) return label.takeError();
    if (!*label) continue;
    double weight = class_weight(weights, **label);
    total_weight += weight;
    losses[r] = (1 - smoothing) * weight * (lse - logits[rows.at(r, **label)]);
    if (smoothing == 0) continue;
    double spread = lse * smoothed_sum(rows, weights, r, nullptr) - smoothed_sum(rows, weights, r, &logits);
    losses[r] += smoothing / static_cast<double>(rows.classes) * spread;
  }
  store_loss(call, losses, total_weight);
  call.out("weight").set(0, total_weight);
  return Status::success();
}

std::optional<ChunkCall> cross_entropy_chunk(const OpCall& call, Chunk) {
  return chunk_of_loss(call, {Combine::Rows, Combine::Sum});
}

std::vector<Sample> cross_entropy_samples() {
  using namespace samples;
  return {
      {{normal({5, 4}), integers({5}, 0, 3)}},
      {{normal({5, 4}, DType::BF16), integers({5}, 0, 3), fixed(positive({4}))}, {{"label_smoothing", 0.1}}},
      {{normal({5, 4}, DType::F16), integers({5}, 0, 3)}},
      {{normal({4, 3, 2}), values({4, 2}, {0, 2, -100, 1, 1, -100, 2, 0}, DType::I64), fixed(positive({3}))},
       {{"ignore_index", -100}, {"label_smoothing", 0.1}}},
      {{normal({3, 5}), values({3}, {4, 1, 0}, DType::I32)},
       {{"ignore_index", 1}, {"reduction", "sum"}, {"label_smoothing", 0.25}}},
      {{normal({2, 3, 2, 2}), integers({2, 2, 2}, 0, 2), fixed(positive({3}))}, {{"reduction", "none"}}},
      {{normal({3, 16}), integers({3}, 0, 12), fixed(positive({13}))}, {{"classes", 13}, {"label_smoothing", 0.1}}},
  };
}

Result<Types> infer_cross_entropy_grad(const OpCall& call) {
  if (Status s = check_smoothing(call)) return s;
  if (Status s = need_classified(call, call["logits"].shape)) return s;
  if (Status s = need_float(call, "logits")) return s;
  DType wide = stat_dtype(call["logits"].dtype);
  const Shape& rows = call["labels"].shape;
  if (Status s = need_type(call, "lse", Type(wide, rows))) return s;
  if (Status s = need_type(call, "weight", Type(wide, {}))) return s;
  if (Status s = need_type(call, "dloss", Type(wide, loss_shape(call, rows)))) return s;
  return Types{call["logits"]};
}

// An ignored row's gradient is 0 even when every row is, and the mean itself is 0 / 0.
Status cross_entropy_grad_reference(const ReferenceCall& call) {
  const TensorView &labels = call.in("labels"), &weight = call.in("weight");
  ClassRows rows(call["logits"].shape, call.attrs);
  std::vector<double> logits = call.load("logits"), lse = call.load("lse"), weights = call.load("class_weights");
  double smoothing = call.get_float("label_smoothing"), share = smoothing / static_cast<double>(rows.classes);
  std::vector<double> dlogits(logits.size());
  for (int64_t r = 0; r < static_cast<int64_t>(lse.size()); ++r) {
    Result<std::optional<int64_t>> label = label_of(call, labels, r, rows.classes);
    if (!label) return label.takeError();
    if (!*label) continue;
    double dloss = row_gradient(call, weight.get(0), r);
    double target = (1 - smoothing) * class_weight(weights, **label);
    double mass = target + (share > 0 ? share * smoothed_sum(rows, weights, r, nullptr) : 0);
    for (int64_t c = 0; c < rows.classes; ++c) {
      double expected = share * class_weight(weights, c) + (c == **label ? target : 0);
      dlogits[rows.at(r, c)] = dloss * (mass * std::exp(logits[rows.at(r, c)] - lse[r]) - expected);
    }
  }
  call.store(dlogits, "dlogits");
  return Status::success();
}

std::vector<Sample> cross_entropy_grad_samples() {
  using namespace samples;
  return {
      {{normal({5, 4}), integers({5}, 0, 3), positive({5}), positive({}), normal({})}},
      {{normal({5, 4}, DType::BF16), integers({5}, 0, 3), positive({5}), positive({}), normal({})}},
      {{normal({5, 24}), integers({5}, 0, 20), positive({5}), positive({}), normal({})}, {{"classes", 21}}},
      {{normal({2, 3, 2}), integers({2, 2}, 0, 2), positive({2, 2}), positive({}), normal({2, 2}), positive({3})},
       {{"ignore_index", 0}, {"label_smoothing", 0.1}, {"reduction", "none"}}},
  };
}

}  // namespace

constinit const OpDef op_cross_entropy{
    .name = "cross_entropy",
    .summary =
        "loss, lse, weight: cross-entropy of softmax(logits[N, C, ...]) with labels[N, ...], weighted by "
        "class_weights[C]; {ignore_index, reduction = mean | sum | none, label_smoothing}; the first {classes} of C "
        "count",
    .operands = {"logits", "labels", "class_weights?"},
    .results = {"loss", "lse", "weight"},
    .attrs = cross_entropy_attrs,
    .infer = infer_cross_entropy,
    .gradient = Gradient::rule(cross_entropy_gradient),
    .precision = Precision::Follow,  // lse and loss are f32 whatever the logits are
    .flops = logits_flops,
    .chunk = cross_entropy_chunk,
    .sample_weight = label_weight,
    .reference = cross_entropy_reference,
    .samples = cross_entropy_samples,
};

constinit const OpDef op_cross_entropy_grad{
    .name = "cross_entropy_grad",
    .summary = "dlogits from logits, labels, lse, weight, dloss and class_weights; attributes as in cross_entropy",
    .operands = {"logits", "labels", "lse", "weight", "dloss", "class_weights?"},
    .results = {"dlogits"},
    .attrs = cross_entropy_attrs,
    .infer = infer_cross_entropy_grad,
    .gradient = no_second_derivative,
    .in_place = {{"dlogits", "logits"}},
    .reference = cross_entropy_grad_reference,
    .samples = cross_entropy_grad_samples,
};

}  // namespace plimsoll
