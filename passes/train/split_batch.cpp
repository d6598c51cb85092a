#include "passes/train/split_batch.h"

// The region is found first, by what the op records say of parts (OpDef::part), then made anew part by part, the last
// part first: backward runs the other way, so its sums over parts grow in the order of the parts.
//
// Why it is right: each node of the region claims that the parts' results make its result; the weight that a mean
// divides by depends on no part's losses.

#include "passes/analysis/dependence.h"
#include "passes/pass/pass.h"
#include "passes/rewrite/match.h"
#include "passes/train/training_step.h"

#include <algorithm>
#include <map>

namespace plimsoll {
namespace {

std::optional<ChunkCall> part_of_node(const Graph& graph, const Node& node, Chunk part) {
  const llvm::SmallVector<const Type*, 4> types = operand_types(graph, node);
  return chunk_of(*node.op, OpCall(node.attrs, types), part);
}

class Splitter {
 public:
  Splitter(Graph& graph, ValueId from, int64_t parts)
      : graph_(graph), from_(from), parameters_(graph), parts_(parts), in_parts_(graph.value_count(), false) {
    split_.parts = parts;
  }

  Result<BatchSplit> run() {
    const Shape& shape = graph_.type(from_).shape;
    const std::string& name = graph_.value(from_).name;
    if (shape.empty() || shape[0] % parts_ != 0)
      return model_error(name + " is " + to_string(graph_.type(from_)) + ", which does not make " +
                         llvm::Twine(parts_) + " equal parts");
    find_region();
    if (region_.empty()) return model_error(name + ": nothing that reads it works on parts of a batch");
    const ValueId loss_weight = find_sample_weight(graph_, graph_.outputs.front().value);
    const NodeId behind = graph_.next_node(region_.back());
    Builder b(graph_, behind);
    cut(b);
    for (int64_t turn = parts_ - 1; turn >= 0; --turn)
      if (Status s = make_part(b, turn)) return s;
    for (NodeId id : region_) join(b, id);
    for (NodeId id : after_) graph_.move_before(id, behind);
    if (auto weight = weights_.find(loss_weight); weight != weights_.end()) split_.sample_weight = weight->second;
    erase_region();
    return std::move(split_);
  }

 private:
  bool comes_in_parts(ValueId value) const { return value != ValueId::None && in_parts_[index_of(value)]; }

  // A node that reads what an earlier node joined comes after all parts.
  void find_region() {
    std::vector<bool> joined(graph_.value_count(), false);
    const std::vector<bool> needed = find_needed(graph_);
    size_t amid = 0;
    in_parts_[index_of(from_)] = true;
    for (NodeId id : graph_.order()) {
      const Node& node = graph_.node(id);
      const bool reads_parts = llvm::any_of(node.operands, [&](ValueId operand) { return comes_in_parts(operand); });
      const bool reads_joined = llvm::any_of(
          node.operands, [&](ValueId operand) { return operand != ValueId::None && joined[index_of(operand)]; });
      if (!reads_parts && !reads_joined) continue;
      std::optional<ChunkCall> call;
      if (needed[index_of(id)] && !reads_joined) call = claimed(node);
      for (size_t i = 0; i < node.results.size(); ++i) {
        const bool rows = call && combine_of(*call, i) == Combine::Rows;
        (rows ? in_parts_ : joined)[index_of(node.results[i])] = true;
      }
      (call ? region_ : after_).push_back(id);
      if (call) amid = after_.size();
    }
    after_.resize(amid);  // what follows the last of the region stays where it is
  }

  // What the node's record says of one part, where what is in parts here is what it reads in parts.
  std::optional<ChunkCall> claimed(const Node& node) const {
    std::optional<ChunkCall> call = part_of_node(graph_, node, {0, parts_});
    if (!call) return std::nullopt;
    for (size_t i = 0; i < node.operands.size(); ++i)
      if (comes_in_parts(node.operands[i]) && !call->cut[i]) return std::nullopt;
    // A mean's weight is needed before any part.
    if (combine_of(*call, 0) == Combine::WeightedMean &&
        llvm::any_of(llvm::drop_begin(node.operands), [&](ValueId operand) { return comes_in_parts(operand); }))
      return std::nullopt;
    return call;
  }

  // What enters the region, once each, by one instruction.
  void cut(Builder& b) {
    for (NodeId id : region_) {
      const Node node = graph_.node(id);
      b.origin = node.origin;
      const ChunkCall call = *part_of_node(graph_, node, {0, parts_});
      if (combine_of(call, 0) == Combine::WeightedMean) weights_[node.results.back()] = node.op->sample_weight(b, id);
      for (size_t i = 0; i < node.operands.size(); ++i) {
        const ValueId operand = node.operands[i];
        const bool made_here = comes_in_parts(operand) && operand != from_;
        if (call.cut[i] && !made_here && !made_.count(operand)) made_[operand] = cut_value(b, operand);
      }
    }
  }

  llvm::SmallVector<ValueId, 4> cut_value(Builder& b, ValueId value) {
    const int64_t rows = graph_.type(value).shape[0] / parts_;
    std::vector<std::string> names;
    for (int64_t turn = 0; turn < parts_; ++turn) names.push_back(part_name(value, turn));
    return b.emit_all("split", {value}, {{"axis", int64_t{0}}, {"sizes", Ints(static_cast<size_t>(parts_), rows)}},
                      names);
  }

  std::string part_name(ValueId value, int64_t turn) const {
    return graph_.value(value).name + ".part" + std::to_string(turn);
  }

  Status make_part(Builder& b, int64_t turn) {
    repeated_.clear();
    for (NodeId id : region_) {
      const Node node = graph_.node(id);  // a copy: making nodes moves nodes
      const std::optional<ChunkCall> call = part_of_node(graph_, node, {turn, parts_});
      llvm::SmallVector<ValueId, 6> operands;
      for (size_t i = 0; i < node.operands.size(); ++i)
        operands.push_back(call->cut[i] ? made_[node.operands[i]][static_cast<size_t>(turn)]
                                        : repeated(b, node.operands[i], turn));
      std::vector<std::string> names;
      for (ValueId result : node.results) names.push_back(part_name(result, turn));
      b.origin = node.origin;
      Result<NodeId> made = b.create(*node.op, operands, call->attrs, names);
      if (!made) return made.takeError();
      in_turn(*made, turn);
      for (size_t i = 0; i < node.results.size(); ++i) {
        auto& parts = made_[node.results[i]];
        parts.resize(static_cast<size_t>(parts_), ValueId::None);
        parts[static_cast<size_t>(turn)] = graph_.node(*made).results[i];
      }
    }
    return Status::success();
  }

  // What is made of parameters alone is made again by each part: gradients of parts are then added where the parameter
  // is, in its precision. That equal nodes are one again is another pass's work.
  ValueId repeated(Builder& b, ValueId value, int64_t turn) {
    if (value == ValueId::None || !parameters_.alone[index_of(value)] || !parameters_.trained[index_of(value)])
      return value;
    const NodeId producer = graph_.value(value).producer;
    if (producer == NodeId::None) return value;
    if (auto done = repeated_.find(value); done != repeated_.end()) return done->second;
    const Node node = graph_.node(producer);
    llvm::SmallVector<ValueId, 4> operands;
    for (ValueId operand : node.operands) operands.push_back(repeated(b, operand, turn));
    std::vector<std::string> names;
    for (ValueId result : node.results) names.push_back(part_name(result, turn));
    b.origin = node.origin;
    const llvm::SmallVector<ValueId, 4> results = b.emit_all(node.op->name, operands, node.attrs, names);
    for (size_t i = 0; i < results.size(); ++i) repeated_[node.results[i]] = results[i];
    in_turn(graph_.value(results[0]).producer, turn);
    graph_.node(graph_.value(results[0]).producer).reason = node.reason;
    return repeated_[value];
  }

  void in_turn(NodeId node, int64_t turn) {
    split_.turn.resize(graph_.node_slots(), -1);
    split_.turn[index_of(node)] = static_cast<int32_t>(turn);
  }

  // The whole of each result that somebody outside the region reads.
  void join(Builder& b, NodeId id) {
    const Node node = graph_.node(id);
    const ChunkCall call = *part_of_node(graph_, node, {0, parts_});
    b.origin = node.origin;
    for (size_t i = 0; i < node.results.size(); ++i) {
      const ValueId result = node.results[i];
      if (!is_read_outside(result)) continue;
      const auto weight = weights_.find(node.results.back());
      if (combine_of(call, i) == Combine::WeightedMean)
        replace_and_rename(graph_, result, b.emit("div", {joined(b, result, Combine::Sum), weight->second}));
      else if (weight != weights_.end() && result == node.results.back())
        graph_.replace_uses(result, weight->second);
      else
        replace_and_rename(graph_, result, joined(b, result, combine_of(call, i)));
    }
  }

  bool is_read_outside(ValueId value) const {
    const bool read =
        llvm::any_of(graph_.value(value).users, [&](NodeId user) { return !llvm::is_contained(region_, user); });
    return read || llvm::any_of(graph_.outputs, [&](const Output& output) { return output.value == value; }) ||
           llvm::any_of(graph_.updates, [&](const Update& update) { return update.value == value; });
  }

  ValueId joined(Builder& b, ValueId value, Combine how) {
    llvm::ArrayRef<ValueId> parts = made_[value];
    if (how == Combine::Rows) return b.emit("concat", parts, {{"axis", int64_t{0}}});
    ValueId sum = parts[0];
    for (ValueId part : parts.drop_front()) sum = b.emit("add", {sum, part});
    if (how == Combine::Sum) return sum;
    return b.emit("mul", {sum, b.scalar(1.0 / static_cast<double>(parts_), graph_.type(sum).dtype)});
  }

  void erase_region() {
    for (auto id = region_.rbegin(); id != region_.rend(); ++id) graph_.erase_node(*id);
    split_.turn.resize(graph_.node_slots(), -1);
  }

  Graph& graph_;
  ValueId from_;
  ParameterValues parameters_;
  int64_t parts_;
  BatchSplit split_;
  std::vector<bool> in_parts_;                             // by value: from_, and what the region makes row by row
  std::vector<NodeId> region_, after_;                     // in order; after_: what reads joined values amid the region
  std::map<ValueId, llvm::SmallVector<ValueId, 4>> made_;  // the parts of a value
  std::map<ValueId, ValueId> repeated_;                    // of the part that is being made
  std::map<ValueId, ValueId> weights_;  // by the last result of a weighted mean: the same, made ahead of the parts
};

}  // namespace

Result<BatchSplit> split_batch(Graph& graph, ValueId from, int64_t parts) {
  if (parts < 2) return usage_error("a batch is split in 2 parts or more, not " + llvm::Twine(parts));
  return Splitter(graph, from, parts).run();
}

void run_parts_in_turn(Graph& step, const BatchSplit& split) {
  const auto last = static_cast<int32_t>(split.parts - 1);
  std::vector<int32_t> turn(step.node_slots(), -1);
  const std::vector<NodeId> order = step.order();
  for (NodeId id : order) {
    int32_t& own = turn[index_of(id)];
    if (index_of(id) < split.turn.size()) own = split.turn[index_of(id)];
    for (ValueId operand : step.node(id).operands)
      if (operand != ValueId::None && step.value(operand).producer != NodeId::None)
        own = std::max(own, turn[index_of(step.value(operand).producer)]);
  }
  // What backward makes of nothing in the region comes with its first reader, and not before the region.
  for (auto id = order.rbegin(); id != order.rend(); ++id) {
    if (step.node(*id).phase == Phase::Forward || turn[index_of(*id)] >= 0) continue;
    int32_t first = last;
    for (ValueId result : step.node(*id).results)
      for (NodeId user : step.value(result).users) first = std::min(first, std::max(turn[index_of(user)], 0));
    turn[index_of(*id)] = first;
  }
  std::vector<NodeId> in_turn = order;
  std::stable_sort(in_turn.begin(), in_turn.end(),
                   [&](NodeId a, NodeId b) { return turn[index_of(a)] < turn[index_of(b)]; });
  step.reorder(in_turn);
}

namespace {

Result<bool> run(Graph& graph, PassContext& context) {
  const ValueId from = graph.find_value(context.text("from"));
  if (from == ValueId::None) return usage_error("there is no value '" + context.text("from") + "'");
  const int64_t parts = context.number("parts");
  Result<BatchSplit> split = split_batch(graph, from, parts);
  if (!split) return split.takeError();
  context.count("parts", parts);
  return true;
}

constexpr PassOption pass_options[] = {{"from", "", "the value behind which everything comes in parts"},
                                       {"parts", 2, "how many", 2}};

}  // namespace

constinit const PassInfo pass_split_batch{
    .name = "split-batch",
    .summary = "what follows a value is made for one part of the batch after the other",
    .stage = Stage::Forward,
    .keeps_result = true,
    .options = pass_options,
    .run = run,
};

}  // namespace plimsoll
