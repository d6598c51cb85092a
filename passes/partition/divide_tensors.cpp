#include "passes/partition/divide_tensors.h"

// Groups of values are chosen (tensor_groups.h), then nodes are made anew in order: those of a group on the rank's
// parts, the others on whole operands. A value has up to three forms, each made of another when it is first read: whole
// (alike on all ranks), divided (the rank's part) and partial (the rank's summand).
//
// Why it is right: a record's claim (OpDef::divide) says that the op on parts of its operands makes that part, or a
// summand, of its result. Gradients are those of the sum of all ranks' objectives; ranks along the tensor axis hold the
// loss alike, so each starts from an equal share of it, and the gradient of what they hold alike is a sum over them.

#include "ir/builder.h"
#include "passes/partition/divide_batch.h"
#include "passes/pass/pass.h"
#include "passes/rewrite/match.h"

#include <cassert>

namespace plimsoll {
namespace {

struct Forms {
  ValueId whole = ValueId::None, divided = ValueId::None, partial = ValueId::None;
};

class TensorDivider {
 public:
  TensorDivider(Graph& graph, int64_t ranks, Rows rows) : graph_(graph), b_(graph), ranks_(ranks), rows_(rows) {
    for (size_t i = 0; i < graph.value_count(); ++i) types_.push_back(graph.type(static_cast<ValueId>(i)));
  }

  Result<TensorGroups> run(std::map<NodeId, NodeId>* made_for, const MayCutFn& may_cut) {
    note_sample_weight();
    TensorGroups groups = choose_tensor_groups(graph_, ranks_, rows_, may_cut);
    for (const TensorGroup& group : llvm::concat<const TensorGroup>(groups.taken, groups.rows)) {
      for (const auto& [value, cut] : group.cuts) cuts_[value] = cut;
      for (const auto& [id, call] : group.calls) calls_[id] = call;
    }
    divide_states();
    for (NodeId id : graph_.order()) {
      const size_t slots = graph_.node_slots();
      if (Status s = divide(id)) return s;
      for (size_t made = slots; made_for && made < graph_.node_slots(); ++made)
        made_for->emplace(static_cast<NodeId>(made), id);
    }
    b_.insert_before(NodeId::None);
    for (Update& update : graph_.updates) update.value = whole(update.value);
    for (Output& output : graph_.outputs) output.value = whole(output.value);
    share_objective();
    for (auto id = replaced_.rbegin(); id != replaced_.rend(); ++id) graph_.erase_node(*id);
    for (const auto& [value, name] : names_) graph_.rename(value, name);
    return groups;
  }

 private:
  // Once the loss is made of parts its nodes no longer show what it was divided by.
  void note_sample_weight() {
    if (find_output(sample_weight_output)) return;
    if (const ValueId weight = find_sample_weight(graph_, graph_.outputs.front().value); weight != ValueId::None)
      graph_.outputs.push_back({sample_weight_output.str(), weight});
  }

  Output* find_output(llvm::StringRef name) {
    auto found = llvm::find_if(graph_.outputs, [&](const Output& output) { return output.name == name; });
    return found == graph_.outputs.end() ? nullptr : &*found;
  }

  void divide_states() {
    for (State& state : graph_.states) {
      const auto cut = cuts_.find(state.value);
      if (cut == cuts_.end() || state.role != StateRole::Parameter) continue;
      const Type whole = graph_.type(state.value);
      state.divisions.push_back({MeshAxis::Tensor, whole.shape, cut->second});
      graph_.set_type(state.value, Type(whole.dtype, part_shape(whole.shape, cut->second)));
      forms_[state.value].divided = state.value;
    }
  }

  Shape part_shape(Shape shape, const Cut& cut) const {
    shape[static_cast<size_t>(cut.dim)] = part_size(cut, ranks_);
    return shape;
  }

  Attrs group(llvm::ArrayRef<int64_t> shape = {}) const { return collective_attrs(MeshAxis::Tensor, ranks_, shape); }

  Forms& forms(ValueId value) {
    auto [at, fresh] = forms_.try_emplace(value);
    if (fresh) at->second.whole = value;
    return at->second;
  }

  ValueId whole(ValueId value) {
    if (value == ValueId::None) return value;
    Forms& f = forms(value);
    if (f.whole != ValueId::None) return f.whole;
    if (!comes_in_pieces(value)) return f.whole = b_.emit("reduce_all", {f.partial}, group());
    const ValueId own = divided(value);
    assert(parts_are_runs(value) && "of what groups divide, only rows are read whole");
    return f.whole = b_.emit("gather_pieces", {own}, group(types_[index_of(value)].shape));
  }

  // False for a sum that is read whole, or in parts that are no pieces of it: those are taken of the whole sum.
  bool comes_in_pieces(ValueId value) const {
    const auto known = forms_.find(value);
    const bool is_sum = known != forms_.end() && known->second.partial != ValueId::None;
    return cuts_.count(value) > 0 && (!is_sum || parts_are_runs(value));
  }

  // Is a part a run of memory, and the ranks' parts one after the other?
  bool parts_are_runs(ValueId value) const {
    const Cut& cut = cuts_.at(value);
    const llvm::ArrayRef<int64_t> dims = types_[index_of(value)].shape;
    return element_count(dims.take_front(static_cast<size_t>(cut.dim))) == 1 && cut.blocks.size() == 1;
  }

  // Pieces are flat: what a rank takes of an inner dimension is brought together first.
  ValueId divided(ValueId value) {
    Forms& f = forms(value);
    if (f.divided != ValueId::None) return f.divided;
    const Cut& cut = cuts_.at(value);
    const Shape shape = types_[index_of(value)].shape;
    if (f.partial != ValueId::None && parts_are_runs(value))
      return f.divided = b_.emit("reduce_pieces", {f.partial}, group(part_shape(shape, cut)));
    const llvm::ArrayRef<int64_t> dims = shape;
    const auto dim = static_cast<size_t>(cut.dim);
    const int64_t before = element_count(dims.take_front(dim)), behind = element_count(dims.drop_front(dim + 1));
    const ValueId source = whole(value);
    const int64_t part = part_size(cut, ranks_);
    if (before == 1) return f.divided = b_.emit("take_piece", {source}, group(part_shape(shape, cut)));
    if (divides_evenly(cut, ranks_)) {
      const ValueId by_rank = b_.transpose(b_.reshape(source, {before, ranks_, part, behind}), {1, 0, 2, 3});
      return f.divided = b_.emit("take_piece", {by_rank}, group(part_shape(shape, cut)));
    }
    // Behind the end of a piece are zeros, so the dimension leads while the piece is taken.
    const ValueId leading = b_.transpose(b_.reshape(source, {before, dims[dim], behind}), {1, 0, 2});
    const ValueId piece = b_.emit("take_piece", {leading}, group({part, before, behind}));
    return f.divided = b_.reshape(b_.transpose(piece, {1, 0, 2}), part_shape(shape, cut));
  }

  Status divide(NodeId id) {
    const Node node = graph_.node(id);  // a copy: making nodes moves nodes
    const auto call = calls_.find(id);
    b_.insert_before(id);
    b_.origin = node.origin;
    b_.phase = node.phase;
    if (call != calls_.end()) {
      replaced_.push_back(id);
      return make_parts(node, call->second);
    }
    for (size_t i = 0; i < node.operands.size(); ++i)
      if (const ValueId operand = whole(node.operands[i]); operand != node.operands[i])
        graph_.set_operand(id, i, operand);
    return Status::success();
  }

  Status make_parts(const Node& node, const DividedCall& call) {
    Node own = node;
    for (size_t i = 0; i < own.operands.size(); ++i) {
      if (own.operands[i] == ValueId::None) continue;
      own.operands[i] = call.operands[i] ? divided(node.operands[i]) : whole(node.operands[i]);
    }
    llvm::SmallVector<ValueId, 4> added, results;
    for (size_t i : call.after) added.push_back(std::exchange(own.operands[i], ValueId::None));
    if (call.make) {
      results = call.make(b_, own, call, ranks_);
    } else {
      Result<NodeId> made = b_.create(*node.op, own.operands, call.attrs);
      if (!made) return in_context(model_name(graph_, graph_.value(node.results[0]).producer), made.takeError());
      results.assign(graph_.node(*made).results.begin(), graph_.node(*made).results.end());
      graph_.node(*made).reason = node.reason;
    }
    for (size_t i = 0; i < node.results.size(); ++i) {
      Forms& f = forms_[node.results[i]];
      (call.sums ? f.partial : call.results[i] ? f.divided : f.whole) = results[i];
      if (added.empty()) names_.push_back({results[i], graph_.value(node.results[i]).name});
    }
    if (!added.empty()) add_to_sum(node.results[0], added);
    return Status::success();
  }

  // On the rank's part where the sum is divided.
  void add_to_sum(ValueId old, llvm::ArrayRef<ValueId> added) {
    const bool in_parts = cuts_.count(old) > 0;
    ValueId sum = in_parts ? divided(old) : whole(old);
    for (ValueId each : added) sum = b_.emit("add", {sum, in_parts ? own_part(each, old) : each});
    forms_[old] = in_parts ? Forms{ValueId::None, sum, ValueId::None} : Forms{sum, ValueId::None, ValueId::None};
    names_.push_back({sum, graph_.value(old).name});
  }

  // Of a value that all ranks hold alike and that is added to `to`: what meets the rank's part of that.
  ValueId own_part(ValueId alike, ValueId to) {
    const Cut& cut = cuts_.at(to);
    Shape own = graph_.type(alike).shape;
    const int64_t absent = static_cast<int64_t>(types_[index_of(to)].shape.size() - own.size()), dim = cut.dim - absent;
    if (dim < 0 || own[static_cast<size_t>(dim)] == 1) return alike;
    own[static_cast<size_t>(dim)] = part_size(cut, ranks_);
    return b_.emit("take_piece", {alike}, group(own));
  }

  // Of a loss, or a summand along the data axis, that the ranks hold alike, each starts from an equal share.
  void share_objective() {
    Output* objective = find_output(objective_output);
    const ValueId alike = objective ? objective->value : graph_.outputs.front().value;
    const ValueId share =
        b_.emit("mul", {alike, b_.scalar(1.0 / static_cast<double>(ranks_), graph_.type(alike).dtype)});
    if (objective)
      objective->value = share;
    else
      graph_.outputs.push_back({objective_output.str(), share});
  }

  Graph& graph_;
  Builder b_;
  int64_t ranks_;
  Rows rows_;
  std::vector<Type> types_;  // by value, as the graph was
  std::map<ValueId, Cut> cuts_;
  std::map<NodeId, DividedCall> calls_;
  std::map<ValueId, Forms> forms_;  // by value of the graph as it was; values that are not here are whole
  std::vector<NodeId> replaced_;
  std::vector<std::pair<ValueId, std::string>> names_;
};

std::string in_mib(double bytes) { return std::to_string(static_cast<int64_t>(bytes / 1048576 + 0.5)) + " MiB"; }

}  // namespace

std::vector<Decision> decisions_on(const Graph& graph, const TensorGroups& groups) {
  std::vector<Decision> decisions;
  const auto decide = [&](ValueId subject, std::string choice, std::string reason) {
    decisions.push_back({"divide-tensors", graph.value(subject).name, std::move(choice), std::move(reason)});
  };
  for (const TensorGroup& group : groups.taken) {
    std::string parameters;
    for (const auto& each : group.cuts)
      if (const State* state = graph.find_state(each.first); state && has_axis(state->divisions, MeshAxis::Tensor))
        parameters += (parameters.empty() ? "" : ", ") + graph.value(each.first).name + " in dim " +
                      std::to_string(each.second.dim);
    decide(group.seed, "divided: " + parameters,
           "saves a rank " + in_mib(group.saved_state_bytes) + " of states and " +
               std::to_string(static_cast<int64_t>(group.saved_flops / 1e9)) + " GFLOP a step, sends " +
               in_mib(group.sent_bytes));
  }
  for (const auto& [value, why] : groups.whole) decide(value, "whole on every rank", why);
  for (const TensorGroup& group : groups.rows)
    decide(group.seed, "in rows, with " + std::to_string(group.calls.size()) + " nodes",
           "what lies between sums and matmuls needs no other rank's rows");
  return decisions;
}

namespace {

Result<bool> run_divide_tensors(Graph& graph, PassContext& context) {
  const Rows rows = context.number("rows") != 0 ? Rows::Divided : Rows::Whole;
  Result<TensorGroups> groups = divide_tensors(graph, context.number("ranks"), rows);
  if (!groups) return groups.takeError();
  for (Decision& each : decisions_on(graph, *groups))
    context.decide(each.subject, std::move(each.choice), std::move(each.reason));
  context.count("groups", static_cast<int64_t>(groups->taken.size()));
  return true;
}

constexpr PassOption pass_options[] = {
    {"ranks", 2, "how many ranks share matmuls, heads and vocabularies", 2},
    {"rows", 1, "whether what lies between them is divided by rows where it can be", 0, 1}};

}  // namespace

Result<TensorGroups> divide_tensors(Graph& graph, int64_t ranks, Rows rows, std::map<NodeId, NodeId>* made_for,
                                    const MayCutFn& may_cut) {
  return TensorDivider(graph, ranks, rows).run(made_for, may_cut);
}

constinit const PassInfo pass_divide_tensors{
    .name = "divide-tensors",
    .summary = "the graph of one rank that has its parts of matmuls, heads and vocabularies, with sums over the ranks",
    .stage = Stage::Forward,
    .keeps_result = false,
    .options = pass_options,
    .run = run_divide_tensors,
};

}  // namespace plimsoll
