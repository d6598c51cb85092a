#include "passes/train/exported_adapters.h"

#include "ir/op_def.h"
#include "ir/ops/common/support.h"
#include "ir/support/strings.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/ScopedPrinter.h"

#include <map>
#include <set>

namespace plimsoll {
namespace {

std::string text_of(double number) { return llvm::to_string(llvm::format("%g", number)); }

// The layer that reads a matrix, past casts and transposes; None where nothing does. DoRA's norms read it as well.
NodeId reader_of(const Graph& graph, ValueId matrix) {
  for (NodeId user : graph.value(matrix).users) {
    const Node& node = graph.node(user);
    if (node.op->name == "dora_scale") continue;
    if (!node.op->only_moves()) return user;
    if (const NodeId behind = reader_of(graph, node.results[0]); behind != NodeId::None) return behind;
  }
  return NodeId::None;
}

// The factor of B's result: PEFT multiplies it by one number, which exporters leave out where it is 1.
double scale_behind(const Graph& graph, ValueId value) {
  for (NodeId user : graph.value(value).users) {
    const Node& node = graph.node(user);
    if (node.op->only_moves()) {
      if (const double scale = scale_behind(graph, node.results[0]); scale != 1) return scale;
      continue;
    }
    if (node.op->name != "mul") continue;
    const std::optional<double> factor = scalar_constant(graph, node.operands[node.operands[0] == value ? 1 : 0]);
    if (factor) return *factor;
  }
  return 1;
}

// The same number as DoRA's norms have it; none where magnitudes are read otherwise.
std::optional<double> scale_of_norms(const Graph& graph, ValueId magnitude) {
  for (NodeId user : graph.value(magnitude).users) {
    const Node& node = graph.node(user);
    if (node.op->name == "dora_scale") return node.attrs.get_float("scale");
    if (!node.op->only_moves()) continue;
    if (const auto scale = scale_of_norms(graph, node.results[0])) return scale;
  }
  return std::nullopt;
}

double dropout_before(const Graph& graph, ValueId value) {
  for (NodeId producer = graph.value(value).producer; producer != NodeId::None;
       producer = graph.value(value).producer) {
    const Node& node = graph.node(producer);
    if (node.op->name == "dropout") return node.attrs.get_float("ratio");
    if (!node.op->only_moves()) break;
    value = node.operands[0];
  }
  return 0;
}

struct Found {
  const State *a = nullptr, *b = nullptr, *magnitude = nullptr;
  bool of_embedding = false;
};

}  // namespace

bool is_from_export(const Graph& graph, const State& state) {
  return state.init.kind == StateInit::Kind::Weights && starts_with(state.init.source, adapter_prefix) &&
         ends_with(graph.value(state.value).name, state.init.source);
}

Result<std::vector<ExportedAdapter>> exported_adapters_of(const Graph& graph) {
  std::map<std::string, Found> found;
  for (const State& state : graph.states) {
    const auto weight = parse_adapter_weight(state.init.source);
    if (!weight || !is_from_export(graph, state)) continue;
    Found& own = found[weight->module.str()];
    const bool is_magnitude = weight->matrix == AdapterMatrix::Magnitude;
    (is_magnitude ? own.magnitude : weight->is_first() ? own.a : own.b) = &state;
    own.of_embedding |= weight->is_of_embedding();
  }
  std::vector<ExportedAdapter> adapters;
  for (const auto& [module, matrices] : found) {
    if (!matrices.a || !matrices.b) return model_error("the adapter of " + module + " lacks one of its two matrices");
    const NodeId first = reader_of(graph, matrices.a->value), second = reader_of(graph, matrices.b->value);
    if (first == NodeId::None || second == NodeId::None)
      return model_error("the adapter of " + module + " is read by no layer");
    ExportedAdapter adapter{module, graph.type(matrices.a->value).shape[matrices.of_embedding ? 1 : 0], 1, 0};
    adapter.has_magnitudes = matrices.magnitude != nullptr;
    const std::optional<double> of_norms =
        matrices.magnitude ? scale_of_norms(graph, matrices.magnitude->value) : std::nullopt;
    adapter.scale = of_norms ? *of_norms : scale_behind(graph, graph.node(second).results[0]);
    if (!matrices.of_embedding) adapter.dropout = dropout_before(graph, graph.node(first).operands[0]);
    adapters.push_back(std::move(adapter));
  }
  return adapters;
}

std::string describe(const Graph& graph, llvm::ArrayRef<ExportedAdapter> adapters) {
  std::set<int64_t> ranks;
  std::set<double> scales;
  for (const ExportedAdapter& adapter : adapters) ranks.insert(adapter.rank), scales.insert(adapter.scale);
  const auto range = [](const auto& numbers) {
    const std::string first = text_of(static_cast<double>(*numbers.begin()));
    return numbers.size() == 1 ? first : first + " to " + text_of(static_cast<double>(*numbers.rbegin()));
  };
  const bool have_magnitudes =
      llvm::any_of(adapters, [](const ExportedAdapter& adapter) { return adapter.has_magnitudes; });
  const auto whole = llvm::count_if(graph.states, [&](const State& state) {
    return is_from_export(graph, state) && state.trained && !parse_adapter_weight(state.init.source);
  });
  return std::to_string(adapters.size()) + (adapters.size() == 1 ? " module" : " modules") + " of rank " +
         range(ranks) + " and scale " + range(scales) + (have_magnitudes ? " with magnitudes" : "") + ", such as " +
         adapters.front().module +
         (whole == 0   ? ""
          : whole == 1 ? "; 1 parameter is trained whole"
                       : "; " + std::to_string(whole) + " parameters are trained whole");
}

void describe_exported_adapters(TrainingSummary& summary, llvm::ArrayRef<ExportedAdapter> adapters) {
  auto& numbers = summary.hyperparameters;
  const ExportedAdapter& first = adapters.front();
  const auto alpha_of = [](const ExportedAdapter& adapter) {
    return adapter.scale * static_cast<double>(adapter.rank);
  };
  numbers.push_back({adapter_rank_number.str(), static_cast<double>(first.rank)});
  numbers.push_back({adapter_alpha_number.str(), alpha_of(first)});
  if (first.dropout > 0) numbers.push_back({adapter_dropout_number.str(), first.dropout});
  for (const ExportedAdapter& adapter : adapters)
    if (alpha_of(adapter) != alpha_of(first))
      numbers.push_back({adapter_alpha_number_of(adapter.module), alpha_of(adapter)});
}

}  // namespace plimsoll
