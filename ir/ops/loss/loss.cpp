#include "ir/ops/loss/loss.h"

// Negative log-likelihood of given log-probabilities, and what cross_entropy shares with it:
// labels, class weights and reductions. Its gradient depends on the labels alone.

namespace plimsoll {

ClassRows::ClassRows(llvm::ArrayRef<int64_t> scores, const Attrs& attrs)
    : outer(scores[0]),
      stored(scores[1]),
      inner(element_count(scores.drop_front(2))),
      classes(attrs.get_int("classes", scores[1])) {}

Status need_classified(const OpCall& call, llvm::ArrayRef<int64_t> scores) {
  if (Status s = need_choice(call.attrs, "reduction", {"mean", "sum", "none"})) return s;
  if (scores.size() < 2 || scores[1] < 1)
    return model_error("scores " + to_string(scores) + " have no classes in dimension 1");
  const int64_t classes = call.attrs.get_int("classes", scores[1]);
  if (classes < 1 || classes > scores[1] || (classes != scores[1] && scores.size() != 2))
    return model_error("classes is " + llvm::Twine(classes) + ", rows of " + to_string(scores) + " hold others");
  Shape rows(scores.begin(), scores.end());
  rows.erase(rows.begin() + 1);
  if (Status s = need_integer(call, "labels")) return s;
  if (Status s = need_shape(call, "labels", rows)) return s;
  if (Status s = need_float(call, "class_weights")) return s;
  return need_shape(call, "class_weights", {classes});
}

Shape loss_shape(const OpCall& call, llvm::ArrayRef<int64_t> rows) {
  return call.get_string("reduction") == "none" ? Shape(rows.begin(), rows.end()) : Shape();
}

Result<std::optional<int64_t>> label_of(const OpCall& call, const TensorView& labels, int64_t row, int64_t classes) {
  int64_t label = labels.get_int(row);
  if (call.attrs.has("ignore_index") && label == call.get_int("ignore_index")) return std::optional<int64_t>();
  if (label >= 0 && label < classes) return std::optional<int64_t>(label);
  return model_error("label " + llvm::Twine(label) + " at position " + llvm::Twine(row) + " names none of the " +
                     llvm::Twine(classes) + " classes");
}

void store_loss(const ReferenceCall& call, llvm::ArrayRef<double> losses, double total_weight) {
  llvm::StringRef reduction = call.get_string("reduction");
  if (reduction == "none") return call.store(losses, "loss");
  double sum = 0;
  for (double row : losses) sum += row;
  call.out("loss").set(0, reduction == "mean" ? sum / total_weight : sum);
}

double row_gradient(const ReferenceCall& call, double total_weight, int64_t row) {
  const TensorView& dloss = call.in("dloss");
  llvm::StringRef reduction = call.get_string("reduction");
  if (reduction == "none") return dloss.get(row);
  return reduction == "mean" ? dloss.get(0) / total_weight : dloss.get(0);
}

ChunkCall chunk_of_loss(const OpCall& call, std::initializer_list<Combine> other_results) {
  const llvm::StringRef reduction = call.get_string("reduction");
  ChunkCall made = cut_operands(call, {size_t{0}, "labels"});
  made.combine = {reduction == "none" ? Combine::Rows : reduction == "sum" ? Combine::Sum : Combine::WeightedMean};
  made.combine.append(other_results);
  if (reduction == "mean") made.attrs.set("reduction", std::string("sum"));
  return made;
}

ValueId label_weight(Builder& b, NodeId node) {
  const Node& loss = b.graph().node(node);
  const ValueId labels = operand_of(loss, "labels"), class_weights = operand_of(loss, "class_weights");
  const DType dtype = b.type(loss.results.back()).dtype;
  const Type type = b.type(labels);
  const bool ignores = loss.attrs.has("ignore_index");
  if (!ignores && class_weights == ValueId::None) return b.scalar(static_cast<double>(type.elements()), dtype);
  ValueId counts = ValueId::None, counted = labels;
  if (ignores) {
    const ValueId ignored =
        b.emit("equal", {labels, b.constant(Tensor::scalar_int(loss.attrs.get_int("ignore_index"), type.dtype))});
    counts = b.cast(b.emit("not", {ignored}), dtype);
    if (class_weights != ValueId::None)
      counted = b.emit("where", {ignored, b.constant(Tensor::scalar_int(0, type.dtype)), labels});
  }
  ValueId weights = counts;
  if (class_weights != ValueId::None) {
    weights = b.cast(b.emit("gather", {class_weights, counted}, {{"axis", 0}}), dtype);
    if (ignores) weights = b.emit("mul", {weights, counts});
  }
  Ints axes;
  for (int64_t d = 0; d < type.rank(); ++d) axes.push_back(d);
  return b.sum(weights, axes, false);
}

double logits_flops(const OpCall& call, llvm::ArrayRef<Type>) {
  return 4.0 * static_cast<double>(call.operand(0).elements());
}

namespace {

Result<Types> infer_nll_loss(const OpCall& call) {
  if (Status s = need_classified(call, call["log_probs"].shape)) return s;
  if (Status s = need_float(call, "log_probs")) return s;
  DType wide = stat_dtype(call["log_probs"].dtype);
  return Types{Type(wide, loss_shape(call, call["labels"].shape)), Type(wide, {})};
}

Status nll_loss_gradient(GradContext& g) {
  if (Status s = need_only_first_gradient(g, "the weight")) return s;
  if (g.wants("class_weights")) return g.cannot_train("class_weights", "class weights of nll_loss");
  const Type scores = g.type(g["log_probs"]);
  Attrs attrs = g.attrs();
  attrs.set("shape", Ints(scores.shape.begin(), scores.shape.end()));
  attrs.set("dtype", scores.dtype);
  llvm::SmallVector<ValueId, 4> operands{g["labels"], g.result("weight"), g.out_grad()};
  if (g.has("class_weights")) operands.push_back(g["class_weights"]);
  if (g.wants("log_probs")) g.add("log_probs", g.b.emit("nll_loss_grad", operands, attrs));
  return Status::success();
}

Status nll_loss_reference(const ReferenceCall& call) {
  const TensorView &log_probs = call.in("log_probs"), &labels = call.in("labels");
  ClassRows rows(call["log_probs"].shape);
  std::vector<double> weights = call.load("class_weights"), losses(rows.count());
  double total_weight = 0;
  for (int64_t r = 0; r < static_cast<int64_t>(losses.size()); ++r) {
    Result<std::optional<int64_t>> label = label_of(call, labels, r, rows.classes);
    if (!label) return label.takeError();
    if (!*label) continue;
    double weight = class_weight(weights, **label);
    total_weight += weight;
    losses[r] = -weight * log_probs.get(static_cast<int64_t>(rows.at(r, **label)));
  }
  store_loss(call, losses, total_weight);
  call.out("weight").set(0, total_weight);
  return Status::success();
}

std::optional<ChunkCall> nll_loss_chunk(const OpCall& call, Chunk) { return chunk_of_loss(call, {Combine::Sum}); }

std::vector<Sample> nll_loss_samples() {
  using namespace samples;
  return {
      {{normal({5, 4}), integers({5}, 0, 3)}},
      {{normal({2, 3, 2}), integers({2, 2}, 0, 2), fixed(positive({3}))}, {{"reduction", "none"}}},
      {{normal({4, 3}), values({4}, {0, 2, 2, 1}, DType::I64), fixed(positive({3}))}, {{"ignore_index", 2}}},
      {{normal({3, 2, 2, 1}), integers({3, 2, 1}, 0, 1)}, {{"reduction", "sum"}}},
  };
}

Result<Types> infer_nll_loss_grad(const OpCall& call) {
  Type scores(call.attrs.get_dtype("dtype"), call.get_ints("shape"));
  if (Status s = need_classified(call, scores.shape)) return s;
  DType wide = stat_dtype(scores.dtype);
  if (Status s = need_type(call, "weight", Type(wide, {}))) return s;
  if (Status s = need_type(call, "dloss", Type(wide, loss_shape(call, call["labels"].shape)))) return s;
  return Types{scores};
}

Status nll_loss_grad_reference(const ReferenceCall& call) {
  const TensorView &labels = call.in("labels"), &weight = call.in("weight"), &dlog_probs = call.out("dlog_probs");
  ClassRows rows(dlog_probs.type.shape);
  std::vector<double> weights = call.load("class_weights");
  fill_zero(dlog_probs);
  for (int64_t r = 0; r < static_cast<int64_t>(rows.count()); ++r) {
    Result<std::optional<int64_t>> label = label_of(call, labels, r, rows.classes);
    if (!label) return label.takeError();
    if (!*label) continue;
    double dloss = row_gradient(call, weight.get(0), r);
    dlog_probs.set(static_cast<int64_t>(rows.at(r, **label)), -class_weight(weights, **label) * dloss);
  }
  return Status::success();
}

std::optional<ChunkCall> nll_loss_grad_chunk(const OpCall& call, Chunk chunk) {
  ChunkCall made = cut_operands(call, {"labels"});
  made.cut[call.index("dloss")] = call["dloss"].rank() > 0;
  return with_chunk_of_shape(std::move(made), "shape", chunk);
}

std::vector<Sample> nll_loss_grad_samples() {
  using namespace samples;
  return {
      {{integers({5}, 0, 3), positive({}), normal({})}, {{"shape", Ints{5, 4}}, {"dtype", DType::F32}}},
      {{integers({2, 2}, 0, 2), positive({}), normal({2, 2}), positive({3})},
       {{"shape", Ints{2, 3, 2}}, {"dtype", DType::F32}, {"reduction", "none"}, {"ignore_index", 1}}},
  };
}

}  // namespace

constinit const OpDef op_nll_loss{
    .name = "nll_loss",
    .summary =
        "loss, weight: minus log_probs[N, C, ...] at labels[N, ...], weighted by class_weights[C]; "
        "{ignore_index, reduction = mean | sum | none}",
    .operands = {"log_probs", "labels", "class_weights?"},
    .results = {"loss", "weight"},
    .attrs = {ignore_index_attr, reduction_attr},
    .infer = infer_nll_loss,
    .gradient = Gradient::rule(nll_loss_gradient),
    .precision = Precision::Full,
    .class_labels = "labels",
    .chunk = nll_loss_chunk,
    .sample_weight = label_weight,
    .linear = {"sum(log_probs)", "sum(class_weights)"},
    .reference = nll_loss_reference,
    .samples = nll_loss_samples,
};

constinit const OpDef op_nll_loss_grad{
    .name = "nll_loss_grad",
    .summary = "gradient of nll_loss's log_probs, of {shape, dtype}, from labels, weight, dloss and class_weights",
    .operands = {"labels", "weight", "dloss", "class_weights?"},
    .results = {"dlog_probs"},
    .attrs = {ignore_index_attr, reduction_attr, {"shape", AttrKind::Ints}, {"dtype", AttrKind::DType}},
    .infer = infer_nll_loss_grad,
    .gradient = no_second_derivative,
    .precision = Precision::Full,
    .attrs_for_batch = shape_attr_for_batch,
    .chunk = nll_loss_grad_chunk,
    .linear = {"dloss * class_weights"},
    .reference = nll_loss_grad_reference,
    .samples = nll_loss_grad_samples,
};

}  // namespace plimsoll
