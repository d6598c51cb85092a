#include "passes/evaluate/metrics.h"

#include "ir/builder.h"
#include "passes/analysis/dependence.h"

#include <algorithm>

namespace plimsoll {
namespace {

constexpr int64_t usual_ignored = -100;
constexpr int64_t max_confusion_classes = 4096;  // 64 MiB of counts
constexpr llvm::StringLiteral sums[] = {"weight", "counted", "confusion", "accuracy"};

std::optional<int64_t> k_of(llvm::StringRef metric) {
  int64_t k = 0;
  if (!metric.consume_front("top") || metric.getAsInteger(10, k) || k < 1) return std::nullopt;
  return k;
}

bool counts_classes(llvm::StringRef metric) {
  return metric == "accuracy" || metric == "f1" || metric == "miou" || k_of(metric);
}

// Logits [N, C, ...] and labels [N, ...] of a classification.
struct Classes {
  ValueId logits = ValueId::None, labels = ValueId::None;
  int64_t ignored = usual_ignored;
};

Result<Classes> classes_of_loss(const Graph& graph, llvm::StringRef metric) {
  const std::vector<bool> counts = find_contributing(graph, {graph.outputs.front().value}, Flow::Data);
  llvm::SmallVector<const Node*, 2> losses;
  for (NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    if (node.op->is_loss_over_classes() && any_in(node.results, counts)) losses.push_back(&node);
  }
  if (losses.size() != 1)
    return usage_error(metric + ": the loss is " +
                       (losses.empty() ? "no cross-entropy" : "of several cross-entropies") +
                       "; name logits and labels, as in " + metric + ":LOGITS:LABELS");
  const Node& loss = *losses.front();
  return Classes{loss.operands[0], operand_of(loss, loss.op->class_labels),
                 loss.attrs.get_int("ignore_index", usual_ignored)};
}

Result<ValueId> find_named(const Graph& graph, llvm::StringRef metric, llvm::StringRef name) {
  for (const Output& output : graph.outputs)
    if (output.name == name) return output.value;
  if (const ValueId value = graph.find_value(name); value != ValueId::None) return value;
  std::string known;
  for (const Output& output : graph.outputs) known += (known.empty() ? "" : ", ") + output.name;
  return usage_error(metric + ": the model has no value '" + name + "'; its outputs are " + known);
}

// Labels have the shape of the logits without classes, which stand last or at dimension 1.
Result<Classes> named_classes(Graph& graph, llvm::StringRef metric) {
  const auto [name, operands] = metric.split(':');
  const auto [first, second] = operands.split(':');
  Result<ValueId> logits = find_named(graph, metric, first);
  if (!logits) return logits.takeError();
  Result<ValueId> labels = find_named(graph, metric, second);
  if (!labels) return labels.takeError();
  const Type x = graph.type(*logits), y = graph.type(*labels);
  Builder b(graph);
  if (x.rank() >= 2 && is_float(x.dtype) && is_integer(y.dtype)) {
    const llvm::ArrayRef<int64_t> shape = x.shape;
    if (shape.drop_back() == llvm::ArrayRef<int64_t>(y.shape))
      return Classes{b.reshape(*logits, {y.elements(), shape.back()}), b.reshape(*labels, {y.elements()})};
    Shape expected = x.shape;
    expected.erase(expected.begin() + 1);
    if (expected == y.shape) return Classes{*logits, *labels};
  }
  return usage_error(metric + ": logits are " + to_string(x) + " and labels " + to_string(y) +
                     "; labels are integers in the shape of the logits without their classes");
}

// All metrics of a plan count the same classification: the one that a metric names, else that of the loss.
Result<Classes> find_classes(Graph& graph, llvm::ArrayRef<std::string> metrics, llvm::StringRef metric) {
  std::string named;
  for (const std::string& each : metrics) {
    const std::string operands = llvm::StringRef(each).split(':').second.str();
    if (operands.empty()) continue;
    if (!named.empty() && operands != llvm::StringRef(named).split(':').second)
      return usage_error(each + ": all metrics of a plan count the same logits and labels, and " + named +
                         " names others");
    named = each;
  }
  return named.empty() ? classes_of_loss(graph, metric_name(metric)) : named_classes(graph, named);
}

// Adds what the metrics of one classification need.
class ClassMetrics {
 public:
  ClassMetrics(Graph& graph, const Classes& classes)
      : b_(graph), logits_(classes.logits), labels_(b_.cast(classes.labels, DType::I64)) {
    counted_ = b_.emit("not", {b_.emit("equal", {labels_, number(classes.ignored)})});
  }

  Status add(llvm::StringRef metric) {
    if (metric == "f1" || metric == "miou") return add_confusion(metric);
    output("counted", [&] { return count_of(counted_); });
    if (metric == "accuracy")
      output(metric, [&] { return count_of(b_.emit("and", {b_.emit("equal", {prediction(), labels_}), counted_})); });
    else
      output(metric, [&] { return hits_among(*k_of(metric)); });
    return Status::success();
  }

 private:
  int64_t classes() const { return b_.type(logits_).shape[1]; }
  ValueId number(int64_t value) { return b_.constant(Tensor::scalar_int(value)); }

  template <typename Make>
  void output(llvm::StringRef name, Make make) {
    Graph& graph = b_.graph();
    if (llvm::any_of(graph.outputs, [&](const Output& each) { return each.name == name; })) return;
    graph.outputs.push_back({name.str(), make()});
  }

  ValueId all_of(ValueId x) {
    Ints axes;
    for (int64_t i = 0; i < b_.type(x).rank(); ++i) axes.push_back(i);
    return axes.empty() ? x : b_.sum(x, axes, false);
  }
  ValueId count_of(ValueId flags) { return all_of(b_.cast(flags, DType::F32)); }

  ValueId prediction() {
    if (prediction_ == ValueId::None) prediction_ = b_.emit("arg_max", {logits_}, {{"axis", int64_t{1}}});
    return prediction_;
  }

  ValueId hits_among(int64_t k) {
    const auto best = b_.emit_all("top_k", {logits_}, {{"axis", int64_t{1}}, {"k", std::min(k, classes())}});
    Shape one_class = b_.type(labels_).shape;
    one_class.insert(one_class.begin() + 1, 1);
    const ValueId right = b_.emit("equal", {best[1], b_.reshape(labels_, one_class)});
    return count_of(b_.emit("and", {right, b_.reshape(counted_, one_class)}));
  }

  // Each counted label adds 1 at label * classes + prediction.
  Status add_confusion(llvm::StringRef metric) {
    if (classes() > max_confusion_classes)
      return usage_error(metric + ": " + llvm::Twine(classes()) + " classes, a confusion matrix has at most " +
                         llvm::Twine(max_confusion_classes));
    output("confusion", [&] {
      const int64_t labels = b_.type(labels_).elements();
      const ValueId row = b_.emit("where", {counted_, labels_, number(0)});
      const ValueId at = b_.emit("add", {b_.emit("mul", {row, number(classes())}), prediction()});
      const ValueId counts =
          b_.emit("gather_grad", {b_.reshape(at, {labels}), b_.reshape(b_.cast(counted_, DType::F32), {labels})},
                  {{"axis", int64_t{0}}, {"size", classes() * classes()}});
      return b_.reshape(counts, {classes(), classes()});
    });
    return Status::success();
  }

  Builder b_;
  ValueId logits_, labels_, counted_, prediction_ = ValueId::None;
};

Status check_output(const Graph& graph, llvm::StringRef metric) {
  std::string scalars;
  for (const Output& output : graph.outputs) {
    const Type& type = graph.type(output.value);
    if (!is_float(type.dtype) || type.elements() != 1) continue;
    if (output.name == metric) return Status::success();
    scalars += (scalars.empty() ? "" : ", ") + output.name;
  }
  return usage_error("there is no metric '" + metric +
                     "'; there are accuracy, top5 (or another number), perplexity, f1, miou and the model's scalar "
                     "outputs: " +
                     scalars);
}

}  // namespace

llvm::StringRef metric_name(llvm::StringRef metric) { return metric.split(':').first; }

Status add_metrics(Graph& graph, llvm::ArrayRef<std::string> metrics) {
  if (const ValueId weight = find_sample_weight(graph, graph.outputs.front().value); weight != ValueId::None)
    graph.outputs.push_back({"weight", Builder(graph).cast(weight, DType::F32)});
  std::optional<ClassMetrics> classes;
  for (const std::string& metric : metrics) {
    const llvm::StringRef name = metric_name(metric);
    if (!counts_classes(name)) {
      if (metric == "perplexity" || metric == "loss") continue;
      if (Status s = check_output(graph, metric)) return s;
      continue;
    }
    if (!classes) {
      Result<Classes> found = find_classes(graph, metrics, metric);
      if (!found) return found.takeError();
      classes.emplace(graph, *found);
    }
    if (Status s = classes->add(name)) return s;
  }
  return Status::success();
}

OutputUse use_of_output(llvm::StringRef output, const Type& type, int64_t batch) {
  if (llvm::is_contained(sums, output) || k_of(output)) return OutputUse::Sum;
  if (is_float(type.dtype) && type.elements() == 1) return OutputUse::Mean;
  return type.rank() > 0 && type.shape[0] == batch ? OutputUse::Rows : OutputUse::Whole;
}

}  // namespace plimsoll
