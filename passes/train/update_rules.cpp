#include "passes/train/update_rules.h"

#include "ir/support/regex_text.h"
#include "ir/support/strings.h"
#include "passes/pass/pass_manager.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/raw_ostream.h"

#include <cmath>
#include <map>

namespace plimsoll {
namespace {

// A reader of a value, and at which operand.
struct Reader {
  NodeId node;
  size_t operand;
};

void collect_readers(const Graph& graph, ValueId value, std::vector<Reader>& readers) {
  for (NodeId user : graph.value(value).users) {
    const Node& node = graph.node(user);
    if (node.op->only_moves())
      for (ValueId result : node.results) collect_readers(graph, result, readers);
    else
      for (size_t i = 0; i < node.operands.size(); ++i)
        if (node.operands[i] == value) readers.push_back({user, i});
  }
}

std::vector<Reader> readings_of(const Graph& graph, ValueId value) {
  std::vector<Reader> readers;
  collect_readers(graph, value, readers);
  return readers;
}

// Is the value, as it is or in another shape or dtype, what a loss over classes reads?
bool is_logits(const Graph& graph, ValueId value) {
  return llvm::any_of(readings_of(graph, value),
                      [&](const Reader& reader) { return graph.node(reader.node).op->is_loss_over_classes(); });
}

// Muon is for the matrices of hidden layers: embeddings, heads and everything that is no matrix have AdamW
// (Jordan et al. 2024).
bool is_hidden_matrix(const Graph& graph, const State& state) {
  if (whole_shape(state.divisions, graph.type(state.value).shape).size() != 2) return false;
  const std::vector<Reader> readers = readings_of(graph, state.value);
  return !readers.empty() && llvm::all_of(readers, [&](const Reader& reader) {
    const Node& node = graph.node(reader.node);
    return (node.op->name == "linear" || node.op->name == "matmul") && reader.operand < 2 &&
           !is_logits(graph, node.results[0]);
  });
}

// "encoder.layer.3" of "encoder.layer.3.output.weight": the name up to its first number. Empty where it has none.
llvm::StringRef layer_of(llvm::StringRef name) {
  size_t begin = 0;
  while (begin < name.size()) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const llvm::StringRef part = name.slice(begin, end);
    if (!part.empty() && llvm::all_of(part, llvm::isDigit)) return name.take_front(end);
    begin = end + 1;
  }
  return "";
}

// How many layers lie above each trained state: those of the model in the order in which it uses them. What it uses
// before the first layer lies below all of them, and what belongs to none and is used later above all.
llvm::StringMap<int64_t> layers_above(const Graph& graph) {
  std::vector<int64_t> places(graph.node_slots());
  int64_t next = 0;
  for (NodeId id : graph.order()) places[index_of(id)] = next++;
  auto first_use = [&](const State& state) {
    int64_t first = next;
    for (const Reader& reader : readings_of(graph, state.value)) first = std::min(first, places[index_of(reader.node)]);
    return first;
  };
  std::map<std::string, int64_t> begins;  // by layer: its first use
  for (const State& state : graph.states) {
    if (!state.trained) continue;
    const llvm::StringRef layer = layer_of(graph.value(state.value).name);
    if (layer.empty()) continue;
    const auto [at, added] = begins.try_emplace(layer.str(), next);
    at->second = std::min(at->second, first_use(state));
  }
  std::vector<int64_t> in_order;
  for (const auto& [layer, begin] : begins) in_order.push_back(begin);
  llvm::sort(in_order);
  const auto layers = static_cast<int64_t>(in_order.size());
  llvm::StringMap<int64_t> above;
  for (const State& state : graph.states) {
    if (!state.trained) continue;
    const llvm::StringRef name = graph.value(state.value).name, layer = layer_of(name);
    int64_t height = 0;  // of the layer, from 1; the parameters below them all have 0
    if (!layer.empty())
      height = 1 + (llvm::lower_bound(in_order, begins.at(layer.str())) - in_order.begin());
    else if (!in_order.empty() && first_use(state) > in_order.front())
      height = layers + 1;
    above[name] = layers + 1 - height;
  }
  return above;
}

bool matches(const ParameterGroup& group, llvm::StringRef name, size_t rank) {
  if (group.rank_below > 0) return static_cast<int64_t>(rank) < group.rank_below;
  return llvm::Regex(group.pattern).match(name);
}

}  // namespace

bool needs_whole_parameters(OptimizerKind kind) {
  return kind == OptimizerKind::Adafactor || kind == OptimizerKind::Muon;
}

UpdateRules find_update_rules(const Graph& forward, const TrainingRequest& request) {
  llvm::StringMap<int64_t> above;
  if (request.layer_rate != 1) above = layers_above(forward);
  UpdateRules rules;
  for (const State& state : forward.states) {
    if (!state.trained) continue;
    const llvm::StringRef name = forward.value(state.value).name;
    const size_t rank = whole_shape(state.divisions, forward.type(state.value).shape).size();
    std::optional<double> rate, decay;
    std::optional<OptimizerKind> optimizer;
    for (const ParameterGroup& group : request.groups) {
      if (!matches(group, name, rank)) continue;
      if (!rate) rate = group.rate;
      if (!decay) decay = group.weight_decay;
      if (!optimizer) optimizer = group.optimizer;
    }
    UpdateRule rule{request.optimizer.kind, rate.value_or(1), decay.value_or(request.optimizer.weight_decay)};
    if (request.layer_rate != 1) rule.rate *= std::pow(request.layer_rate, static_cast<double>(above.lookup(name)));
    if (rule.optimizer == OptimizerKind::Muon && !(rank == 2 && optimizer == OptimizerKind::Muon) &&
        (optimizer == OptimizerKind::AdamW || !is_hidden_matrix(forward, state)))
      rule.optimizer = OptimizerKind::AdamW;
    rules[name] = rule;
  }
  return rules;
}

Status check_update_rules(const Graph& forward, const TrainingRequest& request) {
  for (const ParameterGroup& group : request.groups) {
    if (group.rank_below > 0) continue;  // no name that could be wrong
    if (Result<llvm::Regex> regex = parse_regex(group.pattern); !regex) return regex.takeError();
    const bool found = llvm::any_of(forward.states, [&](const State& state) {
      return state.trained && matches(group, forward.value(state.value).name, forward.type(state.value).shape.size());
    });
    if (!found) return usage_error("the group '" + group.pattern + "' matches the name of no trained parameter");
  }
  const bool pieces = request.zero > 0 && request.mesh[MeshAxis::Data] > 1, parts = request.mesh[MeshAxis::Tensor] > 1;
  if (needs_whole_parameters(request.optimizer.kind) && (pieces || parts))
    return usage_error(optimizer_name(request.optimizer.kind) + " reads whole rows and columns of a parameter, and " +
                       (pieces ? "with --zero a rank has a flat piece of it; give --zero 0"
                               : "along the axis tensor a rank has a part of it; use the axes data and stage"));
  return Status::success();
}

void note_update_rules(const Graph& forward, const TrainingRequest& request, PassManager& passes) {
  struct Count {
    UpdateRule rule;
    int64_t parameters = 0, elements = 0;
    std::string first;
  };
  const UpdateRules rules = find_update_rules(forward, request);
  std::vector<Count> counts;
  for (const State& state : forward.states) {
    if (!state.trained) continue;
    const llvm::StringRef name = forward.value(state.value).name;
    const UpdateRule rule = rules.lookup(name);
    auto found = llvm::find_if(counts, [&](const Count& count) { return count.rule == rule; });
    if (found == counts.end()) found = counts.insert(counts.end(), {rule, 0, 0, name.str()});
    ++found->parameters;
    found->elements += forward.type(state.value).elements();
  }
  if (counts.size() < 2) return;
  for (const Count& count : counts) {
    std::string choice;
    llvm::raw_string_ostream(choice) << optimizer_name(count.rule.optimizer)
                                     << llvm::format(", %g x the learning rate, weight decay %g", count.rule.rate,
                                                     count.rule.weight_decay);
    const std::string others = count.parameters > 1 ? " and " + std::to_string(count.parameters - 1) + " more" : "";
    passes.decide(
        {"groups", count.first + others, choice, std::to_string(count.elements) + " elements have this rule"});
  }
}

}  // namespace plimsoll
