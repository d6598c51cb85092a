#include "passes/train/training_step.h"

#include "ir/ops/common/support.h"
#include "passes/partition/divide_batch.h"
#include "passes/partition/pieces.h"
#include "passes/rewrite/match.h"
#include "passes/train/differentiate.h"
#include "passes/train/optimizer_update.h"

#include <cassert>

namespace plimsoll {
namespace {

void advance_random_counter(Graph& graph) {
  ValueId rng = graph.find_value("rng");
  if (rng == ValueId::None || !graph.find_state(rng)) return;
  Builder b(graph);
  b.phase = Phase::Update;
  ValueId next = b.emit("add", {rng, b.constant(Tensor::of_ints({0, 1}))}, {}, "rng.next");
  graph.updates.push_back({rng, next});
}

std::vector<Trained> collect_trained(const Graph& graph, const TrainingRequest& request) {
  const UpdateRules rules = find_update_rules(graph, request);
  std::vector<Trained> trained;
  for (const State& state : graph.states)
    if (state.trained)
      trained.push_back({graph.value(state.value).name, graph.type(state.value), state.origin, state.value,
                         ValueId::None, state.divisions, rules.lookup(graph.value(state.value).name)});
  return trained;
}

// Adds each gradient times the seed's weight into a state that the update function reads and clears.
void accumulate_gradients(Graph& graph, llvm::MutableArrayRef<Trained> parameters, ValueId weight) {
  Builder b(graph);
  b.phase = Phase::Backward;
  auto accumulate = [&](llvm::StringRef name, ValueId value, OriginId origin, StateRole role, Divisions divisions) {
    Type type(stat_dtype(graph.type(value).dtype), graph.type(value).shape);
    ValueId sum = graph.add_state(name, type, role, {StateInit::Kind::Fill, 0, ""});
    graph.states.back().origin = b.origin = origin;
    graph.states.back().divisions = std::move(divisions);
    graph.updates.push_back({sum, b.emit("add", {sum, b.cast(value, type.dtype)}, {}, name.str() + ".next")});
  };
  for (const Trained& p : parameters) {
    Divisions divisions = p.divisions;
    const bool reduced = !has_axis(divisions, MeshAxis::Data) && graph.type(p.grad) != p.type;
    if (reduced) divisions.push_back({MeshAxis::Data, p.type.shape, {}});
    accumulate(p.name + ".accumulated", p.grad, p.origin, StateRole::Gradient, std::move(divisions));
  }
  accumulate("accumulated_weight", weight, OriginId::None, StateRole::Counter, {});
}

enum class Reduce : uint8_t { All, ToPieces };

// Gradients of ranks that took different rows of the batch are summands; those of pieces were added up where the
// parameter was gathered. A rank that updates a piece of each state needs only that piece of the sum.
bool is_summand_over_data(const Graph& graph, const Trained& p, const TrainingRequest& request, Reduce which) {
  if (request.mesh[MeshAxis::Data] == 1 || has_axis(p.divisions, MeshAxis::Data)) return false;
  const Shape piece = updated_piece(p, request);
  if (piece.empty()) return which == Reduce::All;
  return graph.type(p.grad).shape != piece;  // else accumulated in pieces
}

// Summands are also those of parameters that ranks along the tensor axis hold alike.
bool is_summand_over_tensor(const Trained& p, const TrainingRequest& request, Reduce which) {
  return request.mesh[MeshAxis::Tensor] > 1 && which == Reduce::All && !has_axis(p.divisions, MeshAxis::Tensor);
}

void reduce_gradients(Builder& b, llvm::MutableArrayRef<Trained> parameters, const TrainingRequest& request,
                      Reduce which) {
  b.phase = Phase::Update;
  for (Trained& p : parameters) {
    const bool over_data = is_summand_over_data(b.graph(), p, request, which),
               over_tensor = is_summand_over_tensor(p, request, which);
    if (!over_data && !over_tensor) continue;
    b.origin = p.origin;
    // Sums over ranks are f32 where the optimizer has f32 weights, unless fewer bits are asked for.
    if (request.master_weights != MasterWeights::Off) p.grad = b.cast(p.grad, stat_dtype(b.type(p.grad).dtype));
    if (over_data) {
      if (request.sum_dtype != DType::F32) p.grad = b.cast(p.grad, request.sum_dtype);
      const Shape piece = updated_piece(p, request);
      p.grad = b.emit(piece.empty() ? "reduce_all" : "reduce_pieces", {p.grad},
                      collective_attrs(MeshAxis::Data, request.mesh[MeshAxis::Data], piece), p.name + ".grad");
    }
    if (over_tensor)
      p.grad = b.emit("reduce_all", {p.grad}, collective_attrs(MeshAxis::Tensor, request.mesh[MeshAxis::Tensor]),
                      p.name + ".grad");
  }
}

// Takes the output of that name away from the graph. None where there is none.
ValueId take_output(Graph& graph, llvm::StringRef name) {
  auto found = llvm::find_if(graph.outputs, [&](const Output& output) { return output.name == name; });
  if (found == graph.outputs.end()) return ValueId::None;
  const ValueId value = found->value;
  graph.outputs.erase(found);
  return value;
}

Graph make_update_function(const Graph& step, llvm::ArrayRef<Trained> parameters, const TrainingRequest& request) {
  Graph update;
  update.name = "update";
  update.origins = step.origins;
  Builder b(update);
  b.phase = Phase::Update;
  auto share = [&](llvm::StringRef name) {
    const State& state = *step.find_state(step.find_value(name));
    ValueId value = update.add_state(name, step.type(state.value), state.role, state.init, state.trained);
    update.states.back().origin = state.origin;
    update.states.back().divisions = state.divisions;
    return value;
  };
  std::vector<Trained> local(parameters.begin(), parameters.end());
  for (Trained& p : local) p.value = share(p.name);
  for (Trained& p : local) p.grad = share(p.name + ".accumulated");
  std::vector<ValueId> sums;
  for (const Trained& p : local) sums.push_back(p.grad);
  ValueId weight = share("accumulated_weight");
  reduce_gradients(b, local, request, Reduce::All);
  for (const Trained& p : local) update.gradients.push_back({p.value, p.grad});
  emit_updates(update, local, weight, request.scales_loss() ? share("loss_scale") : ValueId::None, request);
  auto clear = [&](ValueId state, OriginId origin) {
    const Type type = update.type(state);
    b.origin = origin;
    update.updates.push_back({state, b.emit("expand", {b.scalar(0, type.dtype)}, {{"shape", Ints(type.shape)}},
                                            update.value(state).name + ".cleared")});
  };
  for (const auto& [p, sum] : llvm::zip(local, sums)) clear(sum, p.origin);
  clear(weight, OriginId::None);
  return update;
}

// Says why no gradient arrives anywhere: every path ends at some op, or there is no path.
Status nothing_reached(const Graph& graph, ValueId loss, llvm::ArrayRef<ValueId> wrt) {
  std::vector<NodeId> ends = find_gradient_ends(graph, loss, wrt, Gradient::Kind::Zero);
  if (ends.empty()) return model_error("nothing to train: the loss depends on no trained parameter");
  const Node& node = graph.node(ends.front());
  return model_error(model_name(graph, ends.front()) + ": " + node.op->name +
                     " passes no gradient on, and every way from a trained parameter to the loss leads through " +
                     (ends.size() == 1 ? "it" : llvm::Twine(ends.size()) + " such nodes"));
}

}  // namespace

Result<Program> make_training_program(Graph forward, const TrainingRequest& request, ValueId sample_weight) {
  Graph step = std::move(forward);
  step.name = "train_step";
  const ValueId objective = take_output(step, objective_output);
  if (const ValueId weight = take_output(step, sample_weight_output); weight != ValueId::None) sample_weight = weight;
  assert(step.outputs.size() == 1 && "attach_loss leaves one output");
  ValueId loss = step.outputs.front().value;
  const DType loss_dtype = step.type(loss).dtype;
  std::vector<Trained> trained = collect_trained(step, request);
  llvm::SmallVector<ValueId, 16> wrt;
  for (const Trained& p : trained) wrt.push_back(p.value);

  Builder b(step);
  b.phase = Phase::Backward;
  bool accumulates = request.accumulate > 1;
  ValueId weight = accumulates ? sample_weight : ValueId::None;
  if (accumulates && weight == ValueId::None) weight = find_sample_weight(step, loss);
  if (weight == ValueId::None) weight = b.constant(Tensor::scalar(1, DType::F32), "sample_weight");
  ValueId loss_scale =
      request.scales_loss() ? add_counter(step, "loss_scale", DType::F32, request.first_loss_scale) : ValueId::None;
  ValueId seed = b.cast(weight, loss_dtype);
  if (loss_scale != ValueId::None) seed = b.emit("mul", {seed, loss_scale}, {}, "scaled_seed");
  Result<std::vector<ValueId>> grads = differentiate(step, objective == ValueId::None ? loss : objective, seed, wrt);
  if (!grads) return grads.takeError();

  std::vector<Trained> reached;
  for (size_t i = 0; i < trained.size(); ++i) {
    trained[i].grad = (*grads)[i];
    if (trained[i].grad != ValueId::None) reached.push_back(trained[i]);
  }
  if (reached.empty()) return nothing_reached(step, loss, wrt);

  advance_random_counter(step);
  Program program;
  if (!accumulates) {
    reduce_gradients(b, reached, request, Reduce::All);
    for (const Trained& p : reached) step.gradients.push_back({p.value, p.grad});
    emit_updates(step, reached, ValueId::None, loss_scale, request);
    program.functions.push_back(std::move(step));
    return program;
  }
  step.outputs.push_back({"weight", b.cast(weight, DType::F32)});
  if (request.zero >= 2) reduce_gradients(b, reached, request, Reduce::ToPieces);
  accumulate_gradients(step, reached, b.cast(weight, DType::F32));
  Graph update = make_update_function(step, reached, request);
  program.functions.push_back(std::move(step));
  program.functions.push_back(std::move(update));
  return program;
}

}  // namespace plimsoll
