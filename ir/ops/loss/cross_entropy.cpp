#include "ir/ops/common/divide.h"
#include "ir/ops/common/expr.h"
#include "ir/ops/loss/loss.h"

#include <algorithm>
#include <cmath>

// Softmax cross-entropy in one op. With W the weight of a row's label (1 without class weights, 0 for an
// ignored row), s = {label_smoothing} and C classes, a row's loss is
//   (1 - s) * W * (lse - x[label]) + s / C * sum_c weight[c] * (lse - x[c])
// and "mean" divides the sum over rows by the sum of W. Backward reads the logits and one lse a row, so no
// probabilities are kept. The lse may have a gradient of its own, also in rows that are ignored: ranks that divide the
// classes add up their rows' exponentials.

namespace plimsoll {
namespace {

// Where ranks along the tensor axis divide {all_classes} so that the last ones have fewer, {classes} is the rank's own.
constexpr AttrSpecs cross_entropy_attrs{
    ignore_index_attr, reduction_attr, classes_attr, {"label_smoothing", 0.0}, {"all_classes", 0}};

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
  if (g.out_grad("weight") != ValueId::None)
    return model_error("a gradient flows into the weight of cross_entropy, which depends on labels alone");
  if (g.wants("class_weights")) return g.cannot_train("class_weights", "class weights of cross_entropy");
  llvm::SmallVector<ValueId, 7> operands{g["logits"],
                                         g["labels"],
                                         g.result("lse"),
                                         g.result("weight"),
                                         g.out_grad_or_zero("loss"),
                                         g.has("class_weights") ? g["class_weights"] : ValueId::None,
                                         g.out_grad("lse")};
  while (operands.back() == ValueId::None) operands.pop_back();
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

// The sum over all classes of a row's exponentials is that of the ranks' sums, of which each has the logarithm.
Expr lse_of_all(Builder& b, ValueId own, int64_t ranks) {
  Shape shape{ranks};
  shape.append(b.type(own).shape);
  const Attrs over_ranks{{"axes", Ints{0}}, {"keep_dims", 0}};
  const Expr each{&b, b.emit("gather_pieces", {own}, collective_attrs(MeshAxis::Tensor, ranks, shape))};
  const Expr largest = apply("reduce_max", each, over_ranks);
  return largest + apply("log", apply("reduce_sum", apply("exp", each - largest), over_ranks));
}

// A rank's own classes give each row its share of the lse, and the logit at the label on the one rank that has it. A
// row's loss is the lse of all classes less that logit.
llvm::SmallVector<ValueId, 4> cross_entropy_of_own_classes(Builder& b, const Node& node, const DividedCall& call,
                                                           int64_t ranks) {
  const ValueId logits = operand_of(node, "logits");
  const int64_t part = b.type(logits).shape[1], all_classes = call.operands[0]->blocks[0];
  const Expr labels{&b, operand_of(node, "labels")};
  const DType label_type = labels.type().dtype;
  const auto number = [&](int64_t value) { return Expr{&b, b.constant(Tensor::scalar_int(value, label_type))}; };
  const Expr own = apply("sub", labels, Expr{&b, first_of_part(b, part, ranks, label_type)});
  Expr is_here = both(apply("greater_equal", own, number(0)), apply("less", own, number(part)));
  std::optional<Expr> counts;
  if (node.attrs.has("ignore_index")) {
    counts = apply("not", equals(labels, number(node.attrs.get_int("ignore_index"))));
    is_here = both(is_here, *counts);
  }
  constexpr int64_t elsewhere = -1;
  Attrs attrs{{"reduction", std::string("none")}, {"ignore_index", elsewhere}};
  if (all_classes != part * ranks) attrs.set("classes", part), attrs.set("all_classes", all_classes);
  const ValueId own_label = where(is_here, own, number(elsewhere));
  const auto results = b.emit_all("cross_entropy", {logits, own_label}, attrs);
  const Expr loss_here{&b, results[0]}, own_lse{&b, results[1]};
  const DType dtype = own_lse.type().dtype;
  const Expr picked = cast(is_here, dtype) * own_lse - loss_here;  // of these rows, the logit at the label
  const Expr lse = lse_of_all(b, own_lse, ranks);
  const Expr kept = counts ? cast(*counts, dtype) * lse : lse;
  const bool by_row = node.attrs.get_string("reduction", "mean") == "none";
  Ints axes;
  for (size_t d = 0; d < labels.type().shape.size(); ++d) axes.push_back(static_cast<int64_t>(d));
  const auto total = [&](Expr x) { return by_row ? x : Expr{&b, b.sum(x, axes, false)}; };
  Expr loss = total(kept) - Expr{&b, b.emit("reduce_all", {total(picked)}, collective_attrs(MeshAxis::Tensor, ranks))};
  const Expr weight = counts ? Expr{&b, b.sum(cast(*counts, dtype), axes, false)}
                             : Expr{&b, b.scalar(static_cast<double>(labels.type().elements()), dtype)};
  if (node.attrs.get_string("reduction", "mean") == "mean") loss = loss / weight;
  return {loss, lse, weight};
}

// By classes.
std::optional<DividedCall> cross_entropy_divide(const OpCall& call, llvm::ArrayRef<Type> results, const CutAt& known,
                                                int64_t) {
  const bool by_classes = known.side == CutAt::Side::Operand && known.index == 0 && known.cut.dim == 1;
  if (!by_classes || known.cut.blocks.size() > 1 || call.has("class_weights") || call.attrs.has("classes") ||
      call.get_float("label_smoothing") != 0)
    return std::nullopt;
  DividedCall made;
  made.operands.resize(call.count());
  made.operands[0] = known.cut;
  made.results.resize(results.size());
  made.attrs = call.attrs;
  made.may_be_uneven = call["logits"].rank() == 2;
  made.make = cross_entropy_of_own_classes;
  return made;
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
  if (Status s = need_type(call, "dlse", Type(wide, rows))) return s;
  return Types{call["logits"]};
}

// An ignored row's loss has the gradient 0 even when every row is, and the mean itself is 0 / 0.
Status store_gradient(const ReferenceCall& call, llvm::ArrayRef<double> lse, double total_weight) {
  const TensorView& labels = call.in("labels");
  ClassRows rows(call["logits"].shape, call.attrs);
  std::vector<double> logits = call.load("logits"), weights = call.load("class_weights"), dlse = call.load("dlse");
  double smoothing = call.get_float("label_smoothing"), share = smoothing / static_cast<double>(rows.classes);
  std::vector<double> dlogits(logits.size());
  for (int64_t r = 0; r < static_cast<int64_t>(lse.size()); ++r) {
    Result<std::optional<int64_t>> label = label_of(call, labels, r, rows.classes);
    if (!label) return label.takeError();
    double dloss = *label ? row_gradient(call, total_weight, r) : 0;
    double target = *label ? (1 - smoothing) * class_weight(weights, **label) : 0;
    double mass = target + (share > 0 ? share * smoothed_sum(rows, weights, r, nullptr) : 0);
    double of_softmax = dloss * mass + (dlse.empty() ? 0 : dlse[static_cast<size_t>(r)]);
    if (of_softmax == 0 && dloss == 0) continue;
    for (int64_t c = 0; c < rows.classes; ++c) {
      double expected = share * class_weight(weights, c) + (*label && c == **label ? target : 0);
      dlogits[rows.at(r, c)] = of_softmax * std::exp(logits[rows.at(r, c)] - lse[r]) - dloss * expected;
    }
  }
  call.store(dlogits, "dlogits");
  return Status::success();
}

Status cross_entropy_grad_reference(const ReferenceCall& call) {
  return store_gradient(call, call.load("lse"), call.in("weight").get(0));
}

std::optional<ChunkCall> cross_entropy_grad_chunk(const OpCall& call, Chunk) {
  ChunkCall made = cut_operands(call, {"logits", "labels", "lse", "dlse"});
  made.cut[call.index("dloss")] = call["dloss"].rank() > 0;
  return made;
}

std::vector<Sample> cross_entropy_grad_samples() {
  using namespace samples;
  return {
      {{normal({5, 4}), integers({5}, 0, 3), positive({5}), positive({}), normal({})}},
      {{normal({5, 4}, DType::BF16), integers({5}, 0, 3), positive({5}), positive({}), normal({})}},
      {{normal({5, 24}), integers({5}, 0, 20), positive({5}), positive({}), normal({})}, {{"classes", 21}}},
      {{normal({2, 3, 2}), integers({2, 2}, 0, 2), positive({2, 2}), positive({}), normal({2, 2}), positive({3})},
       {{"ignore_index", 0}, {"label_smoothing", 0.1}, {"reduction", "none"}}},
      {{normal({5, 24}), values({5}, {0, -1, 20, 3, -1}, DType::I64), positive({5}), positive({}), normal({5}),
        absent(), normal({5})},
       {{"classes", 21}, {"ignore_index", -1}, {"reduction", "none"}}},
      {{normal({2, 3, 2}), integers({2, 2}, 0, 2), positive({2, 2}), positive({}), normal({}), absent(),
        normal({2, 2})},
       {{"ignore_index", 0}}},
  };
}

Result<Types> infer_cross_entropy_with_grad(const OpCall& call) {
  Result<Types> of_loss = infer_cross_entropy(call);
  if (!of_loss) return of_loss;
  if (Status s = need_type(call, "dloss", (*of_loss)[0])) return s;
  if (Status s = need_type(call, "dlse", (*of_loss)[1])) return s;
  Types types{call["logits"]};
  types.append(*of_loss);
  return types;
}

Status cross_entropy_with_grad_reference(const ReferenceCall& call) {
  if (Status s = cross_entropy_reference(call)) return s;
  return store_gradient(call, all_elements(call.out("lse")), call.out("weight").get(0));
}

double cross_entropy_with_grad_flops(const OpCall& call, llvm::ArrayRef<Type> results) {
  return 2 * logits_flops(call, results);
}

// The gradient of a mean needs the weight of the whole batch, which no chunk has.
std::optional<ChunkCall> cross_entropy_with_grad_chunk(const OpCall& call, Chunk) {
  const llvm::StringRef reduction = call.get_string("reduction");
  if (reduction == "mean") return std::nullopt;
  ChunkCall made = cut_operands(call, {"logits", "labels", "dlse"});
  made.cut[call.index("dloss")] = call["dloss"].rank() > 0;
  made.combine = {Combine::Rows, reduction == "none" ? Combine::Rows : Combine::Sum, Combine::Rows, Combine::Sum};
  return made;
}

std::vector<Sample> cross_entropy_with_grad_samples() {
  using namespace samples;
  return {
      {{normal({5, 4}), integers({5}, 0, 3), normal({})}},
      {{normal({5, 4}, DType::BF16), integers({5}, 0, 3), normal({}), positive({4})}, {{"label_smoothing", 0.1}}},
      {{normal({5, 4}, DType::F16), integers({5}, 0, 3), normal({})}},
      {{normal({5, 24}), integers({5}, 0, 20), normal({}), positive({21})},
       {{"classes", 21}, {"label_smoothing", 0.25}, {"reduction", "sum"}}},
      {{normal({5, 24}, DType::BF16), values({5}, {0, -1, 20, 3, -1}, DType::I32), normal({5}), absent(), normal({5})},
       {{"classes", 21}, {"ignore_index", -1}, {"reduction", "none"}}},
      {{normal({2, 3, 2}), integers({2, 2}, 0, 2), normal({2, 2}), positive({3})},
       {{"ignore_index", 0}, {"label_smoothing", 0.1}, {"reduction", "none"}}},
      {{normal({2, 3, 2}), values({2, 2}, {0, 2, 1, 0}, DType::I64), normal({}), positive({3}), normal({2, 2})},
       {{"ignore_index", 0}}},
  };
}

}  // namespace

constinit const OpDef op_cross_entropy{
    .name = "cross_entropy",
    .summary =
        "loss, lse, weight: cross-entropy of softmax(logits[N, C, ...]) with labels[N, ...], weighted by "
        "class_weights[C]; {ignore_index, reduction = mean | sum | none, label_smoothing}; the first {classes} of C "
        "count; of {all_classes} the rank has its own",
    .operands = {"logits", "labels", "class_weights?"},
    .results = {"loss", "lse", "weight"},
    .attrs = cross_entropy_attrs,
    .infer = infer_cross_entropy,
    .gradient = Gradient::rule(cross_entropy_gradient),
    .precision = Precision::Follow,  // lse and loss are f32 whatever the logits are
    .class_labels = "labels",
    .flops = logits_flops,
    .chunk = cross_entropy_chunk,
    .divide = cross_entropy_divide,
    .sample_weight = label_weight,
    .reference = cross_entropy_reference,
    .samples = cross_entropy_samples,
};

constinit const OpDef op_cross_entropy_grad{
    .name = "cross_entropy_grad",
    .summary =
        "dlogits from logits, labels, lse, weight, dloss, class_weights and dlse; attributes as in cross_entropy",
    .operands = {"logits", "labels", "lse", "weight", "dloss", "class_weights?", "dlse?"},
    .results = {"dlogits"},
    .attrs = cross_entropy_attrs,
    .infer = infer_cross_entropy_grad,
    .gradient = no_second_derivative,
    .in_place = {{"dlogits", "logits"}},
    .chunk = cross_entropy_grad_chunk,
    .linear = {"dloss * class_weights + dlse"},
    .reference = cross_entropy_grad_reference,
    .samples = cross_entropy_grad_samples,
};

constinit const OpDef op_cross_entropy_with_grad{
    .name = "cross_entropy_with_grad",
    .summary =
        "dlogits, loss, lse, weight: what cross_entropy and cross_entropy_grad make, where dloss and dlse depend on "
        "neither; attributes as in cross_entropy",
    .operands = {"logits", "labels", "dloss", "class_weights?", "dlse?"},
    .results = {"dlogits", "loss", "lse", "weight"},
    .attrs = cross_entropy_attrs,
    .infer = infer_cross_entropy_with_grad,
    .gradient = no_second_derivative,
    .class_labels = "labels",
    .in_place = {{"dlogits", "logits"}},
    .flops = cross_entropy_with_grad_flops,
    .chunk = cross_entropy_with_grad_chunk,
    .linear = {"dloss + dlse"},
    .reference = cross_entropy_with_grad_reference,
    .samples = cross_entropy_with_grad_samples,
};

}  // namespace plimsoll
