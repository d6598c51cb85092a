#include "passes/train/training_step.h"

// Finds the loss in a model, or builds one from named values: "ce", "ce:logits:labels + 0.5*mse:image:target".

#include "ir/adapter_names.h"
#include "ir/builder.h"
#include "ir/ops/common/support.h"
#include "ir/support/regex_text.h"
#include "passes/rewrite/quantised_weights.h"
#include "passes/train/exported_adapters.h"

#include "llvm/ADT/StringExtras.h"

#include <algorithm>

namespace plimsoll {
namespace {

std::string list_outputs(const Graph& graph) {
  std::string text;
  for (const Output& output : graph.outputs)
    text += (text.empty() ? "" : ", ") + output.name + " " + to_string(graph.type(output.value));
  return text;
}

bool is_scalar_float(const Type& type) { return is_float(type.dtype) && type.elements() == 1; }

Result<ValueId> find_named(const Graph& graph, llvm::StringRef name) {
  for (const Output& output : graph.outputs)
    if (output.name == name) return output.value;
  if (ValueId value = graph.find_value(name); value != ValueId::None) return value;
  return model_error("loss: the model has no value '" + name + "'; its outputs are " + list_outputs(graph));
}

Result<ValueId> cross_entropy(Builder& b, ValueId logits, ValueId labels, double smoothing) {
  // Classes stand last in most models; ONNX and our op want them at dimension 1.
  Shape shape = b.type(logits).shape;
  const Shape label_shape = b.type(labels).shape;
  bool classes_last =
      shape.size() > 2 && llvm::ArrayRef<int64_t>(shape).drop_back() == llvm::ArrayRef<int64_t>(label_shape);
  if (shape.size() == 2 || classes_last) {
    int64_t classes = shape.back(), rows = b.type(logits).elements() / std::max<int64_t>(classes, 1);
    logits = b.reshape(logits, {rows, classes});
    if (b.type(labels).elements() == rows) labels = b.reshape(labels, {rows});
  }
  Attrs attrs{{"reduction", std::string("mean")}, {"ignore_index", int64_t{-100}}};
  if (smoothing > 0) attrs.set("label_smoothing", smoothing);
  Result<NodeId> node = b.create(get_op("cross_entropy"), {logits, labels}, std::move(attrs), {"loss"});
  if (!node) return node.takeError();
  return b.graph().node(*node).results[0];
}

Status same_shapes(const Builder& b, llvm::StringRef kind, ValueId a, ValueId t) {
  if (b.type(a).shape == b.type(t).shape) return Status::success();
  return model_error("loss " + kind + ": shapes differ: " + to_string(b.type(a)) + " and " + to_string(b.type(t)));
}

ValueId mean_of(Builder& b, ValueId x) {
  Ints axes;
  for (int64_t i = 0; i < b.type(x).rank(); ++i) axes.push_back(i);
  return axes.empty() ? x : b.emit("reduce_mean", {x}, {{"axes", axes}, {"keep_dims", int64_t{0}}}, "loss");
}

Result<ValueId> mean_squared_error(Builder& b, ValueId a, ValueId target) {
  if (Status s = same_shapes(b, "mse", a, target)) return s;
  ValueId d = b.emit("sub", {a, b.cast(target, b.type(a).dtype)});
  return mean_of(b, b.emit("mul", {d, d}));
}

// It reads logits and has the form that cannot overflow: max(x, 0) - x*t + log(1 + exp(-|x|)).
Result<ValueId> binary_cross_entropy(Builder& b, ValueId x, ValueId target) {
  if (Status s = same_shapes(b, "bce", x, target)) return s;
  ValueId t = b.cast(target, b.type(x).dtype);
  ValueId linear_part = b.emit("sub", {b.emit("relu", {x}), b.emit("mul", {x, t})});
  ValueId tail = b.emit("softplus", {b.emit("neg", {b.emit("abs", {x})})});
  return mean_of(b, b.emit("add", {linear_part, tail}));
}

// A model that ends in its predictions gets its targets as a new graph input. Labels have the shape of the logits
// without the class dimension: the last one of [rows, classes] and [batch, time, classes], else dimension 1.
ValueId add_target_input(Graph& graph, llvm::StringRef kind, llvm::StringRef name, ValueId prediction) {
  Type type = graph.type(prediction);
  if (kind == "cross-entropy") {
    type.dtype = DType::I64;
    if (type.rank() >= 2) type.shape.erase(type.shape.begin() + (type.rank() <= 3 ? type.rank() - 1 : 1));
  }
  return graph.add_input(name, type);
}

// One summand of a loss as the caller wrote it.
struct LossTerm {
  double weight = 1;
  std::string kind;           // "cross-entropy", "mse" or "bce"; empty: `first` names a value that is a loss
  std::string first, second;  // predictions and targets; empty: found in the graph
  double smoothing = 0;
};

std::optional<std::string> read_kind(llvm::StringRef word) {
  if (word == "ce" || word == "cross-entropy") return "cross-entropy";
  if (word == "mse" || word == "bce") return word.str();
  return std::nullopt;
}

Result<LossTerm> read_term(llvm::StringRef text) {
  LossTerm term;
  llvm::StringRef rest = text.trim();
  if (const auto [factor, value] = rest.split('*'); !value.empty() && !factor.trim().getAsDouble(term.weight))
    rest = value.trim();
  llvm::SmallVector<llvm::StringRef, 4> parts;
  rest.split(parts, ':');
  const std::optional<std::string> kind = read_kind(parts[0]);
  if (!kind && parts.size() == 3)
    return usage_error("loss '" + parts[0] + "' is unknown; known are cross-entropy (ce), mse, bce");
  if (!kind) {
    term.first = rest.str();
    return term;
  }
  term.kind = *kind;
  if (parts.size() > 1 && parts.back().consume_front("smoothing=")) {
    if (*kind != "cross-entropy" || parts.back().getAsDouble(term.smoothing) || term.smoothing < 0 ||
        term.smoothing > 1)
      return usage_error("loss '" + text + "': smoothing is a number from 0 to 1, of cross-entropy alone");
    parts.pop_back();
  }
  if (parts.size() == 3)
    term.first = parts[1].str(), term.second = parts[2].str();
  else if (parts.size() != 1)
    return usage_error("loss '" + text + "': expected " + parts[0] + ":PREDICTION:TARGET, or " + parts[0] + " alone");
  return term;
}

// Where the caller names none, the predictions are the only output that is no scalar.
Result<ValueId> find_prediction(const Graph& graph, const LossTerm& term) {
  if (!term.first.empty()) return find_named(graph, term.first);
  std::vector<ValueId> found;
  for (const Output& output : graph.outputs)
    if (is_float(graph.type(output.value).dtype) && !is_scalar_float(graph.type(output.value)))
      found.push_back(output.value);
  if (found.size() == 1) return found.front();
  return model_error("loss " + term.kind + ": which output it reads is not clear (" + list_outputs(graph) +
                     "); write " + term.kind + ":OUTPUT:TARGET");
}

Result<ValueId> build_loss(Graph& graph, const LossTerm& term) {
  Result<ValueId> a = find_prediction(graph, term);
  if (!a) return a.takeError();
  const bool classes = term.kind == "cross-entropy";
  const std::string second = !term.second.empty() ? term.second : classes ? "labels" : "targets";
  ValueId target = graph.find_value(second);
  if (target == ValueId::None) target = add_target_input(graph, term.kind, second, *a);
  Builder b(graph);
  if (classes) return cross_entropy(b, *a, target, term.smoothing);
  return term.kind == "mse" ? mean_squared_error(b, *a, target) : binary_cross_entropy(b, *a, target);
}

Result<ValueId> emit_term(Graph& graph, llvm::StringRef text, bool alone) {
  Result<LossTerm> term = read_term(text);
  if (!term) return term.takeError();
  Result<ValueId> loss = term->kind.empty() ? find_named(graph, term->first) : build_loss(graph, *term);
  if (!loss || (alone && term->weight == 1)) return loss;
  if (!is_scalar_float(graph.type(*loss)))
    return model_error("loss '" + text.trim() + "' is " + to_string(graph.type(*loss)) + ", not a float scalar");
  Builder b(graph);
  // Sums of losses have the dtype of statistics.
  ValueId scalar = b.reshape(*loss, {});
  scalar = b.cast(scalar, stat_dtype(b.type(scalar).dtype));
  return term->weight == 1 ? scalar : b.emit("mul", {scalar, b.scalar(term->weight, b.type(scalar).dtype)});
}

Result<ValueId> sum_of_terms(Graph& graph, llvm::StringRef loss) {
  llvm::SmallVector<llvm::StringRef, 4> texts;
  loss.split(texts, '+');
  llvm::SmallVector<ValueId, 4> terms;
  for (llvm::StringRef text : texts) {
    Result<ValueId> term = emit_term(graph, text, texts.size() == 1);
    if (!term) return term;
    terms.push_back(*term);
  }
  if (terms.size() == 1) return terms.front();
  Builder b(graph);
  for (ValueId& term : terms) term = b.cast(term, b.type(terms.front()).dtype);
  return b.emit("add_n", terms, {}, "loss");
}

Result<ValueId> choose_loss(Graph& graph, llvm::StringRef loss) {
  // A name may hold what else would be read as a sum.
  const bool is_name = graph.find_value(loss) != ValueId::None ||
                       llvm::any_of(graph.outputs, [&](const Output& output) { return output.name == loss; });
  if (is_name) return find_named(graph, loss);
  if (!loss.empty()) return sum_of_terms(graph, loss);
  std::vector<ValueId> scalars;
  for (const Output& output : graph.outputs)
    if (is_scalar_float(graph.type(output.value))) scalars.push_back(output.value);
  if (scalars.size() == 1) return scalars.front();
  return model_error(llvm::Twine(scalars.empty() ? "no loss: no output is a float scalar"
                                                 : "no loss: several outputs are float scalars") +
                     " (" + list_outputs(graph) +
                     "); name the output that is the loss, or attach one such as cross-entropy:LOGITS:LABELS");
}

Result<std::vector<llvm::Regex>> parse_all(llvm::ArrayRef<std::string> patterns) {
  std::vector<llvm::Regex> parsed;
  for (const std::string& pattern : patterns) {
    Result<llvm::Regex> regex = parse_regex(pattern);
    if (!regex) return regex.takeError();
    parsed.push_back(std::move(*regex));
  }
  return parsed;
}

bool matches_any(llvm::ArrayRef<llvm::Regex> patterns, llvm::StringRef name) {
  return llvm::any_of(patterns, [&](const llvm::Regex& pattern) { return pattern.match(name); });
}

}  // namespace

Status attach_loss(Graph& graph, llvm::StringRef loss) {
  Result<ValueId> value = choose_loss(graph, loss);
  if (!value) return value.takeError();
  if (!is_scalar_float(graph.type(*value)))
    return model_error("loss '" + graph.value(*value).name + "' is " + to_string(graph.type(*value)) +
                       ", not a float scalar");
  Builder b(graph);
  ValueId scalar = b.reshape(*value, {});
  graph.outputs = {{"loss", scalar}};
  return Status::success();
}

// Codes do not train. Who says nothing of adapters and names no weights wants all of them trained.
static Status refuse_codes(const Graph& graph, llvm::ArrayRef<ValueId> codes) {
  return model_error(
      "'" + graph.value(codes.front()).name + "'" +
      (codes.size() == 1 ? " is" : " and " + std::to_string(codes.size() - 1) + " other weights are") +
      " quantised in the model's file, and codes are not trained; train adapters beside them, such as with --lora-rank "
      "8, or name other weights with --train, or these with --freeze");
}

Status select_trained(Graph& graph, llvm::ArrayRef<std::string> train, llvm::ArrayRef<std::string> freeze) {
  Result<std::vector<llvm::Regex>> asked_names = parse_all(train);
  if (!asked_names) return asked_names.takeError();
  Result<std::vector<llvm::Regex>> frozen_names = parse_all(freeze);
  if (!frozen_names) return frozen_names.takeError();
  const auto is_adapter = [](const State& state) { return parse_adapter_weight(state.init.source).has_value(); };
  const bool has_adapters = llvm::any_of(graph.states, is_adapter);
  // With adapters of its own a model trains what its author trained, unless the user names something else.
  const bool has_own =
      llvm::any_of(graph.states, [&](const State& state) { return is_adapter(state) && is_from_export(graph, state); });
  const std::map<ValueId, ValueId> parts = parts_of_quantised_weights(graph);
  std::vector<ValueId> asked_codes;
  for (State& state : graph.states) {
    if (state.role != StateRole::Parameter && state.role != StateRole::Buffer) continue;
    llvm::StringRef name = graph.value(state.value).name;
    const bool asked = matches_any(*asked_names, name), frozen = matches_any(*frozen_names, name);
    bool by_default = train.empty() && state.role == StateRole::Parameter;
    if (has_own)
      by_default &= is_from_export(graph, state) && state.trained;
    else if (has_adapters)
      by_default = is_adapter(state);
    state.trained = (asked || by_default) && !frozen;
    if (const auto part = parts.find(state.value); part != parts.end()) {
      if (state.trained && part->second != ValueId::None) asked_codes.push_back(state.value);
      state.trained = false;
    }
    state.trained = state.trained && is_float(graph.type(state.value).dtype);
    if (state.trained) state.role = StateRole::Parameter;
  }
  if (!asked_codes.empty()) return refuse_codes(graph, asked_codes);
  if (llvm::none_of(graph.states, [](const State& state) { return state.trained; }))
    return model_error("nothing to train: no parameter is both selected and not frozen");
  return Status::success();
}

}  // namespace plimsoll
