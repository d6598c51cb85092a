#include "passes/train/adapter_targets.h"

#include "ir/adapter_names.h"
#include "ir/op_def.h"
#include "ir/support/did_you_mean.h"
#include "ir/support/regex_text.h"
#include "ir/support/strings.h"
#include "passes/rewrite/match.h"
#include "passes/rewrite/quantised_weights.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"

#include <map>

namespace plimsoll {
namespace {

using Kind = AdaptableLayer::Kind;

constexpr llvm::StringLiteral weight_suffix = ".weight", all_linear = "all-linear";

// The parameter that an operand is: as it is, converted, transposed, or made of its codes, whose rows may be longer
// than the weight's.
struct Read {
  ValueId weight = ValueId::None;
  bool is_transposed = false;
};

// What the importer puts behind a dequantize: a cut to the weight's columns, the shape of a convolution's kernels.
bool is_made_of_codes(const Graph& graph, const Node& node) {
  const NodeId producer = graph.value(node.operands[0]).producer;
  return producer != NodeId::None && is_dequantize(graph.node(producer));
}

Read parameter_behind(const Graph& graph, ValueId value) {
  Read read;
  for (;;) {
    if (const State* state = graph.find_state(value)) {
      if (state->role == StateRole::Parameter) read.weight = value;
      return read;
    }
    const NodeId producer = graph.value(value).producer;
    if (producer == NodeId::None) return read;
    const Node& node = graph.node(producer);
    const bool turns = node.op->name == "transpose" && graph.type(value).rank() == 2;
    const bool is_made = is_dequantize(node);
    const bool passes_codes = (node.op->name == "slice" || node.op->name == "reshape") && is_made_of_codes(graph, node);
    if (!turns && !is_made && !passes_codes && node.op->name != "cast" && node.op->name != "identity") return read;
    read.is_transposed ^= turns;
    value = node.operands[0];
  }
}

std::optional<Kind> kind_of(const Graph& graph, const Node& node) {
  if (node.op->name == "linear") return Kind::Linear;
  if (node.op->name == "conv" && node.attrs.get_int("channels_last", 0) == 0) return Kind::Conv;
  const bool looks_up_rows =
      node.op->name == "gather" && node.attrs.get_int("axis") == 0 && graph.type(node.operands[0]).rank() == 2;
  return looks_up_rows ? std::optional(Kind::Embedding) : std::nullopt;
}

// The weight's name says it. Where the weight has another name, or is that of layers of two kinds, as a tied embedding
// is, it is where the layer comes from.
std::string module_of(const Graph& graph, const AdaptableLayer& layer, bool is_tied, llvm::StringRef root) {
  llvm::StringRef path = graph.value(layer.weight).name;
  const OriginId origin = graph.node(layer.nodes.front()).origin;
  const std::string from = origin == OriginId::None ? "" : graph.origins[index_of(origin)].module;
  const bool names_weight = path.consume_back(weight_suffix);
  if (from.empty() && !names_weight)  // "m.fc1.weight_Q4", as ONNX Runtime's quantisers call codes
    path = path.take_front(path.find((weight_suffix + "_").str()));
  if (!from.empty() && (!names_weight || is_tied)) path = from;
  path.consume_front(root);
  return path.str();
}

bool is_word(llvm::StringRef pattern) {
  return llvm::all_of(pattern, [](char c) { return llvm::isAlnum(c) || c == '_' || c == '.' || c == '-'; });
}

Result<bool> matches(const Graph& graph, const AdaptableLayer& layer, const std::string& pattern) {
  if (pattern == all_linear)
    return layer.kind == Kind::Linear &&
           llvm::none_of(layer.nodes, [&](NodeId id) { return makes_scores(graph, graph.node(id).results[0]); });
  if (is_word(pattern)) return layer.module == pattern || ends_with(layer.module, "." + pattern);
  Result<llvm::Regex> regex = parse_regex(pattern, /*whole=*/true);
  if (!regex) return regex.takeError();
  return regex->match(layer.module);
}

Status none_matches(const std::string& pattern, llvm::ArrayRef<AdaptableLayer> layers) {
  if (layers.empty())
    return model_error("the model has no linear layer, convolution or embedding with a weight to adapt");
  std::vector<llvm::StringRef> names;
  for (const AdaptableLayer& layer : layers) names.push_back(llvm::StringRef(layer.module).rsplit('.').second);
  llvm::sort(names);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  const std::vector<std::string> near = did_you_mean(pattern, names, 1);
  return usage_error("'" + pattern + "' matches none of the " + std::to_string(layers.size()) +
                     " modules that can have adapters, such as " + layers.front().module +
                     (near.empty() ? "" : "; did you mean " + near.front() + "?"));
}

}  // namespace

std::vector<AdaptableLayer> find_adaptable_layers(const Graph& graph, llvm::StringRef root) {
  std::vector<AdaptableLayer> layers;
  std::map<std::pair<ValueId, Kind>, size_t> known;
  for (NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    const std::optional<Kind> kind = kind_of(graph, node);
    if (!kind) continue;
    const Read read = parameter_behind(graph, node.operands[*kind == Kind::Embedding ? 0 : 1]);
    if (read.weight == ValueId::None || (read.is_transposed && *kind != Kind::Linear)) continue;
    const auto [at, is_new] = known.try_emplace({read.weight, *kind}, layers.size());
    if (is_new) {
      const bool is_transposed =
          *kind == Kind::Linear && (node.attrs.get_int("transpose_w") == 0) != read.is_transposed;
      Type type = graph.type(node.operands[*kind == Kind::Embedding ? 0 : 1]);
      if (read.is_transposed) std::swap(type.shape[0], type.shape[1]);
      layers.push_back({*kind, "", read.weight, type, is_transposed, {}});
    }
    layers[at->second].nodes.push_back(id);
  }
  for (AdaptableLayer& layer : layers) {
    const bool is_tied = llvm::any_of(
        layers, [&](const AdaptableLayer& other) { return other.weight == layer.weight && other.kind != layer.kind; });
    layer.module = module_of(graph, layer, is_tied, root);
  }
  return layers;
}

Result<std::vector<AdaptableLayer>> choose_adapted_layers(const Graph& graph, llvm::ArrayRef<std::string> patterns,
                                                          llvm::StringRef root) {
  const std::vector<AdaptableLayer> layers = find_adaptable_layers(graph, root);
  std::vector<bool> is_chosen(layers.size());
  for (const std::string& pattern : patterns) {
    bool found = false;
    for (size_t i = 0; i < layers.size(); ++i) {
      Result<bool> match = matches(graph, layers[i], pattern);
      if (!match) return match.takeError();
      found |= *match;
      is_chosen[i] = is_chosen[i] || *match;
    }
    if (!found) return none_matches(pattern, layers);
  }
  std::vector<AdaptableLayer> chosen;
  std::map<std::string, ValueId> paths;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (!is_chosen[i]) continue;
    const auto [at, is_new] = paths.try_emplace(layers[i].module, layers[i].weight);
    if (!is_new)
      return model_error("two layers are called " + layers[i].module + ", and read the weights " +
                         graph.value(at->second).name + " and " + graph.value(layers[i].weight).name +
                         "; files of adapters could not tell them apart");
    chosen.push_back(layers[i]);
  }
  return chosen;
}

void describe_adapters(TrainingSummary& summary, const AdapterRequest& adapters, bool adapts_transposed) {
  auto& numbers = summary.hyperparameters;
  numbers.push_back({adapter_rank_number.str(), static_cast<double>(adapters.rank)});
  numbers.push_back({adapter_alpha_number.str(), adapters.alpha_or_rank()});
  if (adapters.rslora) numbers.push_back({adapter_rslora_number.str(), 1});
  if (adapters.dropout > 0) numbers.push_back({adapter_dropout_number.str(), adapters.dropout});
  if (adapts_transposed) numbers.push_back({adapter_transposed_number.str(), 1});
}

bool adapts_transposed_weights(const Graph& graph) {
  std::map<std::string, bool> adapted;
  for (const State& state : graph.states)
    if (const auto weight = parse_adapter_weight(state.init.source)) adapted[weight->module.str()] = true;
  return llvm::any_of(find_adaptable_layers(graph, ""), [&](const AdaptableLayer& layer) {
    return layer.is_transposed && llvm::any_of(adapted, [&](const auto& each) {
             return layer.module == each.first || ends_with(layer.module, "." + each.first);
           });
  });
}

}  // namespace plimsoll
