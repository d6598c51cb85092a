#include "passes/train/split_batch.h"

// The region is found first, by what the op records say of chunks (OpDef::chunk), then made anew chunk by chunk, the
// last chunk first: backward runs the other way, so its sums over chunks grow in the order of the chunks.
//
// Why it is right: each node of the region claims that the chunks' results make its result; the weight that a mean
// divides by depends on no chunk's losses.

#include "ir/awaited.h"
#include "passes/analysis/dependence.h"
#include "passes/pass/pass.h"
#include "passes/rewrite/match.h"
#include "passes/train/training_step.h"

#include <algorithm>
#include <map>

namespace plimsoll {
namespace {

std::optional<ChunkCall> chunk_of_node(const Graph& graph, const Node& node, Chunk chunk) {
  const llvm::SmallVector<const Type*, 4> types = operand_types(graph, node);
  return chunk_of(*node.op, OpCall(*node.op, node.attrs, types), chunk);
}

class Splitter {
 public:
  Splitter(Graph& graph, llvm::ArrayRef<ValueId> from, int64_t chunks)
      : graph_(graph), from_(from), parameters_(graph), chunks_(chunks), in_chunks_(graph.value_count(), false) {
    split_.chunks = chunks;
  }

  // By value: does the region make it row by row?
  std::vector<bool> values_in_chunks() {
    find_region();
    return std::move(in_chunks_);
  }

  Result<BatchSplit> run() {
    for (ValueId from : from_) {
      const Shape& shape = graph_.type(from).shape;
      if (shape.empty() || shape[0] % chunks_ != 0)
        return model_error(graph_.value(from).name + " is " + to_string(graph_.type(from)) + ", which does not make " +
                           llvm::Twine(chunks_) + " equal chunks");
    }
    find_region();
    if (region_.empty())
      return model_error(graph_.value(from_.front()).name + ": nothing that reads it works on chunks of a batch");
    const ValueId loss_weight = find_sample_weight(graph_, graph_.outputs.front().value);
    const NodeId behind = graph_.next_node(region_.back());
    Builder b(graph_, behind);
    cut(b);
    for (int64_t chunk = chunks_ - 1; chunk >= 0; --chunk)
      if (Status s = make_chunk(b, chunk)) return s;
    for (NodeId id : region_) join(b, id);
    for (NodeId id : after_) graph_.move_before(id, behind);
    if (auto weight = weights_.find(loss_weight); weight != weights_.end()) split_.sample_weight = weight->second;
    erase_region();
    return std::move(split_);
  }

 private:
  bool comes_in_chunks(ValueId value) const { return value != ValueId::None && in_chunks_[index_of(value)]; }

  // A node that reads what an earlier node joined comes after all chunks.
  void find_region() {
    std::vector<bool> joined(graph_.value_count(), false);
    const std::vector<bool> needed = find_needed(graph_);
    size_t amid = 0;
    for (ValueId from : from_) in_chunks_[index_of(from)] = true;
    for (NodeId id : graph_.order()) {
      const Node& node = graph_.node(id);
      const bool reads_chunks = llvm::any_of(node.operands, [&](ValueId operand) { return comes_in_chunks(operand); });
      const bool reads_joined = llvm::any_of(
          node.operands, [&](ValueId operand) { return operand != ValueId::None && joined[index_of(operand)]; });
      if (!reads_chunks && !reads_joined) continue;
      std::optional<ChunkCall> call;
      if (needed[index_of(id)] && !reads_joined) call = claimed(node);
      for (size_t i = 0; i < node.results.size(); ++i) {
        const bool rows = call && combine_of(*call, i) == Combine::Rows;
        (rows ? in_chunks_ : joined)[index_of(node.results[i])] = true;
      }
      (call ? region_ : after_).push_back(id);
      if (call) amid = after_.size();
    }
    after_.resize(amid);  // what follows the last of the region stays where it is
  }

  // What the node's record says of one chunk, where what is in chunks here is what it reads in chunks.
  std::optional<ChunkCall> claimed(const Node& node) const {
    std::optional<ChunkCall> call = chunk_of_node(graph_, node, {0, chunks_});
    if (!call) return std::nullopt;
    for (size_t i = 0; i < node.operands.size(); ++i)
      if (comes_in_chunks(node.operands[i]) && !call->cut[i]) return std::nullopt;
    // A mean's weight is needed before any chunk.
    if (combine_of(*call, 0) == Combine::WeightedMean &&
        llvm::any_of(llvm::drop_begin(node.operands), [&](ValueId operand) { return comes_in_chunks(operand); }))
      return std::nullopt;
    return call;
  }

  // What enters the region, once each, by one instruction.
  void cut(Builder& b) {
    for (NodeId id : region_) {
      const Node& node = graph_.node(id);
      b.origin = node.origin;
      const ChunkCall call = *chunk_of_node(graph_, node, {0, chunks_});
      if (combine_of(call, 0) == Combine::WeightedMean) weights_[node.results.back()] = node.op->sample_weight(b, id);
      for (size_t i = 0; i < node.operands.size(); ++i) {
        const ValueId operand = node.operands[i];
        const bool made_here = comes_in_chunks(operand) && !llvm::is_contained(from_, operand);
        if (call.cut[i] && !made_here && !made_.count(operand)) made_[operand] = cut_value(b, operand);
      }
    }
  }

  llvm::SmallVector<ValueId, 4> cut_value(Builder& b, ValueId value) {
    const int64_t rows = graph_.type(value).shape[0] / chunks_;
    std::vector<std::string> names;
    for (int64_t chunk = 0; chunk < chunks_; ++chunk) names.push_back(chunk_name(value, chunk));
    return b.emit_all("split", {value}, {{"axis", int64_t{0}}, {"sizes", Ints(static_cast<size_t>(chunks_), rows)}},
                      names);
  }

  std::string chunk_name(ValueId value, int64_t chunk) const {
    return graph_.value(value).name + ".chunk" + std::to_string(chunk);
  }

  Status make_chunk(Builder& b, int64_t chunk) {
    made_again_.clear();
    for (NodeId id : region_) {
      const Node& node = graph_.node(id);
      const std::optional<ChunkCall> call = chunk_of_node(graph_, node, {chunk, chunks_});
      llvm::SmallVector<ValueId, 6> operands;
      for (size_t i = 0; i < node.operands.size(); ++i)
        operands.push_back(call->cut[i] ? made_[node.operands[i]][chunk] : made_again(b, node.operands[i], chunk));
      std::vector<std::string> names;
      for (ValueId result : node.results) names.push_back(chunk_name(result, chunk));
      b.origin = node.origin;
      Result<NodeId> made = b.create(*node.op, operands, call->attrs, names);
      if (!made) return made.takeError();
      set_chunk(*made, chunk);
      for (size_t i = 0; i < node.results.size(); ++i) {
        auto& chunks = made_[node.results[i]];
        chunks.resize(static_cast<size_t>(chunks_), ValueId::None);
        chunks[chunk] = graph_.node(*made).results[i];
      }
    }
    return Status::success();
  }

  // What is made of parameters alone is made again by each chunk: gradients of chunks are then added where the
  // parameter is, in its precision, or where it came from another stage. That equal nodes are one again is another
  // pass's work.
  ValueId made_again(Builder& b, ValueId value, int64_t chunk) {
    if (value == ValueId::None || !parameters_.alone[index_of(value)] || !parameters_.trained[index_of(value)])
      return value;
    const NodeId producer = graph_.value(value).producer;
    if (producer == NodeId::None || is_awaited(graph_.node(producer))) return value;
    if (auto done = made_again_.find(value); done != made_again_.end()) return done->second;
    const Node& node = graph_.node(producer);
    llvm::SmallVector<ValueId, 4> operands;
    for (ValueId operand : node.operands) operands.push_back(made_again(b, operand, chunk));
    std::vector<std::string> names;
    for (ValueId result : node.results) names.push_back(chunk_name(result, chunk));
    b.origin = node.origin;
    const llvm::SmallVector<ValueId, 4> results = b.emit_all(node.op->name, operands, node.attrs, names);
    for (size_t i = 0; i < results.size(); ++i) made_again_[node.results[i]] = results[i];
    set_chunk(graph_.value(results[0]).producer, chunk);
    graph_.node(graph_.value(results[0]).producer).reason = node.reason;
    return made_again_[value];
  }

  void set_chunk(NodeId node, int64_t chunk) {
    split_.chunk.resize(graph_.node_slots(), -1);
    split_.chunk[index_of(node)] = static_cast<int32_t>(chunk);
  }

  // The whole of each result that somebody outside the region reads.
  void join(Builder& b, NodeId id) {
    const Node& node = graph_.node(id);
    const ChunkCall call = *chunk_of_node(graph_, node, {0, chunks_});
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
    llvm::ArrayRef<ValueId> chunks = made_[value];
    if (how == Combine::Rows) return b.emit("concat", chunks, {{"axis", int64_t{0}}});
    ValueId sum = chunks[0];
    for (ValueId chunk : chunks.drop_front()) sum = b.emit("add", {sum, chunk});
    if (how == Combine::Sum) return sum;
    return b.emit("mul", {sum, b.scalar(1.0 / static_cast<double>(chunks_), graph_.type(sum).dtype)});
  }

  void erase_region() {
    for (auto id = region_.rbegin(); id != region_.rend(); ++id) graph_.erase_node(*id);
    split_.chunk.resize(graph_.node_slots(), -1);
  }

  Graph& graph_;
  llvm::ArrayRef<ValueId> from_;
  ParameterValues parameters_;
  int64_t chunks_;
  BatchSplit split_;
  std::vector<bool> in_chunks_;         // by value: those of from_, and what the region makes row by row
  std::vector<NodeId> region_, after_;  // in order; after_: what reads joined values amid the region
  std::map<ValueId, llvm::SmallVector<ValueId, 4>> made_;  // the chunks of a value
  std::map<ValueId, ValueId> made_again_;                  // of the chunk that is being made
  std::map<ValueId, ValueId> weights_;  // by the last result of a weighted mean: the same, made ahead of the chunks
};

}  // namespace

Result<BatchSplit> split_batch(Graph& graph, llvm::ArrayRef<ValueId> from, int64_t chunks) {
  if (chunks < 2) return usage_error("a batch is split in 2 chunks or more, not " + llvm::Twine(chunks));
  return Splitter(graph, from, chunks).run();
}

std::vector<bool> values_in_chunks(Graph& graph, llvm::ArrayRef<ValueId> from, int64_t chunks) {
  return Splitter(graph, from, chunks).values_in_chunks();
}

std::vector<int32_t> chunks_of_nodes(const Graph& step, const BatchSplit& split) {
  const auto last = static_cast<int32_t>(split.chunks - 1);
  std::vector<int32_t> chunk(step.node_slots(), -1);
  const std::vector<NodeId> order = step.order();
  for (NodeId id : order) {
    int32_t& own = chunk[index_of(id)];
    if (index_of(id) < split.chunk.size()) own = split.chunk[index_of(id)];
    for (ValueId operand : step.node(id).operands)
      if (operand != ValueId::None && step.value(operand).producer != NodeId::None)
        own = std::max(own, chunk[index_of(step.value(operand).producer)]);
  }
  // What backward makes of nothing in the region comes with its first reader, and not before the region.
  for (auto id = order.rbegin(); id != order.rend(); ++id) {
    if (step.node(*id).phase == Phase::Forward || chunk[index_of(*id)] >= 0) continue;
    int32_t first = last;
    for (ValueId result : step.node(*id).results)
      for (NodeId user : step.value(result).users) first = std::min(first, std::max(chunk[index_of(user)], 0));
    chunk[index_of(*id)] = first;
  }
  return chunk;
}

void run_chunks_in_order(Graph& step, const BatchSplit& split) {
  const std::vector<int32_t> chunk = chunks_of_nodes(step, split);
  std::vector<NodeId> by_chunk = step.order();
  std::stable_sort(by_chunk.begin(), by_chunk.end(),
                   [&](NodeId a, NodeId b) { return chunk[index_of(a)] < chunk[index_of(b)]; });
  step.reorder(by_chunk);
}

namespace {

Result<bool> run_split_batch(Graph& graph, PassContext& context) {
  const ValueId from = graph.find_value(context.text("from"));
  if (from == ValueId::None) return usage_error("there is no value '" + context.text("from") + "'");
  const int64_t chunks = context.number("chunks");
  Result<BatchSplit> split = split_batch(graph, from, chunks);
  if (!split) return split.takeError();
  context.count("chunks", chunks);
  return true;
}

constexpr PassOption pass_options[] = {{"from", "", "the value behind which everything comes in chunks"},
                                       {"chunks", 2, "how many", 2}};

}  // namespace

constinit const PassInfo pass_split_batch{
    .name = "split-batch",
    .summary = "what follows a value is made for one chunk of the batch after the other",
    .stage = Stage::Forward,
    .options = pass_options,
    .run = run_split_batch,
};

}  // namespace plimsoll
