#include "ir/adapter_names.h"
#include "ir/ops/common/support.h"
#include "ir/support/units.h"
#include "passes/pass/pass.h"
#include "passes/rewrite/match.h"
#include "passes/rewrite/quantised_weights.h"
#include "passes/train/adapter_targets.h"

#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/ScopedPrinter.h"

#include <cmath>

// LoRA (Hu et al. 2021), as PEFT does it. A layer's result gets the addend (s B) A x, in which A and B are new
// parameters of a low rank. s is alpha / rank, or alpha / sqrt(rank) (Kalajdzievski 2023), and multiplies B: in a step
// that happens once, however many chunks the batch has. With dropout, A reads x through a mask that is the module's
// own.
//   linear     two linear layers, the second of which adds the frozen layer's result; with {dora} each output is then
//              multiplied by its trained magnitude over the norm of its row of W + s B A, before biases
//   conv       a convolution to as many channels as the rank, like the layer's own, then one of 1 x 1
//   embedding  a lookup in the transpose of A, then a linear layer; no dropout
// A layer whose weight several nodes read has one adapter, which each of them reads. B or, of an embedding, A starts
// with zeros, so that the model's first loss is that of the frozen model.

namespace plimsoll {
namespace {

using Kind = AdaptableLayer::Kind;

struct Settings {
  int64_t rank = 0;
  double scale = 1, dropout = 0;
  bool dora = false;
  std::string root;
};

struct Matrices {
  ValueId a = ValueId::None, b = ValueId::None, magnitude = ValueId::None;
};

Shape ones_like_kernel(const Type& weight) { return Shape(static_cast<size_t>(weight.rank() - 2), 1); }

class Inserter {
 public:
  Inserter(Graph& graph, const Settings& settings) : graph_(graph), settings_(settings) {
    for (NodeId id : graph.order())
      if (const Node& node = graph.node(id); node.attrs.has("id"))
        next_random_id_ = std::max(next_random_id_, node.attrs.get_int("id") + 1);
  }

  // Gives how many numbers the layer's adapter has.
  Result<int64_t> adapt(const AdaptableLayer& layer) {
    const DType dtype = stat_dtype(layer.type.dtype);
    Result<std::pair<Shape, Shape>> shapes = shapes_of(layer);
    if (!shapes) return shapes.takeError();
    const bool looks_up = layer.kind == Kind::Embedding;
    if (settings_.dora && layer.kind != Kind::Linear)
      return usage_error("DoRA is for linear layers, and " + layer.module + " is " +
                         (looks_up ? "an embedding" : "a convolution") + "; name linear layers alone as targets");
    Matrices matrices{
        add_parameter(layer, Type(dtype, shapes->first), looks_up ? AdapterMatrix::EmbeddingA : AdapterMatrix::A),
        add_parameter(layer, Type(dtype, shapes->second), looks_up ? AdapterMatrix::EmbeddingB : AdapterMatrix::B)};
    const int64_t outputs = settings_.dora ? shapes->second[0] : 0;
    if (settings_.dora) matrices.magnitude = add_parameter(layer, Type(dtype, {outputs}), AdapterMatrix::Magnitude);
    for (NodeId id : layer.nodes) adapt_node(id, layer, matrices);
    return element_count(shapes->first) + element_count(shapes->second) + outputs;
  }

 private:
  // An embedding's A is stored as its transpose, a table with a short row for each of the embedding's rows.
  Result<std::pair<Shape, Shape>> shapes_of(const AdaptableLayer& layer) const {
    const Shape& weight = layer.type.shape;
    const int64_t rank = settings_.rank;
    if (layer.kind == Kind::Embedding) return std::make_pair(Shape{weight[0], rank}, Shape{weight[1], rank});
    if (layer.kind == Kind::Linear) {
      const int64_t inputs = weight[layer.is_transposed ? 0 : 1], outputs = weight[layer.is_transposed ? 1 : 0];
      return std::make_pair(Shape{rank, inputs}, Shape{outputs, rank});
    }
    const Node& conv = graph_.node(layer.nodes.front());
    const int64_t groups = conv.attrs.get_int("groups", 1);
    if (rank % groups != 0)
      return usage_error("the rank " + std::to_string(rank) + " does not divide by the " + std::to_string(groups) +
                         " groups of the convolution " + layer.module);
    Shape a = weight, b{weight[0], rank / groups};
    a[0] = rank, a[1] = weight[1] * groups;
    b.append(ones_like_kernel(layer.type));
    return std::make_pair(a, b);
  }

  ValueId add_parameter(const AdaptableLayer& layer, const Type& type, AdapterMatrix matrix) {
    const std::string suffix = adapter_suffixes[static_cast<size_t>(matrix)].str();
    return graph_.add_state(settings_.root + layer.module + suffix, type, StateRole::Parameter,
                            {StateInit::Kind::Weights, 0, adapter_weight_name(layer.module, matrix)}, true);
  }

  void adapt_node(NodeId id, const AdaptableLayer& layer, const Matrices& matrices) {
    const ValueId y = graph_.node(id).results[0];
    const llvm::SmallVector<ValueId, 4> operands = graph_.node(id).operands;
    const Attrs attrs = graph_.node(id).attrs;
    Builder b = builder_at(graph_, id);
    b.insert_before(graph_.next_node(id));
    if (settings_.dora) return adapt_with_magnitude(b, id, matrices);
    const DType dtype = graph_.type(y).dtype;
    const ValueId first = b.cast(matrices.a, dtype), second = b.cast(scaled(b, matrices.b), dtype);
    const std::string name = graph_.value(y).name;
    ValueId adapted = ValueId::None;
    switch (layer.kind) {
      case Kind::Linear: {
        const ValueId h = b.emit("linear", {dropped(b, operands[0]), first}, {{"transpose_w", 1}}, name + ".lora_A");
        adapted = b.emit("linear", {h, second, ValueId::None, y}, {{"transpose_w", 1}}, name + ".lora");
        break;
      }
      case Kind::Embedding: {
        const ValueId h = b.emit("gather", {first, operands[1]}, {{"axis", 0}}, name + ".lora_A");
        adapted = b.emit("linear", {h, second, ValueId::None, y}, {{"transpose_w", 1}}, name + ".lora");
        break;
      }
      case Kind::Conv: {
        Attrs like = attrs, pointwise;
        like.erase("groups");
        if (attrs.has("groups")) pointwise.set("groups", attrs.get_int("groups"));
        const ValueId h = b.emit("conv", {dropped(b, operands[0]), first}, like, name + ".lora_A");
        adapted = b.emit("add", {y, b.emit("conv", {h, second}, pointwise, name + ".lora_B")}, {}, name + ".lora");
        break;
      }
    }
    read_instead(y, adapted);
  }

  // As PEFT's DoraLinearLayer: g (W x + s B A x), with g = magnitude / norms, and biases behind it. With dropout the
  // frozen result is of all of x, and what DoRA changes of it, (g - 1) W x + g s B A x, of what dropout leaves.
  void adapt_with_magnitude(Builder& b, NodeId id, const Matrices& matrices) {
    const Node node = graph_.node(id);
    const ValueId y = node.results[0], x = node.operands[0], w = node.operands[1];
    const std::string name = graph_.value(y).name;
    const DType dtype = graph_.type(y).dtype;
    const int64_t by_outputs = node.attrs.get_int("transpose_w");
    const Attrs layer{{"transpose_w", by_outputs}}, own{{"transpose_w", 1}};
    const ValueId factor = b.emit("dora_scale", {weight_behind_casts(w), matrices.a, matrices.b, matrices.magnitude},
                                  {{"scale", settings_.scale}, {"transpose_w", by_outputs}}, name + ".lora_scale");
    // A factor near 1 has no room for its changes in 16 bits.
    const DType wide = b.type(factor).dtype;
    const auto times = [&](ValueId value, ValueId by) {
      return b.cast(b.emit("mul", {b.cast(value, wide), by}), dtype);
    };
    const ValueId seen = dropped(b, x);
    const ValueId h = b.emit("linear", {seen, b.cast(matrices.a, dtype)}, own, name + ".lora_A");
    const ValueId second = b.cast(scaled(b, matrices.b), dtype);
    if (seen != x) {
      const ValueId base = b.emit("linear", {seen, w}, layer, name + ".lora_base"),
                    change = b.emit("linear", {h, second}, own, name + ".lora_B"),
                    less = b.emit("sub", {factor, b.scalar(1, wide)});
      const ValueId all = b.emit("add", {times(base, less), times(change, factor)});
      return read_instead(y, b.emit("add", {y, all}, {}, name + ".lora"));
    }
    const ValueId base = b.emit("linear", {x, w}, layer, name + ".base");
    ValueId adapted = times(b.emit("linear", {h, second, ValueId::None, base}, own, name + ".lora"), factor);
    for (size_t i = 2; i < node.operands.size(); ++i)  // a bias, an addend
      if (node.operands[i] != ValueId::None) adapted = b.emit("add", {adapted, node.operands[i]});
    graph_.replace_uses(y, adapted);
    graph_.erase_node(id);
    graph_.rename(adapted, name + ".dora");
  }

  // Norms are of the weight as it is stored.
  ValueId weight_behind_casts(ValueId w) const {
    for (;;) {
      const NodeId producer = graph_.value(w).producer;
      if (producer == NodeId::None || graph_.node(producer).op->name != "cast") return w;
      w = graph_.node(producer).operands[0];
    }
  }

  // All readers of `y` read `adapted`, but for what adds the one to the other.
  void read_instead(ValueId y, ValueId adapted) {
    const NodeId sum = graph_.value(adapted).producer;
    const llvm::SmallVector<ValueId, 4> operands = graph_.node(sum).operands;
    graph_.replace_uses(y, adapted);
    for (size_t i = 0; i < operands.size(); ++i)
      if (operands[i] == y) graph_.set_operand(sum, i, y);
  }

  ValueId dropped(Builder& b, ValueId x) {
    if (settings_.dropout == 0) return x;
    return b.emit("dropout", {x, random_counter()}, {{"ratio", settings_.dropout}, {"id", next_random_id_++}});
  }

  ValueId random_counter() {
    const ValueId known = graph_.find_value("rng");
    if (known != ValueId::None && graph_.find_state(known)) return known;
    return graph_.add_state("rng", Type(DType::I64, {2}), StateRole::Counter, {StateInit::Kind::Fill, 0, ""});
  }

  ValueId scaled(Builder& b, ValueId matrix) {
    if (settings_.scale == 1) return matrix;
    return b.emit("mul", {matrix, b.scalar(settings_.scale, b.type(matrix).dtype)});
  }

  Graph& graph_;
  const Settings& settings_;
  int64_t next_random_id_ = 0;
};

Result<double> number_option(PassContext& context, llvm::StringRef name, double min, double below) {
  double number = 0;
  const std::string text = context.text(name);
  if (llvm::StringRef(text).getAsDouble(number) || !(number >= min && number < below))
    return usage_error(name + "=" + text + ": expected a number of at least " +
                       llvm::to_string(llvm::format("%g", min)));
  return number;
}

std::string layers_named(llvm::ArrayRef<AdaptableLayer> layers, Kind kind, const char* one) {
  const auto count = llvm::count_if(layers, [&](const AdaptableLayer& layer) { return layer.kind == kind; });
  return count == 0 ? "" : std::to_string(count) + " " + one + (count == 1 ? "" : "s");
}

// "layers.*.q_proj" of "layers.3.q_proj", for a line about all layers.
std::string without_numbers(llvm::StringRef path) {
  std::string text;
  for (llvm::StringRef part : llvm::split(path, '.'))
    text += (text.empty() ? "" : ".") + (llvm::all_of(part, llvm::isDigit) ? "*" : part.str());
  return text;
}

void decide(PassContext& context, llvm::ArrayRef<AdaptableLayer> layers, llvm::ArrayRef<int64_t> numbers,
            const Settings& settings, int64_t frozen) {
  int64_t total = 0;
  for (int64_t each : numbers) total += each;
  std::vector<std::string> kinds{layers_named(layers, Kind::Linear, "linear layer"),
                                 layers_named(layers, Kind::Conv, "convolution"),
                                 layers_named(layers, Kind::Embedding, "embedding")};
  llvm::erase_if(kinds, [](const std::string& kind) { return kind.empty(); });
  context.decide(
      "adapters", "rank " + std::to_string(settings.rank),
      std::to_string(layers.size()) + (layers.size() == 1 ? " module" : " modules") + " (" + llvm::join(kinds, ", ") +
          ") with " + format_count(total) + " numbers, beside " + format_count(frozen) + " of the model; " +
          format_share(static_cast<double>(total) / static_cast<double>(std::max<int64_t>(frozen, 1))) + ", scale " +
          llvm::to_string(llvm::format("%g", settings.scale)) + (settings.dora ? ", with magnitudes (DoRA)" : "") +
          (settings.root.empty() ? "" : "; paths are those behind " + settings.root));
  struct Like {
    int64_t modules = 0, numbers = 0;
  };
  llvm::MapVector<std::string, Like, std::map<std::string, unsigned>> alike;
  for (const auto& [layer, count] : llvm::zip(layers, numbers)) {
    Like& like = alike[without_numbers(layer.module)];
    ++like.modules;
    like.numbers += count;
  }
  for (const auto& [path, like] : alike)
    context.decide(path, "adapter",
                   format_count(like.modules) + (like.modules == 1 ? " module" : " modules") + ", " +
                       format_count(like.numbers) + " numbers");
}

Result<bool> run_insert_adapters(Graph& graph, PassContext& context) {
  Result<double> alpha = number_option(context, "alpha", 0, INFINITY),
                 dropout = number_option(context, "dropout", 0, 1);
  if (!alpha) return llvm::consumeError(dropout.takeError()), alpha.takeError();
  if (!dropout) return dropout.takeError();
  const auto rank = static_cast<double>(context.number("rank"));
  const Settings settings{context.number("rank"), *alpha / (context.number("rslora") != 0 ? std::sqrt(rank) : rank),
                          *dropout, context.number("dora") != 0, context.text("root")};
  std::vector<std::string> patterns;
  const std::string targets = context.text("targets");
  for (llvm::StringRef pattern : llvm::split(targets, ' ')) patterns.push_back(pattern.str());
  Result<std::vector<AdaptableLayer>> layers = choose_adapted_layers(graph, patterns, settings.root);
  if (!layers) return layers.takeError();
  int64_t frozen = 0;
  const std::map<ValueId, ValueId> parts = parts_of_quantised_weights(graph);
  for (const State& state : graph.states) {
    const auto part = parts.find(state.value);
    const ValueId numbers = part == parts.end() ? state.value : part->second;
    if (state.role == StateRole::Parameter && numbers != ValueId::None) frozen += graph.type(numbers).elements();
  }
  Inserter inserter(graph, settings);
  std::vector<int64_t> numbers;
  for (const AdaptableLayer& layer : *layers) {
    Result<int64_t> count = inserter.adapt(layer);
    if (!count) return count.takeError();
    numbers.push_back(*count);
  }
  decide(context, *layers, numbers, settings, frozen);
  context.count("modules", static_cast<int64_t>(layers->size()));
  return true;
}

constexpr PassOption options[] = {
    {"rank", 8, "rows of A and columns of B", 1},
    {"alpha", "8", "the scale times the rank, or with rslora times its root"},
    {"rslora", 0, "1: the scale is alpha over the root of the rank", 0, 1},
    {"dora", 0, "1: norms of adapted weights' rows are trained apart (DoRA)", 0, 1},
    {"dropout", "0", "share of an adapter's inputs that a step drops"},
    {"targets", "all-linear", "patterns over paths of modules, with spaces between"},
    {"root", "", "what names of weights begin with and paths do not"},
};

}  // namespace

constinit const PassInfo pass_insert_adapters{
    .name = "insert-adapters",
    .summary = "add trained matrices of a low rank to layers (LoRA)",
    .stage = Stage::Forward,
    .keeps_result = false,
    .options = options,
    .run = run_insert_adapters,
};

}  // namespace plimsoll
