#include "tests/support/random_values.h"

#include "ir/verify.h"

#include <cmath>
#include <random>

namespace plimsoll {
namespace {

Tensor random_tensor(const Type& type, uint32_t seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<double> normal;
  Tensor tensor(type);
  for (int64_t i = 0; i < type.elements(); ++i) {
    if (is_float(type.dtype))
      tensor.view().set(i, normal(engine));
    else
      tensor.view().set_int(i, static_cast<int64_t>(engine() & 1));
  }
  return tensor;
}

uint32_t seed_of(llvm::StringRef name) {
  uint32_t hash = 2166136261;  // FNV-1a
  for (unsigned char c : name) hash = (hash ^ c) * 16777619;
  return hash;
}

}  // namespace

double tolerance(DType dtype) {
  switch (dtype) {
    case DType::F64: return 1e-12;  // reassociation of a few operations
    case DType::F32: return 2e-6;   // ~16 ulp at 1: the reference rounds each node's result once
    case DType::F16: return 8e-3;   // ~8 ulp
    case DType::BF16: return 6e-2;  // ~8 ulp
    case DType::F8E4M3:
    case DType::F8E5M2: return 0.25;  // one step
    default: return 0;
  }
}

void RandomValues::add_for(const Graph& graph) {
  auto add = [&](ValueId id) {
    const Value& value = graph.value(id);
    tensors.try_emplace(value.name, random_tensor(value.type, seed_of(value.name)));
  };
  for (ValueId input : graph.inputs) add(input);
  for (const State& state : graph.states) add(state.value);
}

Bindings RandomValues::bind(const Graph& graph) const {
  Bindings bindings;
  auto bind = [&](ValueId id) {
    if (auto at = tensors.find(graph.value(id).name); at != tensors.end()) bindings[id] = &at->second;
  };
  for (ValueId input : graph.inputs) bind(input);
  for (const State& state : graph.states) bind(state.value);
  return bindings;
}

Tensor filled_rows(const Tensor& batch, const Type& rows, int64_t rank) {
  Tensor own(rows);
  const int64_t bytes = rows.bytes(), all = batch.type().bytes();
  for (int64_t i = 0; i < bytes; ++i) own.view().as<char>()[i] = batch.view().as<char>()[(rank * bytes + i) % all];
  return own;
}

std::string describe_difference(const Tensor& a, const Tensor& b) {
  if (a.type() != b.type()) return to_string(a.type()) + " and " + to_string(b.type());
  for (int64_t i = 0; i < a.type().elements(); ++i) {
    double x = a.get(i), y = b.get(i);
    bool equal = x == y || (std::isnan(x) && std::isnan(y)) ||
                 std::fabs(x - y) <= tolerance(a.type().dtype) * std::max(1.0, std::fabs(x));
    if (!equal) return "element " + std::to_string(i) + " is " + std::to_string(x) + " and " + std::to_string(y);
  }
  return "";
}

namespace {

// As many ranks along the data axis as the graph's collectives have.
Mesh mesh_of(const Graph& graph) {
  Mesh mesh;
  for (NodeId id : graph.order())
    if (graph.node(id).op->collective) mesh[MeshAxis::Data] = graph.node(id).attrs.get_int("ranks");
  return mesh;
}

// The results of the first of its ranks, which all have the same values.
Result<Evaluation> evaluate_alike(const Graph& graph, const RandomValues& values) {
  const Mesh mesh = mesh_of(graph);
  Result<std::vector<Evaluation>> ranks =
      evaluate_on_ranks(graph, mesh, std::vector<Bindings>(static_cast<size_t>(mesh.ranks()), values.bind(graph)));
  if (!ranks) return ranks.takeError();
  return std::move(ranks->front());
}

// The next values of states by name, in the order in which these are updated first; pieces are put together.
std::vector<std::pair<std::string, Tensor>> next_values(const Graph& graph, const Evaluation& evaluation) {
  std::vector<std::pair<std::string, Tensor>> values;
  for (size_t i = 0; i < graph.updates.size(); ++i) {
    const Update& update = graph.updates[i];
    const std::string& name = graph.value(update.state).name;
    const Tensor& next = evaluation.updates[i];
    const std::optional<int64_t> begin = begin_of_piece(graph, update);
    if (!begin) {
      values.emplace_back(name, next);
      continue;
    }
    auto whole = llvm::find_if(values, [&](const auto& each) { return each.first == name; });
    if (whole == values.end()) whole = values.insert(whole, {name, Tensor(graph.type(update.state))});
    for (int64_t e = 0; e < next.type().elements(); ++e) whole->second.view().set(*begin + e, next.get(e));
  }
  return values;
}

}  // namespace

std::string compare_results(const Graph& before, const Graph& after) {
  RandomValues values;
  values.add_for(before);
  Result<Evaluation> left = evaluate_alike(before, values), right = evaluate_alike(after, values);
  std::string failure;
  for (Result<Evaluation>* run : {&left, &right})
    if (!*run) failure += "evaluation failed: " + take_diag(run->takeError()).text();
  if (!failure.empty()) return failure;
  const auto left_states = next_values(before, *left), right_states = next_values(after, *right);
  if (left->outputs.size() != right->outputs.size() || left_states.size() != right_states.size())
    return "another number of outputs or updates";
  for (size_t i = 0; i < left->outputs.size(); ++i)
    if (std::string text = describe_difference(left->outputs[i], right->outputs[i]); !text.empty())
      return "output " + before.outputs[i].name + ": " + text;
  for (size_t i = 0; i < left_states.size(); ++i) {
    const auto& [state, next] = left_states[i];
    if (state != right_states[i].first) return "updates of other states";
    if (std::string text = describe_difference(next, right_states[i].second); !text.empty())
      return "update of " + state + ": " + text;
  }
  return "";
}

}  // namespace plimsoll
